"""Detection of clients that close their connection before they are answered."""

import asyncio
from contextlib import suppress

from starlette.types import Receive

from service.errors import InvalidInput

_WAIT = 0.0005  # seconds in which the event loop can look at the connection
_ROUNDS = 2  # the event loop finds the end of the data in one round, and the end of the connection in the next


async def disconnected(receive: Receive) -> None:
    """Wait until the client closes the connection of a request whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def has_hung_up(receive: Receive) -> bool:
    """Return whether the client has closed the connection of a request whose body was read.

    While a request waits for its turn, the service does not read from its connection. So it finds the end of the
    connection only after the rest of the data, which the kernel kept.
    """
    gone = asyncio.ensure_future(disconnected(receive))
    for _ in range(_ROUNDS):
        await asyncio.sleep(_WAIT)
    if gone.done():
        gone.result()
        return True
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    return False


def client_gone() -> InvalidInput:
    """Return an error for a client that is gone; it only keeps the log free of a failure of the service."""
    return InvalidInput.at("", "expected the client to wait for its answer")
