"""Deliveries: their tries, their log and their end."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from service.errors import Altered, Conflict
from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import DeliveryRecord, Message, Try
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.charging import SECRET
from tests.ledger.ledgers import Clock
from tests.ledger.notifications.hooks import make_webhook, remove_webhook
from tests.ledger.writing import never, run


def queued(database: Database, webhook_id: str, number: int = 1) -> Sequence[str]:
    at = clock.now()
    messages = [Message(webhook_id, "test", None, at, {"number": one}) for one in range(number)]
    return database.write(lambda c: deliveries.queue(c, SECRET, messages, at), is_committed=never)


def due(database: Database) -> list[DeliveryRecord]:
    with database.read() as connection:
        return deliveries.due(connection, SECRET, clock.now(), (), 10)


def read(database: Database, webhook_id: str, delivery_id: str) -> DeliveryRecord:
    with database.read() as connection:
        return deliveries.read_delivery(connection, SECRET, webhook_id, delivery_id)


def failed(at: str) -> Try:
    return Try(at, 5, 500, "the answer has status 500", "oops")


def test_messages_are_due_in_their_order(database: Database) -> None:
    made = make_webhook(database)
    ids = queued(database, made.id, 5)
    assert [one.id for one in due(database)] == ids


def test_a_message_is_taken_by_one_server(database: Database) -> None:
    made = make_webhook(database)
    queued(database, made.id)
    (found,) = due(database)
    assert deliveries.claim(database, found)
    assert not deliveries.claim(database, found)
    assert due(database) == []


def test_a_server_that_dies_leaves_its_message_to_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    made = make_webhook(database)
    queued(database, made.id)
    (found,) = due(database)
    assert deliveries.claim(database, found)
    time.moment += timedelta(minutes=2)
    (again,) = due(database)
    assert again.id == found.id
    assert deliveries.claim(database, again)


def test_a_message_is_tried_eight_times_within_a_day(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    made = make_webhook(database)
    (message,) = queued(database, made.id)
    began = clock.now()
    for number in range(1, 9):
        found = read(database, made.id, message)
        assert (found.state, found.tries) == ("pending", number - 1)
        if found.due_at is not None and found.due_at > clock.now():
            time.moment += clock.between(clock.now(), found.due_at)
        deliveries.record(database, found, failed(clock.now()))
    assert timedelta(hours=23) < clock.between(began, clock.now()) <= timedelta(hours=24)
    found = read(database, made.id, message)
    assert (found.state, found.tries, found.due_at) == ("failed", 8, None)
    with database.read() as connection:
        log = deliveries.tries_of(connection, [message])[message]
    assert [one.reason for one in log] == ["the answer has status 500"] * 8
    outcomes = database.counted()
    assert (outcomes["notifications", "put_off"], outcomes["notifications", "failed"]) == (7, 1)

    at = clock.now()
    database.write(lambda c: deliveries.retry(c, SECRET, made.id, message, at), is_committed=never)
    (found,) = due(database)
    deliveries.record(database, found, Try(at, 5, 200, None, None))
    assert read(database, made.id, message).state == "delivered"
    with pytest.raises(Conflict, match="delivered"):
        database.write(lambda c: deliveries.retry(c, SECRET, made.id, message, at), is_committed=never)


def test_an_outcome_that_comes_twice_is_logged_once(database: Database) -> None:
    made = make_webhook(database)
    queued(database, made.id)
    (found,) = due(database)
    deliveries.record(database, found, failed(clock.now()))
    deliveries.record(database, found, failed(clock.now()))
    assert read(database, made.id, found.id).tries == 1


def test_an_outcome_of_a_deleted_webhook_is_dropped(database: Database) -> None:
    made = make_webhook(database)
    queued(database, made.id)
    (found,) = due(database)
    deliveries.record(database, found, failed(clock.now()))
    remove_webhook(database, made.id)
    deliveries.record(database, replace(found, tries=1), failed(clock.now()))
    with database.read() as connection:
        for table in ("deliveries", "delivery_tries"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0


@pytest.mark.parametrize(
    "change", ["payload = '{}'", "type = 'budget.below'", "account = 'people'", "created_at = '2020'"]
)
def test_an_altered_message_is_not_sent(database: Database, change: str) -> None:
    """A writer of the database has the service sign nothing."""
    made = make_webhook(database)
    (message,) = queued(database, made.id)
    run(database, f"UPDATE deliveries SET {change}")
    assert due(database) == []
    with pytest.raises(Altered):
        read(database, made.id, message)
    with database.read() as connection:
        faults = list(verify_installation(connection, SECRET))
    assert f"deliveries: the message {message} is not as the service wrote it" in faults


def test_old_messages_are_deleted_with_their_log(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    made = make_webhook(database)
    ended, waits = queued(database, made.id, 2)
    time.moment += timedelta(seconds=1)
    first, second = due(database)
    deliveries.record(database, first, Try(clock.now(), 5, 200, None, None))
    deliveries.record(database, second, failed(clock.now()))
    deliveries.forget(database, clock.now())
    assert read(database, made.id, ended).state == "delivered"
    time.moment += deliveries.KEPT + timedelta(seconds=1)
    assert deliveries.oldest_age(database) >= deliveries.KEPT.total_seconds()
    deliveries.forget(database, clock.now())
    with database.read() as connection:
        assert connection.execute(text("SELECT id FROM deliveries")).scalars().all() == [waits]
        assert connection.execute(text("SELECT delivery_id FROM delivery_tries")).scalars().all() == [waits]


def test_the_age_of_nothing_is_nothing(database: Database) -> None:
    assert deliveries.oldest_age(database) == 0
    made = make_webhook(database)
    queued(database, made.id)
    run(database, "UPDATE deliveries SET created_at = 'long ago'")
    assert deliveries.oldest_age(database) == 0
