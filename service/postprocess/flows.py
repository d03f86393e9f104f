"""Whole units moved between the blocks of two partitions by maximal flows, exactly, however large the totals.

Cells are edges from their block of one partition to that of the other; those that are open in one are at a node whose
balance is what is left. What one count of a cell more does is what a unit does that moves along its edge.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped]  # it publishes no types
from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # type: ignore[import-untyped]

from service.postprocess.crossing import OPEN

Integers = NDArray[np.int64]

_LARGEST = 2**30 - 1
"""The most that an edge carries at once. scipy's flows have 31 bits, and it takes one direction's from the other's."""
_BITS = 8
"""Bits that a pass goes down. The rest to be moved is then below 2^8 for each edge and node: 2^29 in all."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """Counts after a flow, what each block still lacks, and the nodes that what is left over reaches.

    Nothing is left over if and only if all that was lacking was met.
    """

    counts: Integers
    lacking: Integers
    reached: Integers


@dataclass(frozen=True, slots=True)
class Network:
    """Edges of cells, none twice, and what the nodes need: blocks of one, of the other, and what is open."""

    tails: Integers
    heads: Integers
    needed: Integers

    @classmethod
    def of(cls, blocks: tuple[Integers, Integers], totals: tuple[Integers, Integers]) -> "Network":
        """Return the network of two partitions.

        Args:
            blocks: for each edge its block in the one partition, and that in the other, or OPEN.
            totals: of the blocks of the one partition, and of the other.
        """
        (rows, columns), (first, second) = blocks, totals
        free = first.size + second.size
        needed = np.concatenate([first, -second, [int(second.sum()) - int(first.sum())]])
        tails, heads = np.where(rows == OPEN, free, rows), np.where(columns == OPEN, free, columns + first.size)
        return cls(tails, heads, needed)

    def lacking(self, counts: Integers) -> Integers:
        """Return the units that each node has to give, or to take where the number is below 0.

        Args:
            counts: of each edge.
        """
        lacking = self.needed.copy()
        np.subtract.at(lacking, self.tails, counts)
        np.add.at(lacking, self.heads, counts)
        return lacking

    def move(self, counts: Integers, up: Integers, down: Integers, shift: int = 0) -> FlowResult:
        """Apply a maximal flow in steps of 2^shift units, at most ``up`` of them more in a cell and ``down`` fewer.

        Args:
            counts: of each edge, in units.
            up: of each edge, in steps.
            down: of each edge, in steps.
        """
        lacking = self.lacking(counts)
        units = np.minimum(np.abs(lacking) >> shift, _LARGEST)
        giving, taking = np.flatnonzero(lacking > 0), np.flatnonzero(lacking < 0)
        source, sink = self.needed.size, self.needed.size + 1
        tails = np.concatenate([self.tails, self.heads, np.full(giving.size, source), taking])
        heads = np.concatenate([self.heads, self.tails, giving, np.full(taking.size, sink)])
        room = np.concatenate([np.minimum(up, _LARGEST), np.minimum(down, _LARGEST), units[giving], units[taking]])
        kept = room > 0
        shape = (self.needed.size + 2,) * 2
        graph = csr_array((room[kept].astype(np.int32), (tails[kept], heads[kept])), shape=shape)
        flow = maximum_flow(graph, source, sink).flow
        if self.tails.size:
            along = np.asarray(flow[self.tails, self.heads]).ravel().astype(np.int64)
            counts = counts + (along << shift)
        residual = (graph - flow).tocsr()
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, source, return_predecessors=False)
        return FlowResult(counts, self.lacking(counts), np.sort(reached[reached != source]).astype(np.int64))

    def complete(self, counts: Integers) -> FlowResult:
        """Move units from these counts to non-negative ones that lack as little as possible, many at a time first.

        Counts and needs of up to 2^40 units, or as many cells as have 62 bits in all.

        Args:
            counts: of each edge, in units.
        """
        most = max(int(np.abs(self.lacking(counts)).sum()), 1)
        shifts = [*range(max(0, most.bit_length() - 30), 0, -_BITS), 0]
        for shift in shifts:
            flow = self.move(counts, np.full(counts.size, _LARGEST), counts >> shift, shift)
            counts = flow.counts
        return flow
