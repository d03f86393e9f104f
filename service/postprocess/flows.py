"""Maximal flows that move whole units between the blocks of two partitions, exactly, also for totals beyond 31 bits.

Each cell is an edge from its block in one partition to its block in the other. A cell that is open in one partition has
its end there at a node for open cells, whose balance is the difference of the partitions' sums. One more in a cell's
count moves one unit along its edge.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped]  # it publishes no types
from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # type: ignore[import-untyped]

from service.postprocess.crossing import OPEN

Integers = NDArray[np.int64]

_LARGEST = 2**30 - 1
"""The most that an edge carries in a pass. scipy's flows have 31 bits, and it subtracts opposite ones."""
_BITS = 8
"""The bits by which steps shorten in each pass. So each edge and node has less than 2^8 steps left: 2^29 in all."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """The result of a flow.

    Attributes:
        counts: of each edge, after the flow.
        lacking: the units that each node still has to give, or to take where the number is below 0.
        reached: the nodes in reach of units that could not be moved; empty if and only if all units were moved.
    """

    counts: Integers
    lacking: Integers
    reached: Integers


@dataclass(frozen=True, slots=True)
class Network:
    """The edges of cells, each once, and the needs of nodes: blocks of one partition, of the other, open cells.

    Attributes:
        tails: the node at which each edge starts.
        heads: the node at which each edge ends.
        needed: the units that each node gives, or takes where the number is below 0.
    """

    tails: Integers
    heads: Integers
    needed: Integers

    @classmethod
    def of(cls, blocks: tuple[Integers, Integers], totals: tuple[Integers, Integers]) -> "Network":
        """Return the network of two partitions.

        Args:
            blocks: for each edge its block in the first partition, and that in the second, or OPEN.
            totals: of the blocks of the first partition, and of the second.
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
        """Apply a maximal flow in steps of 2^shift units, at most ``up`` of them more and ``down`` fewer in a cell.

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
        """Move units until counts are not negative and lack as little as possible, in large steps first.

        Counts and needs may have up to 2^40 units, if the sum over all cells has at most 62 bits.

        Args:
            counts: of each edge, in units.
        """
        most = max(int(np.abs(self.lacking(counts)).sum()), 1)
        shifts = [*range(max(0, most.bit_length() - 30), 0, -_BITS), 0]
        for shift in shifts:
            flow = self.move(counts, np.full(counts.size, _LARGEST), counts >> shift, shift)
            counts = flow.counts
        return flow
