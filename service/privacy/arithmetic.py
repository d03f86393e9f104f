"""Two arithmetics for one formula: doubles to search with, balls to certify with.

A formula of ``rdp.py`` is written once, over an ``Arithmetic``. With ``DOUBLES`` it is evaluated at
many orders at once to find a good one; with ``BALLS`` once, at that order, with a proven error.
"""

import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from flint import arb
from scipy.special import erfcx, log_ndtr  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.halfline import gaussian_side, log_half_line, terms
from service.privacy.numbers import ball

Number = Any
"""A float, an array of them, or a ball; what the functions of one arithmetic take and give."""


class Arithmetic(Protocol):
    """The operations beyond + - * / that the formulas use."""

    def number(self, value: Fraction) -> Number:
        """An exact rational in this arithmetic."""

    def exp(self, x: Number) -> Number: ...

    def expm1(self, x: Number) -> Number: ...

    def log(self, x: Number) -> Number: ...

    def log1p(self, x: Number) -> Number: ...

    def off_centre(self, alpha: Number, s: int) -> Number:
        """alpha*s less the nearest integer."""

    def gaussian_side(self, u: Number, sigma_squared: Fraction) -> Number:
        """The sum over integers x other than 0 of exp(-(x² - 2xu)/(2 sigma²)), for |u| <= 1/2."""

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        """log of the integral, or of the trapezoid sum, of exp(-(2xy + y²)/(2 sigma²)) over y >= 0."""


class _Doubles:
    exp = staticmethod(np.exp)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)

    def number(self, value: Fraction) -> Number:
        try:
            return float(value)
        except OverflowError:
            return math.inf

    def off_centre(self, alpha: Number, s: int) -> Number:
        moved = alpha * s
        return moved - np.rint(moved)

    def gaussian_side(self, u: Number, sigma_squared: Fraction) -> Number:
        x = np.arange(1, terms(sigma_squared, 53) + 1)[:, None]
        u, twice = np.atleast_1d(u), 2 * self.number(sigma_squared)
        return (np.exp(-(x * x - 2 * x * u) / twice) + np.exp(-(x * x + 2 * x * u) / twice)).sum(axis=0)

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        x, v = np.asarray(x, dtype=float), np.float64(self.number(sigma_squared))  # numpy's 0 and infinity do not raise
        if not lattice:
            t = x / np.sqrt(v)
            right = np.log(np.sqrt(np.pi * v / 2) * erfcx(np.maximum(t, 0) / np.sqrt(2)))
            return np.where(t >= 0, right, t * t / 2 + np.log(2 * np.pi * v) / 2 + log_ndtr(-t))
        log_half, square = np.log(_half_line_sum(np.abs(x), v)), x * x / (2 * v)
        if v < 1:
            u = x - np.rint(x)
            log_whole = np.log1p(self.gaussian_side(u.ravel(), sigma_squared)).reshape(u.shape) - u * u / (2 * v)
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

    def off_centre(self, alpha: Number, s: int) -> Number:
        moved = alpha * s
        return moved - (moved + arb(0.5)).mid().floor()

    gaussian_side = staticmethod(gaussian_side)

    def log_half_line(self, x: Number, sigma_squared: Fraction, lattice: bool) -> Number:
        return log_half_line(x, sigma_squared, lattice=lattice)


def _half_line_sum(x: Number, v: np.float64) -> Number:
    """The trapezoid sum for x >= 0 in doubles: as ``halfline``, by terms where few matter, else Euler-Maclaurin."""
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


DOUBLES: Arithmetic = _Doubles()
BALLS: Arithmetic = _Balls()
