"""Connections: how many there may be, and how long a client may keep one waiting.

What uvicorn has no limits for: headers that never end, answers that nobody takes, connections without number.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Container
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api import problems
from service.api.body_limits import sender_of
from service.api.middleware import BEYOND_LIMIT
from service.api.throttle import Meter, read_rate

_REFUSED_AT_ONCE = 100  # connections, before others are heard
_FORGET = struct.pack("ii", 1, 0)  # closed at once, and not remembered for a minute


class Limits(NamedTuple):
    """How many connections there may be, how many of one address, how fast, and seconds for what a client does.

    The seconds are for the headers of a request and for taking some of an answer. A proxy's connections are of many.
    """

    connections: int
    of_address: int
    header_seconds: float
    answer_seconds: float
    proxies: Container[str] = ()
    rate_of_address: str = "off"


class Listener(socket.socket):
    """A socket that is listened at: connections of an address that come too fast are closed as they are accepted.

    Without an answer: before anything of HTTP is made for them it takes a hundredth of the time.
    """

    refused = 0

    def __init__(self, bound: socket.socket, limits: Limits) -> None:
        family, kind, protocol = bound.family, bound.type, bound.proto
        super().__init__(family, kind, protocol, bound.detach())
        self._proxies = limits.proxies
        self._meter = None if limits.rate_of_address == "off" else Meter(read_rate(limits.rate_of_address))

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may be."""
        for _ in range(_REFUSED_AT_ONCE):
            connection, address = super().accept()
            if self._admits(str(address[0])):
                return connection, address
            self.refused += 1
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
            connection.close()
        raise BlockingIOError  # what is asked meanwhile comes first

    def _admits(self, address: str) -> bool:
        if self._meter is None or address in self._proxies:
            return True
        if self._meter.wait(address):
            return False
        self._meter.count(address)
        return True


def limited(given: Limits) -> type[H11Protocol]:
    """The protocol for uvicorn's configuration."""

    class Limited(Connection):
        limits, crowd = given, Crowd(given)

    return Limited


class Crowd:
    """All connections of a server. Who comes when there are too many takes the place of one that is idle."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: dict[Connection, str] = {}  # with their addresses, who was idle longest first
        self._by: Counter[str] = Counter()

    def enter(self, new: "Connection", address: str) -> bool:
        """Whether there is room for one more, made by closing an idle one if need be."""
        whole = len(self._all) >= self._limits.connections
        own = address not in self._limits.proxies and self._by[address] >= self._limits.of_address
        fits = not (whole or own) or self._end_idle(address if own else None)
        self._all[new] = address
        self._by[address] += 1
        return fits

    def leave(self, connection: "Connection") -> None:
        """It has ended, or will when its client has taken what is left."""
        address = self._all.pop(connection, None)
        if address is not None:
            self._by[address] -= 1
            if not self._by[address]:
                del self._by[address]

    def answered(self, connection: "Connection") -> None:
        """It has done something: those that have not go first."""
        if connection in self._all:
            self._all[connection] = self._all.pop(connection)

    def _end_idle(self, of: str | None) -> bool:
        """Close the oldest idle connection. A newcomer whose request is on its way is the youngest of all."""
        idle = (one for one, address in self._all.items() if of in (None, address) and one.is_idle)
        chosen = next(idle, None)
        if chosen is not None:
            chosen.end()
        return chosen is not None


class Connection(H11Protocol):
    """HTTP/1.1 on one connection."""

    limits: Limits
    crowd: Crowd

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._headers_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None

    @property
    def has_asked(self) -> bool:
        """Whether a request has begun to come on it."""
        return self.cycle is not None  # before its first request there is none, whatever uvicorn declares

    @property
    def is_idle(self) -> bool:
        """Whether no request is worked on: none has come, or one whose body is waited for is nobody's with a key."""
        if not self.has_asked or self.cycle.response_complete:
            return True
        return self.cycle.more_body and not self.cycle.response_started and not sender_of(dict(self.cycle.scope))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Expect headers."""
        super().connection_made(transport)
        if not self.crowd.enter(self, self.client[0] if self.client else ""):
            self.app_state = {**self.app_state, BEYOND_LIMIT: True}
        self._expect_headers()

    def end(self) -> None:
        """Close it for another one."""
        self.crowd.leave(self)
        self.transport.close()
        self._end()

    def on_response_complete(self) -> None:
        """An answer has gone out."""
        self.crowd.answered(self)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Read on; what is between two requests and no whole request has its time."""
        super().data_received(data)
        if self.has_asked and not self.cycle.response_complete:
            self._stop(self._headers_due)
            self._headers_due = None
        elif self._headers_due is None and self.timeout_keep_alive_task is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self.crowd.leave(self)
        self._stop(self._headers_due)
        self._stop(self._answer_due)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client is slower than the answer."""
        super().pause_writing()
        self._answer_due = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken some."""
        super().resume_writing()
        self._stop(self._answer_due)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while."""
        super().timeout_keep_alive_handler()
        self._end()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, as a problem like all others."""
        self._refuse("bad_request", msg)

    def _expect_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.header_seconds, self._headers_are_late)

    def _headers_are_late(self) -> None:
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self._refuse("too_slow", f"expected the headers within {self.limits.header_seconds:g} s")
        else:  # the rest of a body that nobody wants
            self.transport.abort()

    def _refuse(self, code: str, detail: str) -> None:
        answer = problems.problem(code, detail, "/")
        headers = [*answer.raw_headers, (b"connection", b"close"), (b"x-content-type-options", b"nosniff")]
        events: list[h11.Event] = [
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer is under way, and this is none
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._end()

    def _end(self) -> None:
        """See to it that a connection which was closed ends, although the client may take none of what is left."""
        if self.transport.get_write_buffer_size():
            self._stop(self._answer_due)
            self._answer_due = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
