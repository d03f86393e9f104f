"""Spending over time: each point equals the balance right after that entry."""

from typing import Any

import pytest

from tests.api.calls import (
    Client,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)


def _history(client: Client, query: str = "", account: str = "people") -> Any:
    return json_of(client.get(f"/v1/accounts/{account}/history{query}"))


def _eventful(client: Client) -> None:
    """Return an account under another with most kinds of entries: opening, commit, hold, void, changed budget."""
    open_account(client, "agency", {"definition": "zcdp", "rho": 3})
    open_account(client, parent="agency")
    release(client, concentrated("0.1"))
    held = release(client, concentrated("0.2"), reserve_for="P1D")
    other = release(client, {"type": "discrete_gaussian", "rho": "0.3"}, reserve_for="P1D")
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/commit"))
    json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 2}}))
    json_of(client.post(f"/v1/accounts/people/releases/{other['id']}/void", json={"reason": "withdrawn"}))
    json_of(client.patch("/v1/accounts/people", json={"state": "closed"}))  # no figure changes


def test_points_are_the_balances_of_their_moments(client: Client) -> None:
    _eventful(client)
    for account in ("people", "agency"):
        history = _history(client, "", account)
        assert history["every"] == 1
        for point in history["points"]:
            then = json_of(client.get(f"/v1/accounts/{account}/balance?as_of={point['seq']}"))
            assert point["spent"] == then["spent"]["zcdp"]["rho"]
            assert point["remaining"] == then["remaining"]["rho"]
            assert point["releases"] == then["releases"]
            assert point["cap"] == float(then["budget"]["rho"])
            assert point["counted"] == pytest.approx(point["cap"] - point["remaining"])
        assert history["head"] == json_of(client.get(f"/v1/accounts/{account}/balance"))["head"]
    kinds = [point["kind"] for point in _history(client)["points"]]
    assert kinds == ["account_opened", "committed", "reserved", "reserved", "committed", "budget_changed", "voided"]
    journal = json_of(client.get("/v1/accounts/people/journal"))["items"]
    times = {item["entry"]["seq"]: item["entry"]["time"] for item in journal}
    assert all(times[point["seq"]] == point["at"] for point in _history(client)["points"])


@pytest.mark.parametrize(("asked", "every", "seqs"), [(2, 6, [1, 7]), (3, 3, [1, 4, 7]), (5, 2, [1, 3, 5, 7])])
def test_a_long_history_is_thinned_from_its_first_entry_to_its_last(
    embedded: Client, asked: int, every: int, seqs: list[int]
) -> None:
    open_account(embedded)
    for _ in range(6):
        release(embedded, concentrated("0.01"))
    json_of(embedded.patch("/v1/accounts/people", json={"state": "closed"}))
    history = _history(embedded, f"?points={asked}")
    assert (history["every"], [point["seq"] for point in history["points"]]) == (every, seqs)
    assert len(seqs) <= asked


@pytest.mark.parametrize(
    ("budget", "plan", "spent"),
    [
        ({"definition": "pure", "epsilon": 2, "delta": "1e-6"}, pure("0.5"), 0.5),
        ({"definition": "rdp", "alpha": 4, "epsilon": 2}, concentrated("0.25"), 1.0),
        ({"definition": "approximate", "epsilon": 2, "delta": "1e-6"}, pure("0.5"), 0.5),
    ],
)
def test_each_definition_has_its_own_figure(embedded: Client, budget: Any, plan: Any, spent: float) -> None:
    open_account(embedded, budget=budget)
    left = release(embedded, plan)["remaining"]["epsilon"]
    before, after = _history(embedded)["points"]
    assert (before["spent"], before["remaining"]) == (0.0, 2.0)
    assert (after["spent"], after["remaining"]) == (pytest.approx(spent), left)


def test_declared_deltas_are_added_up(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "pure", "epsilon": 2, "delta": "1e-6"})
    declared = {"type": "declared", "epsilon": "0.5", "delta": "1e-9", "reference": "a proof"}
    for _ in range(2):
        release(embedded, declared)
    assert [point["delta"] for point in _history(embedded)["points"]] == [0.0, 1e-9, 2e-9]


def test_the_picture_can_stand_beside_its_points(embedded: Client) -> None:
    open_account(embedded)
    for _ in range(5):
        release(embedded, concentrated("0.01"))
    drawn = embedded.get("/v1/accounts/people/history?points=3", headers={"Accept": "image/svg+xml"})
    both, plain = _history(embedded, "?points=3&with_picture=true"), _history(embedded, "?points=3")
    assert both.pop("picture") == drawn.text
    assert both == plain
    assert pointers_of(embedded.get("/v1/accounts/people/history?with_picture=2")) == ["/query/with_picture"]


def test_who_may_ask_and_for_what(embedded: Client) -> None:
    open_account(embedded)
    open_account(embedded, "others")
    limited = make_key(embedded, "auditor", accounts=["others"])
    assert embedded.get("/v1/accounts/others/history", headers=limited).status_code == 200
    problem_of(embedded.get("/v1/accounts/people/history", headers=limited), "forbidden")
    problem_of(embedded.get("/v1/accounts/nobody/history"), "not_found")
    for wrong in ("1", "1001", "0", "-1", "x", "nan", "1e2"):
        assert pointers_of(embedded.get(f"/v1/accounts/people/history?points={wrong}")) == ["/query/points"]
    assert pointers_of(embedded.get("/v1/accounts/people/history?point=5")) == ["/query/point"]
