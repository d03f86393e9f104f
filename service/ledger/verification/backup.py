"""Backup of an SQLite ledger that is in use: one moment of it, checked, in one file."""

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, StaticPool, create_engine, select
from sqlalchemy.exc import OperationalError

from service.errors import Conflict, StartupRefused, Unavailable
from service.ledger.accounts import account_rows
from service.ledger.installation.installation_journal import ledger_version
from service.ledger.journal.journal import Head
from service.ledger.storage.connections.engines import stored_text
from service.ledger.storage.connections.failures import refusal, sqlite_failure
from service.ledger.storage.connections.location import place_of_file
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret

_UNCHECKED = "its seal was not checked"
_INDEXES = "indexes of its file do not fit its tables; REINDEX makes them anew"
_INDEX_FAULT = re.compile(r"(row \d+ missing from|wrong # of entries in) index ")
_WAIT = 30.0  # seconds to wait for a process that recovers the ledger after a crash


class CopiedAccount(NamedTuple):
    """An account in a backup, with its head as its row states it.

    Attributes:
        name: of an altered row, any value.
        doubt: why the head may not be the account's, in words; None where the service wrote the row.
    """

    name: object
    head: Head
    doubt: str | None


def back_up(source: Path, target: Path, secret: Secret | None) -> list[CopiedAccount]:
    """Copy a ledger to a new file and return its accounts; no other process has to wait.

    All pages are copied in one step, under one snapshot. Page by page, a copy would begin again whenever another
    process writes, and under load it would never end.

    Args:
        source: the ledger's file.
        target: the new file.
        secret: the installation's; None: seals are not checked.

    Returns:
        Accounts in the order of their names; none of a ledger that was never migrated.

    Raises:
        Conflict: the file exists already; an older backup is never overwritten.
        Unavailable: the ledger cannot be read, the file cannot be written, or the copy is not sound.
    """
    if target.exists():
        raise Conflict(f"expected a new file; {target} exists already")
    try:
        with _named_when_whole(target) as draft, _opened(source) as ledger, _opened(draft) as copy:
            ledger.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # the backup is a single file
            if not _is_sound(copy):
                raise Unavailable("the copy is not sound: the ledger's file is damaged")
            return _accounts(copy, secret)
    except sqlite3.Error as error:
        raise refusal(sqlite_failure(error), place_of_file(source)) from None
    except FileExistsError:
        raise Conflict(f"expected a new file; {target} exists already") from None
    except OSError as error:
        raise Unavailable(f"the backup {target} cannot be written: {error.strerror}") from None


@contextmanager
def _named_when_whole(target: Path) -> Iterator[Path]:
    """Create a file that only its owner can read, and name it once it is complete and on the disk."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # left if killed
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        for path in (draft, draft.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                if path == draft:
                    os.link(draft, target)  # unlike a rename it replaces nothing
            finally:
                os.close(descriptor)
    finally:
        draft.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file that exists; none is created."""
    address = path.resolve().as_uri() + "?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=_WAIT, isolation_level=None)) as connection:
        connection.text_factory = stored_text
        yield connection


def require_sound_file(database: Database, *, whole: bool) -> None:
    """Refuse an SQLite ledger of which a page, an index or a reference is damaged.

    Args:
        whole: read all of the file, and not only its header, the schema and the list of free pages.

    Raises:
        StartupRefused: the file is damaged.
        Unavailable: it cannot be read.
    """
    with database.read() as connection:
        faults = file_faults(connection, whole=whole)
    if faults == [_INDEXES]:
        raise StartupRefused(
            f"indexes of the ledger's file do not fit its tables: {database.place.name}. Keep a copy for an"
            ' investigation, make the indexes anew (sqlite3 FILE "REINDEX", without losing an entry), and start again'
        )
    if faults:
        raise StartupRefused(
            f"the ledger's file is damaged: {database.place.name}. Keep it unchanged for an investigation, restore"
            " the newest backup, and record this with python -m service acknowledge"
        )


def file_faults(connection: Connection, *, whole: bool = True) -> list[str]:
    """Return the faults of an SQLite ledger's file; none for a database server.

    Args:
        whole: as in ``require_sound_file``.
    """
    file = connection.connection.driver_connection
    if not isinstance(file, sqlite3.Connection) or (_is_sound(file) if whole else _is_ok(file, "sqlite_schema")):
        return []
    with suppress(sqlite3.DatabaseError):  # a page that cannot be read
        found = [text for (text,) in file.execute("PRAGMA integrity_check")]  # at most 100
        if all(_INDEX_FAULT.match(text) for text in found) and _references_are_sound(file):
            return [_INDEXES]
    return ["its file is damaged: a page, an index or a reference"]


def _is_sound(file: sqlite3.Connection) -> bool:
    return _is_ok(file, "1") and _references_are_sound(file)


def _is_ok(file: sqlite3.Connection, what: str) -> bool:
    return bool(file.execute(f"PRAGMA integrity_check({what})").fetchone()[0] == "ok")


def _references_are_sound(file: sqlite3.Connection) -> bool:
    return file.execute("PRAGMA foreign_key_check").fetchone() is None


def _accounts(copy: sqlite3.Connection, secret: Secret | None) -> list[CopiedAccount]:
    if copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'accounts'").fetchone() is None:
        return []  # it was never migrated
    doubts = {} if secret is None else _doubts(copy, secret)
    rows = copy.execute("SELECT id, name, head_seq, head_hash FROM accounts ORDER BY name").fetchall()
    return [CopiedAccount(name, Head(seq, hash_), doubts.get(id_, _UNCHECKED)) for id_, name, seq, hash_ in rows]


def _doubts(copy: sqlite3.Connection, secret: Secret) -> dict[int, str | None]:
    """Return the fault of each account's row, None for a right one, by id; none of a ledger of an older version."""
    engine = create_engine("sqlite://", creator=lambda: copy, poolclass=StaticPool, hide_parameters=True)
    with engine.connect() as connection:
        try:
            present = replace(secret, version=ledger_version(connection, secret))
            rows = connection.execute(select(*account_rows.COLUMNS)).all()
        except OperationalError:  # the older version lacks a table or a column
            return {}
    return {row.id: _doubt(present, row) for row in rows}


def _doubt(secret: Secret, row: Row[*tuple[Any, ...]]) -> str | None:
    return None if account_rows.is_sealed(secret, row._mapping) else account_rows.unsealed(row)
