"""Questions of capacity over HTTP, and the releases that they foretell."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, problem_of


def month_of(number: int) -> str:
    return f"{2026 + number // 12}-{number % 12 + 1:02d}"


def charge_over(client: Client, plan: Any, periods: Any, account: str = "people", **fields: Any) -> Any:
    body = {"name": "a release", "plan": plan, "periods": periods} | fields
    return client.post(f"/v1/accounts/{account}/releases", json=body)


def ask_capacity(client: Client, plan: Any, periods: Any, account: str = "people", **named: Any) -> Any:
    body = {"plan": plan} | ({} if periods is None else {"periods": periods})
    return client.post(f"/v1/accounts/{account}/capacity", json=body, **named)


def foretells(client: Client, plan: Any, periods: Any, account: str = "people") -> int:
    """Register until a refusal; each answer before it, and what stops it, must be as the first question said."""
    asked = json_of(ask_capacity(client, plan, periods, account))
    assert asked["fits"] < 40
    for left in reversed(range(asked["fits"])):
        json_of(charge_over(client, plan, periods, account), 201)
        after = json_of(ask_capacity(client, plan, periods, account))
        assert (after["fits"], after["stopped_by"]) == (left, asked["stopped_by"])
        assert after["used"] is None or after["used"] <= 1
        assert after["used_after_one"] is None or (after["used_after_one"] <= 1) == (
            left > 0 or _elsewhere(asked, account)
        )
    problem = problem_of(charge_over(client, plan, periods, account), "budget_exceeded")
    named = ("account", "definition", "cap", "tag", "window")
    assert {name: problem["failures"][0].get(name) for name in named} == {
        name: asked["stopped_by"].get(name) for name in named
    }
    return int(asked["fits"])


def _elsewhere(asked: Any, account: str) -> bool:
    """Tell whether the account's own budget does not stop the next release: one above, or a cap on a tag, does."""
    return bool(asked["stopped_by"]["account"] != account or "tag" in asked["stopped_by"])


def on_either_database(budgets: list[dict[str, str]]) -> pytest.MarkDecorator:
    """Run a test with each budget on SQLite and with the last on PostgreSQL; the longer suite runs each on both."""
    cases = []
    for kind in ("sqlite", "postgresql"):
        for budget in budgets:
            longer = kind == "postgresql" and budget is not budgets[-1]
            marks = [pytest.mark.statistics] if longer else []
            cases.append(pytest.param(budget, kind, id=f"{kind}-{budget['definition']}", marks=marks))
    return pytest.mark.parametrize(("budget", "database_url"), cases, indirect=["database_url"])
