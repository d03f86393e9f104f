"""Exports: accounts as JSON Lines, sufficient to verify and to rebuild them; ``export_reader`` reads them.

    {"statement": "export", "version": 1, "accounts": [{"account", "seq", "hash"}...], ..., "signature"}
    {"entry": "the journal entry's canonical JSON", "hash": "..."}
    {"draw": "id", "noisy": "base64 of the stored bytes"}         after the entry of the draw, a tabulation's with its
                                                                  "layout", in base64 too; "noisy" is null where it is
                                                                  no longer kept, since "noisy_removed_at"

The first line signs the heads of all chains, so it authenticates every entry below it, and a file that was cut off
ends before a head. Opening entries come first, ancestors before those under them; then each account's other entries,
the deepest accounts first, so that a release is known before an ancestor's entry names it.
"""

import base64
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from service.errors import Altered, NotFound
from service.ledger.accounts import account_rows
from service.ledger.installation.signing import Signer
from service.ledger.journal import journal
from service.ledger.journal.entries import Drawn, read_text
from service.ledger.journal.journal import Head, JournalEntry
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account, Draw, Tabulation
from service.ledger.storage.transaction import accounts_known
from service.privacy.accounting.pricing import ACCOUNTANT

STATEMENT = "export"
VERSION = 1
_PAGE = 500  # entries read at a time


@dataclass(frozen=True, slots=True)
class ExportedAccount:
    """An account to export, with the head that its export ends at."""

    id: int
    name: str
    depth: int  # the number of accounts above it
    head: Head


def members(connection: Connection, names: Collection[str] | None = None) -> list[ExportedAccount]:
    """Return every account, ancestors first; with ``names``, the whole families that share releases with these.

    Every account that this process knows must be there: somebody who writes the database could leave one out of an
    export for a moment, and its releases would be forgotten by whoever imports it.

    Returns:
        Each account before those under it.

    Raises:
        NotFound: there is no account of such a name.
        Unavailable: the row of one is not as the service wrote it, or is missing.
    """
    columns = (Account.id, Account.name, Account.parent_id)
    roots: dict[int, int] = {}
    ids: dict[str, int] = {}
    for row in connection.execute(select(*columns).order_by(Account.id)):  # a parent's id is below its children's
        roots[row.id] = row.id if row.parent_id is None else roots.get(row.parent_id, row.id)
        ids[row.name] = row.id
    for name in names or ():
        if name not in ids:
            raise NotFound("account", name)
    wanted = set(roots.values()) if names is None else {roots[ids[name]] for name in names}
    # What is signed comes from the rows whose seals are checked, as another statement may have another answer.
    sealed = account_rows.sealed_rows(connection, [id_ for id_, root in roots.items() if root in wanted])
    exported: dict[str, ExportedAccount] = {}
    for row in sorted(sealed, key=lambda row: int(row.id)):
        above = exported.get(row.parent)
        depth = 0 if above is None else above.depth + 1
        exported[row.name] = ExportedAccount(row.id, row.name, depth, Head(row.head_seq, row.head_hash))
    expected = accounts_known(connection) if names is None else set(names)
    absent = min(expected - exported.keys(), default=None)
    if absent is not None:
        raise Altered("the ledger", f"account {absent!r}", "there is no row of it that the service wrote; run verify")
    return list(exported.values())


def export(database: Database, signer: Signer, exported: list[ExportedAccount], at: str) -> Iterator[str]:
    """Yield the lines of accounts, up to the heads that they had when they were looked up.

    Entries and draws are never changed, so they are read in short transactions of their own. However long a client
    takes, no other request waits for it.

    Args:
        exported: ancestors first, as ``members`` returns them.
        at: the moment that the first line states.

    Yields:
        JSON objects, each with its line feed.
    """
    heads = [{"account": member.name, "seq": member.head.seq, "hash": member.head.hash} for member in exported]
    yield _line(signer.sign(STATEMENT, {"version": VERSION, "at": at, "accountant": ACCOUNTANT, "accounts": heads}))
    for member in exported:
        yield from _entries(database, member, 0, 1)
    for member in sorted(exported, key=lambda member: -member.depth):
        yield from _entries(database, member, 1, member.head.seq)


def _entries(database: Database, member: ExportedAccount, after: int, until: int) -> Iterator[str]:
    while after < until:
        with database.read() as connection:
            page = journal.entries(connection, member.id, after, _PAGE, until=until)
        if not page:
            return  # the database has lost them, which the file's reader will report
        for entry in page:
            try:
                yield from _lines(database, member, entry)
            except (AttributeError, KeyError, TypeError, ValueError):
                row = f"entry {entry.seq} of account {member.name!r}, or the row of its draw,"
                raise Altered("an entry of the journal", row) from None
        after = page[-1].seq


def _lines(database: Database, member: ExportedAccount, entry: JournalEntry) -> Iterator[str]:
    """Yield the line of an entry, and that of its draw.

    Raises:
        TypeError: a value is of another type than what the service writes.
        ValueError: there is not one row of the draw, or the entry has invalid content.
    """
    yield _line({"entry": entry.body, "hash": entry.hash})
    if entry.kind == "drawn":
        with database.read() as connection:
            (draw,) = connection.execute(_DRAW, {"account": member.id, "seq": entry.seq}).all()
        content = read_text(entry.body).content  # a layout may also have been put beside the draw of one partition
        is_tabulation, removed = isinstance(content, Drawn) and content.level is not None, draw.noisy_removed_at
        yield _line(
            {"draw": draw.id, "noisy": _encoded(draw.noisy) if removed is None else None}
            | ({} if removed is None else {"noisy_removed_at": removed})
            | ({"layout": _encoded(draw.layout)} if is_tabulation else {})
        )


_DRAW = (
    select(Draw.id, Draw.noisy, Draw.noisy_removed_at, Tabulation.layout)
    .outerjoin(Tabulation, Tabulation.draw_id == Draw.id)
    .where(Draw.account_id == bindparam("account"), Draw.seq == bindparam("seq"))
)


def _encoded(stored: bytes) -> str:
    return base64.b64encode(stored).decode()


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
