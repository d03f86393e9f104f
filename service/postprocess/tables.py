"""Adjustment of noisy counts to published totals: whole numbers, none negative, that meet every total exactly.

The adjustment uses only noisy counts and published totals, so it costs no privacy. Totals are margins of an array: sums
along some axes over all others. Any two must have the same sums over the axes that both have. If, of any two, the axes
of one include those of the other, the margins are a hierarchy: the finest decides, and cells fall into blocks with one
total each. Other margins cross (``crossing``, ``rounding``).

For a hierarchy, integers decide everything. ``rake`` scales each count x of a block to x T/S, where T is its total and
S its sum. The floors of these miss T by the sum of the remainders over S. This is a whole number, smaller than the
number of cells with a remainder. That many cells, those with the largest remainders, get one more.

``project`` finds the nearest whole table. It lowers each count x of a block to max(x - t, 0), where t is the least
whole number at which the sum does not exceed T. The units that are then missing are fewer than the cells with x >= t,
because at t - 1 each of these cells would be one more, and the sum above T. As many of these cells get one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import Fault, InvalidInput
from service.postprocess import crossing
from service.postprocess.contradictions import check_totals, find_table
from service.postprocess.crossing import Adjustment, Crossing, Partition
from service.postprocess.rounding import round_adjustment

Integers = NDArray[np.int64]
Adjusted = list[int] | list[float]
MOST_AXES = 16
LARGEST_SUM = 2**62
"""The bound within which counts and totals add up to 64-bit integers."""


@dataclass(frozen=True, slots=True)
class MarginTotal:
    """Published sums: one for each place along ``axes``, in row-major order; without axes, that of all cells."""

    axes: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _NumberedTotal(MarginTotal):
    """A margin's totals, with their place among all totals."""

    number: int


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Cells in blocks that have a total each, with a row for each block.

    Attributes:
        counts: the noisy counts.
        totals: the total of each block; None if nothing is published.
        order: the original axes, in the order of the arranged table.
        shape: the shape of the arranged table.
    """

    counts: Integers
    totals: Integers | None
    order: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, table: Integers, finest: MarginTotal | None) -> "_Blocks":
        """Return the blocks of a table with a hierarchy of totals, of which the finest decides."""
        first = () if finest is None else tuple(sorted(finest.axes))
        order = (*first, *(axis for axis in range(table.ndim) if axis not in first))
        arranged = np.transpose(table, order)
        blocks = int(np.prod(arranged.shape[: len(first)], dtype=np.int64))
        published = None if finest is None else _arranged(finest, table.shape).reshape(blocks)
        return cls(np.ascontiguousarray(arranged).reshape(blocks, -1), published, order, arranged.shape)

    def back(self, adjusted: NDArray[np.generic]) -> Adjusted:
        """Return adjusted cells in their original order."""
        inverse = np.argsort(self.order)
        values: Adjusted = np.transpose(adjusted.reshape(self.shape), inverse).ravel().tolist()
        return values


def rake(counts: Sequence[int], shape: Sequence[int], totals: Sequence[MarginTotal], *, integer: bool) -> Adjusted:
    """Scale each block to its total.

    Negative counts are taken as 0. A block without a positive count is divided equally.

    Args:
        counts: noisy, in row-major order.
        integer: return whole counts; if false, doubles.

    Returns:
        Counts in the same order; none is negative.

    Raises:
        InvalidInput: the counts do not have this shape, or the totals contradict each other.
    """
    table, finest = _table(counts, shape), _finest(tuple(shape), totals)
    if len(finest) > 1:
        return _adjust_crossed(crossing.rake, table, finest, integer=integer)
    blocks = _Blocks.of(table, finest[0] if finest else None)
    positive = np.maximum(blocks.counts, 0)
    if blocks.totals is None:
        return blocks.back(positive if integer else positive.astype(float))
    positive[positive.sum(axis=1) == 0] = 1
    sums = positive.sum(axis=1)
    if not integer:
        return blocks.back(positive * (blocks.totals / sums)[:, None])
    floors, remainders = _proportions(positive, blocks.totals, sums)
    missing = blocks.totals - floors.sum(axis=1)
    return blocks.back(floors + _ones_for_the_largest(remainders, missing))


def project(counts: Sequence[int], shape: Sequence[int], totals: Sequence[MarginTotal], *, integer: bool) -> Adjusted:
    """Return the nearest non-negative table, by least squares, that meets the totals.

    Whole counts for crossing totals are a rounding of the nearest table.

    Args:
        counts: noisy, in row-major order.
        integer: return the nearest table of whole counts; if false, of doubles.

    Returns:
        Counts in the same order.

    Raises:
        InvalidInput: the counts do not have this shape, or the totals contradict each other.
    """
    table, finest = _table(counts, shape), _finest(tuple(shape), totals)
    if len(finest) > 1:
        return _adjust_crossed(crossing.project, table, finest, integer=integer)
    blocks = _Blocks.of(table, finest[0] if finest else None)
    if blocks.totals is None:
        positive = np.maximum(blocks.counts, 0)
        return blocks.back(positive if integer else positive.astype(float))
    # If the k largest stay above 0, their sum minus k t is T. The right k is the last whose smallest is above t.
    descending = -np.sort(-blocks.counts, axis=1)
    k = np.arange(1, blocks.counts.shape[1] + 1)
    excess = np.cumsum(descending, axis=1) - blocks.totals[:, None]
    active = (
        np.maximum((descending * k > excess).sum(axis=1), 1) if _fits(descending, k) else _active(descending, excess)
    )
    over = np.take_along_axis(excess, active[:, None] - 1, axis=1)[:, 0]
    if not integer:
        return blocks.back(np.maximum(blocks.counts - (over / active)[:, None], 0.0))
    threshold = -(-over // active)
    cells = np.maximum(blocks.counts - threshold[:, None], 0)
    missing = blocks.totals - cells.sum(axis=1)
    reached = np.where(blocks.counts >= threshold[:, None], blocks.counts - threshold[:, None] + 1, 0)
    return blocks.back(cells + _ones_for_the_largest(reached, missing))


def _adjust_crossed(fit: Adjustment, table: Integers, finest: Sequence[_NumberedTotal], *, integer: bool) -> Adjusted:
    """Return the table adjusted to crossing totals, with a partition for the finest margin of each hierarchy."""
    indices = np.indices(table.shape).reshape(table.ndim, -1)
    partitions = []
    for one in finest:
        block = np.zeros(table.size, np.int64)
        for axis in one.axes:
            block = block * table.shape[axis] + indices[axis]
        pointers = (f"/totals/{one.number}/values" + "/{}").format
        partitions.append(Partition(block, np.array(one.values, np.int64), pointers))
    crossed, counts = Crossing.of(partitions, "/totals"), table.ravel()
    cells = np.maximum(counts, 0)
    if integer:
        cells[crossed.places] = round_adjustment(fit, counts, crossed, find_table(crossed, "/totals"))
        return list(cells.tolist())
    check_totals(crossed, "/totals")
    real = cells.astype(float)
    real[crossed.places] = met = fit(counts[crossed.places], crossed)
    if crossed.misses(met):
        detail = "expected counts nearer to the totals: the search reached its limit without a table that meets them"
        raise InvalidInput.at("/counts", detail)
    return list(real.tolist())


def _fits(descending: Integers, k: Integers) -> bool:
    return bool(np.abs(descending).max() * int(k[-1]) < LARGEST_SUM)


def _active(descending: Integers, excess: Integers) -> Integers:
    """Return the number of cells of each block that stay above 0, without products, which may exceed 64 bits.

    For whole numbers, x k > e is x > floor(e/k).
    """
    k = np.arange(1, descending.shape[1] + 1)
    return np.asarray(np.maximum((descending > excess // k).sum(axis=1), 1))


def _proportions(positive: Integers, totals: Integers, sums: Integers) -> tuple[Integers, NDArray[np.generic]]:
    """Return floors and remainders of x T/S, in Python's integers if products exceed 64 bits."""
    if int(positive.max()) * int(totals.max()) < LARGEST_SUM:
        floors, remainders = np.divmod(positive * totals[:, None], sums[:, None])
        return floors, remainders
    long = positive.astype(object) * totals.astype(object)[:, None]
    of = sums.astype(object)[:, None]
    return (long // of).astype(np.int64), np.asarray((long % of).astype(np.int64))


def _ones_for_the_largest(scores: NDArray[np.generic], how_many: Integers) -> Integers:
    """Return ones at the ``how_many`` largest scores of each row, and the first of equal scores."""
    ranks = np.empty(scores.shape, dtype=np.int64)
    order = np.argsort(-scores.astype(np.int64), axis=1, kind="stable")
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(scores.shape[1]), scores.shape), axis=1)
    return np.asarray(ranks < how_many[:, None], dtype=np.int64)


def _table(counts: Sequence[int], shape: Sequence[int]) -> Integers:
    if len(shape) > MOST_AXES or any(size < 1 for size in shape):
        raise InvalidInput.at("/shape", f"expected at most {MOST_AXES} sizes of at least 1")
    cells = 1
    for size in shape:
        cells *= size
    if cells != len(counts):
        raise InvalidInput.at("/shape", f"expected a shape of {len(counts)} cells, as there are counts, got {cells}")
    table = np.array(counts, dtype=np.int64)
    if float(np.abs(table.astype(float)).sum()) > LARGEST_SUM / 2:
        raise InvalidInput.at("/counts", "expected counts whose sizes add up to at most 2^61")
    return table.reshape(tuple(shape))


def _finest(shape: tuple[int, ...], totals: Sequence[MarginTotal]) -> list[_NumberedTotal]:
    """Return the totals that decide, one for each hierarchy; all others are sums of them.

    Raises:
        InvalidInput: a total does not fit the table, is negative, or contradicts another.
    """
    faults = [fault for number, total in enumerate(totals) for fault in _faults(shape, total, f"/totals/{number}")]
    if faults:
        raise InvalidInput(faults)
    ordered = sorted(
        (_NumberedTotal(total.axes, total.values, number) for number, total in enumerate(totals)), key=_axes
    )
    for finer, fine in enumerate(ordered):
        for coarse in ordered[:finer]:
            _check_common(shape, coarse, fine)
    chains = crossing.hierarchies([frozenset(one.axes) for one in ordered])
    return [next(one for one in reversed(ordered) if frozenset(one.axes) == chain[-1]) for chain in chains]


def _axes(total: MarginTotal) -> int:
    return len(total.axes)


def _check_common(shape: tuple[int, ...], coarse: _NumberedTotal, fine: _NumberedTotal) -> None:
    """Refuse totals that differ in their sums over the axes that both have."""
    kept = tuple(sorted(set(coarse.axes) & set(fine.axes)))
    sums = [
        _arranged(one, shape).sum(axis=tuple(place for place, axis in enumerate(sorted(one.axes)) if axis not in kept))
        for one in (coarse, fine)
    ]
    differing = np.argwhere(sums[0] != sums[1])
    if len(differing):
        place = f"place {differing[0].tolist()} of axes {list(kept)}" if kept else "the whole"
        others = "the coarser ones" if kept == tuple(sorted(coarse.axes)) else f"those of /totals/{coarse.number}"
        detail = f"expected totals that add up to {others}: at {place} they do not"
        raise InvalidInput.at(f"/totals/{fine.number}/values", detail)


def _faults(shape: tuple[int, ...], total: MarginTotal, at: str) -> list[Fault]:
    if len(set(total.axes)) < len(total.axes) or not all(0 <= axis < len(shape) for axis in total.axes):
        return [Fault(f"{at}/axes", f"expected different axes between 0 and {len(shape) - 1}")]
    wanted = 1
    for axis in total.axes:
        wanted *= shape[axis]
    if len(total.values) != wanted:
        return [Fault(f"{at}/values", f"expected {wanted} values, one for each place along the axes")]
    if min(total.values) < 0:
        return [Fault(f"{at}/values", "expected no negative total, because counts are not negative")]
    if sum(total.values) > LARGEST_SUM // 2:
        return [Fault(f"{at}/values", "expected totals that add up to at most 2^61")]
    return []


def _arranged(total: MarginTotal, shape: Sequence[int]) -> Integers:
    """Return a total's values with the axes in ascending order."""
    values = np.array(total.values, dtype=np.int64).reshape([shape[axis] for axis in total.axes])
    return np.transpose(values, np.argsort(total.axes)) if total.axes else values
