"""Noisy counts go when their time is over, whole and for good; what was drawn, and that it was, stays."""

import io
from collections.abc import Callable

import pytest

from service.errors import AlreadyDrawn, Altered, Conflict, Gone
from service.ledger.accounts.accounts import read_account
from service.ledger.descriptions import registry
from service.ledger.draws import retention, stored_draws
from service.ledger.draws.retention import remove_noisy
from service.ledger.draws.stored_draws import DrawOutline, DrawRecord
from service.ledger.installation.signing import Signer
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.tables import Draw
from service.ledger.verification.export_reader import BadExport
from service.ledger.verification.imports import rebuild
from service.ledger.verification.verify import Verdict, verify
from tests.ledger.charging import account_of, charge, draw, entries_of, mechanisms_in, open_account, seal, unseal
from tests.ledger.ledgers import LEVEL, Clock, exported, tabulate
from tests.ledger.writing import run

_PLAN = {"type": "repeat", "count": 9, "part": {"type": "geometric", "epsilon": "0.01", "name": "a"}}
_LATER = "2031-01-01T00:00:00.000000Z"


def _drawn(database: Database, turns: int) -> str:
    """A release with so many draws; its id."""
    (registered,) = charge(database, _PLAN)
    for turn in range(turns):
        draw(database, registered.id, _PLAN, turn, noisy=turn)
    return registered.id


def _listed(database: Database, release: str) -> list[DrawRecord | DrawOutline]:
    with database.read() as connection:
        account, mechanisms = read_account(connection, "people"), mechanisms_in(connection, release)
        return stored_draws.list_draws(connection, account, release, 0, 10, 10**6, mechanisms)


def test_what_is_older_goes_and_the_rest_stays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    open_account(database)
    old = _drawn(database, 2)
    time.forward(24)
    new = _drawn(database, 1)
    head = account_of(database).head
    assert remove_noisy(database, "2030-01-01T00:00:00.000000Z", _LATER) == 0
    assert remove_noisy(database, "2030-01-01T00:00:00.000001Z", _LATER) == 2
    assert remove_noisy(database, "2030-01-01T00:00:00.000001Z", _LATER) == 0
    removed, kept = _listed(database, old), _listed(database, new)
    assert [(type(one), one.turn.repetition) for one in removed] == [(DrawOutline, 0), (DrawOutline, 1)]
    assert [one.noisy_removed_at for one in removed if isinstance(one, DrawOutline)] == [_LATER] * 2
    assert [one.noisy.tolist() for one in kept if isinstance(one, DrawRecord)] == [[0]]
    account = account_of(database)
    with database.read() as connection:
        with pytest.raises(Gone, match=_LATER):
            stored_draws.read_draw(connection, account, removed[0].id, mechanisms_in(connection, old))
        listed = stored_draws.list_outlines(connection, old, 0, 10, 10**6, mechanisms_in(connection, old))
        assert [one.size for one in listed] == [1, 1]
    with pytest.raises(AlreadyDrawn) as refused:
        draw(database, old, _PLAN, 1)
    assert refused.value.draw == removed[1].id
    assert account.head == head
    assert len(entries_of(database)) == 6  # which verifies them


def test_few_go_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by size, the oldest first, and at least one."""
    open_account(database)
    release = _drawn(database, 6)
    monkeypatch.setattr(retention, "_AT_ONCE", 2)
    assert remove_noisy(database, _LATER, _LATER) == 2
    monkeypatch.setattr(retention, "_BYTES_AT_ONCE", 1)
    assert remove_noisy(database, _LATER, _LATER) == 1
    assert [isinstance(one, DrawRecord) for one in _listed(database, release)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    "change",
    [
        "noisy = 'x'",
        "noisy = ''",
        "noisy_removed_at = 'now'",
        "noisy = '', noisy_removed_at = 'now', noisy_hash = 'other'",
        "noisy = '', noisy_removed_at = 'now', created_at = 'before'",
    ],
)
def test_nothing_else_of_a_draw_changes(database: Database, change: str) -> None:
    open_account(database)
    release = _drawn(database, 1)
    with pytest.raises((Altered, RuntimeError)):
        run(database, f"UPDATE draws SET {change}")
    assert isinstance(_listed(database, release)[0], DrawRecord)


@pytest.mark.parametrize(
    "change", ["noisy = 'x', noisy_removed_at = NULL", "noisy = '', noisy_removed_at = 'then'", "noisy = noisy"]
)
def test_what_was_removed_does_not_come_back(database: Database, change: str) -> None:
    open_account(database)
    release = _drawn(database, 1)
    remove_noisy(database, _LATER, _LATER)
    before = _listed(database, release)
    with pytest.raises((Altered, RuntimeError)):
        run(database, f"UPDATE draws SET {change}")
    assert _listed(database, release) == before


def test_a_ledger_without_its_noisy_counts_is_exported_and_rebuilt(
    new_database: Callable[[], Database], signer: Signer
) -> None:
    original, copy = new_database(), new_database()
    open_account(original)
    release = _drawn(original, 2)
    (level,) = charge(original, LEVEL)
    tabulate(original, "people", level.id, ["g", "h"], "02")
    assert remove_noisy(original, _LATER, _LATER) == 3
    draw(original, release, _PLAN, 2, noisy=7)
    file = exported(original, signer)
    rebuild(copy, lambda: io.BytesIO(file), signer.public_key)
    for database in (original, copy):
        with database.read() as connection:
            assert verify(connection, "people") == Verdict(7)
        assert [isinstance(one, DrawRecord) for one in _listed(database, release)] == [False, False, True]
        with pytest.raises(AlreadyDrawn):
            tabulate(database, "people", level.id, ["h", "i"], "11")
    assert exported(copy, signer).splitlines()[1:] == file.splitlines()[1:]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b'"noisy":null', b'"noisy":""'),
        (b'"noisy":null', b'"noisy":"AAAA"'),
        (b'"2031-01-01T00:00:00.000000Z"', b'"yesterday"'),
        (b'"2031-01-01T00:00:00.000000Z"', b"5"),
        (b'"2031-01-01T00:00:00.000000Z"', b'"2026-01-01T00:00:00.000000Z"'),  # before the draw
        (b',"noisy_removed_at":"2031-01-01T00:00:00.000000Z"', b""),
        (b',"noisy_removed_at":"2031-01-01T00:00:00.000000Z"', b',"noisy_removed_at":null'),
    ],
)
def test_an_export_says_plainly_what_was_removed(
    new_database: Callable[[], Database], signer: Signer, part: bytes, other: bytes
) -> None:
    original = new_database()
    open_account(original)
    _drawn(original, 1)
    remove_noisy(original, _LATER, _LATER)
    file = exported(original, signer)
    assert file.count(part) == 1
    with pytest.raises(BadExport):
        rebuild(new_database(), lambda: io.BytesIO(file.replace(part, other)), signer.public_key)


@pytest.mark.parametrize("at", ["yesterday", "2026-01-01T00:00:00.000000Z"])
def test_verification_does_not_take_a_fault_for_a_removal(database: Database, at: str) -> None:
    open_account(database)
    _drawn(database, 1)
    remove_noisy(database, _LATER, at)
    with database.read() as connection:
        found = verify(connection, "people")
    assert found.first_bad is not None
    assert "noisy counts" in found.first_bad.reason


def test_a_moment_of_removal_before_the_draw_is_not_shown(database: Database) -> None:
    open_account(database)
    release = _drawn(database, 1)
    remove_noisy(database, _LATER, "1970-01-01T00:00:00.000000Z")
    with pytest.raises((Altered, RuntimeError)):
        _listed(database, release)


def test_only_draws_with_an_entry_are_counted(database: Database) -> None:
    """The attack: rows that let a registry entry state draws that never were."""
    open_account(database)
    _drawn(database, 2)
    account = account_of(database)
    names = ", ".join(
        column.name for column in Draw.__table__.columns if column.name not in ("id", "seq", "repetition")
    )
    copied = f"INSERT INTO draws (id, seq, repetition, {names}) SELECT 'false', 99, 8, {names} FROM draws WHERE seq = 3"
    run(database, copied)
    with database.read() as connection:
        assert registry.count_draws(connection, account.id) == 2


def test_the_older_version_cannot_hold_what_is_no_more(database: Database) -> None:
    open_account(database)
    release = _drawn(database, 2)
    unseal(database)
    downgrade(database, "0006")
    migrate(database)
    seal(database)
    assert len(_listed(database, release)) == 2
    remove_noisy(database, _LATER, _LATER)
    unseal(database)
    with pytest.raises(Conflict, match="removed"):
        downgrade(database, "0006")
    seal(database)
    assert len(entries_of(database)) == 4
