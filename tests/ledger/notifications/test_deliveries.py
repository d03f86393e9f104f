"""Deliveries: their tries, their log and their end."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from service.errors import Altered, Conflict, NotFound
from service.ledger.notifications import deliveries, erasing, webhooks
from service.ledger.notifications.deliveries import DeliveryRecord, Message, Try
from service.ledger.notifications.erasing import Eraser
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.verification.verify_installation import verify_installation
from tests.ledger.charging import SECRET, open_account
from tests.ledger.ledgers import Clock
from tests.ledger.notifications.hooks import change_webhook, erase, make_webhook, payloads_of, remove_webhook
from tests.ledger.writing import never, run


def queued(database: Database, webhook_id: str, number: int = 1) -> Sequence[str]:
    at = clock.now()
    messages = [Message(webhook_id, "test", None, at, {"number": one}) for one in range(number)]
    return database.write(lambda c: deliveries.queue(c, deliveries.sealed(SECRET, messages, at)), is_committed=never)


def queued_about(database: Database, webhook_id: str, *accounts: str | None) -> dict[str | None, str]:
    """Queue a message about each account, and a test; return their ids by the accounts and the type."""
    at = clock.now()
    messages = [Message(webhook_id, "release.proposed", one, at, {"account": one}) for one in accounts]
    messages.append(Message(webhook_id, "test", None, at, {}))
    ids = database.write(lambda c: deliveries.queue(c, deliveries.sealed(SECRET, messages, at)), is_committed=never)
    return dict(zip([*accounts, "test"], ids, strict=True))


def remaining(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.execute(text("SELECT id FROM deliveries")).scalars())


def due(database: Database) -> list[DeliveryRecord]:
    with database.read() as connection:
        at = clock.now()
        waiting = deliveries.waiting(connection, at)
        found = [deliveries.due(connection, SECRET, at, one, 10) for one in used(connection) if one.id in waiting]
        return sorted((one for row in found for one in row), key=lambda one: (one.due_at, one.id))


def used(connection: Connection) -> list[WebhookRecord]:
    return webhooks.journalled(connection, SECRET)


def shown(database: Database, webhook: WebhookRecord) -> set[str]:
    with database.read() as connection:
        page = deliveries.list_deliveries(connection, SECRET, webhook.id, "", 10, lambda _: None, webhook.accounts)
        return {one.id for one in page}


def read(database: Database, webhook_id: str, delivery_id: str) -> DeliveryRecord:
    with database.read() as connection:
        return deliveries.read_delivery(connection, SECRET, webhook_id, delivery_id, None)


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
    assert deliveries.claim(database, made, found)
    assert not deliveries.claim(database, made, found)
    assert due(database) == []


def test_a_server_that_dies_leaves_its_message_to_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    made = make_webhook(database)
    queued(database, made.id)
    (found,) = due(database)
    assert deliveries.claim(database, made, found)
    time.moment += timedelta(minutes=2)
    (again,) = due(database)
    assert again.id == found.id
    assert deliveries.claim(database, made, again)


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
    database.write(lambda c: deliveries.retry(c, SECRET, made.id, message, at, None), is_committed=never)
    (found,) = due(database)
    deliveries.record(database, found, Try(at, 5, 200, None, None))
    assert read(database, made.id, message).state == "delivered"
    with pytest.raises(Conflict, match="delivered"):
        database.write(lambda c: deliveries.retry(c, SECRET, made.id, message, at, None), is_committed=never)


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
    erase(database)
    deliveries.record(database, replace(found, tries=1), failed(clock.now()))
    with database.read() as connection:
        for table in ("deliveries", "delivery_tries"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0


def test_a_narrowed_webhook_keeps_the_messages_that_it_reaches(database: Database) -> None:
    """Those who may manage it then may not all read what it was told before."""
    made = make_webhook(database, accounts=("a", "b"))
    other = queued_about(database, make_webhook(database).id, "a")
    ids = queued_about(database, made.id, "a", "b")
    for found in due(database):
        deliveries.record(database, found, failed(clock.now()))
    change_webhook(database, made.id, name="as wide")
    change_webhook(database, made.id, accounts=("c", "b", "a"))
    assert remaining(database) == {*ids.values(), *other.values()}
    narrowed = change_webhook(database, made.id, accounts=("b", "c"))
    assert shown(database, narrowed) == {ids["b"], ids["test"]}
    erase(database)
    assert remaining(database) == {ids["b"], ids["test"], *other.values()}
    with database.read() as connection:
        tried = connection.execute(text("SELECT delivery_id FROM delivery_tries")).scalars().all()
    assert set(tried) == remaining(database)


def test_a_webhook_of_all_that_is_limited_loses_what_is_about_no_account(database: Database) -> None:
    made = make_webhook(database)
    ids = queued_about(database, made.id, "a", "b", None)
    narrowed = change_webhook(database, made.id, accounts=("b",))
    assert shown(database, narrowed) == {ids["b"], ids["test"]}
    erase(database)
    assert remaining(database) == {ids["b"], ids["test"]}


def test_messages_are_deleted_some_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is written meanwhile; and nobody is shown or sent what remains."""
    monkeypatch.setattr(erasing, "_AT_ONCE", 2)
    first, second, other = (make_webhook(database) for _ in range(3))
    queued(database, first.id, 3)
    queued_about(database, second.id, "a", "a", "b")
    kept = queued(database, other.id)
    remove_webhook(database, first.id)
    narrowed = change_webhook(database, second.id, accounts=("b",))
    assert {one.id for one in due(database)} == {*shown(database, narrowed), *kept}
    with pytest.raises(NotFound), database.read() as connection:
        webhooks.read_webhook(connection, SECRET, first.id)
    eraser, numbers = Eraser(database), [len(remaining(database))]
    for _ in range(6):
        with database.read() as connection:
            found = used(connection)
        eraser.erase(found)
        numbers.append(len(remaining(database)))
    assert numbers == [8, 6, 4, 3, 3, 3, 3]
    assert remaining(database) == {*shown(database, narrowed), *kept}
    with database.read() as connection:
        assert list(webhooks.removed_webhooks(connection, 10)) == []


def test_a_webhook_that_is_widened_meanwhile_keeps_its_messages(database: Database) -> None:
    narrow = make_webhook(database, accounts=("b",))
    change_webhook(database, narrow.id, accounts=("a", "b"))
    ids = queued_about(database, narrow.id, "a")
    Eraser(database).erase([narrow])
    assert remaining(database) == {*ids.values()}


def test_a_narrowed_webhook_forgets_which_other_budgets_are_below(database: Database) -> None:
    for name in ("a", "b"):
        open_account(database, name)
    made = make_webhook(database, events=("budget.below",), below="0.5", accounts=("a", "b"))
    run(database, f"INSERT INTO budgets_below SELECT '{made.id}', id FROM accounts")
    change_webhook(database, made.id, accounts=("b",))
    with database.read() as connection:
        query = "SELECT name FROM budgets_below JOIN accounts ON id = account_id"
        assert connection.execute(text(query)).scalars().all() == ["b"]


def test_a_message_beyond_a_webhook_is_not_sent(database: Database) -> None:
    """Such messages remained where a webhook was narrowed by an earlier version."""
    wide = make_webhook(database, accounts=("a", "b"))
    made = change_webhook(database, wide.id, accounts=("b",))
    queued_about(database, made.id, "a", "b")
    second, test = due(database)
    (hidden,) = remaining(database) - {second.id, test.id}
    first = read(database, made.id, hidden)
    assert not deliveries.claim(database, wide, second)
    assert deliveries.claim(database, made, second)
    assert deliveries.claim(database, made, test)
    assert not deliveries.claim(database, made, first)


def test_a_limited_steward_sees_messages_of_its_accounts_only(database: Database) -> None:
    made = make_webhook(database)
    ids = queued_about(database, made.id, "a", "b", None)
    with database.read() as connection:
        for only, seen in ((None, set(ids.values())), ({"b"}, {ids["b"], ids["test"]}), (set[str](), {ids["test"]})):
            found = deliveries.list_deliveries(connection, SECRET, made.id, "", 10, lambda _: None, only)
            assert {one.id for one in found} == seen
        assert deliveries.read_delivery(connection, SECRET, made.id, ids["b"], {"b"}).account == "b"
        for hidden in (ids["a"], ids[None]):
            with pytest.raises(NotFound):
                deliveries.read_delivery(connection, SECRET, made.id, hidden, {"b"})
    run(database, "UPDATE deliveries SET state = 'failed', due_at = NULL")
    with pytest.raises(NotFound):
        database.write(lambda c: deliveries.retry(c, SECRET, made.id, ids["a"], clock.now(), {"b"}), is_committed=never)
    assert due(database) == []
    assert len(payloads_of(database)) == 4


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
    erase(database)
    assert read(database, made.id, ended).state == "delivered"
    time.moment += erasing.KEPT + timedelta(seconds=1)
    assert deliveries.oldest_age(database) >= erasing.KEPT.total_seconds()
    erase(database)
    with database.read() as connection:
        assert connection.execute(text("SELECT id FROM deliveries")).scalars().all() == [waits]
        assert connection.execute(text("SELECT delivery_id FROM delivery_tries")).scalars().all() == [waits]


def test_the_age_of_nothing_is_nothing(database: Database) -> None:
    assert deliveries.oldest_age(database) == 0
    made = make_webhook(database)
    queued(database, made.id)
    run(database, "UPDATE deliveries SET created_at = 'long ago'")
    assert deliveries.oldest_age(database) == 0


def test_the_standing_is_that_of_the_last_messages(database: Database) -> None:
    webhook = make_webhook(database)

    def standing() -> deliveries.Standing:
        with database.read() as connection:
            return deliveries.standing_of(connection, webhook.id, webhook.accounts)

    def tried(at: str, reason: str | None) -> None:
        queued(database, webhook.id)
        for one in due(database):
            deliveries.record(database, one, Try(at, 5, None, reason, None))

    assert standing() == (None, None)
    day = [f"2026-11-0{number}T00:00:00.000000Z" for number in range(1, 6)]
    tried(day[0], "refused")
    tried(day[1], "refused")
    assert standing() == (None, day[0])
    tried(day[2], None)
    assert standing() == (day[2], None)
    tried(day[3], "refused")
    tried(day[4], "refused")
    assert standing() == (day[2], day[3])
