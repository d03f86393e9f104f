"""If-Ledger-Includes: every kind of request to a restored backup is refused."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Client,
    application,
    client_of,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.api.streams import MEDIA_TYPE, counts

_AT = "/v1/accounts/people"
_SMALL = concentrated("0.001")


def _kept(head: dict[str, Any]) -> dict[str, str]:
    return {"If-Ledger-Includes": f"{head['seq']}:{head['hash']}"}


def _requests(release_id: str) -> list[tuple[str, str, Any]]:
    """Return reading and writing requests, to an account and below it."""
    return [
        ("GET", _AT, None),
        ("GET", f"{_AT}/head", None),
        ("GET", f"{_AT}/balance", None),
        ("GET", f"{_AT}/journal", None),
        ("GET", f"{_AT}/releases", None),
        ("GET", f"{_AT}/releases/{release_id}", None),
        ("PATCH", _AT, {"budget": {"definition": "zcdp", "rho": 2}}),
        ("POST", f"{_AT}/releases", {"name": "another", "plan": _SMALL}),
        ("POST", f"{_AT}/releases?dry_run=true", {"name": "another", "plan": _SMALL}),
        ("POST", f"{_AT}/releases/batch", {"releases": [{"name": "another", "plan": _SMALL}]}),
        (
            "POST",
            f"{_AT}/draws",
            {"name": "counts", "mechanism": {"type": "geometric", "epsilon": "0.1"}, "counts": [1]},
        ),
    ]


def test_an_entry_that_is_there_lets_every_request_pass(client: Client) -> None:
    opened = open_account(client)
    first = release(client, _SMALL)
    for head in (opened["head"], first["head"]):
        for method, path, body in _requests(first["id"]):
            assert client.request(method, path, json=body, headers=_kept(head)).is_success, (method, path)


@pytest.mark.parametrize("change", [{"seq": 99}, {"seq": 1}, {"hash": "0" * 64}])
def test_an_entry_that_is_not_there_stops_every_request(client: Client, change: dict[str, Any]) -> None:
    open_account(client)
    first = release(client, _SMALL)
    for method, path, body in _requests(first["id"]):
        answer = client.request(method, path, json=body, headers=_kept(first["head"] | change))
        assert problem_of(answer, "ledger_rolled_back")["account"] == "people", (method, path)
    assert json_of(client.get(f"{_AT}/head"))["seq"] == 2


def test_streams_are_stopped_and_passed_likewise(client: Client) -> None:
    head = open_account(client)["head"]
    drawn = {"name": "d", "mechanism": json.dumps(pure("0.1"))}
    type_of = {"Content-Type": MEDIA_TYPE}
    for change, status in (({"seq": 2}, 412), ({}, 201)):
        answer = client.post(
            f"{_AT}/draws", params=drawn, content=counts([1, 2]), headers=_kept(head | change) | type_of
        )
        assert answer.status_code == status, answer.text


@pytest.fixture
def restored(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> Iterator[tuple[TestClient, TestClient]]:
    """Return a service, and one on its backup from before the last release."""
    path, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    shutil.copyfile(_sqlite_template, path)
    with client_of(application(open_database(f"sqlite:///{path}"), secret)) as client:
        open_account(client)
        release(client, _SMALL)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        with client_of(application(open_database(f"sqlite:///{backup}"), secret)) as old:
            yield client, old


def test_a_restored_backup_is_refused_by_who_kept_a_head(restored: tuple[TestClient, TestClient]) -> None:
    service, old = restored
    before = json_of(old.get(f"{_AT}/head"))
    last = release(service, concentrated("0.9"))
    assert release(old, concentrated("0.9"))["head"]["seq"] == last["head"]["seq"], "without the header it overspends"
    for method, path, body in _requests(last["id"]):
        problem_of(old.request(method, path, json=body, headers=_kept(last["head"])), "ledger_rolled_back")
    assert old.get(_AT, headers=_kept(before)).is_success


def test_an_account_that_was_forgotten_altogether_is_refused_too(client: Client) -> None:
    problem_of(client.get(_AT, headers=_kept({"seq": 1, "hash": "0" * 64})), "ledger_rolled_back")


@pytest.mark.parametrize(
    "value",
    [
        "", "1", ":", "1:", f"0:{'0' * 64}", f"-1:{'0' * 64}", f"1:{'0' * 63}", f"1:{'g' * 64}", f"1:{'A' * 64}",
        f"1.0:{'0' * 64}", f"NaN:{'0' * 64}", f"{10**20}:{'0' * 64}", f"1:{'0' * 64},2:{'0' * 64}",
        "\u0661:" + "0" * 64,
    ],
)  # fmt: skip
def test_a_malformed_header_is_explained(shared_client: Client, value: str) -> None:
    answer = shared_client.get("/v1/accounts/anybody", headers=[(b"If-Ledger-Includes", value.encode())])
    assert pointers_of(answer) == ["/header/If-Ledger-Includes"]
    assert "0000" not in answer.text


def test_a_header_that_comes_twice_or_where_no_account_is_meant_is_refused(shared_client: Client) -> None:
    head = _kept({"seq": 1, "hash": "0" * 64})
    twice = shared_client.get("/v1/accounts/anybody", headers=[*head.items(), *head.items()])
    assert pointers_of(twice) == ["/header/If-Ledger-Includes"]
    for method, path, body in [
        ("GET", "/v1/accounts", None),
        ("POST", "/v1/accounts", {"name": "a", "unit": "u", "neighbouring": "add_remove", "budget": {}}),
        ("GET", "/v1/installation", None),
        ("GET", "/v1/keys", None),
        ("POST", "/v1/compositions", {"plan": _SMALL}),
    ]:
        assert pointers_of(shared_client.request(method, path, json=body, headers=head)) == [
            "/header/If-Ledger-Includes"
        ]


def test_a_key_of_other_accounts_cannot_ask_what_is_in_a_journal(client: Client) -> None:
    head = open_account(client)["head"]
    other = make_key(client, "auditor", accounts=["others"])
    for change in ({}, {"seq": 9}):
        problem_of(client.get(_AT, headers=other | _kept(head | change)), "forbidden")


def test_the_header_costs_nothing_where_it_is_not_sent(client: Client) -> None:
    head = open_account(client)["head"]

    def statements(headers: dict[str, str]) -> int:
        seen: list[str] = []

        def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        event.listen(Engine, "after_cursor_execute", note)
        try:
            json_of(client.post(f"{_AT}/releases", json={"name": "one", "plan": _SMALL}, headers=headers), 201)
        finally:
            event.remove(Engine, "after_cursor_execute", note)
        return sum("JOIN accounts" in statement for statement in seen)

    statements({})  # statements that only the first charge makes
    assert statements({}) == 0
    assert statements(_kept(head)) == 2, "before it is worked on, and in the transaction that writes"
