"""Mechanisms with a threshold over HTTP: charged with their delta."""

from typing import Any

import pytest

from tests.api.calls import Client, charge, json_of, open_account, pointers_of, problem_of, release

_NOISE = {"type": "geometric", "epsilon": "0.5"}
_DELTA = 3.8245e-6  # P(1 + X >= 25) at scale 2
_AT_25 = {"threshold": {"at_least": 25}}
_BUDGETS = [
    {"definition": "pure", "epsilon": "4"},
    {"definition": "zcdp", "rho": "2"},
    {"definition": "rdp", "alpha": "8", "epsilon": "4"},
    {"definition": "approximate", "epsilon": "4", "delta": "1e-3", "declared_delta": "0"},
]


def _with_room(budget: dict[str, str], delta: str) -> dict[str, str]:
    return budget | {"declared_delta" if budget["definition"] == "approximate" else "delta": delta}


@pytest.mark.parametrize("budget", _BUDGETS, ids=lambda budget: budget["definition"])
def test_a_budget_needs_room_for_its_delta(embedded: Client, budget: dict[str, str]) -> None:
    cap = "declared_delta" if budget["definition"] == "approximate" else "delta"
    open_account(embedded, "none", budget)
    open_account(embedded, "little", _with_room(budget, "3e-6"))
    open_account(embedded, "enough", _with_room(budget, "1e-5"))
    for account, remaining in (("none", 0), ("little", 3e-6)):
        refused = problem_of(charge(embedded, _NOISE | _AT_25, account), "budget_exceeded")
        (failure,) = refused["failures"]
        assert failure["cap"] == cap
        assert failure["requested"] == pytest.approx(_DELTA, rel=1e-4)
        assert failure["remaining"] == pytest.approx(remaining)
        assert refused["noise_multiplier_that_fits"] is None  # more noise carries more keys over the threshold
        release(embedded, _NOISE, account)
    done = [release(embedded, _NOISE | _AT_25, "enough") for _ in range(2)]
    assert [one["cost"]["delta"] for one in done] == [pytest.approx(_DELTA, rel=1e-4)] * 2
    problem_of(charge(embedded, _NOISE | _AT_25, "enough"), "budget_exceeded")
    balance = json_of(embedded.get("/v1/accounts/enough/balance"))
    assert balance["spent"]["delta"] == pytest.approx(2 * _DELTA, rel=1e-4)


def test_a_document_is_answered_as_it_was_sent(client: Client) -> None:
    open_account(client, budget=_with_room(_BUDGETS[1], "1e-3"))
    lattice = {"sensitivity": "0.5", "granularity": "0.25", "threshold": {"at_least": "20.5"}}
    for plan in (_NOISE | _AT_25, _NOISE | lattice, {"type": "group", "size": 2, "part": _NOISE | _AT_25}):
        done = release(client, plan)
        assert done["plan"] == plan
        assert json_of(client.get(f"/v1/accounts/people/releases/{done['id']}"))["plan"] == plan
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"threshold": {"at_least": 0}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": -3}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": "0"}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": "2.5"}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": 2.5}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": "1", "keys": 2}}, "/plan/threshold/keys"),
        ({"threshold": {"at_least": "NaN"}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": "ten"}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": None}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": True}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": 2**53 + 1}}, "/plan/threshold/at_least"),
        ({"threshold": {"at_least": [5]}}, "/plan/threshold/at_least"),
        ({"threshold": {}}, "/plan/threshold/at_least"),
        ({"threshold": 5}, "/plan/threshold"),
        ({"threshold": [5]}, "/plan/threshold"),
        ({"granularity": "0.5", "threshold": {"at_least": "2.25"}}, "/plan/threshold/at_least"),
        ({"granularity": "0.5", "threshold": {"at_least": "1e40"}}, "/plan/threshold/at_least"),
        ({"type": "laplace", **_AT_25}, "/plan/threshold"),
        ({"type": "gaussian", "epsilon": None, "rho": "0.1", **_AT_25}, "/plan/threshold"),
    ],
)
def test_meaningless_thresholds_are_refused(shared_client: Client, fields: dict[str, Any], pointer: str) -> None:
    plan = {name: value for name, value in (_NOISE | fields).items() if value is not None}
    assert pointers_of(shared_client.post("/v1/compositions", json={"plan": plan})) == [pointer]


def test_a_group_and_a_cap_are_charged_for_more_records(embedded: Client) -> None:
    """Another value is a record less and a record more: at least twice the delta, or that of two records in one key."""
    budget = _with_room(_BUDGETS[0], "1e-3")
    open_account(embedded, budget=budget, caps=[{"tag": "race", "budget": budget}])
    plan = _NOISE | _AT_25 | {"tags": ["race"]}
    done = release(embedded, plan)
    both = json_of(embedded.post("/v1/compositions", json={"plan": {"type": "group", "size": 2, "part": plan}}))
    assert both["delta"] == pytest.approx(2 * done["cost"]["delta"], rel=1e-9)
    (cap,) = json_of(embedded.get("/v1/accounts/people/balance"))["caps"]
    assert cap["remaining"]["delta"] == pytest.approx(1e-3 - both["delta"], rel=1e-12)


def test_capacity_counts_the_delta(embedded: Client) -> None:
    open_account(embedded, budget=_with_room({"definition": "pure", "epsilon": "400"}, "1e-5"))
    found = json_of(embedded.post("/v1/accounts/people/capacity", json={"plan": _NOISE | _AT_25}))
    assert found["fits"] == 2
    assert found["stopped_by"]["cap"] == "delta"
