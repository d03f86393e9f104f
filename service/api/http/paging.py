"""Lists in pages, by cursor."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query

from service.api.http.memory_room import Take
from service.errors import InvalidInput
from service.ledger.storage.paging import BeforeReading

# bytes that one character takes at most while it is read, parsed and answered: as an escape it has 12
_A_CHARACTER = 32

Limit = Annotated[
    int,
    Query(
        ge=1,
        le=1000,
        description="The largest number of items of a page. A page of large items has fewer, and at least one: the"
        " list ends where next_cursor is null.",
    ),
]
Cursor = Annotated[str | None, Query(max_length=400, description="next_cursor of the previous page.")]


def write_cursor(last: str | int) -> str:
    """Encode a cursor; it is opaque to clients, and its content may change."""
    return base64.urlsafe_b64encode(str(last).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> str:
    """Return the last item of the previous page; empty at the start.

    Raises:
        InvalidInput: it is not a cursor of this service.
    """
    if cursor is None:
        return ""
    try:
        last = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:  # not base64, or not text
        raise not_a_cursor() from None
    if "\0" in last:  # PostgreSQL does not accept such a text, even in a query
        raise not_a_cursor()
    return last


def read_seq(cursor: str | None) -> int:
    """Return the number of the last item of the previous page; 0 at the start; raise as ``read_cursor``."""
    return read_number(read_cursor(cursor) or "0")


def read_number(text: str) -> int:
    """Return a number that stands in a cursor.

    Raises:
        InvalidInput: it is none of at most 15 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise not_a_cursor()
    return int(text)


def not_a_cursor() -> InvalidInput:
    """Return the refusal of a cursor that this list did not give."""
    return InvalidInput.at("/query/cursor", "expected next_cursor of an earlier answer")


def page(items: Sequence[dict[str, Any]], last: str | int | None) -> dict[str, Any]:
    """Return a page; ``last`` is its last item where others may follow."""
    return {"items": list(items), "next_cursor": None if last is None else write_cursor(last)}


def with_room(take: Take) -> BeforeReading:
    """Return a function that reserves memory for the characters of a page before they are read."""
    return lambda characters: take(_A_CHARACTER * characters)
