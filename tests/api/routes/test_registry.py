"""Registry entries: they follow the registry's own schema, and agree with the ledger."""

import math
from fractions import Fraction
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from fastapi.testclient import TestClient

from service.api.publication import registry_entry
from service.api.publication.registry_entry import TIERS
from service.api.routes.registry import YAML
from service.api.schemas.metadata import Metadata
from service.ledger.releases import preparation
from service.ledger.verification.recompute import recompute
from service.privacy.accounting.pricing import Price
from tests.api.calls import (
    Client,
    json_of,
    make_key,
    open_account,
    problem_of,
    pure,
    release,
)
from tests.oracles import files

_SCHEMA = files.registry_schema()
_VALIDATOR = jsonschema.Draft202012Validator(_SCHEMA, format_checker=jsonschema.FormatChecker())
_SECTIONS: dict[str, Any] = _SCHEMA["properties"]["deployment"]["properties"]
_LEAVES = {name: leaf for section in _SECTIONS.values() for name, leaf in section["properties"].items()}

_BASIC = {
    "data_curators": ["U.S. Census Bureau"],
    "intended_use": "Drawing districts of equal population",
    "data_product_type": "Summary statistics",
    "data_product_region": "United States",
    "data_product_sector": "Government",
    "description": "Tables of persons by race, ethnicity and voting age",
    "publication_date": "2021-08-12",
}
_SECOND = {"model_name": "Central", "data_source_type": "Static", "access_type": "Non-interactive"}
_THIRD = {
    "data_domain": "All tables of persons in the housing units and group quarters of the 50 states",
    "unprotected_quantities": "- total population of each state\n- housing units of each block",
    "actors": "The Bureau sees the data; everybody sees the tables.",
    "post_processing": "Non-negative integers that add up over geographies",
    "preprocessing_and_hyperparameter_tuning": "Tuned on the data of 2010",
    "justification": "Accuracy targets of the redistricting data program",
}


def _entry(client: Client, address: str, **parameters: str) -> Any:
    """Return the entry, which follows the schema in both of its forms."""
    answer = client.get(f"{address}/registry-entry", params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == YAML
    entry = yaml.safe_load(answer.text)
    _VALIDATOR.validate(entry)
    same = client.get(f"{address}/registry-entry", params=parameters, headers={"Accept": "application/json"})
    assert same.headers["content-type"] == "application/json"
    assert same.json() == entry
    assert list(same.json()["deployment"]) == [section for section in _SECTIONS if section in entry["deployment"]]
    return entry


def _describe(client: Client, address: str, **metadata: Any) -> None:
    json_of(client.patch(address, json={"metadata": metadata}))


def _open(client: Client, **budget: Any) -> str:
    open_account(client, budget=budget, neighbouring="replace_one")
    _describe(client, "/v1/accounts/people", **_BASIC)
    return "/v1/accounts/people"


# The schema


def test_metadata_are_what_the_ledger_cannot_know_in_the_schemas_words() -> None:
    known = {"variant_name", "privacy_unit", "privacy_parameters"}
    assert Metadata.model_fields.keys() - {"url_slug"} == _LEAVES.keys() - known
    for name, field in Metadata.model_fields.items():
        kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
        allowed = [value for kind in kinds for value in get_args(kind) if isinstance(value, str)]
        if "enum" in _LEAVES.get(name, {}):
            assert allowed == _LEAVES[name]["enum"], name


def test_the_sections_and_what_they_require_are_the_schemas() -> None:
    assert list(registry_entry._SECTIONS) == list(_SECTIONS)
    for section, model in registry_entry._SECTIONS.items():
        assert model.model_fields.keys() == _SECTIONS[section]["properties"].keys()
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        assert required >= set(_SECTIONS[section].get("required", ())) - {"registry_authors"}


def test_the_tiers_are_the_schemas() -> None:
    assert {name for name, leaf in _LEAVES.items() if leaf.get("tier") == 2} == set(TIERS[2])
    optional = {"privacy_parameters_details", "data_source_type_details", "access_type_details"}
    assert {name for name, leaf in _LEAVES.items() if leaf.get("tier") == 3} == {*TIERS[3], *optional}


# Releases


def test_the_redistricting_release_goes_there_and_back(client: TestClient) -> None:
    """The release is registered from the Bureau's allocation; the entry has the Bureau's published figures."""
    census = files.allocation()
    scale = Fraction(census["global_scale"])
    parts = [
        {
            "type": "discrete_gaussian",
            "name": f"{level['geolevel']}/{query['name']}",
            "sigma_squared": str(scale**2 / (Fraction(level["proportion"]) * Fraction(query["proportion"]))),
        }
        for level in census["levels"]
        for query in level["queries"]
    ]
    account = _open(client, definition="zcdp", rho="2.56")
    made = release(client, {"type": "sequence", "parts": parts}, name="2020 P.L. 94-171")
    at = f"{account}/releases/{made['id']}"
    _describe(client, at, **_SECOND, **_THIRD, notes="as published", registry_authors=["Somebody"])
    entry = _entry(client, at)
    assert (entry["tier"], entry["status"]) == (3, "Draft")
    assert entry["url_slug"] == f"people-2020-p-l-94-171-{made['id'][:8]}"
    said = entry["deployment"]
    assert said["basic"] == _BASIC | {"name": "2020 P.L. 94-171"}
    assert said["administrative"] == {"notes": "as published", "registry_authors": ["Somebody"]}
    assert said["dp_variant"]["variant_name"] == "Zero-concentrated DP"
    loss = said["privacy_loss"]
    assert loss["privacy_unit"] == "person"
    assert "replace one" in loss["privacy_unit_details"]
    parameters = loss["privacy_parameters"]
    assert parameters["epsilon"] == pytest.approx(17.14, abs=5e-3)
    assert parameters["delta"] == 1e-10
    exact = Fraction(293764, 114921)
    assert exact <= Fraction(repr(parameters["rho"])) <= exact * (1 + Fraction(1, 10**15))
    assert "293764/114921" in loss["privacy_parameters_details"]
    assert said["deployment_model"]["release_type"] == "One release"
    assert "sequential composition of 65 mechanisms" in said["accounting"]["composition"]
    assert made["head"]["hash"] in said["accounting"]["composition"]
    rows = [
        line.split(" | ") for line in said["implementation"]["mechanisms"].splitlines() if "discrete Gaussian" in line
    ]
    assert sum(int(row[4]) for row in rows) == 65
    assert "The ledger service drew no noise of these mechanisms" in said["implementation"]["mechanisms"]
    assert json_of(client.get(f"{account}/verify"))["valid"]


def test_what_people_say_goes_from_the_account_to_its_releases(client: TestClient) -> None:
    account = _open(client, definition="zcdp", rho=1)
    _describe(client, account, name="The census", url_slug="census", release_type="Many releases", notes=None)
    at = f"{account}/releases/{release(client, pure('0.1'), name='Tables|1')['id']}"
    basic = _entry(client, at)["deployment"]["basic"]
    assert basic == _BASIC | {"name": "Tables|1"}
    assert _entry(client, at)["deployment"]["deployment_model"]["release_type"] == "One release"
    _describe(client, at, name="The tables", url_slug="tables", description="d", mechanisms="In a vault.")
    entry = _entry(client, at)
    assert entry["url_slug"] == "tables"
    assert entry["deployment"]["basic"] == _BASIC | {"name": "The tables", "description": "d"}
    assert entry["deployment"]["implementation"]["mechanisms"].endswith("\n\nIn a vault.")
    assert "| geometric | scale = 10 | 1 | 2 | 1 | `/` |" in entry["deployment"]["implementation"]["mechanisms"]
    assert _entry(client, account)["url_slug"] == "census"
    assert _entry(client, account)["deployment"]["basic"] == _BASIC | {"name": "The census"}


def test_what_is_missing_is_named(client: TestClient) -> None:
    open_account(client, description="persons")
    at = f"/v1/accounts/people/releases/{release(client, pure('0.1'))['id']}"
    required = [name for name in _SECTIONS["basic"]["required"] if name not in ("name", "description")]
    for address in (at, "/v1/accounts/people"):
        problem = problem_of(client.get(f"{address}/registry-entry"), "incomplete")
        assert sorted(problem["missing"]) == sorted(required)
    _describe(client, at, **{name: _BASIC[name] for name in required})
    assert _entry(client, at)["deployment"]["basic"]["description"] == "persons"
    _describe(client, at, sources="https://example.org")
    assert problem_of(client.get(f"{at}/registry-entry"), "incomplete")["missing"] == ["registry_authors"]


def test_the_tier_is_that_of_what_is_said(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    at = f"{account}/releases/{release(embedded, pure('0.1'))['id']}"
    assert _entry(embedded, at)["tier"] == 1
    _describe(embedded, at, **_THIRD)
    assert _entry(embedded, at)["tier"] == 1
    _describe(embedded, at, **_SECOND)
    assert _entry(embedded, at)["tier"] == 3
    for name, value in (_SECOND | _THIRD).items():
        _describe(embedded, at, **{name: None})
        assert _entry(embedded, at)["tier"] == (1 if name in _SECOND else 2)
        _describe(embedded, at, **{name: value})
    _describe(embedded, at, access_type="Interactive")
    assert _entry(embedded, at)["tier"] == 2
    _describe(embedded, at, access_type_details="One analyst")
    assert _entry(embedded, at)["tier"] == 3


_DECLARED = {"type": "declared", "epsilon": "0.1", "delta": "1e-11", "reference": "a | paper 10.1000/12345678-12345678"}


@pytest.mark.parametrize(
    ("budget", "plan", "variant", "names"),
    [
        ({"definition": "pure", "epsilon": 3}, pure("0.1"), "Pure DP", ["epsilon"]),
        ({"definition": "pure", "epsilon": 3, "delta": "1e-9"}, _DECLARED, "Approximate DP", ["delta", "epsilon"]),
        ({"definition": "zcdp", "rho": 1}, pure("0.1"), "Zero-concentrated DP", ["delta", "epsilon", "rho"]),
        ({"definition": "rdp", "alpha": "7/3", "epsilon": 3}, pure("0.1"), "Renyi DP", ["delta", "epsilon"]),
        (
            {"definition": "approximate", "epsilon": 3, "delta": "1e-6", "declared_delta": "1e-9"},
            _DECLARED,
            "Approximate DP",
            ["delta", "epsilon"],
        ),
    ],
)
def test_the_variant_is_the_budgets(
    embedded: Client, budget: dict[str, Any], plan: Any, variant: str, names: list[str]
) -> None:
    account = _open(embedded, **budget)
    made = release(embedded, plan)
    for address in (account, f"{account}/releases/{made['id']}"):
        said = _entry(embedded, address)["deployment"]
        assert said["dp_variant"]["variant_name"] == variant
        assert sorted(said["privacy_loss"]["privacy_parameters"]) == names
    parameters = said["privacy_loss"]["privacy_parameters"]
    order = r"- Rényi DP of order $\alpha = 2.333" in said["privacy_loss"]["privacy_parameters_details"]
    assert order == (variant == "Renyi DP")
    best = made["cost"]["best"][0]["adaptive"]
    assert parameters["epsilon"] == (made["cost"]["pure"] if variant == "Pure DP" else best)["epsilon"]


def test_nothing_is_stated_where_nothing_holds_at_the_delta(embedded: Client) -> None:
    account = _open(embedded, definition="pure", epsilon=3, delta="1e-6")
    made = release(embedded, _DECLARED | {"delta": "1e-7"})
    entry = _entry(embedded, f"{account}/releases/{made['id']}")
    assert entry["deployment"]["dp_variant"]["variant_name"] == "Custom"
    assert "privacy_parameters" not in entry["deployment"]["privacy_loss"]


@pytest.mark.parametrize(("state", "status"), [("reserved", 200), ("voided", 409)])
def test_a_release_of_which_nothing_was_published_has_no_entry(embedded: Client, state: str, status: int) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    at = f"{account}/releases/{release(embedded, pure('0.1'), reserve_for='P1D')['id']}"
    if state == "voided":
        json_of(embedded.post(f"{at}/void", json={"reason": "r"}))
    answer = embedded.get(f"{at}/registry-entry")
    assert answer.status_code == status
    if status == 409:
        assert "voided" in problem_of(answer, "conflict")["detail"]


def test_every_node_of_a_plan_is_in_its_composition(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    one = {"type": "sequence", "parts": [pure("0.01", name="b")]}
    fork = {"type": "choice", "parts": [pure("0.01", name="a"), one]}
    apart = {"type": "parallel", "max_degree": 2, "parts": [fork, pure("0.02", name="c")]}
    plan = {"type": "repeat", "count": 3, "part": {"type": "group", "size": 2, "part": apart}}
    said = _entry(embedded, f"{account}/releases/{release(embedded, plan)['id']}")["deployment"]
    assert said["accounting"]["composition"].splitlines()[:8] == [
        "- 3 times",
        "  - group privacy for 2 records that change together",
        "    - parallel composition: 2 parts, each record in at most 2 of them",
        "      - one of 2 parts, chosen by earlier answers for each partition; the largest loss counts",
        "        - `a`",
        "        - sequential composition of 1 part",
        "          - `b`",
        "      - `c`",
    ]
    rows = [line.split(" | ") for line in said["implementation"]["mechanisms"].splitlines() if "geometric" in line]
    assert [(row[1], row[4], row[5]) for row in rows] == [
        ("scale = 100", "6", "`a`, `b`"),
        ("scale = 50", "3", "`c`"),
    ]
    for row, scale in zip(rows, (100, 50), strict=True):  # the least margin, by the elementary tail of geometric noise
        ratio, margin = math.exp(-1 / scale), int(row[6].removeprefix("±").removesuffix(" |"))
        beyond = [2 * ratio ** (moe + 1) / (1 + ratio) for moe in (margin - 1, margin)]
        assert beyond[1] <= 0.05 < beyond[0]


def test_suppression_is_stated(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1, delta="1e-3")
    for plan, stated in ((pure("0.1"), False), (pure("0.1") | {"threshold": {"at_least": 200}}, True)):
        said = _entry(embedded, f"{account}/releases/{release(embedded, plan)['id']}")["deployment"]["implementation"]
        assert ("threshold = (at_least = 200)" in said["mechanisms"]) is stated
        assert ("Margins of error then hold before suppression." in said["mechanisms"]) is stated


def test_of_a_large_plan_not_all_is_listed(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    parts = [{"type": "group", "size": 1, "part": pure(f"1/{1000 + number}")} for number in range(300)]
    said = _entry(embedded, f"{account}/releases/{release(embedded, {'type': 'sequence', 'parts': parts})['id']}")
    composition, mechanisms = (said["deployment"][s] for s in ("accounting", "implementation"))
    assert "- ... and 541 more" in composition["composition"]
    assert "... and 200 more different mechanisms." in mechanisms["mechanisms"]


# Accounts


@pytest.mark.parametrize(("delta", "at"), [("1e-10", 1.1e-9), ("1e-9", 2e-9), ("1e-8", 1e-8)])
def test_a_budget_with_declared_deltas_is_shown_where_it_bounds_something(
    embedded: Client, delta: str, at: float
) -> None:
    account = _open(embedded, definition="zcdp", rho=1, delta="1e-9")
    said = _entry(embedded, account, delta=delta)["deployment"]
    parameters = said["privacy_loss"]["privacy_parameters"]
    rest = Fraction(delta) - (Fraction("1e-9") if delta == "1e-8" else 0)
    implied = json_of(embedded.post("/v1/conversions", json={"rho": 1, "delta": f"{float(rest):.3g}"}))["best"][0]
    assert said["dp_variant"]["variant_name"] == "Approximate DP"
    assert parameters["delta"] == pytest.approx(at, rel=1e-15)
    assert parameters["epsilon"] == pytest.approx(implied["adaptive"]["epsilon"], rel=1e-4)


@pytest.mark.parametrize(
    "budget",
    [
        {"definition": "pure", "epsilon": "0.15"},
        {"definition": "zcdp", "rho": "0.008"},
        {"definition": "approximate", "epsilon": "0.15", "delta": "1e-6"},
    ],
)
def test_what_was_priced_too_low_is_not_promised(
    embedded: TestClient, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any]
) -> None:
    """After a correction of the accountant, the account is over its budget until that is raised."""
    account = _open(embedded, **budget)
    with monkeypatch.context() as older:
        older.setattr(preparation, "price", lambda *_: Price(Fraction(0), Fraction(0), Fraction(0), Fraction(0), ()))
        made = release(embedded, pure("0.1"))
    _entry(embedded, account)  # nothing has been priced again yet
    recompute(embedded.app.state.database, "people", apply=True)  # type: ignore[attr-defined]
    detail = problem_of(embedded.get(f"{account}/registry-entry"), "conflict")["detail"]
    assert "over its budget" in detail
    assert _entry(embedded, f"{account}/releases/{made['id']}")  # its cost is that of its plan
    figure = "rho" if budget["definition"] == "zcdp" else "epsilon"
    json_of(embedded.patch(account, json={"budget": budget | {figure: 1}}))
    assert _entry(embedded, account)["deployment"]["privacy_loss"]["privacy_parameters"][figure] == 1


def test_an_account_states_the_largest_budget_that_it_has_had(client: TestClient) -> None:
    """The present budget bounds only the future: earlier answers were given under the larger one."""
    account = _open(client, definition="zcdp", rho="1/3")
    for rho in ("2", "1/2"):
        json_of(client.patch(account, json={"budget": {"definition": "zcdp", "rho": rho}}))
    drawing = {"name": "d", "mechanism": {"type": "discrete_gaussian", "rho": "0.1"}, "counts": [7]}
    json_of(client.post(f"{account}/draws", json=drawing), 201)
    said = _entry(client, account, delta="1e-6")["deployment"]
    parameters = said["privacy_loss"]["privacy_parameters"]
    implied = json_of(client.post("/v1/conversions", json={"rho": 2, "delta": "1e-6"}))["best"][0]["adaptive"]
    assert parameters == {"rho": 2.0, "epsilon": implied["epsilon"], "delta": 1e-6}
    assert "rho = 2." in said["privacy_loss"]["privacy_parameters_details"]
    assert said["deployment_model"]["release_type"] == "One release"
    assert "1. The noise is an integer of exactly the stated law" in said["implementation"]["mechanisms"]
    release(client, pure("0.1"))
    assert _entry(client, account)["deployment"]["deployment_model"]["release_type"] == "Many releases"


def test_an_approximate_budget_is_rounded_up(embedded: Client) -> None:
    account = _open(embedded, definition="approximate", epsilon="1/3", delta="1/3000000")
    parameters = _entry(embedded, account)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert Fraction(1, 3) < Fraction(repr(parameters["epsilon"])) < Fraction(1, 3) + Fraction(1, 10**15)
    assert Fraction(1, 3 * 10**6) < Fraction(repr(parameters["delta"])) < Fraction(1, 3 * 10**6) + Fraction(1, 10**21)


def test_what_was_drawn_below_an_account_is_counted(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    open_account(embedded, "below", parent="people", neighbouring="replace_one")
    drawing = {"name": "d", "mechanism": pure("0.1"), "counts": [7]}
    for _ in range(2):
        json_of(embedded.post("/v1/accounts/below/draws", json=drawing), 201)
    assert "): 2. The noise is an integer" in _entry(embedded, account)["deployment"]["implementation"]["mechanisms"]


@pytest.mark.parametrize(
    ("accept", "is_json"),
    [
        ("*/*", False),
        ("application/json", True),
        ("text/html, application/json;q=0.5", True),
        ("application/json, application/yaml", False),
        ("application/json, application/yaml;q=0.5", True),
        ("application/json;q=0, */*", False),
    ],
)
def test_json_is_for_whoever_asks_for_it(shared_client: Client, accept: str, is_json: bool) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        _open(shared_client, definition="zcdp", rho=1)
    answer = shared_client.get("/v1/accounts/people/registry-entry", headers={"Accept": accept})
    assert answer.headers["content-type"] == ("application/json" if is_json else YAML)


def test_an_unknown_query_and_a_delta_out_of_range_are_refused(embedded: Client) -> None:
    account = _open(embedded, definition="zcdp", rho=1)
    for query, pointer in (({"delta": "2"}, "/query/delta"), ({"as": "x"}, "/query/as")):
        answer = embedded.get(f"{account}/registry-entry", params=query)
        assert [fault["pointer"] for fault in problem_of(answer, "validation")["errors"]] == [pointer]
    problem_of(embedded.get(f"{account}/releases/nothing/registry-entry"), "not_found")
    auditor = make_key(embedded, "auditor")
    assert embedded.get(f"{account}/registry-entry", headers=auditor).status_code == 200
