"""Two arithmetics for one formula: doubles to search with, balls to certify with.

A formula of ``rdp.py`` is written once, over an ``Arithmetic``. With ``DOUBLES`` it is evaluated at
many orders at once to find a good one; with ``BALLS`` once, at that order, with a proven error.
"""

import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from flint import arb, ctx

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
        x = np.arange(1, _terms(sigma_squared, 53) + 1)[:, None]
        u, twice = np.atleast_1d(u), 2 * self.number(sigma_squared)
        return (np.exp(-(x * x - 2 * x * u) / twice) + np.exp(-(x * x + 2 * x * u) / twice)).sum(axis=0)


class _Balls:
    number = staticmethod(ball)
    exp = staticmethod(arb.exp)
    expm1 = staticmethod(arb.expm1)
    log = staticmethod(arb.log)
    log1p = staticmethod(arb.log1p)

    def off_centre(self, alpha: Number, s: int) -> Number:
        moved = alpha * s
        return moved - (moved + arb(0.5)).mid().floor()

    def gaussian_side(self, u: Number, sigma_squared: Fraction) -> Number:
        """The cut tail is added as a radius; not a number where the precision does not tell u.

        Its terms are at most exp(-(x²-2x)/(2 sigma²)) for |u| <= 1 (u is off centre by rounding at
        the most), from x = n+1 on falling by exp(-(2n+1)/(2 sigma²)) a step at least, so that both
        sides together stay below 2 exp(-(n²-1)/(2 sigma²)) / (1 - exp(-(2n+1)/(2 sigma²))).
        """
        if not abs(u) < 1:
            return arb.nan()
        variance, n = ball(sigma_squared), _terms(sigma_squared, ctx.prec)
        side = arb(0)
        for x in range(1, n + 1):
            side += (-(x * x - 2 * x * u) / (2 * variance)).exp() + (-(x * x + 2 * x * u) / (2 * variance)).exp()
        beyond = 2 * (-(n * n - 1) / (2 * variance)).exp() / -(-(2 * n + 1) / (2 * variance)).expm1()
        return side + arb(0, beyond.upper())


def _terms(sigma_squared: Fraction, bits: int) -> int:
    """How many terms n leave about 2^-bits beyond them: n² - 1 > 2 sigma² bits log 2."""
    return math.isqrt(math.ceil(2 * sigma_squared * bits * Fraction(7, 10))) + 2


DOUBLES: Arithmetic = _Doubles()
BALLS: Arithmetic = _Balls()
