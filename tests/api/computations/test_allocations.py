"""Allocation over HTTP: budgets are not exceeded, plans can be registered, contradictions are refused."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import Client, json_of, open_account, pointers_of, release

BUDGET = {"definition": "zcdp", "rho": "0.3"}
QUERIES: list[dict[str, Any]] = [{"name": "total", "weight": "1/7"}, {"name": "age", "weight": "2/7", "cells": 2}]
TARGET = {"budget": BUDGET, "mechanism": "discrete_gaussian", "queries": QUERIES}


def _allocate(client: Client, **fields: Any) -> Any:
    return json_of(client.post("/v1/calibrations/allocation", json=TARGET | fields))


@pytest.mark.parametrize("objective", ["proportional", "max_error", "weighted_error"])
@pytest.mark.parametrize(
    "budget",
    [
        {"definition": "pure", "epsilon": "1.7"},
        {"definition": "zcdp", "rho": "0.3"},
        {"definition": "rdp", "alpha": "3", "epsilon": "1"},
        {"definition": "approximate", "epsilon": "2", "delta": "1e-9"},
    ],
    ids=lambda budget: budget["definition"],
)
def test_the_plan_fits_an_account_with_that_budget(embedded: Client, budget: Any, objective: str) -> None:
    found = _allocate(embedded, budget=budget, mechanism="geometric", objective=objective)
    open_account(embedded, budget=budget)
    assert release(embedded, found["plan"])["cost"]["pure"] == found["cost"]["pure"]
    assert sum(query["share"] for query in found["queries"]) == pytest.approx(1)


def test_proportions_stay_exact(shared_client: Client) -> None:
    found = _allocate(shared_client)
    assert [query["share_exact"] for query in found["queries"]] == ["1/3", "2/3"]
    assert found["cost"]["zcdp"]["rho_exact"] == "0.3"
    assert found["queries"][0]["mechanism"]["sigma_squared"] == "5"
    assert found["queries"][1]["mechanism"]["sigma_squared"] == "5"


def test_margins_tell_the_budget_that_they_need(shared_client: Client) -> None:
    queries = [{"name": "total", "moe": 6}, {"name": "age", "moe": "11.9", "cells": 2}]
    found = json_of(
        shared_client.post("/v1/calibrations/allocation", json={"mechanism": "discrete_gaussian", "queries": queries})
    )
    assert [query["moe"] for query in found["queries"]] == [6, 11]
    single = json_of(shared_client.post("/v1/calibrations/moe", json={"mechanism": "discrete_gaussian", "moe": 6}))
    assert found["queries"][0]["mechanism"]["sigma_squared"] == single["mechanism"]["sigma_squared"]
    assert found["cost"]["zcdp"]["rho"] > single["cost"]["zcdp"]["rho"]
    back = [{"name": query["name"], "weight": query["share_exact"] or query["share"]} for query in found["queries"]]
    budget = {"definition": "zcdp", "rho": str(Fraction(repr(found["cost"]["zcdp"]["rho"])))}
    again = _allocate(
        shared_client, budget=budget, queries=[one | {"cells": c} for one, c in zip(back, (1, 2), strict=True)]
    )
    assert [query["moe"] for query in again["queries"]] == [6, 11]


@pytest.mark.parametrize(
    ("rho", "fits"), [(None, None), ("0.0451194", False), ("0.0451195", True), ("1e-9", False), ("1e6", True)]
)
def test_margins_are_held_against_a_budget(shared_client: Client, rho: str | None, fits: bool | None) -> None:
    """One cell with a margin of 6 needs rho = 0.04511941 of discrete Gaussian noise."""
    budget = None if rho is None else {"definition": "zcdp", "rho": rho}
    body = TARGET | {"queries": [{"name": "total", "moe": 6}], "budget": budget}
    body = {name: value for name, value in body.items() if value is not None}
    found = json_of(shared_client.post("/v1/calibrations/allocation", json=body))
    assert (found["queries"][0]["moe"], found["fits"]) == (6, fits)
    assert found["cost"]["zcdp"]["rho"] == pytest.approx(0.04511941, abs=1e-8)


@pytest.mark.parametrize("mechanism", ["geometric", "discrete_gaussian", "discrete_osgt", "laplace", "gaussian"])
def test_variances_are_kept(shared_client: Client, mechanism: str) -> None:
    queries = [{"name": "total", "variance": 40}, {"name": "age", "variance": "0.3", "cells": 2}]
    body = {"mechanism": mechanism, "queries": queries}
    found = json_of(shared_client.post("/v1/calibrations/allocation", json=body))
    for query, variance in zip(found["queries"], (40, 0.3), strict=True):
        told = json_of(shared_client.post("/v1/accuracy", json={"mechanism": query["mechanism"]}))["variance"]
        assert variance * (1 - 1e-9) <= told <= variance * (1 + 1e-15)


def test_offset_tails_meet_margins_and_divide_budgets(embedded: Client) -> None:
    queries = [{"name": "total", "moe": 6}, {"name": "age", "moe": "11.9", "cells": 2}]
    body = {"mechanism": "discrete_osgt", "queries": queries}
    found = json_of(embedded.post("/v1/calibrations/allocation", json=body))
    assert [query["moe"] for query in found["queries"]] == [6, 11]
    for query in found["queries"]:
        m, square = (Fraction(query["mechanism"][name]) for name in ("m", "sigma_squared"))
        assert float(m) == pytest.approx(0.67448 * float(square) ** 0.5, rel=1e-11)
        assert m * m <= Fraction("0.67448") ** 2 * square
    divided = _allocate(embedded, mechanism="discrete_osgt")
    assert divided["cost"]["zcdp"]["rho"] == pytest.approx(0.3, rel=1e-6)
    open_account(embedded, budget=BUDGET)
    release(embedded, divided["plan"])


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_continuous_margins_are_not_floored(shared_client: Client, mechanism: str) -> None:
    queries = [{"name": "income", "moe": "2.5", "sensitivity": "0.5"}]
    found = json_of(
        shared_client.post("/v1/calibrations/allocation", json={"mechanism": mechanism, "queries": queries})
    )
    assert found["queries"][0]["moe"] == pytest.approx(2.5, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"queries": []}, ["/queries"]),
        ({"queries": [{"name": str(n), "weight": 1} for n in range(101)]}, ["/queries"]),
        ({"queries": [{"name": str(n), "weight": 1} for n in range(51)], "objective": "max_error"}, ["/queries"]),
        ({"queries": [{"name": "a"}]}, [""]),
        ({"queries": [{"name": "a", "weight": 1, "moe": 1}]}, [""]),
        ({"queries": [{"name": "a", "moe": 1}, {"name": "b", "weight": 1}]}, [""]),
        ({"queries": [{"name": "a", "moe": 1}], "objective": "max_error"}, [""]),
        ({"budget": None, "queries": [{"name": "a", "weight": 1}]}, [""]),
        ({"budget": None, "queries": [{"name": "a", "moe": 1}], "objective": "max_error"}, [""]),
        ({"budget": None, "queries": [{"name": "a", "moe": -1}]}, ["/queries/0/moe"]),
        ({"budget": None, "queries": [{"name": "a", "moe": 0}], "mechanism": "gaussian"}, ["/queries/0/moe"]),
        ({"queries": [QUERIES[0], QUERIES[0]]}, ["/queries/1/name"]),
        ({"queries": [{"name": "a", "weight": 0}]}, ["/queries/0/weight"]),
        ({"queries": [{"name": "a", "weight": "1e9"}]}, ["/queries/0/weight"]),
        ({"queries": [{"name": "a", "weight": 1, "sensitivity": "1.5"}]}, ["/queries/0/sensitivity"]),
        (
            {"queries": [{"name": "a", "weight": 1, "sensitivity": "1e-9"}], "mechanism": "gaussian"},
            ["/queries/0/sensitivity"],
        ),
        ({"budget": None, "queries": [{"name": "a", "moe": "1e-200"}], "mechanism": "laplace"}, ["/queries/0"]),
        ({"queries": [{"name": "a", "weight": 1, "cells": 0}]}, ["/queries/0/cells"]),
        ({"queries": [{"name": "a", "weight": 1, "share": 1}]}, ["/queries/0/share"]),
        ({"budget": {"definition": "pure", "epsilon": "1"}}, ["/budget"]),
        ({"budget": {"definition": "zcdp", "rho": "0"}}, ["/budget/rho"]),
        ({"budget": {"definition": "zcdp", "rho": "1e300"}}, ["/budget"]),
        ({"budget": {"definition": "approximate", "epsilon": "1", "delta": "0"}}, ["/budget/delta"]),
        ({"mechanism": "osgt"}, ["/mechanism"]),
        ({"mechanism": "discrete_osgt", "objective": "max_error"}, ["/objective"]),
        ({"mechanism": "discrete_osgt", "objective": "weighted_error"}, ["/objective"]),
        (
            {"mechanism": "discrete_osgt", "queries": [{"name": str(n), "weight": 1} for n in range(11)]},
            ["/queries"],
        ),
        ({"queries": [{"name": "a", "moe": 1, "variance": 1}]}, [""]),
        ({"queries": [{"name": "a", "moe": 1}, {"name": "b", "variance": 1}]}, [""]),
        ({"queries": [{"name": "a", "variance": 1}], "objective": "max_error"}, [""]),
        ({"queries": [{"name": "a", "variance": 0}]}, ["/queries/0/variance"]),
        ({"queries": [{"name": "a", "variance": "1e31"}]}, ["/queries/0/variance"]),
        ({"queries": [{"name": "a", "variance": "NaN"}]}, ["/queries/0/variance"]),
        ({"objective": "least"}, ["/objective"]),
        ({"confidence": "1"}, ["/confidence"]),
        ({"weights": []}, ["/weights"]),
    ],
)
def test_meaningless_targets_are_refused(shared_client: Client, fields: dict[str, Any], pointers: list[str]) -> None:
    body = {name: value for name, value in (TARGET | fields).items() if value is not None}
    assert pointers_of(shared_client.post("/v1/calibrations/allocation", json=body)) == pointers
