"""Adjustment of a table's noisy cells to the published totals of some places.

A place is a value for each of some axes; its total is the sum of all cells there. If margins are nested, as in a
hierarchy, two places are disjoint or one contains the other. So each cell belongs to the finest published place that
contains it. A total minus the totals of the published parts of its place is that of the other cells of the place. This
gives blocks of cells with one total each, which are adjusted one by one.

Margins that cross are several hierarchies, each with blocks of its own, which are adjusted together. Whether an
adjustment is possible depends only on the totals, which are public, and not on any noisy count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import Fault, InvalidInput
from service.postprocess import crossing, tables
from service.postprocess.contradictions import find_table
from service.postprocess.crossing import Adjustment, Crossing, Partition, hierarchies
from service.postprocess.rounding import round_adjustment
from service.postprocess.tables import LARGEST_SUM, MarginTotal

Integers = NDArray[np.int64]
Adjust = Callable[..., list[int] | list[float]]

_OPEN = -1  # the block of cells that are in no published place


@dataclass(frozen=True, slots=True)
class PlaceTotal:
    """The total of the place that has these values along these axes."""

    axes: tuple[int, ...]
    place: tuple[int, ...]
    total: int


@dataclass(frozen=True, slots=True)
class TotalBlocks:
    """The block of each cell, and the total of each block."""

    block: Integers
    totals: Integers


@dataclass(frozen=True, slots=True)
class CrossedTotals:
    """Totals of several hierarchies, and whole counts of their cells that meet them all."""

    crossing: Crossing
    fallback: Integers


def blocks_of(shape: Sequence[int], published: Sequence[PlaceTotal]) -> TotalBlocks | CrossedTotals:
    """Return the totals that adjusted cells of a table must add up to.

    Returns:
        Blocks if the margins are one hierarchy, else crossed totals; cells in row-major order.

    Raises:
        InvalidInput: totals are negative or contradict each other, or no whole counts that meet them are found.
    """
    _check(published)
    chains = hierarchies([frozenset(one.axes) for one in published])
    if len(chains) < 2:
        return _hierarchy_blocks(shape, published, range(len(published)))
    partitions = []
    for chain in chains:
        numbers = [number for number, one in enumerate(published) if frozenset(one.axes) in chain]
        blocks = _hierarchy_blocks(shape, published, numbers)
        partitions.append(Partition(blocks.block, blocks.totals, "/published/{}/total".format))
    crossed = Crossing.of(partitions, "/published")
    return CrossedTotals(crossed, find_table(crossed, "/published"))


def _hierarchy_blocks(shape: Sequence[int], published: Sequence[PlaceTotal], numbers: Sequence[int]) -> TotalBlocks:
    """Return the blocks of the hierarchy of the totals ``numbers``; other totals get a block of 0 without cells."""
    block = np.full(tuple(shape), _OPEN, np.int64)
    totals = np.zeros(len(published), np.int64)
    totals[numbers] = [published[number].total for number in numbers]
    for number in sorted(numbers, key=lambda number: len(published[number].axes)):
        one = published[number]
        along = dict(zip(one.axes, one.place, strict=True))
        at = tuple(along.get(axis, slice(None)) for axis in range(len(shape)))
        around = int(block[at].flat[0])
        if around != _OPEN:
            if published[around].axes == one.axes:
                raise InvalidInput.at(f"/published/{number}", "expected each total once")
            totals[around] -= one.total
        block[at] = number
    sizes = np.bincount(block[block != _OPEN], minlength=len(published))
    contradictions = (totals < 0) | ((sizes == 0) & (totals > 0))
    if contradictions.any():
        detail = "expected a total that its published parts do not exceed, and that they add up to if all are published"
        raise InvalidInput([Fault(f"/published/{number}/total", detail) for number in np.flatnonzero(contradictions)])
    return TotalBlocks(block.ravel(), totals)


def _check(published: Sequence[PlaceTotal]) -> None:
    faults = [
        Fault(f"/published/{number}/total", "expected no negative total, because counts are not negative")
        for number, one in enumerate(published)
        if one.total < 0
    ]
    if not faults and sum(one.total for one in published) > LARGEST_SUM // 4:
        faults.append(Fault("/published", "expected totals that add up to at most 2^60 units"))
    if faults:
        raise InvalidInput(faults)


def rake(cells: Integers, blocks: TotalBlocks | CrossedTotals) -> Integers:
    """Adjust each block in the proportions of its noisy cells, as far as crossing totals allow.

    Args:
        cells: noisy counts in row-major order.

    Returns:
        Whole counts in the same order; none is negative.
    """
    if isinstance(blocks, CrossedTotals):
        return _adjust_crossed(cells, blocks, crossing.rake)
    return _adjust_blocks(cells, blocks, tables.rake)


def project(cells: Integers, blocks: TotalBlocks | CrossedTotals) -> Integers:
    """Return the nearest whole table, by least squares; if totals cross, a rounding of the nearest table.

    Args:
        cells: noisy counts in row-major order.

    Returns:
        Whole counts in the same order; none is negative.
    """
    if isinstance(blocks, CrossedTotals):
        return _adjust_crossed(cells, blocks, crossing.project)
    return _adjust_blocks(cells, blocks, tables.project)


def _adjust_crossed(cells: Integers, totals: CrossedTotals, fit: Adjustment) -> Integers:
    """Adjust cells to crossing totals; cells in no published place are only clamped at 0."""
    adjusted = np.maximum(cells, 0)
    adjusted[totals.crossing.places] = round_adjustment(fit, cells, totals.crossing, totals.fallback)
    return adjusted


def _adjust_blocks(cells: Integers, blocks: TotalBlocks, adjust: Adjust) -> Integers:
    """Adjust cells to non-negative whole numbers that meet every total; cells without one are only clamped at 0.

    Cells are clipped first, so that sums fit 64 bits. This changes only counts that are too large to be of any use.
    """
    largest = LARGEST_SUM // 4 // cells.size
    bounded = np.clip(cells, -largest, largest)
    adjusted = np.maximum(bounded, 0)
    order = np.argsort(blocks.block, kind="stable")
    order = order[np.searchsorted(blocks.block[order], 0) :]
    sizes = np.bincount(blocks.block[order], minlength=blocks.totals.size)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):  # blocks of one size at a time, a row for each
        members = np.flatnonzero(sizes == size)
        places = order[starts[members][:, None] + np.arange(size)]
        total = MarginTotal((0,), tuple(blocks.totals[members].tolist()))
        values = adjust(bounded[places].ravel().tolist(), places.shape, [total], integer=True)
        adjusted[places] = np.array(values, np.int64).reshape(places.shape)
    return adjusted
