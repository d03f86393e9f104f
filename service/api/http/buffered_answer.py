"""Answers of helper processes that are kept until their end."""

import time

from fastapi import Request
from starlette.types import Message, Send

from service.api.http.memory_room import room_of
from service.errors import ServiceError

_MOST_KEPT = 1 << 25  # bytes of an answer that are kept until its end: a million counts as JSON are fewer
_PATIENCE = 10.0  # seconds that any client may take
_LEAST = 1 << 20  # bytes a second that it reads afterwards, or it is slow


class BufferedAnswer:
    """The messages of an answer, kept so that a slow client does not hold the helper.

    A long export is passed on as it is made, and so is an answer that finds no memory. Its client holds the helper.
    """

    def __init__(self, request: Request, send: Send) -> None:
        self._send, self._room = send, room_of(request.scope)
        self._messages: list[Message] | None = []  # None once messages are passed on directly
        self._size = self._passed = 0
        self._passes_since: float | None = None  # while the client holds the helper

    @property
    def is_slow(self) -> bool:
        """True if the client holds the helper and reads slowly."""
        if self._passes_since is None:
            return False
        seconds = time.monotonic() - self._passes_since
        return seconds > _PATIENCE and self._passed < _LEAST * seconds

    async def send(self, message: Message) -> None:
        """Keep a message, or pass it on."""
        if self._messages is None:
            await self._pass(message)
            return
        self._messages.append(message)
        self._size += len(message.get("body", b""))
        try:
            self._room(self._size)
            fits = self._size <= _MOST_KEPT
        except ServiceError:
            fits = False
        if not fits:
            self._passes_since = time.monotonic()
            await self.pass_on()

    async def pass_on(self) -> None:
        """Send the kept messages, and keep no more."""
        messages, self._messages = self._messages or [], None
        for message in messages:
            await self._pass(message)

    async def _pass(self, message: Message) -> None:
        await self._send(message)
        self._passed += len(message.get("body", b""))
