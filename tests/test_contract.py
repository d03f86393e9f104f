"""The contract: the committed document is the running app's, its examples work, and the app keeps to it."""

import html
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, settings
from jsonschema import Draft202012Validator

from service.api.http.expected_head import HEADER
from service.api.http.problems import KINDS
from service.api.openapi import examples
from service.api.openapi.contents import GROUPS
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests import first_day
from tests.api.calls import application, bearer, client_of, contract, json_of, make_key, operators_key

_COMMITTED = Path(__file__).resolve().parents[1] / "openapi.yaml"
_OPEN = ("/healthz", "/readyz")
_DOCUMENT = contract()
_OPERATIONS = [
    (method, path, operation) for path, methods in _DOCUMENT["paths"].items() for method, operation in methods.items()
]
schema = schemathesis.openapi.from_dict(_DOCUMENT)
# Not all that a body must keep to stands in a schema, and If-Ledger-Includes may name what is not there.
_REFUSED = ["401", "403", "404", "409", "412", "413", "415", "422"]
schema.config.checks.positive_data_acceptance.expected_statuses = ["2xx", *_REFUSED]
schema.config.checks.negative_data_rejection.expected_statuses = _REFUSED


@pytest.fixture(scope="module")
def app(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    path = tmp_path_factory.mktemp("contract") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    open_to_all = {"failure_rate": "1000000/minute"}  # what answers 429 tells nothing of the contract
    return application(open_database(f"sqlite:///{path}"), Secret(bytes(range(32))), **open_to_all)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with client_of(app) as opened:
        yield opened


def _example(path: str, method: str = "post") -> Any:
    return _DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["example"]


@pytest.fixture(scope="module")
def names(client: TestClient) -> dict[str, str]:
    """Return the values of the addresses' parameters, made by the examples themselves."""
    account = json_of(client.post("/v1/accounts", json=_example("/v1/accounts")), 201)["name"]
    at = f"/v1/accounts/{account}"
    release = json_of(client.post(f"{at}/releases", json=_example("/v1/accounts/{account}/releases")), 201)["id"]
    described = _example("/v1/accounts/{account}/releases/{release}", "patch")
    json_of(client.patch(at, json=described))
    drawing = _example("/v1/accounts/{account}/releases/{release}/draws")
    draw = json_of(client.post(f"{at}/releases/{release}/draws", json=drawing), 201)["draw"]
    key = json_of(client.post("/v1/keys", json=_example("/v1/keys")), 201)["id"]
    job = json_of(client.post("/v1/empirical/experiments", json=_example("/v1/empirical/experiments")), 202)["id"]
    json_of(client.post("/v1/accounts", json=first_day.PANEL_ACCOUNT), 201)
    webhook = json_of(client.post("/v1/webhooks", json=examples.WEBHOOK), 201)["id"]
    delivery = json_of(client.post(f"/v1/webhooks/{webhook}/test"), 202)["id"]
    made = {"account": account, "release": release, "draw": draw, "key": key, "job": job}
    other = make_key(client, "auditor")  # whose scenario can have the name of the examples' own
    scenario = json_of(client.post("/v1/scenarios", json=_example("/v1/scenarios"), headers=other), 201)["id"]
    return made | {"webhook": webhook, "delivery": delivery, "scenario": scenario}


def test_the_committed_document_is_the_running_apps(client: TestClient) -> None:
    committed = yaml.load(_COMMITTED.read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert committed == _DOCUMENT
    assert client.get("/openapi.json").json() == _DOCUMENT


@pytest.mark.parametrize(("method", "path", "operation"), _OPERATIONS)
def test_every_operation_says_what_it_does(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert len(operation["description"]) > len(operation["summary"]) or path in _OPEN
    if "requestBody" in operation:
        assert operation["requestBody"]["content"]["application/json"]["example"]
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            assert list(answer["content"]) == ["application/problem+json"]
    assert ("security" in operation) == (path not in _OPEN)


def test_every_operation_is_in_one_group_that_is_described() -> None:
    listed = [name for group in GROUPS.values() for name in group.operations]
    assert sorted(listed) == sorted(operation["operationId"] for _, _, operation in _OPERATIONS)
    assert [tag["name"] for tag in _DOCUMENT["tags"]] == list(GROUPS)
    shown = [
        operation["operationId"] for tag in GROUPS for _, _, operation in _OPERATIONS if operation["tags"] == [tag]
    ]
    assert shown == listed


def _validate(example: Any, schema: dict[str, Any]) -> None:
    Draft202012Validator({**schema, "components": _DOCUMENT["components"]}).validate(example)


@pytest.mark.parametrize(("method", "path", "operation"), _OPERATIONS)
def test_no_answer_is_left_to_be_invented(method: str, path: str, operation: dict[str, Any]) -> None:
    """Pages make up what a schema has no example of, names from patterns among it."""
    for status, answer in operation["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            if media_type == "application/problem+json":
                assert content["examples"], (method, path, status)
                for code in content["examples"]:
                    problem = _DOCUMENT["components"]["examples"][code]["value"]
                    assert (problem["type"], str(problem["status"])) == (f"/problems/{code}", status)
                    _validate(problem, content["schema"])
            elif media_type == "application/json":
                _validate(content["example"], content["schema"])
            elif not media_type.startswith("image/") and content["schema"].get("format") != "binary":
                assert isinstance(content["example"], str), (method, path, status)


def test_the_answers_are_those_of_a_day_on_a_real_server(tmp_path: Path) -> None:
    recorded = json.loads(first_day.RECORD.read_text("utf-8"))
    assert first_day.differences(recorded, json.loads(json.dumps(first_day.lived(tmp_path)))) == []


@pytest.mark.parametrize("code", KINDS)
def test_every_problem_has_its_page(client: TestClient, code: str) -> None:
    page = client.get(f"/problems/{code}")
    assert page.status_code == 200
    assert KINDS[code].title in html.unescape(page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, path, operation in _OPERATIONS if "requestBody" in operation]
)
def test_every_example_works(client: TestClient, names: dict[str, str], method: str, path: str) -> None:
    if path in ("/v1/accounts", "/v1/accounts/{account}/releases/{release}/draws"):
        return  # the fixture above could not have made its names otherwise, and neither can be done twice
    if path.endswith("/void"):
        reserved = {"name": "r", "plan": {"type": "geometric", "epsilon": "1e-9"}, "reserve_for": "P1D"}
        held = json_of(client.post(f"/v1/accounts/{names['account']}/releases", json=reserved), 201)
        names = names | {"release": held["id"]}
    by = None
    if path.endswith("/approve"):
        account = {"name": "approved", "unit": "person", "neighbouring": "add_remove", "approval_above": "0"}
        json_of(client.post("/v1/accounts", json=account | {"budget": {"definition": "zcdp", "rho": 1}}), 201)
        large = {"name": "r", "plan": {"type": "geometric", "epsilon": "1e-9"}}
        proposed = json_of(client.post("/v1/accounts/approved/releases", json=large), 201)
        names, by = {"account": "approved", "release": proposed["id"]}, operators_key(client, "steward", "second")
    if path.endswith("/reject"):  # of the second entry, which proposes
        account = {"name": "waits", "unit": "person", "neighbouring": "add_remove", "approval_above": "0"}
        json_of(client.post("/v1/accounts", json=account | {"budget": {"definition": "zcdp", "rho": 1}}), 201)
        json_of(client.patch("/v1/accounts/waits", json=examples.ACCOUNT_CHANGE), 202)
        names = {"account": "waits"}
    if path.endswith("/tabulations"):  # of the plan that another example makes
        plan = json_of(client.post("/v1/plans/safetab", json=_example("/v1/plans/safetab")))["plan"]
        account = {"name": "groups", "unit": "person", "neighbouring": "add_remove"}
        json_of(client.post("/v1/accounts", json=account | {"budget": {"definition": "zcdp", "rho": 1}}), 201)
        made = json_of(client.post("/v1/accounts/groups/releases", json={"name": "r", "plan": plan}), 201)
        names = {"account": "groups", "release": made["id"]}
    if path.endswith("/selections"):
        best = {"name": "r", "plan": {"type": "exponential", "epsilon": "1e-9"}}
        made = json_of(client.post(f"/v1/accounts/{names['account']}/releases", json=best), 201)
        names = names | {"release": made["id"]}
    answer = client.request(method, path.format_map(names), json=_example(path, method), headers=by)
    assert answer.is_success, answer.text
    assert str(answer.status_code) in _DOCUMENT["paths"][path][method]["responses"]


def test_an_example_can_be_sent_as_the_page_of_the_contract_fills_it_in() -> None:
    """Swagger UI fills in the examples of parameters, not those of their schemas."""
    for _, path, operation in _OPERATIONS:
        filled = {
            parameter["name"]: parameter.get("example", parameter.get("examples"))
            for parameter in operation.get("parameters", [])
            if "example" in parameter or "examples" in parameter
        }
        account = {"account": {"value": _example("/v1/accounts")["name"]}}
        # Nothing beside a body: what the query may say goes with a stream.
        assert filled == ({"account": account} if "{account}" in path else {}), path


@pytest.mark.parametrize("path", [path for method, path, _ in _OPERATIONS if method == "get"])
def test_every_reading_works(client: TestClient, names: dict[str, str], path: str) -> None:
    if path.endswith("/periods"):  # which only an account with periods has
        names = names | {"account": str(first_day.PANEL_ACCOUNT["name"])}
    assert client.get(path.format_map(names)).status_code == 200


def test_the_examples_values_are_those_of_the_mathematics(client: TestClient) -> None:
    calibrated = json_of(client.post("/v1/calibrations/moe", json=_example("/v1/calibrations/moe")))
    assert calibrated["cost"]["pure"]["epsilon"] == pytest.approx(0.45690, abs=5e-6)
    converted = json_of(client.post("/v1/conversions", json=_example("/v1/conversions")))
    assert converted["zcdp"]["rho_exact"] == "293764/114921"


_SECONDS = 120  # a machine that is busy with something else is no failure, and the default is 10
_ROLES = ("auditor", "pipeline", "approver", "steward", "limited", "nobody")


@pytest.fixture(scope="module")
def callers(client: TestClient) -> dict[str, dict[str, str]]:
    """A key of each role, one that is limited to another account, and one that is none."""
    keys = {role: make_key(client, role) for role in ("auditor", "pipeline", "steward")}
    return keys | {"limited": make_key(client, "steward", accounts=["elsewhere"]), "nobody": bearer("none")}


@pytest.fixture(scope="module")
def opened(client: TestClient, names: dict[str, str]) -> str:
    """The account's first entry, which is there for ever."""
    entry = json_of(client.get(f"/v1/accounts/{names['account']}/journal?limit=1"))["items"][0]
    return f"1:{entry['hash']}"


def _send(
    case: schemathesis.Case[Any], app: FastAPI, names: dict[str, str], opened: str, callers: Iterable[dict[str, str]]
) -> None:
    """Check that the answer to any request is one that the document has, and right for what was sent, for each caller.

    Every check of schemathesis runs, those included that send the request again: without a key, by another method.
    """
    case.operation.schema.app = app
    case.path_parameters = {name: names[name] for name in case.path_parameters or {}}
    for name, value in (case.query or {}).items():
        if isinstance(value, list) and len(value) == 1:
            case.query[name] = value * 2  # else it would be sent as its one value is, which is right
    if case.headers and re.fullmatch(r"[1-9][0-9]{0,14}:[0-9a-f]{64}", str(case.headers.get(HEADER, ""))):
        case.headers[HEADER] = opened  # else all that it could say is 412
    for headers in callers:
        sent: dict[str, Any] = {"app": app, "headers": headers, "timeout": _SECONDS}
        answer = case.call(**sent)
        case.validate_response(answer, headers=headers, transport_kwargs=sent)


def _generated(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],  # schemathesis adds 18,000 deterministic cases as explicit examples, for minutes
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()
@_generated(4)
def test_no_failure_and_no_undocumented_answer(
    case: schemathesis.Case[Any], app: FastAPI, names: dict[str, str], opened: str, callers: dict[str, dict[str, str]]
) -> None:
    """Send each request as every role: to make it takes longer than to answer it."""
    _send(case, app, names, opened, callers.values())


@pytest.mark.contract
@pytest.mark.parametrize("role", _ROLES)
@schema.parametrize()
@_generated(100)
def test_no_failure_and_no_undocumented_answer_at_length(
    case: schemathesis.Case[Any],
    app: FastAPI,
    names: dict[str, str],
    opened: str,
    callers: dict[str, dict[str, str]],
    role: str,
) -> None:
    _send(case, app, names, opened, [callers[role]])
