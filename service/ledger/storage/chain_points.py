"""Entries of the journals that this process committed, or linked with a known head by the texts between them.

They stand at equal distances. So an old entry is linked with the head by the few texts up to the next of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from service.ledger.storage.newest_heads import KnownHead

_APART = 32  # entries from one point to the next, each with a text of up to some mebibytes
_MOST = 200_000  # points of all journals together; those of the journals that were used last are kept


class ChainPoints:
    """Linked entries by the account's name; any thread may use them.

    A journal only grows, so an entry that was linked with one of its heads is linked with every later one.
    """

    def __init__(self) -> None:
        self._hashes: OrderedDict[str, dict[int, str]] = OrderedDict()  # by the entry's number
        self._number = 0
        self._changing = threading.Lock()

    def next(self, account: str, seq: int, last_seq: int) -> KnownHead | None:
        """Return the first point from one entry's number to another's; None if there is none."""
        with self._changing:
            hashes = self._hashes.get(account, {})
            for number in range(-(-seq // _APART) * _APART, last_seq + 1, _APART):
                if number in hashes:
                    return KnownHead(account, number, hashes[number])
        return None

    def add(self, linked: Iterable[KnownHead]) -> None:
        """Keep those of some linked entries that are points."""
        points = [head for head in linked if is_point(head.seq)]
        if not points:
            return
        with self._changing:
            for head in points:
                hashes = self._hashes.setdefault(head.account, {})
                self._hashes.move_to_end(head.account)
                self._number += head.seq not in hashes
                hashes[head.seq] = head.hash
            while self._number > _MOST and len(self._hashes) > 1:
                _, dropped = self._hashes.popitem(last=False)
                self._number -= len(dropped)


def is_point(seq: int) -> bool:
    """Return whether a point stands at an entry's number."""
    return seq % _APART == 0
