"""Exports: accounts as JSON Lines, sufficient to verify and to rebuild them, and how such a file is read.

    {"statement": "export", "version": 1, "accounts": [{"account", "seq", "hash"}...], ..., "signature"}
    {"entry": "the journal entry's canonical JSON", "hash": "..."}
    {"draw": "id", "noisy": "base64 of the stored bytes"}         after the entry of the draw

The first line signs the heads of all chains, so it vouches for every entry below it, and a file that was cut off
ends before a head. Opening entries come first, ancestors before those under them; then each account's other entries,
the deepest accounts first, so that a release is known before an ancestor's entry names it.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from sqlalchemy import Connection, bindparam, select

from service.errors import NotFound, ServiceError
from service.ledger import journal
from service.ledger.audit import Audit
from service.ledger.database import Database
from service.ledger.history import Said
from service.ledger.journal import Broken, Head, JournalEntry
from service.ledger.signing import Signer
from service.ledger.tables import Account, Draw
from service.privacy.filter import ACCOUNTANT

STATEMENT = "export"
VERSION = 1
_PAGE = 500  # entries read at a time
_LONGEST = 1 << 31  # bytes of a line: a draw of hundreds of millions of counts
_ONLY_ENTRY = {"entry", "hash"}
_ONLY_DRAW = {"draw", "noisy"}


class BadExport(ServiceError):
    """A file is no export, or not a whole one, or not as it was signed."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Member:
    """An account to export, with the head that its export ends at."""

    id: int
    name: str
    depth: int  # how many accounts are above it
    head: Head


def family(connection: Connection, name: str) -> list[Member]:
    """An account with all that it shares releases with: its root and every account under that, ancestors first.

    Raises:
        NotFound: there is no such account.
    """
    query = select(Account.id, Account.parent_id)
    row = connection.execute(query.where(Account.name == name)).one_or_none()
    if row is None:
        raise NotFound("account", name)
    while row.parent_id is not None:
        row = connection.execute(query.where(Account.id == row.parent_id)).one()
    found: list[Member] = []
    level = [row.id]
    while level:
        depth = found[-1].depth + 1 if found else 0
        columns = (Account.id, Account.name, Account.head_seq, Account.head_hash)
        rows = connection.execute(select(*columns).where(Account.id.in_(level)).order_by(Account.id)).all()
        found += [Member(row.id, row.name, depth, Head(row.head_seq, row.head_hash)) for row in rows]
        level = list(connection.execute(select(Account.id).where(Account.parent_id.in_(level))).scalars())
    return found


def everything(connection: Connection) -> list[Member]:
    """Every account, each family together."""
    roots = select(Account.name).where(Account.parent_id.is_(None)).order_by(Account.id)
    return [member for root in connection.execute(roots).scalars().all() for member in family(connection, root)]


def export(database: Database, signer: Signer, members: list[Member], at: str) -> Iterator[str]:
    """The lines of accounts, up to the heads that they had when ``members`` were read.

    Entries and draws are never changed, so they are read in short transactions of their own: however long a
    client takes, nothing waits for it.
    """
    heads = [{"account": member.name, "seq": member.head.seq, "hash": member.head.hash} for member in members]
    yield _line(signer.sign(STATEMENT, {"version": VERSION, "at": at, "accountant": ACCOUNTANT, "accounts": heads}))
    for member in members:
        yield from _entries(database, member, 0, 1)
    for member in sorted(members, key=lambda member: -member.depth):
        yield from _entries(database, member, 1, member.head.seq)


def _entries(database: Database, member: Member, after: int, until: int) -> Iterator[str]:
    while after < until:
        with database.read() as connection:
            page = journal.entries(connection, member.id, after, min(_PAGE, until - after))
        if not page:
            return  # the database has lost them, and the file's reader will say so
        for entry in page:
            yield _line({"entry": entry.body, "hash": entry.hash})
            if entry.kind == "drawn":
                with database.read() as connection:
                    draw = connection.execute(_DRAW, {"account": member.id, "seq": entry.seq}).one()
                yield _line({"draw": draw.id, "noisy": base64.b64encode(draw.noisy).decode()})
        after = page[-1].seq


_DRAW = select(Draw.id, Draw.noisy).where(Draw.account_id == bindparam("account"), Draw.seq == bindparam("seq"))


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class Entered:
    """An entry that was read and is good; ``noisy`` are the bytes of its draw."""

    line: int
    audit: Audit
    said: Said
    entry: JournalEntry
    state: str | None
    noisy: bytes | None
    is_last: bool  # of its account


@dataclass(slots=True)
class _Expected:
    """An account that the first line names."""

    head: Head
    audit: Audit
    parent: str | None = None
    depth: int = 0


def read(file: BinaryIO, public_key: str) -> Iterator[Entered]:
    """The entries of an export, each checked as ``verify`` does before it is handed out.

    Only when the iteration ends without an error is the file whole.

    Raises:
        BadExport: which line is wrong, and how.
    """
    yield from _Reader(file, public_key).entries()


@dataclass(slots=True)
class _Reader:
    file: BinaryIO
    public_key: str
    line: int = 0
    accounts: dict[str, _Expected] = field(default_factory=dict)

    def entries(self) -> Iterator[Entered]:
        self._read_heads()
        while (document := self._next()) is not None:
            try:
                entered = self._entry(document)
            except Broken as broken:
                raise BadExport(self.line, str(broken)) from None
            yield entered
        for name, expected in self.accounts.items():
            if expected.audit.chain.head != expected.head:
                raise BadExport(self.line + 1, f"the file ends before the head of {name!r}")
        self._check_families()
