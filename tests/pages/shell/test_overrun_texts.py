"""Texts of what exceeds a budget, in the words and with the digits of pages."""

from typing import Any

from service.errors import BELOW_SPENT
from service.pages.shell.overrun_texts import overrun_faults, overrun_text, problem_texts

_FAILURE: dict[str, Any] = {
    "account": "labour",
    "definition": "zcdp",
    "cap": "rho",
    "requested": 0.100000001,
    "remaining": 0.092016001,
}
_UNSEEN: dict[str, Any] = _FAILURE | dict.fromkeys(("account", "definition", "cap", "requested", "remaining"))


def test_figures_have_the_digits_of_pages() -> None:
    assert overrun_text(_FAILURE) == "labour has 0.09201 of its ρ budget left; it would take 0.1001."
    of_part = overrun_text(_FAILURE | {"tag": "age", "window": "2025", "requested": None})
    assert of_part == (
        "labour has 0.09201 of its cap on ρ for tag age left in window 2025; it would take an infinite loss."
    )
    assert "your key does not reach it" in overrun_text(_UNSEEN)


def test_a_lowered_cap_is_said_to_be_below_what_is_spent() -> None:
    assert overrun_text(_FAILURE, BELOW_SPENT) == "The new ρ budget of labour is below what is spent and held, 0.1001."


def test_a_problem_is_told_by_its_failures_or_its_detail() -> None:
    exceeded = {"title": "The release exceeds the budget", "detail": "account 'labour' has …"}
    assert problem_texts(exceeded | {"failures": [_FAILURE, _UNSEEN]}) == [
        overrun_text(_FAILURE), overrun_text(_UNSEEN),
    ]  # fmt: skip
    assert problem_texts({"title": "Not found", "detail": "no line 3"}) == ["no row 3"]


def test_a_stated_cap_has_its_fault_at_its_figure() -> None:
    lowered = {"title": BELOW_SPENT, "failures": [_FAILURE]}
    assert overrun_faults(lowered) == {}
    assert list(overrun_faults(lowered | {"pointer": "/budget"})) == ["/budget/rho"]
