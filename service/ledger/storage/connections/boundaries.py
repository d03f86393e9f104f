"""Boundaries of transactions: how they begin and commit on SQLite and on PostgreSQL."""

import sqlite3

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, SQLAlchemyError

from service.errors import Unavailable
from service.ledger.storage.connections.engines import session_settings

OTHER_VERSION = "the database belongs to another version of the service than this server, so the server writes nothing"
# On PostgreSQL each transaction begins in one round trip, which also shows that the connection is alive. It sets the
# session's settings (`session_settings`).
_READ_POSTGRESQL = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# All attempts of one write take the same advisory lock, so the next attempt starts only when the server is done with
# the previous one, however its connection broke. A session that died silently must not keep its accounts locked until
# TCP notices, so idling is limited to a minute. Noise must not be published if a power cut could make the ledger forget
# it, so asynchronous commit is off, even where the server's other databases use it.
_WRITE_POSTGRESQL = """\
BEGIN ISOLATION LEVEL READ COMMITTED; {settings};
SELECT pg_catalog.pg_advisory_xact_lock({lock}), CASE pg_catalog.current_setting('synchronous_commit')
    WHEN 'off' THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"""
# The cast fails if the tables have another version than this server. Reading the version also locks its table for the
# transaction, so a migration waits for the transaction and the transaction for a migration.
_OF_VERSION_POSTGRESQL = """,
       CAST((SELECT CASE version_num WHEN '{version}' THEN '1' ELSE 'another' END FROM alembic_version) AS integer)"""
_VERSION = "SELECT version_num FROM alembic_version"
_IDLE = 60.0  # seconds
_READ_SQLITE = "BEGIN"
_WRITE_SQLITE = "BEGIN IMMEDIATE"
_WAIT_STEP, _WAIT_SET = 500, "busy_timeout"  # milliseconds, and the key of a connection's present wait


def begin_read(connection: Connection, wait: float, limit: float) -> None:
    """Begin a read-only transaction.

    Args:
        wait, limit: as for ``session_settings``; SQLite has neither.
    """
    begin = _READ_SQLITE
    if connection.dialect.name == "postgresql":
        begin = f"{_READ_POSTGRESQL}; {session_settings(connection, wait=wait, limit=limit)}"
    connection.exec_driver_sql(begin)


def begin_write(connection: Connection, seconds: float, lock: int, version: str | None) -> None:
    """Begin a write transaction.

    Args:
        seconds: that it may wait for a lock.
        lock: the advisory lock on PostgreSQL, one for all attempts of a write.
        version: of the tables, on PostgreSQL; None: any version. On SQLite nothing may be read before the check of the
            schema, so the caller then calls ``require_version``.

    Raises:
        Unavailable: the tables have another version.
    """
    if connection.dialect.name == "sqlite":
        wait = max(1, round(1000 * seconds))  # milliseconds
        # The queue usually admits this transaction at once: then the rounded wait is the same as before.
        wait = -(-wait // _WAIT_STEP) * _WAIT_STEP
        if connection.info.get(_WAIT_SET) != wait:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait}")
            connection.info[_WAIT_SET] = wait
        connection.exec_driver_sql(_WRITE_SQLITE)
        return
    settings = session_settings(connection, wait=seconds, idle=_IDLE)
    begin = _WRITE_POSTGRESQL.format(settings=settings, lock=lock)
    if version is not None:
        begin += _OF_VERSION_POSTGRESQL.format(version=version)
    try:
        connection.exec_driver_sql(begin)
    except DataError:
        raise _other_version() from None


def require_version(connection: Connection, version: str | None) -> None:
    """Refuse tables that do not state this version; None: any version.

    Raises:
        Unavailable: the tables have another version.
    """
    if version is not None and connection.exec_driver_sql(_VERSION).scalars().all() != [version]:
        raise _other_version()


def _other_version() -> Unavailable:
    return Unavailable(
        OTHER_VERSION,
        retry_after=60,
        for_operator="the database was migrated to another version of the service: replace this server by that version",
    )


def require_open(connection: Connection) -> None:
    """Refuse to commit a transaction that a failed statement has already undone.

    PostgreSQL would answer such a COMMIT without an error, and so would SQLite after some failures.

    Raises:
        RuntimeError: the work continued after a statement had failed.
    """
    raw = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        sound = raw.in_transaction
    else:
        sound = isinstance(raw, psycopg.Connection) and raw.info.transaction_status is TransactionStatus.INTRANS
    if not sound:
        raise RuntimeError("a statement failed and the work went on; nothing was committed")


def commit(connection: Connection) -> None:
    """Commit a write transaction; one that cannot commit is rolled back."""
    raw = connection.connection.driver_connection  # fetched now: SQLAlchemy returns none for a broken connection
    try:
        connection.commit()
    except SQLAlchemyError:
        if isinstance(raw, sqlite3.Connection):
            raw.rollback()  # SQLite keeps a transaction open whose commit failed; SQLAlchemy takes it for ended
        raise
