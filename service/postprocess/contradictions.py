"""Crossing totals that contradict each other, found without a count, and which they are.

Blocks of one partition whose cells all lie in some blocks of another have at most what those have. Where two partitions
have no table without negative counts, some blocks break that (Hall, Gale): those of the minimal cut of a flow from
the one's totals to the other's, or, where totals differ as a whole, those of a part of the table that no cell leaves.
With three and more partitions, each two may have a table and all have none; then there are no such blocks to name.
"""

from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped]  # it publishes no types
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow  # type: ignore[import-untyped]

from service.errors import Fault, InvalidInput
from service.postprocess.crossing import OPEN, Crossing, Reals, project
from service.postprocess.rounding import MOST_ATOMS, rounded

Integers = NDArray[np.int64]

_MOST_NAMED = 10
_LARGEST_CAPACITY = 2**31 - 1
_EXCEEDING = (
    "expected a total that the crossing ones leave room for: with the others named here, it exceeds all that the"
    " crossing totals of the same cells add up to"
)


def check(crossing: Crossing, at: str) -> Reals:
    """A table without negative counts that meets the totals about, from the totals alone.

    Raises:
        InvalidInput: there is none.
    """
    for one, other in permutations(range(len(crossing.partitions)), 2):
        for exceeding in (_whole_parts(crossing, one, other), _cut(crossing, one, other)):
            if exceeding.size:
                pointers = [crossing.partitions[one].pointers(int(block)) for block in exceeding[:_MOST_NAMED]]
                raise InvalidInput([Fault(pointer, _EXCEEDING) for pointer in pointers])
    even = project(np.ones(crossing.places.size, np.int64), crossing)
    if crossing.misses(even):
        detail = "expected totals that one table without negative counts can have: all of these together, none has"
        raise InvalidInput.at(at, detail)
    return even


def table_of(crossing: Crossing, at: str) -> Integers:
    """A table of whole counts that meets the totals, from the totals alone.

    So an adjustment that is asked for these totals can never fail, whatever the noise: it has this table.

    Raises:
        InvalidInput: there is none, none is found, or more is asked for than is searched.
    """
    if len(crossing.partitions) > 2 and crossing.atoms[0].size > MOST_ATOMS:
        detail = (
            f"expected at most {MOST_ATOMS} cells (those that share all totals are one) where three hierarchies cross"
        )
        raise InvalidInput.at(at, detail)
    found = rounded(check(crossing, at), crossing)
    if found.counts is None:
        detail = (
            "expected totals that whole counts can have: only counts with fractions have all of these"
            if found.proven
            else "expected totals for which whole counts are found: within the limit of the search there were none"
        )
        raise InvalidInput.at(at, detail)
    return found.counts


def _exceed(crossing: Crossing, one: int, other: int, blocks: Integers) -> bool:
    """Whether blocks have more than all blocks of the other partition that their cells are in, exactly."""
    inside = np.isin(crossing.atoms[one], blocks)
    around = np.unique(crossing.atoms[other][inside])
    if OPEN in around:
        return False
    mine, theirs = crossing.partitions[one].totals, crossing.partitions[other].totals
    return bool(sum(mine[blocks].tolist()) > sum(theirs[around].tolist()))


def _whole_parts(crossing: Crossing, one: int, other: int) -> Integers:
    """Blocks that exceed in a part of the table: what is connected by sharing cells, and closed."""
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


def _cut(crossing: Crossing, one: int, other: int) -> Integers:
    """Blocks that exceed, from the cut. Totals of 2^31 and more are cut down to what a flow can carry."""
    rows, columns = crossing.atoms[one], crossing.atoms[other]
    mine, theirs = crossing.partitions[one].totals, crossing.partitions[other].totals
    first, second = mine.size, theirs.size
    shift = max(0, max(int(mine.sum()), int(theirs.sum())).bit_length() - 31)
    source, sink, free = first + second, first + second + 1, first + second + 2
    heads = np.where(columns == OPEN, free, first + columns)[rows != OPEN]
    tails = rows[rows != OPEN]
    parts = [
        (np.full(first, source), np.arange(first), mine >> shift),
        (tails, heads, np.full(tails.size, _LARGEST_CAPACITY)),
        (first + np.arange(second), np.full(second, sink), theirs >> shift),
        (np.array([free]), np.array([sink]), np.array([_LARGEST_CAPACITY])),
    ]
    start, end, room = (np.concatenate(part) for part in zip(*parts, strict=True))
    kept = room > 0
    graph = csr_array((room[kept].astype(np.int32), (start[kept], end[kept])), shape=(free + 1, free + 1))
    graph.sum_duplicates()
    left = (graph - maximum_flow(graph, source, sink).flow).tocsr()
    left.data = (left.data > 0).astype(np.int32)
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    blocks = np.sort(reached[reached < first]).astype(np.int64)
    return blocks if blocks.size and _exceed(crossing, one, other, blocks) else np.array([], np.int64)
