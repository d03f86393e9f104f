"""The senders of a server: whose turn is next, and how long a turn is."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.notifications import senders
from service.notifications.http_delivery import Answer
from service.notifications.senders import Senders, Turns
from service.settings import Settings
from tests.ledger.charging import SECRET
from tests.ledger.notifications.hooks import make_webhook
from tests.ledger.writing import never


def webhook(by: str, number: int) -> WebhookRecord:
    return WebhookRecord(
        f"{by} {number}", "a webhook", "https://hooks.agency.example/", None, (), None, None, True, 1, None, "", by
    )


def taken(turns: Turns, *waiting: WebhookRecord) -> list[str]:
    """Return the webhooks that get senders, in their order."""
    found = []
    while (one := turns.take(waiting)) is not None:
        found.append(one.id)
    return found


ANN = [webhook("ann", number) for number in range(5)]
BOB = [webhook("bob", number) for number in range(5)]


def test_one_principal_does_not_have_all_senders() -> None:
    turns = Turns()
    assert taken(turns, *ANN) == ["ann 0", "ann 1", "ann 2"]
    assert taken(turns, *ANN, *BOB) == ["bob 0"]


def test_principals_share_the_senders() -> None:
    turns = Turns()
    assert taken(turns, *ANN, *BOB) == ["ann 0", "bob 0", "ann 1"]
    turns.end(ANN[0])
    assert taken(turns, *ANN, *BOB) == ["bob 1"]


def test_webhooks_of_one_principal_take_turns() -> None:
    turns = Turns()
    turns.take(ANN)
    turns.end(ANN[0])
    assert taken(turns, *ANN) == ["ann 1", "ann 2", "ann 3"]
    assert taken(turns) == []


def test_a_webhook_that_is_sent_to_has_no_second_sender() -> None:
    assert taken(Turns(), *ANN[:1]) == ["ann 0"]


def queue(database: Database, made: WebhookRecord, number: int) -> None:
    at = clock.now()
    messages = [Message(made.id, "test", None, at, {})] * number
    database.write(
        lambda connection: deliveries.queue(connection, deliveries.sealed(SECRET, messages, at)), is_committed=never
    )


def states(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(text("SELECT state FROM deliveries ORDER BY created_at")).scalars())


def dispatch(database: Database) -> None:
    """Give each sender one row of messages, and wait for their end."""
    with ThreadPoolExecutor(senders.SENDERS) as threads:
        Senders(database, SECRET, Settings(_env_file=None)).dispatch(threads, threading.Event())


def test_a_row_of_messages_ends_after_some_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*_: Any) -> Answer:
        time.sleep(0.2)
        return Answer(200, None, None)

    monkeypatch.setattr(senders, "post", post)
    monkeypatch.setattr(senders, "_ROW", 0.1)
    made = make_webhook(database)
    queue(database, made, 3)
    dispatch(database)
    assert states(database) == ["delivered", "pending", "pending"]
    dispatch(database)
    assert states(database) == ["delivered", "delivered", "pending"]


def test_many_messages_of_one_webhook_hide_no_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def post(url: str, *_: Any) -> Answer:
        sent.append(url)
        return Answer(503, "the answer has status 503", None)

    monkeypatch.setattr(senders, "post", post)
    monkeypatch.setattr(senders, "_IN_A_ROW", 2)
    first, second = (make_webhook(database, name, url=f"https://{name}.agency.example/") for name in ("ann", "bob"))
    queue(database, first, 20)
    queue(database, second, 1)
    dispatch(database)
    assert set(sent) == {"https://ann.agency.example/", "https://bob.agency.example/"}
