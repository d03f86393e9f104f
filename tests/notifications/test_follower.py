"""Messages that followers make of the journals' entries."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from service.errors import BudgetExceeded
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.waiting_changes import reject_change
from service.ledger.installation import installation_journal
from service.ledger.journal.entries import ParsedEntry, read_text
from service.ledger.journal.linked_heads import texts_after
from service.ledger.notifications import webhooks
from service.ledger.releases.settlement import expire
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.notifications import follower, hourly_limits, look, new_entries
from service.notifications.follower import Follower
from tests.ledger.charging import (
    ANN,
    BOB,
    SECRET,
    account_of,
    approve,
    asking,
    carry_out,
    change_account,
    charge,
    open_account,
    reserve,
    void,
)
from tests.ledger.ledgers import Clock
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


def refuse(database: Database, account: str = "people", request: Request = ANN) -> None:
    with pytest.raises(BudgetExceeded):
        charge(database, {"type": "discrete_gaussian", "rho": "1000"}, name=account, request=request)


def test_nothing_is_followed_without_a_webhook(database: Database) -> None:
    open_account(database)
    refuse(database)
    following(database).follow()
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


def test_messages_about_one_event_and_account_are_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline cannot fill a mailbox, nor keep events of other accounts from being told."""
    monkeypatch.setattr(hourly_limits, "MOST_OF_EVENT", 2)
    for name in ("people", "families"):
        open_account(database, name, approval_above="0")
    make_webhook(database, events=("release.proposed", "release.refused", "budget.below"), below="0.999")
    server = following(database)
    for _ in range(2):
        refuse(database)
        refuse(database)
        server.follow()
    for _ in range(3):
        spend(database, "0.01")
    refuse(database, "families")
    server.follow()
    sent = [json.loads(one) for one in payloads_of(database)]
    assert [(one["type"], one["data"]["account"], one["data"].get("last_of_hour")) for one in sent] == [
        ("release.refused", "people", None),
        ("release.refused", "people", True),
        ("release.refused", "families", None),
        ("release.proposed", "people", None),
        ("release.proposed", "people", True),
        ("budget.below", "people", None),
    ]


def test_messages_to_a_webhook_are_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A steward may have hundreds of accounts; the receiver is told once that no more come, about whatever account."""
    monkeypatch.setattr(hourly_limits, "MOST_OF_WEBHOOK", 3)
    for name in ("a", "b", "c"):
        open_account(database, name)
    made = make_webhook(database, events=("release.refused", "ledger.acknowledged"))
    other = make_webhook(database, accounts=("c",))
    server = following(database)
    for name in ("a", "b", "c"):
        refuse(database, name)
        refuse(database, name)
        server.follow()
    _acknowledge(database)
    server.follow()
    with database.read() as connection:
        rows = connection.execute(text("SELECT webhook_id, payload FROM deliveries ORDER BY created_at, id")).all()
    sent: dict[str, list[Any]] = {made.id: [], other.id: []}
    for row in rows:
        said = json.loads(row.payload)["data"]
        sent[row.webhook_id].append((said.get("account"), said.get("last_of_hour"), said.get("of_all_accounts")))
    none = (None, None)
    assert sent == {
        made.id: [("a", *none), ("a", *none), ("b", True, True), (None, *none)],
        other.id: [("c", *none), ("c", *none)],
    }


def test_a_look_makes_a_bounded_number_of_messages(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite others wait while they are written. What is left is told later, by whichever server."""
    monkeypatch.setattr(look, "_MOST", 4)
    for name in ("people", "families"):
        open_account(database, name)
    for _ in range(3):
        make_webhook(database)
    for _ in range(3):
        refuse(database)
    refuse(database, "families")
    servers = [following(database) for _ in range(2)]
    numbers = list[int]()
    for number in range(6):
        servers[number % 2].follow()
        numbers.append(len(told(database)))
    assert numbers[0] == 6  # of two entries, to three webhooks each
    assert max(after - before for before, after in pairwise(numbers)) <= 6
    assert numbers[-1] == 12
    assert sorted(told(database)) == [("release.refused", seq) for seq in (2, 2, 3, 4) for _ in range(3)]
    refuse(database)
    servers[0].follow()
    assert len(told(database)) == 15


@pytest.mark.parametrize("act", ["refuse", "expire"])
def test_principals_take_turns(database: Database, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """An actor with entries in many accounts delays only her own messages, also where a hold expires."""
    time = Clock(monkeypatch)
    monkeypatch.setattr(look, "_MOST", 1)
    names = [f"a{number}" for number in range(6)]
    for name in (*names, "people"):
        open_account(database, name)
    make_webhook(database, events=("release.refused", "release.expired"))
    plan = {"type": "discrete_gaussian", "rho": "0.01"}
    for name in names:
        if act == "refuse":
            refuse(database, name, BOB)
        else:
            charge(database, plan, name=name, request=BOB, reserve_for=timedelta(hours=1))
    if act == "expire":
        charge(database, plan, reserve_for=timedelta(hours=1))
        following(database).follow()
        time.moment += timedelta(days=1)
    for name in (*names, "people"):
        expire(database, account_of(database, name).id)
    if act == "refuse":
        refuse(database)
    server = following(database)
    for _ in range(2):
        server.follow()
    assert [account for account, _ in _accounts(database)] in (["a0", "people"], ["people", "a0"])
    for _ in range(6):
        server.follow()
    assert len(_accounts(database)) == 7


def _accounts(database: Database) -> list[tuple[str, str]]:
    read = [json.loads(payload) for payload in payloads_of(database)]
    return [(one["data"]["account"], one["type"]) for one in read]


def test_the_age_of_what_is_not_followed_is_known(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see that messages come late, before there are any that wait."""
    time = Clock(monkeypatch)
    monkeypatch.setattr(look, "_MOST", 1)
    for name in ("people", "families"):
        open_account(database, name)
    make_webhook(database)
    server = following(database)
    for name in ("people", "families"):
        refuse(database, name)
    time.moment += timedelta(hours=1)
    ages = list[bool]()
    for _ in range(3):
        server.follow()
        ages.append(server.unfollowed_age() >= 3600)
    assert ages == [True, False, False]
    server._looked -= 7200  # a look hangs, or fails again and again
    assert server.unfollowed_age() >= 7200


def test_messages_go_on_after_an_hour(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hourly_limits, "MOST_OF_EVENT", 1)
    time = Clock(monkeypatch)
    open_account(database)
    make_webhook(database)
    server = following(database)
    for _ in range(3):
        refuse(database)
        server.follow()
        time.moment += timedelta(minutes=31)
    assert told(database) == [("release.refused", 2), ("release.refused", 4)]


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


@pytest.mark.parametrize("garbage", ["0" * 64, "garbage", ""])
def test_a_moved_place_gives_no_false_message(database: Database, garbage: str) -> None:
    """Messages begin anew after it."""
    open_account(database)
    make_webhook(database)
    refuse(database)
    run(database, "UPDATE followed_journals SET hash = :hash WHERE account_id > 0", hash=garbage)
    following(database).follow()
    assert told(database) == []
    refuse(database)
    following(database).follow()
    assert told(database) == [("release.refused", 3)]


def test_accounts_under_an_account_are_told_once(database: Database) -> None:
    open_account(database)
    open_account(database, "families", parent="people", approval_above="0")
    make_webhook(database)
    spend(database, "0.1", "families")
    following(database).follow()
    assert [(one["type"], one["data"]["account"]) for one in map(json.loads, payloads_of(database))] == [
        ("release.proposed", "families")
    ]


@pytest.mark.parametrize("change", [f"hash = '{'1' * 64}'", "hash = 'garbage'", "seq = 1000000", "seq = seq - 1"])
def test_a_moved_place_in_the_installations_journal_ends_no_messages(database: Database, change: str) -> None:
    open_account(database)
    make_webhook(database, events=("release.refused", "ledger.acknowledged"))
    run(database, f"UPDATE followed_journals SET {change} WHERE account_id = 0")
    refuse(database)
    _acknowledge(database)
    server = following(database)
    server.follow()
    assert told(database) == [("release.refused", 2)]  # what was before the head is left out
    _acknowledge(database)
    server.follow()
    assert [event for event, _ in told(database)] == ["release.refused", "ledger.acknowledged"]


def test_no_plan_is_read_beyond_its_text(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may have mebibytes; its entry's text is hashed and not parsed, and its release is read without it."""
    open_account(database, approval_above="0")
    make_webhook(database, events=_OF_RELEASES)
    ids = [charge(database, {"type": "discrete_gaussian", "rho": "0.01"})[0].id for _ in range(3)]
    approve(database, ids[0])
    void(database, ids[1])
    (held,) = reserve(database, {"type": "discrete_gaussian", "rho": "0.01"})
    approve(database, held)
    void(database, held)
    parsed, statements = list[str](), list[str]()

    def read(body: str) -> ParsedEntry:
        parsed.append(body)
        return read_text(body)

    monkeypatch.setattr(new_entries, "read_text", read)

    def note(_: object, __: object, statement: str, *___: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        following(database).follow()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert [one for one, _ in told(database)] == [
        "release.proposed",
        "release.proposed",
        "release.proposed",
        "release.approved",
        "release.rejected",
        "release.proposed",
        "release.approved",  # it is reserved then, so that its end is no rejection
    ]
    assert parsed
    assert not any('"plan"' in body for body in parsed)
    assert statements
    assert not any("releases.plan" in statement for statement in statements)


_OF_RELEASES = ("release.proposed", "release.approved", "release.rejected", "release.expired")


def test_a_journal_that_no_webhook_asks_for_is_not_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    def noted(connection: Connection, account_id: int, *places: Any) -> Any:
        read.append(account_id)
        return texts_after(connection, account_id, *places)

    monkeypatch.setattr(new_entries, "texts_after", noted)
    for name in ("people", "families"):
        open_account(database, name)
    made = make_webhook(database, accounts=("families",))
    for name in ("people", "families"):
        refuse(database, name)
    server = following(database)
    server.follow()
    assert len(told(database)) == len(read) == 1
    change_webhook(database, made.id, accounts=None)
    refuse(database)
    server.follow()
    assert told(database) == [("release.refused", 2), ("release.refused", 3)]
    assert len(read) == 2


def test_a_long_journal_takes_several_looks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told before the texts lead to the head, and other accounts have their looks meanwhile."""
    monkeypatch.setattr(follower, "_MOST", 1)
    for name in ("people", "families"):
        open_account(database, name)
    make_webhook(database)
    for _ in range(3):
        refuse(database)
    refuse(database, "families")
    server = following(database)
    looks = list[int]()
    for _ in range(12):
        server.follow()
        looks.append(len(told(database)))
    assert looks[0] == 0
    assert 1 in looks  # the other account's one
    assert looks[-1] == 4
    assert sorted(told(database)) == [("release.refused", seq) for seq in (2, 2, 3, 4)]
    refuse(database)
    following(database).follow()
    assert len(told(database)) == 5


def test_changes_of_an_account_that_wait_are_told(database: Database) -> None:
    """They need the approval of others, as releases do; what one steward decides alone is nobody's task."""
    open_account(database, approval_above="0", approvers=Approvers(2))
    change_account(database, "people", read_budget(_ZCDP | {"rho": "0.9"}))
    make_webhook(database, events=("change.proposed", "change.approved", "change.rejected"))
    change_account(database, "people", read_budget(_ZCDP | {"rho": "0.8"}))  # smaller: it needs nobody
    greater = read_budget(_ZCDP | {"rho": "2"})
    for person in (ANN, BOB, asking("eve")):
        change_account(database, "people", greater, person)
    change_account(database, "people", Approvers(1))
    carry_out(database, reject_change(database, BOB, "people", 7, "1234 persons"), BOB)
    following(database).follow()
    sent = [json.loads(one) for one in payloads_of(database)]
    assert [(one["type"], one["data"]["seq"], one["data"]["principal"]) for one in sent] == [
        ("change.proposed", 4, "ann"),
        ("change.approved", 5, "bob"),
        ("change.approved", 6, "eve"),
        ("change.proposed", 7, "ann"),
        ("change.rejected", 8, "bob"),
    ]
    told = [{name: one["data"].get(name) for name in ("proposal", "change", "state")} for one in sent]
    budget = {"budget": _ZCDP | {"rho": "2"}}
    assert told == [
        {"proposal": 4, "change": budget, "state": None},
        {"proposal": 4, "change": None, "state": "proposed"},
        {"proposal": 4, "change": budget, "state": "in_force"},
        {"proposal": 7, "change": {"approvers": {"at_least": 1}}, "state": None},
        {"proposal": 7, "change": None, "state": None},
    ]
    assert "1234" not in str(sent)
    assert {one["data"]["account"] for one in sent} == {"people"}


_ZCDP = {"definition": "zcdp"}


def test_an_acknowledgement_is_told(database: Database) -> None:
    make_webhook(database, events=("ledger.acknowledged",))
    _acknowledge(database)
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


def _acknowledge(database: Database) -> None:
    said: dict[str, object] = {"reason": "the backup of Monday"}
    at = clock.now()
    database.write(
        lambda c: installation_journal.append(c, SECRET, "mark_acknowledged", said, actor=None, at=at),
        is_committed=lambda *_: False,
    )
