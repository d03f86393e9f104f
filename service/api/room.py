"""Room: the memory that a request takes of what there is for all, before it takes it."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Scope

ROOM = "room"  # in the state of a request: what takes room for it

Take = Callable[[int], None]
"""Takes room for so many bytes beside those of the body, in all; raises TooLarge or Unavailable where there is none."""


def room_of(scope: Scope) -> Take:
    """What takes room for a request; in a helper nothing does, as its server has."""
    take: Take = scope["state"].get(ROOM, _taken)
    return take


def _taken(_: int) -> None:
    pass


async def _room(request: Request) -> Take:  # async, as FastAPI would give it a thread otherwise
    return room_of(request.scope)


Room = Annotated[Take, Depends(_room)]
