"""Lists page by cursor."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query

from service.api.room import Take
from service.errors import InvalidInput
from service.ledger.paging import BeforeReading

_A_CHARACTER = 32  # bytes that one takes at most while it is read, parsed and answered: as an escape it has 12

Limit = Annotated[
    int,
    Query(
        ge=1,
        le=1000,
        description="How many items at the most. A page of large items has fewer, and at least one: the list ends where"
        " next_cursor is null.",
    ),
]
Cursor = Annotated[str | None, Query(max_length=400, description="next_cursor of the page before.")]


def write_cursor(last: str | int) -> str:
    """Opaque to clients: what comes after it may change, what it is may too."""
    return base64.urlsafe_b64encode(str(last).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> str:
    """The last item of the page before; empty at the start.

    Raises:
        InvalidInput: it is not a cursor of ours.
    """
    if cursor is None:
        return ""
    try:
        last = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:  # not base64, or not of text
        raise InvalidInput.at("/query/cursor", "expected next_cursor of an earlier answer") from None
    if "\0" in last:  # PostgreSQL takes no such text, not even in a question
        raise InvalidInput.at("/query/cursor", "expected next_cursor of an earlier answer")
    return last


def read_seq(cursor: str | None) -> int:
    """The same where items are numbered."""
    last = read_cursor(cursor) or "0"
    if not (last.isascii() and last.isdigit() and len(last) < 16):
        raise InvalidInput.at("/query/cursor", "expected next_cursor of an earlier answer")
    return int(last)


def page(items: Sequence[dict[str, Any]], last: str | int | None) -> dict[str, Any]:
    """A page; ``last`` is its last item where others may follow."""
    return {"items": list(items), "next_cursor": None if last is None else write_cursor(last)}


def with_room(take: Take) -> BeforeReading:
    """Take room for the characters of a page before they are read."""
    return lambda characters: take(_A_CHARACTER * characters)
