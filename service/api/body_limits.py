"""What a body may take: bytes, memory beside all other bodies with what it unfolds to, and time to come in."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import problems
from service.api.body import media_type
from service.api.fair import Fair
from service.api.problems import Problem
from service.api.room import ROOM
from service.api.throttle import PAGE
from service.errors import TooLarge, TooManyRequests, Unavailable

SENDER = "sender"  # in the state of a request without a key of its own: the principal whose body it is


_LARGE = 1 << 18  # bytes of a body that waits for its principal's turn before it is read
_PART = 1 << 20  # bytes of an answer that are passed on at a time
_RETRY = 10  # seconds after which an upload that found no room may come again


class Allowance:
    """How large a body may be, and how many bytes of memory such bodies may take at once with what they unfold to.

    A slow body holds its room for long. So one principal may hold half of it, or one of the largest bodies where that
    is more, and what needs up to ``small`` bytes takes none.
    """

    def __init__(self, largest: int, at_once: int, small: int = 0) -> None:
        self.largest, self.at_once, self.small = largest, at_once, small
        self.taken = 0  # by bodies that are being received, worked on or answered now
        self.most = max(largest, at_once // 2)
        self._by: Counter[str] = Counter()
        self._mutex = threading.Lock()  # some find out in a thread what they unfold to

    def take(self, size: int, sender: str) -> bool:
        """Take room for so many bytes more, if there is; without a sender, of the room for all."""
        with self._mutex:
            fits = self.taken + size <= self.at_once and (not sender or self._by[sender] + size <= self.most)
            if fits:
                self._add(size, sender)
        return fits

    def give_back(self, size: int, sender: str) -> None:
        """The body is answered."""
        with self._mutex:
            self._add(-size, sender)
            if not self._by[sender]:
                del self._by[sender]

    def _add(self, size: int, sender: str) -> None:
        self.taken += size
        self._by[sender] += size


class BodyLimits:
    """ASGI middleware: a body that is too large, too slow, or one too many at once is answered and not read on.

    One principal's large bodies are read and worked on a few at a time while others ask. The rest waits unread at the
    client, so that the event loop is left to small requests.

    Announced or not: a length that was announced is taken when somebody begins to read, so that who is not let in takes
    no room; whatever comes beyond it is taken as it comes. A body has ``seconds`` to come in, and a second more for
    every ``rate`` bytes of it. The bodies at some paths, which are open to all, have an allowance of their own and
    ``open_seconds``; others have the allowance of their type. Bodies of some types are bounded by ``shorter``, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: Mapping[str, Allowance],
        allowances: Mapping[str, Allowance],
        otherwise: Allowance,
        seconds: float,
        rate: int,
        turns: Fair,
        open_seconds: float = math.inf,
        shorter: Mapping[str, int] | None = None,
    ) -> None:
        self.app, self.paths, self.allowances, self.otherwise = app, paths, allowances, otherwise
        self.seconds, self.rate, self.open_seconds = seconds, rate, min(seconds, open_seconds)
        self.turns, self.shorter = turns, shorter or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body while it is read, and give its room back when it is answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        kind = media_type(scope)
        allowance = self.paths.get(scope["path"]) or self.allowances.get(kind, self.otherwise)
        largest = min(allowance.largest, self.shorter.get(kind, allowance.largest))
        seconds = self.open_seconds if scope["path"] in self.paths else self.seconds
        state = scope.setdefault("state", {})
        body = _Body(allowance, largest, scope, receive, send, seconds, self.rate, self.turns)
        state[ROOM] = body.unfolds
        try:
            body.announced(dict(scope["headers"]).get(b"content-length", b"0"))
            await self.app(scope, body.received, body.sent)
        except _Refused as refused:
            if not body.answered:
                refused.answer.headers["Connection"] = "close"  # the rest of the body is not read
                await refused.answer(scope, receive, send)
        finally:
            allowance.give_back(body.taken, body.sender)
            if body.has_turn:
                self.turns.leave(body.sender)


class _Body:
    """The body of one request: what came of it, and what it took of its allowance."""

    def __init__(
        self,
        allowance: Allowance,
        largest: int,
        scope: Scope,
        receive: Receive,
        send: Send,
        seconds: float,
        rate: int,
        turns: Fair,
    ) -> None:
        self.allowance, self.largest, self.path, self.scope = allowance, largest, scope["path"], scope
        self.receive, self.send = receive, send
        self.seconds, self.rate = seconds, rate
        self.size = self.taken = self.length = 0
        self.sender = ""
        self.started: float | None = None  # when its first part was waited for
        self.whole = self.answered = self.has_turn = False
        self.turns = turns
        self.of_page = PAGE in scope["state"]  # a page sent it, which may have its turn and waits for this

    def announced(self, length: bytes) -> None:
        """Refuse a Content-Length that is too large."""
        if length.isdigit():
            self.length = int(length)
            self._check(self.length)

    async def received(self) -> Message:
        """The next part, in time and within the allowance."""
        if self.whole:  # from here on it is waited for the end of the connection
            return await self.receive()
        if self.started is None:
            self.started = asyncio.get_running_loop().time()
            self.sender = sender_of(self.scope)  # of a page it is known by now, as nothing is read of others
            await self._wait_for_turn()
            self._take(self.length)
        try:
            async with asyncio.timeout_at(self.started + self.seconds + self.size / self.rate):
                message = await self.receive()
        except TimeoutError:
            detail = f"expected the body within {self.seconds:g} s and a second for every {self.rate} bytes"
            raise _Refused(problems.problem("too_slow", detail, self.path)) from None
        self.size += len(message.get("body", b""))
        self._check(self.size)
        await self._wait_for_turn()
        self._take(self.size)
        self.whole = not message.get("more_body", False)
        return message

    def unfolds(self, more: int) -> None:
        """Take room for what the request makes the service hold beside its body, before it does.

        Raises:
            TooLarge: one principal may not take so much in all.
            Unavailable: there is no room for it now.
        """
        if self.started is None:
            self.sender = sender_of(self.scope)  # there is no body, or nobody reads it
        whole = self.size + more
        if whole > self.allowance.most:
            raise TooLarge(f"expected what takes at most {self.allowance.most} bytes of memory when it is unfolded")
        if not self._takes(whole):
            raise _full()

    async def _wait_for_turn(self) -> None:
        """Wait until a large body may be read on; the time is not counted as the client's."""
        if self.has_turn or self.of_page or not self.sender or max(self.length, self.size) <= _LARGE:
            return
        clock = asyncio.get_running_loop().time
        asked = clock()
        try:
            await self.turns.enter(self.sender)
        except TooManyRequests as error:
            raise _Refused(problems.of_error(error, self.path)) from None
        self.has_turn = True
        self.started = (self.started or asked) + clock() - asked

    async def sent(self, message: Message) -> None:
        """Pass the answer on, a large one in parts: room is given back when the client has taken all but the last."""
        self.answered = True
        if message["type"] == "http.response.start" and self.started is not None and not self.whole:
            message["headers"] = [*message["headers"], (b"connection", b"close")]  # the rest of the body is not read
        content = message.get("body", b"")
        for at in range(0, len(content) - _PART, _PART):
            await self.send({"type": message["type"], "body": content[at : at + _PART], "more_body": True})
        if len(content) > _PART:
            message = {**message, "body": content[-((len(content) - 1) % _PART + 1) :]}
        await self.send(message)

    def _check(self, size: int) -> None:
        if size > self.largest:
            detail = f"expected a body of at most {self.largest} bytes"
            raise _Refused(problems.problem("too_large", detail, self.path))

    def _take(self, size: int) -> None:
        if not self._takes(size):
            raise _Refused(problems.of_error(_full(), self.path))

    def _takes(self, size: int) -> bool:
        if size <= max(self.taken, self.allowance.small):
            return True
        fits = self.allowance.take(size - self.taken, self.sender)
        if fits:
            self.taken = size
        return fits


def _full() -> Unavailable:
    return Unavailable("there is no room for this body beside those of other requests now", _RETRY)


def sender_of(scope: Scope) -> str:
    """The principal whose request it is; empty where nobody has shown a key."""
    state = scope.get("state", {})
    principal = state.get("principal")
    return str(state.get(SENDER, "") if principal is None else principal.name)


class _Refused(Exception):
    def __init__(self, answer: Problem) -> None:
        super().__init__()
        self.answer = answer
