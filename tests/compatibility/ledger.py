"""The ledger of the fixtures: every kind of entry, state, mechanism, node and budget, under both relations."""

from itertools import product
from typing import Any

import pytest

from service.ledger.accounts import cap_changes, caps
from service.ledger.draws.retention import remove_noisy
from service.ledger.releases import charges, preparation
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.recompute import recompute
from service.privacy.mechanisms import MECHANISMS
from service.privacy.plans.notation import write_plan
from tests.api.calls import Answer, Client, charge, json_of, open_account, operators_key, problem_of, release
from tests.ledger.charging import half_price
from tests.ledger.ledgers import Clock, everything
from tests.privacy.mechanisms.examples import examples

BUDGETS: tuple[dict[str, str], ...] = (
    {"definition": "pure", "epsilon": "40", "delta": "1e-9"},
    {"definition": "zcdp", "rho": "23/2", "delta": "1e-9"},
    {"definition": "rdp", "alpha": "5/2", "epsilon": "31", "delta": "1e-9"},
    {"definition": "approximate", "epsilon": "60", "delta": "1e-5", "declared_delta": "1e-9"},
)
RELATIONS = ("add_remove", "replace_one")
_COUNTS = [54571, 182265, 27457, 22915, 0]
_SEX_BY_AGE = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]


def mechanisms(relation: str) -> list[dict[str, Any]]:
    """Each type of mechanism in the ways in which it can be stated, or else as the examples of its tests state it."""
    replaced = relation == "replace_one"
    moved = {"cells": 3, "cells_added": 2} if replaced else {"cells": 3}
    declared = {"type": "declared", "reference": "a proof, été"}
    found: list[dict[str, Any]] = [
        {"type": "geometric", "epsilon": "1/7"},
        {"type": "geometric", "scale": "12.5", "sensitivity": "7/4", "granularity": "1/4", **moved},
        {"type": "discrete_gaussian", "rho": "0.0123", "sensitivity": 2},
        {"type": "discrete_gaussian", "sigma_squared": "1e3", "granularity": "0.5", **moved},
        {"type": "laplace", "epsilon": "0.05", "sensitivity": "1/3"},
        {"type": "laplace", "scale": "90", **moved},
        {"type": "gaussian", "rho": "1/300"},
        {"type": "gaussian", "sigma_squared": "55.5", "sensitivity": "0.75", **moved},
        {"type": "osgt", "sigma_squared": "400", "m": "3", **moved},
        {"type": "discrete_osgt", "sigma_squared": "900", "m": "12.5", "sensitivity": "0.5", "granularity": "0.5"},
        declared | {"epsilon": "0.01", "delta": "1e-12"},
        declared | {"rho": "0.002", "rdp": [{"alpha": "2", "epsilon": "0.003"}, {"alpha": "8", "epsilon": "0.02"}]},
    ]
    if replaced:
        found.append({"type": "randomized_response", "epsilon": "0.2", "values": 5})
        found.append(declared | {"epsilon": "0.02", "add_remove": {"epsilon": "0.01"}})
    found += [
        {"type": "geometric", "scale": "12.5", "threshold": {"at_least": 900}, **moved},
        {"type": "discrete_gaussian", "sigma_squared": "400", "granularity": "0.5", "threshold": {"at_least": "299.5"}},
    ]
    stated = {one["type"] for one in found}
    found += [
        write_plan(example)
        for name, kind in MECHANISMS.items()
        if name not in stated
        for example in examples(kind)
        if not any(example.faults(replaced=replaced, divided=False))
    ]
    return [one | {"name": f"m{number}", "tags": ["m", one["type"]]} for number, one in enumerate(found)]


def nodes(relation: str) -> list[dict[str, Any]]:
    """Each type of node, some within others, with partitions by name, by number, and undeclared."""
    one: dict[str, Any] = {"type": "geometric", "epsilon": "0.02"}
    other: dict[str, Any] = {"type": "discrete_gaussian", "sigma_squared": "400"}
    two = [one | {"name": "a"}, other | {"name": "b", "tags": ["été", "b"]}]
    choice = {"type": "choice", "parts": [two[0], {"type": "sequence", "parts": [two[1], one | {"name": "c"}]}]}
    return [
        {"type": "sequence", "parts": two, "tags": ["s"]},
        {"type": "parallel", "max_degree": 2, "parts": [*two, one | {"name": "c"}]},
        {"type": "repeat", "count": 4, "part": choice, "partitions": ["01", "02", "été"]},
        {"type": "group", "size": 3, "part": {"type": "sequence", "parts": two}},
        {"type": "choice", "parts": [{"type": "repeat", "count": 2, "part": part} for part in two], "partitions": 3},
        {"type": "sequence", "parts": [{"type": "group", "size": 2, "part": choice}, other | {"partitions": 7}]},
    ]


def fill(client: Client, database: Database, time: Clock) -> None:
    """Fill an empty ledger; what was drawn in it before its last day has no noisy counts any more."""
    everything(database, time)
    for budget, relation in product(BUDGETS, RELATIONS):
        _charge_all(client, budget, relation)
    _settle(client, time)
    _draw(client)
    time.forward(24)
    while remove_noisy(database, clock.now(), clock.now()):
        pass
    _draw_again(client)
    _price_again(client, database)
    _cap(client)
    _price_under_caps_again(client, database)
    _count_by_periods(client, database, time)
    _allot(client)
    _approve_by_several(client)


def _charge_all(client: Client, budget: dict[str, str], relation: str) -> None:
    """Charge every plan to an account under another one; a budget refuses what is unbounded in its definition."""
    name = f"{budget['definition']}-{relation}"
    top = f"{relation}-{budget['definition']}".replace("_", "-")
    open_account(client, top, {"definition": "approximate", "epsilon": 400, "delta": "1e-3", "declared_delta": "1e-6"}
                 if budget["definition"] == "approximate" else budget, neighbouring=relation)  # fmt: skip
    open_account(client, name, budget, neighbouring=relation, parent=top, description="of every plan")
    statuses = set()
    for number, plan in enumerate(mechanisms(relation) + nodes(relation)):
        statuses.add(charge(client, plan, name, name=f"n°{number}", tags=["all"], delta="1e-9").status_code)
    assert statuses <= {201, 409}
    problem_of(charge(client, {"type": "geometric", "epsilon": "1000"}, name), "budget_exceeded")


def _act(client: Client, account: str, of: Any, act: str, body: Any = None, **headers: str) -> Answer:
    return client.post(f"/v1/accounts/{account}/releases/{of['id']}/{act}", json=body, headers=headers)


def _settle(client: Client, time: Clock) -> None:
    """Leave releases in every state, by every way to it."""
    one = {"type": "geometric", "epsilon": "0.01", "tags": ["settled"]}
    open_account(client, "region", {"definition": "pure", "epsilon": 9}, neighbouring="replace_one")
    open_account(client, "states", {"definition": "zcdp", "rho": "1.5"}, neighbouring="replace_one", parent="region",
                 approval_above="0.001")  # fmt: skip
    second = operators_key(client, "steward", "the second")
    body = {"releases": [{"name": f"held {n}", "plan": one, "reserve_for": "PT6H"} for n in range(4)]}
    held = json_of(client.post("/v1/accounts/states/releases/batch", json=body), 201)["releases"]
    json_of(_act(client, "states", held[0], "commit"))
    json_of(_act(client, "states", held[1], "void", {"reason": "withdrawn, été"}))
    large = one | {"epsilon": "0.3"}
    proposed = [release(client, large, "states", reserve_for="P9D") for _ in range(2)]
    proposed += [release(client, large, "states") for _ in range(2)]
    for of in proposed[::2]:
        json_of(_act(client, "states", of, "approve", {"reason": "agreed, été"}, **second))
    board = operators_key(client, "approver", "the board")
    waits = json_of(client.patch("/v1/accounts/states", json={"budget": {"definition": "zcdp", "rho": "9"}}), 202)
    refusal = {"proposal": waits["proposed_change"]["seq"], "reason": "not this year, été"}
    json_of(client.post("/v1/accounts/states/reject", json=refusal, headers=board))
    for rho in ("7/4", "2"):  # the second change waits for somebody still
        wider = {"budget": {"definition": "zcdp", "rho": rho}, "reason": f"room for {rho}"}
        json_of(client.patch("/v1/accounts/states", json=wider), 202)
        if rho == "7/4":
            json_of(client.patch("/v1/accounts/states", json=wider | {"reason": "agreed"}, headers=second))
    json_of(client.patch("/v1/accounts/region", json={"state": "closed", "reason": "the survey ended"}))
    problem_of(charge(client, one, "states"), "account_closed")
    json_of(client.patch("/v1/accounts/region", json={"state": "open", "reason": "a supplement"}))
    json_of(client.patch("/v1/accounts/states", json={"approval_above": "1/5000", "reason": "the board's wish"}))
    time.forward(7)
    release(client, one | {"epsilon": "1/1000"}, "states")  # which lets the others expire
    open_account(client, "former", {"definition": "pure", "epsilon": 1})
    release(client, one, "former", reserve_for="P30D")
    json_of(client.patch("/v1/accounts/former", json={"state": "closed"}))


def _draw(client: Client) -> None:
    """Draw and tabulate, with choices, turns and partitions."""
    drawn_budget = {"definition": "approximate", "epsilon": 400, "delta": "1e-6", "declared_delta": "1e-9"}
    open_account(client, "drawn", drawn_budget)
    total = {"type": "geometric", "name": "total", "epsilon": "0.4", "partitions": 3}
    steps = [{"type": "geometric", "name": f"by age {n}", "scale": "5/2"} for n in range(2)]
    choice = {"type": "choice", "parts": [total | {"name": "short"}, {"type": "sequence", "parts": steps}]}
    plan = {"type": "sequence", "parts": [total, {"type": "repeat", "count": 3, "part": choice}]}
    of = release(client, plan, "drawn", name="tables", tags=["drawn"])
    for mechanism, partition, turn in (
        *(("total", partition, 0) for partition in ("01", "02", "été")),
        *(("short", partition, 0) for partition in ("01", "02")),
        *((f"by age {n}", "01", 1) for n in range(2)),
        ("by age 0", "02", 1),
        ("short", "02", 2),
        ("by age 1", "wholly another", 2),
    ):
        where = {"mechanism": mechanism, "partition": partition, "repetition": turn, "counts": _COUNTS}
        json_of(_act(client, "drawn", of, "draws", where), 201)
    taken = {"mechanism": "short", "partition": "01", "repetition": 1, "counts": _COUNTS}
    problem_of(_act(client, "drawn", of, "draws", taken), "already_drawn")
    whole = {"mechanism": {"type": "discrete_gaussian", "sigma_squared": "9.375"}, "counts": _COUNTS}
    json_of(client.post("/v1/accounts/drawn/draws", json=whole | {"name": "whole", "tags": ["drawn"]}), 201)
    _tabulate(client)


def _tabulate(client: Client) -> None:
    levels = [{"name": "Nation", "moe": 6}, {"name": "County", "moe": 40}]
    question = {"mechanism": "geometric", "levels": levels, "stability": 2}
    of = release(client, json_of(client.post("/v1/plans/safetab", json=question))["plan"], "drawn", name="SafeTab")
    for level in ("Nation", "County"):
        groups: list[dict[str, Any]] = [
            {"group": f"{level}/{size}", "sex_by_age": [[size * count for count in row] for row in _SEX_BY_AGE]}
            for size in (0, 1, 10, 40, 900)
        ]
        groups.append({"group": f"{level}/été", "total_only": True, "total": 17})
        for some in (groups[:4], groups[4:]):
            json_of(_act(client, "drawn", of, "tabulations", {"level": level, "groups": some}), 201)


def _draw_again(client: Client) -> None:
    """Repeat stored draws: of every law, on a lattice, as a histogram, and one of many equal counts."""
    every: list[tuple[dict[str, Any], list[Any]]] = [
        ({"type": "geometric", "epsilon": "0.5"}, _COUNTS),
        ({"type": "geometric", "scale": "3", "sensitivity": "1.75", "granularity": "0.25"}, ["100.5", "7", "0.25"]),
        ({"type": "discrete_gaussian", "sigma_squared": "1e6"}, _COUNTS),
        ({"type": "discrete_osgt", "sigma_squared": "1600", "m": "18"}, _COUNTS),
        ({"type": "geometric", "epsilon": "30"}, [0] * 500),
    ]
    for mechanism, counts in every:
        body = {"name": "kept", "mechanism": mechanism, "counts": counts}
        json_of(client.post("/v1/accounts/drawn/draws", json=body), 201)
    keyed: dict[str, Any] = {"name": "keys", "keys": ["é", "a", "b"], "counts": [5, 1, 900]}
    keyed["mechanism"] = {"type": "geometric", "epsilon": "0.5", "threshold": {"at_least": 100}}
    json_of(client.post("/v1/accounts/drawn/draws", json=keyed), 201)
    histogram = {
        "name": "a histogram",
        "mechanism": {"type": "geometric", "epsilon": "0.5"},
        "dimensions": [{"name": "county", "values": ["001", "003"]}, {"name": "sex", "values": ["f", "m"]}],
        "counts": [512, 31, 498, 27],
        "margins": [["county"], []],
    }
    json_of(client.post("/v1/accounts/drawn/histograms", json=histogram), 201)
    _tabulate(client)
    metadata = {"data_curators": ["Bureau", "Büro"], "intended_use": "Redistricting"}
    json_of(client.patch("/v1/accounts/drawn", json={"metadata": metadata}))
    json_of(client.patch("/v1/accounts/drawn", json={"metadata": {"intended_use": None, "notes": "été"}}))


def _price_again(client: Client, database: Database) -> None:
    """Have releases that were priced too low, committed and held, and price them right."""

    open_account(client, "older", {"definition": "rdp", "alpha": "3", "epsilon": 9}, neighbouring="replace_one")
    open_account(client, "older-part", {"definition": "zcdp", "rho": 2}, neighbouring="replace_one", parent="older")
    one = {"type": "discrete_gaussian", "rho": "0.01"}
    with pytest.MonkeyPatch.context() as older:
        older.setattr(preparation, "price", half_price)
        older.setattr(charges, "ACCOUNTANT", "0")
        for fields in ({}, {"reserve_for": "P9D"}, {"reserve_for": "P9D"}):
            of = release(client, one, "older-part", name="by an older accountant", **fields)
    for name in ("older", "older-part"):
        found = recompute(database, name, apply=True)
        assert len(found.prices) == 3, found
    json_of(_act(client, "older-part", of, "void", {"reason": "a mistake"}))


def _cap(client: Client) -> None:
    """Charge releases under caps of each definition, at opening and later, in every state, and refuse one."""
    opened = [{"tag": f"t{number}", "budget": budget} for number, budget in enumerate(BUDGETS)]
    open_account(client, "capped", {"definition": "zcdp", "rho": 9}, caps=opened, approval_above="0.5")
    open_account(client, "capped-part", {"definition": "approximate", "epsilon": 90, "delta": "1e-6"}, parent="capped",
                 caps=[{"tag": "t1", "budget": BUDGETS[1]}])  # fmt: skip
    tagged = {"type": "geometric", "epsilon": "0.05", "tags": ["t0", "t1", "t2", "t3"], "cells_replaced": 2}
    unread = {"type": "discrete_gaussian", "rho": "0.01", "reads": "nothing capped"}
    parts = {"type": "parallel", "max_degree": 2, "parts": [tagged, tagged | {"cells": 2}], "tags": ["été"]}
    for number, plan in enumerate((tagged, unread, parts, {"type": "sequence", "parts": [tagged, unread]})):
        release(client, plan, "capped-part", name=f"n°{number}", tags=["all"] if number else ["all", "t1"])
    held = [release(client, tagged, "capped-part", reserve_for="P30D") for _ in range(3)]
    json_of(_act(client, "capped-part", held[0], "commit"))
    json_of(_act(client, "capped-part", held[1], "void", {"reason": "a mistake"}))
    large = {"type": "discrete_gaussian", "rho": "0.6", "tags": ["t1"]}
    proposed = release(client, large, "capped-part", reserve_for="P30D")
    assert proposed["state"] == "proposed"
    problem_of(charge(client, large | {"rho": "3"}, "capped-part"), "budget_exceeded")
    greater = {"caps": [{"tag": "t0", "budget": BUDGETS[0] | {"epsilon": "41"}}, {"tag": "late", "budget": BUDGETS[1]}]}
    json_of(client.patch("/v1/accounts/capped", json=greater), 202)
    second = operators_key(client, "steward", "the second of caps")
    json_of(client.patch("/v1/accounts/capped", json=greater | {"reason": "agreed"}, headers=second))
    waiting = {"caps": [{"tag": "t1", "budget": BUDGETS[1] | {"rho": "12"}}]}
    json_of(client.patch("/v1/accounts/capped", json=waiting), 202)


def _price_under_caps_again(client: Client, database: Database) -> None:
    """Have prices under caps, and of what a later cap counts, that were too low, and set them right."""
    open_account(client, "older-caps", {"definition": "zcdp", "rho": 2})
    one = {"type": "discrete_gaussian", "rho": "0.01", "tags": ["t"]}
    with pytest.MonkeyPatch.context() as older:
        for module in (preparation, caps):
            older.setattr(module, "price", half_price)
        for module in (charges, cap_changes):
            older.setattr(module, "ACCOUNTANT", "0")
        for fields in ({}, {"reserve_for": "P30D"}):
            release(client, one, "older-caps", name="before the cap", **fields)
        later = {"caps": [{"tag": "t", "budget": BUDGETS[1]}]}
        json_of(client.patch("/v1/accounts/older-caps", json=later))
        for fields in ({}, {"reserve_for": "P30D"}):
            release(client, one, "older-caps", name="under the cap", **fields)
    found = recompute(database, "older-caps", apply=True)
    assert (len(found.prices), len(found.under_caps)) == (4, 4), found


def _count_by_periods(client: Client, database: Database, time: Clock) -> None:
    """Charge releases to windows in every state, by both forms of participation and in lines; refuse one."""
    panel = {"calendar": "month", "participation": {"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}}
    open_account(client, "panels", {"definition": "approximate", "epsilon": 40, "delta": "1e-6"}, periods=panel)
    days = {"calendar": "day", "participation": {"offsets": [0]}}
    open_account(client, "days", {"definition": "zcdp", "rho": 3}, periods=days, parent="panels", approval_above="0.5")
    some = {"calendar": "quarter", "participation": {"any": 2}}
    open_account(client, "quarters", {"definition": "rdp", "alpha": "3", "epsilon": 9}, periods=some)
    open_account(client, "timeless", {"definition": "pure", "epsilon": 9}, parent="quarters")
    one = {"type": "discrete_gaussian", "rho": "0.01"}
    for periods in ("all", {"from": "2029-12-30", "to": "2030-01-02"}, {"list": ["2030-01-01", "2031-02-28"]}):
        release(client, one, "days", periods=periods)
    for periods in ("all", {"from": "2029-Q4", "to": "2030-Q2"}, {"list": ["2030-Q1"]}):
        release(client, one, "quarters", periods=periods)
    release(client, {"type": "geometric", "epsilon": "0.1"}, "timeless")
    for account, period in (("days", "2030-01-02"), ("quarters", "2030-Q2")):
        held = [release(client, one, account, periods={"list": [period]}, reserve_for="P30D") for _ in range(3)]
        json_of(_act(client, account, held[0], "commit"))
        json_of(_act(client, account, held[1], "void", {"reason": "a mistake"}))
        release(client, one, account, periods={"list": [period]}, reserve_for="PT1H")
    large = {"type": "discrete_gaussian", "rho": "0.6"}
    proposed = release(client, large, "days", periods={"list": ["2030-01-03"]}, reserve_for="P30D")
    assert proposed["state"] == "proposed"
    too_much = charge(client, large | {"rho": "3"}, "days", periods={"list": ["2030-01-03"]})
    problem_of(too_much, "budget_exceeded")
    with pytest.MonkeyPatch.context() as older:
        older.setattr(preparation, "price", half_price)
        older.setattr(charges, "ACCOUNTANT", "0")
        for fields in ({}, {"reserve_for": "P30D"}):
            release(client, one, "quarters", periods={"list": ["2030-Q3"]}, **fields)
    time.forward(2)
    release(client, one, "quarters", periods={"list": ["2030-Q4"]})
    release(client, one, "days", periods={"list": ["2030-01-04"]})
    assert len(recompute(database, "quarters", apply=True).prices) == 2


def _allot(client: Client) -> None:
    """Allot budgets of each definition that can be counted above; raise, lower, close and open them again."""
    zcdp = {"definition": "zcdp", "rho": 2}
    cap = {"tag": "income", "budget": {"definition": "zcdp", "rho": 20}}
    open_account(client, "year", zcdp, approval_above="0.5", caps=[cap])
    second = operators_key(client, "steward", "the second of divisions")
    budgets = {"north": zcdp | {"rho": "0.4"}, "south": {"definition": "pure", "epsilon": "0.5"}}
    for name, budget in budgets.items():
        open_account(client, name, budget, parent="year", funding="allotted")
        release(client, {"type": "geometric", "epsilon": "0.1"}, name)
    open_account(client, "office", zcdp | {"rho": "0.1"}, parent="north", funding="allotted")
    raised = {"budget": zcdp | {"rho": "0.6"}}
    json_of(client.patch("/v1/accounts/north", json=raised), 202)
    json_of(client.patch("/v1/accounts/north", json=raised, headers=second))
    json_of(client.patch("/v1/accounts/north", json={"budget": zcdp | {"rho": "0.3"}}))
    for state in ("closed", "open"):
        json_of(client.patch("/v1/accounts/south", json={"state": state}), 202 if state == "open" else 200)
    json_of(client.patch("/v1/accounts/south", json={"state": "open"}, headers=second))
    json_of(client.patch("/v1/accounts/office", json={"state": "closed"}))
    beyond = {"name": "west", "unit": "person", "neighbouring": "add_remove", "parent": "year"}
    refused = client.post("/v1/accounts", json=beyond | {"budget": zcdp | {"rho": 9}, "funding": "allotted"})
    assert refused.status_code in {409, 422}, refused.text


def _approve_by_several(client: Client) -> None:
    """Approve releases and changes by the rules of two accounts, which change meanwhile; leave some waiting."""
    zcdp = {"definition": "zcdp", "rho": 2}
    persons = {name: operators_key(client, "approver", name) for name in ("member a", "member b", "member c, été")}
    board = {"at_least": 2, "of": list(persons)}
    open_account(client, "bureau", zcdp, approval_above="0.1", approvers={"at_least": 1, "of": ["member a"]})
    open_account(client, "survey", zcdp, approval_above="0.001", parent="bureau")
    json_of(client.patch("/v1/accounts/survey", json={"approvers": board, "reason": "the board, été"}))
    small, large = ({"type": "discrete_gaussian", "rho": rho} for rho in ("0.01", "0.2"))
    proposed = [release(client, plan, "survey", reserve_for="P30D") for plan in (small, small, large, large)]
    given = (("member a",), ("member a", "member b"), tuple(persons), ("member b",))
    for of, names in zip(proposed, given, strict=True):
        for name in names:
            _act(client, "survey", of, "approve", {"reason": f"by {name}"}, **persons[name])
    assert [json_of(client.get(f"/v1/accounts/survey/releases/{of['id']}"))["state"] for of in proposed] == [
        "proposed", "reserved", "reserved", "proposed"
    ]  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"budget": zcdp | {"rho": "5/2"}},
        {"approvers": {"at_least": 3}},
        {"budget": zcdp | {"rho": "3"}},
    ]
    for change, names in zip(changes, (("member a", "member b"), ("member a", "member b"), ("member b",)), strict=True):
        for headers in ({}, *(persons[name] for name in names)):
            answer = client.patch("/v1/accounts/survey", json=change | {"reason": "as agreed"}, headers=headers)
            assert answer.status_code in {200, 202}, answer.text
    assert json_of(client.get("/v1/accounts/survey"))["proposed_change"]["approval"]["approved_by"] == ["member b"]
