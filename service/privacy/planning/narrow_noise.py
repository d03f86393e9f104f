"""Search for about the least integer noise where it is so narrow that delta does not simply fall with sigma.

delta at an epsilon is a sum over the integers with a larger loss. If noise is hardly wider than one integer, delta
jumps when one of them leaves the sum. With epsilon = 3, discrete Gaussian noise has a delta below 0.1 from sigma² =
0.163 on, above it from 0.247 on, and below it again from 0.399 on. So all widths are searched here, for one cell, in
doubles. The result is a place to begin; another module proves that it keeps the guarantee.
"""

import math

import numpy as np
from numpy.typing import NDArray

from service.privacy.numerics.arithmetic import Doubles

WIDEST = 3.0
"""The largest sigma/(1 + m/sigma) in the search, in counts. From a variance of about 4 on, delta falls smoothly."""
LARGEST_SENSITIVITY = 20
_NARROWEST = 0.02
_WIDTHS, _OFFSETS = 400, 33
_ZOOMS = 6
_HALVINGS = 40
_PLACES = 80  # the widest noise has less than 1e-11 of its mass beyond it


def least_narrow_noise(
    sensitivity: int, epsilon: float, delta: float, largest_offset: float
) -> tuple[float, float] | None:
    """Return (sigma², m) of nearly the least variance; None if no width is narrow enough.

    Args:
        sensitivity: whole counts.
        epsilon: nats.
        largest_offset: the largest m/sigma; 0 for noise without an offset.
        delta: above 0.

    Returns:
        Doubles near the best: sigma² in counts squared, m in counts.
    """
    low, high = 0.0, math.log1p(largest_offset)
    best = (math.inf, 0.0, 0.0)
    for _ in range(_ZOOMS if largest_offset else 1):
        places = np.linspace(low, high, _OFFSETS if largest_offset else 1)
        offsets = np.expm1(places)
        widths = _least_widths(offsets, sensitivity, epsilon, delta)
        sigmas = np.exp(widths) * (1 + offsets)
        variances = np.where(
            np.isfinite(widths), _deltas_and_variances(sigmas, offsets, sensitivity, epsilon)[1], math.inf
        )
        k = int(np.argmin(variances))
        best = min(best, (float(variances[k]), float(sigmas[k]), float(offsets[k])))
        step = (high - low) / (_OFFSETS - 1)
        low, high = max(0.0, float(places[k]) - 2 * step), min(math.log1p(largest_offset), float(places[k]) + 2 * step)
    variance, sigma, offset = best
    return (sigma * sigma, offset * sigma) if math.isfinite(variance) else None


def _least_widths(offsets: Doubles, sensitivity: int, epsilon: float, delta: float) -> Doubles:
    """Return log(sigma/(1 + offset)) of the narrowest noise that keeps delta, by offset in sigmas; else infinite."""
    grid = np.linspace(math.log(_NARROWEST), math.log(WIDEST), _WIDTHS)
    keeps = np.array([_keeps(width, offsets, sensitivity, epsilon, delta) for width in grid])
    first = keeps.argmax(axis=0)
    high, low = grid[first], grid[np.maximum(first - 1, 0)]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        kept = _keeps(middle, offsets, sensitivity, epsilon, delta)
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    return np.where(keeps.any(axis=0) & (first > 0), high, math.inf)


def _keeps(
    width: Doubles | float, offsets: Doubles, sensitivity: int, epsilon: float, delta: float
) -> NDArray[np.bool_]:
    return np.asarray(_deltas_and_variances(np.exp(width) * (1 + offsets), offsets, sensitivity, epsilon)[0] <= delta)


def _deltas_and_variances(
    sigmas: Doubles, offsets: Doubles, sensitivity: int, epsilon: float
) -> tuple[Doubles, Doubles]:
    """Return delta and the variance of noise with these sigmas, and with these offsets in sigmas."""
    x = np.arange(-_PLACES - sensitivity, _PLACES + sensitivity + 1)
    size = np.abs(x) / sigmas[:, None]
    mass = np.exp(-size * (size / 2 + offsets[:, None]))
    mass /= mass.sum(axis=1, keepdims=True)
    moved = np.zeros_like(mass)
    moved[:, sensitivity:] = mass[:, :-sensitivity]
    lost = np.maximum(mass - math.exp(epsilon) * moved, 0).sum(axis=1)
    return np.asarray(lost), np.asarray((mass * x * x).sum(axis=1))
