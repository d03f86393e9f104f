"""The installation's journal decides whether a key has ended, and a server remembers it, whatever rows say later."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import Conflict, Unauthenticated, Unavailable
from service.ledger.access.key_events import keys_of, require_valid
from service.ledger.access.key_records import KeyRecord
from service.ledger.access.keys import authenticate, create_key, list_keys, revoke_key, rotate_key
from service.ledger.installation.installation_journal import follow
from service.ledger.journal.journal import Actor, BrokenChain
from service.ledger.storage.database import Database, open_database
from tests.ledger.charging import SECRET, asking, charge, open_account
from tests.ledger.ledgers import Clock

AT, LATER, MUCH_LATER = (f"2030-01-0{day}T00:00:00.000000Z" for day in (1, 2, 3))
_PLAN = {"type": "gaussian", "rho": "1/8"}


def _never(_: Connection, __: object) -> bool:
    raise AssertionError("no commit was in doubt")


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """Another server of the same ledger."""
    opened = open_database(database.url)
    opened.secret = SECRET
    yield opened
    opened.close()


def _make(database: Database, role: Any = "steward") -> tuple[KeyRecord, str]:
    return database.write(
        lambda connection: create_key(connection, SECRET, name="eve", role=role, accounts=None, expires_at=None, at=AT),
        is_committed=_never,
    )


def _revoke(database: Database, key_id: str, at: str = LATER) -> KeyRecord:
    return database.write(
        lambda connection: revoke_key(connection, SECRET, key_id, at=at, by=None), is_committed=_never
    )


def _rotate(database: Database, key_id: str, at: str = LATER) -> None:
    database.write(
        lambda connection: rotate_key(connection, SECRET, key_id, overlap=timedelta(hours=1), at=at, by=None),
        is_committed=_never,
    )


def _row(database: Database, key_id: str) -> dict[str, Any]:
    with database.read() as connection:
        query = text("SELECT id, expires_at, revoked_at, seal FROM api_keys WHERE id = :id")
        return dict(connection.execute(query, {"id": key_id}).one()._mapping)


def _put(database: Database, row: dict[str, Any]) -> None:
    """Write a key's row back, as the servers' own role at PostgreSQL may."""
    change = text("UPDATE api_keys SET expires_at = :expires_at, revoked_at = :revoked_at, seal = :seal WHERE id = :id")
    database.write(lambda connection: connection.execute(change, row), is_committed=_never)


def _add_rubbish(database: Database, above: int) -> None:
    """Append entries without meaning, as the servers' own role at PostgreSQL may."""
    columns = f"max(seq) + {above}, max(kind), max(body), max(hash), max(seal)"
    copied = text(f"INSERT INTO installation_journal SELECT {columns} FROM installation_journal")
    database.write(lambda connection: connection.execute(copied), is_committed=_never)


def _kinds(database: Database) -> list[str]:
    with database.read() as connection:
        query = text("SELECT kind FROM installation_journal ORDER BY seq")
        return list(connection.execute(query).scalars())


def _listed(database: Database) -> list[KeyRecord]:
    with database.read() as connection:
        return list_keys(connection, None, 10, known=keys_of(connection, SECRET))


def _without_last_entry(database: Database) -> None:
    """Remove the last entry for some milliseconds, as the database's owner can."""
    drops = {
        "sqlite": [f"DROP TRIGGER installation_journal_{name}" for name in ("fixed", "no_delete")],
        "postgresql": ["SET LOCAL session_replication_role = replica"],
    }[database.kind]
    last = "DELETE FROM installation_journal WHERE seq = (SELECT max(seq) FROM installation_journal)"

    def work(connection: Connection) -> None:
        for statement in (*drops, last):
            connection.execute(text(statement))

    database.write(work, is_committed=_never)


def test_a_row_that_says_beforehand_that_its_key_is_revoked_stops_no_revocation(
    database: Database, other: Database
) -> None:
    """The attack: the row is changed before the revocation, which finds nothing to do, and is put back afterwards."""
    eve, token = _make(database)
    old = _row(database, eve.id)
    _put(database, old | {"revoked_at": AT})
    revoked = _revoke(database, eve.id)
    assert (revoked.revoked_at, revoked.sealed) == (LATER, False), "the operator is told of the row"
    assert _kinds(database) == ["key_made", "key_revoked"]
    _put(database, old)
    assert authenticate(database, SECRET, token, MUCH_LATER) is None
    follow(other, SECRET)
    assert authenticate(other, SECRET, token, MUCH_LATER) is None
    assert [key.revoked_at for key in _listed(other)] == [LATER]
    assert _revoke(other, eve.id, MUCH_LATER) == replace(revoked, sealed=True)
    assert _kinds(database) == ["key_made", "key_revoked"], "the journal has it already"
    assert _row(database, eve.id)["revoked_at"] == LATER


def test_the_operator_revokes_a_key_while_the_journal_is_not_sound(database: Database) -> None:
    eve, token = _make(database)
    _add_rubbish(database, 1)
    assert _revoke(database, eve.id).revoked_at == LATER
    assert _kinds(database) == ["key_made", "key_made"], "nothing would be read after what the service did not write"
    assert authenticate(database, SECRET, token, MUCH_LATER) is None
    with pytest.raises(BrokenChain):
        follow(database, SECRET)
    with pytest.raises(Unavailable) as refused:
        _make(database)
    assert "the installation's journal is not sound" in str(refused.value.for_operator)
    _without_last_entry(database)
    assert _revoke(database, eve.id, MUCH_LATER).revoked_at == MUCH_LATER
    assert _kinds(database) == ["key_made", "key_revoked"]


@pytest.mark.parametrize("above", [1, 5])
def test_no_key_is_valid_while_the_journal_may_hide_its_end(database: Database, other: Database, above: int) -> None:
    """The attack: a row that is no entry, at the next number or later, and the row of a leaver's key put back."""
    eve, token = _make(database, "pipeline")
    old = _row(database, eve.id)
    follow(other, SECRET)
    _add_rubbish(database, above)
    _revoke(database, eve.id)
    assert authenticate(other, SECRET, token, MUCH_LATER) is None
    _put(database, old)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no key can be checked"):
            authenticate(other, SECRET, token, MUCH_LATER)
    _without_last_entry(database)
    assert authenticate(other, SECRET, token, MUCH_LATER) is not None, "the operator was told to revoke it again"
    _revoke(database, eve.id)
    _put(database, old)
    follow(other, SECRET)  # as the keeper of the mark does
    assert authenticate(other, SECRET, token, MUCH_LATER) is None


@pytest.mark.parametrize("end", ["revoked", "rotated"])
def test_a_key_that_the_journal_has_ended_is_rotated_by_nobody(database: Database, end: str) -> None:
    eve, _ = _make(database)
    old = _row(database, eve.id)
    (_revoke if end == "revoked" else _rotate)(database, eve.id)
    _put(database, old)
    with pytest.raises(Conflict):
        _rotate(database, eve.id, MUCH_LATER)


@pytest.mark.parametrize("end", ["revoked", "rotated"])
def test_a_server_refuses_a_key_that_was_ended_elsewhere_whatever_its_row_says(
    database: Database, other: Database, end: str
) -> None:
    """The attack: the row of a leaver's key is put back for a moment."""
    eve, token = _make(database, "pipeline")
    old = _row(database, eve.id)
    follow(other, SECRET)
    assert authenticate(other, SECRET, token, MUCH_LATER) is not None
    (_revoke if end == "revoked" else _rotate)(database, eve.id)
    _put(database, old)
    assert authenticate(database, SECRET, token, MUCH_LATER) is None
    assert authenticate(other, SECRET, token, MUCH_LATER) is None, "as soon as the journal says so"


def test_what_was_let_in_before_a_key_ended_is_not_done_afterwards(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    open_account(database)
    eve, _ = _make(database, "pipeline")
    charge(database, _PLAN, request=asking("eve", key_id=eve.id))
    _revoke(database, eve.id)
    with pytest.raises(Unauthenticated):
        charge(database, _PLAN, request=asking("eve", key_id=eve.id))


def test_a_revocation_that_is_rolled_back_ends_nothing(database: Database) -> None:
    eve, token = _make(database)

    def work(connection: Connection) -> None:
        revoke_key(connection, SECRET, eve.id, at=LATER, by=None)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work, is_committed=_never)
    assert authenticate(database, SECRET, token, MUCH_LATER) is not None


@pytest.mark.parametrize("look", ["at an act of a steward", "by the keeper", "at a request"])
def test_a_journal_without_an_entry_that_was_seen_stops_the_server(
    database: Database, other: Database, look: str
) -> None:
    """The attack: the entry of a revocation is away for some milliseconds, while its key acts."""
    eve, token = _make(database)
    old = _row(database, eve.id)
    _revoke(database, eve.id)
    follow(database, SECRET)
    _without_last_entry(other)
    _put(other, old)
    actor = Actor("eve", eve.id)
    looks: dict[str, Callable[[], object]] = {
        "at an act of a steward": lambda: database.write(
            lambda connection: require_valid(connection, SECRET, actor, LATER), is_committed=_never
        ),
        "by the keeper": lambda: follow(database, SECRET),
        "at a request": lambda: authenticate(database, SECRET, token, LATER),
    }
    with pytest.raises(Unavailable, match="the ledger lacks"):
        looks[look]()
    assert database.stopped is not None
    with pytest.raises(Unavailable, match="the ledger lacks"):
        _make(database)
    other.write(
        lambda connection: require_valid(connection, SECRET, actor, LATER), is_committed=_never
    )  # which saw nothing


def test_entries_of_others_do_not_look_as_if_the_journal_went_back(database: Database, other: Database) -> None:
    eve, token = _make(database)
    follow(database, SECRET)
    for _ in range(3):
        _make(other)
    with database.read() as connection:
        before = keys_of(connection, SECRET)
        _make(database)
        assert len(keys_of(connection, SECRET)) == len(before) or database.kind == "sqlite"
    assert authenticate(database, SECRET, token, AT) is not None
    follow(database, SECRET)
    assert database.stopped is None
    assert len(_listed(database)) == 5
    assert eve in _listed(database)
