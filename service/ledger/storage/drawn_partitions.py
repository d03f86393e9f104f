"""The partitions that releases were drawn for, so that a draw need not read the entries of earlier draws again."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from service.ledger.journal.journal import Head

_MOST = 200_000  # numbers of all releases together; the releases that were drawn last keep theirs

Turns = Mapping[tuple[str, int], int]
"""Numbers of partitions by mechanism and repetition."""


class DrawnSince(NamedTuple):
    """The partitions that a release was drawn for by the entries between two heads of its account.

    Attributes:
        after: the head that the first of the entries follows; that of the entry which registered the release, or later.
        to: the head that the last entry gives, which is committed.
    """

    release_id: str
    after: "Head"
    to: "Head"
    numbers: Turns


class DrawnPartitions:
    """Partitions drawn, by release; any thread may use them."""

    def __init__(self) -> None:
        self._releases: OrderedDict[str, tuple[Head, Counter[tuple[str, int]]]] = OrderedDict()
        self._number = 0
        self._changing = threading.Lock()

    def get(
        self, release_id: str, turns: Iterable[tuple[str, int]]
    ) -> "tuple[Head, dict[tuple[str, int], int]] | None":
        """Return the numbers of some turns, and the head up to which the draws are counted; None if none are."""
        with self._changing:
            if release_id not in self._releases:
                return None
            self._releases.move_to_end(release_id)
            head, numbers = self._releases[release_id]
            return head, {turn: numbers[turn] for turn in turns}

    def add(self, drawn: DrawnSince) -> None:
        """Add what a release was drawn for since the head that was reached; leave it out where another one was."""
        with self._changing:
            reached, numbers = self._releases.pop(drawn.release_id, (drawn.after, Counter[tuple[str, int]]()))
            before = len(numbers)
            if reached == drawn.after:
                reached = drawn.to
                numbers.update(drawn.numbers)
            self._releases[drawn.release_id] = reached, numbers
            self._number += len(numbers) - before
            while self._number > _MOST and len(self._releases) > 1:
                _, (_, dropped) = self._releases.popitem(last=False)
                self._number -= len(dropped)
