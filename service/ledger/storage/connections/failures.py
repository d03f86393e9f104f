"""Classification of database errors, and the words about them that a caller may see.

Drivers quote values in their messages (PostgreSQL: "Failing row contains ..."), so only codes leave this file. The
operator also gets the words of errors that contain no values: no connection, or a file that cannot be used.
"""

import sqlite3
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.errors import Altered, Conflict, ServiceError, Unavailable
from service.ledger.storage.connections.location import DatabaseLocation, place_of_file


class FailureKind(Enum):
    """The reaction that a failure calls for."""

    LOST = auto()  # the connection broke
    UNREACHABLE = auto()  # no connection could be made
    TANGLED = auto()  # a deadlock or serialization failure
    RACE = auto()  # another transaction took a key or removed a row in between
    UNAVAILABLE = auto()
    FAULT = auto()  # a statement that can never succeed


@dataclass(frozen=True)
class Failure:
    """A database error without its message; ``reason`` is kept only for errors that contain no values."""

    kind: FailureKind
    code: str  # an SQLSTATE, SQLite's name of the error, or a class; never part of a statement
    reason: str = ""


RETRIED = frozenset({FailureKind.LOST, FailureKind.TANGLED, FailureKind.RACE})

_SQLITE_RACES = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
}
_SQLITE_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
_READ_ONLY, _NO_RIGHT = "25006", "42501"
# The first lines of these contain nothing of a statement but its kind and the table's name.
_VALUE_FREE = ("08", "53", "57", "58", _READ_ONLY, _NO_RIGHT)
# SQLSTATEs (PostgreSQL's appendix A), or their class: the first two characters.
_POSTGRESQL_KINDS = {
    "40001": FailureKind.TANGLED,
    "40P01": FailureKind.TANGLED,
    "23505": FailureKind.RACE,
    "23503": FailureKind.RACE,
    "57P03": FailureKind.UNREACHABLE,  # starting up
    "55P03": FailureKind.UNAVAILABLE,  # no lock in time
    _NO_RIGHT: FailureKind.UNAVAILABLE,  # a missing privilege, which the database's owner can grant
    "08": FailureKind.LOST,
    "53": FailureKind.UNAVAILABLE,  # disk full, out of memory, too many connections
    "57": FailureKind.UNAVAILABLE,  # cancelled
    "58": FailureKind.UNAVAILABLE,  # the server's own input and output
}
_WAITED = {"55P03", "SQLITE_BUSY"}
_FULL = {"53100", "SQLITE_FULL"}
# A trigger or a CHECK refuses nothing that the service writes, unless other rows are in its way.
_IN_THE_WAY = {"P0001", "SQLITE_CONSTRAINT_TRIGGER", "23514", "SQLITE_CONSTRAINT_CHECK"}

_MAY_WRITE = "check the path in SERVICE_DATABASE_URL or SERVICE_DATA_DIR, and that this user may write there"
_SQLITE_ADVICE = {
    "CANTOPEN": _MAY_WRITE,
    "READONLY": _MAY_WRITE,
    "NOTADB": "check the path in SERVICE_DATABASE_URL or SERVICE_DATA_DIR; if it is the ledger's, restore a backup",
    "CORRUPT": "restore a backup",
}
_UNKNOWN = (
    "the connection to the database broke while the change was being committed, so it may or may not have"
    " happened; repeat the request with the same Idempotency-Key to find out"
)


def failure_of(error: SQLAlchemyError) -> Failure:
    """Return the meaning of an error of either database."""
    if not isinstance(error, DBAPIError):
        return Failure(FailureKind.FAULT, type(error).__name__)
    if isinstance(error.orig, sqlite3.Error):
        return sqlite_failure(error.orig)
    code = error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None
    if error.connection_invalidated:
        return Failure(FailureKind.LOST, code or "lost", _reason(error.orig))
    if code is None:
        connecting = error.statement is None and isinstance(error.orig, psycopg.ProgrammingError)  # an unknown option
        if connecting or isinstance(error.orig, psycopg.OperationalError):
            return Failure(FailureKind.UNREACHABLE, type(error.orig).__name__, _reason(error.orig))
        return Failure(FailureKind.FAULT, type(error.orig).__name__)
    kind = _POSTGRESQL_KINDS.get(code) or _POSTGRESQL_KINDS.get(code[:2], FailureKind.FAULT)
    return Failure(kind, code, _reason(error.orig))


def _reason(error: BaseException | None) -> str:
    """Return libpq's words about a connection, without its guesses, or the first line of a server's own error."""
    if not isinstance(error, psycopg.Error):
        return ""
    if error.sqlstate is None:
        return "\n".join(line for line in str(error).splitlines() if not line.startswith("\t"))
    return error.diag.message_primary or "" if error.sqlstate.startswith(_VALUE_FREE) else ""


def sqlite_failure(error: sqlite3.Error) -> Failure:
    """Return the meaning of an error of the SQLite driver."""
    code = getattr(error, "sqlite_errorcode", None)  # errors of the driver itself have no code
    if code is None:
        return Failure(FailureKind.FAULT, type(error).__name__)
    name = str(error.sqlite_errorname)
    if code in _SQLITE_RACES:
        return Failure(FailureKind.RACE, name)
    primary = code & 0xFF  # the remaining bits make it an extended code
    if primary not in _SQLITE_UNAVAILABLE:
        return Failure(FailureKind.FAULT, name)
    return Failure(FailureKind.UNAVAILABLE, name, str(error))


def file_not_accessible(path: Path, error: OSError) -> ServiceError | RuntimeError:
    """Return the error for a file that this process cannot access."""
    return refusal(Failure(FailureKind.UNAVAILABLE, "SQLITE_CANTOPEN", error.strerror or ""), place_of_file(path))


def refusal(failure: Failure, place: DatabaseLocation, *, unknown: bool = False) -> ServiceError | RuntimeError:
    """Return the error for the caller; only the operator gets the database's location and the driver's reason."""
    if unknown:
        return _unavailable(_UNKNOWN, failure, place)
    if failure.code in _IN_THE_WAY:
        reason = f"it refused what the service wrote ({failure.code}); run verify"
        return Altered("a table of the ledger", "a table", reason)
    if failure.kind is FailureKind.FAULT:
        return RuntimeError(f"the database refused a statement ({failure.code})")
    if failure.kind is FailureKind.RACE:
        return Conflict("another request was making the same change at the same time")
    if failure.code in _FULL:
        return _unavailable("the database has no space left", failure, place, retry_after=60)
    if failure.code in _WAITED:
        return _unavailable("another transaction held a lock that this one needs for too long", failure, place)
    if failure.code == _READ_ONLY:
        return _unavailable("the database is read-only", failure, place)
    if failure.kind in {FailureKind.LOST, FailureKind.UNREACHABLE}:
        return _unavailable("the database cannot be reached", failure, place)
    return _unavailable(f"the database cannot answer now ({failure.code})", failure, place)


def _unavailable(detail: str, failure: Failure, place: DatabaseLocation, retry_after: int = 5) -> Unavailable:
    told = place.message(detail, failure.reason, _advice(failure))
    return Unavailable(detail, retry_after, for_operator=told)


def _advice(failure: Failure) -> str:
    if failure.kind is FailureKind.UNREACHABLE:
        answered = "FATAL" in failure.reason or "no password supplied" in failure.reason
        if answered:
            return "the server answers: check user, password and database in SERVICE_DATABASE_URL, and the server's log"
        return "check that the server runs, and the host, the port and the options in SERVICE_DATABASE_URL"
    if failure.code == _READ_ONLY:
        return "name the primary server in SERVICE_DATABASE_URL, and check default_transaction_read_only"
    if failure.kind is FailureKind.LOST:
        return "check that the server runs; its log says why it ended the connection"
    if failure.code == _NO_RIGHT:
        return (
            "as the tables' owner, run migrate and then deploy/postgres-roles.sql, which grants what servers need; and"
            " check that no table of the ledger has row-level security"
        )
    name = failure.code.split("_")[1] if failure.code.startswith("SQLITE_") else ""
    return _SQLITE_ADVICE.get(name, "")
