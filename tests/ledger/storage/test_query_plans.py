"""Every statement of the ledger finds its rows by an index: none reads a table that grows from end to end."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, Engine, event

from service.ledger import jobs
from service.ledger.accounts import accounts
from service.ledger.descriptions import registry
from service.ledger.draws import draws, partitions, stored_draws
from service.ledger.draws.retention import remove_noisy
from service.ledger.installation.missing_entries import last_entries, lost_entries, missing_entries
from service.ledger.journal import journal
from service.ledger.journal.journal import Head
from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import Message, Try
from service.ledger.releases import past_releases, recorded_releases, release_search, releases
from service.ledger.releases.release_search import search_releases
from service.ledger.releases.releases import Wanted
from service.ledger.releases.reservation_rows import State
from service.ledger.releases.settlement import present_account
from service.ledger.spending import spending, spending_history, worst_windows
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NewEntry
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
    commit,
    draw,
    mechanisms_in,
    open_account,
    prepared,
    release_of,
    reserve,
    void,
)
from tests.ledger.notifications.hooks import change_webhook, erase, make_webhook, remove_webhook
from tests.ledger.writing import never

_PLAN = {"type": "choice", "parts": [{"type": "geometric", "epsilon": "0.0001", "name": "a", "tags": ["t"]}]}
_MECHANISM = {"type": "geometric", "epsilon": "0.0001", "name": "a"}

_READ_WHOLE = "journal_approvals"
"""The partial index that the list of approved proposals reads from end to end: approvals are few beside releases."""

Statement = tuple[str, Any]


@contextmanager
def _statements() -> Iterator[list[Statement]]:
    """Every statement that reads or changes rows, with a set of its parameters."""
    log: list[Statement] = []

    def note(_: Connection, __: object, statement: str, parameters: Any, ___: object, many: bool) -> None:
        if statement.split(None, 1)[0] in ("SELECT", "UPDATE", "DELETE", "INSERT"):
            log.append((statement, parameters[0] if many else parameters))

    event.listen(Engine, "after_cursor_execute", note)
    try:
        yield log
    finally:
        event.remove(Engine, "after_cursor_execute", note)


def _everything(database: Database, later: Callable[[], None]) -> None:
    """Each operation of the ledger, each way of reading it."""
    open_account(database, "agency")
    open_account(database, parent="agency", approval_above="0.001")
    for change, who in (("closed", ANN), ("open", ANN), ("open", BOB)):
        change_account(database, "people", change, who)
    (registered,) = charge(database, _PLAN, request=asking("ann", "key", "digest"))
    charge(database, _PLAN, request=asking("ann", "key", "digest"))
    draw(database, registered.id, _PLAN)
    draws.register_and_draw(database, ANN, prepared(database, _MECHANISM)[0], np.array([1]))
    for settle in (commit, void):
        (release,) = reserve(database, _PLAN)
        settle(database, release)
    draw(database, reserve(database, _PLAN)[0], _PLAN)
    of_parts = _PLAN | {"partitions": ["01", "02"]}
    draw(database, charge(database, of_parts)[0].id, of_parts, partition="01")
    approve(database, charge(database, {"type": "geometric", "epsilon": "0.1"})[0].id)
    with pytest.raises(Exception, match="cap on rho"):
        charge(database, {"type": "geometric", "epsilon": "9"})
    (due,) = reserve(database, _PLAN)
    _count_by_periods(database)
    _run_jobs(database)
    _remove(database)
    later()
    _read(database, due)
    charge(database, _PLAN)  # which lets it expire
    assert release_of(database, due).state == "expired"


def _count_by_periods(database: Database) -> None:
    open_account(database, "monthly", periods={"calendar": "month", "participation": {"offsets": [0, 2]}})
    (held,) = reserve(database, _PLAN, name="monthly", periods={"from": "2026-01", "to": "2026-09"})
    charge(database, _PLAN, name="monthly", periods={"list": ["2026-01", "2026-06"]})
    charge(database, _PLAN, name="monthly", periods="all")
    with pytest.raises(Exception, match="cap on rho"):
        charge(database, {"type": "geometric", "epsilon": "9"}, name="monthly", periods="all")
    void(database, held, "monthly")
    with database.read() as connection:
        account = accounts.read_account(connection, "monthly")
        worst_windows.worst_window(connection, account, None)
        worst_windows.worst_window(connection, account, 24_313)
        ends = worst_windows.touched_periods(connection, account)
        assert ends is not None
        assert len(list(worst_windows.period_views(connection, account, *ends))) == 9


def _run_jobs(database: Database) -> None:
    first, second = (carry_out(database, jobs.submit(ANN, {})).id for _ in range(2))
    job = jobs.take(database, "w")
    assert job is not None
    assert jobs.renew(database, first, "w", 0.5)
    assert jobs.finish(database, SECRET, job, "w", {})
    jobs.end(database, second)
    jobs.end(database, second)
    assert jobs.forget(database, clock.later(clock.now(), timedelta(days=1))) == 1


def _remove(database: Database) -> None:
    assert remove_noisy(database, clock.later(clock.now(), timedelta(days=1)), clock.now()) > 0


def _read(database: Database, release: str) -> None:
    now = clock.now()
    release_of(database, release)
    with database.read() as connection:
        account = account_of(database)
        present_account(connection, account, now)
        spending.counts(connection, account)
        partitions.total(connection, account.id)
        partitions.drawn_for(connection, [release, "another"])
        past_releases.omitted_parts_at(connection, account.id, release, 2)
        registry.largest_budget(connection, account)
        accounts.list_accounts(connection, "", 10, accounts.Wanted())
        accounts.list_accounts(connection, "", 10, accounts.Wanted(only=frozenset({"people"})))
        accounts.list_accounts(connection, "", 10, accounts.Wanted(parent="people"))
        journal.entries(connection, account.id, 1, 10, until=9)
        spending_history.spending_history(connection, account, 10)
        jobs.list_jobs(connection, "ann", ("", ""), 10, None, lambda _: None)
        jobs.list_jobs(connection, "ann", ("", ""), 10, "queued", lambda _: None)
        journal.hash_before(connection, account.id, 2)
        first = Head(1, journal.hash_before(connection, account.id, 2))
        made = [NewEntry(account.id, first.seq, first.hash, account.name)]
        assert missing_entries(connection, {"people": first}, last_entries(connection, ["people"])) == []
        assert lost_entries(connection, made) == []
        stored_draws.list_draws(connection, account, release, 0, 10, 100, mechanisms_in(connection, release))
        recorded_releases.read_recorded(connection, account, release)
        releases.list_proposals(connection, (0, 0), 10, None, now, lambda _: None)
        releases.list_proposals(connection, (account.id, 1), 10, frozenset({"people"}), now, lambda _: None)
        rejected = releases.WantedProposals("voided", "mia", now)
        approved = releases.WantedProposals("approved", "mia", now)
        for decided in (approved, rejected):
            releases.list_proposals(connection, (0, 0), 10, None, now, lambda _: None, decided)
        stored_draws.drawn_among(connection, [release])
        accounts.list_accounts(connection, "", 10, accounts.Wanted(waiting=True))
        for tag in (None, "t"):
            states: tuple[State | None, ...] = (None, "reserved", "committed", "voided", "expired", "proposed")
            for state in states:
                wanted = Wanted(tag, state)
                for after, newest_first in ((0, False), (0, True), (9, True)):
                    asked = connection, account.chain, after, 10, wanted, now, lambda _: None
                    releases.list_releases(*asked, newest_first=newest_first)
                for only, newest_first in product((None, frozenset({"people"})), (False, True)):
                    if only is None and newest_first and database.kind == "postgresql":
                        continue  # of all releases of tables this small it would sort them
                    place = (account.id, 1)
                    search_releases(connection, place, 10, only, wanted, now, lambda _: None, newest_first=newest_first)
        for wanted in (Wanted(approver="bob"), Wanted(principal="ann", name="r", since=now, before=now)):
            search_releases(connection, (0, 0), 10, None, wanted, now, lambda _: None)


def test_every_statement_finds_its_rows_by_an_index(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def later() -> None:
        over = clock.later(clock.now(), timedelta(hours=2))
        monkeypatch.setattr(clock, "now", lambda: over)

    with _statements() as log:
        _everything(database, later)
    assert len({statement for statement, _ in log}) > 40
    assert _scans(database, log) == []


def test_every_statement_about_messages_finds_its_rows_by_an_index(database: Database) -> None:
    made, at = make_webhook(database, accounts=("a", "b")), clock.now()
    with _statements() as log:
        messages = [Message(made.id, "test", None, at, {}), Message(made.id, "release.refused", "a", at, {})]
        database.write(
            lambda connection: deliveries.queue(connection, deliveries.sealed(SECRET, messages, at)), is_committed=never
        )
        with database.read() as connection:
            deliveries.waiting(connection, clock.now())
            deliveries.number_of_tests(connection, made.id)
            deliveries.numbers_since(connection, made.id, at)
            for only in (None, {"a"}):
                found = deliveries.list_deliveries(connection, SECRET, made.id, "", 10, lambda _: None, only)
            first, _ = deliveries.due(connection, SECRET, clock.now(), made, 10)
            deliveries.tries_of(connection, [one.id for one in found])
        assert deliveries.claim(database, made, first)
        deliveries.record(database, first, Try(at, 1, 500, "the answer has status 500", None))
        deliveries.oldest_age(database)
        change_webhook(database, made.id, accounts=("b",))
        remove_webhook(database, make_webhook(database).id)
        erase(database)
    about = [one for one in log if "deliver" in one[0]]
    assert len({statement for statement, _ in about}) > 10
    assert _scans(database, about) == []


def _scans(database: Database, log: list[Statement]) -> list[str]:
    """Return the statements that read a table from end to end."""
    scans = _sqlite_scans if database.kind == "sqlite" else _postgresql_scans
    faults = []
    with database.read() as connection:
        for statement, parameters in dict(log).items():
            faults += [f"{scan}: {' '.join(statement.split())}" for scan in scans(connection, statement, parameters)]
    return faults


def _sqlite_scans(connection: Connection, statement: str, parameters: Any) -> Iterator[str]:
    """Not of an INSERT, whose rows are given: for a table with triggers it lists scans that it never comes to, for
    children that waited for their parent in the same statement (OP_FkIfZero).
    """
    if statement.startswith("INSERT"):
        return
    for step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
        given = "CONSTANT ROW" in step.detail or "VIRTUAL TABLE" in step.detail  # of the statement or of a parameter
        given |= step.detail in ("SCAN (subquery-3)", "SCAN numbered")  # what another step found by an index
        given |= step.detail.endswith(f"USING INDEX {_READ_WHOLE}")
        if step.detail.startswith("SCAN") and not given:
            yield step.detail


def _postgresql_scans(connection: Connection, statement: str, parameters: Any) -> Iterator[str]:
    """Of tables this small it would read all, so it is told not to where there is another way."""
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    (plan,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
    nodes = [plan["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        whole = "Index" in node["Node Type"] and "Index Cond" not in node and node.get("Index Name") != _READ_WHOLE
        if node["Node Type"] == "Seq Scan" or whole:
            yield json.dumps({key: node.get(key) for key in ("Node Type", "Relation Name", "Index Name")})


@contextmanager
def _steps(connection: Connection) -> Iterator[list[int]]:
    """The steps that SQLite takes meanwhile, counted in the end."""
    raw, taken = connection.connection.driver_connection, [0]
    assert isinstance(raw, sqlite3.Connection)

    def count() -> int:
        taken[0] += 1
        return 0

    raw.set_progress_handler(count, 1)
    try:
        yield taken
    finally:
        raw.set_progress_handler(None, 1)


@pytest.mark.parametrize("state", [None, "committed", "reserved", "voided", "expired"])
@pytest.mark.parametrize("tag", [None, "t", "other"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # whose steps can be counted
def test_a_page_of_few_releases_costs_the_same_among_many(
    database: Database, tag: str | None, state: State | None
) -> None:
    """Planners without statistics may go through all releases to find those of a tag, or those that expired."""
    open_account(database)
    for few in (charge, reserve):
        few(database, _PLAN)
    void(database, reserve(database, _PLAN)[0])
    later = clock.later(clock.now(), timedelta(days=99))
    taken = []
    for _ in range(2):
        charge(database, *[_MECHANISM] * 300)
        with database.read() as connection, _steps(connection) as steps:
            releases.list_releases(
                connection, account_of(database).chain, 0, 2, Wanted(tag, state), later, lambda _: None
            )
        taken += steps
    assert taken[1] < 1.2 * taken[0]


@pytest.mark.parametrize("only", [None, frozenset({"people"})])
@pytest.mark.parametrize(
    "wanted", [Wanted(name="none"), Wanted(approver="nobody"), Wanted("t", name="none"), Wanted(state="reserved")]
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_page_of_a_search_costs_the_same_among_many(
    database: Database, wanted: Wanted, only: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_search, "MOST_SEARCHED", 100)
    open_account(database)
    taken = []
    for _ in range(2):
        charge(database, *[_PLAN] * 300)
        with database.read() as connection, _steps(connection) as steps:
            found = search_releases(connection, (0, 0), 2, only, wanted, clock.now(), lambda _: None)
        assert found.releases == []
        taken += steps
    assert taken[1] < 1.2 * taken[0]
