"""Limits on request bodies: bytes, shared memory for their content, and time to arrive."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http import problems
from service.api.http.disconnects import has_hung_up
from service.api.http.fair_places import FairPlaces
from service.api.http.memory_room import ROOM
from service.api.http.problems import Problem
from service.api.http.request_parsing import media_type
from service.api.identity.throttle import PAGE, SENDER
from service.errors import TooLarge, TooManyRequests, Unavailable

_LARGE = 1 << 18  # bytes of a body that waits for its principal's turn before it is read
_PART = 1 << 20  # bytes of a part of an answer
_LINGER = 1.0  # seconds for which the rest of a refused body is read and dropped
_RETRY = 10  # seconds that the client of a refused upload should wait


class Allowance:
    """A shared memory limit for bodies of one kind: the largest body, and the bytes that all may take at once.

    A slow body holds its memory for a long time. One principal may therefore hold half of the total, or one of the
    largest bodies where that is more. Bodies of up to ``small`` bytes do not count.

    Args:
        largest: bytes of one body.
        at_once: bytes of all bodies together, with their parsed content.
        small: bytes up to which a body does not count.
    """

    def __init__(self, largest: int, at_once: int, small: int = 0) -> None:
        self.largest, self.at_once, self.small = largest, at_once, small
        self.taken = 0  # bytes held by bodies that are being received, worked on or answered
        self.most = max(largest, at_once // 2)
        self._by: Counter[str] = Counter()
        self._mutex = threading.Lock()  # some requests measure their content in a thread

    def take(self, size: int, sender: str) -> bool:
        """Reserve so many more bytes, if the limits admit them; an empty sender has no share of its own."""
        with self._mutex:
            fits = self.taken + size <= self.at_once and (not sender or self._by[sender] + size <= self.most)
            if fits:
                self._add(size, sender)
        return fits

    def give_back(self, size: int, sender: str) -> None:
        """Release the bytes of an answered request."""
        with self._mutex:
            self._add(-size, sender)
            if not self._by[sender]:
                del self._by[sender]

    def _add(self, size: int, sender: str) -> None:
        self.taken += size
        self._by[sender] += size


class BodyLimits:
    """ASGI middleware that refuses bodies that are too large, too slow, or too many at once.

    One principal's large bodies are read and processed a few at a time while others send requests. The rest stay unread
    at the client, so the event loop stays free for small requests.

    A request reserves its Content-Length from the shared memory limit when its body is first read, so a request that is
    refused before reserves nothing. Bytes beyond that length are reserved as they arrive.

    Args:
        app: the application inside.
        paths: allowances of paths that are open without a key.
        allowances: allowances by media type.
        otherwise: the allowance of all other bodies.
        seconds: the time for a body to arrive.
        rate: bytes of a body for each second more.
        turns: the turns of principals at large bodies.
        open_seconds: the time for a body at one of ``paths``.
        shorter: smaller limits of some media types, in bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: Mapping[str, Allowance],
        allowances: Mapping[str, Allowance],
        otherwise: Allowance,
        seconds: float,
        rate: int,
        turns: FairPlaces,
        open_seconds: float = math.inf,
        shorter: Mapping[str, int] | None = None,
    ) -> None:
        self.app, self.paths, self.allowances, self.otherwise = app, paths, allowances, otherwise
        self.seconds, self.rate, self.open_seconds = seconds, rate, min(seconds, open_seconds)
        self.turns, self.shorter = turns, shorter or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body while it is read, and release its memory when it is answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        kind = media_type(scope)
        allowance = self.paths.get(scope["path"]) or self.allowances.get(kind, self.otherwise)
        largest = min(allowance.largest, self.shorter.get(kind, allowance.largest))
        seconds = self.open_seconds if scope["path"] in self.paths else self.seconds
        state = scope.setdefault("state", {})
        body = _Body(allowance, largest, scope, receive, send, seconds, self.rate, self.turns)
        state[ROOM] = body.reserve
        try:
            body.check_length(dict(scope["headers"]).get(b"content-length", b"0"))
            await self.app(scope, body.receive_part, body.send_answer)
        except _RefusedBody as refused:
            if not body.answered:
                body.refused = True
                await refused.answer(scope, receive, body.send_answer)
        finally:
            allowance.give_back(body.taken, body.sender)
            if body.has_turn:
                self.turns.leave(body.sender)
        await body.end_answer()


class _Body:
    """The body of one request: its progress and the bytes that it holds of its allowance."""

    def __init__(
        self,
        allowance: Allowance,
        largest: int,
        scope: Scope,
        receive: Receive,
        send: Send,
        seconds: float,
        rate: int,
        turns: FairPlaces,
    ) -> None:
        self.allowance, self.largest, self.path, self.scope = allowance, largest, scope["path"], scope
        self.receive, self.send = receive, send
        self.seconds, self.rate = seconds, rate
        self.size = self.taken = self.length = 0
        self.sender = ""
        self.started: float | None = None  # the time of the first read
        self.whole = self.refused = self.answered = self.left_open = self.has_turn = False
        self.turns = turns
        # a page sent it; the page may hold a turn while it waits for this request
        self.of_page = PAGE in scope["state"]

    def check_length(self, length: bytes) -> None:
        """Refuse a Content-Length that is too large."""
        if length.isdigit():
            self.length = int(length)
            self._check(self.length)

    async def receive_part(self) -> Message:
        """Return the next part, in time and within the allowance."""
        if self.whole:  # later calls wait for the end of the connection
            return await self.receive()
        if self.started is None:
            self.started = asyncio.get_running_loop().time()
            # the principal of a page is known by now: other bodies are not read before
            self.sender = sender_of(self.scope)
            await self._wait_for_turn()
            self._take(self.length)
        try:
            async with asyncio.timeout_at(self.started + self.seconds + self.size / self.rate):
                message = await self.receive()
        except TimeoutError:
            detail = f"expected the body within {self.seconds:g} s plus one second for every {self.rate} bytes"
            raise _RefusedBody(problems.problem("too_slow", detail, self.path)) from None
        self.size += len(message.get("body", b""))
        self._check(self.size)
        await self._wait_for_turn()
        self._take(self.size)
        self.whole = not message.get("more_body", False)
        if self.whole and self.has_turn and await has_hung_up(self.receive):
            return {"type": "http.disconnect"}
        return message

    def reserve(self, more: int) -> None:
        """Reserve memory for what the request makes the service hold beside its body, before it does.

        Args:
            more: bytes.

        Raises:
            TooLarge: the total is above the limit of one principal.
            Unavailable: the memory is in use by other requests.
        """
        if self.started is None:
            self.sender = sender_of(self.scope)  # there is no body, or it is never read
        whole = self.size + more
        if whole > self.allowance.most:
            raise TooLarge(f"expected a request whose content takes at most {self.allowance.most} bytes of memory")
        if not self._takes(whole):
            raise _memory_in_use()

    async def _wait_for_turn(self) -> None:
        """Wait until a large body may be read on; the wait does not count as the client's time."""
        if self.has_turn or self.of_page or not self.sender or max(self.length, self.size) <= _LARGE:
            return
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self.turns.enter(self.sender)
        except TooManyRequests as error:
            raise _RefusedBody(problems.of_error(error, self.path)) from None
        self.has_turn = True
        self.started = (self.started or began) + clock() - began

    async def send_answer(self, message: Message) -> None:
        """Pass the answer on, a large one in parts; release the memory when the client has all but the last part."""
        self.answered = True
        if self.refused or (self.started is not None and not self.whole):  # the rest of the body is not worked on
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif not message.get("more_body", False):
                self.left_open = True
                message = {**message, "more_body": True}
        content = message.get("body", b"")
        for at in range(0, len(content) - _PART, _PART):
            await self.send({"type": message["type"], "body": content[at : at + _PART], "more_body": True})
        if len(content) > _PART:
            message = {**message, "body": content[-((len(content) - 1) % _PART + 1) :]}
        await self.send(message)

    async def end_answer(self) -> None:
        """Close the connection of an answer that was sent before the body was read.

        The client would lose the answer if its data met a closed connection. So the rest is read first, for a moment.
        """
        if not self.left_open:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while (message := await self.receive())["type"] == "http.request" and message.get("more_body", False):
                    pass
        await self.send({"type": "http.response.body"})

    def _check(self, size: int) -> None:
        if size > self.largest:
            detail = f"expected a body of at most {self.largest} bytes"
            raise _RefusedBody(problems.problem("too_large", detail, self.path))

    def _take(self, size: int) -> None:
        if not self._takes(size):
            raise _RefusedBody(problems.of_error(_memory_in_use(), self.path))

    def _takes(self, size: int) -> bool:
        if size <= max(self.taken, self.allowance.small):
            return True
        fits = self.allowance.take(size - self.taken, self.sender)
        if fits:
            self.taken = size
        return fits


def _memory_in_use() -> Unavailable:
    return Unavailable("the memory for request bodies is in use by other requests", _RETRY)


def sender_of(scope: Scope) -> str:
    """Return the principal of a request; empty where it has shown no key."""
    state = scope.get("state", {})
    principal = state.get("principal")
    return str(state.get(SENDER, "") if principal is None else principal.name)


class _RefusedBody(Exception):
    def __init__(self, answer: Problem) -> None:
        super().__init__()
        self.answer = answer
