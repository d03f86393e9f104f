"""Entries about a release, found by the texts along the chain.

The columns by which a database finds entries are not sealed: whoever owns it can file an entry under another kind or
release for a moment. What is signed therefore needs all entries that the texts give, and not only those that are found.
"""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from service.ledger.journal import chains, linked_heads
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.entries import ParsedEntry, read_text
from service.ledger.journal.journal import BEFORE_FIRST, AccountHead, Head, JournalEntry, Kind
from service.ledger.storage.chain_points import is_point
from service.ledger.storage.database import Database
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.tables import Entry
from service.ledger.storage.transaction import DATABASE
from service.ledger.storage.walked_journals import WalkedJournal

_HASHES = select(Entry.seq, Entry.hash).where(
    Entry.account_id == bindparam("account"), Entry.seq.in_(bindparam("numbers", expanding=True))
)
_ENTRIES = (
    select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash)
    .where(Entry.account_id == bindparam("account"), Entry.seq.in_(bindparam("numbers", expanding=True)))
    .order_by(Entry.seq)
)


def entries_about(
    connection: Connection, account: AccountHead, release_id: str | None, after: Head, kinds: Iterable[Kind]
) -> dict[Kind, list[int]]:
    """Return the numbers of a release's entries after its first one, by kind, or of those about no release.

    A process walks along each entry once. A later call walks only along what was added since, and what is older.

    Args:
        account: with a head that this process knows to be committed.
        after: the first entry, which the journal contains.

    Returns:
        For each of the kinds, numbers in ascending order.

    Raises:
        Altered: the texts do not link the heads.
    """
    walked = _walked(connection, account, after)
    return {kind: walked.numbers(_digest(_filed(kind, release_id)), after.seq) for kind in kinds}


def entries_at(
    connection: Connection, account: AccountHead, numbers: Sequence[int], others: Iterable[Head] = ()
) -> list[ParsedEntry]:
    """Return entries of a journal by their numbers, in ascending order, each linked with the account's head.

    Args:
        account: with a head that this process knows to be committed.
        others: heads that the journal must contain, too.

    Raises:
        Altered: the journal lacks one, or its text is not as the service wrote it.
    """
    before = [number - 1 for number in numbers if number > 1]
    rows = connection.execute(_ENTRIES, {"account": account.id, "numbers": numbers}).all()
    hashes = {0: BEFORE_FIRST.hash} | dict(
        connection.execute(_HASHES, {"account": account.id, "numbers": before}).all()
    )
    if [row.seq for row in rows] != sorted(numbers):
        raise chains.altered(account.id, account.head.seq, "an entry before it is missing")
    try:
        for entry in map(JournalEntry._make, rows):
            chains.check_link(Head(entry.seq - 1, hashes.get(entry.seq - 1, "")), entry)
            chains.check_filing(entry)
    except (TypeError, ValueError) as broken:
        raise chains.altered(account.id, entry.seq, broken) from None
    if not linked_heads.contains(connection, account, [*others, *(Head(row.seq, row.hash) for row in rows)]):
        raise chains.altered(account.id, account.head.seq, "the texts do not lead to the head")
    return [read_text(row.body) for row in rows]


def _walked(connection: Connection, account: AccountHead, after: Head) -> WalkedJournal:
    """Return the walked part of the journal, from the given entry or an earlier one to the account's head."""
    database: Database = connection.info[DATABASE]
    journals = database.walked
    head, before = (KnownHead(account.name, place.seq, place.hash) for place in (account.head, after))
    walked = journals.get(account.name)
    if walked is None or (walked.last.seq >= head.seq and walked.last != head):  # of a later moment than this one
        walked = WalkedJournal(before, before, np.array([], np.uint64))
    points: list[KnownHead] = []
    older = _digests(connection, account, before, walked.first, points)
    newer = _digests(connection, account, walked.last, head, points)
    if not (len(older) or len(newer)):
        return walked
    first = before if len(older) else walked.first
    walked = WalkedJournal(first, head, np.concatenate([older, walked.digests, newer]))
    if database.newest.up_to(account.name, head.seq) == head:  # another thread may have recorded another one
        journals.keep(walked)
        database.points.add(points)  # so that `contains` need not walk along them again
    return walked


def _digests(
    connection: Connection, account: AccountHead, first: KnownHead, last: KnownHead, points: list[KnownHead]
) -> NDArray[np.uint64]:
    """Return the digests of the entries between two heads; none if the second is not the later one.

    Args:
        points: receives those of the entries that are points of the chain.

    Raises:
        Altered: the texts do not link them.
    """
    if first.seq >= last.seq:
        return np.array([], np.uint64)
    end, digests = first, array("Q")
    for head, body in linked_heads.texts_after(connection, account.id, Head(first.seq, first.hash), last.seq):
        start = body.rfind(',"kind":')
        digests.append(_digest(body[start : body.find('"seq":', start)]))
        end = KnownHead(account.name, head.seq, head.hash)
        if is_point(end.seq):
            points.append(end)
    if end != last:
        raise chains.altered(account.id, end.seq + 1, "the texts do not lead to the head")
    return np.array(digests, np.uint64)


def _filed(kind: Kind, release_id: str | None) -> str:
    """Return the part of an entry's text that states its kind and its release."""
    return f',"kind":{canonical(kind)},"release":{canonical(release_id)},'


def _digest(filed: str) -> int:
    return int.from_bytes(blake2b(filed.encode(), digest_size=8).digest())
