"""Common calls of the tests of the HTTP interface, which must succeed."""

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import httpx2
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.app import create_app, openapi_document
from service.ledger.access.key_records import Role
from service.ledger.access.keys import create_key, ensure_first_key
from service.ledger.installation.binding import check_secret
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.settings import Settings

STEWARD = "the-first-steward's-key-of-the-tests"  # the bootstrap key

contract = cache(openapi_document)  # made once for all tests, which takes most of a second

Client = httpx2.Client
Answer = httpx2.Response


def application(database: Database, secret: Secret, **settings: Any) -> FastAPI:
    """Return the real application over a migrated database, with its first key.

    It has no helpers unless a test is about them: starting a process for each of thousands of tests would take as long
    as the tests.
    """
    check_secret(database, secret)
    ensure_first_key(database, secret, STEWARD, None)
    return create_app(_settings(**{"helper_processes": 0} | settings), database, secret, None)


@cache
def _settings(**given: Any) -> Settings:
    """Return settings, for which the environment is read once: to read it took a third of an application's start."""
    return Settings(**given)


def client_of(app: FastAPI) -> TestClient:
    """Return a steward's client of the application in this process; a crash becomes an answer and is not raised."""
    return TestClient(app, headers=bearer(STEWARD), raise_server_exceptions=False)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def json_of(answer: Answer, status: int = 200) -> Any:
    """Return the body of an answer that must have this status."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    return answer.json()


def pages_of(client: Client, path: str, **query: Any) -> Iterator[list[Any]]:
    """Yield the items of each page of a list."""
    cursor: dict[str, str] = {}
    while True:
        page = json_of(client.get(path, params=query | cursor))
        yield page["items"]
        if page["next_cursor"] is None:
            return
        assert page["next_cursor"] != cursor.get("cursor"), "the list does not end"
        cursor = {"cursor": page["next_cursor"]}


def problem_of(answer: Answer, code: str) -> Any:
    """Return the body of an answer that must be this problem."""
    problem = answer.json()
    assert problem["type"] == f"/problems/{code}", answer.text
    assert problem["status"] == answer.status_code
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"title", "detail", "instance"} <= problem.keys()
    return problem


def pointers_of(answer: Answer) -> list[str]:
    """Return the pointers of a validation problem's faults."""
    return [fault["pointer"] for fault in problem_of(answer, "validation")["errors"]]


def open_account(client: Client, name: str = "people", budget: Any = None, **fields: Any) -> Any:
    """Open an account, by default with a cap of rho = 1."""
    body = {"name": name, "unit": "person", "neighbouring": "add_remove"} | fields
    body["budget"] = {"definition": "zcdp", "rho": 1} if budget is None else budget
    return json_of(client.post("/v1/accounts", json=body), 201)


def head_of(client: Client, account: str = "people") -> Any:
    """Return the head of an account's journal, without the signature."""
    signed = json_of(client.get(f"/v1/accounts/{account}/head"))
    return {"seq": signed["seq"], "hash": signed["hash"]}


def charge(client: Client, plan: Any, account: str = "people", **fields: Any) -> Answer:
    """Return the answer to a release."""
    body = {"name": "a release", "plan": plan} | fields
    return client.post(f"/v1/accounts/{account}/releases", json=body)


def release(client: Client, plan: Any, account: str = "people", **fields: Any) -> Any:
    """Register a release that must fit."""
    return json_of(charge(client, plan, account, **fields), 201)


def make_key(client: Client, role: str, name: str = "somebody", **fields: Any) -> dict[str, str]:
    """Return the headers of a new key."""
    body = {"name": name, "role": role} | fields
    return bearer(json_of(client.post("/v1/keys", json=body), 201)["key"])


def operators_key(client: Client, role: Role, name: str, accounts: list[str] | None = None) -> dict[str, str]:
    """Return the headers of a key that the operator makes by a command, so that no steward has seen it."""
    state = cast("TestClient", client).app.state  # type: ignore[attr-defined]
    made = state.database.write(
        lambda connection: create_key(
            connection, state.secret, name=name, role=role, accounts=accounts, expires_at=None, at=clock.now()
        ),
        is_committed=lambda *_: False,
    )
    return bearer(made[1])


def pure(epsilon: Any, **fields: Any) -> dict[str, Any]:
    """Return a mechanism of this pure epsilon under add_remove."""
    return {"type": "geometric", "epsilon": epsilon, **fields}


def concentrated(rho: Any, **fields: Any) -> dict[str, Any]:
    """Return a mechanism of this rho under add_remove."""
    return {"type": "gaussian", "rho": rho, **fields}
