"""Places that are handed out in the order in which they were asked for; what waits inside a database is not."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Unavailable


class Queue:
    """A number of places, handed out first come, first served, so that nobody is overtaken for ever."""

    def __init__(self, places: int) -> None:
        self._mutex = threading.Lock()
        self._free = places  # above 0 only while nobody waits
        self._waiting: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many are in the queue now."""
        return len(self._waiting)

    @contextmanager
    def place(self, deadline: float) -> Iterator[None]:
        """Hold a place.

        Raises:
            Unavailable: none became free before ``deadline`` (of the monotonic clock, seconds).
        """
        self._enter(deadline)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, deadline: float) -> None:
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(deadline - time.monotonic()):
            return
        with self._mutex:
            if turn.is_set():  # handed over between the timeout and here
                return
            self._waiting.remove(turn)
        raise Unavailable("too many transactions are waiting for the ledger")

    def _leave(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
