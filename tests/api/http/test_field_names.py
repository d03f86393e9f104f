"""An unknown name is answered with the known one that it was probably meant as, and never quoted."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.http import request_parsing
from service.api.http.field_names import fields_at, meant, unknown
from service.api.routes.releases import RegisterBatch, RegisterRelease
from service.privacy.mechanisms import MECHANISMS
from tests.api.calls import open_account, problem_of


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("epsilonn", "unknown field; did you mean epsilon?"),
        ("Epsilon", "unknown field; did you mean epsilon?"),
        ("eps", "unknown field; did you mean epsilon?"),
        ("ep", "unknown field; expected one of epsilon, rho"),
        ("granularity", "unknown field; expected one of epsilon, rho"),
        ("", "unknown field; expected one of epsilon, rho"),
        ("epsilon" * 1000, "unknown field; expected one of epsilon, rho"),
    ],
)
def test_only_what_is_much_alike_is_suggested(name: str, detail: str) -> None:
    assert unknown("field", name, {"epsilon", "rho"}) == detail


def test_a_place_with_many_names_lists_none() -> None:
    assert unknown("field", "x", {f"field {number}" for number in range(99)}) == "unknown field"
    assert unknown("field", "x", set()) == "unknown field"
    assert meant("tab", {"table", "tablet"}) == "table"
    assert meant("tab", {"tabulations", "tabulated-groups"}) is None


def test_the_fields_are_those_of_the_place() -> None:
    geometric = {field.name for field in MECHANISMS["geometric"].form().fields}
    assert fields_at(RegisterRelease, ["plan", "geometric"]) == geometric
    assert fields_at(RegisterRelease, ["plan", "sequence", "parts", 3, "geometric"]) == geometric
    assert fields_at(RegisterRelease, []) == set(RegisterRelease.model_fields)
    assert {"type", "parts"} <= fields_at(RegisterBatch, ["releases", 7, "plan", "sequence"])


_PART = {"type": "laplace", "epsilon": "1"}


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({"nmae": "r"}, {"/nmae": "unknown field; did you mean name?"}),
        (
            {"plan": {"type": "sequence", "parts": [_PART, _PART | {"sensitivty": "1"}]}},
            {"/plan/parts/1/sensitivty": "unknown field; did you mean sensitivity?"},
        ),
        (
            {"plan": _PART | {"sigma_squared": "1"}},
            {
                "/plan/sigma_squared": "unknown field; expected one of cells, cells_added, cells_replaced, epsilon,"
                " moves, name, reads, scale, sensitivity, tags, type"
            },
        ),
        ({"x" * 200 + str(number): 0 for number in range(30)}, {}),
    ],
)
def test_a_field_that_is_misspelt_is_named(client: TestClient, body: dict[str, Any], faults: dict[str, str]) -> None:
    open_account(client)
    asked = {"name": "a release", "plan": _PART} | body
    problem = problem_of(client.post("/v1/accounts/people/releases", json=asked), "validation")
    found = {fault["pointer"]: fault["detail"] for fault in problem["errors"]}
    assert faults.items() <= found.items()
    assert len(found) == max(1, len(body) if not faults else 1)


def test_only_a_few_fields_of_a_request_are_compared(client: TestClient) -> None:
    open_account(client)
    asked = {"name": "a release", "plan": _PART} | {f"tags{number}": 0 for number in range(30)}
    errors = problem_of(client.post("/v1/accounts/people/releases", json=asked), "validation")["errors"]
    assert [fault["detail"] for fault in errors].count("unknown field; did you mean tags?") == 5
    assert len(errors) == 30


def test_a_query_parameter_that_is_misspelt_is_named(client: TestClient) -> None:
    open_account(client)
    answer = client.get("/v1/accounts/people/balance?as_off=1&1234567=1")
    found = {fault["pointer"]: fault["detail"] for fault in problem_of(answer, "validation")["errors"]}
    assert found == {
        "/query/as_off": "unknown query parameter; did you mean as_of?",
        "/query/1234567": "unknown query parameter; expected one of as_of, delta, period, picture, tag",
    }


def test_only_a_few_parameters_of_a_query_are_compared(client: TestClient) -> None:
    open_account(client)
    answer = client.get("/v1/accounts/people/balance?" + "&".join(f"delta{number}" for number in range(30)))
    errors = problem_of(answer, "validation")["errors"]
    assert [fault["detail"] for fault in errors].count("unknown query parameter; did you mean delta?") == 5
    assert len(errors) == 30


def test_a_query_of_too_many_parameters_is_refused_before_it_is_parsed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_account(client)
    path = "/v1/accounts/people/balance?"
    assert client.get(path + "&".join(f"delta=1e-{number}" for number in range(10, 110))).status_code == 200
    monkeypatch.setattr(request_parsing, "unknown", None)
    for query in ("&".join(f"del{number:x}" for number in range(8000)), "&".join(["delta=0.1"] * 129), "&" * 128):
        errors = problem_of(client.get(path + query), "validation")["errors"]
        assert errors == [{"pointer": "/query", "detail": "expected at most 128 query parameters"}]


def test_a_pointer_states_the_beginning_of_a_long_name(client: TestClient) -> None:
    open_account(client)
    asked = {"name": "a release", "plan": _PART, "x" * 100_000: 0}
    errors = problem_of(client.post("/v1/accounts/people/releases", json=asked), "validation")["errors"]
    assert [fault["pointer"] for fault in errors] == [f"/{'x' * 1000}"]
