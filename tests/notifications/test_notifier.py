"""Notifications from the request that causes them to the receiver, on both databases."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.notifications.follower import Follower
from tests.api.calls import (
    Client,
    application,
    charge,
    client_of,
    json_of,
    open_account,
    operators_key,
    problem_of,
    release,
)
from tests.documents import WEB, examples_of
from tests.receivers import MailServer, Received, Receiver, http_receiver, mail_server
from tests.waiting import until

_EVENTS = [
    "release.proposed",
    "release.approved",
    "release.rejected",
    "release.expired",
    "release.refused",
    "budget.below",
]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as running:
        yield running


@pytest.fixture
def smtp() -> Iterator[MailServer]:
    with mail_server() as running:
        yield running


@pytest.fixture
def told(database: Database, secret: Secret, smtp: MailServer) -> Iterator[TestClient]:
    """Yield a steward's client of a service that may send to receivers of this machine."""
    settings = {"smtp_host": "127.0.0.1", "smtp_port": smtp.port, "smtp_tls": "none", "smtp_from": "l@agency.example"}
    allowed = {"webhook_networks": "127.0.0.0/8", "public_url": "https://ledger.agency.example"}
    with client_of(application(database, secret, **settings, **allowed)) as client:
        yield client


def make(client: Client, **body: Any) -> Any:
    given = {"name": "a webhook", "events": _EVENTS[:-1]} | body
    return json_of(client.post("/v1/webhooks", json=given), 201)


def drawable(rho: str) -> dict[str, Any]:
    """Return a mechanism that only the service draws, so that it knows whether anything was published."""
    return {"type": "discrete_gaussian", "rho": rho}


def payloads(requests: list[Received]) -> list[Any]:
    return [json.loads(request.body) for request in requests]


def test_what_happens_to_releases_is_told(told: TestClient, receiver: Receiver) -> None:
    open_account(told, approval_above="0.1")
    release(told, drawable("0.01"), name="before the webhook")
    made = make(told, url=receiver.url)
    other = operators_key(told, "steward", "bob")
    approved = release(told, drawable("0.2"), name="county totals")
    json_of(told.post(f"/v1/accounts/people/releases/{approved['id']}/approve", json={}, headers=other))
    rejected = release(told, drawable("0.3"), name="block totals")
    why = {"reason": "1234 persons"}
    json_of(told.post(f"/v1/accounts/people/releases/{rejected['id']}/void", json=why, headers=other))
    release(told, drawable("0.05"), name="committed at once")
    problem_of(charge(told, drawable("2"), name="too much"), "budget_exceeded")

    sent = {payload["data"]["seq"]: payload for payload in payloads(receiver.wait_for(5))}
    assert [sent[seq]["type"] for seq in sorted(sent)] == [
        "release.proposed",
        "release.approved",
        "release.proposed",
        "release.rejected",
        "release.refused",
    ]
    first, second, _, fourth, refused = (sent[seq] for seq in sorted(sent))
    assert first["data"]["release"] == {"id": approved["id"], "name": "county totals"}
    assert (first["data"]["account"], first["data"]["principal"]) == ("people", "first-steward")
    assert first["data"]["budget"] == {"definition": "zcdp", "rho": "1"}
    assert first["data"]["remaining"]["definition"] == "zcdp"
    assert first["data"]["url"] == f"https://ledger.agency.example/accounts/people/releases/{approved['id']}"
    assert (second["data"]["principal"], second["data"]["state"]) == ("bob", "committed")
    assert fourth["data"]["release"]["name"] == "block totals"
    assert refused["data"]["release"] == {"id": None, "name": "too much"}
    refusal = refused["data"]["refusal"]
    assert (refusal["account"], refusal["cap"], refusal["requested"], refusal["remaining"]) == (
        "people",
        "rho",
        2,
        0.74,
    )
    assert "1234" not in str(sent)  # words of persons are left out
    for request in receiver.requests:
        assert request.path == "/hook?from=ledger"
        _check_signature(request, made["secret"])
    until(lambda: _states(told, made["id"]) == ["delivered"] * 5)


def _check_signature(request: Received, secret: str) -> None:
    """Check as the guide says, whose listing agrees with an example of Standard Webhooks."""
    assert json.loads(request.body)["id"] == request.headers["webhook-id"]
    names: dict[str, Any] = {}
    (listing,) = [one.code for one in examples_of(WEB / "guide" / "notifications.md") if "def check" in one.code]
    exec(listing, names)
    names["check"](secret, request.headers, request.body)
    with pytest.raises(ValueError, match="not sent"):
        names["check"](secret, request.headers, request.body + b" ")


def _states(client: Client, webhook: str) -> list[str]:
    return [one["state"] for one in json_of(client.get(f"/v1/webhooks/{webhook}/deliveries"))["items"]]


def test_an_expiry_is_told(told: TestClient, receiver: Receiver) -> None:
    open_account(told)
    make(told, url=receiver.url, events=["release.expired"])
    held = release(told, drawable("0.2"), reserve_for="PT1S")
    (sent,) = payloads(receiver.wait_for(1))
    assert (sent["type"], sent["data"]["release"]["id"]) == ("release.expired", held["id"])
    assert sent["data"]["principal"] is None


def test_a_budget_below_a_share_is_told_once(told: TestClient, receiver: Receiver) -> None:
    open_account(told)
    webhook = make(told, url=receiver.url, events=["budget.below"], below="0.25")
    release(told, drawable("0.75"))  # exactly a quarter is left
    release(told, drawable("0.01"))
    (sent,) = payloads(receiver.wait_for(1))
    assert (sent["type"], sent["data"]["below"], sent["data"]["remaining"]["rho"]) == ("budget.below", "0.25", 0.24)
    release(told, drawable("0.01"))
    json_of(told.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": "2"}}))
    until(lambda: _followed(told, "people"))
    release(told, drawable("1.1"))
    sent = payloads(receiver.wait_for(2))[1]
    assert sent["data"]["remaining"]["rho"] == pytest.approx(0.13)
    assert len(receiver.requests) == 2
    assert len(json_of(told.get(f"/v1/webhooks/{webhook['id']}/deliveries"))["items"]) == 2


def _followed(client: TestClient, account: str) -> bool:
    """Return whether messages were made of all entries of an account."""
    query = "SELECT seq = head_seq FROM accounts JOIN followed_journals ON account_id = id WHERE name = :name"
    app: Any = client.app
    with app.state.database.read() as connection:
        return bool(connection.execute(text(query), {"name": account}).scalar())


def test_mail_goes_to_all_recipients(told: TestClient, smtp: MailServer) -> None:
    open_account(told, approval_above="0.1")
    webhook = make(told, url=None, mail=["ann@agency.example", "bob@agency.example"])
    assert webhook["secret"] is None
    made = release(told, drawable("0.2"), name="county totals")
    until(lambda: bool(smtp.mails))
    ((recipients, content),) = smtp.mails
    assert recipients == ["ann@agency.example", "bob@agency.example"]
    assert "Subject: people: a release waits for approval" in content
    assert "From: l@agency.example" in content
    assert f"county totals ({made['id']})" in content
    assert f"https://ledger.agency.example/accounts/people/releases/{made['id']}" in content.replace("=\r\n", "")
    until(lambda: _states(told, webhook["id"]) == ["delivered"])


def test_a_failure_is_logged_and_tried_again(told: TestClient, receiver: Receiver) -> None:
    receiver.status, receiver.answer = 503, "nö".encode() * 1000
    made = make(told, url=receiver.url)
    json_of(told.post(f"/v1/webhooks/{made['id']}/test"), 202)
    receiver.wait_for(1)
    until(lambda: bool(_one(told, made["id"])["tries"]))
    delivery = _one(told, made["id"])
    assert (delivery["state"], delivery["type"]) == ("pending", "test")
    (tried,) = delivery["tries"]
    assert (tried["status"], tried["reason"]) == (503, "the answer has status 503")
    assert tried["answer"] == "nö" * 100
    assert delivery["next_try_at"] > tried["at"]
    receiver.status = 200
    until(lambda: _one(told, made["id"])["state"] == "delivered")
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == delivery["id"]
    assert first.body == second.body
    assert [one["reason"] for one in _one(told, made["id"])["tries"]] == ["the answer has status 503", None]


def _one(client: Client, webhook: str) -> Any:
    (delivery,) = json_of(client.get(f"/v1/webhooks/{webhook}/deliveries"))["items"]
    return delivery


def test_a_stop_of_writing_is_told_without_the_database(told: TestClient, receiver: Receiver) -> None:
    make(told, url=receiver.url, events=["ledger.stopped"])
    until(lambda: _followed_installation(told))
    app: Any = told.app
    app.state.database.stop("the ledger lacks entries that it had before; nothing is written")
    (sent,) = payloads(receiver.wait_for(1))
    assert sent["type"] == "ledger.stopped"
    assert "lacks entries" in sent["data"]["reason"]


def test_a_look_that_does_not_end_is_told(told: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ending = threading.Event(), threading.Event()

    def look(_: Follower) -> float:
        began.set()
        ending.wait(60)
        return 0.0

    monkeypatch.setattr(Follower, "_follow", look)
    assert began.wait(60)
    first = _unfollowed(told)
    until(lambda: _unfollowed(told) > first + 1)
    ending.set()
    until(lambda: _unfollowed(told) < 1)


def _unfollowed(client: TestClient) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    (age,) = [one.samples[0].value for one in families if one.name == "ledger_notification_unfollowed_seconds"]
    return age


def test_slow_receivers_of_one_steward_delay_no_others(told: TestClient, receiver: Receiver) -> None:
    with _slow_receiver() as slow:
        _occupy(told, "eve", slow)
        until(lambda: len(slow.requests) == 3)  # the last sender is for others
        began = time.monotonic()
        made = make(told, url=receiver.url)
        json_of(told.post(f"/v1/webhooks/{made['id']}/test"), 202)
        receiver.wait_for(1)
        assert time.monotonic() - began < _HELD / 2
        assert len(slow.requests) == 3


def test_a_stop_of_writing_is_told_although_all_senders_are_held(told: TestClient, receiver: Receiver) -> None:
    with _slow_receiver() as slow:
        make(told, url=receiver.url, events=["ledger.stopped"])
        until(lambda: _followed_installation(told))
        for name in ("eve", "mallory", "oscar", "trudy"):
            _occupy(told, name, slow, 1)
        until(lambda: len(slow.requests) == 4)
        began = time.monotonic()
        app: Any = told.app
        app.state.database.stop("the ledger lacks entries")
        receiver.wait_for(1)
        assert time.monotonic() - began < _HELD / 2


def test_long_looks_at_journals_delay_no_message(
    told: TestClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[float]()

    def look(_: Follower) -> float:
        looks.append(time.monotonic())
        time.sleep(1)
        return 0.0

    monkeypatch.setattr(Follower, "follow", look)
    until(lambda: bool(looks))  # the next one is ten seconds later
    made = make(told, url=receiver.url)
    json_of(told.post(f"/v1/webhooks/{made['id']}/test"), 202)
    receiver.wait_for(1)
    assert time.monotonic() - looks[0] < 10
    assert len(looks) == 1


_HELD = 12.0  # seconds for which a slow receiver holds a sender


@contextmanager
def _slow_receiver() -> Iterator[Receiver]:
    """Yield a receiver that sends a byte of its answer now and then, until the block ends."""
    with http_receiver() as slow:
        slow.status, slow.answer, slow.slow = 200, b"x" * round(10 * _HELD), 0.1
        try:
            yield slow
        finally:
            slow.slow = 0.001


def _occupy(client: TestClient, name: str, slow: Receiver, number: int = 6) -> None:
    """Have a steward who is limited to accounts make webhooks, and test each several times."""
    headers = operators_key(client, "steward", name, ["people"])
    body = {"name": "slow", "url": slow.url, "events": ["release.refused"], "accounts": ["people"]}
    for _ in range(number):
        made = json_of(client.post("/v1/webhooks", json=body, headers=headers), 201)
        for _ in range(3):
            json_of(client.post(f"/v1/webhooks/{made['id']}/test", headers=headers), 202)


def _followed_installation(client: TestClient) -> bool:
    query = "SELECT (SELECT max(seq) FROM installation_journal) = seq FROM followed_journals WHERE account_id = 0"
    app: Any = client.app
    with app.state.database.read() as connection:
        return bool(connection.execute(text(query)).scalar())


def test_a_limited_webhook_is_told_of_its_accounts_only(told: TestClient, receiver: Receiver) -> None:
    for name in ("people", "families"):
        open_account(told, name, approval_above="0.1")
    make(told, url=receiver.url, accounts=["families", "opened-later"])
    release(told, drawable("0.2"), "people")
    release(told, drawable("0.2"), "families")
    open_account(told, "opened-later", approval_above="0.1")
    release(told, drawable("0.3"), "opened-later")
    sent = payloads(receiver.wait_for(2))
    assert [one["data"]["account"] for one in sent] == ["families", "opened-later"]
