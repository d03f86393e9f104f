"""Exact numbers: the texts that the service reads without rounding, and floats rounded towards more privacy loss."""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

Exact = str | int | Fraction | Decimal
"""An exact number, as a caller states it."""

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?|-?[0-9]+/[0-9]*[1-9][0-9]*")
_PLACES = 40  # beyond which a decimal is written as a fraction
_DIGITS = 17  # significant digits that tell any two doubles apart


def exact_text(value: Exact) -> str:
    """Return the text of an exact number: a decimal where there is a short one, else a fraction.

    Raises:
        TypeError: the value is a float, which is seldom the number that was meant, or is no number.
        ValueError: the text is not a number that the service reads.
    """
    if isinstance(value, bool) or not isinstance(value, Exact):
        kind = type(value).__name__
        raise TypeError(f'expected an exact number such as "0.1", Fraction(1, 10) or Decimal("0.1"), got a {kind}')
    text = str(value)
    if not _NUMBER.fullmatch(text):
        raise ValueError('expected a number, a decimal string such as "0.1" or a fraction such as "104/4099"')
    ratio = Fraction(text)
    places = next((n for n in range(_PLACES + 1) if 10**n % ratio.denominator == 0), None)
    if places is None:
        return str(ratio)
    digits = str(abs(ratio.numerator) * (10**places // ratio.denominator)).zfill(places + 1)
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :]
    return ("-" if ratio < 0 else "") + (f"{whole}.{rest}" if rest else whole)


def loss_of(value: float | Exact) -> Fraction:
    """Return a privacy loss or a probability as an exact number, a float rounded up.

    The result is at least the float's binary value and at least the decimal that Python prints for it.

    Raises:
        ValueError: the value is negative, infinite or not a number.
    """
    return _directed(value, ROUND_CEILING)


def noise_of(value: float | Exact) -> Fraction:
    """Return a noise parameter as an exact number, a float rounded down: less noise is more loss.

    The result is at most the float's binary value and at most the decimal that Python prints for it.

    Raises:
        ValueError: the value is negative, infinite or not a number.
    """
    return _directed(value, ROUND_FLOOR)


def _directed(value: Any, rounding: str) -> Fraction:
    if not isinstance(value, bool) and isinstance(value, Integral):  # those of NumPy too
        value = int(value)
    elif isinstance(value, Real) and not isinstance(value, Rational):
        value = _double(value)
    if not isinstance(value, float):
        number = Fraction(exact_text(value))
    elif math.isfinite(value):
        rounded = Context(prec=_DIGITS, rounding=rounding).create_decimal(Decimal(value))
        both = (rounded, Decimal(repr(value)))
        number = Fraction(max(both) if rounding == ROUND_CEILING else min(both))
    else:
        raise ValueError(f"expected a finite number, got {value}")
    if number < 0:
        raise ValueError("expected a number of at least 0")
    return number


def _double(value: Real) -> float:
    """Return a float of any width as a double, such as a float32 of NumPy.

    Raises:
        ValueError: no double has its value.
    """
    double = float(value)
    if double != value and not math.isnan(double):
        raise ValueError("expected a float that is a double: a wider one is not rounded")
    return double
