"""Webhooks over HTTP: made, shown once, changed, rotated, tested and deleted; their deliveries."""

from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from service.ledger.notifications import deliveries, webhook_changes, webhooks
from service.ledger.notifications.deliveries import Message
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Answer,
    Client,
    application,
    bearer,
    client_of,
    json_of,
    make_key,
    open_account,
    pages_of,
    pointers_of,
    problem_of,
)
from tests.ledger.charging import SECRET
from tests.ledger.notifications.hooks import change_webhook
from tests.ledger.writing import never, run

_URL = "https://hooks.agency.example/ledger?from=us"
_BODY = {"name": "approvals", "url": _URL, "events": ["release.proposed", "budget.below"], "below": "0.2"}
_MAIL: dict[str, Any] = {"url": None, "mail": ["ann@agency.example"]}


def make(client: Client, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return json_of(client.post("/v1/webhooks", json=_BODY | fields, headers=headers), 201)


def listed(client: Client, headers: dict[str, str] | None = None) -> list[str]:
    return [one["id"] for one in json_of(client.get("/v1/webhooks", headers=headers))["items"]]


def stated(answer: Answer) -> Any:
    """Return a stated webhook without its secret and the outcome of its messages."""
    left_out = ("secret", "accounts_missing", "delivered_at", "failing_since")
    return {name: value for name, value in json_of(answer, answer.status_code).items() if name not in left_out}


def all_stated(client: Client) -> list[Any]:
    return [stated(client.get(f"/v1/webhooks/{one}")) for one in listed(client)]


def test_a_webhook_is_shown_with_its_secret_once(client: Client) -> None:
    made = make(client)
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert made | _BODY == made
    assert (made["active"], made["generation"], made["created_by"]) == (True, 1, "first-steward")
    answer = client.get("/v1/webhooks")
    nothing_yet: dict[str, Any] = {"accounts_missing": [], "delivered_at": None, "failing_since": None}
    assert json_of(answer)["items"] == [made | nothing_yet]
    assert secret not in answer.text


def test_a_webhook_names_accounts_that_do_not_exist(client: Client) -> None:
    open_account(client, "labour-2027")
    made = make(client, accounts=["labour-2072", "labour-2027"])
    (shown,) = json_of(client.get("/v1/webhooks"))["items"]
    assert shown["accounts_missing"] == ["labour-2072"]
    open_account(client, "labour-2072")
    assert json_of(client.get(f"/v1/webhooks/{made['id']}"))["accounts_missing"] == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9", "localhost", "[::1]", "10.0.0.8", "169.254.169.254", "127.1", "2130706433"]
)
def test_an_address_that_no_request_may_reach_is_refused_at_once(embedded: Client, host: str) -> None:
    refused = embedded.post("/v1/webhooks", json=_BODY | {"url": f"https://{host}/"})
    (fault,) = problem_of(refused, "validation")["errors"]
    assert (fault["pointer"], "SERVICE_WEBHOOK_NETWORKS" in fault["detail"]) == ("/url", True)
    made = make(embedded)
    at = f"/v1/webhooks/{made['id']}"
    assert set(pointers_of(embedded.patch(at, json={"url": f"https://{host}/"}))) == {"/url"}
    assert json_of(embedded.get(at))["url"] == _URL


def test_a_repeated_request_makes_one_webhook_and_shows_its_secret_again(client: Client, database: Database) -> None:
    once = {"Idempotency-Key": "hook"}
    first, second = (client.post("/v1/webhooks", json=_BODY, headers=once) for _ in range(2))
    assert json_of(first, 201) == json_of(second, 201)
    assert second.headers["Idempotent-Replay"] == "true"
    with database.read() as connection:
        stored = connection.execute(text("SELECT body FROM stored_answers")).scalars().all()
    assert first.json()["secret"] not in str(stored)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"url": None}, "/url"),
        ({"mail": ["ann@agency.example"]}, "/url"),
        ({"url": "http://hooks.agency.example/"}, "/url"),
        ({"url": "https://user:word@hooks.agency.example/"}, "/url"),
        ({"url": "https://hooks.agency.example/#part"}, "/url"),
        ({"url": "https://hooks.agency.example:0/"}, "/url"),
        ({"url": "https://hooks.agency.example:99999/"}, "/url"),
        ({"url": "https:///ledger"}, "/url"),
        ({"url": "https://höoks.agency.example/"}, "/url"),
        ({"url": "https://hooks.agency.example/a b"}, "/url"),
        ({"url": "https://hooks.agency.example/\r\nX: y"}, "/url"),
        ({"url": "ftp://hooks.agency.example/"}, "/url"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"url": "https://[::1/"}, "/url"),
        ({"url": _URL + "x" * 2000}, "/url"),
        ({"url": 1}, "/url"),
        (_MAIL, "/mail"),  # the operator has set no server for mail
        ({"mail": [], "url": None}, "/mail"),
        ({"mail": ["ann@agency.example\nBcc: eve@example"], "url": None}, "/mail/0"),
        ({"mail": ["Ann <ann@agency.example>"], "url": None}, "/mail/0"),
        ({"mail": ["ann@agency.example"] * 21, "url": None}, "/mail"),
        ({"events": []}, "/events"),
        ({"events": ["release.drawn"]}, "/events/0"),
        ({"events": ["budget.below", "budget.below"]}, "/events"),
        ({"events": ["budget.below", "ledger.stopped"], "accounts": ["people"]}, "/events"),
        ({"accounts": []}, "/accounts"),
        ({"accounts": ["No Name"]}, "/accounts/0"),
        ({"below": None}, "/below"),
        ({"events": ["release.proposed"]}, "/below"),
        ({"below": "0"}, "/below"),
        ({"below": 1}, "/below"),
        ({"below": "-1/2"}, "/below"),
        ({"below": "NaN"}, "/below"),
        ({"below": "1e-500"}, "/below"),
        ({"name": ""}, "/name"),
        ({"name": "a\nb"}, "/name"),
        ({"secret": "mine"}, "/secret"),
        ({"active": False}, "/active"),
    ],
)
def test_invalid_webhooks_are_refused(embedded: Client, fields: dict[str, Any], pointer: str) -> None:
    assert pointers_of(embedded.post("/v1/webhooks", json=_BODY | fields)) == [pointer]
    assert listed(embedded) == []


def test_mail_has_no_secret(database: Database, secret: Secret) -> None:
    app = application(database, secret, smtp_host="127.0.0.1", smtp_port=9, smtp_from="ledger@agency.example")
    with client_of(app) as client:
        made = make(client, **_MAIL)
        assert (made["secret"], made["mail"]) == (None, ["ann@agency.example"])
        refused = client.post(f"/v1/webhooks/{made['id']}/rotate")
        assert pointers_of(refused) == ["/path/webhook"]


def test_some_fields_are_changed(client: Client) -> None:
    made = make(client)
    at = f"/v1/webhooks/{made['id']}"
    changed = json_of(client.patch(at, json={"events": ["release.approved"], "below": None, "active": False}))
    assert [changed] == all_stated(client)
    assert changed == {k: v for k, v in made.items() if k != "secret"} | {
        "events": ["release.approved"],
        "below": None,
        "active": False,
    }
    changed = json_of(client.patch(at, json={"accounts": ["people"], "name": "others"}))
    assert (changed["accounts"], changed["name"], changed["active"]) == (["people"], "others", False)
    assert stated(client.patch(at, json={})) == stated(client.get(at)) == changed


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"events": None}, "/events"),
        ({"name": None}, "/name"),
        ({"active": None}, "/active"),
        ({"active": 1}, "/active"),
        ({"below": None}, "/below"),
        ({"url": None}, "/url"),
        ({"events": ["ledger.stopped"], "below": None, "accounts": ["people"]}, "/events"),
        ({"generation": 5}, "/generation"),
    ],
)
def test_invalid_changes_are_refused(embedded: Client, fields: dict[str, Any], pointer: str) -> None:
    made = make(embedded)
    assert set(pointers_of(embedded.patch(f"/v1/webhooks/{made['id']}", json=fields))) == {pointer}
    assert all_stated(embedded) == [{k: v for k, v in made.items() if k != "secret"}]


def test_a_rotation_gives_another_secret(client: Client) -> None:
    made = make(client)
    once = {"Idempotency-Key": "rotation"}
    rotated, again = (json_of(client.post(f"/v1/webhooks/{made['id']}/rotate", headers=once), 201) for _ in range(2))
    assert rotated == again
    assert (rotated["generation"], rotated["id"]) == (2, made["id"])
    assert rotated["secret"] != made["secret"]


def test_a_deleted_webhook_is_gone(client: Client) -> None:
    made = make(client)
    at = f"/v1/webhooks/{made['id']}"
    json_of(client.post(f"{at}/test"), 202)
    assert client.delete(at).status_code == 204
    assert listed(client) == []
    for answer in (
        client.get(at),
        client.delete(at),
        client.patch(at, json={}),
        client.post(f"{at}/rotate"),
        client.post(f"{at}/test"),
        client.get(f"{at}/deliveries"),
    ):
        problem_of(answer, "not_found")


def test_webhooks_and_deliveries_come_in_pages(client: Client) -> None:
    ids = [make(client, name=str(number))["id"] for number in range(3)]
    assert [[one["id"] for one in page] for page in pages_of(client, "/v1/webhooks", limit=2)] == [ids[:2], ids[2:]]
    at = f"/v1/webhooks/{ids[0]}"
    sent = [json_of(client.post(f"{at}/test"), 202)["id"] for _ in range(3)]
    pages = [[one["id"] for one in page] for page in pages_of(client, f"{at}/deliveries", limit=2)]
    assert pages == [[sent[2], sent[1]], [sent[0]]]
    table = client.get(f"{at}/deliveries", headers={"Accept": "text/csv"}).text
    assert table.splitlines()[0] == "id,type,account,created_at,state,next_try_at,payload"
    assert len(table.splitlines()) == 4


def test_only_a_message_that_failed_is_tried_again(client: Client, app: FastAPI) -> None:
    made = make(client)
    at = f"/v1/webhooks/{made['id']}/deliveries"
    sent = json_of(client.post(f"/v1/webhooks/{made['id']}/test"), 202)
    assert sent["payload"] == {
        "type": "test",
        "id": sent["id"],
        "timestamp": sent["payload"]["timestamp"],
        "data": {"webhook": "approvals"},
    }
    assert "pending" in problem_of(client.post(f"{at}/{sent['id']}/retry"), "conflict")["detail"]
    problem_of(client.post(f"{at}/unknown/retry"), "not_found")
    other = make(client)["id"]
    problem_of(client.post(f"/v1/webhooks/{other}/deliveries/{sent['id']}/retry"), "not_found")


def test_few_tests_of_a_webhook_wait(client: Client) -> None:
    first, second = (f"/v1/webhooks/{make(client)['id']}" for _ in range(2))
    for _ in range(10):
        json_of(client.post(f"{first}/test"), 202)
    assert "10 test messages" in problem_of(client.post(f"{first}/test"), "conflict")["detail"]
    json_of(client.post(f"{second}/test"), 202)


def test_a_limited_steward_manages_webhooks_of_its_accounts(client: Client) -> None:
    limited = make_key(client, "steward", "limited", accounts=["people", "families"])
    for accounts in (None, ["people", "elsewhere"]):
        answer = client.post("/v1/webhooks", json=_BODY | {"accounts": accounts}, headers=limited)
        problem_of(answer, "forbidden")
    own = make(client, limited, accounts=["people"])["id"]
    others = [make(client)["id"], make(client, accounts=["people", "elsewhere"])["id"]]
    assert listed(client, limited) == [own]
    assert listed(client) == [own, *others]
    problem_of(client.patch(f"/v1/webhooks/{own}", json={"accounts": None}, headers=limited), "forbidden")
    for other in others:
        at = f"/v1/webhooks/{other}"
        for method, path, body in (
            ("PATCH", at, {"name": "mine"}),
            ("PATCH", at, {"accounts": ["people"]}),
            ("GET", at, None),
            ("DELETE", at, None),
            ("POST", f"{at}/rotate", None),
            ("POST", f"{at}/test", None),
            ("GET", f"{at}/deliveries", None),
        ):
            problem_of(client.request(method, path, json=body, headers=limited), "forbidden")
    json_of(client.patch(f"/v1/webhooks/{own}", json={"accounts": ["families"]}, headers=limited))
    assert client.delete(f"/v1/webhooks/{own}", headers=limited).status_code == 204


def test_a_narrowed_webhook_gives_a_limited_steward_no_message_of_before(client: Client, database: Database) -> None:
    limited = make_key(client, "steward", "limited", accounts=["people"])
    made = make(client, accounts=["secret-a", "people"])["id"]
    at = f"/v1/webhooks/{made}"
    sent = [_queued(database, made, account) for account in ("secret-a", "people")]
    assert [one["id"] for one in json_of(client.get(f"{at}/deliveries"))["items"]] == sent[::-1]
    json_of(client.patch(at, json={"accounts": ["people"]}))
    beyond = _queued(database, made, "secret-a")  # as if it had come meanwhile
    answer = client.get(f"{at}/deliveries", headers=limited)
    assert [one["id"] for one in json_of(answer)["items"]] == [sent[1]]
    assert "secret-a" not in answer.text
    problem_of(client.post(f"{at}/deliveries/{beyond}/retry", headers=limited), "not_found")
    test = json_of(client.post(f"{at}/test", headers=limited), 202)["id"]
    shown = json_of(client.get(f"{at}/deliveries", headers=limited))["items"]
    assert [one["id"] for one in shown] == [test, sent[1]]


def _queued(database: Database, webhook: str, account: str) -> str:
    at = clock.now()
    message = Message(webhook, "release.proposed", account, at, {"account": account})
    (made,) = database.write(
        lambda c: deliveries.queue(c, deliveries.sealed(SECRET, [message], at)), is_committed=never
    )
    return made


@pytest.mark.parametrize("path", ["", "/rotate"])
def test_a_webhook_that_is_widened_meanwhile_is_not_changed_by_a_limited_key(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    limited = make_key(client, "steward", "limited", accounts=["people"])
    made = make(client, accounts=["people"])
    read = webhooks.read_webhook

    def late(*arguments: Any, **named: Any) -> Any:
        found = read(*arguments, **named)
        monkeypatch.undo()
        change_webhook(database, made["id"], accounts=None)
        return found

    monkeypatch.setattr(webhooks, "read_webhook", late)
    at = f"/v1/webhooks/{made['id']}{path}"
    answer = (
        client.post(at, headers=limited) if path else client.patch(at, json={"accounts": ["people"]}, headers=limited)
    )
    problem_of(answer, "forbidden")
    assert json_of(client.get(f"/v1/webhooks/{made['id']}"))["accounts"] is None


@pytest.mark.parametrize(("by", "problem"), [("delete", "not_found"), ("post", "unavailable")])
def test_no_request_takes_an_earlier_row_that_somebody_put_back(
    client: Client, database: Database, by: str, problem: str
) -> None:
    """One from before the deletion, or before a rotation."""
    made = make(client)
    at = f"/v1/webhooks/{made['id']}"
    with database.read() as connection:
        before = connection.execute(text("SELECT * FROM webhooks")).mappings().one()
    assert client.request(by, at if by == "delete" else f"{at}/rotate").is_success
    values = ", ".join(f"{name} = :{name}" for name in before)
    run(database, f"UPDATE webhooks SET {values}", **before)
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {"name": "renamed"}),
        ("PATCH", "", {"active": False}),
        ("POST", "/rotate", None),
        ("POST", "/test", None),
        ("GET", "/deliveries", None),
        ("POST", "/deliveries/d1/retry", None),
        ("DELETE", "", None),
    ):
        problem_of(client.request(method, f"{at}{path}", json=body), problem)
    every = client.get("/v1/webhooks")
    if by == "delete":
        assert json_of(every)["items"] == []
    else:
        problem_of(every, problem)


def test_keys_that_are_limited_leave_places_to_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_changes, "MOST_BEFORE_LIMITED", 1)
    limited = make_key(client, "steward", "limited", accounts=["people"])
    make(client, limited, accounts=["people"])
    answer = client.post("/v1/webhooks", json=_BODY | {"accounts": ["people"]}, headers=limited)
    assert "limited to accounts" in problem_of(answer, "conflict")["detail"]
    make(client, accounts=["people"])


def test_a_revoked_key_is_shown_no_secret_again(client: Client) -> None:
    made = json_of(client.post("/v1/keys", json={"name": "bob", "role": "steward"}), 201)
    once = bearer(made["key"]) | {"Idempotency-Key": "hook"}
    json_of(client.post("/v1/webhooks", json=_BODY, headers=once), 201)
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    problem_of(client.post("/v1/webhooks", json=_BODY, headers=once), "unauthenticated")
