"""Messages that followers make of the journals' entries."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import BudgetExceeded
from service.ledger.installation import installation_journal
from service.ledger.notifications import webhooks
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.notifications import follower
from service.notifications.follower import Follower
from tests.ledger.charging import SECRET, charge, open_account
from tests.ledger.notifications.hooks import change_webhook, make_webhook, payloads_of, remove_webhook
from tests.ledger.writing import run, unprotected


def following(database: Database) -> Follower:
    return Follower(database, SECRET, None)


def told(database: Database) -> list[tuple[str, Any]]:
    """Return the type and the number of the entry of each message."""
    read = [json.loads(payload) for payload in payloads_of(database)]
    return [(one["type"], one["data"].get("seq")) for one in read]


def spend(database: Database, rho: str, account: str = "people") -> None:
    charge(database, {"type": "discrete_gaussian", "rho": rho}, name=account)


def refuse(database: Database, account: str = "people") -> None:
    with pytest.raises(BudgetExceeded):
        spend(database, "1000", account)


def test_nothing_is_followed_without_a_webhook(database: Database) -> None:
    open_account(database)
    refuse(database)
    assert not following(database).follow()
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM followed_journals")).scalar() == 0


def test_what_was_before_a_webhook_is_not_told(database: Database) -> None:
    open_account(database)
    refuse(database)
    removed = make_webhook(database)
    refuse(database)
    remove_webhook(database, removed.id)
    refuse(database)
    make_webhook(database)
    refuse(database)
    following(database).follow()
    assert told(database) == [("release.refused", 5)]


def test_a_second_webhook_is_told_from_its_beginning_on(database: Database) -> None:
    open_account(database)
    first = make_webhook(database)
    refuse(database)
    second = make_webhook(database)
    refuse(database)
    following(database).follow()
    with database.read() as connection:
        rows = connection.execute(text("SELECT webhook_id, count(*) FROM deliveries GROUP BY webhook_id")).all()
    assert dict(map(tuple, rows)) == {first.id: 2, second.id: 1}


def test_what_happens_while_no_server_runs_is_told_later(database: Database) -> None:
    open_account(database)
    make_webhook(database)
    following(database).follow()
    refuse(database)
    spend(database, "0.1")
    refuse(database)
    open_account(database, "opened later")
    refuse(database, "opened later")
    following(database).follow()
    assert told(database) == [("release.refused", 2), ("release.refused", 4), ("release.refused", 2)]


def test_an_entry_is_told_once(database: Database) -> None:
    open_account(database)
    make_webhook(database)
    refuse(database)
    for _ in range(3):
        following(database).follow()
    assert len(told(database)) == 1


def test_servers_that_follow_at_once_tell_it_once(database: Database) -> None:
    open_account(database)
    make_webhook(database)
    barrier = Barrier(4)

    def follow(one: Follower) -> None:
        barrier.wait()
        one.follow()

    with ThreadPoolExecutor(4) as servers:
        for number in range(1, 6):
            refuse(database)
            list(servers.map(follow, [following(database) for _ in range(4)]))
            assert len(told(database)) == number


def test_an_inactive_webhook_gets_nothing_of_that_time(database: Database) -> None:
    open_account(database)
    made, server = make_webhook(database), following(database)
    change_webhook(database, made.id, active=False)
    refuse(database)
    server.follow()
    change_webhook(database, made.id, active=True)
    refuse(database)
    server.follow()
    assert told(database) == [("release.refused", 3)]


def test_refusals_of_one_account_are_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline cannot fill a mailbox, nor keep refusals in other accounts from being told."""
    monkeypatch.setattr(follower, "MOST_REFUSALS", 2)
    for name in ("people", "families"):
        open_account(database, name)
    make_webhook(database)
    server = following(database)
    for _ in range(2):
        refuse(database)
        refuse(database)
        server.follow()
    refuse(database, "families")
    server.follow()
    assert told(database) == [("release.refused", 2), ("release.refused", 3), ("release.refused", 2)]


def test_an_added_entry_gives_no_message(database: Database) -> None:
    """A writer of the database may add entries, but no account's sealed row leads to them."""
    open_account(database)
    open_account(database, "families")
    make_webhook(database)
    refuse(database)
    unprotected(database, "journal", "UPDATE journal SET body = replace(body, 'ann', 'eve') WHERE seq = 2")
    refuse(database, "families")
    following(database).follow()
    assert [json.loads(one)["data"]["account"] for one in payloads_of(database)] == ["families"]


def test_a_moved_place_gives_no_false_message(database: Database) -> None:
    open_account(database)
    make_webhook(database)
    refuse(database)
    run(database, "UPDATE followed_journals SET hash = :hash WHERE account_id > 0", hash="0" * 64)
    following(database).follow()
    assert told(database) == []


def test_accounts_under_an_account_are_told_once(database: Database) -> None:
    open_account(database)
    open_account(database, "families", parent="people", approval_above="0")
    make_webhook(database)
    spend(database, "0.1", "families")
    following(database).follow()
    assert [(one["type"], one["data"]["account"]) for one in map(json.loads, payloads_of(database))] == [
        ("release.proposed", "families")
    ]


def test_an_acknowledgement_is_told(database: Database) -> None:
    make_webhook(database, events=("ledger.acknowledged",))
    said: dict[str, object] = {"reason": "the backup of Monday"}
    at = clock.now()
    database.write(
        lambda c: installation_journal.append(c, SECRET, "mark_acknowledged", said, actor=None, at=at),
        is_committed=lambda *_: False,
    )
    following(database).follow()
    ((event, seq),) = told(database)
    assert event == "ledger.acknowledged"
    with database.read() as connection:
        assert seq == installation_journal.head(connection).seq


def test_a_webhook_that_is_deleted_meanwhile_gets_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(database)
    made = make_webhook(database, events=("release.refused", "budget.below"), below="0.99")
    spend(database, "0.5")
    refuse(database)
    server, write = following(database), database.write

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        remove_webhook(database, made.id)
        return write(*arguments, **named)

    monkeypatch.setattr(database, "write", late)
    server.follow()
    assert told(database) == []
    with database.read() as connection:
        assert not webhooks.any_webhook(connection)
