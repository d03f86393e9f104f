"""Interval arithmetic on arrays of doubles: bounds with a proven error for thousands of numbers at once.

The ends are rounded outward after every operation. Two things are assumed. + - * / are correctly rounded (IEEE 754).
numpy's exp, expm1, log and log1p are within 4 units in the last place of the truth, a bound that numpy's own vectorised
kernels and every C library in use keep, and that the tests check. An end that overflows or is NaN makes an interval
that bounds nothing; ``Interval.narrow`` detects this.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.privacy.numerics.arithmetic import (
    SMALL,
    Doubles,
    Number,
    Rational,
    Vectorised,
    coth_excess,
    double,
    exp_excess,
)
from service.privacy.numerics.half_gaussian_sums import gaussian_terms

_ULP = 2.0**-52  # one unit in the last place is at most this share of a double
_TINY = 2.0**-1074  # one unit in the last place of a subnormal double
_LIBRARY = 5.0  # units for a library function: 4 of its own, and one for this rounding
_SERIES = 17.0  # units for the two functions of ``arithmetic`` that state 32 half units


def _slack(x: Doubles, units: float) -> Doubles:
    return np.abs(x) * (units * _ULP) + units * _TINY


def down(x: Doubles, units: float = 1.0) -> Doubles:
    """Return a double at least ``units`` units in the last place below x: a lower bound of what x was rounded from."""
    return x - _slack(x, units)


def up(x: Doubles, units: float = 1.0) -> Doubles:
    """Return a double at least ``units`` units in the last place above x: an upper bound of what x was rounded from."""
    return x + _slack(x, units)


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Arrays of lower and upper ends; the numbers that they stand for are between them, ends included."""

    low: Doubles
    high: Doubles

    __array_ufunc__ = None  # an array on the left leaves the operation to this class

    def __neg__(self) -> "Interval":
        return Interval(-self.high, -self.low)

    def __add__(self, other: Number) -> "Interval":
        other = _interval(other)
        return Interval(down(self.low + other.low), up(self.high + other.high))

    __radd__ = __add__

    def __sub__(self, other: Number) -> "Interval":
        other = _interval(other)
        return Interval(down(self.low - other.high), up(self.high - other.low))

    def __rsub__(self, other: Number) -> "Interval":
        return _interval(other) - self

    def __mul__(self, other: Number) -> "Interval":
        other = _interval(other)
        return _hull([a * b for a in (self.low, self.high) for b in (other.low, other.high)])

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> "Interval":
        other = _interval(other)
        found = _hull([a / b for a in (self.low, self.high) for b in (other.low, other.high)])
        divides = (other.low > 0) | (other.high < 0)
        return Interval(np.where(divides, found.low, np.nan), np.where(divides, found.high, np.nan))

    def __rtruediv__(self, other: Number) -> "Interval":
        return _interval(other) / self

    def narrow(self, relative: float) -> NDArray[np.bool_]:
        """Tell, element by element, whether the ends are finite, positive and no further apart than ``relative``.

        Args:
            relative: a share of the lower end.
        """
        return np.isfinite(self.high) & (self.low > 0) & (self.high - self.low <= relative * self.low)


def _interval(value: Number) -> Interval:
    """Return a value as an interval; a whole number or a double is exactly itself."""
    if isinstance(value, Interval):
        return value
    exact = np.asarray(value, dtype=np.float64)
    return Interval(exact, exact)


def _hull(ends: list[Doubles]) -> Interval:
    one, two, three, four = ends
    low = np.minimum(np.minimum(one, two), np.minimum(three, four))
    return Interval(down(low), up(np.maximum(np.maximum(one, two), np.maximum(three, four))))


def _increasing(function: Callable[[Doubles], Doubles], units: float, least: float) -> Callable[[Interval], Interval]:
    """Extend an increasing function that is never below ``least`` to intervals."""

    def on_interval(x: Interval) -> Interval:
        return Interval(np.maximum(down(function(x.low), units), least), up(function(x.high), units))

    return on_interval


class _Intervals:
    exp = staticmethod(_increasing(np.exp, _LIBRARY, 0))
    expm1 = staticmethod(_increasing(np.expm1, _LIBRARY, -1))
    log = staticmethod(_increasing(np.log, _LIBRARY, -np.inf))
    log1p = staticmethod(_increasing(np.log1p, _LIBRARY, -np.inf))
    coth_excess = staticmethod(_increasing(coth_excess, _SERIES, 0))

    def maximum(self, x: Interval, y: Interval) -> Interval:
        return Interval(np.maximum(x.low, y.low), np.maximum(x.high, y.high))

    def number(self, value: Rational) -> Number:
        return self.nearest(np.array([double(value)]))

    def nearest(self, values: Doubles) -> Number:
        return Interval(down(values), up(values))

    def exp_excess(self, x: Interval) -> Interval:
        """Return e^x - 1 - x, which falls up to 0 and rises from there."""
        left, right = exp_excess(x.low), exp_excess(x.high)
        least = np.where((x.low < 0) & (x.high > 0), 0.0, np.minimum(left, right))
        return Interval(np.maximum(down(least, _SERIES), 0), up(np.maximum(left, right), _SERIES))

    def either(self, x: Interval, small: Callable[[], Interval], large: Callable[[], Interval]) -> Interval:
        is_small = x.high < SMALL
        if np.all(is_small):
            return small()
        near, far = small(), large()
        return Interval(np.where(is_small, near.low, far.low), np.where(is_small, near.high, far.high))

    def off_centre(self, moved: Interval) -> Interval:
        """Subtract the integer nearest to the middle; the result may exceed 1/2 by the interval's width."""
        return moved - np.rint((moved.low + moved.high) / 2)

    def gaussian_side(self, u: Interval, variance: Interval) -> Interval:
        """Sum 16 terms on each side; the rest is below 1e-27 for |u| < 1 and a variance below 2.01.

        By the bound of the ball's ``gaussian_side``: 2 exp(-255/4.02)/(1 - exp(-33/4.02)) < 6e-28.
        """
        summed = gaussian_terms(u, variance, 16, self.exp)
        bounded = (u.low > -1) & (u.high < 1) & (variance.high < 2.01)
        return Interval(summed.low, np.where(bounded, up(summed.high + 1e-27), np.nan))


INTERVALS: Vectorised = _Intervals()
