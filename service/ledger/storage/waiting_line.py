"""A fair queue: places are handed out in the order of the requests, which a database's own locks do not promise."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from service.errors import Unavailable


class Waiter:
    """A waiting writer's turn, which the holder of a place may take over meanwhile.

    Attributes:
        work: the work that the other would have to do for this writer.
        outcome: the result, once another writer did the work.
    """

    def __init__(self, work: Callable[..., Any] = lambda: None) -> None:
        self.work = work
        self.outcome: Future[Any] | None = None
        self.called = threading.Event()  # set once this turn has a place or an outcome

    def answer(self, outcome: Future[Any]) -> None:
        """Give the waiting writer the outcome of its work, which is done."""
        self.outcome = outcome
        self.called.set()


class WaitingLine:
    """A number of places, handed out first come, first served, so that no writer is overtaken for ever."""

    def __init__(self, places: int) -> None:
        self._mutex = threading.Lock()
        self._free = places  # above 0 only while no writer waits
        self._waiting: deque[Waiter] = deque()

    @property
    def waiting(self) -> int:
        """Return the number of writers in the queue."""
        return len(self._waiting)

    @contextmanager
    def place(self, deadline: float, turn: Waiter | None = None) -> Iterator[None]:
        """Hold a place during the block, or none where the turn already has an outcome.

        Raises:
            Unavailable: no place became free before ``deadline`` (of the monotonic clock, seconds).
        """
        turn = turn or Waiter()
        self._enter(turn, deadline)
        try:
            yield
        finally:
            if turn.outcome is None:
                self._leave()

    def take_over(self) -> Waiter | None:
        """Return the first waiting turn; its taker has a place, and must answer the turn or give it back."""
        with self._mutex:
            return self._waiting.popleft() if self._waiting else None

    def give_back(self, turns: Sequence[Waiter]) -> None:
        """Put turns that were taken over back at the front of the queue, in their order."""
        with self._mutex:
            self._waiting.extendleft(reversed(turns))

    def _enter(self, turn: Waiter, deadline: float) -> None:
        with self._mutex:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(turn)
        if turn.called.wait(deadline - time.monotonic()):
            return
        with self._mutex:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise Unavailable("too many transactions are waiting for the ledger")
        turn.called.wait()  # called since the timeout, or soon: work in another's group must not be abandoned

    def _leave(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().called.set()
            else:
                self._free += 1
