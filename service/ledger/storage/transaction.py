"""The present transaction, as the functions that work in it see it: its database, its secret, its effects.

``Database`` stores these with the connection when a transaction begins. Effects count once it is committed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, CursorResult

from service.errors import Altered
from service.ledger.storage.drawn_partitions import DrawnFor
from service.ledger.storage.group_commit import EFFECTS, Effects, NewEntry
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.secret import Secret

if TYPE_CHECKING:
    from service.ledger.storage.database import Database

Values = TypeVar("Values", bound=dict[str, Any])

DATABASE = "database"  # the key under which a connection stores its `Database`
SINCE = "since"  # the key of the moment before the transaction began, which selects the heads that were known then
LINKED = "linked"  # the key of the heads that the transaction wrote or linked, by the account's name
QUEUE = "queue"  # the key of a function that waits in an account's queue; absent on SQLite, and once it was called


def secret_of(connection: Connection) -> Secret:
    """Return the secret that the connection's database is bound to.

    Raises:
        RuntimeError: it was bound to none.
    """
    return bound_secret(connection.info.get(DATABASE))


def bound_secret(database: "Database | None") -> Secret:
    """Return the secret that a database is bound to.

    Raises:
        RuntimeError: it was bound to none.
    """
    if database is None or database.secret is None:
        raise RuntimeError("the database was bound to no secret, without which no account can be read")
    return database.secret


def wait_in_queue(connection: Connection, account_id: int) -> None:
    """Wait until no other write transaction of this process works on an account, before the first lock of accounts.

    Of each process only one session waits for the database's lock then. So a principal that sends many requests to one
    server takes few places in front of the others.

    Raises:
        Unavailable: the others take too long.
    """
    wait = connection.info.pop(QUEUE, None)
    if wait is not None:
        wait(account_id)


def leave_holds(connection: Connection) -> None:
    """Leave expired reservations to the thread that lets them expire, if the process has one."""
    database: Database | None = connection.info.get(DATABASE)
    if database is not None:
        database.holds_due.set()


def count_metric(connection: Connection, what: str, of: str = "", number: int = 1) -> None:
    """Count an action of this write transaction, once the transaction is committed."""
    done: Effects | None = connection.info.get(EFFECTS)
    if done is not None:
        done.counts[what, of] += number


def note_ends(connection: Connection, ends: Mapping[str, str]) -> None:
    """Record the moments from which this write transaction ends keys, once it is committed."""
    done: Effects | None = connection.info.get(EFFECTS)
    if done is not None:
        done.ends |= ends


def note_drawn(connection: Connection, drawn: DrawnFor) -> None:
    """Record what a draw of this write transaction leaves a release drawn for, once it is committed."""
    done: Effects | None = connection.info.get(EFFECTS)
    if done is not None:
        done.drawn.append(drawn)


def note_entries(connection: Connection, entries: Sequence[NewEntry]) -> None:
    """Record the entries that this write transaction adds to journals, once it is committed.

    Raises:
        Unavailable: this process has committed entries of these numbers before.
    """
    database: Database | None = connection.info.get(DATABASE)
    if database is not None:
        database.require_new(entries)
        done: Effects = connection.info[EFFECTS]
        done.entries += entries
        connection.info[LINKED] |= {entry.account: KnownHead(entry.account, entry.seq, entry.hash) for entry in entries}


def require_present(connection: Connection, head: KnownHead, *, locked: bool = False) -> None:
    """Refuse a journal's head that was read in this transaction, if the journal was further before.

    Args:
        locked: whether the transaction holds the lock that every writer of the journal needs.

    Raises:
        Unavailable: the journal was further, or had another entry of this number. All further writes are refused.
    """
    info = connection.info
    if SINCE in info:
        info[DATABASE].require_present(head, None if locked else info[SINCE])


def newest_known(connection: Connection, account: str) -> KnownHead | None:
    """Return the newest head of a journal that this transaction must find in it, if one is known."""
    info = connection.info
    return info[DATABASE].newest.committed(account, info[SINCE]) if SINCE in info else None


def accounts_known(connection: Connection) -> set[str]:
    """Return the accounts of which this process knows entries that this transaction must find."""
    info = connection.info
    return info[DATABASE].newest.accounts(info[SINCE]) if SINCE in info else set()


def is_unknown(connection: Connection, account: str) -> bool:
    """Return whether neither the high-water mark nor this process ever knew an account of this name."""
    database: Database | None = connection.info.get(DATABASE)
    return database is not None and database.newest.complete and database.newest.last(account) is None


def require_written(result: CursorResult[Any], number: int) -> None:
    """Require that a statement wrote every row that it was given: a trigger can drop rows without an error.

    Raises:
        Altered: it wrote another number of rows; then nothing is committed.
    """
    if result.rowcount != number:
        reason = f"the database wrote {result.rowcount} rows of {number}; nothing was committed; run verify"
        raise Altered("a table of the ledger", "a table", reason)


def batch(rows: Sequence[Values]) -> Values | Sequence[Values]:
    """Return rows for one statement; a single row is not a batch, because a batch costs both drivers more."""
    return rows[0] if len(rows) == 1 else rows
