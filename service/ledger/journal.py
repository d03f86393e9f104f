"""The journal: entries that are only ever added, each hashed together with the one before it.

hash = SHA-256(previous hash, 32 bytes, followed by the entry as RFC 8785 canonical JSON). The
first entry of an account follows 32 zero bytes. Whoever keeps one hash can tell whether anything
before it was changed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select

from service.ledger.database import batch
from service.ledger.tables import Entry

Kind = Literal[
    "account_opened",
    "budget_changed",
    "account_closed",
    "account_reopened",
    "metadata_changed",
    "proposed",
    "approved",
    "reserved",
    "committed",
    "voided",
    "expired",
    "drawn",
    "repriced",
    "refused",
]

Row = dict[str, int | str | None]

LARGEST_INTEGER = 2**53  # beyond it a double, and so RFC 8785, no longer tells integers apart
_PAGE = 500
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Head:
    """The last entry of an account's chain: its number (from 1) and its hash (64 hexadecimal digits)."""

    seq: int
    hash: str


BEFORE_FIRST = Head(0, "00" * 32)


@dataclass(frozen=True)
class AccountHead:
    """An account, and the head that its next entry follows."""

    id: int
    name: str
    head: Head


@dataclass(frozen=True)
class JournalEntry:
    """One entry as it is stored; ``body`` is the canonical JSON that was hashed."""

    seq: int
    kind: str
    release_id: str | None
    body: str
    hash: str


@dataclass(frozen=True)
class BadEntry:
    """Where a chain breaks first, and how."""

    seq: int
    reason: str


def canonical(value: object) -> str:
    """RFC 8785 canonical JSON of what the journal holds: text, integers, booleans, null, lists and objects.

    Raises:
        TypeError: anything else. Numbers that are not integers are text in the ledger, exactly as they
            were stated; a double would be somebody's rounding of them.
        ValueError: an integer beyond 2^53 in size, or text that is not Unicode (a lone surrogate).
    """
    text = _ENCODER.encode(_ordered(value))
    if not text.isascii():
        text.encode()  # RFC 8785 section 3.2.2.2: lone surrogates are an error (UnicodeEncodeError)
    return text


def _ordered(value: object) -> object:
    """The same value with the names of every object in the order of RFC 8785 section 3.2.3."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError("expected an integer of at most 2^53 in size; larger numbers are text in the ledger")
        return value
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("expected text as the names of an object")
        return {name: _ordered(value[name]) for name in sorted(value, key=_utf_16_units)}
    raise TypeError(f"expected text, an integer, a boolean, null, a list or an object, got {type(value).__name__}")


def _utf_16_units(name: str) -> bytes:
    """Big-endian, so that bytes compare as code units do; ASCII compares the same without."""
    return name.encode("utf-16-be", "surrogatepass")


def entry_hash(previous: str, body: str) -> str:
    """SHA-256 of the previous hash's 32 bytes followed by the entry's canonical JSON."""
    return hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()


def following(
    account: AccountHead,
    kind: Kind,
    content: dict[str, object],
    *,
    actor: str | None,
    release_id: str | None = None,
    at: str,
) -> tuple[Row, Head]:
    """The next entry of an account as its row, and the head that it makes. Nobody is the actor of what time did."""
    seq = account.head.seq + 1
    body = canonical(
        {
            "account": account.name,
            "seq": seq,
            "kind": kind,
            "release": release_id,
            "content": content,
            "actor": actor,
            "time": at,
        }
    )
    head = Head(seq, entry_hash(account.head.hash, body))
    row: Row = {"account_id": account.id, "seq": seq, "kind": kind, "release_id": release_id, "body": body}
    return row | {"hash": head.hash}, head


def write(connection: Connection, rows: Sequence[Row]) -> None:
    """Write entries of accounts that the caller has locked.

    The accounts' rows are left to the caller, who changes head and totals in one statement.
    """
    connection.execute(_INSERT, batch(rows))


def append(
    connection: Connection,
    account: AccountHead,
    kind: Kind,
    content: dict[str, object],
    *,
    actor: str,
    release_id: str | None = None,
    at: str,
) -> Head:
    """Write the next entry of an account that the caller has locked, and return the new head."""
    row, head = following(account, kind, content, actor=actor, release_id=release_id, at=at)
    write(connection, [row])
    return head


_INSERT = insert(Entry)


def entries(connection: Connection, account_id: int, after_seq: int, limit: int) -> list[JournalEntry]:
    """A page of an account's journal: at most ``limit`` entries that follow ``after_seq``, in order."""
    rows = connection.execute(
        select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
        .where(Entry.account_id == account_id, Entry.seq > after_seq)
        .order_by(Entry.seq)
        .limit(limit)
    )
    return [JournalEntry(*row) for row in rows]


def has_entry(connection: Connection, account_id: int, head: Head) -> bool:
    """Whether this very entry is in the journal: how an attempt is recognised whose commit was not confirmed."""
    found = connection.execute(
        select(Entry.seq).where(Entry.account_id == account_id, Entry.seq == head.seq, Entry.hash == head.hash)
    )
    return found.first() is not None


def hash_before(connection: Connection, account_id: int, seq: int) -> str:
    """The hash that an entry follows."""
    query = select(Entry.hash).where(Entry.account_id == account_id, Entry.seq == seq - 1)
    return connection.execute(query).scalar_one_or_none() or BEFORE_FIRST.hash


def verify_chain(connection: Connection, account: AccountHead) -> BadEntry | None:
    """Walk an account's chain up to its head and return the first bad entry, or None where all are good."""
    head = BEFORE_FIRST
    while page := entries(connection, account.id, head.seq, _PAGE):
        for entry in page:
            reason = _fault(account.name, head, entry)
            if reason is not None:
                return BadEntry(head.seq + 1, reason)
            head = Head(entry.seq, entry.hash)
    if head.seq < account.head.seq:
        return BadEntry(head.seq + 1, "the entry is missing")
    if head != account.head:
        return BadEntry(head.seq, "the account's head is not the last entry")
    return None


def _fault(account: str, previous: Head, entry: JournalEntry) -> str | None:
    """What is wrong with an entry, given the head that it should follow."""
    if entry.seq != previous.seq + 1:
        return "the entry is missing"
    if entry_hash(previous.hash, entry.body) != entry.hash:
        return "the hash is not that of the entry and the hash before it"
    try:
        said = json.loads(entry.body)
        rewritten = canonical(said)
    except (TypeError, ValueError):
        return "the entry is not canonical JSON"
    if rewritten != entry.body or not isinstance(said, dict):
        return "the entry is not canonical JSON"
    columns = {"account": account, "seq": entry.seq, "kind": entry.kind, "release": entry.release_id}
    if {name: said.get(name) for name in columns} != columns:
        return "the entry is filed under another account, number, kind or release than it states"
    return None
