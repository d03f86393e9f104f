"""Connections: how many there may be, and how long a client may keep one waiting.

What uvicorn has no limits for: headers that never end, answers that nobody takes, connections without number.
"""

import asyncio
from typing import Any, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api import problems
from service.api.middleware import BEYOND_LIMIT


class Limits(NamedTuple):
    """How many connections, and seconds for the headers of a request and for taking some of an answer."""

    connections: int
    header_seconds: float
    answer_seconds: float


def limited(given: Limits) -> type[H11Protocol]:
    """The protocol for uvicorn's configuration."""

    class Limited(Connection):
        limits = given

    return Limited


class Connection(H11Protocol):
    """HTTP/1.1 on one connection."""

    limits: Limits

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._headers_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Expect headers."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self.app_state = {**self.app_state, BEYOND_LIMIT: True}
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Read on; what is between two requests and no whole request has its time."""
        super().data_received(data)
        # Before its first request a connection has no cycle, whatever uvicorn declares.
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._stop(self._headers_due)
            self._headers_due = None
        elif self._headers_due is None and self.timeout_keep_alive_task is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
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
