"""Newest known heads of the journals, for rollback detection.

An account's row that was put back to an earlier state has its old, valid seal. A process that committed a later entry
can tell.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

from service.ledger.storage.group_commit import NewEntry

_JOURNALS = 100_000  # whose newest head is known: the most recently changed ones
_TOLD = 10_000  # whose heads another process gets as it starts; the most recently changed ones


class _Known(NamedTuple):
    """A head, the moment from which it was known, and the head that was known before it, if any."""

    moment: int
    entry: NewEntry
    before: "_Known | None"


class NewestHeads:
    """Newest heads by the account's name, which only advance.

    A row with another id in place of an account's own is refused for its seal, but a name stays one journal's for ever.

    Any thread may read them; additions must happen one at a time.

    Attributes:
        moment: counts additions. A head that was known at a moment was committed before it, so every transaction that
            begins later sees it. For a later addition this is uncertain, and the head that was known before counts.
    """

    def __init__(self) -> None:
        self.moment = 0
        self._heads: OrderedDict[str, _Known] = OrderedDict()  # the most recently changed ones at the end

    def add(self, entries: Iterable[NewEntry]) -> None:
        """Record entries that were committed."""
        moment = self.moment + 1
        for name, entry in {entry.account: entry for entry in sorted(entries)}.items():  # the last of each journal
            last = self._heads.get(name)
            if last is None or last.entry.seq < entry.seq:
                before = None if last is None else last._replace(before=None)
                self._heads[name] = _Known(moment, entry, before)
                self._heads.move_to_end(name)
        while len(self._heads) > _JOURNALS:
            self._heads.popitem(last=False)
        self.moment = moment

    def after(self, moment: int) -> list[NewEntry]:
        """Return the newest heads that were added after a moment, for another process."""
        newest = islice(reversed(self._heads.values()), _TOLD)
        return [known.entry for known in takewhile(lambda known: known.moment > moment, newest)]

    def number(self, account: str) -> int:
        """Return the number of a journal's newest head; 0 if none is known."""
        known = self._heads.get(account)
        return 0 if known is None else known.entry.seq

    def committed(self, account: str, moment: int) -> NewEntry | None:
        """Return the newest known head of a journal that a transaction which began after ``moment`` must see."""
        known = self._heads.get(account)
        while known is not None and known.moment > moment:
            known = known.before
        return None if known is None else known.entry

    def up_to(self, account: str, seq: int) -> NewEntry | None:
        """Return the newest known head of a journal whose number is at most this one."""
        known = self._heads.get(account)
        while known is not None and known.entry.seq > seq:
            known = known.before
        return None if known is None else known.entry

    def went_back(self, account: str, seq: int, digest: str, moment: int | None) -> bool:
        """Return whether a journal was further than this head, or had another entry of its number.

        Args:
            moment: a moment before the transaction began that read the head. None where it holds a lock on the row:
                then every entry ever added to the journal was there when the row was read.
        """
        known = self._heads.get(account)
        while known is not None:
            if seq == known.entry.seq:
                return digest != known.entry.hash
            if moment is None or known.moment <= moment:
                return seq < known.entry.seq
            known = known.before
        return False
