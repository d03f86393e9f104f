"""Simulated noise for experiments, reproducible from a seed. Published noise is drawn by ``service.noise``."""

import numpy as np
from numpy.typing import NDArray

from service.empirical.residuals import Residuals, residuals_of

_BEYOND = 46.0  # nats: noise with a loss beyond this plus the logarithm of the size is left out


def two_sided_geometric(loss: float, shape: int | tuple[int, ...], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw noise with mass proportional to exp(-loss |x|): a shift by one costs ``loss`` (nats)."""
    success = -np.expm1(-loss)
    difference: NDArray[np.int64] = generator.geometric(success, shape) - generator.geometric(success, shape)
    return difference


def two_sided_geometric_counts(loss: float, size: int, generator: np.random.Generator) -> Residuals:
    """Draw two-sided geometric noise, by value or, if fewer values than draws can occur, by each value's count.

    Args:
        size: the number of draws.
    """
    furthest = int(np.ceil((_BEYOND + np.log(size)) / loss))  # beyond it a sample has a value with probability 1e-20
    if 2 * furthest >= size:
        return residuals_of(two_sided_geometric(loss, size, generator))
    positions = np.arange(-furthest, furthest + 1)
    masses = np.exp(-loss * np.abs(positions))
    counts = generator.multinomial(size, masses / masses.sum())
    (occurring,) = np.nonzero(counts)
    return Residuals(positions[occurring].astype(np.float64), counts[occurring].astype(np.int64), 1)
