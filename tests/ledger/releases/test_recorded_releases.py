"""A release counts as it is recorded in the journal; rows of a transaction that failed, shown for a moment, do not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import AlreadyDrawn, Altered
from service.ledger.accounts.accounts import read_account
from service.ledger.accounts.approvers import Approvers
from service.ledger.draws import stored_draws
from service.ledger.idempotent_write import Operation, idempotent_write
from service.ledger.journal.journal import Head
from service.ledger.journal.linked_heads import contains
from service.ledger.releases import reservations, settlement
from service.ledger.releases.charges import register
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.storage import chain_points, clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.verification.receipts import receipt_of
from tests.ledger.charging import (
    ANN,
    BOB,
    Rows,
    account_of,
    approve,
    asking,
    carry_out,
    charge,
    commit,
    draw,
    mechanisms_in,
    open_account,
    prepared,
    release_of,
    reserve,
    rows_of_failed,
    rows_of_failed_draw,
    void,
)
from tests.ledger.writing import hold_of, put_back, unprotected

A: dict[str, Any] = {"type": "gaussian", "name": "a", "rho": "1/64"}
_DRAWABLE = {"type": "geometric", "epsilon": "1/64", "name": "a"}
_ALTERED = "not as the service wrote it"
Settle = Callable[[Database, Request, str, str], Operation[Any]]


def _write(database: Database, table: str, statement: str, row: dict[str, Any]) -> None:
    unprotected(database, table, statement, **row)


def _update(database: Database, table: str, row: dict[str, Any], where: str) -> None:
    unprotected(database, table, f"UPDATE {table} SET " + ", ".join(f"{name} = :{name}" for name in row) + where, **row)


@contextmanager
def _shown_state(database: Database, release: str, rows: Rows) -> Iterator[None]:
    """Show a release in the state of rows that were not committed, until the block ends."""
    with database.read() as connection:
        query = text("SELECT id, state, seal FROM releases WHERE id = :id")
        before = dict(connection.execute(query, {"id": release}).one()._mapping)
    (row,) = (row for row in rows["releases"] if row["id"] == release)
    _update(database, "releases", {name: row[name] for name in before}, " WHERE id = :id")
    yield
    _update(database, "releases", before, " WHERE id = :id")


def _voided(database: Database, request: Request, name: str, release: str) -> Operation[Any]:
    return reservations.void(database, request, name, release, "why", "nothing was published")


@pytest.mark.parametrize("settle", [reservations.commit, _voided])
def test_a_settlement_that_failed_is_not_confirmed(database: Database, settle: Settle) -> None:
    open_account(database)
    (release,) = reserve(database, A)
    rows = rows_of_failed(database, settle(database, ANN, "people", release), "releases")
    before = account_of(database)
    with _shown_state(database, release, rows):
        for again in (reservations.commit, _voided):
            with pytest.raises(Altered, match=_ALTERED):
                again(database, ANN, "people", release)
        with pytest.raises(Altered, match=_ALTERED):
            draw(database, release, A)
        with database.read() as connection, pytest.raises(Altered, match=_ALTERED):
            receipt_of(connection, read_account(connection, "people"), release, clock.now())
    assert (account_of(database), release_of(database, release).state) == (before, "reserved")
    assert commit(database, release).state == "committed"


def test_an_approval_that_failed_is_not_confirmed(database: Database) -> None:
    open_account(database, approval_above="0.001")
    for reserved in (None, timedelta(hours=1)):
        (proposed,) = charge(database, A, reserve_for=reserved)
        rows = rows_of_failed(
            database, reservations.approve(database, BOB, "people", proposed.id), "releases", request=BOB
        )
        with _shown_state(database, proposed.id, rows):
            for settle in (reservations.approve, reservations.commit):
                with pytest.raises(Altered, match=_ALTERED):
                    settle(database, BOB, "people", proposed.id)
            with pytest.raises(Altered, match=_ALTERED):
                draw(database, proposed.id, A)
        assert approve(database, proposed.id).state == ("committed" if reserved is None else "reserved")


def test_a_state_that_is_shown_under_the_lock_is_not_confirmed(database: Database) -> None:
    """It was shown after the read that comes before the lock."""
    open_account(database)
    (release,) = reserve(database, A)
    step = reservations.commit(database, ANN, "people", release)
    rows = rows_of_failed(database, step, "releases")
    with _shown_state(database, release, rows), pytest.raises(Altered, match=_ALTERED):
        idempotent_write(database, ANN, step, lambda _: Answer(200))
    assert release_of(database, release).state == "reserved"


def _settled_rows(database: Database, release: str) -> Callable[[], None]:
    """Return a function that puts back the rows of a release and its hold as they are now, with their seals."""
    with database.read() as connection:
        state, seal = connection.execute(text("SELECT state, seal FROM releases WHERE id = :id"), {"id": release}).one()
    hold = hold_of(database, release)

    def back() -> None:
        row = {"id": release, "state": state, "seal": seal}
        _update(database, "releases", row, " WHERE id = :id")
        put_back(database, hold)

    return back


@pytest.mark.parametrize("settle", [lambda database, release: draw(database, release, _DRAWABLE), void])
def test_a_settled_reservation_that_is_put_back_is_not_settled_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, settle: Callable[[Database, str], object]
) -> None:
    """The rows of another reservation hold an equal part, so that the account's spending would allow it."""
    open_account(database)
    release, _ = reserve(database, _DRAWABLE, _DRAWABLE)
    back = _settled_rows(database, release)
    steps = [step(database, ANN, "people", release) for step in (reservations.commit, _voided)]
    settle(database, release)
    back()
    before = account_of(database)
    for again in (reservations.commit, _voided):
        with pytest.raises(Altered, match=_ALTERED):
            again(database, ANN, "people", release)
    for step in steps:  # which read the release before it was settled
        with pytest.raises(Altered, match=_ALTERED):
            idempotent_write(database, ANN, step, lambda _: Answer(200))
    with pytest.raises((Altered, AlreadyDrawn)):
        draw(database, release, _DRAWABLE)
    with database.read() as connection, pytest.raises(Altered, match=_ALTERED):
        read_recorded(connection, read_account(connection, "people"), release)
    over = clock.later(clock.now(), timedelta(hours=2))
    monkeypatch.setattr(clock, "now", lambda: over)
    with pytest.raises(Altered, match=_ALTERED):
        settlement.expire(database, before.id)
    assert account_of(database) == before


def test_a_reservation_is_settled_while_others_approve_and_settle_it(database: Database) -> None:
    """A step that read the release before sees what the journal records since."""
    open_account(database, approval_above="0.001", approvers=Approvers(2))
    (proposed,) = charge(database, A, reserve_for=timedelta(hours=1))
    approvals = [
        (request, reservations.approve(database, request, "people", proposed.id)) for request in (BOB, asking("carol"))
    ]
    states = [carry_out(database, step, request).release.state for request, step in approvals]
    assert states == ["proposed", "reserved"]
    steps = [reservations.commit(database, ANN, "people", proposed.id) for _ in range(2)]
    assert [carry_out(database, step).release.state for step in steps] == ["committed", "committed"]


def test_a_charge_that_failed_gets_no_receipt(database: Database) -> None:
    open_account(database)
    (reserved,) = reserve(database, A)
    rows = rows_of_failed(database, register(ANN, prepared(database, A)), "releases", "journal")
    shown = rows["releases"][-1]
    (entry,) = (row for row in rows["journal"] if row["seq"] == shown["seq"])
    assert shown["id"] != reserved
    commit(database, reserved)
    charge(database, A)
    said, named = (", ".join(f"{sign}{name}" for name in shown) for sign in ("", ":"))
    _write(database, "releases", f"INSERT INTO releases ({said}) VALUES ({named})", shown)
    _update(database, "journal", entry, " WHERE account_id = :account_id AND seq = :seq")
    with database.read() as connection:
        account = read_account(connection, "people")
        for read in (
            lambda: receipt_of(connection, account, shown["id"], clock.now()),
            lambda: read_recorded(connection, account, shown["id"]),
        ):
            with pytest.raises(Altered, match=_ALTERED):
                read()
    with pytest.raises(Altered, match=_ALTERED):
        draw(database, shown["id"], A)


def test_counts_of_a_draw_that_failed_are_not_given_out(database: Database) -> None:
    open_account(database)
    (registered, other) = charge(database, A, A)
    rows = rows_of_failed_draw(database, registered.id, A, "a")
    (shown,) = rows["draws"]
    (entry,) = (row for row in rows["journal"] if row["seq"] == shown["seq"])
    draw(database, other.id, A)
    charge(database, A)
    said, named = (", ".join(f'{sign}"{name}"' for name in shown) for sign in ("", ":"))
    _write(database, "draws", f"INSERT INTO draws ({said}) VALUES ({named.replace(chr(34), '')})", shown)
    _update(database, "journal", {"hash": entry["hash"], "seq": entry["seq"]}, " WHERE seq = :seq")
    with database.read() as connection:
        account, mechanisms = read_account(connection, "people"), mechanisms_in(connection, registered.id)
        with pytest.raises(Altered, match=_ALTERED):
            stored_draws.read_draw(connection, account, shown["id"], mechanisms)
        with pytest.raises(Altered, match=_ALTERED):
            stored_draws.list_draws(connection, account, registered.id, 0, 10, 10**6, mechanisms)


def test_every_state_is_recorded_however_long_ago(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_points, "_APART", 4)
    open_account(database)
    committed, voided, drawn, reserved = reserve(database, A, A, A, A)
    (charged,) = charge(database, A)
    commit(database, committed)
    void(database, voided, attestation="nothing was published")
    draw(database, drawn, A)
    states = {committed: "committed", voided: "voided", drawn: "committed", reserved: "reserved"}
    states[charged.id] = "committed"
    for _ in range(3):
        charge(database, *[A] * 7)
        for _ in range(2):
            with database.read() as connection:
                account = read_account(connection, "people")
                found = {release: read_recorded(connection, account, release).state for release in states}
            assert found == states
    assert database.points.next("people", 1, account.head.seq) is not None


def test_an_entry_is_linked_by_texts_alone(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_points, "_APART", 4)
    open_account(database)
    charge(database, *[A] * 30)
    with database.read() as connection:
        account = read_account(connection, "people").chain
        rows = connection.execute(text("SELECT seq, hash FROM journal ORDER BY seq")).all()
        heads = [Head(row.seq, row.hash) for row in rows]
        assert contains(connection, account, [])
        for of in (heads[20:22], heads[::7], heads[-1:], heads):
            assert contains(connection, account, of)
            for number in range(len(of)):
                wrong = [*of[:number], replace(of[number], hash="0" * 64), *of[number + 1 :]]
                assert not contains(connection, account, wrong)
                assert not contains(connection, account, [*of, wrong[number]])
        assert not contains(connection, account, [Head(len(heads) + 1, "0" * 64)])
    query = "UPDATE journal SET hash = :hash WHERE seq = :seq"
    for seq in (17, 19, 20):
        unprotected(database, "journal", query, hash="1" * 64, seq=seq)
    with database.read() as connection:  # whatever the rows beside the texts say
        assert contains(connection, account, [heads[2], heads[16]])
        assert not contains(connection, account, [Head(19, "1" * 64)])
    unprotected(database, "journal", "UPDATE journal SET body = replace(body, '1', '2') WHERE seq = 18")
    database.points = chain_points.ChainPoints()
    with database.read() as connection:
        assert contains(connection, account, [heads[18], heads[30]])
        assert not contains(connection, account, [heads[16]])


@pytest.mark.parametrize("column", ["body", "hash"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # PostgreSQL's columns have one type
def test_a_value_that_is_no_text_is_no_text_of_an_entry(database: Database, column: str) -> None:
    open_account(database)
    (registered,) = charge(database, A)
    charge(database, A)
    for seq in (1, 2):
        before = f"SELECT {column} FROM journal WHERE seq = :seq"
        with database.read() as connection:
            value = connection.execute(text(before), {"seq": seq}).scalar_one()
        changed = f"UPDATE journal SET {column} = :value WHERE seq = :seq"
        unprotected(database, "journal", changed, value=b"x", seq=seq)
        if (column, seq) != ("body", 1):  # which nothing here reads
            with database.read() as connection, pytest.raises(Altered, match=_ALTERED):
                receipt_of(connection, read_account(connection, "people"), registered.id, clock.now())
        unprotected(database, "journal", changed, value=value, seq=seq)
