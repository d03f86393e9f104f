"""Counts as multiples of a granularity: exact conversion on the way in and out.

Inside the service and in Arrow streams a count is an integer, its number of units; in JSON it is an exact number. The
granularity is the mechanism's, whose noise is a multiple of it too. With granularity 1, counts are integers everywhere.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import FailFast, Field, GetPydanticSchema, WithJsonSchema
from pydantic_core import core_schema

from service.api.schemas.exact_numbers import EXACT_SCHEMA, LARGEST_INTEGER, Exact, Strict, check_exact
from service.errors import Fault, InvalidInput
from service.privacy.mechanisms import Mechanism as MechanismValue
from service.privacy.numerics.numbers import exact_text, parse_exact

MOST_FAULTS = 10  # of counts that a refusal names: the first ones
EXPECTED_COUNT = "expected an integer within 2^53 of 0, or with a granularity an exact number"
_OFF = "expected a multiple of granularity, within 2^53 times it of 0"


def _read(value: Any) -> Fraction:
    parse = parse_exact.__wrapped__  # without its cache: counts are secret
    return parse(check_exact(value))


def secret_number(expected: str) -> GetPydanticSchema:
    """Return the schema of exact numbers that no fault quotes; integers first, which need no call into Python.

    Args:
        expected: the words of the one fault.
    """

    def schema(_: Any, __: Any) -> core_schema.CoreSchema:
        return core_schema.union_schema(
            [
                core_schema.int_schema(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER),
                core_schema.no_info_plain_validator_function(_read),
            ],
            mode="left_to_right",
            custom_error_type="count",
            custom_error_message=expected,
        )

    return GetPydanticSchema(schema)


Count = Annotated[int | Fraction, secret_number(EXPECTED_COUNT), WithJsonSchema(EXACT_SCHEMA)]
Counts = Annotated[
    list[Count],
    FailFast(),  # a million faults would take longer to report than the draw
    Field(min_length=1, description="True counts; they are never stored or logged."),
]
Granularity = Annotated[
    Exact | None,
    Field(
        description="The granularity of the counts: they are multiples of it. The mechanism has the same one, and"
        " may omit it."
    ),
]


def on_lattice(mechanism: Strict, granularity: str | None, below: str) -> Strict:
    """Return the model of a mechanism, with the granularity that was sent beside it.

    Args:
        mechanism: the model, with or without a granularity of its own.
        granularity: the one that was sent beside it; None where none was.
        below: the pointer under which a fault is reported.

    Raises:
        InvalidInput: the mechanism has another granularity; the fault is at ``granularity``.
    """
    if granularity is None:
        return mechanism
    # a mechanism without the field cannot be drawn, which is reported later
    own = getattr(mechanism, "granularity", granularity)
    if own is not None:
        _require_same(parse_exact(own), granularity, below)
        return mechanism
    model: Strict = mechanism.model_copy(update={"granularity": granularity})
    return model


def unit_of(mechanism: MechanismValue, granularity: str | None = None, below: str = "") -> Fraction:
    """Return the granularity of a mechanism's noise.

    Args:
        mechanism: the mechanism.
        granularity: the one that was sent beside it, which must be equal; None where none was.
        below: the pointer under which a fault is reported.

    Raises:
        InvalidInput: the two differ; the fault is at ``granularity``.
    """
    if granularity is not None:
        _require_same(mechanism.unit, granularity, below)
    return mechanism.unit


def _require_same(own: Fraction, granularity: str, below: str) -> None:
    if own != parse_exact(granularity):
        raise InvalidInput.at(
            f"{below}/granularity", "expected the granularity of the mechanism, with which it is charged"
        )


def units_of(counts: Sequence[int | Fraction], unit: Fraction, pointer: str) -> NDArray[np.int64]:
    """Return counts in units.

    Args:
        counts: exact numbers.
        unit: the granularity.
        pointer: the place of the counts in the request.

    Returns:
        The exact quotients, as int64.

    Raises:
        InvalidInput: counts are not multiples of the unit, or are too large; the faults name the places of the first
            ones, never their values.
    """
    if unit == 1 and Fraction not in set(map(type, counts)):
        return np.array(counts, np.int64)
    units, faults = list[int](), list[Fault]()
    for number, count in enumerate(counts):
        try:
            units.append(in_units(count, unit, pointer, number))
        except InvalidInput as refused:
            faults += refused.faults
            if len(faults) == MOST_FAULTS:
                break
    if faults:
        raise InvalidInput(faults)
    return np.array(units, np.int64)


def in_units(count: int | Fraction, unit: Fraction, pointer: str, *place: int) -> int:
    """Return one count in units.

    Args:
        count: an exact number.
        unit: the granularity.
        pointer: the place of the counts in the request.
        place: the indices of the count below the pointer.

    Raises:
        InvalidInput: the count is not a multiple of the unit, or is too large.
    """
    if unit == 1 and isinstance(count, Fraction):
        raise InvalidInput.at("/".join([pointer, *map(str, place)]), EXPECTED_COUNT)
    units, off = divmod(count.numerator * unit.denominator, count.denominator * unit.numerator)
    if off or abs(units) > LARGEST_INTEGER:
        raise InvalidInput.at("/".join([pointer, *map(str, place)]), _OFF)
    return units


def count_text(units: int, unit: Fraction) -> int | str:
    """Return a count as JSON shows it: an integer, or with a granularity the text of an exact number."""
    return json_counts([units], unit)[0]


def json_counts(units: Sequence[int], unit: Fraction) -> Sequence[int | str]:
    """Return many counts as JSON shows them."""
    if unit == 1:
        return units
    decimals = _decimals_of(unit)
    if decimals is None:
        return [exact_text(value * unit) for value in units]
    if decimals == 0:
        return [str(value * int(unit)) for value in units]
    steps, ten = int(unit * 10**decimals), 10**decimals
    parts = ((value < 0, *divmod(abs(value) * steps, ten)) for value in units)
    return [f"{'-' if negative else ''}{whole}.{rest:0{decimals}d}" for negative, whole, rest in parts]


def _decimals_of(unit: Fraction) -> int | None:
    """Return the number of digits after the point in multiples of a unit; None where they are not decimals."""
    rest, twos, fives = unit.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None
