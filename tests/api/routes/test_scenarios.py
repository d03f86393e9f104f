"""Scenarios over HTTP: saved, listed, replaced and deleted by those who may, and refused with reasons."""

from typing import Any

import pytest
from sqlalchemy import text

from service.api.openapi import examples
from tests.api.calls import Client, json_of, make_key, open_account, pages_of, pointers_of, problem_of

_SUPPOSED = {"unit": "person", "neighbouring": "add_remove", "budget": {"definition": "zcdp", "rho": "1"}}
_TARGET = {"table": "total", "moe": "6"}
_FREE: dict[str, Any] = {
    "name": "free",
    "kind": "margins",
    "mechanism": "geometric",
    "targets": [_TARGET],
    **_SUPPOSED,
}
_OF_PEOPLE = examples.SCENARIO | {"account": "people"}
_SAFETAB = {"kind": "safetab", "targets": [{"level": "Nation", "moe": "6"}]}


def _save(client: Client, body: dict[str, Any], **headers: Any) -> Any:
    return json_of(client.post("/v1/scenarios", json=body, **headers), 201)


def test_a_scenario_is_read_as_it_was_saved(client: Client) -> None:
    open_account(client)
    answer = client.post("/v1/scenarios", json=_OF_PEOPLE | {"delta": 1e-6})
    saved = json_of(answer, 201)
    assert answer.headers["Location"] == f"/v1/scenarios/{saved['id']}"
    assert json_of(client.get(answer.headers["Location"])) == saved
    assert {name: saved[name] for name in _OF_PEOPLE} == _OF_PEOPLE
    assert (saved["delta"], saved["created_at"]) == ("0.000001", saved["changed_at"])
    assert "unit" not in saved
    before = json_of(client.get("/v1/accounts/people/head"))["seq"]
    changed = json_of(client.put(answer.headers["Location"], json=_FREE | _SAFETAB | {"name": "levels"}))
    assert (changed["name"], changed["account"], changed["kind"]) == ("levels", None, "safetab")
    assert changed["made_by"] == saved["made_by"]
    assert changed["changed_at"] > saved["changed_at"]
    assert client.delete(answer.headers["Location"]).status_code == 204
    problem_of(client.get(answer.headers["Location"]), "not_found")
    problem_of(client.delete(answer.headers["Location"]), "not_found")
    problem_of(client.put(answer.headers["Location"], json=_FREE), "not_found")
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] == before  # nothing of it is journalled


def test_a_repeated_request_saves_once(client: Client) -> None:
    twice = [client.post("/v1/scenarios", json=_FREE, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert json_of(twice[0], 201) == json_of(twice[1], 201)
    assert len(json_of(client.get("/v1/scenarios"))["items"]) == 1
    assert "'free'" in problem_of(client.post("/v1/scenarios", json=_FREE), "conflict")["detail"]
    other = _save(client, _FREE | {"name": "other"})
    problem_of(client.put(f"/v1/scenarios/{other['id']}", json=_FREE), "conflict")
    assert json_of(client.put(f"/v1/scenarios/{other['id']}", json=_FREE | {"name": "other"}))["id"] == other["id"]


def test_lists_have_pages_and_a_table(client: Client) -> None:
    open_account(client)
    names = [f"scenario {number}" for number in range(5)]
    for name in names:
        _save(client, (_FREE if name.endswith("4") else _OF_PEOPLE) | {"name": name})
    found = list(pages_of(client, "/v1/scenarios", limit=2))
    assert [one["name"] for page in found for one in page] == names
    assert "targets" not in found[0][0]
    of_account = json_of(client.get("/v1/scenarios?account=people"))["items"]
    assert [one["name"] for one in of_account] == names[:4]
    lines = client.get("/v1/scenarios", headers={"Accept": "text/csv"}).text.splitlines()
    assert lines[0] == "id,name,account,kind,mechanism,made_by,created_at,changed_at"
    assert len(lines) == 6


def test_limited_keys_see_what_they_may_and_makers_change_their_own(client: Client) -> None:
    open_account(client)
    open_account(client, "others")
    maker = make_key(client, "auditor", "maker")
    of_people, of_others = (
        _save(client, _OF_PEOPLE | {"account": account}, headers=key)
        for account, key in (("people", maker), ("others", {}))
    )
    free = _save(client, _FREE, headers=maker)
    limited = make_key(client, "steward", "limited", accounts=["people"])
    seen = json_of(client.get("/v1/scenarios", headers=limited))["items"]
    assert [one["id"] for one in seen] == [of_people["id"], free["id"]]
    problem_of(client.get("/v1/scenarios?account=others", headers=limited), "forbidden")
    for method in ("GET", "PUT", "DELETE"):
        body = _OF_PEOPLE if method == "PUT" else None
        at = f"/v1/scenarios/{of_others['id']}"
        problem_of(client.request(method, at, json=body, headers=limited), "forbidden")
    for at in (f"/v1/scenarios/{one['id']}" for one in (of_people, free)):
        json_of(client.get(at, headers=limited))
        stranger = make_key(client, "pipeline", "stranger")
        problem_of(client.put(at, json=_FREE, headers=stranger), "forbidden")
        problem_of(client.delete(at, headers=stranger), "forbidden")
    problem_of(client.delete(f"/v1/scenarios/{free['id']}", headers=limited), "forbidden")
    elsewhere = _OF_PEOPLE | {"account": "others"}
    problem_of(client.put(f"/v1/scenarios/{of_people['id']}", json=elsewhere, headers=limited), "forbidden")
    problem_of(client.post("/v1/scenarios", json=elsewhere, headers=limited), "forbidden")
    assert client.delete(f"/v1/scenarios/{free['id']}", headers=maker).status_code == 204
    assert client.delete(f"/v1/scenarios/{of_people['id']}", headers=limited).status_code == 204


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"name": ""}, ["/name"]),
        ({"name": "a\nb"}, ["/name"]),
        ({"name": "x" * 201}, ["/name"]),
        ({"kind": "counts"}, ["/kind"]),
        ({"mechanism": "laplace"}, ["/mechanism"]),
        ({"counts": [1]}, ["/counts"]),
        ({"budget": None}, ["/budget"]),
        ({"budget": {"definition": "zcdp", "rho": "NaN"}}, ["/budget/rho"]),
        ({"account": "people"}, ["/unit", "/neighbouring", "/budget"]),
        ({"stability": 9}, ["/stability"]),
        ({"divided": "1"}, ["/divided"]),
        ({"delta": "1e-500"}, ["/delta"]),
        ({"targets": []}, ["/targets"]),
        ({"targets": [_TARGET] * 101}, ["/targets"]),
        ({"targets": [_TARGET | {"moe": "Infinity"}]}, ["/targets/0/moe"]),
        ({"targets": [_TARGET | {"cells": 0}]}, ["/targets/0/cells"]),
        ({"targets": [_TARGET | {"variance": "4"}]}, ["/targets/0/variance"]),
        ({"targets": [{"moe": "4"}]}, ["/targets/0/table"]),
        ({"kind": "variances"}, ["/targets/0/moe", "/targets/0/variance"]),
        (
            {"kind": "relative_errors", "targets": [{"table": "a"}]},
            ["/targets/0/relative_error", "/targets/0/typical_count"],
        ),
        ({"kind": "safetab"}, ["/targets/0/table", "/targets/0/level"]),
        ({"targets": [{"table": "x" * 200, "geography": "é" * 200, "moe": "1"}] * 100}, [""]),
    ],
)
def test_invalid_scenarios_are_refused(shared_client: Client, fields: dict[str, Any], pointers: list[str]) -> None:
    body = {name: value for name, value in (_FREE | fields).items() if value is not None}
    assert pointers_of(shared_client.post("/v1/scenarios", json=body)) == pointers


def test_an_account_must_exist(shared_client: Client) -> None:
    problem_of(shared_client.post("/v1/scenarios", json=_OF_PEOPLE | {"account": "nobody"}), "not_found")


def test_a_principal_keeps_a_bounded_number(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ledger.scenarios.MOST_OF_ONE", 2)
    for name in ("a", "b"):
        _save(embedded, _FREE | {"name": name})
    problem = problem_of(embedded.post("/v1/scenarios", json=_FREE | {"name": "c"}), "validation")
    assert "at most 2 scenarios" in problem["errors"][0]["detail"]
    _save(embedded, _FREE | {"name": "c"}, headers=make_key(embedded, "auditor", "another"))


def test_an_altered_row_is_refused_and_can_be_deleted(embedded: Client) -> None:
    at = f"/v1/scenarios/{_save(embedded, _FREE)['id']}"
    database = embedded.app.state.database  # type: ignore[attr-defined]
    change = text("UPDATE scenarios SET inputs = '[' ")
    database.write(lambda connection: connection.execute(change).rowcount, is_committed=lambda *_: False)
    assert "not as this service wrote it" in problem_of(embedded.get(at), "conflict")["detail"]
    assert json_of(embedded.get("/v1/scenarios"))["items"][0]["name"] == "free"
    assert embedded.delete(at).status_code == 204
