"""Faults of /v1 in plain words."""

import pytest

from service.pages.shell.fault_texts import plain
from service.privacy.numerics.numbers import EXPECTED_NUMBER

_NUMBER = "expected a number such as 0.5, 0,5 or 1/3, and thousands without a mark, such as 12000"


@pytest.mark.parametrize(
    ("detail", "typed", "words"),
    [
        (EXPECTED_NUMBER, None, _NUMBER),
        (EXPECTED_NUMBER, "1.000,5", _NUMBER),
        (EXPECTED_NUMBER, "", "needed: a number such as 0.5"),
        ("expected a number above 0 and below 1", "", "needed: a number above 0 and below 1"),
        ("expected text with a length of at least 1", "", "needed: a text"),
        ("expected a share with the event budget.below", "", "expected a share with the event budget.below"),
        ("line 3: expected UTF-8", "x", "row 3: expected UTF-8"),
    ],
)
def test_a_fault_is_in_plain_words(detail: str, typed: str | None, words: str) -> None:
    assert plain(detail, typed) == words
