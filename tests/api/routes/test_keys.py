"""API keys over HTTP: created, shown once, listed, expired, revoked."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Connection, text

from service.ledger.access.keys import create_key
from service.ledger.accounts import able_approvers
from service.ledger.accounts.able_approvers import ListedIn
from service.ledger.installation import installation_journal
from service.ledger.journal.journal import Head, JournalEntry
from service.ledger.storage import clock, idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import EFFECTS
from service.ledger.storage.idempotency import seal_old
from service.ledger.storage.secret import Secret
from service.ledger.verification.adoption import adopt
from service.ledger.verification.verify_installation import verify_installation
from tests.api.calls import STEWARD, Client, bearer, json_of, make_key, open_account, pointers_of, problem_of


def test_a_revoked_key_is_none(client: Client) -> None:
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201)
    json_of(client.get("/v1/accounts", headers=bearer(made["key"])))
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    problem_of(client.get("/v1/accounts", headers=bearer(made["key"])), "unauthenticated")
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    (listed,) = [key for key in json_of(client.get("/v1/keys"))["items"] if key["id"] == made["id"]]
    assert listed["revoked_at"] >= made["created_at"]
    problem_of(client.delete("/v1/keys/unknown"), "not_found")


def test_a_key_ends_when_it_expires(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    until = clock.stamp(datetime.now(UTC) + timedelta(hours=1))
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor", "expires_at": until}), 201)
    assert made["expires_at"] == until
    json_of(client.get("/v1/accounts", headers=bearer(made["key"])))
    monkeypatch.setattr(clock, "now", lambda: until)
    problem_of(client.get("/v1/accounts", headers=bearer(made["key"])), "unauthenticated")


def test_a_new_key_is_shown_once_and_listed_without_its_token(client: Client) -> None:
    body = {"name": "tabulator", "role": "pipeline", "accounts": ["a", "b"], "expires_at": "2099-12-31T23:59:59+01:00"}
    made = json_of(client.post("/v1/keys", json=body), 201)
    token = made.pop("key")
    assert made.pop("unopened_accounts") == ["a", "b"]
    assert len(token) >= 40
    assert made | body == made | {"expires_at": body["expires_at"]}
    assert made["expires_at"] == "2099-12-31T22:59:59.000000Z"
    listed = json_of(client.get("/v1/keys"))
    assert listed["items"][-1] == made
    assert token not in str(listed)


def test_a_key_says_who_made_it_and_when_it_was_last_used(client: Client, app: FastAPI) -> None:
    maker = make_key(client, "steward", name="bob")
    made = json_of(client.post("/v1/keys", json={"name": "alice", "role": "steward"}, headers=maker), 201)
    assert (made["created_by"], made["last_used_at"]) == ("bob", None)
    before = clock.now()
    json_of(client.get("/v1/accounts", headers=bearer(made["key"])))
    app.state.uses.write()
    *_, bobs, alices = json_of(client.get("/v1/keys"))["items"]
    assert [key["created_by"] for key in (bobs, alices)] == ["first-steward", "bob"]
    assert bobs["last_used_at"] <= before <= alices["last_used_at"] <= clock.now()


def test_a_rotated_key_works_beside_the_new_one_and_is_shown_again_to_the_same_request(client: Client) -> None:
    body = {"name": "tabulator", "role": "pipeline", "accounts": ["a"], "expires_at": "2999-01-01T00:00:00Z"}
    old = json_of(client.post("/v1/keys", json=body, headers={"Idempotency-Key": "make"}), 201)
    once = {"Idempotency-Key": "rotate"}
    rotated = client.post(f"/v1/keys/{old['id']}/rotate", json={"overlap": "PT1H"}, headers=once)
    new = json_of(rotated, 201)
    kept = ("name", "role", "accounts")
    assert {name: new[name] for name in kept} == {name: old[name] for name in kept}
    assert (new["rotated_from"], new["rotated_to"], new["created_by"]) == (old["id"], None, "first-steward")
    for key in (old, new):
        json_of(client.get("/v1/jobs/none", headers=bearer(key["key"])), 403)
    assert client.delete(f"/v1/keys/{new['id']}").status_code == 204
    again = client.post(f"/v1/keys/{old['id']}/rotate", json={"overlap": "PT1H"}, headers=once)
    assert (again.status_code, again.text) == (201, rotated.text)
    assert again.headers["Idempotent-Replay"] == "true"
    first = client.post("/v1/keys", json=body, headers={"Idempotency-Key": "make"})
    assert (first.headers["Idempotent-Replay"], json_of(first, 201)) == ("true", old), "as it was before the rotation"
    problem_of(client.post(f"/v1/keys/{old['id']}/rotate", json={}), "conflict")
    problem_of(client.post("/v1/keys/unknown/rotate", json={}), "not_found")


def test_a_replay_shows_a_key_whose_answer_an_older_version_kept_without_its_body(
    client: Client, database: Database, secret: Secret
) -> None:
    once = {"Idempotency-Key": "make"}
    made = json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}, headers=once), 201)
    statement = text("UPDATE stored_answers SET body = NULL, seal = NULL")
    database.write(lambda connection: connection.execute(statement), is_committed=lambda *_: False)
    database.write(lambda connection: seal_old(connection, secret, ("", ""), 1), is_committed=lambda *_: False)
    assert json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}, headers=once), 201) == made


@pytest.mark.parametrize(
    "change",
    [
        "api_key_id = :other",
        "body = replace(body, :mine, :other)",
        "api_key_id = :other, body = NULL",
        "api_key_id = :other, body = replace(body, :mine, :other)",
    ],
)
@pytest.mark.parametrize("row", ["", "UPDATE api_keys SET created_by = 'ann' WHERE id = :other"])
def test_a_replay_shows_nobody_a_key_that_somebody_else_made(
    client: Client, database: Database, secret: Secret, change: str, row: str
) -> None:
    """This holds even where a sealed stored answer refers to it."""
    other = json_of(client.post("/v1/keys", json={"name": "bob", "role": "steward"}), 201)
    ann = make_key(client, "steward", name="ann")
    body, once = {"name": "helper", "role": "auditor"}, ann | {"Idempotency-Key": "make"}
    mine = json_of(client.post("/v1/keys", json=body, headers=once), 201)

    def forge(connection: Connection) -> None:
        ids = {"mine": mine["id"], "other": other["id"]}
        given = {name: ids[name] for name in ids if f":{name}" in change}
        connection.execute(text(f"UPDATE stored_answers SET {change}, seal = NULL WHERE principal = 'ann'"), given)
        if row:
            connection.execute(text(row), {"other": other["id"]})
        assert idempotency.seal_old(connection, secret, ("", ""), 10) == [("ann", "make")]

    database.write(forge, is_committed=lambda *_: False)
    refused = client.post("/v1/keys", json=body, headers=once)
    assert "not as this service wrote it" in problem_of(refused, "conflict")["detail"]
    assert other["key"] not in refused.text


def test_no_token_is_in_a_stored_answer(client: Client, database: Database) -> None:
    made = json_of(
        client.post("/v1/keys", json={"name": "n", "role": "auditor"}, headers={"Idempotency-Key": "k"}), 201
    )
    with database.read() as connection:
        stored = connection.execute(text("SELECT body FROM stored_answers")).scalar_one()
    assert made["id"] in stored
    assert made["key"] not in stored


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"overlap": "PT0S"}, "/overlap"),
        ({"overlap": "P367D"}, "/overlap"),
        ({"overlap": "-PT1H"}, "/overlap"),
        ({"overlap": "tomorrow"}, "/overlap"),
        ({"overlap": 24}, "/overlap"),
        ({"overlap": None}, "/overlap"),
        ({"role": "steward"}, "/role"),
        ({"accounts": None}, "/accounts"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "/expires_at"),
        ([], ""),
    ],
)
def test_rotations_without_a_meaning(shared_client: Client, body: Any, pointer: str) -> None:
    key = json_of(shared_client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201)["id"]
    assert pointers_of(shared_client.post(f"/v1/keys/{key}/rotate", json=body)) == [pointer]
    assert json_of(shared_client.get("/v1/keys?limit=1000"))["items"][-1]["id"] == key, "nothing was made"


def test_keys_are_listed_page_by_page(client: Client) -> None:
    made = [json_of(client.post("/v1/keys", json={"name": str(n), "role": "auditor"}), 201)["id"] for n in range(4)]
    found, query = [], "limit=2"
    for _ in range(3):
        page = json_of(client.get(f"/v1/keys?{query}"))
        found += [key["id"] for key in page["items"]]
        query = f"limit=2&cursor={page['next_cursor']}"
    assert found[1:] == made  # the first one is the first steward's
    assert page["next_cursor"] is None
    assert pointers_of(client.get("/v1/keys?cursor=eA")) == ["/query/cursor"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"role": "admin"}, "/role"),
        ({"name": ""}, "/name"),
        ({"name": "a\u0007"}, "/name"),
        ({"name": "oidc:ann"}, "/name"),
        ({"accounts": []}, "/accounts"),
        ({"accounts": ["A"]}, "/accounts/0"),
        ({"accounts": "people"}, "/accounts"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"expires_at": "2099-01-01T00:00:00"}, "/expires_at"),  # without a time zone
        ({"expires_at": "2099-01-01"}, "/expires_at"),
        ({"expires_at": "tomorrow"}, "/expires_at"),
        ({"expires_at": 4070908800}, "/expires_at"),
        ({"expires_at": "4070908800"}, "/expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-01:00"}, "/expires_at"),  # in year 10000
        ({"expires_at": "0001-01-01T00:00:00+01:00"}, "/expires_at"),  # in year 0
        ({"token": "mine"}, "/token"),
    ],
)  # fmt: skip
def test_keys_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    answer = shared_client.post("/v1/keys", json={"name": "n", "role": "auditor"} | fields)
    assert pointers_of(answer) == [pointer]


_MINTED = "INSERT INTO api_keys (id, name, role, token_hash, created_at) VALUES ('minted', 'm', 'steward', :hash, :at)"


def test_a_key_that_somebody_puts_into_the_database_is_none(client: Client, database: Database) -> None:
    """The attack: a row with the SHA-256 of a chosen token was accepted as a steward."""
    token = "chosen by whoever writes the database"
    row = {"hash": hashlib.sha256(token.encode()).hexdigest(), "at": clock.now()}
    database.write(lambda connection: connection.execute(text(_MINTED), row), is_committed=lambda *_: False)
    problem_of(client.get("/v1/keys", headers=bearer(token)), "unauthenticated")


def test_an_auditor_whose_row_is_changed_is_no_steward(client: Client, database: Database) -> None:
    auditor = make_key(client, "auditor", "ann")
    json_of(client.get("/v1/accounts", headers=auditor))
    statement = text("UPDATE api_keys SET role = 'steward' WHERE name = 'ann'")
    database.write(lambda connection: connection.execute(statement), is_committed=lambda *_: False)
    problem_of(client.get("/v1/keys", headers=auditor), "unauthenticated")
    problem_of(client.get("/v1/accounts", headers=auditor), "unauthenticated")
    json_of(client.get("/v1/accounts"))


def test_an_answer_that_somebody_changed_is_not_given_again(client: Client, database: Database) -> None:
    once = {"Idempotency-Key": "open"}
    body = {"name": "people", "unit": "person", "neighbouring": "add_remove"}
    body["budget"] = {"definition": "zcdp", "rho": 1}  # type: ignore[assignment]
    json_of(client.post("/v1/accounts", json=body, headers=once), 201)
    statement = text("UPDATE stored_answers SET body = replace(body, 'add_remove', 'replace_one')")
    database.write(lambda connection: connection.execute(statement), is_committed=lambda *_: False)
    refused = problem_of(client.post("/v1/accounts", json=body, headers=once), "conflict")
    assert "was changed and is not repeated" in refused["detail"]


def test_entries_name_the_key_beside_the_principal(client: Client) -> None:
    made = json_of(client.post("/v1/keys", json={"name": "ann", "role": "steward"}), 201)
    body = {"name": "people", "unit": "person", "neighbouring": "add_remove"}
    body["budget"] = {"definition": "zcdp", "rho": 1}  # type: ignore[assignment]
    json_of(client.post("/v1/accounts", json=body, headers=bearer(made["key"])), 201)
    (opened,) = json_of(client.get("/v1/accounts/people/journal"))["items"]
    assert (opened["entry"]["actor"], opened["entry"]["key"]) == ("ann", made["id"])
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


_STEWARD = {"role": "steward"}
_PEOPLE = {"name": "people", "unit": "person", "neighbouring": "add_remove"}
_PLAN = {"type": "gaussian", "rho": "0.01"}
_VOID = {"reason": "withdrawn", "attestation": "nothing was published"}


def _row(database: Database, key_id: str) -> dict[str, Any]:
    with database.read() as connection:
        query = text("SELECT id, token_hash, expires_at, revoked_at, seal FROM api_keys WHERE id = :id")
        return dict(connection.execute(query, {"id": key_id}).one()._mapping)


def _put(database: Database, row: dict[str, Any]) -> None:
    statement = "UPDATE api_keys SET token_hash = :token_hash, expires_at = :expires_at, revoked_at = :revoked_at"
    change = text(f"{statement}, seal = :seal WHERE id = :id")
    database.write(lambda connection: connection.execute(change, row), is_committed=lambda *_: False)


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_key_whose_old_row_is_put_back_does_nothing_that_stewards_do(
    client: Client, database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The attack: the row has its old seal again for one request, and a key created then would have lasted."""
    budget = {"definition": "zcdp", "rho": 1}
    open_account(client)
    # Of the first steward's principal: its earlier answers would be replayed.
    eve = json_of(client.post("/v1/keys", json={"name": "first-steward"} | _STEWARD), 201)
    once = {"Idempotency-Key": "make"}
    bob = json_of(client.post("/v1/keys", json={"name": "bob"} | _STEWARD, headers=once), 201)
    old, mine = _row(database, eve["id"]), bearer(eve["key"])
    if end == "revoked":
        client.delete(f"/v1/keys/{eve['id']}")
    else:
        json_of(client.post(f"/v1/keys/{eve['id']}/rotate", json={"overlap": "PT1H"}), 201)
        later = clock.later(clock.now(), timedelta(hours=2))
        monkeypatch.setattr(clock, "now", lambda: later)
    ended = _row(database, eve["id"])
    problem_of(client.get("/v1/keys", headers=mine), "unauthenticated")

    _put(database, old)
    problem_of(client.get("/v1/keys", headers=mine), "unauthenticated")
    database._ends.clear()  # as another server, which has not read of the end yet
    listed = json_of(client.get("/v1/keys", headers=mine))["items"]
    ends = {key["id"]: (key["revoked_at"], key["expires_at"]) for key in listed}
    assert ends[eve["id"]] == (ended["revoked_at"], ended["expires_at"]), "the list goes by the journal"
    acts: list[tuple[str, str, Any]] = [
        ("POST", "/v1/keys", {"name": "eve"} | _STEWARD),
        ("POST", f"/v1/keys/{bob['id']}/rotate", {}),
        ("DELETE", f"/v1/keys/{bob['id']}", None),
        ("POST", "/v1/accounts", _PEOPLE | {"name": "others", "budget": budget}),
        ("PATCH", "/v1/accounts/people", {"budget": budget | {"rho": 2}}),
        ("PATCH", "/v1/accounts/people", {"state": "closed"}),
    ]
    before = json_of(client.get("/v1/accounts/people/journal"))
    for method, path, body in acts:
        problem_of(client.request(method, path, json=body, headers=mine), "unauthenticated")
    again = client.post("/v1/keys", json={"name": "bob"} | _STEWARD, headers=mine | once)
    problem_of(again, "unauthenticated")
    assert bob["key"] not in again.text
    assert json_of(client.get("/v1/accounts/people/journal")) == before

    _put(database, ended)
    problem_of(client.get("/v1/keys", headers=mine), "unauthenticated")
    assert [key["id"] for key in json_of(client.get("/v1/keys"))["items"]] == [key["id"] for key in listed]
    with database.read() as connection:
        assert list(verify_installation(connection, secret)) == []


def test_a_revoked_key_whose_old_row_is_put_back_approves_nothing(
    client: Client, database: Database, secret: Secret
) -> None:
    open_account(client, approval_above=0)
    proposed = json_of(client.post("/v1/accounts/people/releases", json={"name": "r", "plan": _PLAN}), 201)
    path = f"/v1/accounts/people/releases/{proposed['id']}/approve"
    operators = database.write(
        lambda connection: create_key(
            connection, secret, name="eve", role="steward", accounts=None, expires_at=None, at=clock.now()
        ),
        is_committed=lambda *_: False,
    )
    old, eve = _row(database, operators[0].id), bearer(operators[1])
    assert client.delete(f"/v1/keys/{operators[0].id}").status_code == 204
    _put(database, old)
    problem_of(client.post(path, headers=eve), "unauthenticated")
    problem_of(client.patch("/v1/accounts/people", json={"approval_above": 0}, headers=eve), "unauthenticated")


@pytest.mark.parametrize("accounts", ["[" * 200_000, "5", "[1]", '{"a": 1}', "[NaN]", r'["\ud800"]', "é"])
def test_a_row_of_which_nothing_can_be_read_keeps_nothing_else_from_being_shown(
    client: Client, database: Database, secret: Secret, accounts: str
) -> None:
    adopt(database, secret, STEWARD)
    insert = text(_MINTED.replace("(id,", "(accounts, id,").replace("('minted'", "(:accounts, 'minted'"))
    row = {"hash": "x", "at": clock.now(), "accounts": accounts}
    database.write(lambda connection: connection.execute(insert, row), is_committed=lambda *_: False)
    assert "minted" not in [key["id"] for key in json_of(client.get("/v1/keys"))["items"]]
    adopt(database, secret, STEWARD)
    with database.read() as connection:
        assert list(verify_installation(connection, secret)) == ["api_keys: no entry made the key minted of 'm'"]


def test_requests_read_no_old_entry_of_the_installations_journal(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys with long lists of accounts must not make the requests of other stewards long."""
    made = [json_of(client.post("/v1/keys", json={"name": "n", "role": "auditor"}), 201) for _ in range(4)]
    open_account(client, approval_above=0)
    proposed = json_of(client.post("/v1/accounts/people/releases", json={"name": "r", "plan": _PLAN}), 201)
    json_of(client.get("/v1/keys"))
    numbers: list[int] = []
    checked = installation_journal._checked

    def check(secret: Secret, previous: Head, entry: JournalEntry, seal: str) -> dict[str, Any]:
        numbers.append(entry.seq)
        return checked(secret, previous, entry, seal)

    monkeypatch.setattr(installation_journal, "_checked", check)
    once = {"Idempotency-Key": "make"}
    for _ in range(2):
        json_of(client.post("/v1/keys", json={"name": "m", "role": "steward"}, headers=once), 201)
    json_of(client.post(f"/v1/keys/{made[0]['id']}/rotate", json={}), 201)
    assert client.delete(f"/v1/keys/{made[1]['id']}").status_code == 204
    assert len(json_of(client.get("/v1/keys?limit=1"))["items"]) == 1
    json_of(client.post(f"/v1/accounts/people/releases/{proposed['id']}/void", json=_VOID), 200)
    open_account(client, "others")
    json_of(client.patch("/v1/accounts/people", json={"state": "closed"}))
    assert numbers
    assert min(numbers) > len(made), "the entries before were read by then"


def test_a_key_that_an_account_would_refuse_is_not_made_where_it_must_count(client: Client) -> None:
    """An account lists bob; alice, whom it does not list, makes and rotates keys of his name."""
    open_account(client, approval_above="0.1", approvers={"at_least": 1, "of": ["bob", "carol"]})
    alice, carol = (make_key(client, "steward", name) for name in ("alice", "carol"))
    body: dict[str, Any] = {"name": "bob", "role": "approver"}
    refused = client.post("/v1/keys", json=body | {"must_count": True}, headers=alice)
    (fault,) = problem_of(refused, "validation")["errors"]
    assert fault["pointer"] == "/must_count"
    assert "bob can approve for people: alice is not among the approvers there" in fault["detail"]
    assert fault["detail"].endswith("python -m service keys create --role approver --name bob")
    assert [key["name"] for key in json_of(client.get("/v1/keys"))["items"]].count("bob") == 0
    of_pipeline = body | {"role": "pipeline", "must_count": True}
    assert json_of(client.post("/v1/keys", json=of_pipeline, headers=alice), 201)["not_approver_of"] == []
    sound = json_of(client.post("/v1/keys", json=body | {"must_count": True}, headers=carol), 201)
    assert sound["not_approver_of"] == []
    rotate = f"/v1/keys/{sound['id']}/rotate"
    refused = client.post(rotate, json={"must_count": True}, headers=alice)
    assert problem_of(refused, "validation")["detail"].endswith("/must_count")
    rotated = json_of(client.post(rotate, json={}, headers=alice | {"Idempotency-Key": "r"}), 201)
    assert rotated["not_approver_of"] == ["people"]
    assert json_of(client.post(rotate, json={}, headers=alice | {"Idempotency-Key": "r"}), 201) == rotated
    listed = {key["id"]: key["not_approver_of"] for key in json_of(client.get("/v1/keys"))["items"]}
    assert (listed[sound["id"]], listed[rotated["id"]]) == ([], ["people"])


def test_lists_of_approvers_are_read_before_the_lock(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(client, approval_above="0.1", approvers={"at_least": 1, "of": ["bob"]})
    read = able_approvers.lists_of_approvers

    def unlocked(connection: Connection, name: str | None = None) -> list[ListedIn]:
        assert EFFECTS not in connection.info, "only transactions that write have effects"
        return read(connection, name)

    monkeypatch.setattr(able_approvers, "lists_of_approvers", unlocked)
    body = {"name": "bob", "role": "approver", "must_count": True}
    problem_of(client.post("/v1/keys", json=body, headers=make_key(client, "steward", "alice")), "validation")
    made = json_of(client.post("/v1/keys", json=body | {"name": "carol"}), 201)
    json_of(client.post(f"/v1/keys/{made['id']}/rotate", json={"must_count": True}), 201)
    problem_of(client.post("/v1/keys/unknown/rotate", json={"must_count": True}), "not_found")


def test_a_new_key_says_which_of_its_accounts_are_not_open(client: Client) -> None:
    open_account(client)
    body = {"name": "n", "role": "pipeline", "accounts": ["nope", "people"]}
    assert json_of(client.post("/v1/keys", json=body), 201)["unopened_accounts"] == ["nope"]
