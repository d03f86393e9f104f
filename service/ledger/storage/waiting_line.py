"""Places that are handed out in the order in which they were asked for; what waits inside a database is not."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from service.errors import Unavailable


class Turn:
    """Somebody's turn, which whoever has a place may take over while he waits.

    Attributes:
        work: what the other would have to do for him.
        outcome: what came of it, once another did it.
    """

    def __init__(self, work: Callable[..., Any] = lambda: None) -> None:
        self.work = work
        self.outcome: Future[Any] | None = None
        self.called = threading.Event()  # he has a place, or an outcome

    def answer(self, outcome: Future[Any]) -> None:
        """Tell him what came of his work, which is done."""
        self.outcome = outcome
        self.called.set()


class Queue:
    """A number of places, handed out first come, first served, so that nobody is overtaken for ever."""

    def __init__(self, places: int) -> None:
        self._mutex = threading.Lock()
        self._free = places  # above 0 only while nobody waits
        self._waiting: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """How many are in the queue now."""
        return len(self._waiting)

    @contextmanager
    def place(self, deadline: float, turn: Turn | None = None) -> Iterator[None]:
        """Hold a place; or none, where the turn has an outcome already.

        Raises:
            Unavailable: none became free before ``deadline`` (of the monotonic clock, seconds).
        """
        turn = turn or Turn()
        self._enter(turn, deadline)
        try:
            yield
        finally:
            if turn.outcome is None:
                self._leave()

    def take_over(self) -> Turn | None:
        """The first turn of those that wait; whoever takes it has a place, and answers it or gives it back."""
        with self._mutex:
            return self._waiting.popleft() if self._waiting else None

    def give_back(self, turns: Sequence[Turn]) -> None:
        """Let turns that were taken over wait again, in this order and before all others."""
        with self._mutex:
            self._waiting.extendleft(reversed(turns))

    def _enter(self, turn: Turn, deadline: float) -> None:
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
        turn.called.wait()  # between the timeout and here, or soon: what another does for him may not be given up

    def _leave(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().called.set()
            else:
                self._free += 1
