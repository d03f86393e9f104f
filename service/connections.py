"""Limits on connections: their number, and the time that a client may keep one waiting.

uvicorn has no limits on headers that never end, answers that are never read, and the number of connections.
"""

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Container
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.http import problems
from service.api.http.body_limits import sender_of
from service.api.http.middleware import BEYOND_LIMIT
from service.api.identity.throttle import Meter, read_rate

_REFUSING = 0.001  # seconds in which connections are refused in a row, before other events are served
_FORGET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, without a minute of TIME_WAIT


class Limits(NamedTuple):
    """Limits on connections: in all, of one address, their rate, and seconds for a client's actions.

    The seconds are for sending the headers of a request and for reading some of an answer. Connections of trusted
    proxies have no limit per address.
    """

    connections: int
    of_address: int
    header_seconds: float
    answer_seconds: float
    proxies: Container[str] = ()
    rate_of_address: str = "off"


class Listener(socket.socket):
    """A listening socket that closes connections of an address that come too fast, as they are accepted.

    They get no answer: closing before any HTTP object is made takes a hundredth of the time.
    """

    refused = 0

    def __init__(self, bound: socket.socket, limits: Limits) -> None:
        family, kind, protocol = bound.family, bound.type, bound.proto
        super().__init__(family, kind, protocol, bound.detach())
        self._proxies = limits.proxies
        self._meter = None if limits.rate_of_address == "off" else Meter(read_rate(limits.rate_of_address))

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next admitted connection."""
        end = time.monotonic() + _REFUSING  # no number: after each, another thread may take the interpreter
        while time.monotonic() < end:
            connection, address = super().accept()
            if self._admits(str(address[0])):
                return connection, address
            self.refused += 1
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
            connection.close()
        raise BlockingIOError  # let the event loop serve other events first

    def _admits(self, address: str) -> bool:
        if self._meter is None or address in self._proxies:
            return True
        if self._meter.wait(address):
            return False
        self._meter.count(address)
        return True


def limited_protocol(configured: Limits) -> type[H11Protocol]:
    """Return the protocol class for uvicorn's configuration."""

    class Limited(Connection):
        limits, crowd = configured, ConnectionTable(configured)

    return Limited


class ConnectionTable:
    """All connections of a server. A new connection above the limit takes the place of an idle one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all: dict[Connection, str] = {}  # with their addresses, the longest idle first
        self._by: Counter[str] = Counter()

    def enter(self, new: "Connection", address: str) -> bool:
        """Admit one more connection, closing an idle one if necessary; return False where there is no room."""
        whole = len(self._all) >= self._limits.connections
        own = address not in self._limits.proxies and self._by[address] >= self._limits.of_address
        fits = not (whole or own) or self._end_idle(address if own else None)
        self._all[new] = address
        self._by[address] += 1
        return fits

    def leave(self, connection: "Connection") -> None:
        """Remove a connection that has ended, or will end when its client has read the rest."""
        address = self._all.pop(connection, None)
        if address is not None:
            self._by[address] -= 1
            if not self._by[address]:
                del self._by[address]

    def answered(self, connection: "Connection") -> None:
        """Move a connection that has served a request to the end of the idle order."""
        if connection in self._all:
            self._all[connection] = self._all.pop(connection)

    def _end_idle(self, of: str | None) -> bool:
        """Close the oldest idle connection. A newcomer with a request on its way is the youngest of all."""
        idle = (one for one, address in self._all.items() if of in (None, address) and one.is_idle)
        chosen = next(idle, None)
        if chosen is not None:
            chosen.end()
        return chosen is not None


class Connection(H11Protocol):
    """HTTP/1.1 on one connection."""

    limits: Limits
    crowd: ConnectionTable

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._headers_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None

    @property
    def has_asked(self) -> bool:
        """True where a request has begun to arrive on it."""
        return self.cycle is not None  # uvicorn declares it, but it is None before the first request

    @property
    def is_idle(self) -> bool:
        """True where no request is being worked on: none has come, or one without a key still waits for its body."""
        if not self.has_asked or self.cycle.response_complete:
            return True
        return self.cycle.more_body and not self.cycle.response_started and not sender_of(dict(self.cycle.scope))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start to wait for headers."""
        super().connection_made(transport)
        if not self.crowd.enter(self, self.client[0] if self.client else ""):
            self.app_state = {**self.app_state, BEYOND_LIMIT: True}
        self._expect_headers()

    def end(self) -> None:
        """Close it in favour of another one."""
        self.crowd.leave(self)
        self.transport.close()
        self._end()

    def on_response_complete(self) -> None:
        """Note a completed answer."""
        self.crowd.answered(self)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Read on; an incomplete request has the time limit for headers."""
        super().data_received(data)
        if self.has_asked and not self.cycle.response_complete:
            self._stop(self._headers_due)
            self._headers_due = None
        elif self._headers_due is None and self.timeout_keep_alive_task is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self.crowd.leave(self)
        self._stop(self._headers_due)
        self._stop(self._answer_due)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the time limit of a client that reads slower than it is sent to."""
        super().pause_writing()
        self._answer_due = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that time limit, since the client has read some."""
        super().resume_writing()
        self._stop(self._answer_due)

    def timeout_keep_alive_handler(self) -> None:
        """Close it after some time without a request."""
        super().timeout_keep_alive_handler()
        self._end()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a problem."""
        self._refuse("bad_request", msg)

    def _expect_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.header_seconds, self._headers_are_late)

    def _headers_are_late(self) -> None:
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self._refuse("too_slow", f"expected the headers within {self.limits.header_seconds:g} s")
        else:  # the rest of a body that is not read
            self.transport.abort()

    def _refuse(self, code: str, detail: str) -> None:
        answer = problems.problem(code, detail, "/")
        headers = [*answer.raw_headers, (b"connection", b"close"), (b"x-content-type-options", b"nosniff")]
        events: list[h11.Event] = [
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ]
        # otherwise an answer has begun, and a second one cannot be sent
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._end()

    def _end(self) -> None:
        """Abort a closed connection after a while, since the client may never read the rest."""
        if self.transport.get_write_buffer_size():
            self._stop(self._answer_due)
            self._answer_due = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
