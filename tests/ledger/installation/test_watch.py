"""A server writes only while the mark's keeper looks at the schema and writes the mark."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import make_url

from service.errors import Unavailable
from service.ledger.access import authentication
from service.ledger.installation import high_water_keeper, installation_journal
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.migrate import prepare
from service.ledger.storage.schema import require_parsed_schema
from service.ledger.storage.secret import Secret
from service.ledger.storage.transaction import bound_secret
from tests.ledger.charging import account_of, charge, open_account
from tests.ledger.keys import make_key
from tests.ledger.roles import APPLICATION, served_by_role
from tests.postgres_server import session
from tests.waiting import until

_PLAN = {"type": "geometric", "epsilon": "1/10", "name": "m"}


@pytest.fixture
def served(postgresql_url: str, secret: Secret) -> Iterator[Database]:
    """A ledger with an account, of the application's role."""
    with served_by_role(postgresql_url, secret) as database:
        yield database


def _marked(file: HighWaterFile) -> int:
    return file.marked(["people"])["people"].seq


def test_a_lock_that_a_look_waits_for_keeps_no_entry_from_the_mark(served: Database, file: HighWaterFile) -> None:
    """A server's role can lock this table. Charges do not always need it, and draws never."""
    keeper = MarkKeeper(served, file)
    keeper.advance(everything=True)
    with session(served.url) as locking, locking.transaction():
        charge(served, _PLAN)
        locking.execute("LOCK TABLE spending IN ACCESS EXCLUSIVE MODE")
        assert not keeper._look()
        keeper.advance()
        assert _marked(file) == account_of(served).head.seq
    assert keeper._look()


def test_nothing_is_written_and_no_key_valid_while_no_look_succeeds(
    served: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(high_water_keeper, "_PAUSE", 0.01)
    secret, at = bound_secret(served), clock.now()
    _, token = make_key(served, at=at)
    keeper = MarkKeeper(served, file)
    with keeper.keeping(), session(served.url) as locking:
        assert authentication.authenticate(served, secret, token, at) is not None
        with locking.transaction():
            locking.execute("LOCK TABLE spending IN ACCESS EXCLUSIVE MODE")
            until(lambda: served.unwatched() is not None)
            with pytest.raises(Unavailable, match="could not be checked for some seconds"):
                charge(served, _PLAN)
            with pytest.raises(Unavailable, match="could not be checked for some seconds"):
                authentication.authenticate(served, secret, token, at)
        until(lambda: served.unwatched() is None)
        assert authentication.authenticate(served, secret, token, at) is not None
        charge(served, _PLAN)
        assert served.stopped is None


def test_nothing_is_written_while_the_mark_cannot_be_written(
    database: Database, file: HighWaterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(high_water_keeper, "_PAUSE", 0.01)
    monkeypatch.setattr(high_water_keeper, "_LIMIT", 0.5)
    open_account(database, definition="pure", epsilon="3")
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    broken = threading.Event()
    advance = file.advance

    def failing(*args: Any, **named: Any) -> set[str]:
        if broken.is_set():
            raise OSError
        return advance(*args, **named)

    monkeypatch.setattr(HighWaterFile, "advance", lambda _, *args, **named: failing(*args, **named))
    with keeper.keeping():
        broken.set()
        charge(database, _PLAN)
        until(lambda: database.unwatched() is not None)
        with pytest.raises(Unavailable, match="could not be checked for some seconds"):
            charge(database, _PLAN)
        broken.clear()
        until(lambda: database.unwatched() is None)
        charge(database, _PLAN)
    assert _marked(file) == account_of(database).head.seq


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE INDEX more ON draws (id) WHERE runs(1)",),
        ("ALTER TABLE draws ADD CONSTRAINT more CHECK (runs(1))",),
        ("ALTER TABLE draws ALTER noisy_removed_at SET DEFAULT CASE WHEN runs(1) THEN NULL END",),
        (
            "ALTER TABLE alembic_version RENAME TO told",
            "CREATE VIEW alembic_version AS SELECT * FROM told WHERE runs(1)",
            f"GRANT SELECT ON alembic_version TO {APPLICATION}",
        ),
    ],
    ids=["index", "constraint", "default", "version"],
)
def test_objects_that_run_functions_of_the_owner_stop_the_server(
    served: Database, postgresql_url: str, file: HighWaterFile, statements: tuple[str, ...]
) -> None:
    with session(postgresql_url) as owner:
        owner.execute("CREATE FUNCTION runs(integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'")
        for statement in statements:
            owner.execute(statement.encode())
    assert MarkKeeper(served, file)._look()
    assert served.stopped is not None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_look_at_a_changed_number_of_the_schema_stops_the_server(
    database_url: str, database: Database, file: HighWaterFile
) -> None:
    """The look itself is refused then, as its connection reads the schema anew."""
    prepare(database, embedded=True)
    database.begun = require_parsed_schema
    keeper = MarkKeeper(database, file)
    assert keeper._look()
    with closing(sqlite3.connect(str(make_url(database_url).database))) as attacker:
        attacker.execute("CREATE TRIGGER more BEFORE INSERT ON jobs BEGIN SELECT RAISE(IGNORE); END")
        keeper._look()
        attacker.execute("DROP TRIGGER more")
    assert keeper._look()
    assert "tables are not as the service made them" in (database.stopped or "")


def test_the_marked_end_of_the_installations_journal_is_known_before_the_database_answers(
    served: Database, postgresql_url: str, file: HighWaterFile
) -> None:
    keeper = MarkKeeper(served, file)
    with closing(open_database(served.url)) as command:
        command.secret = served.secret
        make_key(command)
        MarkKeeper(command, file, serves=False).advance(everything=True)
    with session(postgresql_url) as owner, owner.transaction():
        owner.execute("LOCK TABLE spending IN ACCESS EXCLUSIVE MODE")
        assert not keeper._look()
    with served.read() as connection:
        present = installation_journal.head(connection).seq
    assert served.newest.number(INSTALLATION) == present > 0


def test_a_thread_that_hangs_does_not_keep_the_server_from_ending() -> None:
    released, ended = threading.Event(), threading.Event()

    def hang(_: threading.Event) -> None:
        released.wait()
        ended.set()

    with until_stopped(hang, "hanging", within=0.01):
        pass
    assert not ended.is_set()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "hanging")
    released.set()
    assert ended.wait(60)
