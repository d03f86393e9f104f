"""Set-up of the connections to the ledger's database."""

import re
import sqlite3
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from service.errors import StartupRefused
from service.ledger.storage.connections.failures import file_not_accessible, refusal, sqlite_failure
from service.ledger.storage.connections.location import place_of_file

# Unless the URL says otherwise: a server that vanished is noticed in half a minute and not in hours.
_POSTGRESQL_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
    "client_encoding": "UTF8",
}
_SETTINGS = "settings"  # the key under which a connection to PostgreSQL stores the settings that never change
# Code of the tables' owner runs within the service's sessions: an index's predicate, a default. It may set what decides
# the meaning of later statements, as the settings of the role and of the database may. It may also prepare another
# statement under a name that the driver uses, so none is kept, which the driver learns from the answer. Rows that a
# policy would hide are an error. Planning evaluates no constraint that it need not.
_MEANING = """DEALLOCATE ALL;
SET standard_conforming_strings = on; SET quote_all_identifiers = off; SET search_path = {}, pg_temp;
SET row_security = off; SET transform_null_equals = off; SET constraint_exclusion = partition;"""
_PREPARED_AFTER = 50  # executions: within one transaction, of many rows
_TRANSACTION_TIMEOUT = 170_000  # the first version of PostgreSQL that has this setting

_LOG_KEPT = 64 * 2**20  # bytes: a large write makes the write-ahead log longer, and the next one cuts it again


def make_sqlite_file(path: Path, timeout: float) -> None:
    """Create the file and switch it permanently to write-ahead logging, so that readers never block.

    Raises:
        Unavailable: the file cannot be opened.
        StartupRefused: its file system cannot hold the ledger.
    """
    deadline, place = time.monotonic() + timeout, place_of_file(path)
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)  # the machine's other users have no access
        if not path.exists():
            path.touch(0o600)  # nor do they where the directory was there; SQLite's other files have the same mode
        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    except OSError as error:
        raise file_not_accessible(path, error) from None
    except sqlite3.Error as error:
        failure = sqlite_failure(error)
        raise refusal(replace(failure, reason="it is a directory") if path.is_dir() else failure, place) from None
    try:
        mode = _switch_to_wal(connection, deadline)
    except sqlite3.Error as error:
        raise refusal(sqlite_failure(error), place) from None
    finally:
        connection.close()
    if mode != "wal":
        raise StartupRefused(f"the file system of {path} cannot share memory, so it cannot hold the ledger")


def _switch_to_wal(connection: sqlite3.Connection, deadline: float) -> str:
    """Switch the file to write-ahead logging and wait until that succeeds.

    SQLite does not wait where two processes switch at the same moment, so this function does.
    """
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def sqlite_engine(url: URL, size: int, lock_timeout: float, *, read_only: bool) -> Engine:
    """Return an engine for SQLite with ``size`` connections."""
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=size,
        max_overflow=0,
        # `database` begins and ends transactions; the driver must not begin any by itself.
        connect_args={"isolation_level": None, "timeout": lock_timeout, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(raw: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        raw.text_factory = stored_text
        cursor = raw.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")
        cursor.execute(f"PRAGMA query_only = {int(read_only)}")
        cursor.close()

    return engine


def stored_text(stored: bytes) -> str | bytes:
    """Return a stored text; one that is not UTF-8 as its bytes, which no seal or hash covers, like those of a blob.

    Otherwise the driver would raise an error at this row, and no later row of the statement could be read.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def postgresql_engine(url: URL, size: int, *, read_only: bool) -> Engine:
    """Return an engine for PostgreSQL with ``size`` connections."""
    options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        use_native_hstore=False,  # finding this unused type costs every connection a transaction
        pool_size=size,
        max_overflow=0,
        # `database` begins and ends transactions; the driver must not begin any by itself.
        connect_args={"autocommit": True, "prepare_threshold": _PREPARED_AFTER, **options},
    )

    @event.listens_for(engine, "connect", insert=True)  # before SQLAlchemy's own first statements
    def prepare(raw: psycopg.Connection, entry: ConnectionPoolEntry) -> None:
        with ExitStack() as failed:
            failed.callback(raw.close)  # the pool does not
            settings = sql.SQL(_MEANING).format(_quoted_schema(raw)).as_string(raw)
            if raw.info.server_version >= _TRANSACTION_TIMEOUT:
                settings += " SET transaction_timeout = 0;"
            entry.info[_SETTINGS] = settings
            raw.execute(f"{settings} SET statement_timeout = 0".encode())
            failed.pop_all()

    if not read_only:
        event.listen(engine, "handle_error", _leave_former_primary)
    return engine


def session_settings(connection: Connection, *, wait: float, limit: float = 0, idle: float = 0) -> str:
    """Return the statements that set all that decides the next statements of a connection to PostgreSQL.

    They come first in each transaction, so that nothing is left of what was set in the session before.

    Args:
        wait: seconds that a statement may wait for a lock.
        limit: seconds that a statement may take; 0 for any.
        idle: seconds that a transaction may idle; 0 for any.
    """
    fixed: str = connection.info[_SETTINGS]
    return (
        f"{fixed} SET lock_timeout = {max(1, round(1000 * wait))}; SET statement_timeout = {round(1000 * limit)};"
        f" SET idle_in_transaction_session_timeout = {round(1000 * idle)}"
    )


def schema_of(connection: Connection) -> str:
    """Return the schema of the ledger's tables, for a connection to PostgreSQL.

    The operator names it in the connection's options, otherwise it is ``public``. The settings of the role and of the
    database do not decide it, as the owner of the database can change them.

    Raises:
        StartupRefused: the options do not name one schema.
    """
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 - for mypy
    return _schema_in(raw.info.options)


def set_search_path(connection: Connection, *, catalog_only: bool) -> None:
    """Set the schemas that the rest of this transaction searches: PostgreSQL's own, and else the ledger's after it.

    A function or an operator of the ledger's schema can fit the types of a statement better than PostgreSQL's own.
    """
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 - for mypy
    schema = sql.SQL("pg_catalog") if catalog_only else _quoted_schema(raw)
    connection.exec_driver_sql(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(schema).as_string(raw))


def _quoted_schema(raw: psycopg.Connection) -> sql.Identifier:
    return sql.Identifier(_schema_in(raw.info.options))


def _schema_in(options: str) -> str:
    stated = _SEARCH_PATH.findall(options)
    if not stated:
        return "public"
    named = _SCHEMA.fullmatch(re.sub(r"\\(.)", r"\1", stated[-1]))
    if named is None:
        raise StartupRefused(
            "the search_path in the connection's options is not one schema: name the one that has the ledger's tables,"
            " as in ?options=-csearch_path%3Dledger"
        )
    return named[1].replace('""', '"') if named[1] else named[2].lower()


_SEARCH_PATH = re.compile(r"(?:-c\s*|--)search[_-]path=((?:\\.|\S)*)", re.IGNORECASE)
_SCHEMA = re.compile(r'"((?:[^"]|"")+)"|(?!pg_)([a-z_][a-z0-9_$]*)', re.IGNORECASE)


def _leave_former_primary(context: ExceptionContext) -> None:
    """Drop the connections to a former primary, which may still answer read-only after a failover.

    New connections then find the new primary.
    """
    if isinstance(context.original_exception, psycopg.errors.ReadOnlySqlTransaction):
        context.is_disconnect = True
