"""The installation's journal decides whether a key has ended, and a server remembers it, whatever rows say later."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.errors import Conflict, Unauthenticated, Unavailable
from service.ledger.access.authentication import authenticate
from service.ledger.access.key_events import keys_of, require_valid
from service.ledger.access.key_records import KeyRecord
from service.ledger.access.keys import list_keys, revoke_key
from service.ledger.installation.installation_journal import follow
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import Actor
from service.ledger.storage.database import Database, open_database
from tests.ledger.charging import SECRET, asking, charge, open_account
from tests.ledger.keys import make_key, revoke, rotate
from tests.ledger.ledgers import Clock
from tests.ledger.writing import never, unprotected

AT, LATER, MUCH_LATER = (f"2030-01-0{day}T00:00:00.000000Z" for day in (1, 2, 3))
_PLAN = {"type": "gaussian", "rho": "1/8"}


_make = partial(make_key, role="steward", at=AT)
_revoke = partial(revoke, at=LATER)
_rotate = partial(rotate, at=LATER, overlap=timedelta(hours=1))


def _row(database: Database, key_id: str) -> dict[str, Any]:
    with database.read() as connection:
        query = text("SELECT id, expires_at, revoked_at, seal FROM api_keys WHERE id = :id")
        return dict(connection.execute(query, {"id": key_id}).one()._mapping)


def _put(database: Database, row: dict[str, Any]) -> None:
    """Write a key's row back, as the servers' own role at PostgreSQL may."""
    change = text("UPDATE api_keys SET expires_at = :expires_at, revoked_at = :revoked_at, seal = :seal WHERE id = :id")
    database.write(lambda connection: connection.execute(change, row), is_committed=never)


def _add_rubbish(database: Database, above: int) -> None:
    """Append entries without meaning, as the servers' own role at PostgreSQL may."""
    columns = f"max(seq) + {above}, max(kind), max(body), max(hash), max(seal)"
    copied = f"INSERT INTO installation_journal SELECT {columns} FROM installation_journal"
    unprotected(database, "installation_journal", copied)


def _kinds(database: Database) -> list[str]:
    with database.read() as connection:
        query = text("SELECT kind FROM installation_journal ORDER BY seq")
        return list(connection.execute(query).scalars())


def _listed(database: Database) -> list[KeyRecord]:
    with database.read() as connection:
        return list_keys(connection, SECRET, None, 10, known=keys_of(connection, SECRET))


def _without_last_entry(database: Database) -> None:
    """Remove the last entry for some milliseconds, as the database's owner can."""
    last = "DELETE FROM installation_journal WHERE seq = (SELECT max(seq) FROM installation_journal)"
    unprotected(database, "installation_journal", last)


def test_a_row_that_says_beforehand_that_its_key_is_revoked_stops_no_revocation(
    database: Database, replica: Database
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
    follow(replica, SECRET)
    assert authenticate(replica, SECRET, token, MUCH_LATER) is None
    assert [key.revoked_at for key in _listed(replica)] == [LATER]
    assert _revoke(replica, eve.id, at=MUCH_LATER) == replace(revoked, sealed=True)
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
    assert _revoke(database, eve.id, at=MUCH_LATER).revoked_at == MUCH_LATER
    assert _kinds(database) == ["key_made", "key_revoked"]


@pytest.mark.parametrize("above", [1, 5])
def test_no_key_is_valid_while_the_journal_may_hide_its_end(database: Database, replica: Database, above: int) -> None:
    """The attack: a row that is no entry, at the next number or later, and the row of a leaver's key put back."""
    eve, token = _make(database, role="pipeline")
    old = _row(database, eve.id)
    follow(replica, SECRET)
    _add_rubbish(database, above)
    _revoke(database, eve.id)
    assert authenticate(replica, SECRET, token, MUCH_LATER) is None
    _put(database, old)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no key can be checked"):
            authenticate(replica, SECRET, token, MUCH_LATER)
    _without_last_entry(database)
    assert authenticate(replica, SECRET, token, MUCH_LATER) is not None, "the operator was told to revoke it again"
    _revoke(database, eve.id)
    _put(database, old)
    follow(replica, SECRET)  # as the keeper of the mark does
    assert authenticate(replica, SECRET, token, MUCH_LATER) is None


@pytest.mark.parametrize("end", ["revoked", "rotated"])
def test_a_key_that_the_journal_has_ended_is_rotated_by_nobody(database: Database, end: str) -> None:
    eve, _ = _make(database)
    old = _row(database, eve.id)
    (_revoke if end == "revoked" else _rotate)(database, eve.id)
    _put(database, old)
    with pytest.raises(Conflict):
        _rotate(database, eve.id, at=MUCH_LATER)


@pytest.mark.parametrize("end", ["revoked", "rotated"])
def test_a_server_refuses_a_key_that_was_ended_elsewhere_whatever_its_row_says(
    database: Database, replica: Database, end: str
) -> None:
    """The attack: the row of a leaver's key is put back for a moment."""
    eve, token = _make(database, role="pipeline")
    old = _row(database, eve.id)
    follow(replica, SECRET)
    assert authenticate(replica, SECRET, token, MUCH_LATER) is not None
    (_revoke if end == "revoked" else _rotate)(database, eve.id)
    _put(database, old)
    assert authenticate(database, SECRET, token, MUCH_LATER) is None
    assert authenticate(replica, SECRET, token, MUCH_LATER) is None, "as soon as the journal says so"


def test_what_was_let_in_before_a_key_ended_is_not_done_afterwards(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    open_account(database)
    eve, _ = _make(database, role="pipeline")
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
        database.write(work, is_committed=never)
    assert authenticate(database, SECRET, token, MUCH_LATER) is not None


@pytest.mark.parametrize("look", ["at an act of a steward", "by the keeper", "at a request"])
def test_a_journal_without_an_entry_that_was_seen_stops_the_server(
    database: Database, replica: Database, look: str
) -> None:
    """The attack: the entry of a revocation is away for some milliseconds, while its key acts."""
    eve, token = _make(database)
    old = _row(database, eve.id)
    _revoke(database, eve.id)
    follow(database, SECRET)
    _without_last_entry(replica)
    _put(replica, old)
    actor = Actor("eve", eve.id)
    looks: dict[str, Callable[[], object]] = {
        "at an act of a steward": lambda: database.write(
            lambda connection: require_valid(connection, SECRET, actor, LATER), is_committed=never
        ),
        "by the keeper": lambda: follow(database, SECRET),
        "at a request": lambda: authenticate(database, SECRET, token, LATER),
    }
    with pytest.raises(Unavailable, match="the ledger lacks"):
        looks[look]()
    assert database.stopped is not None
    with pytest.raises(Unavailable, match="the ledger lacks"):
        _make(database)
    replica.write(
        lambda connection: require_valid(connection, SECRET, actor, LATER), is_committed=never
    )  # which saw nothing


def test_entries_of_others_do_not_look_as_if_the_journal_went_back(database: Database, replica: Database) -> None:
    eve, token = _make(database)
    follow(database, SECRET)
    for _ in range(3):
        _make(replica)
    with database.read() as connection:
        before = keys_of(connection, SECRET)
        _make(database)
        assert len(keys_of(connection, SECRET)) == len(before) or database.kind == "sqlite"
    assert authenticate(database, SECRET, token, AT) is not None
    follow(database, SECRET)
    assert database.stopped is None
    assert len(_listed(database)) == 5
    assert eve in _listed(database)


def test_a_key_that_the_installations_journal_did_not_make_is_refused(database: Database, replica: Database) -> None:
    """Its row has a right seal: that of the ledger from which this one was imported, with the same secret."""
    _make(database)
    follow(replica, SECRET)
    _, token = _make(database)
    assert authenticate(replica, SECRET, token, LATER) is not None
    _without_last_entry(database)
    with contextlib.closing(open_database(database.url)) as another:
        another.secret = SECRET
        follow(another, SECRET)
        assert authenticate(another, SECRET, token, LATER) is None
