"""A server's high-water mark follows what it commits, and an older ledger under it is not written any more."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from service.errors import StartupRefused, Unavailable
from service.ledger import clock
from service.ledger.database import Database, note_journals
from service.ledger.high_water import HighWaterFile
from service.ledger.installation import Secret
from service.ledger.journal import Head
from service.ledger.mark_keeper import MarkKeeper, check_mark
from tests.ledger.charging import account_of, charge, open_account

PLAN = {"type": "gaussian", "rho": "1/8"}


@pytest.fixture
def file(tmp_path: Path, secret: Secret) -> HighWaterFile:
    return HighWaterFile(tmp_path / "service.high-water", secret)


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test goes by the moments of these."""
    monkeypatch.setattr(clock, "_clock", clock._Clock())


def _marked(file: HighWaterFile) -> dict[str, Head]:
    mark = file.read()
    assert mark is not None
    return dict(mark.heads)


def _roll_back(database: Database, seq: int) -> None:
    """What somebody does who writes the database: the last entries go, and the account's row is made to fit."""
    drops = {
        "sqlite": [
            f"DROP TRIGGER IF EXISTS {name}"
            for name in ("journal_no_delete", "releases_no_delete", "accounts_by_entry")
        ],
        "postgresql": ["SET LOCAL session_replication_role = replica"],
    }[database.kind]

    def work(connection: Connection) -> None:
        for statement in drops:
            connection.execute(text(statement))
        for table in ("journal", "releases"):
            connection.execute(text(f"DELETE FROM {table} WHERE seq > :seq"), {"seq": seq})
        head = connection.execute(text("SELECT hash FROM journal WHERE seq = :seq"), {"seq": seq}).scalar_one()
        connection.execute(text("UPDATE accounts SET head_seq = :seq, head_hash = :hash"), {"seq": seq, "hash": head})

    database.write(work, landed=lambda *_: False)


def test_it_follows_what_is_committed(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    assert _marked(file)["people"] == account_of(database).head
    open_account(database, "places")
    charge(database, PLAN)
    assert _marked(file)["people"] != account_of(database).head
    keeper.advance()
    assert _marked(file) == {
        "": Head(0, "00" * 32),
        "people": account_of(database).head,
        "places": account_of(database, "places").head,
    }
    assert not database.has_changed_journals()
    check_mark(database, file)


def test_it_is_written_within_a_second_and_once_more_at_the_end(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    with keeper.keeping():
        charge(database, PLAN)
        deadline = time.monotonic() + 30
        while file.read() is None or _marked(file).get("people") != account_of(database).head:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        charge(database, PLAN)
    assert _marked(file)["people"] == account_of(database).head


def test_what_was_rolled_back_is_not_noted(database: Database) -> None:
    open_account(database)
    database.take_changed_journals()

    def work(connection: Connection) -> None:
        note_journals(connection, [1])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work, landed=lambda *_: False)
    assert not database.has_changed_journals()
    charge(database, PLAN)
    assert database.take_changed_journals() == {account_of(database).id}


def test_what_could_not_be_written_is_written_later(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    charge(database, PLAN)
    content = file.path.read_bytes()
    file.path.write_bytes(b"no database")
    with pytest.raises(StartupRefused):
        keeper.advance()
    file.path.write_bytes(content)
    keeper.advance()
    assert _marked(file)["people"] == account_of(database).head


def test_an_older_ledger_is_refused_at_the_start(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    MarkKeeper(database, file).advance(everything=True)
    _roll_back(database, 2)
    with pytest.raises(StartupRefused, match="the journal of 'people' ends with entry 2 and had 4") as refused:
        check_mark(database, file)
    assert "python -m service acknowledge --reason" in str(refused.value)


def test_an_older_ledger_with_new_entries_is_refused_too(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    MarkKeeper(database, file).advance(everything=True)
    _roll_back(database, 1)
    for _ in range(4):
        charge(database, {"type": "gaussian", "rho": "1/16"})
    with pytest.raises(StartupRefused, match="the journal of 'people' has another entry 4 than it had"):
        check_mark(database, file)


def test_a_ledger_that_becomes_older_under_a_server_is_not_written_any_more(
    database: Database, file: HighWaterFile
) -> None:
    open_account(database)
    for _ in range(3):
        charge(database, PLAN)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    _roll_back(database, 1)
    charge(database, PLAN)
    keeper.advance()
    with pytest.raises(Unavailable, match="entries of the ledger are missing"):
        charge(database, PLAN)
    assert _marked(file)["people"].seq == 4


def test_another_process_that_was_faster_is_no_rollback(database: Database, file: HighWaterFile) -> None:
    open_account(database)
    keeper = MarkKeeper(database, file)
    charge(database, PLAN)
    slow = {"people": account_of(database).head}
    charge(database, PLAN)
    keeper.advance(everything=True)
    assert file.advance(slow, clock.now()) == {"people": account_of(database).head}
    database.put_back_changed_journals({account_of(database).id})
    keeper.advance()
    assert database.stopped is None


def test_a_clock_behind_the_mark_is_refused_or_made_up_for(database: Database, file: HighWaterFile) -> None:
    soon, late = (clock.later(clock.now(), timedelta(seconds=seconds)) for seconds in (30, 3600))
    file.advance({}, soon)
    check_mark(database, file)
    assert clock.now() >= soon
    assert 25 < clock.seconds_behind() <= 30
    file.advance({}, late)
    with pytest.raises(StartupRefused, match="this machine's clock says"):
        check_mark(database, file)
