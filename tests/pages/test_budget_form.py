"""The words with which a greater budget is confirmed."""

import pytest

from service.pages.budget_form import growth_text

_TOWN = {"definition": "zcdp", "cap": "0.05", "alpha": "", "delta": "", "declared": ""}


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ({"cap": "50"}, "ρ from 0.05 to 50, 1,000 times as large"),
        ({"cap": "0.15"}, "ρ from 0.05 to 0.15, 3 times as large"),
        ({"cap": "1/15"}, "ρ from 0.05 to 1/15, 1.334 times as large"),
        ({"cap": "0.05"}, ""),
        ({"cap": "0.050"}, ""),
        ({"cap": "0.04"}, ""),
        ({"cap": "much"}, ""),
        ({"declared": "1e-9"}, "the declared δ from 0 to 1e-9"),
        ({"cap": "0.1", "declared": "1e-9"}, "ρ from 0.05 to 0.1, 2 times as large; the declared δ from 0 to 1e-9"),
    ],
)
def test_what_grows_is_said_with_its_factor(typed: dict[str, str], text: str) -> None:
    assert growth_text(_TOWN, _TOWN | typed) == text


def test_a_greater_delta_is_a_greater_budget() -> None:
    approximate = {"definition": "approximate", "cap": "1", "alpha": "", "delta": "1e-9", "declared": ""}
    text = growth_text(approximate, approximate | {"cap": "0.5", "delta": "1e-6"})
    assert text == "δ from 1e-9 to 1e-6, 1,000 times as large"
