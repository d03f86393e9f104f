"""Releases over HTTP: the plan grammar, registration, dry runs, batches, lists, and refusals."""

import copy
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import (
    Client,
    charge,
    concentrated,
    head_of,
    json_of,
    open_account,
    pages_of,
    pointers_of,
    problem_of,
    pure,
    release,
)

_DECLARED = {"type": "declared", "reference": "a proof"}
_ONE_OF_EACH = {
    "type": "sequence",
    "tags": ["everything"],
    "parts": [
        {"type": "geometric", "name": "g", "scale": "2.5", "sensitivity": 2, "cells": 3, "tags": ["a", "b"]},
        {"type": "geometric", "epsilon": "1/7"},
        {"type": "discrete_gaussian", "sigma_squared": "9.375", "cells": 4, "cells_added": 1},
        {"type": "discrete_gaussian", "rho": "0.0533"},
        {"type": "laplace", "scale": "1e3", "sensitivity": "0.5"},
        {"type": "laplace", "epsilon": "0.01"},
        {"type": "gaussian", "sigma_squared": "100"},
        {"type": "gaussian", "rho": "0.001", "sensitivity": "3/2"},
        {"type": "osgt", "sigma_squared": "4000", "m": "2.5", "sensitivity": "0.5", "cells": 2},
        {"type": "discrete_osgt", "sigma_squared": "4000", "m": "0", "cells": 2, "cells_added": 2},
        {"type": "discrete_osgt", "sigma_squared": "40/3", "m": "1/3", "sensitivity": 2, "name": "tails"},
        {"type": "group", "size": 3, "tags": ["household"], "part": {"type": "randomized_response", "epsilon": "0.2"}},
        {"type": "randomized_response", "epsilon": "0.2", "values": 4},
        {"type": "randomized_response", "epsilon": "0.2"},
        _DECLARED | {"epsilon": "0.1", "delta": "1e-9", "rho": "0.01", "rdp": [{"alpha": "2", "epsilon": "0.02"}]},
        {"type": "repeat", "count": 3, "part": {"type": "repeat", "count": 2, "part": concentrated("0.01", name="r")}},
        {
            "type": "parallel",
            "max_degree": 2,
            "parts": [
                {"type": "choice", "parts": [pure("0.1"), {"type": "sequence", "parts": [pure("0.05"), pure("0.06")]}]},
                _DECLARED | {"rho": "0.01", "add_remove": {"rho": "0.002"}},
            ],
        },
    ],
}


def test_the_whole_grammar_registers_and_reads_as_it_was_stated(client: Client) -> None:
    open_account(client, budget={"definition": "zcdp", "rho": 10, "delta": "1e-8"}, neighbouring="replace_one")
    done = release(client, _ONE_OF_EACH, name="all of it", tags=["pl94"], delta="1e-6")
    assert (done["account"], done["name"], done["state"], done["tags"]) == (
        "people",
        "all of it",
        "committed",
        ["pl94"],
    )
    assert done["delta"] == "0.000001"
    assert done["cost"]["delta"] == 1e-9
    assert _without_defaults(done["plan"]) == _as_text(_ONE_OF_EACH)
    read = json_of(client.get(f"/v1/accounts/people/releases/{done['id']}"))
    found = {"plan_tags": ["a", "b", "everything", "household"], "registered_by": "first-steward", "approved_by": []}
    assert read == done | found


def _as_text(plan: Any) -> Any:
    """Return the plan with numbers in their shortest usual text."""
    usual = {"1e3": "1000", "3/2": "1.5", "1e-9": "1e-9"}
    if isinstance(plan, dict):
        return {name: _as_text(value) for name, value in plan.items()}
    if isinstance(plan, list):
        return [_as_text(value) for value in plan]
    return usual.get(plan, plan) if isinstance(plan, str) else plan


def _without_defaults(plan: Any) -> Any:
    return {"type": "sequence", **{name: value for name, value in plan.items() if name != "type"}}


# Each document has one fault, at the given place.
_FAULTS: list[tuple[Any, list[str]]] = [
    ({"type": "geometric"}, [""]),
    ({"type": "geometric", "scale": 1, "epsilon": 1}, [""]),
    ({"type": "geometric", "scale": 0}, ["/scale"]),
    ({"type": "geometric", "scale": "nan"}, ["/scale"]),
    ({"type": "geometric", "scale": [1]}, ["/scale"]),
    ({"type": "geometric", "scale": 1, "sensitivity": 0}, ["/sensitivity"]),
    ({"type": "geometric", "scale": 1, "sensitivity": "1"}, ["/sensitivity"]),
    ({"type": "geometric", "scale": 1, "cells": 2**53 + 1}, ["/cells"]),
    ({"type": "geometric", "scale": 1, "cells_added": 2}, ["/cells_added"]),  # the field is invalid under add_remove
    ({"type": "geometric", "scale": 1, "sigma_squared": 1}, ["/sigma_squared"]),
    ({"type": "geometric", "scale": 1, "name": ""}, ["/name"]),
    ({"type": "geometric", "scale": 1, "name": "a\u0000"}, ["/name"]),
    ({"type": "geometric", "scale": 1, "name": "x" * 201}, ["/name"]),
    ({"type": "geometric", "scale": 1, "tags": ["x" * 201]}, ["/tags/0"]),
    ({"type": "geometric", "scale": 1, "tags": [str(n) for n in range(65)]}, ["/tags"]),
    ({"type": "geometric", "scale": 1, "tags": "a"}, ["/tags"]),
    ({"type": "discrete_gaussian", "rho": 1, "sensitivity": "0.5"}, ["/sensitivity"]),
    ({"type": "gaussian", "rho": 1, "sensitivity": 0}, ["/sensitivity"]),
    ({"type": "randomized_response", "epsilon": 1}, ["/type"]),
    ({"type": "randomized_response", "epsilon": 1, "values": 1}, ["/values"]),
    ({"type": "randomized_response", "epsilon": 1, "cells": 2}, ["/cells"]),
    (_DECLARED, [""]),
    (_DECLARED | {"delta": "0.1"}, [""]),
    (_DECLARED | {"epsilon": 1, "delta": 1}, ["/delta"]),
    (_DECLARED | {"epsilon": -1}, ["/epsilon"]),
    (_DECLARED | {"epsilon": 1, "sensitivity": 1}, ["/sensitivity"]),
    (_DECLARED | {"rdp": []}, ["/rdp"]),
    (_DECLARED | {"rdp": [{"alpha": 2, "epsilon": 1}, {"alpha": 1, "epsilon": 1}]}, ["/rdp/1/alpha"]),
    (_DECLARED | {"rdp": [{"alpha": 2, "epsilon": 1}, {"alpha": "2.0", "epsilon": 1}]}, ["/rdp"]),
    (_DECLARED | {"epsilon": 1, "add_remove": {"epsilon": 1}}, ["/add_remove"]),  # the relation is add_remove already
    ({"type": "declared", "epsilon": 1}, ["/reference"]),
    ({"type": "osgt", "sigma_squared": 1}, ["/m"]),
    ({"type": "osgt", "sigma_squared": 1, "m": "-1e-9"}, ["/m"]),
    ({"type": "osgt", "sigma_squared": 0, "m": 1}, ["/sigma_squared"]),
    ({"type": "osgt", "sigma_squared": 1, "m": 1, "sensitivity": 0}, ["/sensitivity"]),
    ({"type": "osgt", "sigma_squared": 1, "m": 1, "rho": 1}, ["/rho"]),
    ({"type": "osgt", "sigma_squared": 1, "m": "NaN"}, ["/m"]),
    ({"type": "discrete_osgt", "m": 1}, ["/sigma_squared"]),
    ({"type": "discrete_osgt", "sigma_squared": 1, "m": -1}, ["/m"]),
    ({"type": "discrete_osgt", "sigma_squared": "-1/3", "m": 1}, ["/sigma_squared"]),
    ({"type": "discrete_osgt", "sigma_squared": 1, "m": 1, "sensitivity": 1.5}, ["/sensitivity"]),
    ({"type": "discrete_osgt", "sigma_squared": 1, "m": 1, "sensitivity": "2"}, ["/sensitivity"]),
    ({"type": "group", "size": 0, "part": pure(1)}, ["/size"]),
    ({"type": "group", "size": -1, "part": pure(1)}, ["/size"]),
    ({"type": "group", "size": True, "part": pure(1)}, ["/size"]),
    ({"type": "group", "size": 2.0, "part": pure(1)}, ["/size"]),
    ({"type": "group", "size": 10**9 + 1, "part": pure(1)}, ["/size"]),
    ({"type": "group", "part": pure(1)}, ["/size"]),
    ({"type": "group", "size": 2, "parts": [pure(1)]}, ["/part", "/parts"]),
    ({"type": "group", "size": 10**5, "part": {"type": "group", "size": 10**4 + 1, "part": pure(1)}}, ["/part/size"]),
    ({"type": "group", "size": 2, "part": pure(0)}, ["/part/epsilon"]),
    ({"scale": 1}, [""]),
    ({"type": None}, ["/type"]),
    ("geometric", [""]),
    (None, [""]),
    ([], [""]),
    ({"type": "sequence", "parts": []}, ["/parts"]),
    ({"type": "sequence"}, ["/parts"]),
    ({"type": "sequence", "parts": pure(1)}, ["/parts"]),
    ({"type": "parallel", "parts": [pure(1)]}, ["/max_degree"]),
    ({"type": "parallel", "max_degree": 0, "parts": [pure(1)]}, ["/max_degree"]),
    ({"type": "parallel", "max_degree": 1.5, "parts": [pure(1)]}, ["/max_degree"]),
    ({"type": "choice", "max_degree": 1, "parts": [pure(1)]}, ["/max_degree"]),
    ({"type": "repeat", "count": 0, "part": pure(1)}, ["/count"]),
    ({"type": "repeat", "count": 10**12 + 1, "part": pure(1)}, ["/count"]),
    ({"type": "repeat", "count": 2, "parts": [pure(1)]}, ["/part", "/parts"]),
    ({"type": "repeat", "count": 10**9, "part": {"type": "repeat", "count": 1001, "part": pure(1)}}, ["/part/count"]),
    ({"type": "sequence", "parts": [pure(1, name="same"), pure(2, name="same")]}, ["/parts/0/name", "/parts/1/name"]),
]  # fmt: skip


def test_a_group_is_charged_for_all_its_records(client: Client) -> None:
    """Twice the distance in each of the z parts gives four times the rho; a group of one costs as much as its part."""
    open_account(client, budget={"definition": "zcdp", "rho": "0.5", "delta": "1e-6"})
    parts = [concentrated("0.01"), concentrated("0.02"), concentrated("0.03")]
    inner = {"type": "parallel", "max_degree": 2, "parts": parts}
    one = release(client, {"type": "group", "size": 1, "part": inner}, name="one")
    assert one["cost"]["zcdp"]["rho_exact"] == "0.05"
    household = {"type": "group", "size": 2, "tags": ["household"], "part": inner}
    done = release(client, household, name="a household")
    assert done["cost"]["zcdp"]["rho_exact"] == "0.2"
    assert json_of(client.get(f"/v1/accounts/people/releases/{done['id']}"))["plan"]["type"] == "group"
    balance = json_of(client.get("/v1/accounts/people/balance?delta=1e-10"))
    assert balance["spent"]["zcdp"]["rho_exact"] == "0.25"
    declared = _DECLARED | {"epsilon": "0.1", "delta": "1e-7"}
    nested = {"type": "group", "size": 2, "part": {"type": "group", "size": 2, "part": declared}}
    chained = release(client, nested, name="chained")["cost"]
    assert chained["pure"]["epsilon_exact"] == "0.4"
    delta = sum(math.exp(k / 10) for k in range(4)) * 1e-7
    assert delta * (1 - 1e-14) < chained["delta"] < delta * (1 + 1e-14)
    refused = problem_of(charge(client, {"type": "group", "size": 3, "part": inner}), "budget_exceeded")
    assert refused["requested"] == 0.45
    assert refused["detail"].endswith("the release needs 0.45")  # as the fields have it


def test_what_is_unknown_of_a_group_is_charged_to_no_account(shared_client: Client) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    orders = _DECLARED | {"rdp": [{"alpha": 2, "epsilon": "0.001"}]}
    for part in (orders, _DECLARED | {"rho": "0.001", "delta": "1e-9"}):
        answer = charge(shared_client, {"type": "group", "size": 2, "part": part})
        assert problem_of(answer, "budget_exceeded")["requested"] is None


@pytest.mark.parametrize(("plan", "pointers"), _FAULTS, ids=lambda value: str(value)[:60])
def test_plans_without_a_meaning_are_refused_where_they_err(
    shared_client: Client, plan: Any, pointers: list[str]
) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    answer = charge(shared_client, plan)
    assert sorted(pointers_of(answer)) == [f"/plan{pointer}" for pointer in pointers]
    # The same below nodes of every type, whose names pydantic puts into its own locations.
    for wrapped, prefix in _wrapped(plan):
        found = sorted(pointers_of(charge(shared_client, wrapped)))
        assert found == [f"/plan{prefix}{pointer}" for pointer in pointers]
    assert json_of(shared_client.get("/v1/accounts/people/balance"))["releases"] == 0


def _wrapped(plan: Any) -> Iterator[tuple[Any, str]]:
    yield {"type": "sequence", "parts": [pure(1, name="first"), plan]}, "/parts/1"
    if isinstance(plan, dict) and plan.get("type") == "repeat":
        return  # the product of nested repeats is a separate fault
    inner = {"type": "parallel", "max_degree": 1, "parts": [{"type": "choice", "parts": [plan]}]}
    yield {"type": "repeat", "count": 1, "part": inner}, "/part/parts/0/parts/0"


def test_a_name_may_not_be_the_path_of_another_mechanism(shared_client: Client) -> None:
    plan = {"type": "sequence", "parts": [pure(1), pure(2, name="/parts/0")]}
    answer = shared_client.post("/v1/compositions", json={"plan": plan})
    assert pointers_of(answer) == ["/plan/parts/0/name", "/plan/parts/1/name"]


@pytest.mark.parametrize(
    ("plan", "pointer"),
    [
        ({"type": "choice", "parts": [_DECLARED | {"epsilon": 1}]}, "/plan/parts/0/add_remove"),
        (
            {"type": "choice", "parts": [_DECLARED | {"epsilon": 1, "rho": 1, "add_remove": {"rho": 1}}]},
            "/plan/parts/0/add_remove",
        ),
        (
            {"type": "parallel", "max_degree": 1, "parts": [{"type": "randomized_response", "epsilon": 1}]},
            "/plan/parts/0/type",
        ),
    ],
)
def test_what_a_replaced_record_needs_below_parallel_and_choice(embedded: Client, plan: Any, pointer: str) -> None:
    open_account(embedded, neighbouring="replace_one")
    assert pointers_of(charge(embedded, plan)) == [pointer]


def test_a_rehearsal_answers_alike_and_stores_nothing(client: Client) -> None:
    open_account(client)
    head = release(client, concentrated("0.5"))["head"]
    body = {"name": "rehearsed", "plan": concentrated("0.25"), "tags": ["t"]}
    rehearsed = json_of(client.post("/v1/accounts/people/releases?dry_run=true", json=body))
    assert (rehearsed["id"], rehearsed["created_at"], rehearsed["head"]) == (None, None, head)
    assert rehearsed["remaining"]["rho"] == 0.25
    too_much = body | {"plan": concentrated("0.51")}
    problem_of(client.post("/v1/accounts/people/releases?dry_run=true", json=too_much), "budget_exceeded")
    balance = json_of(client.get("/v1/accounts/people/balance"))
    assert (balance["releases"], balance["head"], balance["remaining"]["rho"]) == (1, head, 0.5)
    assert [item["name"] for item in json_of(client.get("/v1/accounts/people/releases"))["items"]] == ["a release"]
    done = json_of(client.post("/v1/accounts/people/releases?dry_run=false", json=body), 201)
    assert (done["cost"], done["remaining"]) == (rehearsed["cost"], rehearsed["remaining"])


def test_a_batch_is_registered_whole_and_in_order(client: Client) -> None:
    open_account(client)
    batch = {"releases": [{"name": str(number), "plan": concentrated("0.25")} for number in range(3)]}
    done = json_of(client.post("/v1/accounts/people/releases/batch", json=batch), 201)["releases"]
    assert [item["name"] for item in done] == ["0", "1", "2"]
    assert [item["remaining"]["rho"] for item in done] == [0.75, 0.5, 0.25]
    assert [item["head"]["seq"] for item in done] == [2, 3, 4]
    assert head_of(client) == done[-1]["head"]


@pytest.mark.parametrize("many", [3, 300], ids=["small", "read by a helper"])
def test_a_rehearsed_batch_answers_alike_and_stores_nothing(client: Client, many: int) -> None:
    head = open_account(client)["head"]
    path = "/v1/accounts/people/releases/batch"
    releases = [{"name": str(number), "plan": concentrated(f"1/{2 * many}"), "tags": ["t"]} for number in range(many)]
    rehearsed = json_of(client.post(f"{path}?dry_run=true", json={"releases": releases}))["releases"]
    assert {(item["id"], item["created_at"], item["head"]["seq"]) for item in rehearsed} == {(None, None, 1)}
    too_many = {"releases": [*releases, {"name": "x", "plan": concentrated("0.51")}]}
    problem_of(client.post(f"{path}?dry_run=true", json=too_many), "budget_exceeded")
    assert head_of(client) == head
    done = json_of(client.post(f"{path}?dry_run=false", json={"releases": releases}), 201)["releases"]
    for name in ("name", "cost", "remaining", "tags", "state", "plan"):
        assert [item[name] for item in rehearsed] == [item[name] for item in done]


def test_a_batch_that_does_not_fit_leaves_nothing(client: Client) -> None:
    head = open_account(client)["head"]
    batch = {"releases": [{"name": "x", "plan": concentrated("0.4")}] * 3}
    refused = problem_of(client.post("/v1/accounts/people/releases/batch", json=batch), "budget_exceeded")
    assert (refused["requested"], refused["remaining"]) == (0.4, pytest.approx(0.2))
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] == head["seq"] + 1  # the refusal is a journal entry
    assert json_of(client.get("/v1/accounts/people/releases"))["items"] == []
    assert json_of(client.get("/v1/accounts/people/balance"))["spent"]["zcdp"]["rho_exact"] == "0"


@pytest.mark.parametrize(
    ("releases", "pointers"),
    [
        ([], ["/releases"]),
        ([{"name": "a", "plan": pure(1)}, {"name": "b", "plan": pure(-1)}], ["/releases/1/plan/epsilon"]),
        ([{"name": "a", "plan": pure(1), "delta": 2}], ["/releases/0/delta"]),
        ([{"plan": {"type": "choice", "parts": [{}]}}], ["/releases/0/name", "/releases/0/plan/parts/0"]),
        ([{"name": "a", "plan": {"type": "randomized_response", "epsilon": 1}}], ["/releases/0/plan/type"]),
    ],
)
def test_batches_without_a_meaning(shared_client: Client, releases: Any, pointers: list[str]) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    answer = shared_client.post("/v1/accounts/people/releases/batch", json={"releases": releases})
    assert sorted(pointers_of(answer)) == pointers


def test_releases_are_listed_by_cursor_tag_and_state(client: Client) -> None:
    open_account(client)
    for number in range(5):
        inner = {"type": "sequence", "parts": [concentrated("0.01", tags=["even" if number % 2 == 0 else "odd"])]}
        release(client, inner, name=str(number), tags=["all"] if number < 4 else [])
    assert _names(client, limit=2) == ["0", "1", "2", "3", "4"]
    assert _names(client, limit=1, tag="even") == ["0", "2", "4"]
    assert _names(client, limit=3, tag="odd", state="committed") == ["1", "3"]
    assert _names(client, limit=3, tag="all") == ["0", "1", "2", "3"]
    assert _names(client, limit=3, tag="none") == []
    assert pointers_of(client.get("/v1/accounts/people/releases?state=void")) == ["/query/state"]


def _names(client: Client, **query: Any) -> list[str]:
    pages = pages_of(client, "/v1/accounts/people/releases", **query)
    return [item["name"] for page in pages for item in page]


def test_a_release_belongs_to_its_account(client: Client) -> None:
    open_account(client, "one")
    open_account(client, "two")
    done = release(client, concentrated("0.1"), "one")
    problem_of(client.get(f"/v1/accounts/two/releases/{done['id']}"), "not_found")


_REFUSED = [
    ({"definition": "pure", "epsilon": 1}, {"type": "sequence", "parts": [pure(1), pure("1/3")]}),
    ({"definition": "zcdp", "rho": "0.5"}, {"type": "sequence", "parts": [pure(2), {"type": "laplace", "scale": 1}]}),
    ({"definition": "zcdp", "rho": "0.01"}, {"type": "repeat", "count": 9, "part": concentrated("0.3")}),
    ({"definition": "rdp", "alpha": "4.5", "epsilon": "0.7"}, {"type": "choice", "parts": [pure(2), concentrated(1)]}),
    ({"definition": "approximate", "epsilon": 1, "delta": "1e-9"}, {"type": "repeat", "count": 9, "part": pure("0.4")}),
]  # fmt: skip


@pytest.mark.parametrize(("budget", "plan"), _REFUSED, ids=str)
def test_a_refusal_says_by_how_much_the_noise_must_grow(embedded: Client, budget: Any, plan: Any) -> None:
    open_account(embedded, budget=budget)
    refused = problem_of(charge(embedded, plan), "budget_exceeded")
    assert (refused["account"], refused["definition"]) == ("people", budget["definition"])
    assert refused["requested"] > refused["remaining"] > 0
    factor = Fraction(repr(refused["noise_multiplier_that_fits"]))
    assert factor > 1
    # The factor is minimal to about one part in a million, so that a factor smaller by that is too small.
    problem_of(charge(embedded, _louder(plan, factor * (1 - Fraction(1, 2 * 10**5)))), "budget_exceeded")
    release(embedded, _louder(plan, factor))


def _louder(plan: Any, factor: Fraction) -> Any:
    """Return the plan with every noise scale multiplied: b by the factor, sigma² by its square."""
    louder = copy.deepcopy(plan)
    nodes = [louder]
    while nodes:
        node = nodes.pop()
        nodes += [*node.get("parts", []), *([node["part"]] if "part" in node else [])]
        for field, power in (("scale", 1), ("epsilon", -1), ("sigma_squared", 2), ("rho", -2)):
            if field in node:
                node[field] = str(Fraction(str(node[field])) * factor**power)
    return louder


@pytest.mark.parametrize(
    ("budget", "plan", "requested"),
    [
        ({"definition": "pure", "epsilon": 1}, concentrated("0.1"), None),  # no Gaussian has a pure epsilon
        ({"definition": "pure", "epsilon": 1}, pure("1e400"), None),  # beyond the doubles
        ({"definition": "zcdp", "rho": 1}, _DECLARED | {"rho": 2}, 2),  # a declared guarantee has no noise to increase
        ({"definition": "zcdp", "rho": 1}, _DECLARED | {"rdp": [{"alpha": 2, "epsilon": 1}]}, None),
        ({"definition": "rdp", "alpha": 3, "epsilon": 1}, _DECLARED | {"rdp": [{"alpha": 2, "epsilon": 1}]}, None),
        ({"definition": "approximate", "epsilon": 1, "delta": "1e-6"}, _DECLARED | {"epsilon": 2}, 2),
    ],
)
def test_refusals_that_no_noise_helps(embedded: Client, budget: Any, plan: Any, requested: float | None) -> None:
    open_account(embedded, budget=budget)
    refused = problem_of(charge(embedded, plan), "budget_exceeded")
    assert refused["requested"] == requested
    if plan["type"] == "declared" or (budget["definition"] == "pure" and "rho" in plan):
        assert refused["noise_multiplier_that_fits"] is None


def test_the_caps_on_declared_deltas(embedded: Client) -> None:
    declared = _DECLARED | {"epsilon": "0.1", "delta": "1e-7"}
    for name, budget in {
        "pure": {"definition": "pure", "epsilon": 1},
        "zcdp": {"definition": "zcdp", "rho": 1},
        "rdp": {"definition": "rdp", "alpha": 2, "epsilon": 1},
        "approximate": {"definition": "approximate", "epsilon": 1, "delta": "1e-6"},
    }.items():
        open_account(embedded, f"{name}-none", budget)
        refused = problem_of(charge(embedded, declared, f"{name}-none"), "budget_exceeded")
        cap = "declared_delta" if name == "approximate" else "delta"
        assert (refused["cap"], refused["requested"], refused["remaining"]) == (cap, pytest.approx(1e-7), 0)
        open_account(embedded, f"{name}-some", budget | {cap: "2e-7"})
        for _ in range(2):
            release(embedded, declared, f"{name}-some")
        problem_of(charge(embedded, declared, f"{name}-some"), "budget_exceeded")
        release(embedded, _DECLARED | {"epsilon": "0.1"}, f"{name}-some")


def test_releases_without_their_plans(client: Client) -> None:
    open_account(client)
    made = [release(client, pure("1e-3"))["id"] for _ in range(2)]
    path = "/v1/accounts/people/releases"
    for query in ("", "&with_charge=true"):
        whole = json_of(client.get(f"{path}?with_plan=true{query}"))
        brief = json_of(client.get(f"{path}?with_plan=false{query}"))
        assert [one["id"] for one in brief["items"]] == made
        assert brief["items"] == [
            {name: text for name, text in one.items() if name != "plan"} for one in whole["items"]
        ]
    one = json_of(client.get(f"{path}/{made[0]}"))
    assert json_of(client.get(f"{path}/{made[0]}?with_plan=false")) | {"plan": one["plan"]} == one
    table = client.get(f"{path}?with_plan=false", headers={"Accept": "text/csv"})
    assert table.status_code == 200
    for address in (path, f"{path}/{made[0]}"):
        assert pointers_of(client.get(f"{address}?with_plan=perhaps")) == ["/query/with_plan"]
