"""API keys over HTTP: made, shown once, listed, expired, revoked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service.ledger import clock
from service.ledger.database import Database
from tests.api.calls import Client, bearer, json_of, pointers_of, problem_of


def test_a_revoked_key_is_none(client: Client) -> None:
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201)
    json_of(client.get("/v1/accounts", headers=bearer(made["key"])))
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    problem_of(client.get("/v1/accounts", headers=bearer(made["key"])), "unauthenticated")
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    (listed,) = [key for key in json_of(client.get("/v1/keys"))["items"] if key["id"] == made["id"]]
    assert listed["revoked_at"] >= made["created_at"]
    problem_of(client.delete("/v1/keys/unknown"), "not_found")


def test_a_key_ends_when_it_expires(client: Client, database: Database) -> None:
    until = clock.stamp(datetime.now(UTC) + timedelta(hours=1))
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor", "expires_at": until}), 201)
    assert made["expires_at"] == until
    json_of(client.get("/v1/accounts", headers=bearer(made["key"])))
    past = {"past": clock.stamp(datetime.now(UTC) - timedelta(seconds=1)), "id": made["id"]}
    database.write(
        lambda connection: connection.execute(text("UPDATE api_keys SET expires_at = :past WHERE id = :id"), past),
        landed=lambda *_: False,
    )
    problem_of(client.get("/v1/accounts", headers=bearer(made["key"])), "unauthenticated")


def test_a_new_key_is_shown_once_and_listed_without_its_token(client: Client) -> None:
    body = {"name": "tabulator", "role": "pipeline", "accounts": ["a", "b"], "expires_at": "2099-12-31T23:59:59+01:00"}
    made = json_of(client.post("/v1/keys", json=body), 201)
    token = made.pop("key")
    assert len(token) >= 40
    assert made | body == made | {"expires_at": body["expires_at"]}
    assert made["expires_at"] == "2099-12-31T22:59:59.000000Z"
    listed = json_of(client.get("/v1/keys"))
    assert listed["items"][-1] == made
    assert token not in str(listed)


def test_keys_are_listed_page_by_page(client: Client) -> None:
    made = [json_of(client.post("/v1/keys", json={"name": str(n), "role": "auditor"}), 201)["id"] for n in range(4)]
    found, query = [], "limit=2"
    for _ in range(3):
        page = json_of(client.get(f"/v1/keys?{query}"))
        found += [key["id"] for key in page["items"]]
        query = f"limit=2&cursor={page['next_cursor']}"
    assert found[1:] == made  # the first is the first steward's
    assert page["next_cursor"] is None
    assert pointers_of(client.get("/v1/keys?cursor=eA")) == ["/query/cursor"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"role": "admin"}, "/role"),
        ({"name": ""}, "/name"),
        ({"name": "a\u0007"}, "/name"),
        ({"accounts": []}, "/accounts"),
        ({"accounts": ["A"]}, "/accounts/0"),
        ({"accounts": "people"}, "/accounts"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "2099-01-01T00:00:00"}, "/expires_at"),  # of no time zone
        ({"expires_at": "2099-01-01"}, "/expires_at"),
        ({"expires_at": "tomorrow"}, "/expires_at"),
        ({"expires_at": 4070908800}, "/expires_at"),
        ({"expires_at": "4070908800"}, "/expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-01:00"}, "/expires_at"),  # in year 10000
        ({"expires_at": "0001-01-01T00:00:00+01:00"}, "/expires_at"),  # in year 0
        ({"token": "mine"}, "/token"),
    ],
)  # fmt: skip
def test_keys_without_a_meaning(still: Client, fields: Any, pointer: str) -> None:
    answer = still.post("/v1/keys", json={"name": "n", "role": "auditor"} | fields)
    assert pointers_of(answer) == [pointer]
