"""Newest known heads of the journals, for rollback detection.

An account's row that was put back to an earlier state has its old, valid seal. A process that knows a later entry can
tell.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from service.ledger.storage.group_commit import INSTALLATION

_JOURNALS = 100_000  # whose newest head is known: the most recently changed ones
_TOLD = 10_000  # whose heads another process gets as it starts; the most recently changed ones
AT_START = 0  # the moment before any addition
_LOOKED_AT = 8  # earlier heads of a journal that one addition examines: more than one, so that in the end all are


class KnownHead(NamedTuple):
    """The head of a journal that is known to be committed, by the account's name."""

    account: str
    seq: int
    hash: str


@dataclass(slots=True)
class _Known:
    """A head, the moment from which it was known, and the head that was known before it, if it is kept."""

    moment: int
    head: KnownHead
    before: "_Known | None"


class NewestHeads:
    """Newest heads by the account's name, which only advance. Any thread may use them.

    Names are used because a row's id may be changed by whoever owns the database, while its seal covers its name.

    Attributes:
        moment: counts additions. A head that was known at a moment was committed before it, so every transaction that
            begins later sees it. For a later addition this is uncertain, and the head that was known before counts.
        complete: whether a head is known of each account that the high-water mark or this process ever knew.
    """

    def __init__(self) -> None:
        self.moment = 0
        self.complete = False
        self._heads: OrderedDict[str, _Known] = OrderedDict()  # the most recently changed ones at the end
        self._open = Counter[int]()  # transactions under way, by the moment at which they began
        self._changing = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """Keep the heads that a transaction must see, from before it begins until the block ends; yield the moment."""
        with self._changing:
            since = self.moment
            self._open[since] += 1
        try:
            yield since
        finally:
            with self._changing:
                self._open[since] -= 1
                if not self._open[since]:
                    del self._open[since]

    def add(self, heads: Iterable[KnownHead]) -> None:
        """Record heads that were committed."""
        with self._changing:
            self._add(heads)

    def add_linked(self, head: KnownHead, known: KnownHead | None) -> bool:
        """Record a head that follows from the newest known one, unless another head was recorded meanwhile.

        Two transactions may have been shown two versions of a journal. Only the first of them counts.

        Returns:
            Whether it was recorded.
        """
        with self._changing:
            newest = self._heads.get(head.account)
            if (None if newest is None else newest.head) != known:
                return False
            self._add([head])
            return True

    def _add(self, heads: Iterable[KnownHead]) -> None:
        moment, oldest = self.moment + 1, min(self._open, default=self.moment)
        last_of_each = {head.account: head for head in sorted(heads, key=lambda head: head.seq)}
        for name, head in last_of_each.items():
            last = self._heads.get(name)
            if last is None or last.head.seq < head.seq:
                self._heads[name] = _Known(moment, head, last)
                self._heads.move_to_end(name)
                _forget_before(last, oldest)
        while len(self._heads) > _JOURNALS:  # the installation's journal decides whether keys are valid
            del self._heads[next(name for name in self._heads if name != INSTALLATION)]
            self.complete = False
        self.moment = moment

    def after(self, moment: int) -> tuple[int, list[KnownHead]]:
        """Return the present moment, and the newest heads that were added after an earlier one, for another process.

        Args:
            moment: ``AT_START`` for a process that reads the marked heads itself: it gets the most recent ones alone.
        """
        with self._changing:
            newest = islice(reversed(self._heads.values()), _TOLD if moment == AT_START else None)
            return self.moment, [known.head for known in takewhile(lambda known: known.moment > moment, newest)]

    def last(self, account: str) -> KnownHead | None:
        """Return a journal's newest head, if one is known."""
        known = self._heads.get(account)
        return None if known is None else known.head

    def number(self, account: str) -> int:
        """Return the number of a journal's newest head; 0 if none is known."""
        known = self._heads.get(account)
        return 0 if known is None else known.head.seq

    def accounts(self, moment: int) -> set[str]:
        """Return the accounts whose journals a transaction that began after ``moment`` must see."""
        with self._changing:
            names = list(self._heads)
        known = ((name, self.committed(name, moment)) for name in names if name != INSTALLATION)
        return {name for name, head in known if head is not None and head.seq}

    def committed(self, account: str, moment: int) -> KnownHead | None:
        """Return the newest known head of a journal that a transaction which began after ``moment`` must see."""
        known = self._heads.get(account)
        while known is not None and known.moment > moment:
            known = known.before
        return None if known is None else known.head

    def up_to(self, account: str, seq: int) -> KnownHead | None:
        """Return the newest known head of a journal whose number is at most this one."""
        known = self._heads.get(account)
        while known is not None and known.head.seq > seq:
            known = known.before
        return None if known is None else known.head

    def went_back(self, head: KnownHead, moment: int | None) -> bool:
        """Return whether a journal was further than this head, or had another entry of its number.

        Args:
            moment: the moment before the transaction began that read the head. None where it holds a lock on the row:
                then every entry ever added to the journal was there when the row was read.
        """
        known = self._heads.get(head.account)
        while known is not None:
            if head.seq == known.head.seq:
                return head.hash != known.head.hash
            if moment is None or known.moment <= moment:
                return head.seq < known.head.seq
            known = known.before
        return False


def _forget_before(known: _Known | None, oldest: int) -> None:
    """Forget the heads before the one that the oldest transaction under way must see."""
    for _ in range(_LOOKED_AT):
        if known is None:
            return
        if known.moment <= oldest:
            known.before = None
            return
        known = known.before
