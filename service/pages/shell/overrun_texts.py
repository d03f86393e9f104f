"""Texts of what exceeds a budget, with the words and digits of pages; the module has no side effects."""

from collections.abc import Mapping
from typing import Any

from service.errors import BELOW_SPENT
from service.pages.shell.fault_texts import plain
from service.pages.shell.figures import symbol_of
from service.rounding import down, up


def overrun_text(failure: Mapping[str, Any], title: str = "") -> str:
    """Return the sentence about a budget, or a cap on a tag, that is exceeded.

    Args:
        failure: as a problem of ``/v1`` lists it.
        title: that of the problem, which may be about one that is lowered too far.
    """
    if failure["account"] is None:
        return (
            "An account above this one has no room; your key does not reach it, so its remaining budget is not shown."
        )
    symbol = symbol_of(failure["cap"])
    limit = f"cap on {symbol} for tag {failure['tag']}" if "tag" in failure else f"{symbol} budget"
    needed = "an infinite loss" if failure["requested"] is None else up(failure["requested"])
    if title == BELOW_SPENT:
        return f"The new {limit} of {failure['account']} is below what is spent and held, {needed}."
    window = f" in window {failure['window']}" if "window" in failure else ""
    return f"{failure['account']} has {down(failure['remaining'])} of its {limit} left{window}; it would take {needed}."


def problem_texts(problem: Mapping[str, Any]) -> list[str]:
    """Return the sentences that say why a request was refused."""
    failures = problem.get("failures")
    return [overrun_text(one, problem["title"]) for one in failures] if failures else [plain(problem["detail"])]


def overrun_faults(problem: Mapping[str, Any]) -> dict[str, str]:
    """Return the limits that a request states and that are refused, by JSON pointer; empty if it states none."""
    if "pointer" not in problem:
        return {}
    found: dict[str, list[str]] = {}
    for one in problem["failures"]:
        found.setdefault(f"{problem['pointer']}/{one['cap']}", []).append(overrun_text(one, problem["title"]))
    return {pointer: " ".join(texts) for pointer, texts in found.items()}
