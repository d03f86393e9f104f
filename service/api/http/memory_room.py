"""Reservation of a request's memory from the shared limit, before it is used."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Scope

ROOM = "room"  # in the state of a request: the function that reserves memory for it

Take = Callable[[int], None]
"""Function that reserves so many bytes beside those of the body, in total; raises TooLarge or Unavailable."""


def room_of(scope: Scope) -> Take:
    """Return the function that reserves memory for a request; in a helper it does nothing, as the server does."""
    take: Take = scope["state"].get(ROOM, _reserve_nothing)
    return take


def _reserve_nothing(_: int) -> None:
    pass


async def _room(request: Request) -> Take:  # async, as FastAPI would give it a thread otherwise
    return room_of(request.scope)


Room = Annotated[Take, Depends(_room)]
