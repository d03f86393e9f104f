"""Places to work in, handed out to principals in turn, so that nobody's requests wait for all of another's."""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from service.errors import TooManyRequests

_RECENT = 10.0  # seconds for which somebody who asked is counted as being there
_MOST_NAMES = 1000
_RETRY = 5  # seconds after which who was one too many may come again

_Place = asyncio.Future[None]


class Fair:
    """A number of places, of which one principal has a share while others are there.

    Whoever waits is let in when his principal's turn comes: principals take turns, and each one's requests keep their
    order.

    Args:
        places: in all.
        share: of one principal while another has asked within the last seconds.
        alone: of one principal while nobody else has.
        waiting: how many requests of one principal may wait.
        clock: monotonic, in seconds.
        beside: other places, which count as these do for who has asked within the last seconds.
    """

    def __init__(
        self,
        places: int,
        share: int,
        alone: int,
        waiting: int,
        clock: Callable[[], float] = time.monotonic,
        beside: "Fair | None" = None,
    ) -> None:
        self._free, self._share, self._alone, self._most = places, share, alone, waiting
        self._clock = clock
        self._busy: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Place]] = OrderedDict()  # whose turn is next comes first
        self._seen: OrderedDict[str, float] = OrderedDict()  # when each was last here, the latest last
        self._mutex = threading.Lock()  # an application may be asked from several event loops
        if beside is not None:
            self._seen, self._mutex = beside._seen, beside._mutex
        self.refused = 0

    @property
    def waiting(self) -> int:
        """How many wait now."""
        with self._mutex:
            return sum(map(len, self._queues.values()))

    @property
    def busy(self) -> int:
        """How many places are taken now."""
        with self._mutex:
            return self._busy.total()

    @asynccontextmanager
    async def place(self, principal: str, *, begun: bool = False) -> AsyncIterator[None]:
        """Hold a place, once there is one; a request that had one before has ``begun``, and is not one too many.

        Raises:
            TooManyRequests: too many of the principal's requests wait already.
        """
        await self.enter(principal, begun=begun)
        try:
            yield
        finally:
            self.leave(principal)

    def leave(self, principal: str) -> None:
        """Give a place back."""
        with self._mutex:
            self._leave(principal)

    async def enter(self, principal: str, *, begun: bool = False) -> None:
        """Take a place, once there is one.

        Raises:
            TooManyRequests: too many of the principal's requests wait already.
        """
        with self._mutex:
            self._note(principal)
            if principal not in self._queues and self._has_room(principal):
                self._take(principal)
                return
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
                else:  # it was let in at the same moment
                    self._leave(principal)
            raise

    def _note(self, principal: str) -> None:
        self._seen[principal] = self._clock()
        self._seen.move_to_end(principal)
        if len(self._seen) > _MOST_NAMES:
            self._seen.popitem(last=False)

    def _has_room(self, principal: str) -> bool:
        others = next((at for name, at in reversed(self._seen.items()) if name != principal), None)
        is_alone = others is None or self._clock() - others > _RECENT
        return self._free > 0 and self._busy[principal] < (self._alone if is_alone else self._share)

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
                    break  # the others' turn

    def _forget(self, principal: str, place: _Place) -> None:
        queue = self._queues[principal]
        queue.remove(place)
        if not queue:
            del self._queues[principal]


def _let_in(place: _Place) -> None:
    if not place.done():  # cancelled; who waited gives the place back himself
        place.set_result(None)
