"""Offset symmetric Gaussian tails, continuous and on the integers: their Rényi divergences.

Both laws are exp(-(|x|+m)²/(2 v)) up to a constant, v = sigma². The divergence from the law moved by s has three parts,
left of 0, between 0 and s, and right of s, each of which is a Gaussian on a half-line. With R(x) the integral, or the
sum by the trapezoid rule, of exp(-(2 x y + y²)/(2 v)) over y >= 0 (``half_gaussian_sums``),

    E[exp(z L)] = exp(z l) [R(m - z s) + R(h) + exp(-(2z+1) l) (R(m + (z+1) s) - R(h + s))] / (2 R(m)),
    l = s (s + 2m)/(2 v),    h = (2z+1) m + z s.

l is the loss at 0. This is B-bar of Sadeghi and Korki 2022, whose printed form multiplies a huge number by the
difference of two numbers next to 1. Here only terms cancel that are small beside the precision of the result.
"""

import math
from fractions import Fraction
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from flint import arb

from service.privacy.numerics.arithmetic import BALLS, HalfLines, Number
from service.privacy.numerics.curve_table import Curve
from service.privacy.numerics.half_gaussian_sums import half_line
from service.privacy.numerics.numbers import ball, precision

_SMALL = 0.004  # losses up to this size use the expansion at order 1, whose next term is below 1e-11
_PRECISIONS = (160, 640, 2560)  # bits
_WIDEST = 10**24  # sigma² in squared sensitivities; beyond it, proofs about the tiny losses take seconds


class TailParameters(Protocol):
    """The parameters of noise with offset symmetric Gaussian tails."""

    @property
    def sigma_squared(self) -> Fraction:
        """The variance of the Gaussian from which the tails are cut."""

    @property
    def m(self) -> Fraction:
        """The offset, at least 0."""

    @property
    def sensitivity(self) -> Fraction | int:
        """The distance by which the answer is moved."""

    @property
    def on_integers(self) -> bool:
        """True if the noise is integer."""

    def __hash__(self) -> int:
        """Return the hash of the parameters, by which figures are remembered."""


def osgt_bounds(mechanism: TailParameters) -> tuple[Curve | None, tuple[Fraction, Fraction]]:
    """Return the formula of tau and the line a + b*alpha of ``product_tau``, as (formula, (a, b)).

    The formula is None if it would take too many bits.
    """
    curve = None if is_too_wide(mechanism) else Curve(partial(osgt_tau, mechanism), (), vectorized=False)
    at_0 = product_tau(mechanism, Fraction(0))
    return curve, (at_0, product_tau(mechanism, Fraction(1)) - at_0)


def osgt_tau(mechanism: TailParameters, z: Number, at: HalfLines) -> Number:
    """Return tau(1+z) by the formula above; in doubles, small losses are computed by its expansion.

    Args:
        z: the order less 1, above 0.
        at: ``DOUBLES`` or ``BALLS``, the arithmetic of z.

    Returns:
        Nats.
    """
    v, lattice = mechanism.sigma_squared, mechanism.on_integers
    m, s, loss = at.number(mechanism.m), at.number(Fraction(mechanism.sensitivity)), at.number(_loss_at_0(mechanism))
    alpha, y = 1 + z, 1 + 2 * z
    centre = at.log_half_line(m, v, lattice)
    left = at.log_half_line(m - z * s, v, lattice) - centre
    middle = at.exp(at.log_half_line(y * m + z * s, v, lattice) - centre)
    right = at.exp(at.log_half_line(m + alpha * s, v, lattice) - centre - y * loss)
    beyond = at.exp(at.log_half_line(y * m + alpha * s, v, lattice) - centre - y * loss)
    tau = loss + (left + at.log1p((at.exp(-left) * (middle + right - beyond) - 1) / 2)) / z
    return tau if at is BALLS else np.where(_is_small(mechanism, alpha), _expansion(mechanism, alpha), tau)


def is_too_wide(mechanism: TailParameters) -> bool:
    """Tell whether the loss is so small that the formula takes thousands of bits; ``product_tau`` then serves alone."""
    return mechanism.sigma_squared > _WIDEST * Fraction(mechanism.sensitivity) ** 2


def product_tau(mechanism: TailParameters, alpha: Fraction) -> Fraction:
    """Return alpha s²/(2v) + s m/v, a rational upper bound on tau(alpha): that of a Gaussian and a Laplace mechanism.

    Completing the square, E[exp(zL)] is exp(alpha z s²/(2v)) times the mean of exp(-m (alpha |x| - z |x-s|)/v) over a
    Gaussian about -z s, over that of exp(-m |x|/v) about 0. alpha |x| - z |x-s| >= |x| - z s, and the Gaussian about 0
    gives the largest mean: both factors have transforms that are nowhere negative.

    Returns:
        Nats, exact.
    """
    s, v = Fraction(mechanism.sensitivity), mechanism.sigma_squared
    return alpha * s * s / (2 * v) + s * mechanism.m / v


def _loss_at_0(mechanism: TailParameters) -> Fraction:
    s = Fraction(mechanism.sensitivity)
    return s * (s + 2 * mechanism.m) / (2 * mechanism.sigma_squared)


def loss_moments(mechanism: TailParameters, how_many: int = 2) -> list[arb]:
    """Return E L, E L², ... of the privacy loss L; the first is the KL divergence K'(0).

    L is l + s j/v at -j, its negative at s + j, and linear between 0 and s.

    Returns:
        The first ``how_many`` moments (powers of nats), as balls at the precision in force.
    """
    v, lattice = mechanism.sigma_squared, mechanism.on_integers
    m, s, loss = ball(mechanism.m), ball(Fraction(mechanism.sensitivity)), ball(_loss_at_0(mechanism))
    left = half_line(m, v, how_many + 1, lattice=lattice)
    shrunk = (-loss).exp()
    right = [shrunk * moment for moment in half_line(m + s, v, how_many + 1, lattice=lattice)]
    between = [left[p] - _powers(right, s, arb(1), p) for p in range(how_many + 1)]
    return [
        (
            _powers(left, loss, s / ball(v), p)
            + _powers(between, loss, -2 * loss / s, p)
            + (-1) ** p * _powers(right, loss, s / ball(v), p)
        )
        / (2 * left[0])
        for p in range(1, how_many + 1)
    ]


def _powers(moments: list[arb], at_0: arb, step: arb, p: int) -> arb:
    """Return the moment of (at_0 + step y)^p, from those of y."""
    return sum((math.comb(p, i) * at_0 ** (p - i) * step**i * moments[i] for i in range(p + 1)), arb(0))


@lru_cache(maxsize=4096)
def _rough_moments(mechanism: TailParameters) -> tuple[float, float]:
    undecided = (float("nan"), float("nan"))
    for bits in _PRECISIONS:
        with precision(bits):
            mean, square = loss_moments(mechanism)
            variance = square - mean * mean
            if variance.rel_accuracy_bits() > 53:
                return float(mean), float(variance)
    return undecided


def _is_small(mechanism: TailParameters, alpha: Number) -> Number:
    s, v = Fraction(mechanism.sensitivity), mechanism.sigma_squared
    moved = (2 * alpha - 1) ** 2 * float(min(s * s / v, Fraction(1)))
    return (moved * float(min(1 + mechanism.m**2 / v, Fraction(10**30))) < _SMALL**2) & np.isfinite(alpha)


def _expansion(mechanism: TailParameters, alpha: Number) -> Number:
    """Expand tau: K is even about z = -1/2, so a series a p + b p² in p = z(z+1), a = K'(0), 2a + 2b = K''(0)."""
    mean, variance = _rough_moments(mechanism)
    return alpha * (mean + (variance / 2 - mean) * alpha * (alpha - 1))
