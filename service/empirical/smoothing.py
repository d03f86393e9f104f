"""Gaussian kernel densities at equidistant points, by direct sums if these are short, else by convolution.

The exact value at x is the mean of the normal density around the residuals. Whole residuals lie on a lattice with the
spacing of the points, so the sum is a convolution of counts, without approximation. Other residuals are spread to four
nodes of a lattice with a step of a hundredth of the bandwidth, with the weights of cubic interpolation. This is exact
to 4e-7 wherever the density is above a billionth of its peak. Where the rounding of a Fourier transform would hide the
density, the direct sum is taken.
"""

import numpy as np
from scipy import fft  # type: ignore[import-untyped]  # it publishes no types

from service.empirical.residuals import Counts, Floats, Residuals

_REACH = 39.0  # bandwidths: beyond this the normal density is too small for doubles
_FINENESS = 100  # nodes in a bandwidth
_SHORT_SUM = 4_000_000  # kernel values in a sum that is taken directly
_LONG_SUM = 100_000_000  # kernel values in the direct sums where the transform's rounding hides the density
_SHORT_CONVOLUTION = 2_000_000  # products in a convolution without a transform
_LARGEST_LATTICE = 1 << 24  # nodes
_UNCERTAIN = 1e-9  # share of the peak below which the errors of the transform and of the four nodes matter
_SMALLEST = 1e-300  # smaller sums of kernel values have lost digits, because doubles end there


def densities(residuals: Residuals, bandwidth: float, first: float, number: int) -> Floats:
    """Return the kernel density at ``number`` places from ``first`` on, one apart; 0 if it is too small for doubles.

    Args:
        bandwidth: the standard deviation of the kernel, in counts.

    Raises:
        ValueError: the residuals are so wide that the lattice would not fit in memory.
    """
    places: Floats = first + np.arange(number, dtype=np.float64)
    if not residuals.per_unit and _terms(residuals, bandwidth, places) <= _SHORT_SUM:
        sums = _kernel_sums(residuals, bandwidth, places)
    else:
        origin, per_unit, weights = _lattice(residuals, bandwidth, first, number)
        sums, exact = _convolution(weights, per_unit, first - origin, number, bandwidth)
        if not exact:
            (uncertain,) = np.nonzero(sums < _UNCERTAIN * sums.max(initial=0.0))
            few = _terms(residuals, bandwidth, places[uncertain]) <= _LONG_SUM
            sums[uncertain] = _kernel_sums(residuals, bandwidth, places[uncertain]) if few else 0.0
    sums[sums < _SMALLEST] = 0.0
    density: Floats = sums / (residuals.size * bandwidth * np.sqrt(2 * np.pi))
    return density


def _window(residuals: Residuals, bandwidth: float, places: Floats) -> tuple[Counts, Counts]:
    """Return, for each place, the first position in its kernel's reach and the first beyond it."""
    low: Counts = np.searchsorted(residuals.positions, places - _REACH * bandwidth)
    high: Counts = np.searchsorted(residuals.positions, places + _REACH * bandwidth, "right")
    return low, high


def _terms(residuals: Residuals, bandwidth: float, places: Floats) -> int:
    low, high = _window(residuals, bandwidth, places)
    return int((high - low).sum())


def _kernel_sums(residuals: Residuals, bandwidth: float, places: Floats) -> Floats:
    """Return sums of kernel values; their terms are positive, so they lose no digits."""
    sums = np.zeros(places.size)
    low, high = _window(residuals, bandwidth, places)
    for number, (start, end, place) in enumerate(zip(low, high, places, strict=True)):
        distance = (residuals.positions[start:end] - place) / bandwidth
        sums[number] = np.exp(-0.5 * distance * distance) @ residuals.counts[start:end]
    return sums


def _lattice(residuals: Residuals, bandwidth: float, first: float, number: int) -> tuple[float, int, Floats]:
    """Return the lattice in the reach of kernels at these places: its first node, nodes in a unit, and weights."""
    reach = _REACH * bandwidth
    seen = slice(*np.searchsorted(residuals.positions, [first - reach, first + number + reach]))
    positions, counts = residuals.positions[seen], residuals.counts[seen]
    per_unit = residuals.per_unit or 4 * int(np.ceil(_FINENESS / 4 / bandwidth))
    if not positions.size:
        return first, per_unit, np.zeros(1)
    origin = np.floor(positions[0]) - 1.0
    nodes = (positions[-1] - origin) * per_unit + 4
    if nodes + number * per_unit > _LARGEST_LATTICE:
        raise ValueError(
            f"expected residuals that span at most {_LARGEST_LATTICE} steps of the lattice on which they are smoothed"
        )
    at = (positions - origin) * per_unit
    if residuals.per_unit:
        whole = np.bincount(np.rint(at).astype(np.int64), counts, int(nodes))
        return float(origin), per_unit, whole.astype(np.float64)
    left = np.floor(at).astype(np.int64)
    u = at - left
    weights = np.zeros(int(nodes))
    # Lagrange's cubic through the nodes at -1, 0, 1 and 2: the error is of the fourth order in the step.
    for node, share in (
        (-1, -u * (u - 1) * (u - 2) / 6),
        (0, (u + 1) * (u - 1) * (u - 2) / 2),
        (1, -(u + 1) * u * (u - 2) / 2),
        (2, (u + 1) * u * (u - 1) / 6),
    ):
        weights += np.bincount(left + node, counts * share, weights.size)
    return float(origin), per_unit, weights


def _convolution(weights: Floats, per_unit: int, offset: float, number: int, bandwidth: float) -> tuple[Floats, bool]:
    """Return sums of weight times kernel at offset, offset + 1, ..., and whether these kept all digits."""
    length = (number - 1) * per_unit + 1
    steps = np.arange(1 - weights.size, length) / per_unit
    kernel = np.exp(-0.5 * ((offset + steps) / bandwidth) ** 2)
    if weights.size * length <= _SHORT_CONVOLUTION:
        sums = np.convolve(weights, kernel, "valid")
        return sums[::per_unit].copy(), bool(weights.min() >= 0)
    size = fft.next_fast_len(kernel.size, real=True)
    product = fft.irfft(fft.rfft(kernel, size) * fft.rfft(weights, size), size)
    return product[weights.size - 1 : weights.size - 1 + length : per_unit].copy(), False
