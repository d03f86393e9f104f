"""The newest head of each journal that a process knows to be committed, against which rows are held that it reads.

A row of an account that is put back as it once was has its old seal. Whoever committed an entry after it knows better.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

from service.ledger.storage.group_commit import Made

_JOURNALS = 100_000  # of which the newest head is known; those that moved last
_TOLD = 10_000  # of which another process is told, that a new one begins soon; likewise


class _Known(NamedTuple):
    """A head, the moment from which it was known, and the head that was known before it, if any was."""

    moment: int
    seq: int
    hash: str
    before: "_Known | None"


class Newest:
    """Newest heads by the account's id, which only go forward.

    Any thread may read them; those that add do so one at a time.

    Attributes:
        moment: counts additions. What was known at a moment was committed before it, so that every transaction that
            begins later sees it; of a later addition one cannot tell, and goes by the head that was known before.
    """

    def __init__(self) -> None:
        self.moment = 0
        self._heads: OrderedDict[int, _Known] = OrderedDict()  # those that moved last at the end

    def add(self, entries: Iterable[Made]) -> None:
        """Note entries that were committed."""
        moment = self.moment + 1
        for entry in {entry.account_id: entry for entry in sorted(entries)}.values():  # the last of each journal
            last = self._heads.get(entry.account_id)
            if last is None or last.seq < entry.seq:
                before = None if last is None else last._replace(before=None)
                self._heads[entry.account_id] = _Known(moment, entry.seq, entry.hash, before)
                self._heads.move_to_end(entry.account_id)
        while len(self._heads) > _JOURNALS:
            self._heads.popitem(last=False)
        self.moment = moment

    def after(self, moment: int) -> list[Made]:
        """Return the last heads that were added after a moment, for another process."""
        added = takewhile(lambda item: item[1].moment > moment, islice(reversed(self._heads.items()), _TOLD))
        return [Made(account_id, known.seq, known.hash) for account_id, known in added]

    def number(self, account_id: int) -> int:
        """Return the number of the newest head of a journal; 0 where none is known."""
        known = self._heads.get(account_id)
        return 0 if known is None else known.seq

    def committed(self, account_id: int, moment: int) -> Made | None:
        """Return the newest known head of a journal among those that a transaction sees which began after a moment."""
        known = self._heads.get(account_id)
        while known is not None and known.moment > moment:
            known = known.before
        return None if known is None else Made(account_id, known.seq, known.hash)

    def went_back(self, account_id: int, seq: int, digest: str, moment: int | None) -> bool:
        """Whether a journal is known to have been further than this head, or to have had another of its number.

        Args:
            moment: before which the transaction began that read the head; None where it holds a lock on the row,
                so that all that was ever added to the journal was there when the row was read.
        """
        known = self._heads.get(account_id)
        while known is not None:
            if seq == known.seq:
                return digest != known.hash
            if moment is None or known.moment <= moment:
                return seq < known.seq
            known = known.before
        return False
