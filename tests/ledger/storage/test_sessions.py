"""Each transaction sets its session: nothing is left of what code of the owner, or the role's settings, set before."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, column, func, select, table

from service.errors import Unavailable
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from tests.ledger.charging import charge, entries_of
from tests.ledger.roles import APPLICATION, served_by_role
from tests.postgres_server import session

_PLAN = {"type": "geometric", "epsilon": "1", "name": "m"}
_SET = (
    "search_path",
    "row_security",
    "transform_null_equals",
    "standard_conforming_strings",
    "quote_all_identifiers",
    "constraint_exclusion",
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
_EXPECTED = ["public, pg_temp", "off", "off", "on", "off", "partition"]
_READ = [*_EXPECTED, "30s", "0", "0"]
_WRITTEN = [*_EXPECTED, "0", "1min"]  # without the time that a write may wait for locks, which is what is left of it
_LOOK = [*_EXPECTED, "1s", "2s", "0"]
_ASKED = [*_EXPECTED, "1s", "10s", "0"]
_OTHERS = {
    "search_path": "evil, public",
    "row_security": "on",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "constraint_exclusion": "on",
    "lock_timeout": "2h",
    "statement_timeout": "2h",
    "idle_in_transaction_session_timeout": "2h",
}
_SETTINGS = select(*(func.pg_catalog.current_setting(name) for name in _SET))


@pytest.fixture
def owner(postgresql_url: str) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with session(postgresql_url) as connection:
        yield connection


@pytest.fixture
def served(postgresql_url: str, secret: Secret) -> Iterator[Database]:
    """A ledger with an account, of the application's role, with one connection to write."""
    with served_by_role(postgresql_url, secret, writer_threads=1) as database:
        yield database


def _values(connection: Connection) -> list[str]:
    return list(connection.execute(_SETTINGS).one())


def _written(database: Database) -> list[str]:
    return database.write(_values, is_committed=lambda *_: False)


def _without_wait(values: list[str]) -> list[str]:
    at = _SET.index("lock_timeout")
    return values[:at] + values[at + 1 :]


def _require_own_settings(database: Database) -> None:
    with database.read() as connection:
        assert _values(connection) == _READ
    with database.look() as connection:
        assert _values(connection) == _LOOK
    assert _without_wait(_written(database)) == _WRITTEN
    asked = database.ask(_SETTINGS, {})
    assert asked is not None
    assert list(asked) == _ASKED


def test_settings_of_the_role_count_for_nothing(served: Database, owner: "psycopg.Connection[tuple[Any, ...]]") -> None:
    """A role may change its own settings."""
    for name, value in _OTHERS.items():
        owner.execute(f"ALTER ROLE {APPLICATION} SET {name} = {value if ',' in value else repr(value)}".encode())
    owner.execute(f"ALTER ROLE {APPLICATION} SET client_encoding = 'LATIN1'".encode())
    try:
        with closing(open_database(served.url)) as database:
            _require_own_settings(database)
            with database.read() as connection:
                assert connection.scalar(select(func.pg_catalog.current_setting("client_encoding"))) == "UTF8"
    finally:
        owner.execute(f"ALTER ROLE {APPLICATION} RESET ALL".encode())


def _poison(owner: "psycopg.Connection[tuple[Any, ...]]", *, table_name: str) -> None:
    """Have the planner run a function in each session that plans a statement on a table: it sets the session."""
    sets = "; ".join(f"PERFORM set_config('{name}', '{value}', false)" for name, value in _OTHERS.items())
    owner.execute("CREATE SCHEMA evil")
    owner.execute(f"GRANT USAGE ON SCHEMA evil TO {APPLICATION}".encode())
    owner.execute(
        "CREATE FUNCTION evil.poison(integer) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN"
        f" IF session_user = '{APPLICATION}' THEN {sets}; END IF; RETURN true; END $f$".encode()
    )
    owner.execute(f"CREATE INDEX poisoned ON {table_name} (id) WHERE evil.poison(1)".encode())


def test_what_a_predicate_sets_is_gone_with_the_next_transaction(
    served: Database, owner: "psycopg.Connection[tuple[Any, ...]]"
) -> None:
    accounts = select(func.count()).select_from(table("accounts", column("id")).alias())
    _poison(owner, table_name="accounts")

    def poisoned(connection: Connection) -> list[str]:
        connection.execute(accounts)
        return _values(connection)

    assert served.write(poisoned, is_committed=lambda *_: False)[0] == "evil, public", "this is the danger"
    for begin in (served.read, served.look):
        with begin() as connection:
            assert poisoned(connection)[0] == "evil, public"
    assert served.ask(accounts, {}) is not None
    _require_own_settings(served)
    owner.execute("CREATE TABLE evil.journal AS TABLE public.journal WITH NO DATA")
    owner.execute("DROP INDEX poisoned")
    charge(served, _PLAN)
    assert len(entries_of(served)) == 2, "and none is elsewhere"


def test_no_prepared_statement_is_left_for_the_next_transaction(served: Database) -> None:
    """Code that runs in the session could prepare another one of its name."""
    prepared = select(func.count()).select_from(func.pg_catalog.pg_prepared_statement().table_valued("name"))

    def run(connection: Connection) -> tuple[int, int]:
        numbers = [connection.scalar(prepared) or 0 for _ in range(100)]
        return numbers[0], numbers[-1]

    for _ in range(3):
        assert served.write(run, is_committed=lambda *_: False) == (0, 1), "prepared within the transaction only"
        for begin in (served.read, served.look):
            with begin() as connection:
                assert run(connection) == (0, 1)
    for _ in range(100):
        asked = served.ask(prepared, {})
        assert asked is not None
        assert asked[0] <= 1, "itself"


def test_a_statement_that_was_put_under_the_drivers_name_is_not_run(served: Database) -> None:
    def replace(connection: Connection) -> None:
        for _ in range(100):
            assert connection.scalar(select(func.pg_catalog.abs(-1))) == 1
        (name,) = connection.exec_driver_sql("SELECT name FROM pg_catalog.pg_prepared_statements").one()
        connection.exec_driver_sql(f"DEALLOCATE {name}")
        connection.exec_driver_sql(f"PREPARE {name} AS SELECT 2")

    served.write(replace, is_committed=lambda *_: False)
    found = served.write(
        lambda connection: [connection.scalar(select(func.pg_catalog.abs(-1))) for _ in range(100)],
        is_committed=lambda *_: False,
    )
    assert found == [1] * 100


def test_a_read_that_waits_for_a_lock_ends(served: Database, owner: "psycopg.Connection[tuple[Any, ...]]") -> None:
    with closing(open_database(served.url, lock_timeout=0.05)) as database, owner.transaction():
        owner.execute("LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE")
        for begin in (database.read, database.look):
            with pytest.raises(Unavailable, match="held a lock that this one needs"), begin() as connection:
                connection.exec_driver_sql("SELECT FROM accounts")
