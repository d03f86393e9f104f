"""The migrations build what ``tables.py`` declares, can be undone, and run once."""

import contextlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, make_url, text
from sqlalchemy.schema import CheckConstraint

from service.errors import StartupRefused, Unavailable
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import MIGRATION_LOCK, downgrade, is_migrated, migrate, prepare
from service.ledger.storage.tables import Base
from tests.ledger.writing import UNSTATED, run
from tests.processes import PATIENCE, together

ROOT = Path(__file__).resolve().parents[3]


def _tables(database: Database) -> set[str]:
    with database.read() as connection:
        return set(inspect(connection).get_table_names())


# SQLite's indexes of expressions cannot be compared here; they are in `schema.json`.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_the_migrations_build_what_the_tables_declare(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_object": lambda _, name, *__: name not in UNSTATED,
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_migrations_build_the_declared_checks_and_column_types(database: Database) -> None:
    """Autogenerate compares neither of them."""
    with database.read() as connection:
        found = inspect(connection)
        for table in Base.metadata.sorted_tables:
            declared = {c.name for c in table.constraints if isinstance(c, CheckConstraint)}
            assert {check["name"] for check in found.get_check_constraints(table.name)} == declared
            columns = [column for column in found.get_columns(table.name) if column["name"] not in UNSTATED]
            types = {column["name"]: str(column["type"]) for column in columns}
            assert types == {column.name: column.type.compile(connection.dialect) for column in table.columns}


def test_a_count_of_turns_beyond_32_bits_fits_every_integer_column(database: Database) -> None:
    run(
        database,
        "INSERT INTO accounts VALUES (1, 'a', 'person', 'add_remove', '', '{}', '{}', '{}', 'open', 'now',"
        " 1000000000000, '', NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    with database.read() as connection:
        assert connection.execute(text("SELECT head_seq FROM accounts")).scalar_one() == 10**12


def test_down_and_up_again_is_the_same(database: Database) -> None:
    before = _tables(database)
    downgrade(database, "base")
    assert _tables(database) == {"alembic_version"}
    assert not is_migrated(database)
    migrate(database)
    assert _tables(database) == before
    assert is_migrated(database)


def test_downgrading_takes_the_triggers_with_it(database: Database) -> None:
    downgrade(database, "base")
    left = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT proname FROM pg_proc WHERE proname LIKE '%journal%'",
    }
    with database.read() as connection:
        assert connection.execute(text(left[database.kind])).all() == []


def test_downgrading_works_on_a_ledger_with_entries(database: Database) -> None:
    run(
        database,
        "INSERT INTO accounts VALUES (1, 'a', 'person', 'add_remove', '', '{}', '{}', '{}', 'open', 'now', 1, '',"
        " NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    run(database, "INSERT INTO journal VALUES (1, 1, 'account_opened', NULL, '{}', '')")
    downgrade(database, "base")
    assert _tables(database) == {"alembic_version"}


def test_migrating_twice_changes_nothing(database: Database) -> None:
    before = _tables(database)
    migrate(database)
    assert _tables(database) == before


def test_three_processes_that_migrate_at_once_all_succeed(empty_database_url: str) -> None:
    ended = together("from service.ledger.storage.migrate import migrate", "migrate(sys.argv[1])", empty_database_url)
    assert [(one.returncode, one.stderr) for one in ended] == [(0, "")] * 3
    database = open_database(empty_database_url)
    try:
        assert is_migrated(database)
    finally:
        database.close()


def test_whoever_finds_another_migrating_waits(empty_database_url: str) -> None:
    database = open_database(empty_database_url, lock_timeout=0.2)
    with contextlib.closing(database):
        with _somebody_else_migrates(empty_database_url), pytest.raises(Unavailable):
            migrate(database)
        assert _tables(database) == set()
        migrate(database)
        assert is_migrated(database)


@contextlib.contextmanager
def _somebody_else_migrates(url: str) -> Iterator[None]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with contextlib.closing(sqlite3.connect(str(parsed.database), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
    else:
        plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            yield


@pytest.mark.parametrize("embedded", [True, False])
def test_an_empty_database_is_migrated_at_start(empty_database_url: str, embedded: bool) -> None:
    database = open_database(empty_database_url)
    try:
        assert not is_migrated(database)
        assert prepare(database, embedded) == ""
        assert is_migrated(database)
        assert prepare(database, embedded) is None
    finally:
        database.close()


@pytest.mark.parametrize("move", [migrate, partial(prepare, embedded=True), partial(prepare, embedded=False)])
@pytest.mark.parametrize(
    "change",
    ["DELETE FROM alembic_version", "DROP TABLE alembic_version", "INSERT INTO alembic_version VALUES ('0001')"],
)
def test_tables_without_one_version_are_refused(
    database: Database, change: str, move: Callable[[Database], None]
) -> None:
    run(database, change)
    with pytest.raises(StartupRefused, match="does not state one version"):
        move(database)


@pytest.mark.parametrize("told", ["0001", "0011"])
def test_tables_that_are_not_of_the_version_that_is_told_are_refused(database: Database, told: str) -> None:
    run(database, f"UPDATE alembic_version SET version_num = '{told}'")
    with pytest.raises(StartupRefused, match=rf"are not those of the version that it states \({told}\)"):
        prepare(database, embedded=True)
    with database.read() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == told


def test_only_an_embedded_database_is_migrated_at_start_when_it_is_not_empty(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    try:
        run(database, "CREATE TABLE somebody_elses (id INTEGER)")
        with pytest.raises(StartupRefused, match=re.escape("run python -m service migrate")):
            prepare(database, embedded=False)
        assert _tables(database) == {"somebody_elses"}
        prepare(database, embedded=True)
        assert is_migrated(database)
    finally:
        database.close()


@pytest.mark.parametrize("embedded", [True, False])
def test_a_database_of_a_newer_version_is_refused(database: Database, embedded: bool) -> None:
    run(database, "UPDATE alembic_version SET version_num = '9999'")
    assert not is_migrated(database)
    with pytest.raises(StartupRefused, match="newer version"):
        prepare(database, embedded)
    with database.read() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"


def test_a_server_of_another_version_writes_nothing_after_a_migration(database: Database, database_url: str) -> None:
    """An older server would write by its own rules, which the newer tables may read otherwise."""
    prepare(database, embedded=True)
    run(database, "DELETE FROM jobs")
    with contextlib.closing(open_database(database_url)) as newer:
        run(newer, "UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(Unavailable, match="belongs to another version of the service") as refused:
            run(database, "DELETE FROM jobs")
        assert "replace this server" in (refused.value.for_operator or "")
        assert not is_migrated(database)  # so a proxy sends no more requests
        with database.read() as connection:
            assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
        run(newer, f"UPDATE alembic_version SET version_num = '{database.version}'")
    run(database, "DELETE FROM jobs")  # and nothing is left open


def test_a_migration_waits_for_transactions_of_the_version_before(postgresql_url: str) -> None:
    older = open_database(postgresql_url)
    prepare(older, embedded=True)
    started, done = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(connection: Connection) -> None:
        started.set()
        assert done.wait(PATIENCE)
        order.append("write")

    def move() -> None:
        with contextlib.closing(open_database(postgresql_url)) as newer:
            migrate(newer)
            order.append("migration")

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(older.write, slow, is_committed=lambda *_: False)
        assert started.wait(PATIENCE)
        moving = pool.submit(move)
        with pytest.raises(TimeoutError):
            moving.result(timeout=1)
        done.set()
        writing.result(PATIENCE)
        moving.result(PATIENCE)
    older.close()
    assert order == ["write", "migration"]
