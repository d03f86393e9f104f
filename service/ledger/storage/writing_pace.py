"""Rests between the long writes of one principal, in which others write.

While a transaction writes, others wait: on SQLite all that write, and on PostgreSQL those of the same accounts. A
principal whose transaction took long may write again after many times as long, if other principals send requests.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BRIEF = 0.05  # seconds of the processor that a transaction may take without a rest
_TIMES = 30  # the rest, as a multiple of a long transaction
_MOST_NAMES = 1000


def rest_after(seconds: float) -> float:
    """Return the seconds of rest after a transaction that took so long."""
    return _TIMES * seconds if seconds > _BRIEF else 0.0


class WritingPace:
    """The moments at which principals may write again.

    Args:
        clock: monotonic, in seconds.
        used: returns the seconds of the processor that the calling thread has used. Times of the clock would include
            what the thread waits for.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._used = clock, used
        self._until: OrderedDict[str, float] = OrderedDict()
        self._mutex = threading.Lock()

    @contextmanager
    def timed(self, principal: str) -> Iterator[None]:
        """Count what the block takes as a transaction of a principal."""
        began = self._used()
        try:
            yield
        finally:
            rest = rest_after(self._used() - began)
            if rest:
                self._add(principal, rest)

    def rest_of(self, principal: str) -> float:
        """Return the seconds until a principal should write again; 0 if it may write now."""
        return max(0.0, self._until.get(principal, 0.0) - self._clock())

    def _add(self, principal: str, rest: float) -> None:
        with self._mutex:
            now = self._clock()
            self._until[principal] = max(now, self._until.get(principal, now)) + rest
            self._until.move_to_end(principal)
            if len(self._until) > _MOST_NAMES:
                self._until.popitem(last=False)
