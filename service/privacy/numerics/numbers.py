"""Exact numbers, and the directed rounding of figures that enter and leave the service.

Figures that users state are exact rationals. Irrational figures are balls (python-flint ``arb``) until one upward
rounding makes them rational again. Reported figures are doubles on the safe side.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

from flint import arb, ctx, fmpq

from service.privacy.numerics.fair_lock import FairLock

_PLAIN = re.compile(r"-?[0-9]{1,100}(\.[0-9]{1,100})?")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_FRACTION = re.compile(r"-?[0-9]+/[0-9]+")
_PLAIN_BELOW = 10**21  # from here on whole numbers are written with an exponent, where that is shorter
MAX_BITS = 1024  # of a numerator, a denominator or a decimal's digits
MAX_EXPONENT = 400  # in size, of a decimal's leading digit
EXPECTED_NUMBER = (
    'expected a number, a decimal string such as "0.1" or a fraction such as "104/4099",'
    f" of at most {MAX_BITS} bits and a decimal exponent of at most {MAX_EXPONENT} in size"
)
MAX_LENGTH = 2 * MAX_BITS  # longer than any text of a number inside these limits
_SIGNIFICANT_BITS = 96  # of a rounded irrational: 1e-29 relative, far below the 1e-9 that is promised
_PRECISIONS = (160, 320, 640, 1280, 2560, 4096)
_REACH = 1 << 14  # bits: a ball's ends are written out as rationals between 2^-reach and 2^reach
_PRECISION_LOCK = FairLock()
_SHORT, _LONG = Context(prec=40), Context(prec=309)  # 309 digits hold 1024 bits
_EXACT = Context(prec=MAX_LENGTH)


@lru_cache(maxsize=4096)
def parse_exact(text: str) -> Fraction:
    """Read ``0.1``, ``1e-10`` or ``104/4099`` without any rounding.

    Raises:
        ValueError: the text is not such a number, or it is beyond the limits (1024 bits, exponent 400) that keep a
            short text from becoming an astronomically long number.
    """
    if _PLAIN.fullmatch(text):  # by far the most usual, and within the limits
        whole, _, rest = text.partition(".")
        return Fraction(int(whole + rest), 10 ** len(rest))
    if len(text) <= MAX_LENGTH:
        if _FRACTION.fullmatch(text):
            top, bottom = (int(part) for part in text.split("/"))
            if bottom and max(abs(top).bit_length(), bottom.bit_length()) <= MAX_BITS:
                return Fraction(top, bottom)
        elif _DECIMAL.fullmatch(text):
            decimal = Decimal(text)
            if decimal == 0:
                return Fraction(0)
            small = abs(int(decimal.scaleb(-int(decimal.as_tuple().exponent), _EXACT))).bit_length() <= MAX_BITS
            if small and abs(decimal.adjusted()) <= MAX_EXPONENT:
                return Fraction(decimal)
    raise ValueError(EXPECTED_NUMBER)


def exact_text(value: Fraction) -> str:
    """Return the shortest usual text of a rational: a decimal if there is a short one, else ``p/q``.

    ``parse_exact(exact_text(x)) == x`` for every x that ``parse_exact`` returns.
    """
    top, bottom = value.as_integer_ratio()
    if bottom == 1 and -_PLAIN_BELOW < top < _PLAIN_BELOW:
        return str(top)
    return _shortest(f"{top:x}/{bottom:x}")


@lru_cache(maxsize=4096)
def _shortest(ratio: str) -> str:
    """Return the shortest text of a ratio, given in hexadecimal digits: numbers of clients are looked up by text."""
    top, bottom = (int(part, 16) for part in ratio.split("/"))
    value = Fraction(top, bottom)
    for context in (_SHORT, _LONG):
        decimal = context.divide(Decimal(top), Decimal(bottom)).normalize(context)
        if Fraction(decimal) == value:
            if -7 <= decimal.adjusted() <= 20:
                return f"{decimal:f}"
            mantissa, _, exponent = f"{decimal:e}".partition("e")
            return f"{mantissa}e{int(exponent)}"
        if max(abs(top).bit_length(), bottom.bit_length()) <= MAX_BITS:
            break
    return f"{top}/{bottom}"


def double_up(value: Fraction) -> float:
    """Return the smallest double that is not below ``value``; infinity above the largest."""
    try:
        nearest = value.numerator / value.denominator  # correctly rounded: PEP 3141's int division
    except OverflowError:
        return math.inf if value > 0 else -math.nextafter(math.inf, 0)
    above = nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
    return above + 0.0  # a zero without a sign


def double_down(value: Fraction) -> float:
    """Return the largest double that is not above ``value``."""
    return 0.0 - double_up(-value)


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Compute with balls of ``bits`` bits inside the block, for one thread at a time.

    python-flint keeps the precision in one global of the process. Another thread that sets it, or restores it on
    leaving, would change it while this one evaluates. A thread that prices takes the lock again and again, so it must
    not get it before those that wait.
    """
    _PRECISION_LOCK.acquire()
    before = ctx.prec
    try:
        ctx.prec = bits
        yield
    finally:
        ctx.prec = before
        _PRECISION_LOCK.release()


def ball(value: Fraction | int) -> arb:
    """Return ``value`` as a ball at the precision now in force."""
    return arb(fmpq(value.numerator, value.denominator))


def _ends(value: arb) -> tuple[int, int, int] | None:
    """Return low, high and e, the ball within low*2^e to high*2^e; None where it is not finite or beyond 2^reach.

    A part of the ball below 2^-reach becomes a radius of 2^-reach: exp(-10^20) is a small ball, but
    as a rational it has 10^20 bits.
    """
    if not value.is_finite():
        return None
    parts, slack = [], 0
    for part in (value.mid(), value.rad()):
        mantissa, exponent = (int(figure) for figure in part.man_exp())
        size = mantissa.bit_length() + exponent
        if size > _REACH:
            return None
        if mantissa and size < -_REACH:
            mantissa, exponent, slack = 0, 0, slack + 1
        parts.append((mantissa, exponent))
    (middle, of_middle), (radius, of_radius) = parts
    e = min(of_middle, of_radius, -_REACH if slack else 0)
    middle, radius = middle << (of_middle - e), radius << (of_radius - e)
    if slack:
        radius += slack << (-_REACH - e)
    return middle - radius, middle + radius, e


def _up(mantissa: int, exponent: int) -> tuple[int, int]:
    """Return the smallest number of 96 significant bits at or above mantissa*2^exponent, as such a pair."""
    excess = mantissa.bit_length() - _SIGNIFICANT_BITS
    return (-(-mantissa >> excess), exponent + excess) if excess > 0 else (mantissa, exponent)


def round_up(value: Fraction) -> Fraction:
    """Return the ceiling of a positive rational to about 96 significant bits."""
    shift = _SIGNIFICANT_BITS + value.denominator.bit_length() - value.numerator.bit_length()
    return _rational(math.ceil(value * _rational(1, shift)), -shift)


def _rational(mantissa: int, exponent: int) -> Fraction:
    return Fraction(mantissa << exponent) if exponent >= 0 else Fraction(mantissa, 1 << -exponent)


def _finite_ends(evaluate: Callable[[], arb]) -> Iterator[tuple[int, int, int]]:
    """Yield the ends of a ball at growing precision, wherever both are finite."""
    for bits in _PRECISIONS:
        with precision(bits):
            ends = _ends(evaluate())
        if ends is not None:
            yield ends


def ceiling(evaluate: Callable[[], arb]) -> Fraction | None:
    """Return an upper bound of an irrational: its ceiling to 96 significant bits.

    ``evaluate`` is called at growing precision until both ends of the ball have the same ceiling, so that every machine
    gets the same number, whatever the last bits of its arithmetic are. If 4096 bits do not decide (the value may lie
    exactly on the grid), the ceiling of the upper end is taken, which is still an upper bound. The result is None if
    not even that is finite.
    """
    upper: tuple[int, int] | None = None
    for low, high, e in _finite_ends(evaluate):
        upper = _up(high, e)
        if _up(low, e) == upper:
            break
    return None if upper is None else _rational(*upper)


def ceilings(prepare: Callable[[], Callable[[arb], arb]], values: Sequence[Fraction]) -> list[Fraction | None]:
    """Return the ``ceiling`` of a function at many places; one precision decides most of them.

    Args:
        prepare: returns the function, at the precision in force when it is called.

    Returns:
        One for each value, in their order; None where no finite one is found.
    """
    with precision(_PRECISIONS[0]):
        function = prepare()
        all_ends = [_ends(function(ball(value))) for value in values]
    upper: list[Fraction | None] = []
    for value, ends in zip(values, all_ends, strict=True):
        if ends is not None and (up := _up(ends[1], ends[2])) == _up(ends[0], ends[2]):
            upper.append(_rational(*up))
        else:
            upper.append(ceiling(lambda at=value: prepare()(ball(at))))  # type: ignore[misc]  # bound by its default
    return upper


def floor(evaluate: Callable[[], arb]) -> Fraction:
    """Return a lower bound of a number, exact to at least 60 relative bits where it is not near 0.

    Raises:
        ArithmeticError: no precision gives a finite one.
    """
    lower: Fraction | None = None
    for low, high, e in _finite_ends(evaluate):
        lower = _rational(low, e)
        if (high - low) << 60 <= abs(low):
            break
    if lower is None:
        raise ArithmeticError("expected a finite number")
    return lower
