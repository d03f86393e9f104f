"""Texts of figures for people: how many digits they have, and in which direction they are rounded.

This is the one place that decides it, for pages and for messages.

- A figure of at most six digits is written whole: where the number itself can be read, nobody needs a bound on it.
- Any other figure has four digits. A loss is rounded up, what remains is rounded down, and a figure that is no bound,
  as a standard deviation is, to the nearest.
- A percentage has three digits, and is rounded up.
- Messages write figures of at most ``STATED`` digits whole, so that what a request stated comes back as it was stated.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, Inexact
from fractions import Fraction

_DIGITS, _WHOLE, _OF_PERCENT = 4, 6, 3
STATED = 12
_BESIDE = 2
_NOTHING = Fraction(1, 10**9)  # of a cap: what is left below it buys no noise that anybody would want


def up(value: float | str | Fraction | None, whole: int = _WHOLE) -> str:
    """Return the text of an upper bound, rounded up; None is infinite.

    Args:
        value: the figure, as a number or as the text of one.
        whole: the largest number of digits with which it is written whole.
    """
    return "infinite" if value is None else _text(exact(value), ROUND_CEILING, whole)


def down(value: float | str | Fraction | None, whole: int = _WHOLE) -> str:
    """Return the text of a lower bound, rounded down; None is infinite."""
    return "infinite" if value is None else _text(exact(value), ROUND_FLOOR, whole)


def near(value: float | str | Fraction, whole: int = _WHOLE) -> str:
    """Return the text of a figure that is no bound, rounded to the nearest."""
    return _text(exact(value), ROUND_HALF_EVEN, whole)


def rest(value: float | str | Fraction, cap: float | str | Fraction) -> str:
    """Return the text of what is left of a cap, rounded down; less than a billionth of the cap is 0."""
    left = exact(value)
    return "0" if 0 <= left < _NOTHING * exact(cap) else down(left)


def percent(part: float | str | Fraction, rounding: str = ROUND_CEILING) -> str:
    """Return the text of a part in percent, rounded up."""
    return _text(100 * exact(part), rounding, 0, _OF_PERCENT)


def percent_left(part: float | str | Fraction) -> str:
    """Return the text of a remaining part in percent, rounded down."""
    return percent(part, ROUND_FLOOR)


def exact(value: float | str | Fraction) -> Fraction:
    """Return the number that an answer states, as a number or as the text of one.

    Answers round to doubles away from exact figures, so that 3/10 comes as 0.30000000000000004. A double that is at
    most ``_BESIDE`` units in the last place from a number of ``STATED`` digits is taken for that number: four digits
    would make 0.3001 of it. So a bound on a page may lie inside the true one by a part in 10^15; pages decide nothing.
    """
    if not isinstance(value, float):
        return Fraction(value)
    short = Fraction(f"{value:.{STATED - 1}e}")
    return short if abs(short - Fraction(value)) <= _BESIDE * Fraction(math.ulp(value)) else Fraction(repr(value))


def _text(value: Fraction, rounding: str, whole: int = _WHOLE, digits: int = _DIGITS) -> str:
    top, bottom = Decimal(value.numerator), Decimal(value.denominator)
    found = _divided(top, bottom, Context(prec=max(whole, 1)))
    if found is None:
        found = Context(prec=digits, rounding=rounding).divide(top, bottom)
    found = found.normalize()
    plain = found == 0 or -5 < found.adjusted() < 7
    return f"{found:f}" if plain else f"{found:e}".replace("e+", "e")


def _divided(top: Decimal, bottom: Decimal, context: Context) -> Decimal | None:
    """Return the quotient; None where it has more digits than the context."""
    found = context.divide(top, bottom)
    return None if context.flags[Inexact] else found
