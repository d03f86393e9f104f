"""The journal: entries that are only ever added, each hashed together with the one before it.

hash = SHA-256(previous hash, 32 bytes, followed by the entry as RFC 8785 canonical JSON). The first entry of an account
follows 32 zero bytes. A party that keeps one hash can detect any change of the entries before it.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select

from service.errors import Altered, LedgerRolledBack, ServiceError
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
]

Row = dict[str, int | str | None]

LARGEST_INTEGER = 2**53  # doubles, and so RFC 8785, cannot tell larger integers apart
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_BY_CODE_POINTS = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
"""An encoder that gives the order of RFC 8785 too, if everything is ASCII, in a third of the time."""


@dataclass(frozen=True)
class Head:
    """The last entry of an account's chain: its number (from 1) and its hash (64 hexadecimal digits)."""

    seq: int
    hash: str


BEFORE_FIRST = Head(0, "00" * 32)
_HASH = re.compile("[0-9a-f]{64}")
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


@dataclass(frozen=True)
class BadEntry:
    """The first fault of a chain: its place and its description."""

    seq: int
    reason: str


def canonical(value: object) -> str:
    """Return RFC 8785 canonical JSON of a journal value: text, integers, booleans, null, lists and objects.

    Raises:
        TypeError: the value has another type. Numbers that are not integers are text in the ledger, exactly as they
            were stated, because a double might be a rounded value.
        ValueError: an integer beyond 2^53 in size, or text that is not Unicode (a lone surrogate).
    """
    _check(value)
    text = _BY_CODE_POINTS.encode(value)
    if not text.isascii():
        text = _ENCODER.encode(_ordered(value))
        text.encode()  # RFC 8785 section 3.2.2.2: lone surrogates are an error (UnicodeEncodeError)
    return text


@dataclass(frozen=True, slots=True)
class CanonicalObject:
    """A JSON object in canonical form, so that long parts of an entry are written before an account is locked."""

    text: str

    @classmethod
    def of(cls, members: Mapping[str, str]) -> "CanonicalObject":
        """Return the object with these members, whose values are canonical JSON and whose names are plain ASCII."""
        return cls("{" + ",".join(f'"{name}":{members[name]}' for name in sorted(members)) + "}")


def _check(value: object) -> None:
    """Refuse values that the journal cannot hold."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError("expected text as the names of an object")
            _check(item)
    elif isinstance(value, list):
        for item in value:
            if type(item) is not str:  # a price at 250 orders is mostly text
                _check(item)
    elif not isinstance(value, int):
        raise TypeError(f"expected text, an integer, a boolean, null, a list or an object, got {type(value).__name__}")
    elif abs(value) > LARGEST_INTEGER:
        raise ValueError("expected an integer of at most 2^53 in size; larger numbers are text in the ledger")


def _ordered(value: object) -> object:
    """Return the value with the names of every object in the order of RFC 8785 section 3.2.3."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=utf_16_units)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def utf_16_units(name: str) -> bytes:
    """Return a name in big-endian UTF-16, so that bytes compare as code units do."""
    return name.encode("utf-16-be", "surrogatepass")


def entry_hash(previous: str, body: str) -> str:
    """Return SHA-256 of the previous hash's 32 bytes followed by the entry's canonical JSON.

    Args:
        previous: 64 hexadecimal digits.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()


def is_hashed(previous: str, body: str, stored: str) -> bool:
    """Return whether an entry's text, after this hash, has the stored hash; a sealed hash thereby authenticates it."""
    return _HASH.fullmatch(previous) is not None and entry_hash(previous, body) == stored


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
        RuntimeError: the database dropped some of them.
    """
    stored = [{name: value for name, value in row.items() if name != "previous"} for row in rows]
    require_written(connection.execute(_INSERT, batch(stored)), len(stored))
    for kind, number in Counter(row["kind"] for row in rows).items():
        count_metric(connection, "entries", str(kind), number)
    note_entries(connection, [_new_entry(**row) for row in rows])  # type: ignore[arg-type]


def _new_entry(account_id: int, seq: int, hash: str, body: str, previous: str, **_: object) -> NewEntry:  # noqa: A002
    """Return a row as a new entry, with the account's name from the start of its text."""
    name: str = _DECODER.raw_decode(body, len(_START))[0]
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
        RuntimeError: the database dropped the entry.
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
) -> Page[JournalEntry]:
    """Return a page of an account's journal: at most ``limit`` entries that follow ``after_seq``, in order.

    Args:
        after_seq: 0 for the first page.
        until: the number of the account's head. Entries beyond it are left out, because no seal covers them.
    """
    query = (
        select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
        .where(Entry.account_id == account_id, Entry.seq > after_seq, up_to(Entry.seq, until))
        .order_by(Entry.seq)
    )
    rows = rows_of(connection, query, func.length(Entry.body), limit, before_reading=before_reading)
    return page_of(rows, lambda row: JournalEntry(*row))


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
    if _HASH.fullmatch(before.hash) is None:  # from a row whose content is not checked yet
        raise altered(account_id, before.seq, "its hash is none")
    query = select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash).order_by(Entry.seq)
    query = query.where(Entry.account_id == account_id, Entry.seq <= head.seq).limit(_CHAINED)
    try:
        while rows := connection.execute(query.where(Entry.seq > last.seq)).all():
            for entry in map(JournalEntry._make, rows):
                check_link(last, entry)
                _check_filing(entry)
                last = Head(entry.seq, entry.hash)
                yield entry
    except BrokenChain as broken:
        raise altered(account_id, last.seq + 1, broken) from None
    if last != head:
        raise altered(account_id, head.seq, "it is not the sealed one")


def last_chained(
    connection: Connection, account_id: int, before: Head, head: Head, kinds: Collection[str], release_id: str | None
) -> JournalEntry | None:
    """Return the last entry of some kinds about a release, or about none, that the chain meets between two heads.

    Args:
        before: the head that the first entry follows.
        release_id: None for entries about no release.

    Raises:
        Altered: the entries between them are not as the service wrote them.
    """
    last = None
    for entry in chained(connection, account_id, before, head):
        if entry.kind in kinds and entry.release_id == release_id:
            last = entry
    return last


def _check_filing(entry: JournalEntry) -> None:
    """Compare the columns that find an entry with its text, in which no quoted name follows these members.

    Raises:
        BrokenChain: it is filed under another kind, release or number.
    """
    kind, release = canonical(entry.kind), canonical(entry.release_id)
    filed = f',"kind":{kind},"release":{release},"seq":{entry.seq},'
    if not entry.body.startswith(filed, entry.body.rfind(',"kind":"')):
        raise BrokenChain(MISFILED)


def altered(account_id: int, seq: int, reason: object) -> Altered:
    """Return the refusal of an entry that is not as the service wrote it."""
    return Altered("the account's journal", f"entry {seq} of account {account_id}", f"{reason}; run verify")


_CHAINED = 500  # entries that are read at a time


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
    query = select(Entry.hash).where(Entry.account_id == account_id, Entry.seq == seq - 1)
    return connection.execute(query).scalar_one_or_none() or BEFORE_FIRST.hash


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
    said = read_body(entry.body)
    if (said.get("account"), said.get("seq"), said.get("kind"), said.get("release")) != (
        account,
        entry.seq,
        entry.kind,
        entry.release_id,
    ):
        raise BrokenChain(MISFILED)
    return said


def check_link(previous: Head, entry: JournalEntry) -> None:
    """Require that an entry follows this head and was not changed since.

    Raises:
        BrokenChain: it does not, or was.
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
        said = _DECODER.decode(body)
        # In pure ASCII, the order of names by characters is that by their UTF-16 code units.
        rewritten = _SORTING_ENCODER.encode(said) if body.isascii() else canonical(said)
    except (TypeError, ValueError, RecursionError):
        raise BrokenChain("the entry is not canonical JSON") from None
    if rewritten != body or not isinstance(said, dict):
        raise BrokenChain("the entry is not canonical JSON")
    return said


def _small_integer(text: str) -> int:
    value = int(text)
    if abs(value) > LARGEST_INTEGER:
        raise ValueError("expected an integer of at most 2^53 in size")
    return value


def _no_double(_: str) -> float:
    raise ValueError("expected no number that is not an integer")


_DECODER = json.JSONDecoder(parse_int=_small_integer, parse_float=_no_double, parse_constant=_no_double)
_SORTING_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
)
