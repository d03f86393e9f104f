"""Tables as files: all pages of a list of ``/v1``, one after the other, as one table."""

from collections.abc import Mapping

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from service.api.http.csv_answers import MEDIA_TYPE
from service.api.http.list_answers import NEXT_CURSOR
from service.pages.shell.api_client import Query, Visit, disposition, relay

_LINE = b"\n"


def as_file(table: str | bytes, name: str, kind: str = MEDIA_TYPE) -> Response:
    """Return a table that a page has read or made as a file."""
    headers = {"Content-Disposition": disposition(name), "Cache-Control": "no-store"}
    return Response(table, media_type=kind, headers=headers)


class WholeTable(Response):
    """A list of ``/v1`` as a file that has the lines of all its pages.

    Each page is relayed as it arrives, and is requested when the one before it was sent, so a slow client holds little
    in memory. A page that is refused ends the connection before the end of the file: a table that lacks lines must not
    look complete.
    """

    def __init__(self, visit: Visit, path: str, query: Query, name: str) -> None:
        super().__init__()
        self._visit, self._path, self._query, self._name = visit, path, dict(query), name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or the problem if the first page is refused."""
        cursor = await self._send_page(scope, receive, send, None)
        while cursor is not None:
            cursor = await self._send_page(scope, receive, send, cursor)
        await send({"type": "http.response.body", "body": b""})

    async def _send_page(self, scope: Scope, receive: Receive, send: Send, cursor: str | None) -> str | None:
        """Send a page without its end, and the first one with the headers; return the cursor of the next page."""
        status, received = 0, dict[str, str]()
        in_names = cursor is not None  # a later page repeats the names of the columns, none of which has a line break

        async def pass_on(message: Message) -> None:
            nonlocal status, in_names
            if message["type"] == "http.response.start":
                status = message["status"]
                received.update(
                    (name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in message["headers"]
                )
                if cursor is None:
                    await send({**message, "headers": self._of_file(status, received)})
                return
            if cursor is not None and status != 200:
                return
            body = message.get("body", b"")
            if in_names:
                _, end, body = body.partition(_LINE)
                in_names = not end
            await send({"type": "http.response.body", "body": body, "more_body": True})

        query = self._query if cursor is None else self._query | {"cursor": cursor}
        await relay(scope, self._visit.session, self._path, query, MEDIA_TYPE, receive, pass_on)
        if cursor is not None and status != 200:
            raise ConnectionError(f"a page of a table was answered with {status}")
        return _cursor(received) if status == 200 else None

    def _of_file(self, status: int, received: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", received["content-type"].encode()), (b"cache-control", b"no-store")]
        if status == 200:
            headers.append((b"content-disposition", disposition(self._name).encode()))
        return headers


def _cursor(received: Mapping[str, str]) -> str | None:
    return received.get(NEXT_CURSOR.lower())
