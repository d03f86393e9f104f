"""Rests between the long writes of one principal, in which others write.

While a transaction writes, others wait: on SQLite all that write, and on PostgreSQL those of the same accounts. A
principal whose transaction took long may write again after many times as long, if other principals send requests.

The rest after a transaction of t seconds is t²/c seconds, and 100 t at most. A request that comes at any moment waits
longer than w seconds for the rest of a transaction with the probability (t - w) / (t + t²/c), which is below c/4w for
every t. So fewer than one in a hundred waits longer than 30 milliseconds, whether the transactions are long and rare,
or brief and frequent.

The rest is one of all accounts whose lines begin with the same account, their root: others may have made the windows
and reservations that a change of them reads there. Once accounts of a second root rest, all of the principal's accounts
rest, until only those of one root do.
"""

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_BRIEF = 0.01  # seconds of the processor that a transaction may take without a rest
_SCALE = 0.0012  # seconds: c above
_MOST_TIMES = 100  # the longest rest, as a multiple of a transaction: then one in a hundred requests meets one at all
_LENIENT = 2.0  # seconds of rests that a principal need not take at once: the processor's time varies by chance
_MOST_NAMES = 1000


class _Collector(threading.local):
    """The processor time that the garbage collector took in this thread.

    It walks what all requests left, in the thread that happens to allocate when it is due: no transaction's own work.
    """

    seconds = 0.0

    def __call__(self, phase: str, _: dict[str, Any]) -> None:
        """Count one collection, as a member of ``gc.callbacks``."""
        self.seconds += time.thread_time() * (-1 if phase == "start" else 1)


_collector = _Collector()
gc.callbacks.append(_collector)


def processor_seconds() -> float:
    """Return the seconds of the processor that the calling thread has used, without those of the garbage collector."""
    return time.thread_time() - _collector.seconds


def rest_after(seconds: float) -> float:
    """Return the seconds of rest after a transaction that took so long."""
    return seconds * min(_MOST_TIMES, seconds / _SCALE) if seconds > _BRIEF else 0.0


class _Rests(NamedTuple):
    """The ends of a principal's rests: of all of them, taken one after the other, and of those of each root.

    Attributes:
        by_root: by the root's id; None: those after changes of no account that exists, such as openings.
    """

    total: float
    by_root: dict[int | None, float]


_NONE = _Rests(0.0, {})


class WritingPace:
    """The moments at which principals may write again.

    Args:
        clock: monotonic, in seconds.
        used: returns the seconds of the processor that the calling thread has used. Times of the clock would include
            what the thread waits for.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[], float] = processor_seconds
    ) -> None:
        self._clock, self._used = clock, used
        self._rests: OrderedDict[str, _Rests] = OrderedDict()  # by principal
        self._mutex = threading.Lock()

    @contextmanager
    def timed(self, principal: str, root: int | None) -> Iterator[None]:
        """Count what the block takes as a transaction of a principal.

        Args:
            root: the id of the root of the account that it changes, as ``root_of`` returns it.
        """
        began = self._used()
        try:
            yield
        finally:
            rest = rest_after(self._used() - began)
            if rest:
                self._add(principal, root, rest)

    def may_rest(self, principal: str) -> bool:
        """Return whether a principal should rest before a change of some account."""
        with self._mutex:
            return self._rests.get(principal, _NONE).total - _LENIENT > self._clock()

    def rest_of(self, principal: str, root: int | None) -> float:
        """Return the seconds until a principal should write to accounts of a root again; 0 if it may write now."""
        with self._mutex:
            total, ends = self._rests.get(principal, _NONE)
            # Openings count for no second root: others may have made the windows that these read, too.
            longest = sorted(end for other, end in ends.items() if other is not None)
            everywhere = longest[-2] if len(longest) > 1 else 0.0
            end = min(max(ends.get(root, 0.0), everywhere), total - _LENIENT)
            return max(0.0, end - self._clock())

    def _add(self, principal: str, root: int | None, rest: float) -> None:
        with self._mutex:
            now = self._clock()
            total, before = self._rests.get(principal, _NONE)
            ends = {other: end for other, end in before.items() if end > now}
            self._rests[principal] = _Rests(max(total, now) + rest, ends | {root: ends.get(root, now) + rest})
            self._rests.move_to_end(principal)
            if len(self._rests) > _MOST_NAMES:
                self._rests.popitem(last=False)
