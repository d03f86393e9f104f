"""Chains of entries: the text of an entry is used only if the hashes link it with the sealed head."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from sqlalchemy import Connection, select

from service.errors import Altered, ServiceError
from service.ledger.journal.canonical_json import canonical, read_canonical
from service.ledger.journal.journal import Head, JournalEntry, entry_hash
from service.ledger.storage.tables import Entry

_HASH = re.compile("[0-9a-f]{64}")
# The last members of an entry's text. Their names cannot be part of another member, whose quotes are escaped.
_END = re.compile(
    r',"kind":"(?P<kind>[a-z_]+)","release":(?:"(?P<release>[^"]*)"|null),"seq":(?P<seq>[0-9]+),"time":"(?P<time>[^"]*)"\}\Z'
)
_END_LENGTH = 300  # characters in which they lie; the content before them may be long
_CHAINED = 500  # entries that are read at a time


def is_hashed(previous: object, body: object, stored: str) -> bool:
    """Return whether an entry's text, after this hash, has the stored hash; a sealed hash thereby authenticates it."""
    if not isinstance(body, str):  # SQLite stores values of any type in a column
        return False
    return is_hash(previous) and entry_hash(previous, body) == stored


def is_hash(value: object) -> TypeGuard[str]:
    """Return whether a value, of any type, has the form of a hash."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def chained(connection: Connection, account_id: int, before: Head, head: Head) -> Iterator[JournalEntry]:
    """Yield the entries after one head up to another, each as the chain meets it.

    A hash that is stored beside a text proves nothing by itself. The hash of the account's head is sealed, and so
    covers all entries that it follows from. So an entry may be used only after the last one was taken, and only in
    the text that was yielded: another statement may read another text, in a read transaction too where a view stands in
    the table's place.

    Raises:
        Altered: the entries are not as the service wrote them.
    """
    last = before
    if not is_hash(before.hash):  # from a row whose content is not checked yet
        raise altered(account_id, before.seq, "its hash is none")
    query = select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash).order_by(Entry.seq)
    query = query.where(Entry.account_id == account_id, Entry.seq <= head.seq).limit(_CHAINED)
    try:
        while rows := connection.execute(query.where(Entry.seq > last.seq)).all():
            for entry in map(JournalEntry._make, rows):
                check_link(last, entry)
                check_filing(entry)
                last = Head(entry.seq, entry.hash)
                yield entry
    except BrokenChain as broken:
        raise altered(account_id, last.seq + 1, broken) from None
    if last != head:
        raise altered(account_id, head.seq, "it is not the sealed one")


def all_chained(
    connection: Connection, account_id: int, before: Head, head: Head, kinds: Collection[str], release_id: str | None
) -> list[JournalEntry]:
    """Return the entries of some kinds about a release, or about none, that the chain meets between two heads.

    Args:
        before: the head that the first entry follows.
        release_id: None for entries about no release.

    Raises:
        Altered: the entries between them are not as the service wrote them.
    """
    return list(_of_kinds(chained(connection, account_id, before, head), kinds, release_id))


def last_chained(
    connection: Connection, account_id: int, before: Head, head: Head, kinds: Collection[str], release_id: str | None
) -> JournalEntry | None:
    """Return the last of the entries that ``all_chained`` returns; raise as it does."""
    last = None
    for entry in _of_kinds(chained(connection, account_id, before, head), kinds, release_id):
        last = entry
    return last


def _of_kinds(
    entries: Iterator[JournalEntry], kinds: Collection[str], release_id: str | None
) -> Iterator[JournalEntry]:
    return (entry for entry in entries if entry.kind in kinds and entry.release_id == release_id)


def check_filing(entry: JournalEntry) -> None:
    """Compare the columns that find an entry with its text, in which no quoted name follows these members.

    Raises:
        BrokenChain: it is filed under another kind, release or number.
    """
    kind, release = canonical(entry.kind), canonical(entry.release_id)
    filed = f',"kind":{kind},"release":{release},"seq":{entry.seq},'
    if not entry.body.startswith(filed, entry.body.rfind(',"kind":"')):
        raise BrokenChain(MISFILED)


class EntryEnd(NamedTuple):
    """The members at the end of an entry's text, after its content."""

    kind: str
    release: str | None
    seq: int
    time: str


def read_end(body: str) -> EntryEnd | None:
    """Return the end of an entry's text without reading its content; None where it ends otherwise."""
    end = _END.search(body, max(0, len(body) - _END_LENGTH))
    return None if end is None else EntryEnd(end["kind"], end["release"], int(end["seq"]), end["time"])


def altered(account_id: int, seq: int, reason: object) -> Altered:
    """Return the refusal of an entry that is not as the service wrote it."""
    return Altered("the account's journal", f"entry {seq} of account {account_id}", f"{reason}; run verify")


MISSING = "the entry is missing"

MISFILED = "the entry is filed under another account, number, kind or release than it states"


class BrokenChain(ValueError):
    """An entry that does not fit its chain or its account; the text says how."""


UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ServiceError)
"""The errors that reading an altered entry, or its price, plan or list of tags, can raise."""


def read_entry(account: str, previous: Head, entry: JournalEntry) -> dict[str, Any]:
    """Return the content of an entry, given the head that it follows.

    Returns:
        All members of the entry; what its kind states is in ``content``.

    Raises:
        BrokenChain: it is not the next one, not the hashed text, or filed under other columns.
    """
    check_link(previous, entry)
    members = read_body(entry.body)
    if (members.get("account"), members.get("seq"), members.get("kind"), members.get("release")) != (
        account,
        entry.seq,
        entry.kind,
        entry.release_id,
    ):
        raise BrokenChain(MISFILED)
    return members


def check_link(previous: Head, entry: JournalEntry) -> None:
    """Require that an entry follows this head and was not changed since.

    Raises:
        BrokenChain: the entry follows another head, or was changed.
    """
    if entry.seq != previous.seq + 1:
        raise BrokenChain(MISSING)
    if entry_hash(previous.hash, entry.body) != entry.hash:
        raise BrokenChain("the hash is not that of the entry and the hash before it")


def read_body(body: str) -> dict[str, Any]:
    """Return the content of an entry's text.

    Returns:
        All members of the entry; what its kind states is in ``content``.

    Raises:
        BrokenChain: it is not the canonical JSON of an object.
    """
    try:
        members = read_canonical(body)
    except (TypeError, ValueError, RecursionError):
        raise BrokenChain("the entry is not canonical JSON") from None
    if not isinstance(members, dict):
        raise BrokenChain("the entry is not canonical JSON")
    return members


@dataclass(frozen=True)
class BadEntry:
    """The first fault of a chain: its place and its description."""

    seq: int
    reason: str

    def __str__(self) -> str:
        return f"the first bad entry is {self.seq}: {self.reason}"
