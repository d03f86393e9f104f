"""Server-sent events (WHATWG HTML, 9.2)."""

from typing import Any

MEDIA_TYPE = "text/event-stream"
ANSWER: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "description": "Server-sent events without end: of each entry its number (id), its kind (event) and its"
            " JSON (data), as the list gives it. A comment line comes at least every 15 seconds.",
        },
        "example": 'retry: 3000\n\nid: 1\nevent: account_opened\ndata: {"entry": {}, "previous": "", "hash": ""}\n\n',
    }
}
"""The content of an answer that may be a stream of events, for ``responses``."""
HEADERS = {"X-Accel-Buffering": "no"}
"""The header by which nginx passes each event on at once, however it is configured."""


def event(number: int, kind: str, data: str) -> bytes:
    """Return an event; none of the texts has a line break."""
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode()


def comment(text: str = "") -> bytes:
    """Return a comment, which clients ignore."""
    return f": {text}\n\n".encode()


def retry(seconds: int) -> bytes:
    """Return the time after which a client asks again."""
    return f"retry: {seconds * 1000}\n\n".encode()
