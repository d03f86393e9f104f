"""Journals that clients follow: how many do so at once, and when there are new entries.

One statement a second finds the heads of all followed journals, however many clients follow them. It finds entries that
other processes wrote too. A client that waits holds no thread and no connection to the database.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakValueDictionary

from anyio import to_thread

from service.errors import ServiceError, TooManyRequests, Unavailable
from service.ledger.accounts.accounts import head_numbers
from service.ledger.storage.database import Database

OF_PRINCIPAL = 16  # streams of one principal in this process
_PAUSE = 1.0  # seconds between two looks at the heads
_RETRY = 30  # seconds after which a refused client should ask again


class FollowedJournals:
    """The streams of journals that this process sends, all in one event loop.

    Args:
        database: the ledger.
        most: streams of all principals; each holds a connection for as long as its client likes.
    """

    def __init__(self, database: Database, most: int) -> None:
        self._database, self._most = database, most
        self._streams: Counter[str] = Counter()  # by principal
        self._accounts: Counter[str] = Counter()  # waiting streams by account
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # by principal
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._heads: dict[str, int] = {}
        self.ending = False

    @contextmanager
    def stream(self, principal: str) -> Iterator[None]:
        """Count a stream of a principal for as long as the block lasts.

        Raises:
            TooManyRequests: the principal, or all together, have as many as one process sends.
            Unavailable: the server stops.
        """
        if self.ending:
            raise Unavailable("the process is shutting down: use another one")
        if self._streams[principal] >= OF_PRINCIPAL:
            detail = f"the principal follows journals already: expected at most {OF_PRINCIPAL} streams at once"
            raise TooManyRequests(detail, _RETRY)
        if self._streams.total() >= self._most:
            raise TooManyRequests(f"expected at most {self._most} streams of journals at once", _RETRY)
        self._streams[principal] += 1
        try:
            yield
        finally:
            self._streams[principal] -= 1
            if not self._streams[principal]:
                del self._streams[principal]

    def turn(self, principal: str) -> asyncio.Lock:
        """Return the lock in which the streams of a principal read, and send long entries, one after the other."""
        return self._turns.setdefault(principal, asyncio.Lock())

    async def wait(self, account: str, seq: int, seconds: float) -> bool:
        """Wait until an account's journal has an entry after this number, for so many seconds at most.

        Returns:
            Whether it has; False also when the server stops.
        """
        self._accounts[account] += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not self.ending and self._heads.get(account, 0) <= seq:
                        await self._news.wait()
        finally:
            self._accounts[account] -= 1
            if not self._accounts[account]:
                del self._accounts[account]
        return self._heads.get(account, 0) > seq

    async def rest(self, seconds: float) -> None:
        """Wait so many seconds, or until the server stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ending:
                    await self._news.wait()

    def end(self) -> None:
        """End all streams, because the server stops; called in the event loop."""
        self.ending = True
        self._tell()

    async def _look(self) -> None:
        """Look at the heads until nobody waits any more."""
        while self._accounts and not self.ending:
            with suppress(ServiceError):  # each stream finds out by itself that the database does not answer
                self._heads = await to_thread.run_sync(self._read_heads, list(self._accounts))
                self._tell()
            await asyncio.sleep(_PAUSE)
        self._heads = {}

    def _read_heads(self, names: list[str]) -> dict[str, int]:
        with self._database.read() as connection:
            return head_numbers(connection, names)

    def _tell(self) -> None:
        """Wake all who wait, with an event of their own: those who wait again do so for the next one."""
        self._news, told = asyncio.Event(), self._news
        told.set()
