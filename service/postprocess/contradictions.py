"""Search for crossing totals that contradict each other, from the totals alone.

If the cells of some blocks of one partition all lie in some blocks of another, the totals of the former are at most
those of the latter. If no non-negative table meets two partitions, some blocks break this rule (Hall, Gale). They are
found by the minimal cut of a flow from the totals of one partition to those of the other. If the sums of the two
partitions differ in a part of the table that shares no block with the rest, they are the blocks of this part.

With three or more partitions, each pair may have a table although all together have none. Then there are no such blocks
to name. The proof is a number y for each total, such that no cell has a positive sum of y over its totals, and yet the
sum of y times the totals is positive (Farkas). A linear program finds these numbers, and integers check them. Only
proven contradictions are reported.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]  # it publishes no types
from scipy.sparse import csr_array, eye_array, hstack  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from service.errors import Fault, InvalidInput
from service.postprocess.crossing import OPEN, Crossing, Reals, project
from service.postprocess.flows import Network
from service.postprocess.rounding import MOST_PLACES, find_whole_counts, sum_matrix

Integers = NDArray[np.int64]

_MOST_NAMED = 10
_ITERATIONS = 20_000  # of the simplex method: some seconds
_EXCEEDING = (
    "expected a total that the crossing totals allow: together with the others named here, it exceeds the sum of the"
    " crossing totals of the same cells"
)


def check_totals(crossing: Crossing, at: str) -> Reals:
    """Return a non-negative table that nearly meets the totals, from these alone; for two partitions, any counts.

    For two partitions, integers decide whether there is a table: there is one unless some blocks exceed others (Hall,
    Gale). For more partitions this can remain open: where totals of very different sizes cross, doubles may not reach a
    table that exists.

    Args:
        at: JSON pointer of the totals, for faults of all of them together.

    Returns:
        A count for each cell of the crossing.

    Raises:
        InvalidInput: it is proven that no non-negative table meets the totals.
    """
    for one, other in combinations(range(len(crossing.partitions)), 2):
        for where, exceeding in _exceeding(crossing, one, other):
            if exceeding.size:
                pointers = [crossing.partitions[where].pointers(int(block)) for block in exceeding[:_MOST_NAMED]]
                raise InvalidInput([Fault(pointer, _EXCEEDING) for pointer in pointers])
    ones = np.ones(crossing.places.size, np.int64)
    if len(crossing.partitions) <= 2:
        return ones.astype(float)
    even = project(ones, crossing)
    if crossing.misses(even) and _is_infeasible(crossing):
        detail = "expected totals that some table without negative counts meets; no such table meets all of these"
        raise InvalidInput.at(at, detail)
    return even


def find_table(crossing: Crossing, at: str) -> Integers:
    """Return a non-negative table of whole counts that meets the totals, from the totals alone.

    An adjustment to these totals falls back on this table, so it never fails, whatever the noise.

    Args:
        at: JSON pointer of the totals, for faults of all of them together.

    Returns:
        A count for each cell of the crossing; none is negative.

    Raises:
        InvalidInput: there is no such table, the search finds none, or there are more cells than it accepts.
    """
    many = len(crossing.partitions)
    if many > 2 and crossing.atoms[0].size * many > MOST_PLACES:
        detail = (
            f"expected at most {MOST_PLACES // many} cells (those that share all totals are one) where {many}"
            " hierarchies cross"
        )
        raise InvalidInput.at(at, detail)
    search = find_whole_counts(check_totals(crossing, at), crossing)
    if search.counts is None:
        detail = (
            "expected totals that whole counts can meet; only counts with fractions meet all of these"
            if search.proven
            else "expected totals that whole counts are found to meet; the search reached its limit without any"
        )
        raise InvalidInput.at(at, detail)
    return search.counts


def _is_infeasible(crossing: Crossing) -> bool:
    """Tell whether there are numbers y that prove that no non-negative table meets the totals.

    They are the dual values of a linear program: the least by which a table misses the totals. They are at most 1 in
    size, and are rounded to multiples of 2^-48. If rounding leaves a cell with a positive sum of y, the largest such
    sum is subtracted from every y. This suffices because every cell has a total.
    """
    totals = np.concatenate([one.totals for one in crossing.partitions])
    atoms = crossing.atoms[0].size
    if atoms * len(crossing.partitions) > MOST_PLACES:
        return False
    sums = sum_matrix(np.arange(atoms), np.ones(atoms), crossing)
    beside = eye_array(totals.size, format="csr")
    program = linprog(
        np.concatenate([np.zeros(atoms), np.ones(2 * totals.size)]),
        A_eq=hstack([sums, beside, -beside], format="csr"),
        b_eq=totals,
        method="highs-ds",
        options={"maxiter": _ITERATIONS},
    )
    if program.x is None:
        return False
    y = np.rint(program.eqlin.marginals * 2.0**48).astype(np.int64)
    starts = np.cumsum([0, *(one.totals.size for one in crossing.partitions)])
    of_atoms = np.zeros(atoms, np.int64)
    for blocks, start in zip(crossing.atoms, starts, strict=False):
        of_atoms += np.where(blocks == OPEN, 0, y[start + blocks])
    y -= max(int(of_atoms.max()), 0)
    excess: int = sum(number * total for number, total in zip(y.tolist(), totals.tolist(), strict=True))
    return excess > 0


def _exceeding(crossing: Crossing, one: int, other: int) -> Iterator[tuple[int, Integers]]:
    """Yield candidates: a partition and its blocks that exceed those of the other; the array is empty if none do."""
    yield one, _whole_parts(crossing, one, other)
    yield other, _whole_parts(crossing, other, one)
    yield _cut(crossing, one, other)


def _whole_parts(crossing: Crossing, one: int, other: int) -> Integers:
    """Return the blocks of ``one`` that exceed those of ``other`` in a part of the table connected by shared cells."""
    rows, columns = crossing.atoms[one], crossing.atoms[other]
    mine, theirs = crossing.partitions[one].totals, crossing.partitions[other].totals
    both = (rows != OPEN) & (columns != OPEN)
    edges = (np.ones(int(both.sum())), (rows[both], mine.size + columns[both]))
    parts, part = connected_components(csr_array(edges, shape=(mine.size + theirs.size,) * 2), directed=False)
    excess = np.zeros(parts, np.int64)
    np.add.at(excess, part, np.concatenate([mine, -theirs]))
    excess[part[rows[(rows != OPEN) & (columns == OPEN)]]] = 0
    exceeding = np.flatnonzero(excess > 0)
    return np.flatnonzero(part[: mine.size] == exceeding[0]) if exceeding.size else exceeding


def _cut(crossing: Crossing, one: int, other: int) -> tuple[int, Integers]:
    """Return the partition whose blocks exceed, and these blocks, by the minimal cut of a flow that leaves units over.

    No edge leads out of the nodes that the remaining units reach. So the blocks of ``one`` among these nodes exceed. If
    the node of open cells is among them, the blocks of ``other`` that are not reached exceed: all their cells lie in
    blocks of ``one`` that are not reached either.
    """
    mine, theirs = crossing.partitions[one].totals, crossing.partitions[other].totals
    pairs = np.unique(np.stack([crossing.atoms[one], crossing.atoms[other]]), axis=1)
    rows, columns = pairs[:, (pairs != OPEN).any(axis=0)]
    flow = Network.of((rows, columns), (mine, theirs)).complete(np.zeros(rows.size, np.int64))
    if flow.reached.size and flow.reached[-1] == mine.size + theirs.size:
        return other, np.setdiff1d(np.arange(theirs.size), flow.reached - mine.size)
    return one, flow.reached[flow.reached < mine.size]
