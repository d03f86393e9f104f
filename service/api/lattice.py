"""Counts on a lattice, the multiples of a granularity: how they come in and how they go out, always exactly.

Inside the service a count is an integer, its number of units. The granularity is the mechanism's (its noise is on the
same lattice); where it is 1, counts are integers outside too.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import FailFast, Field, GetPydanticSchema, WithJsonSchema
from pydantic_core import core_schema

from service.api.exact import EXACT_SCHEMA, LARGEST_INTEGER, Exact, Strict, check_exact
from service.errors import InvalidInput
from service.privacy.mechanisms import Discrete, Mechanism as MechanismValue
from service.privacy.numbers import exact_text, parse_exact

_EXPECTED = "expected an integer within 2^53 of 0, or with a granularity an exact number"
_OFF = "expected a multiple of granularity, within 2^53 times it of 0 (2^62 times over Arrow)"
_PRECISION = 38  # digits of a decimal128
_DIGITS = 18  # of a granularity that goes over Arrow: times 19 digits of units they fit


def _read(value: Any) -> Fraction:
    parse = parse_exact.__wrapped__  # without its memory: counts are secret
    return parse(check_exact(value))


def _schema(_: Any, __: Any) -> core_schema.CoreSchema:
    """Integers first, which are nearly all and are checked without a call into Python; one fault, not one for each."""
    return core_schema.union_schema(
        [
            core_schema.int_schema(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER),
            core_schema.no_info_plain_validator_function(_read),
        ],
        mode="left_to_right",
        custom_error_type="count",
        custom_error_message=_EXPECTED,
    )


Count = Annotated[int | Fraction, GetPydanticSchema(_schema), WithJsonSchema(EXACT_SCHEMA)]
Counts = Annotated[
    list[Count],
    FailFast(),  # a million faults would take longer to say than the draw
    Field(min_length=1, description="True counts; they are never stored or logged."),
]
Granularity = Annotated[
    Exact | None,
    Field(description="Of which the counts are multiples: that of the mechanism, which need not state it too."),
]


def on_lattice(mechanism: Strict, granularity: str | None, below: str) -> Strict:
    """The model of a mechanism with the granularity that was stated beside it.

    Raises:
        InvalidInput: it has another one; the fault is at ``granularity``.
    """
    if granularity is None:
        return mechanism
    own = getattr(mechanism, "granularity", granularity)  # what has none cannot be drawn, which is said later
    if own is not None:
        _require_same(parse_exact(own), granularity, below)
        return mechanism
    stated: Strict = mechanism.model_copy(update={"granularity": granularity})
    return stated


def unit_of(mechanism: MechanismValue, granularity: str | None = None, below: str = "") -> Fraction:
    """The granularity of a mechanism's noise, which must be the one that is stated beside it, if one is.

    Raises:
        InvalidInput: it is another one; the fault is at ``granularity``.
    """
    own = mechanism.granularity if isinstance(mechanism, Discrete) else Fraction(1)
    if granularity is not None:
        _require_same(own, granularity, below)
    return own


def _require_same(own: Fraction, stated: str, below: str) -> None:
    if own != parse_exact(stated):
        raise InvalidInput.at(f"{below}/granularity", "expected that of the mechanism, with which it is charged")


def units_of(counts: Sequence[int | Fraction], unit: Fraction, pointer: str) -> NDArray[np.int64]:
    """Counts in units.

    Raises:
        InvalidInput: one is off the lattice or too large; the fault names its place and never its value.
    """
    if unit == 1:
        if Fraction in set(map(type, counts)):
            at = next(number for number, count in enumerate(counts) if isinstance(count, Fraction))
            raise InvalidInput.at(f"{pointer}/{at}", _EXPECTED)
        return np.array(counts, np.int64)
    units = np.empty(len(counts), np.int64)
    for number, count in enumerate(counts):
        value = count / unit
        if value.denominator != 1 or abs(value) > LARGEST_INTEGER:
            raise InvalidInput.at(f"{pointer}/{number}", _OFF)
        units[number] = value.numerator
    return units


def shown(units: int, unit: Fraction) -> int | str:
    """A count as JSON has it: an integer, or with a granularity the text of an exact number."""
    return shown_list([units], unit)[0]


def shown_list(units: Sequence[int], unit: Fraction) -> Sequence[int | str]:
    """The same of many."""
    if unit == 1:
        return units
    decimals = decimals_of(unit)
    if decimals is None:
        return [exact_text(value * unit) for value in units]
    if decimals == 0:
        return [str(value * int(unit)) for value in units]
    steps, ten = int(unit * 10**decimals), 10**decimals
    parts = ((value < 0, *divmod(abs(value) * steps, ten)) for value in units)
    return [f"{'-' if negative else ''}{whole}.{rest:0{decimals}d}" for negative, whole, rest in parts]


def decimals_of(unit: Fraction) -> int | None:
    """How many digits after the point its multiples have; None where they are no decimals."""
    rest, twos, fives = unit.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None


def column_type(unit: Fraction, pointer: str) -> pa.DataType:
    """The type of a column of such counts.

    Raises:
        InvalidInput: decimal128 does not hold them.
    """
    if unit == 1:
        return pa.int64()
    decimals = decimals_of(unit)
    if decimals is None or decimals > _DIGITS or unit * 10**decimals >= 10**_DIGITS:
        detail = (
            f"expected, with an Arrow stream, a granularity with at most {_DIGITS} digits in all and after the point"
        )
        raise InvalidInput.at(pointer, detail)
    return pa.decimal128(_PRECISION, decimals)


def column_of(units: NDArray[np.int64], unit: Fraction) -> pa.Array:
    """Counts as a column of that type."""
    if unit == 1:
        return pa.array(units)
    kind = column_type(unit, "")
    step = pa.scalar(Decimal(int(unit * 10**kind.scale)).scaleb(-kind.scale), pa.decimal128(_DIGITS, kind.scale))
    return pc.multiply(pa.array(units).cast(pa.decimal128(19, 0)), step).cast(kind)


def units_of_column(counts: pa.Array, unit: Fraction, first: int, pointer: str) -> NDArray[np.int64]:
    """A column without nulls in units; ``first`` is the number of its first row.

    Raises:
        InvalidInput: it has another type, or a count is off the lattice or has more than 64 bits in units.
    """
    whole, kind = pa.types.is_int64(counts.type), column_type(unit, f"{pointer}/mechanism/granularity")
    if not (whole or (unit != 1 and pa.types.is_decimal128(counts.type))):
        raise InvalidInput.at(f"{pointer}/count", f"expected a column of type {'int64' if unit == 1 else 'decimal128'}")
    if unit == 1:
        values: NDArray[np.int64] = counts.to_numpy(zero_copy_only=True)
        return values
    try:
        scaled = (counts.cast(pa.decimal128(19, 0)) if whole else counts).cast(kind)
    except pa.ArrowInvalid:  # its message may quote a value
        raise InvalidInput.at(f"{pointer}/count", "expected multiples of granularity of at most 38 digits") from None
    # Little-endian two's complement in 128 bits.
    low, high = np.frombuffer(scaled.buffers()[1], "<i8").reshape(-1, 2)[scaled.offset :][: len(scaled)].T
    steps = int(unit * 10**kind.scale)
    units: NDArray[np.int64] = low // steps
    wrong = units * steps != low
    for row in np.flatnonzero(high != low >> 63):
        value, over = divmod((int(high[row]) << 64) + (int(low[row]) & (2**64 - 1)), steps)
        wrong[row] = over != 0 or not -(2**63) <= value < 2**63
        units[row] = 0 if wrong[row] else value
    if wrong.any():
        raise InvalidInput.at(f"{pointer}/count/{first + int(np.argmax(wrong))}", _OFF)
    return units
