"""Metadata of accounts and releases: merged, journalled, validated, and preserved through every path of a ledger."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.api.schemas.metadata import Metadata
from service.ledger.descriptions.metadata import LARGEST
from tests.api.calls import (
    Client,
    head_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_SAID = {"description": "Tables of été", "data_curators": ["Bureau", "Büro"], "publication_date": "2024-02-29"}


@pytest.fixture
def account(client: TestClient) -> str:
    open_account(client)
    return "/v1/accounts/people"


def _describe(client: Client, address: str, metadata: Any, **headers: str) -> Any:
    return json_of(client.patch(address, json={"metadata": metadata}, headers=headers))


def _entries(client: Client) -> list[Any]:
    return [item["entry"] for item in json_of(client.get("/v1/accounts/people/journal"))["items"]]


def test_an_edit_is_merged_into_what_was_said_and_is_an_entry(client: TestClient, account: str) -> None:
    assert json_of(client.get(account))["metadata"] == {}
    assert _describe(client, account, _SAID)["metadata"] == _SAID
    after = _describe(client, account, {"data_curators": ["Bureau"], "publication_date": None, "notes": "n"})
    expected = {"description": "Tables of été", "data_curators": ["Bureau"], "notes": "n"}
    assert after["metadata"] == expected == json_of(client.get(account))["metadata"]
    assert json_of(client.get("/v1/accounts"))["items"][0]["metadata"] == expected
    assert after["head"] == head_of(client)
    described = [entry for entry in _entries(client) if entry["kind"] == "described"]
    assert [entry["content"]["metadata"] for entry in described] == [_SAID, expected]
    assert [(entry["release"], entry["actor"]) for entry in described] == [(None, "first-steward")] * 2


def test_a_release_has_its_own_whatever_became_of_it(client: TestClient, account: str) -> None:
    held, other = release(client, pure("0.1"), reserve_for="P1D"), release(client, pure("0.1"))
    assert held["metadata"] == {}
    at = f"{account}/releases/{held['id']}"
    assert _describe(client, at, {"name": "first"})["metadata"] == {"name": "first"}
    json_of(client.post(f"{at}/void", json={"reason": "r"}))
    json_of(client.patch(account, json={"state": "closed"}))
    after = _describe(client, at, {"notes": "it was never published"})
    assert (after["state"], after["head"]) == ("voided", head_of(client))
    assert after["metadata"] == {"name": "first", "notes": "it was never published"}
    listed = json_of(client.get(f"{account}/releases"))["items"]
    assert [item["metadata"] for item in listed] == [after["metadata"], {}]
    assert json_of(client.get(f"{account}/releases/{other['id']}"))["metadata"] == {}
    assert json_of(client.get(account))["metadata"] == {}
    assert json_of(client.get(f"{account}/verify"))["valid"]
    assert [entry["release"] for entry in _entries(client) if entry["kind"] == "described"] == [held["id"]] * 2


def test_what_changes_nothing_writes_nothing(client: TestClient, account: str) -> None:
    _describe(client, account, _SAID)
    before = head_of(client)
    for same in ({}, _SAID, {"notes": None}):
        assert _describe(client, account, same)["head"] == before
    assert head_of(client) == before


def test_an_edit_is_replayed_to_its_key(client: TestClient, account: str) -> None:
    asked: dict[str, Any] = {"json": {"metadata": _SAID}, "headers": {"Idempotency-Key": "k"}}
    first = client.patch(account, **asked)
    _describe(client, account, {"notes": "between"})
    again = client.patch(account, **asked)
    assert (again.text, again.headers["Idempotent-Replay"]) == (first.text, "true")
    assert json_of(client.get(account))["metadata"]["notes"] == "between"
    problem_of(client.patch(account, json={"metadata": {}}, headers=asked["headers"]), "idempotency_conflict")
    kept = head_of(client)
    stale = {"If-Ledger-Includes": f"{kept['seq']}:{'0' * 64}"}
    problem_of(client.patch(account, json={"metadata": {}}, headers=stale), "ledger_rolled_back")


@pytest.mark.parametrize(
    ("metadata", "pointer"),
    [
        ({"curator": "x"}, "/metadata/curator"),
        ({"variant_name": "Pure DP"}, "/metadata/variant_name"),  # the ledger fills in this field
        ({"name": ""}, "/metadata/name"),
        ({"name": 7}, "/metadata/name"),
        ({"name": "x" * 201}, "/metadata/name"),
        ({"description": " \n"}, "/metadata/description"),
        ({"description": "x" * 10_001}, "/metadata/description"),
        ({"description": "a\u0000b"}, "/metadata/description"),
        ({"description": ["a"]}, "/metadata/description"),
        ({"data_curators": []}, "/metadata/data_curators"),
        ({"data_curators": "Bureau"}, "/metadata/data_curators"),
        ({"data_curators": ["a", 1]}, "/metadata/data_curators/1"),
        ({"data_curators": ["a"] * 101}, "/metadata/data_curators"),
        ({"registry_authors": [None]}, "/metadata/registry_authors/0"),
        ({"data_product_type": "Table"}, "/metadata/data_product_type"),
        ({"model_name": "central"}, "/metadata/model_name"),
        ({"publication_date": "2023-02-29"}, "/metadata/publication_date"),
        ({"publication_date": "20230228"}, "/metadata/publication_date"),
        ({"publication_date": "2023-W09-2"}, "/metadata/publication_date"),
        ({"publication_date": 20230228}, "/metadata/publication_date"),
        ({"url_slug": "a/b"}, "/metadata/url_slug"),
        ([], "/metadata"),
        ("x", "/metadata"),
    ],
)
def test_what_has_no_meaning_is_refused(shared_client: Client, metadata: Any, pointer: str) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
        release(shared_client, pure("0.1"))
    found = json_of(shared_client.get("/v1/accounts/people/releases"))["items"][0]["id"]
    for address in ("/v1/accounts/people", f"/v1/accounts/people/releases/{found}"):
        answer = shared_client.patch(address, json={"metadata": metadata})
        assert pointers_of(answer) == [pointer]
        assert "2023" not in answer.json()["detail"]
    assert head_of(shared_client)["seq"] == 2


def test_a_change_is_one_change(client: TestClient, account: str) -> None:
    for body in ({"metadata": {}, "state": "open"}, {"metadata": None}, {}):
        assert pointers_of(client.patch(account, json=body)) == [""]
    at = f"{account}/releases/{release(client, pure('0.1'))['id']}"
    for body, pointer in (
        ({}, "/metadata"),
        ({"metadata": None}, "/metadata"),
        ({"metadata": {}, "name": "n"}, "/name"),
    ):
        assert pointers_of(client.patch(at, json=body)) == [pointer]
    problem_of(client.patch(f"{account}/releases/nothing", json={"metadata": {}}), "not_found")
    problem_of(client.patch("/v1/accounts/nobody", json={"metadata": {}}), "not_found")


def test_all_of_it_together_is_limited(client: TestClient, account: str) -> None:
    fields = [name for name in Metadata.model_fields if name.endswith("_details")] + ["actors", "notes"]
    text = "x" * 9_500
    for name in fields[:6]:
        _describe(client, account, {name: text})
    before = head_of(client)
    answer = client.patch(account, json={"metadata": {fields[6]: text}})
    assert pointers_of(answer) == ["/metadata"]
    assert str(LARGEST) in answer.text
    assert head_of(client) == before
    _describe(client, account, {fields[0]: None, fields[6]: text})


def test_a_release_of_another_account_is_not_there(client: TestClient, account: str) -> None:
    open_account(client, "others")
    found = release(client, pure("0.1"))["id"]
    problem_of(client.patch(f"/v1/accounts/others/releases/{found}", json={"metadata": {"name": "n"}}), "not_found")
    assert json_of(client.get("/v1/accounts/others/verify")) == {"valid": True, "entries": 1}


def test_stewards_describe_accounts_and_pipelines_their_releases(client: TestClient, account: str) -> None:
    found = f"{account}/releases/{release(client, pure('0.1'))['id']}"
    pipeline, auditor = make_key(client, "pipeline", "tables"), make_key(client, "auditor")
    body = {"metadata": {"name": "n"}}
    problem_of(client.patch(account, json=body, headers=pipeline), "forbidden")
    problem_of(client.patch(found, json=body, headers=auditor), "forbidden")
    json_of(client.patch(found, json=body, headers=pipeline))
    assert _entries(client)[-1]["actor"] == "tables"


def test_an_edit_is_in_the_export(client: TestClient, account: str) -> None:
    _describe(client, account, _SAID)
    lines = [json.loads(line) for line in client.get(f"{account}/export").text.splitlines()]
    assert json.loads(lines[-1]["entry"])["content"]["metadata"] == _SAID
