"""Heads that follow from an earlier head by the hashes of the texts between them.

Whatever a database shows, it cannot link two heads that are of different versions of a journal.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from sqlalchemy import Connection, bindparam, select

from service.ledger.journal.journal import AccountHead, Head, entry_hash
from service.ledger.storage.chain_points import is_point
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import EFFECTS, NO_ACCOUNT, NewEntry
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.tables import Entry, InstallationEntry
from service.ledger.storage.transaction import DATABASE, LINKED

_AT_ONCE = 16  # texts that are held at a time, each of up to some mebibytes
# Statements are built once, because building one costs more than running it.
_OF_ACCOUNT = (
    select(Entry.seq, Entry.body)
    .where(Entry.account_id == bindparam("account"), Entry.seq > bindparam("after"), Entry.seq <= bindparam("last"))
    .order_by(Entry.seq)
)
_OF_INSTALLATION = (
    select(InstallationEntry.seq, InstallationEntry.body)
    .where(InstallationEntry.seq > bindparam("after"), InstallationEntry.seq <= bindparam("last"))
    .order_by(InstallationEntry.seq)
)


def heads_after(connection: Connection, account_id: int, lower: Head, last_seq: int) -> Iterator[Head]:
    """Yield the heads that follow from a head, by the texts up to an entry's number, as far as there are texts."""
    return (head for head, _ in texts_after(connection, account_id, lower, last_seq))


def texts_after(connection: Connection, account_id: int, lower: Head, last_seq: int) -> Iterator[tuple[Head, str]]:
    """Yield the heads that follow from a head, as ``heads_after`` does, each with the text that it was found from."""
    query = _OF_INSTALLATION if account_id == NO_ACCOUNT else _OF_ACCOUNT
    last, places = lower, {"after": lower.seq, "last": last_seq}
    if account_id != NO_ACCOUNT:
        places["account"] = account_id
    with connection.execute(query, places, execution_options={"yield_per": _AT_ONCE}) as rows:
        for row in rows:
            if row.seq != last.seq + 1 or not isinstance(row.body, str):
                break
            last = Head(row.seq, entry_hash(last.hash, row.body))
            yield last, row.body


def is_linked(connection: Connection, account_id: int, lower: Head, higher: Head) -> bool:
    """Return whether the texts link two heads, or they are the same."""
    return lower == higher or higher in heads_after(connection, account_id, lower, higher.seq)


def contains(connection: Connection, account: AccountHead, entries: Iterable[Head]) -> bool:
    """Return whether the journal of an account with a known head contains all of some entries, by the texts after them.

    The hash that a row states is no proof: no seal covers it.
    """
    database: Database = connection.info[DATABASE]
    # A head that a write transaction sees may be of another one that is not committed yet.
    is_known = database.newest.up_to(account.name, account.head.seq) == _known(account.name, account.head)
    waiting = sorted(entries, key=lambda entry: entry.seq)
    if waiting and waiting[-1].seq > account.head.seq:
        return False
    while waiting:
        first = waiting[0]
        point = database.points.next(account.name, first.seq, account.head.seq)
        end = account.head if point is None else Head(point.seq, point.hash)
        wanted = {entry for entry in waiting if entry.seq <= end.seq}
        last, points = first, [first]
        wanted.discard(first)
        for last in heads_after(connection, account.id, first, end.seq):
            wanted.discard(last)
            if is_point(last.seq):
                points.append(last)
        if last != end or wanted:
            return False
        if is_known:
            database.points.add(_known(account.name, point) for point in points)
        waiting = [entry for entry in waiting if entry.seq > end.seq]
    return True


def _known(account: str, head: Head) -> KnownHead:
    return KnownHead(account, head.seq, head.hash)


def require_linked(connection: Connection, account_id: int, head: KnownHead) -> None:
    """Refuse a journal's head, as a row stated it, that does not follow from the last one that this process knows.

    The journal is then another version of itself than the one that this process knows. A head that follows is
    remembered, so that the next transaction need not read the texts again, and so is the first one of a journal.

    Raises:
        Unavailable: it does not follow. All further writes are refused.
    """
    info = connection.info
    if LINKED not in info or info[LINKED].get(head.account) == head:
        return
    database: Database = info[DATABASE]
    while True:
        known = database.newest.up_to(head.account, head.seq)
        if known is not None:
            if known.seq == head.seq:  # it was known before, or another thread recorded it meanwhile
                if known.hash != head.hash:
                    raise database.went_back(head.account, head.seq)
                return
            if not is_linked(connection, account_id, Head(known.seq, known.hash), Head(head.seq, head.hash)):
                raise database.went_back(head.account, head.seq)
        info[LINKED][head.account] = head
        # A write transaction's row may be one that it wrote itself, which is not committed yet.
        if EFFECTS in info:
            return
        if database.newest.add_linked(head, known):
            database.note_read([NewEntry(account_id, head.seq, head.hash, head.account)])
            return
        if database.newest.number(head.account) > head.seq and database.newest.up_to(head.account, head.seq) == known:
            return  # only a later head was recorded, and nothing is known of this one's number


class Walk:
    """The way from a journal's marked head along the entries of this process, in the order of their numbers.

    Args:
        marked: the marked head; None where the journal has none.
        entries: those of this process, of one journal by the name that they state.

    Attributes:
        marked: the marked head; where there is none, the one that the first entry follows.
        last: the last entry of this process.
        gaps: the numbers of the heads, in their order, that only texts can link with the next one.
    """

    def __init__(self, marked: Head | None, entries: Sequence[NewEntry]) -> None:
        before = {Head(entry.seq, entry.hash): Head(entry.seq - 1, entry.previous) for entry in entries}
        self._account_id, self.last = entries[-1].account_id, list(before)[-1]
        self.marked = next(iter(before.values())) if marked is None else marked
        self._heads = sorted({self.marked, *before}, key=lambda head: head.seq)
        self.gaps = [number for number, pair in enumerate(pairwise(self._heads)) if before.get(pair[1]) != pair[0]]

    @property
    def reached(self) -> Head:
        """The last head that is linked with the marked one so far."""
        linked = self._heads[: self.gaps[0] + 1] if self.gaps else self._heads
        return linked[-1] if self.marked in linked else self.marked

    def close(self, connection: Connection) -> bool:
        """Link heads by the texts between them; return whether all are linked now."""
        first, last = self._heads[self.gaps[0]], self._heads[self.gaps[-1] + 1]
        chain = {first, *heads_after(connection, self._account_id, first, last.seq)}
        while self.gaps and chain.issuperset(self._heads[self.gaps[0] : self.gaps[0] + 2]):
            del self.gaps[0]
        return not self.gaps
