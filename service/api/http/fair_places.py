"""Fair shares of working places: principals take turns, so one principal's requests never delay all others."""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from service.errors import TooManyRequests

_RECENT = 10.0  # seconds after its last request for which a principal counts as present
_MOST_NAMES = 1000
_RETRY = 5  # seconds after which a refused request should be repeated

_Place = asyncio.Future[None]


class FairPlaces:
    """A number of places, of which one principal has only a share while others are present.

    Principals take turns at free places. Each principal's requests keep their order.

    Args:
        places: the total.
        share: of one principal while another has sent a request within the last seconds.
        alone: of one principal otherwise.
        waiting: the number of requests of one principal that may wait.
        clock: monotonic, in seconds.
        beside: other places; principals that are present there count as present here.
    """

    def __init__(
        self,
        places: int,
        share: int,
        alone: int,
        waiting: int,
        clock: Callable[[], float] = time.monotonic,
        beside: "FairPlaces | None" = None,
    ) -> None:
        self._free, self._share, self._alone, self._most = places, share, alone, waiting
        self._clock = clock
        self._busy: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Place]] = OrderedDict()  # the principal with the next turn comes first
        # the time of each principal's last request, the latest last
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._mutex = threading.Lock()  # an application may run in several event loops
        if beside is not None:
            self._seen, self._mutex = beside._seen, beside._mutex
        self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of requests that wait now."""
        with self._mutex:
            return sum(map(len, self._queues.values()))

    @property
    def busy(self) -> int:
        """The number of places that are taken now."""
        with self._mutex:
            return self._busy.total()

    def is_alone(self, principal: str) -> bool:
        """Return whether no other principal has sent a request within the last seconds."""
        with self._mutex:
            return self._is_alone(principal)

    @asynccontextmanager
    async def place(self, principal: str, *, begun: bool = False) -> AsyncIterator[bool]:
        """Hold a place, once one is free.

        Args:
            principal: the caller.
            begun: the request held a place before, so it may wait whatever the limit.

        Yields:
            Whether the request had to wait.

        Raises:
            TooManyRequests: too many of the principal's requests wait already.
        """
        waited = await self.enter(principal, begun=begun)
        try:
            yield waited
        finally:
            self.leave(principal)

    def leave(self, principal: str) -> None:
        """Give a place back."""
        with self._mutex:
            self._leave(principal)

    async def enter(self, principal: str, *, begun: bool = False) -> bool:
        """Take a place, once one is free; the arguments are those of ``place``.

        Returns:
            Whether the request had to wait.

        Raises:
            TooManyRequests: too many of the principal's requests wait already.
        """
        with self._mutex:
            self._mark_present(principal)
            if principal not in self._queues and self._has_room(principal):
                self._take(principal)
                return False
            queue = self._queues.get(principal, deque[_Place]())
            if len(queue) >= self._most and not begun:
                self.refused += 1
                detail = f"too many requests of one principal wait: expected at most {self._most}"
                raise TooManyRequests(detail, _RETRY)
            place: _Place = asyncio.get_running_loop().create_future()
            queue.append(place)
            self._queues[principal] = queue
        try:
            await place
        except asyncio.CancelledError:
            with self._mutex:
                if place in self._queues.get(principal, ()):
                    self._forget(principal, place)
                else:  # it received its place at the same moment
                    self._leave(principal)
            raise
        return True

    def _mark_present(self, principal: str) -> None:
        self._seen[principal] = self._clock()
        self._seen.move_to_end(principal)
        if len(self._seen) > _MOST_NAMES:
            self._seen.popitem(last=False)

    def _has_room(self, principal: str) -> bool:
        return self._free > 0 and self._busy[principal] < (self._alone if self._is_alone(principal) else self._share)

    def _is_alone(self, principal: str) -> bool:
        others = next((at for name, at in reversed(self._seen.items()) if name != principal), None)
        return others is None or self._clock() - others > _RECENT

    def _take(self, principal: str) -> None:
        self._free -= 1
        self._busy[principal] += 1

    def _leave(self, principal: str) -> None:
        self._free += 1
        self._busy[principal] -= 1
        if not self._busy[principal]:
            del self._busy[principal]
        for waiting in list(self._queues):
            while waiting in self._queues and self._has_room(waiting):
                place = self._queues[waiting][0]
                self._forget(waiting, place)
                self._take(waiting)
                place.get_loop().call_soon_threadsafe(_let_in, place)
                if waiting in self._queues:
                    self._queues.move_to_end(waiting)
                    break  # it is another principal's turn

    def _forget(self, principal: str, place: _Place) -> None:
        queue = self._queues[principal]
        queue.remove(place)
        if not queue:
            del self._queues[principal]


def _let_in(place: _Place) -> None:
    if not place.done():  # a cancelled waiter gives the place back itself
        place.set_result(None)
