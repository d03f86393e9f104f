"""What a database's error means for the ledger, and what a caller may be told of it.

Drivers quote values in their messages (PostgreSQL: "Failing row contains ..."), so only codes leave this file.
"""

import sqlite3
from dataclasses import dataclass
from enum import Enum, auto

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.errors import Conflict, ServiceError, Unavailable


class Kind(Enum):
    """What a failure calls for."""

    LOST = auto()  # the connection broke
    UNREACHABLE = auto()  # no connection could be made
    TANGLED = auto()  # a deadlock or serialization failure
    RACE = auto()  # a key that another transaction took, or a row that it removed, in between
    UNAVAILABLE = auto()
    FAULT = auto()  # a statement that can never succeed


@dataclass(frozen=True)
class Failure:
    """A database's error without its words."""

    kind: Kind
    code: str  # an SQLSTATE, SQLite's name of the error, or a class: nothing of the statement


RETRIED = frozenset({Kind.LOST, Kind.TANGLED, Kind.RACE})

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
# SQLSTATEs (PostgreSQL's appendix A) or their class, the first two characters.
_POSTGRESQL_KINDS = {
    "40001": Kind.TANGLED,
    "40P01": Kind.TANGLED,
    "23505": Kind.RACE,
    "23503": Kind.RACE,
    "57P03": Kind.UNREACHABLE,  # starting up
    "55P03": Kind.UNAVAILABLE,  # no lock in time
    "08": Kind.LOST,
    "53": Kind.UNAVAILABLE,  # disk full, out of memory, too many connections
    "57": Kind.UNAVAILABLE,  # cancelled
    "58": Kind.UNAVAILABLE,  # the server's own input and output
}
_WAITED = {"55P03", "SQLITE_BUSY"}
_FULL = {"53100", "SQLITE_FULL"}


def failure_of(error: SQLAlchemyError) -> Failure:
    """What an error of either database means."""
    if not isinstance(error, DBAPIError):
        return Failure(Kind.FAULT, type(error).__name__)
    if isinstance(error.orig, sqlite3.Error):
        return sqlite_failure(error.orig)
    code = error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None
    if error.connection_invalidated:
        return Failure(Kind.LOST, code or "lost")
    if code is None:
        unreachable = isinstance(error.orig, psycopg.OperationalError)
        return Failure(Kind.UNREACHABLE if unreachable else Kind.FAULT, type(error.orig).__name__)
    return Failure(_POSTGRESQL_KINDS.get(code) or _POSTGRESQL_KINDS.get(code[:2], Kind.FAULT), code)


def sqlite_failure(error: sqlite3.Error) -> Failure:
    """What an error of the SQLite driver means."""
    code = getattr(error, "sqlite_errorcode", None)  # errors of the driver itself have none
    if code is None:
        return Failure(Kind.FAULT, type(error).__name__)
    name = str(error.sqlite_errorname)
    if code in _SQLITE_RACES:
        return Failure(Kind.RACE, name)
    primary = code & 0xFF  # the rest makes it an extended code
    return Failure(Kind.UNAVAILABLE if primary in _SQLITE_UNAVAILABLE else Kind.FAULT, name)


def refusal(failure: Failure, *, unknown: bool = False) -> ServiceError | RuntimeError:
    """What the caller is told. The driver's own words stay here: they quote statements and values."""
    if unknown:
        return Unavailable(
            "the connection to the database broke while the change was being committed, so it may or may not have"
            " happened; the same request with the same Idempotency-Key finds out"
        )
    if failure.kind is Kind.FAULT:
        return RuntimeError(f"the database refused a statement ({failure.code})")
    if failure.kind is Kind.RACE:
        return Conflict("another request was making the same change at the same time")
    if failure.code in _FULL:
        return Unavailable("the database has no space left", retry_after=60)
    if failure.code in _WAITED:
        return Unavailable("another transaction held what this one needed for too long")
    if failure.kind in {Kind.LOST, Kind.UNREACHABLE}:
        return Unavailable("the database cannot be reached")
    return Unavailable(f"the database cannot answer now ({failure.code})")
