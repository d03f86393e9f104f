"""Clients that close their connection before they are answered."""

import asyncio
from contextlib import suppress

from starlette.types import Receive

from service.errors import InvalidInput

_LOOK = 0.0005  # seconds of one look at the connection
_LOOKS = 2  # the event loop sees the end of the data in one round, and that of the connection in the next


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request, whose body was read, closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def has_hung_up(receive: Receive) -> bool:
    """Return whether the client of a request, whose body was read, has closed its connection.

    While a request waits for its turn, nobody reads from its connection. So the end of the connection is found after
    the rest of the body, which the kernel kept.
    """
    gone = asyncio.ensure_future(disconnected(receive))
    for _ in range(_LOOKS):
        await asyncio.sleep(_LOOK)
    if gone.done():
        gone.result()
        return True
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    return False


def client_gone() -> InvalidInput:
    """Return an answer for a client that is gone; it only prevents a log line about a failure of the service."""
    return InvalidInput.at("", "expected the client to wait for its answer")
