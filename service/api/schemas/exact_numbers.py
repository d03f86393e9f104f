"""Exact numbers, labels and durations in requests, and rounded numbers in answers."""

import math
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from service.api.schemas import patterns
from service.privacy.grammar import LARGEST_WHOLE
from service.privacy.numerics.numbers import double_down, double_up, exact_text, parse_exact

LARGEST_SHORT = 1 << 20  # bytes
LARGEST_INTEGER = LARGEST_WHOLE


class Strict(BaseModel):
    """A body or a part of one: unknown fields are refused, and no error quotes the input."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Short(Strict):
    """A body that need not be long: the serving process reads it, so a long one, which would delay it, is refused."""


def check_exact(value: Any) -> str:
    """Return an exact number's text as it was written; the body's parser leaves JSON numbers as such text."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise ValueError('expected a number, or a string such as "0.1" or "104/4099"')  # noqa: TRY004 - pydantic's way
    if isinstance(value, int) and value.bit_length() > 1024:
        raise ValueError("expected a number of at most 1024 bits")
    return str(value)


def _exact(value: Any) -> str:
    return exact_text(parse_exact(check_exact(value)))


_EXACT_PATTERN = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$|^-?[0-9]+/[0-9]+$"
EXACT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number"},
        {"type": "string", "pattern": _EXACT_PATTERN},
    ],
    "description": "An exact number: a JSON number (meaning its decimal text), a decimal string or a fraction string.",
}

Exact = Annotated[str, BeforeValidator(_exact), WithJsonSchema(EXACT_SCHEMA)]
"""An exact number in its shortest usual text."""


def _whole_or_exact(value: Any) -> int | str:
    """Return an integer as it is, and any other number as its text, which a granularity allows."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_INTEGER:
        return value
    return _exact(value)


_WHOLE_FIRST = {**EXACT_SCHEMA, "anyOf": [{"type": "integer"}, *EXACT_SCHEMA["anyOf"]]}  # else clients write 1.0
WholeOrExact = Annotated[int | str, BeforeValidator(_whole_or_exact), WithJsonSchema(_WHOLE_FIRST)]
"""An integer, or where a granularity is stated an exact number."""

Label = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=patterns.LABEL)]
Text = Annotated[str, StringConstraints(max_length=4000, pattern=patterns.TEXT)]
Reason = Annotated[Text, StringConstraints(min_length=1)]
Positive = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]
Tags = Annotated[list[Label], Field(max_length=64)]


_DURATION = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")
_LONGEST = timedelta(days=366)


def _duration(text: str) -> str:
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")) or len(text) > 40:
        raise ValueError("expected an ISO 8601 duration of days, hours, minutes and seconds, such as P7D or PT24H")
    if not timedelta(0) < duration_of(text) <= _LONGEST:
        raise ValueError("expected a duration above 0 and of at most 366 days")
    return text


def duration_of(text: str) -> timedelta:
    """Return the time that a duration states; ``timedelta.max`` if it is longer."""
    found = _DURATION.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0,) * 4
    try:
        return timedelta(days, seconds, minutes=minutes, hours=hours)
    except OverflowError:
        return timedelta.max


Duration = Annotated[
    str,
    AfterValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": "^P([0-9]+D)?(T([0-9]+H)?([0-9]+M)?([0-9]+S)?)?$", "maxLength": 40}),
]
"""An ISO 8601 duration of days, hours, minutes and seconds."""


def number_up(value: Fraction) -> float | None:
    """Return the double to show for an upper bound: its decimal text is the value, or else above; None is infinity.

    A JSON number is its decimal text. So 3/10 is shown as 0.3, although the double that a client may read it into is a
    little below. Where no double has the value's text, neither the double nor its text is below the value.
    """
    return _shown(value, double_up(value), math.inf, lambda text: text >= value)


def number_down(value: Fraction) -> float:
    """Return the double to show for a remaining amount: its decimal text is the value, or else below."""
    shown = _shown(value, double_down(value), -math.inf, lambda text: text <= value)
    return 0.0 if shown is None else shown


def _shown(value: Fraction, double: float, away: float, safe: Callable[[Fraction], bool]) -> float | None:
    beside = math.nextafter(double, -away)
    if math.isfinite(beside) and Fraction(repr(beside)) == value:  # the double itself has that text, or this one
        return beside
    while math.isfinite(double) and not safe(Fraction(repr(double))):
        double = math.nextafter(double, away)
    return double if math.isfinite(double) else None


_LONGEST_BITS = 13_000  # Python writes no number with more than 4,300 digits


def short_exact(value: Fraction) -> str | None:
    """Return the exact text if it is short enough to read."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _LONGEST_BITS:
        return None
    text = exact_text(value)
    return text if len(text) <= 80 else None
