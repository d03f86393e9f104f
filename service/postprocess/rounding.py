"""Controlled rounding: whole counts near real ones that meet every total of crossing partitions exactly.

Each atom gets the floor or the ceiling of its real count, and then so does each of its cells. With two partitions,
which are two hierarchies, there always are such counts if the real ones meet the totals: atoms are edges between the
blocks of the two partitions, and a flow that exists in fractions exists in whole units (Ford and Fulkerson). From the
nearest whole counts, units are moved along edges until the totals are met. The largest change of an atom is kept as
small as possible.

With three or more partitions there may be none, and finding one is hard in general. A search by branch and bound tries
floors and ceilings first, then all tables, within a number of nodes. A search for any table, which is needed before
there are noisy counts, ends far sooner than one for a near table. Every result is checked in integers. If doubles were
too coarse for the totals, the search goes on from the result.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]  # it publishes no types
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from service.postprocess.crossing import LARGEST_TOTALS, OPEN, Adjustment, Crossing
from service.postprocess.flows import Network

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

MOST_PLACES = 3 * 2**11
"""Atoms times partitions, if these are more than two. Beyond, a search takes minutes, most of them before any node."""
NODES, NODES_OF_ANY = 20, 200
"""Limits of a search for a near table and for any, in nodes and not in seconds, so that all machines find the same."""

_MOVES = 32  # limits that are tried for the change of a count, between half a unit (the nearest) and a whole one
_ROUNDS = 3  # searches for any table, each from the result of the one before
_LARGEST_DECIDED = 2**20  # up to totals of this size, the solver's tolerances of 1e-6 cannot make it miss a table
_INFEASIBLE = 2  # scipy's status
_GAP = 0.1  # the nearest table may be nearer by this share of the sum of squares


@dataclass(frozen=True, slots=True)
class RoundingSearch:
    """The result of a search.

    Attributes:
        counts: whole counts of the crossing's cells, or of its atoms before they are shared out; None if none are
            found.
        proven: whether it is proven that there are none.
    """

    counts: Integers | None
    proven: bool = False


def round_counts(real: Reals, crossing: Crossing) -> RoundingSearch:
    """Return whole counts near real ones that meet the totals approximately.

    Args:
        real: of the crossing's cells.
    """
    sums = np.asarray(np.bincount(crossing.atom, real), np.float64)
    if len(crossing.partitions) <= 2:
        return _cells_from_atoms(real, RoundingSearch(_by_flow(sums, crossing)), crossing)
    search = _by_search(sums, crossing, near=True, nearest=True)
    if not _meets_exactly(search, crossing):
        search = _by_search(sums, crossing, near=False, nearest=True)
    return _cells_from_atoms(real, search, crossing)


def find_whole_counts(real: Reals, crossing: Crossing) -> RoundingSearch:
    """Return any whole counts that meet the totals.

    Args:
        real: of the crossing's cells, nearly meeting the totals; the search begins there.
    """
    if len(crossing.partitions) <= 2:
        return round_counts(real, crossing)
    sums = np.asarray(np.bincount(crossing.atom, real), np.float64)
    search = _by_search(sums, crossing, near=True, nearest=False)
    for _ in range(_ROUNDS):
        if _meets_exactly(search, crossing):
            break
        if search.counts is not None:
            sums = search.counts.astype(float)
        search = _by_search(sums, crossing, near=False, nearest=False)
        if search.counts is None:
            break
    return _cells_from_atoms(real, search, crossing)


def _meets_exactly(search: RoundingSearch, crossing: Crossing) -> bool:
    """Tell whether units of the atoms are found, and meet every total."""
    return search.counts is not None and not any(
        part.any() for part in _missing(search.counts, crossing, of_atoms=True)
    )


def _cells_from_atoms(real: Reals, search: RoundingSearch, crossing: Crossing) -> RoundingSearch:
    """Return the counts of cells from the units of atoms, if they meet the totals."""
    if search.counts is None:
        return search
    counts = _share_units(real, search.counts, crossing)
    return RoundingSearch(counts if meets_totals(counts, crossing) else None)


def round_adjustment(fit: Adjustment, counts: Integers, crossing: Crossing, known: Integers) -> Integers:
    """Return whole counts near those of an adjustment, or the known table if none are found.

    Args:
        counts: noisy counts of the whole table, in row-major order.
        known: whole counts of the crossing's cells that meet the totals.

    Returns:
        Counts of the crossing's cells.
    """
    rounded = round_counts(fit(counts[crossing.places], crossing), crossing).counts
    return known if rounded is None else rounded


def meets_totals(counts: Integers, crossing: Crossing) -> bool:
    """Tell whether whole counts are not negative and meet every total exactly.

    Args:
        counts: of the crossing's cells.
    """
    return not (counts < 0).any() and not any(missing.any() for missing in _missing(counts, crossing, of_atoms=False))


def _missing(counts: Integers, crossing: Crossing, *, of_atoms: bool) -> list[Integers]:
    """Return the units that the blocks of each partition lack, exactly."""
    lacking = []
    for number, one in enumerate(crossing.partitions):
        sums = np.zeros(one.totals.size + 1, np.int64)
        np.add.at(sums, crossing.atoms[number] if of_atoms else one.block, counts)  # OPEN is the last one
        lacking.append(one.totals - sums[:-1])
    return lacking


def _slack(crossing: Crossing) -> float:
    """Return the distance that real counts may have from counts that meet the totals exactly."""
    largest = max(int(one.totals.max(initial=0)) for one in crossing.partitions)
    return max(2.0**-20, largest * 2.0**-46)


def _share_units(real: Reals, sums: Integers, crossing: Crossing) -> Integers:
    """Share each atom's units out to its cells: the floors, and one more for the largest remainders.

    If the real counts miss totals, the floors may be more than the units. They are then scaled down.
    """
    floors = np.maximum(np.floor(real - _slack(crossing)), 0).astype(np.int64)
    taken = _atom_sums(floors, crossing)
    if (taken > sums).any():
        share = np.minimum(sums / np.maximum(taken, 1), 1.0) * (1 - 2.0**-50)
        floors = np.where((taken > sums)[crossing.atom], (floors * share[crossing.atom]).astype(np.int64), floors)
        taken = _atom_sums(floors, crossing)
    sizes = np.bincount(crossing.atom)
    every, rest = np.divmod(sums - taken, sizes)
    order = np.lexsort((floors - real, crossing.atom))
    starts = np.cumsum(sizes) - sizes
    rank = np.empty(real.size, np.int64)
    rank[order] = np.arange(real.size) - starts[crossing.atom[order]]
    shared: Integers = floors + every[crossing.atom] + (rank < rest[crossing.atom])
    return shared


def _atom_sums(counts: Integers, crossing: Crossing) -> Integers:
    """Return the sums of atoms, exactly."""
    sums = np.zeros(crossing.atoms[0].size, np.int64)
    np.add.at(sums, crossing.atom, counts)
    return sums


def _by_flow(sums: Reals, crossing: Crossing) -> Integers | None:
    """Return the atoms' units for two partitions, by a flow between the blocks that lack units and those with too many.

    If real counts miss totals by more than rounding can correct, return any nearby table that the flow leads to.
    """
    (one, other), (rows, columns) = crossing.partitions, crossing.atoms
    network = Network.of((rows, columns), (one.totals, other.totals))
    slack = _slack(crossing)
    sums = np.clip(np.nan_to_num(sums), 0.0, float(LARGEST_TOTALS))
    start = np.rint(sums).astype(np.int64)
    above = np.ceil(sums + slack).astype(np.int64) - start
    below = start - np.maximum(np.floor(sums - slack), 0).astype(np.int64)
    best = network.move(start, above, below)
    if best.lacking.any():
        best = network.complete(start)
        return None if best.lacking.any() else best.counts
    low, high = 0, _MOVES
    while high - low > 1:  # find the smallest limit of a change that suffices
        middle = (low + high) // 2
        limit = 0.5 + middle / (2 * _MOVES)
        up = np.where(start + above - sums <= limit, above, 0)
        down = np.where(sums - start + below <= limit, below, 0)
        flow = network.move(start, up, down)
        low, high, best = (middle, high, best) if flow.lacking.any() else (low, middle, flow)
    return best.counts


def _by_search(sums: Reals, crossing: Crossing, *, near: bool, nearest: bool) -> RoundingSearch:
    """Return the atoms' units for more than two partitions, by branch and bound.

    The variables are one unit from the floor to the ceiling of an atom and, unless ``near``, units above its ceiling
    and units below its floor.

    Args:
        near: allow only the floor and the ceiling of each atom, and not any number.
        nearest: look for about the nearest units to the real ones, and not for the first that are found.
    """
    slack = _slack(crossing)
    floors, ceilings = np.floor(sums + slack).astype(np.int64), np.ceil(sums - slack).astype(np.int64)
    ceilings = np.maximum(floors, ceilings)
    least = np.full(sums.size, LARGEST_TOTALS)
    for blocks, one in zip(crossing.atoms, crossing.partitions, strict=True):
        least = np.minimum(least, np.append(one.totals, LARGEST_TOTALS)[blocks])
    between, every = np.flatnonzero(floors < ceilings), np.arange(sums.size)
    ones, outside_costs = np.ones(sums.size), np.full(sums.size, 3.0)
    columns = [(between, ones[between], ones[between], (2 * (floors - sums) + 1)[between])]
    if not near:
        columns.append((every, ones, np.maximum(least - ceilings, 0).astype(float), outside_costs))
        columns.append((every, -ones, floors.astype(float), outside_costs))
    places, signs, bounds, costs = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    if not places.size:  # all are whole already
        return RoundingSearch(floors)
    needed = np.concatenate(_missing(floors, crossing, of_atoms=True))
    solution = milp(
        np.append(costs, ((floors - sums) ** 2).sum())
        * nearest,  # the last is of a column that is always 1, so that the gap is a share of the whole sum
        constraints=LinearConstraint(sum_matrix(places, signs, crossing, beside=1), needed, needed),
        integrality=np.ones(costs.size + 1),
        bounds=Bounds(np.append(np.zeros(costs.size), 1), np.append(bounds, 1)),
        options={"node_limit": NODES if nearest else NODES_OF_ANY, "mip_rel_gap": _GAP},
    )
    if solution.x is None:
        largest = max(int(one.totals.max(initial=0)) for one in crossing.partitions)
        return RoundingSearch(None, proven=not near and solution.status == _INFEASIBLE and largest <= _LARGEST_DECIDED)
    units = floors.copy()
    np.add.at(units, places, (signs * np.rint(solution.x[:-1])).astype(np.int64))
    return RoundingSearch(units)


def sum_matrix(places: Integers, signs: Reals, crossing: Crossing, *, beside: int = 0) -> csr_array:
    """Return the matrix that adds atoms up to totals, with a row for each total and a column for each variable.

    Args:
        places: the atom of each variable.
        signs: 1 or -1 for each variable.
        beside: the number of further columns, all zeros.
    """
    rows, columns, starts = [], [], 0
    for blocks, one in zip(crossing.atoms, crossing.partitions, strict=True):
        covered = np.flatnonzero(blocks[places] != OPEN)
        rows.append(blocks[places][covered] + starts)
        columns.append(covered)
        starts += one.totals.size
    row, column = np.concatenate(rows), np.concatenate(columns)
    return csr_array((signs[column], (row, column)), shape=(starts, places.size + beside))
