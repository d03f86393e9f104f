"""Faults of /v1 in plain words."""

import pytest

from service.pages.shell.fault_texts import joined, plain
from service.privacy.numerics.numbers import EXPECTED_NUMBER

_NUMBER = "expected a number such as 0.5, 0,5 or 1/3, and thousands without a mark, such as 12000"


@pytest.mark.parametrize(
    ("detail", "typed", "words"),
    [
        (EXPECTED_NUMBER, None, _NUMBER),
        (EXPECTED_NUMBER, "1.000,5", _NUMBER),
        (EXPECTED_NUMBER, "", "needed: a number such as 0.5"),
        (EXPECTED_NUMBER, "1.000 ", "1.000: write 1 or 1000"),
        (EXPECTED_NUMBER, "12.345 ", "12.345: write 12 or 12345"),
        (EXPECTED_NUMBER, "1.234.567 ", "1.234.567: write 1234567"),
        ("expected a whole number", "-20.000 ", "-20.000: write -20 or -20000"),
        (EXPECTED_NUMBER, "10 %", "expected a number, and no percentage"),
        ("expected a number above 0 and below 1", "", "needed: a number above 0 and below 1"),
        (
            "expected a confidence above 0 and below 1",
            "90",
            "expected a confidence above 0 and below 1, such as 0.9 or 90 %",
        ),
        (
            "expected names, separated by commas, one of them count",
            None,
            "expected names, separated by commas or semicolons, one of them count",
        ),
        ("expected text with a length of at least 1", "", "needed"),
        ("expected a share with the event budget.below", "", "expected a share with the event budget.below"),
        ("line 3: expected UTF-8", "x", "row 3: expected UTF-8: save it from the spreadsheet as “CSV UTF-8”"),
        (
            "expected an ISO 8601 duration of days, hours, minutes and seconds, such as P7D or PT24H",
            "a while",
            "expected a time such as 24 hours, 7 days or 2 weeks",
        ),
    ],
)
def test_a_fault_is_in_plain_words(detail: str, typed: str | None, words: str) -> None:
    assert plain(detail, typed) == words


def test_equal_faults_of_a_field_are_one() -> None:
    faults = [("/accounts", "a"), ("/accounts", "b"), ("/accounts", "a"), ("/name", "a")]
    assert joined(faults) == {"/accounts": "a; b", "/name": "a"}
