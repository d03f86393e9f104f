"""Digests of the entries that this process walked along, so that a walk need not be repeated."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.ledger.storage.newest_heads import KnownHead

_MOST = 2_000_000  # digests of all journals together, each of 8 bytes; the journals that were used last keep theirs


@dataclass(frozen=True, slots=True)
class WalkedJournal:
    """The entries from one head of a journal to another, by digests of what their texts say that they are about.

    Attributes:
        first: the head that the first entry follows.
        last: the head that the last entry gives.
        digests: one of each entry, in the order of their numbers.
    """

    first: KnownHead
    last: KnownHead
    digests: NDArray[np.uint64]

    def numbers(self, digest: int, after: int) -> list[int]:
        """Return the numbers of the entries after one that have a digest, in ascending order."""
        skipped = after - self.first.seq
        found = np.flatnonzero(self.digests[skipped:] == digest)
        return [after + 1 + place for place in found.tolist()]


class WalkedJournals:
    """Walked journals by the account's name; any thread may use them."""

    def __init__(self) -> None:
        self._journals: OrderedDict[str, WalkedJournal] = OrderedDict()
        self._number = 0
        self._changing = threading.Lock()

    def get(self, account: str) -> WalkedJournal | None:
        """Return the walked part of an account's journal; None if there is none."""
        with self._changing:
            if account in self._journals:
                self._journals.move_to_end(account)
            return self._journals.get(account)

    def keep(self, walked: WalkedJournal) -> None:
        """Keep the walked part of a journal in place of an earlier one; one up to a later head stays."""
        with self._changing:
            earlier = self._journals.get(walked.first.account)
            if earlier is not None and earlier.last.seq > walked.last.seq:
                return
            self._drop(walked.first.account)
            self._journals[walked.first.account] = walked
            self._number += len(walked.digests)
            while self._number > _MOST:
                self._drop(next(iter(self._journals)))

    def _drop(self, account: str) -> None:
        dropped = self._journals.pop(account, None)
        if dropped is not None:
            self._number -= len(dropped.digests)
