"""Residuals (noisy minus true counts) as distinct values with their counts, from which all estimates are computed."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_COUNTED_SPAN = 1 << 22  # integers that span fewer values than this are counted, others sorted


@dataclass(frozen=True)
class Residuals:
    """A sample, sorted and without repetitions.

    Attributes:
        positions: the distinct values, ascending.
        counts: the number of times that each occurs, at least 1.
        per_unit: all positions are multiples of 1/per_unit; 0 if no such lattice is known.
    """

    positions: Floats
    counts: Counts
    per_unit: int

    @cached_property
    def size(self) -> int:
        """The number of residuals."""
        return int(self.counts.sum())

    @cached_property
    def deviation(self) -> float:
        """The standard deviation, with the divisor size - 1; NaN for fewer than two."""
        if self.size < 2:
            return float("nan")
        mean = self.positions @ self.counts / self.size
        return float(np.sqrt((self.positions - mean) ** 2 @ self.counts / (self.size - 1)))

    @cached_property
    def cumulated(self) -> Counts:
        """The number of residuals up to each position."""
        cumulated: Counts = np.cumsum(self.counts)
        return cumulated

    def percentile(self, percent: float) -> float:
        """Return the percentile, interpolated linearly between order statistics as numpy's default does.

        Args:
            percent: from 0 to 100.
        """
        index = (self.size - 1) * percent / 100
        low = int(index)
        first, second = self.positions[np.searchsorted(self.cumulated, [low, min(low + 1, self.size - 1)], "right")]
        return float(first + (second - first) * (index - low))

    def below(self, edges: Floats) -> Counts:
        """Count the residuals below each edge."""
        counts: Counts = np.concatenate([[0], self.cumulated])[np.searchsorted(self.positions, edges, "left")]
        return counts


def residuals_of(values: NDArray[np.float64] | NDArray[np.int64]) -> Residuals:
    """Return the sample of finite ``values``."""
    whole = np.issubdtype(values.dtype, np.integer) or bool(np.all(values == np.rint(values)))
    if whole and values.size and float(values.max()) - float(values.min()) < _COUNTED_SPAN:
        lowest = values.min()
        counts = np.bincount((values - lowest).astype(np.int64))
        (occurring,) = np.nonzero(counts)
        return Residuals((occurring + lowest).astype(np.float64), counts[occurring].astype(np.int64), 1)
    positions, counts = np.unique(values.astype(np.float64), return_counts=True)
    return Residuals(positions, counts.astype(np.int64), int(whole))


def round_positions(residuals: Residuals, per_unit: int) -> Residuals:
    """Return the residuals rounded to a lattice, which leaves few distinct values, so that resampling is affordable.

    Args:
        per_unit: the number of lattice points in a unit.
    """
    moved = np.rint(residuals.positions * per_unit) / per_unit
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(moved))])
    return Residuals(moved[starts], np.add.reduceat(residuals.counts, starts), per_unit)


def resample(residuals: Residuals, generator: np.random.Generator) -> Residuals:
    """Draw as many residuals from these with replacement (Efron 1979)."""
    counts = generator.multinomial(residuals.size, residuals.counts / residuals.size)
    (occurring,) = np.nonzero(counts)
    return Residuals(residuals.positions[occurring], counts[occurring].astype(np.int64), residuals.per_unit)
