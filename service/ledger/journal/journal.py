"""The journal: entries that are only ever added, each hashed together with the one before it.

hash = SHA-256(previous hash, 32 bytes, followed by the entry as RFC 8785 canonical JSON). The first entry of an account
follows 32 zero bytes. A party that keeps one hash can detect any change of the entries before it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select

from service.errors import LedgerRolledBack
from service.ledger.journal.canonical_json import DECODER, CanonicalObject, canonical
from service.ledger.storage.group_commit import NewEntry
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.tables import Account, Entry
from service.ledger.storage.transaction import batch, count_metric, note_entries, require_written

Kind = Literal[
    "account_opened",
    "budget_changed",
    "account_closed",
    "account_reopened",
    "change_proposed",
    "metadata_changed",
    "described",
    "proposed",
    "approved",
    "reserved",
    "committed",
    "voided",
    "expired",
    "drawn",
    "repriced",
    "refused",
    "caps_changed",
    "change_rejected",
    "allotted",
    "change_approved",
    "approvers_changed",
]

Row = dict[str, int | str | None]


@dataclass(frozen=True)
class Head:
    """The last entry of an account's chain: its number (from 1) and its hash (64 hexadecimal digits)."""

    seq: int
    hash: str


BEFORE_FIRST = Head(0, "00" * 32)
_START = '{"account":'  # of each entry's text, as canonical JSON sorts the names of members
_HEAD = re.compile(r"([1-9][0-9]{0,14}):([0-9a-f]{64})")


def up_to(seq: Any, head_seq: Any) -> ColumnElement[bool]:
    """Return the SQL condition that a number is in a chain up to its head; no seal covers entries outside."""
    return seq.between(1, head_seq)  # type: ignore[no-any-return]


def read_head(text: str) -> Head:
    """Return the head in a text ``seq:hash``, the form in which clients keep and send it.

    Raises:
        ValueError: the text is malformed; the message does not quote it.
    """
    found = _HEAD.fullmatch(text)
    if found is None:
        raise ValueError("expected seq:hash, a number from 1 and 64 lower-case hexadecimal digits")
    return Head(int(found[1]), found[2])


def write_head(head: Head) -> str:
    """Return the text ``seq:hash`` of a head."""
    return f"{head.seq}:{head.hash}"


@dataclass(frozen=True)
class AccountHead:
    """An account with the head that its next entry follows."""

    id: int
    name: str
    head: Head


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of an entry: a principal, and the key that they used."""

    name: str
    key: str | None = None  # the key's id; None: an identity provider authenticated them, or the actor is no person


class JournalEntry(NamedTuple):
    """A stored entry; ``body`` is the canonical JSON that was hashed."""

    seq: int
    kind: str
    release_id: str | None
    body: str
    hash: str


@dataclass(frozen=True)
class ExpectedHead:
    """An entry that a client has seen in an account's journal, and that must still be there."""

    account: str
    head: Head


def entry_hash(previous: str, body: str) -> str:
    """Return SHA-256 of the previous hash's 32 bytes followed by the entry's canonical JSON.

    Args:
        previous: 64 hexadecimal digits.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()


def actor_members(actor: Actor | None) -> dict[str, object]:
    """Return the members of an entry that state its actor; the oldest entries name the principal without a key id."""
    if actor is None or actor.key is None:
        return {"actor": None if actor is None else actor.name}
    return {"actor": actor.name, "key": actor.key}


def following(
    account: AccountHead,
    kind: Kind,
    content: dict[str, object] | CanonicalObject,
    *,
    actor: Actor | None,
    release_id: str | None = None,
    at: str,
) -> tuple[Row, Head]:
    """Return an account's next entry as its row, and the head that it makes; entries made by expiry have no actor.

    Args:
        release_id: the release that the entry is about; None where it is about none.
    """
    seq = account.head.seq + 1
    around = {"account": account.name, "seq": seq, "kind": kind, "release": release_id, "time": at} | actor_members(
        actor
    )
    members = {name: canonical(value) for name, value in around.items()}
    members["content"] = content.text if isinstance(content, CanonicalObject) else canonical(content)
    body = CanonicalObject.of(members).text
    head = Head(seq, entry_hash(account.head.hash, body))
    row: Row = {"account_id": account.id, "seq": seq, "kind": kind, "release_id": release_id, "body": body}
    return row | {"hash": head.hash, "previous": account.head.hash}, head


def write(connection: Connection, rows: Sequence[Row]) -> None:
    """Write entries of accounts that the caller has locked.

    The caller updates the accounts' rows, with head and totals in one statement.

    Raises:
        Altered: the database dropped some of them.
    """
    stored = [{name: value for name, value in row.items() if name != "previous"} for row in rows]
    require_written(connection.execute(_INSERT, batch(stored)), len(stored))
    for kind, number in Counter(row["kind"] for row in rows).items():
        count_metric(connection, "entries", str(kind), number)
    note_entries(connection, [_new_entry(**row) for row in rows])  # type: ignore[arg-type]


def _new_entry(account_id: int, seq: int, hash: str, body: str, previous: str, **_: object) -> NewEntry:  # noqa: A002
    """Return a row as a new entry, with the account's name from the start of its text."""
    name: str = DECODER.raw_decode(body, len(_START))[0]
    return NewEntry(account_id, seq, hash, name, previous)


def append(
    connection: Connection,
    account: AccountHead,
    kind: Kind,
    content: dict[str, object] | CanonicalObject,
    *,
    actor: Actor,
    release_id: str | None = None,
    at: str,
) -> Head:
    """Write the next entry of an account that the caller has locked, and return the new head.

    Raises:
        Altered: the database dropped the entry.
    """
    row, head = following(account, kind, content, actor=actor, release_id=release_id, at=at)
    write(connection, [row])
    return head


_INSERT = insert(Entry).execution_options(preserve_rowcount=True)


def entries(
    connection: Connection,
    account_id: int,
    after_seq: int,
    limit: int,
    before_reading: BeforeReading | None = None,
    *,
    until: int,
    most: int | None = None,
) -> Page[JournalEntry]:
    """Return a page of an account's journal: at most ``limit`` entries that follow ``after_seq``, in order.

    Args:
        after_seq: 0 for the first page.
        until: the number of the account's head. Entries beyond it are left out, because no seal covers them.
        most: characters of a page, by default as many as pages have.
    """
    query = (
        select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
        .where(Entry.account_id == account_id, Entry.seq > after_seq, up_to(Entry.seq, until))
        .order_by(Entry.seq)
    )
    rows = rows_of(connection, query, func.length(Entry.body), limit, most, before_reading)
    return page_of(rows, lambda row: JournalEntry(*row))


def require_number(account: str, head: Head, number: int) -> None:
    """Require that a journal has an entry of a number, or 0, which a client keeps of the entries that it read.

    Raises:
        LedgerRolledBack: the journal's last entry has a lower number.
    """
    if number > head.seq:
        raise LedgerRolledBack(account, head.seq)


def require_expected_head(connection: Connection, kept: ExpectedHead) -> None:
    """Refuse to continue if an entry that was seen is not in the journal: then an old backup was restored.

    Raises:
        LedgerRolledBack: the account's journal does not hold it, or there is no such account.
    """
    asked = {"account": kept.account, "seq": kept.head.seq, "hash": kept.head.hash}
    if connection.execute(_KEPT, asked).first() is None:
        raise LedgerRolledBack(kept.account)


_KEPT = (
    select(Entry.seq)
    .join(Account, Account.id == Entry.account_id)
    .where(
        Account.name == bindparam("account"),
        Entry.seq == bindparam("seq"),
        Entry.hash == bindparam("hash"),
        up_to(Entry.seq, Account.head_seq),
    )
)


def has_entry(connection: Connection, account_id: int, head: Head) -> bool:
    """Return whether this very entry is in the journal, which recognises an attempt whose commit was not confirmed."""
    found = connection.execute(
        select(Entry.seq).where(Entry.account_id == account_id, Entry.seq == head.seq, Entry.hash == head.hash)
    )
    return found.first() is not None


def hash_before(connection: Connection, account_id: int, seq: int) -> str:
    """Return the hash that an entry follows.

    Returns:
        64 hexadecimal digits; zeros for the first entry, and where the entry before it is missing.
    """
    if seq == 1:
        return BEFORE_FIRST.hash
    return (
        connection.execute(_HASH_OF, {"account": account_id, "seq": seq - 1}).scalar_one_or_none() or BEFORE_FIRST.hash
    )


_HASH_OF = select(Entry.hash).where(Entry.account_id == bindparam("account"), Entry.seq == bindparam("seq"))
