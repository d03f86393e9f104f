"""Numbers and durations as people type them."""

import pytest

from service.pages.shell import typed_numbers
from service.pages.shell.typed_numbers import duration_text, number_text, whole_text, with_point


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("12,5", "12.5"),
        (" 0,95 ", "0.95"),
        (",5", "0.5"),
        ("-0,5", "-0.5"),
        ("0,125", "0.125"),
        ("1,5e-3", "1.5e-3"),
        ("12 000", "12000"),
        ("1\u202f234\u00a0567,5", "1234567.5"),
        ("20 %", "0.2"),
        ("12,5%", "0.125"),
        ("1/3", "1/3"),
        ("0.1", "0.1"),
        ("", ""),
        ("1,000", "1,000"),  # one, or a thousand
        ("12,500 %", "12,500 %"),
        ("1.000", "1.000 "),  # likewise, so /v1 refuses it
        ("1.000 ", "1.000 "),  # as the form shows it then
        ("20.000 %", "20.000 %"),
        ("0.500", "0.500"),
        ("1.0000", "1.0000"),
        ("1,2,3", "1,2,3"),
        ("1.000,5", "1.000,5"),
        ("twelve", "twelve"),
        ("%", "%"),
    ],
)
def test_numbers(typed: str, number: str) -> None:
    assert number_text(typed) == number


@pytest.mark.parametrize("typed", ["1" + " " * 120_000 + "x", "1" * 1_000_000 + ",5", "1" + " " * 120_000 + "x %"])
def test_longer_texts_than_a_number_has_are_left(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in ("_BLANK", "_EITHER", "_COMMA", "_NO_PART"):
        monkeypatch.setattr(typed_numbers, pattern, None)  # no pattern is tried
    assert number_text(typed) == typed


def test_blanks_before_a_percent_sign_are_dropped() -> None:
    assert number_text("20" + " " * 100_000 + "%") == "0.2"


def test_a_count_is_no_percentage() -> None:
    assert with_point("20 %") == "20 %"


@pytest.mark.parametrize(
    ("typed", "number"),
    [("1.500", "1.500 "), ("12.345 ", "12.345 "), ("1.234.567", "1.234.567 "), ("0.500", "0.500"), ("11,5", "11.5"),
     ("12.5", "12.5"), ("1.000", "1.000 "), ("12 000", "12000"), ("12", "12"), ("", "")],
)  # fmt: skip
def test_a_whole_number_has_no_point_before_three_digits(typed: str, number: str) -> None:
    assert whole_text(typed) == number


@pytest.mark.parametrize(
    ("typed", "duration"),
    [
        ("24 hours", "PT24H"),
        ("1 hour", "PT1H"),
        ("7 days", "P7D"),
        ("1 Week", "P7D"),
        ("2weeks", "P14D"),
        ("PT24H", "PT24H"),
        ("a while", "a while"),
        ("", ""),
    ],
)
def test_durations(typed: str, duration: str) -> None:
    assert duration_text(typed) == duration
