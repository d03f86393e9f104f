"""Exact numbers: as texts without rounding, and floats towards more loss."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from privacy_budget_ledger.exact import Exact, exact_text, loss_of, noise_of
from service.privacy.numerics.numbers import parse_exact

_FLOATS = st.floats(0, 1e300, allow_subnormal=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.10", "0.1"),
        ("1e-10", "0.0000000001"),
        (Decimal("1E-10"), "0.0000000001"),
        (Fraction(104, 4099), "104/4099"),
        ("104/4099", "104/4099"),
        ("2/4", "0.5"),
        (7, "7"),
        ("-0.25", "-0.25"),
        (0, "0"),
        ("1e-300", f"1/{10**300}"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_an_exact_number_has_one_text(value: Exact, text: str) -> None:
    assert exact_text(value) == text


@given(st.fractions(max_denominator=10**12) | st.decimals(-(10**9), 10**9, places=6).map(Fraction))
def test_the_service_reads_the_number_that_was_meant(value: Fraction) -> None:
    assert parse_exact(exact_text(value)) == value


@pytest.mark.parametrize("value", [0.1, True, None, b"1"])
def test_a_float_is_refused_and_not_guessed_at(value: object) -> None:
    with pytest.raises(TypeError, match="expected an exact number such as"):
        exact_text(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "one", "1/0", "0/00", "nan", "inf", " 1", "1_000", "1e1000", ".5", "1/-2", "٣"])
def test_a_text_that_the_service_would_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        exact_text(text)


@given(_FLOATS)
def test_floats_are_read_towards_more_loss(value: float) -> None:
    loss, noise = loss_of(value), noise_of(value)
    assert noise <= min(Fraction(value), Fraction(repr(value)))
    assert loss >= max(Fraction(value), Fraction(repr(value)))
    assert loss - noise <= Fraction(value) / 10**15


def test_a_float_that_is_a_short_number_stays_one() -> None:
    assert loss_of(0.5) == noise_of(0.5) == Fraction(1, 2)
    assert noise_of(0.1) == Fraction(1, 10) < loss_of(0.1)
    assert loss_of("0.1") == Fraction(1, 10)


def test_the_numbers_of_numpy_are_read_by_their_value() -> None:
    single: Any = np.float32(0.1)
    assert loss_of(single) >= Fraction(float(single)) >= noise_of(single)
    assert noise_of(np.float64(0.1)) == Fraction(1, 10)
    assert loss_of(np.int64(3)) == 3  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a float that is a double"):
        loss_of(np.nextafter(np.longdouble(1), np.longdouble(2)))


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, "-1"])
def test_what_is_no_loss_is_refused(value: float | str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        loss_of(value)
    with pytest.raises(ValueError, match="expected a"):
        noise_of(value)
