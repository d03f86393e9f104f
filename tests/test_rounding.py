"""Texts of figures: an exact figure stays, an upper bound is never shown smaller, and a lower bound never larger."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from service.api.schemas.exact_numbers import number_down, number_up
from service.rounding import down, near, percent, percent_left, rest, up

_FIGURES = st.one_of(
    st.floats(min_value=1e-300, max_value=1e300).map(lambda value: Fraction(repr(value))),
    st.fractions(min_value=Fraction(1, 10**6), max_value=10**6),
)


@given(_FIGURES)
def test_rounding_has_its_direction(value: Fraction) -> None:
    above, below = Fraction(up(value)), Fraction(down(value))
    assert below <= value <= above
    assert above - below <= value / 1000
    assert Fraction(percent_left(value)) <= 100 * value <= Fraction(percent(value))


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**6))
def test_a_double_beside_a_figure_stands_for_it(value: Fraction) -> None:
    """Answers are a double away from exact figures, or two; a page is inside the figure by no more than that."""
    above, below = number_up(value), number_down(value)
    assert above is not None
    assert Fraction(up(above)) >= value * (1 - Fraction(1, 10**15))
    assert Fraction(down(below)) <= value * (1 + Fraction(1, 10**15))


@given(st.integers(1, 999_999), st.integers(-12, 12))
def test_an_answer_about_a_figure_of_few_digits_shows_it(digits: int, place: int) -> None:
    value = digits * Fraction(10) ** place
    assert {Fraction(up(number_up(value))), Fraction(down(number_down(value)))} == {value}


@given(st.integers(1, 999_999), st.integers(-12, 12))
def test_a_figure_of_few_digits_is_written_whole(digits: int, place: int) -> None:
    value = digits * Fraction(10) ** place
    assert {Fraction(text) for text in (up(value), down(value), near(value))} == {value}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1"), (0.5, "0.5"), (1234567.0, "1235000"), (12345678.0, "1.235e7"),
        (0.00012341, "0.00012341"), (0.0001234101, "0.0001235"), (1e-10, "1e-10"), (Fraction(1, 3), "0.3334"),
        (2.0000000001, "2.001"), (0.123456, "0.123456"),
        (0.1234567, "0.1235"), ("3/10", "0.3"),
        (None, "infinite"),
    ],
)  # fmt: skip
def test_up_as_people_read_it(value: float | None, shown: str) -> None:
    assert up(value) == shown


def test_a_figure_that_is_no_bound_is_rounded_to_the_nearest() -> None:
    assert [near(value) for value in (5.000000000000001, 70.71067811865476, 0.35355339059327379)] == [
        "5",
        "70.71",
        "0.3536",
    ]


def test_percentages_have_three_digits() -> None:
    parts: list[float | str | Fraction] = ["0.0603", "0.6", "1.2", Fraction(1, 3), 0.9996, 0.0000123456, "0"]
    assert [percent(part) for part in parts] == ["6.03", "60", "120", "33.4", "100", "0.00124", "0"]
    assert percent_left(Fraction(2, 3)) == "66.6"


def test_the_dust_of_a_budget_is_nothing() -> None:
    assert [rest(left, "0.5") for left in (5.46e-13, 0.0, "0.25", -5e-13)] == ["0", "0", "0.25", "-5e-13"]
