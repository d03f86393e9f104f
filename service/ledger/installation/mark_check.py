"""The check of a ledger and of the clock against the high-water mark, before a process uses the ledger."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from sqlalchemy import select

from service.errors import StartupRefused
from service.ledger.installation.high_water import BEFORE_ALL, BrokenMark, HighWaterFile, Mark
from service.ledger.installation.missing_entries import MissingEntry, last_entries, missing_entries
from service.ledger.journal.journal import Head
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.tables import Account
from service.ledger.verification.backup import require_sound_file

SHOWN = 20  # journals that a message names
_TOLERANCE = 60.0  # seconds that clocks may differ, and that this machine's clock may be set back

_ADVICE = (
    "If this is intended, as after restoring a backup, record the reason:"
    " python -m service acknowledge --reason TEXT. Otherwise stop, and restore the newest copy"
)


def check_mark(database: Database, file: HighWaterFile, *, check_file: bool) -> Mark | None:
    """Refuse a ledger that lacks entries of its high-water mark, and a clock that is behind the mark.

    Afterwards neither the process's time nor any journal that it reads may go back behind the mark.

    Args:
        check_file: look for damage in the head of an SQLite file, or in all of it if its server did not stop in good
            order.

    Returns:
        The mark; None where there is none yet.

    Raises:
        StartupRefused: entries are missing, the clock is behind, the mark cannot be used, or the file is damaged.
        Unavailable: the database does not answer.
    """
    mark = file.read()
    if mark is None:
        with database.read() as connection:
            database.newest.complete = connection.execute(select(Account.id).limit(1)).first() is None
        return None
    check_clock(mark)
    if check_file:
        require_sound_file(database, whole=mark.in_use)
    with database.read() as connection:
        accounts = last_entries(connection)
        missing = missing_entries(connection, mark.heads, accounts)
    if missing:
        empty = "" if accounts else f" {database.place.name} has no accounts at all: check that this is its address."
        raise StartupRefused(
            f"the ledger is older than its high-water mark {file.path} of {mark.written_at}: {described(missing)}."
            f"{empty} {_ADVICE}"
        )
    database.newest.complete = True
    database.newest.add(known_heads(mark.heads))
    return mark


def check_clock(mark: Mark) -> None:
    """Refuse a clock that is behind the mark; within a minute, continue from the mark's time instead.

    Raises:
        StartupRefused: the clock is further behind.
    """
    now = clock.now()
    if clock.between(now, mark.written_at).total_seconds() > _TOLERANCE:
        raise StartupRefused(
            f"this machine's clock says {now}, but the high-water mark was written at {mark.written_at}: set the clock."
            " If it was ahead then and is right now, record that: python -m service acknowledge --reason TEXT"
        )
    clock.go_on_from(mark.written_at)


def described(missing: list[MissingEntry]) -> str:
    """Return a text that says which journals lack entries, the first of them by name."""
    more = len(missing) - SHOWN
    return "; ".join(map(str, missing[:SHOWN])) + (f"; and {more} more" if more > 0 else "")


def known_heads(marked: Mapping[str, Head]) -> Iterator[KnownHead]:
    """Yield marked heads as a process remembers them, those of two versions of a journal too: neither is a head."""
    return (KnownHead(name, head.seq, head.hash) for name, head in marked.items())


def remember_marked(database: Database, file: HighWaterFile, *, complete: bool) -> None:
    """Remember all marked heads, in a process that answers for a server and is told later heads by it.

    Args:
        complete: whether the server knew all accounts when it began.
    """
    with suppress(BrokenMark):  # the server reports it
        heads = file.moved_since(BEFORE_ALL)[1]
        database.newest.complete = complete and bool(heads)
        database.newest.add(known_heads(heads))
