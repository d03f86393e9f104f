"""Three arithmetics for one formula: doubles to search with, intervals and balls to certify with.

A formula of a mechanism's tau or rho is written once, over an ``Arithmetic``. With ``DOUBLES`` it is
evaluated at many orders to find a good one; with ``INTERVALS`` (``intervals.py``) for thousands of
mechanisms at once, with a proven error of some 1e-14; with ``BALLS`` for one, to any precision.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from flint import arb
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.numerics.half_gaussian_sums import gaussian_side, gaussian_terms, log_half_line, term_count
from service.privacy.numerics.numbers import ball

Number = Any
"""A float, an array of floats, an interval or a ball: the arguments and results of one arithmetic."""
Doubles = NDArray[np.float64]

Rational = Fraction | int

SMALL = 300.0
"""``Arithmetic.either`` takes the form for small losses below this; e^300 is far from overflow."""


class Arithmetic(Protocol):
    """The operations beyond + - * / that the formulas use."""

    def number(self, value: Rational) -> Number:
        """Return an exact rational in this arithmetic."""

    def exp(self, x: Number) -> Number: ...

    def expm1(self, x: Number) -> Number: ...

    def log(self, x: Number) -> Number: ...

    def log1p(self, x: Number) -> Number: ...

    def exp_excess(self, x: Number) -> Number:
        """Return e^x - 1 - x, which is never negative."""

    def coth_excess(self, x: Number) -> Number:
        """Return x coth(x) - 1 for x > 0; it is positive."""

    def maximum(self, x: Number, y: Number) -> Number: ...

    def either(self, x: Number, small: Callable[[], Number], large: Callable[[], Number], /) -> Number:
        """Return one of two forms of a quantity: ``small`` does not cancel, ``large`` does not overflow at large x."""

    def off_centre(self, moved: Number) -> Number:
        """Return ``moved`` less the nearest integer."""

    def gaussian_side(self, u: Number, variance: Number) -> Number:
        """Return the sum over integers x other than 0 of exp(-(x² - 2xu)/(2 variance)), |u| <= 1/2, variance <= 2."""


class Vectorised(Arithmetic, Protocol):
    """An arithmetic that takes whole arrays at once."""

    def nearest(self, values: Doubles) -> Number:
        """Return the numbers for exact rationals, which are given by the doubles nearest to them."""


class HalfLines(Arithmetic, Protocol):
    """An arithmetic for offset tails."""

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        """Return log of the integral, or of the trapezoid sum, of exp(-(2xy + y²)/(2 sigma²)) over y >= 0."""


def double(value: Rational) -> float:
    """Return the nearest double; infinity beyond the largest."""
    try:
        return value.numerator / value.denominator  # correctly rounded: PEP 3141's int division
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_INVERSES = [1 / k for k in range(19, 2, -1)]
"""Factors in the Taylor series of ``exp_excess``, the last first. For |x| < 1 the rest is below 2^-60 of the sum."""
_COTH = [((k + 1) / (k * (2 * k + 2) * (2 * k + 3)), 1 / (2 * k * (2 * k + 1))) for k in range(9, 0, -1)]
"""Factors in the series of ``coth_excess``, of its numerator and its denominator, the last first."""


def exp_excess(x: Doubles) -> Doubles:
    """Return e^x - 1 - x in doubles, with a relative error of at most 32 units of 2^-53.

    For |x| < 1 this is the Taylor series x²/2 (1 + x/3 (1 + x/4 ...)) by Horner's rule. Its partial sums stay in [0.7,
    1.5], so each step multiplies the relative error by at most 0.5 and adds 4 units. For larger |x| it is the
    difference, where expm1's 4 ulps weigh at most |expm1 x|/(expm1 x - x) < 2.4 times.
    """
    small = np.abs(x) < 1
    return _piecewise(small, lambda: _taylor(x), lambda: np.expm1(x) - x)


def _taylor(x: Doubles) -> Doubles:
    series = np.ones_like(x)
    for inverse in _INVERSES:
        series *= x
        series *= inverse
        series += 1
    return x * x / 2 * series


def coth_excess(x: Doubles) -> Doubles:
    """Return x coth(x) - 1 in doubles for x > 0, with a relative error of at most 32 units of 2^-53.

    For x < 1 this is (x cosh x - sinh x)/sinh x, both by their series in x²: the terms 2k x^(2k+1)/(2k+1)!, divided by
    the first, and those of sinh x. All are positive, so nothing cancels. For larger x, with t = e^(-2x), it is x - 1 +
    2xt/(1-t), in which neither part is negative.
    """

    def series() -> Doubles:
        square, above, below = x * x, np.ones_like(x), np.ones_like(x)
        for one, other in _COTH:
            above *= square
            above *= one
            above += 1
            below *= square
            below *= other
            below += 1
        return np.asarray(square / 3 * above / below)

    def direct() -> Doubles:
        t = np.exp(-2 * x)
        return np.asarray(x - 1 + 2 * x * t / (1 - t))

    return _piecewise(x < 1, series, direct)


def _piecewise(where: NDArray[np.bool_], one: Callable[[], Doubles], other: Callable[[], Doubles]) -> Doubles:
    """Return ``one`` where ``where`` holds, else ``other``; a branch that is not needed is not computed."""
    if np.all(where):
        return one()
    if not np.any(where):
        return other()
    return np.asarray(np.where(where, one(), other()))


class _Doubles:
    number = staticmethod(double)
    exp = staticmethod(np.exp)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    maximum = staticmethod(np.maximum)
    exp_excess = staticmethod(exp_excess)
    coth_excess = staticmethod(coth_excess)

    def nearest(self, values: Doubles) -> Number:
        return values

    def either(self, x: Number, small: Callable[[], Number], large: Callable[[], Number]) -> Number:
        return _piecewise(x < SMALL, small, large)

    def off_centre(self, moved: Number) -> Number:
        return moved - np.rint(moved)

    def gaussian_side(self, u: Number, variance: Number) -> Number:
        return gaussian_terms(u, variance, term_count(2, 53), self.exp)

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        x, v = np.asarray(x, dtype=float), np.float64(self.number(sigma_squared))  # numpy's 0 and infinity do not raise
        if not lattice:
            t = x / np.sqrt(v)
            right = np.log(np.sqrt(np.pi * v / 2) * erfcx(np.maximum(t, 0) / np.sqrt(2)))
            return np.where(t >= 0, right, t * t / 2 + np.log(2 * np.pi * v) / 2 + log_ndtr(-t))
        log_half, square = np.log(_half_line_sum(np.abs(x), v)), x * x / (2 * v)
        if v < 1:
            u = x - np.rint(x)
            log_whole = np.log1p(self.gaussian_side(u, v)) - u * u / (2 * v)
        else:
            ripple = 2 * np.exp(-2 * np.pi**2 * v) * np.cos(2 * np.pi * x)
            log_whole = np.log(2 * np.pi * v) / 2 + np.log1p(ripple)
        return np.where(x >= 0, log_half, square + log_whole + np.log1p(-np.exp(log_half - square - log_whole)))


class _Balls:
    number = staticmethod(ball)
    exp = staticmethod(arb.exp)
    expm1 = staticmethod(arb.expm1)
    log = staticmethod(arb.log)
    log1p = staticmethod(arb.log1p)
    maximum = staticmethod(arb.max)

    def exp_excess(self, x: Number) -> Number:
        return x.expm1() - x

    def coth_excess(self, x: Number) -> Number:
        return x * x.coth() - 1

    def either(self, _x: Number, _small: Callable[[], Number], large: Callable[[], Number], /) -> Number:
        """Return the form for large losses: against cancellation, ``numbers.ceiling`` raises the precision."""
        return large()

    def off_centre(self, moved: Number) -> Number:
        return moved - (moved + arb(0.5)).mid().floor()

    gaussian_side = staticmethod(gaussian_side)

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        return log_half_line(x, sigma_squared, lattice=lattice)


def _half_line_sum(x: Number, v: np.float64) -> Number:
    """Return the trapezoid sum for x >= 0 in doubles: by terms where few matter, else by Euler-Maclaurin."""
    shape, x = x.shape, x.ravel()
    rate = x / v
    steep = (rate >= 0.3) | (v < 64)
    series = np.sqrt(np.pi * v / 2) * erfcx(x / np.sqrt(2 * v))
    even, odd = np.ones_like(x), -rate  # the derivatives of the summand at 0 of orders n - 1 and n
    for n, weight in ((1, 1 / 12), (3, -1 / 720), (5, 1 / 30240), (7, -1 / 1209600), (9, 1 / 47900160)):
        series = series - weight * odd
        even = -rate * odd - n / v * even
        odd = -rate * even - (n + 1) / v * odd
    few = np.arange(1, 3 + math.isqrt(int(min(74 * v, 125**2))))[:, None]  # the next is below exp(-37)
    series[steep] = 0.5 + np.exp(-(2 * few * x[steep] + few * few) / (2 * v)).sum(axis=0)
    return series.reshape(shape)


DOUBLES = _Doubles()
BALLS = _Balls()
