"""Controlled rounding: whole counts near real ones, that meet every total of crossing partitions exactly.

Each atom gets the floor or the ceiling of its real count, and then each of its cells. With two partitions, which are
two hierarchies, there always are such counts if the real ones meet the totals: atoms are edges between the blocks of
one and those of the other, and what a flow can carry in parts it can carry in whole units (Ford and Fulkerson). From
the nearest whole counts, units are moved along edges until the totals are met; of the largest move that an atom must
make, the least that does is found. With three and more partitions there may be none, and finding one is hard in
general: it is searched by branch and bound, first among floors and ceilings, then among all tables, within a number
of nodes. Any table at all, which is asked for before there are counts to be near to, is found far sooner than a near
one. Every result is checked in integers, and where doubles were too coarse for the totals, searched for from there.
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
"""Atoms of more than two partitions, once for each: beyond, a search takes minutes, most of them before any node."""
NODES, NODES_OF_ANY = 20, 200
"""Of a search, for a near table and for any. In nodes and not in seconds, so that every machine finds the same."""

_MOVES = 32  # between half a unit, the nearest, and a whole one, how many limits of a move are told apart
_ROUNDS = 3  # of a search for any table, each from where the one before has led
_TOLD_APART = 2**20  # up to totals of this size a search's tolerances, of 1e-6, cannot take a table for none
_INFEASIBLE = 2  # scipy's status
_GAP = 0.1  # another table may be nearer to the real one by this share of the sum of squares


@dataclass(frozen=True, slots=True)
class RoundingSearch:
    """Whole counts of the cells of a crossing, or none; ``proven``: that there are none."""

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
    """Return any whole counts that meet the totals; real ones that nearly do show where to look first.

    Args:
        real: of the crossing's cells.
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
    """Tell whether atoms' units are found, and meet every total."""
    return search.counts is not None and not any(
        part.any() for part in _missing(search.counts, crossing, of_atoms=True)
    )


def _cells_from_atoms(real: Reals, search: RoundingSearch, crossing: Crossing) -> RoundingSearch:
    """Return cells' counts from atoms' units, if they meet the totals."""
    if search.counts is None:
        return search
    counts = _share_units(real, search.counts, crossing)
    return RoundingSearch(counts if meets_totals(counts, crossing) else None)


def round_adjustment(fit: Adjustment, counts: Integers, crossing: Crossing, known: Integers) -> Integers:
    """Return whole counts near those of an adjustment; the known table where none are found.

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
    """Return how far real counts may be from ones that meet the totals exactly."""
    largest = max(int(one.totals.max(initial=0)) for one in crossing.partitions)
    return max(2.0**-20, largest * 2.0**-46)


def _share_units(real: Reals, sums: Integers, crossing: Crossing) -> Integers:
    """Share each atom's units out to its cells: their floors, and one more for the largest remainders.

    Of real counts that miss totals the floors may be more than the units: then they are scaled down to these.
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
    """Return atoms' units for two partitions, by a flow between the blocks that lack units and those with too many.

    Where real counts miss totals by more than roundings reach, any nearby table that the flow leads to.
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
    while high - low > 1:  # the least limit of a move that does
        middle = (low + high) // 2
        limit = 0.5 + middle / (2 * _MOVES)
        up = np.where(start + above - sums <= limit, above, 0)
        down = np.where(sums - start + below <= limit, below, 0)
        flow = network.move(start, up, down)
        low, high, best = (middle, high, best) if flow.lacking.any() else (low, middle, flow)
    return best.counts


def _by_search(sums: Reals, crossing: Crossing, *, near: bool, nearest: bool) -> RoundingSearch:
    """Return atoms' units for more partitions, by branch and bound: a floor or a ceiling each, or any number.

    ``nearest``: about the nearest to the real ones, and not the first that are found.

    A column is a unit from the floor to the ceiling, or units above the ceiling, or units below the floor.
    """
    slack = _slack(crossing)
    floors, ceilings = np.floor(sums + slack).astype(np.int64), np.ceil(sums - slack).astype(np.int64)
    ceilings = np.maximum(floors, ceilings)
    least = np.full(sums.size, LARGEST_TOTALS)
    for blocks, one in zip(crossing.atoms, crossing.partitions, strict=True):
        least = np.minimum(least, np.append(one.totals, LARGEST_TOTALS)[blocks])
    between, every = np.flatnonzero(floors < ceilings), np.arange(sums.size)
    ones, dear = np.ones(sums.size), np.full(sums.size, 3.0)
    columns = [(between, ones[between], ones[between], (2 * (floors - sums) + 1)[between])]
    if not near:
        columns.append((every, ones, np.maximum(least - ceilings, 0).astype(float), dear))
        columns.append((every, -ones, floors.astype(float), dear))
    places, signs, bounds, costs = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    if not places.size:  # whole already
        return RoundingSearch(floors)
    needed = np.concatenate(_missing(floors, crossing, of_atoms=True))
    solution = milp(
        np.append(costs, ((floors - sums) ** 2).sum())
        * nearest,  # the last of a column that is always 1, so that gaps have a meaning
        constraints=LinearConstraint(sum_matrix(places, signs, crossing, beside=1), needed, needed),
        integrality=np.ones(costs.size + 1),
        bounds=Bounds(np.append(np.zeros(costs.size), 1), np.append(bounds, 1)),
        options={"node_limit": NODES if nearest else NODES_OF_ANY, "mip_rel_gap": _GAP},
    )
    if solution.x is None:
        largest = max(int(one.totals.max(initial=0)) for one in crossing.partitions)
        return RoundingSearch(None, proven=not near and solution.status == _INFEASIBLE and largest <= _TOLD_APART)
    units = floors.copy()
    np.add.at(units, places, (signs * np.rint(solution.x[:-1])).astype(np.int64))
    return RoundingSearch(units)


def sum_matrix(places: Integers, signs: Reals, crossing: Crossing, *, beside: int = 0) -> csr_array:
    """Return the matrix that adds atoms up: a row for each total, a column for each variable, and more in none.

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
