"""Tables as files: all pages of a list of ``/v1``, one after the other, as one table."""

from collections.abc import Iterable
from urllib.parse import quote

from fastapi import Response
from starlette.types import Receive, Scope, Send

from service.api.http.csv_answers import MEDIA_TYPE
from service.api.http.list_answers import NEXT_CURSOR
from service.pages.shell.api_client import Answer, Query, Visit, ask

_LINE = b"\r\n"


def as_file(table: Iterable[str], name: str) -> Response:
    """Return a table that a page has made as a file."""
    headers = {"Content-Disposition": disposition(name), "Cache-Control": "no-store"}
    return Response("".join(table), media_type=MEDIA_TYPE, headers=headers)


def disposition(name: str) -> str:
    """Return the header Content-Disposition of a file of this name."""
    return f"attachment; filename*=UTF-8''{quote(name)}"


class WholeTable(Response):
    """A list of ``/v1`` as a file that has the lines of all its pages.

    Each page is requested when the one before it was sent, so a slow client holds one page in memory. A page that is
    refused ends the connection before the end of the file: a table that lacks lines must not look complete.
    """

    def __init__(self, visit: Visit, path: str, query: Query, name: str) -> None:
        super().__init__()
        self._visit, self._path, self._query, self._name = visit, path, dict(query), name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the file, or the problem if the first page is refused."""
        answer = await self._page(None)
        headers = [(b"content-type", answer.headers["content-type"].encode()), (b"cache-control", b"no-store")]
        if answer.status == 200:
            headers.append((b"content-disposition", disposition(self._name).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = answer.body
        while answer.status == 200 and (cursor := _cursor(answer)) is not None:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            answer = await self._page(cursor)
            if answer.status != 200:
                raise ConnectionError(f"a page of a table was answered with {answer.status}")
            body = answer.body.partition(_LINE)[2]  # without the names, none of which has a line break
        await send({"type": "http.response.body", "body": body})

    async def _page(self, cursor: str | None) -> Answer:
        query = self._query if cursor is None else self._query | {"cursor": cursor}
        return await ask(self._visit, "GET", self._path, query=query, headers={"accept": MEDIA_TYPE})


def _cursor(answer: Answer) -> str | None:
    return answer.headers.get(NEXT_CURSOR.lower()) or answer.headers.get(NEXT_CURSOR)
