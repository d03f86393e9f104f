"""SafeTab plans over HTTP: they can be registered, and invalid requests are refused."""

import math
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.privacy.accounting.guarantee import guarantee
from tests.api.calls import Client, json_of, open_account, pointers_of, release

LEVELS: list[dict[str, Any]] = [{"name": "Nation", "moe": 6}, {"name": "County", "moe": "11.5"}]
TARGET = {"mechanism": "geometric", "levels": LEVELS}


@pytest.mark.parametrize("mechanism", ["geometric", "discrete_gaussian"])
def test_the_plan_is_registered_as_it_is(embedded: Client, mechanism: str) -> None:
    found = json_of(embedded.post("/v1/plans/safetab", json=TARGET | {"mechanism": mechanism}))
    budget = {"definition": "zcdp", "rho": "10"}
    open_account(embedded, budget=budget)
    registered = release(embedded, found["plan"])
    epsilons = {one["name"]: one["epsilon"] for one in found["analyses"]}
    for statement in registered["cost"]["approximate"]:
        name = "zcdp, analytic" if statement["via"] == "analytic" else statement["via"]
        assert epsilons[name] == statement["epsilon"]
    spent = json_of(embedded.get("/v1/accounts/people/balance", params={"tag": "Nation"}))["spent"]
    total = found["levels"][0]["total"]
    figure = spent["pure"]["epsilon"] if mechanism == "geometric" else spent["zcdp"]["rho"]
    assert figure == pytest.approx(total, rel=1e-12)


def test_what_was_planned_is_not_analysed_again(embedded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tight analysis of different Gaussian levels takes seconds: planning, pricing and registering share it."""
    asked: list[object] = []

    def counted(plan: object, *args: Any, **options: Any) -> Any:
        asked.append(plan)
        return guarantee(plan, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("service.api.schemas.guarantees.guarantee", counted)
    cast(FastAPI, embedded.app).state.helpers = None  # the counted computations must run in this process
    open_account(embedded, budget={"definition": "zcdp", "rho": "10"})
    target = {"levels": [{"name": "Nation", "moe": 13}, {"name": "County", "moe": 29}], "delta": "1e-7"}
    found = json_of(embedded.post("/v1/plans/safetab", json=TARGET | target))
    priced = json_of(embedded.post("/v1/compositions", json={"plan": found["plan"], "deltas": ["1e-7"]}))
    registered = release(embedded, found["plan"], delta="1e-7")
    assert len(asked) == 1
    assert registered["cost"] == priced
    assert [one["epsilon"] for one in found["analyses"][1:]] == [one["epsilon"] for one in priced["approximate"]]


def test_margins_are_met_by_the_exact_method_and_missed_by_the_printed_one(shared_client: Client) -> None:
    exact = json_of(shared_client.post("/v1/plans/safetab", json=TARGET))
    assert [level["moe"] for level in exact["levels"]] == [6, 11]
    assert all(level["coverage"] >= 0.95 for level in exact["levels"])
    assert [level["as_printed"] for level in exact["levels"]] == [None, None]
    printed = json_of(shared_client.post("/v1/plans/safetab", json=TARGET | {"method": "safetab"}))
    assert [level["coverage"] < 0.95 for level in printed["levels"]] == [True, True]
    assert printed["levels"][0]["as_printed"] == {"step_2": 3.84, "total": 4.27}
    names = {one["name"]: one["sound"] for one in printed["analyses"]}
    assert names["rdp, printed formula"] is False
    assert names["rdp"] is True


def test_a_hundred_levels_are_planned_without_the_tight_analysis(shared_client: Client) -> None:
    levels = [{"name": f"level {number}", "moe": 6 + number % 5} for number in range(100)]
    found = json_of(shared_client.post("/v1/plans/safetab", json=TARGET | {"levels": levels}))
    assert "tight" not in {one["name"] for one in found["analyses"]}
    assert len(found["plan"]["parts"]) == 100


def test_a_delta_below_the_doubles_has_every_analysis(shared_client: Client) -> None:
    found = json_of(shared_client.post("/v1/plans/safetab", json=TARGET | {"delta": "1e-400"}))
    names = {one["name"]: one["epsilon"] for one in found["analyses"]}
    # At the largest of the paper's orders, 10: log(1/delta) = 400 log 10 is divided by 9.
    assert {one["delta"] for one in found["analyses"]} == {0.0, 5e-324}  # rounded up
    assert 400 * math.log(10) / 9 < names["rdp, printed formula"] < 400 * math.log(10) / 9 + names["pure"]
    assert names["rdp"] <= names["pure"]


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"mechanism": "gaussian"}, ["/mechanism"]),
        ({"levels": []}, ["/levels"]),
        ({"levels": LEVELS * 51}, ["/levels"]),
        ({"levels": [LEVELS[0], LEVELS[0]]}, ["/levels/1/name"]),
        ({"levels": [LEVELS[0] | {"moe": -1}]}, ["/levels/0/moe"]),
        ({"levels": [LEVELS[0] | {"moe": "1e300"}]}, ["/levels/0/moe"]),
        ({"levels": [LEVELS[0] | {"weight": 1}]}, ["/levels/0/weight"]),
        (
            {"levels": [LEVELS[0] | {"moe": 0}], "mechanism": "discrete_gaussian", "method": "safetab"},
            ["/levels/0/moe"],
        ),
        ({"stability": 0}, ["/stability"]),
        ({"stability": 2.0}, ["/stability"]),
        ({"stability": 10**7}, ["/stability"]),
        ({"stage_1_fraction": "0"}, ["/stage_1_fraction"]),
        ({"stage_1_fraction": "1"}, ["/stage_1_fraction"]),
        ({"stage_1_fraction": "1e-400"}, ["/stage_1_fraction"]),
        ({"confidence": "0.9", "method": "safetab"}, ["/confidence"]),
        ({"confidence": "1"}, ["/confidence"]),
        ({"confidence": "1e-400"}, ["/confidence"]),
        ({"delta": "0"}, ["/delta"]),
        ({"budget": 1}, ["/budget"]),
    ],
)
def test_meaningless_targets_are_refused(shared_client: Client, fields: dict[str, Any], pointers: list[str]) -> None:
    assert pointers_of(shared_client.post("/v1/plans/safetab", json=TARGET | fields)) == pointers
