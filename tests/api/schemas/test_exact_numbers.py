"""Numbers of answers: the text of the exact figure where a double has it, and else a bound on the safe side."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from service.api.schemas.exact_numbers import number_down, number_up

_FIGURES = st.one_of(
    st.fractions(min_value=0),
    st.floats(min_value=0, allow_infinity=False).map(Fraction),
    st.decimals(min_value=0, max_value=10**9, allow_nan=False, places=18).map(Fraction),
)


@given(_FIGURES)
def test_no_loss_is_shown_smaller_and_no_remainder_larger(value: Fraction) -> None:
    above, below = number_up(value), number_down(value)
    assert above is None or Fraction(repr(above)) >= value
    assert Fraction(repr(below)) <= value


@given(st.integers(1, 10**15 - 1), st.integers(-30, 30))
def test_a_decimal_of_fifteen_digits_is_shown_as_it_is(digits: int, place: int) -> None:
    value = digits * Fraction(10) ** place
    assert Fraction(repr(number_up(value))) == Fraction(repr(number_down(value))) == value


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (Fraction("0.1") + Fraction("0.2"), 0.3, 0.3),
        (Fraction(0), 0.0, 0.0),
        (Fraction(1, 3), 0.33333333333333337, 0.3333333333333333),
        (Fraction("0.3") + Fraction(1, 10**18), 0.30000000000000004, 0.3),
        (Fraction(10) ** 400, None, 1.7976931348623157e308),
    ],
)
def test_numbers_as_clients_read_them(value: Fraction, up: float | None, down: float) -> None:
    assert (number_up(value), number_down(value)) == (up, down)
