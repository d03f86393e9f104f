"""In-process requests to ``/v1`` as the signed-in user, through the whole application."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from anyio import to_thread
from fastapi import Depends, Request, Response
from starlette.types import Message, Receive, Scope, Send

from service.api.http.body_limits import SENDER
from service.api.identity.auth import SIGNED_IN
from service.api.identity.throttle import PAGE
from service.errors import Unauthenticated
from service.pages.shell.session import Session, session_of

_LARGE = 1 << 18  # bytes of an answer from which it is parsed off the event loop
_RELAYED = {b"content-type", b"content-length"}
Query = Mapping[str, str | int | Sequence[str] | None]


class Refused(Exception):
    """An answer of ``/v1`` that is a problem; ``problem`` is its body."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem["title"])
        self.problem = problem

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self.problem["status"])

    @property
    def faults(self) -> dict[str, str]:
        """The faults by JSON pointer; empty unless the problem is a validation error."""
        return {fault["pointer"]: fault["detail"] for fault in self.problem.get("errors", ())}


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a signed-in user."""

    request: Request
    session: Session


async def _visit(request: Request) -> Visit:  # async: FastAPI would run a plain function in a thread
    session = session_of(request)
    if session is None:
        raise Unauthenticated("the request has no valid session; sign in")
    request.scope["state"][SENDER] = session.name
    return Visit(request, session)


SignedIn = Annotated[Visit, Depends(_visit)]


class Answer(NamedTuple):
    """An answer of ``/v1``."""

    status: int
    headers: dict[str, str]
    body: bytes


def address(*steps: str) -> str:
    """Return a path below ``/v1``; names are quoted and cannot change the path."""
    return "/v1/" + "/".join(quote(step, safe="") for step in steps)


async def get(visit: Visit, path: str, query: Query | None = None) -> Any:
    """Read a path and return its JSON.

    Raises:
        Refused: the answer is a problem.
    """
    return await _json(await ask(visit, "GET", path, query=query))


async def send(
    visit: Visit, method: str, path: str, body: Any = None, *, query: Query | None = None, once: str | None = None
) -> Any:
    """Send a request and return its JSON.

    Args:
        visit: the request of the signed-in user.
        method: the HTTP method.
        path: a path below ``/v1``.
        body: JSON; None for no body.
        query: parameters; those that are None are left out.
        once: the Idempotency-Key, with which a repetition has no further effect; None for no such header.

    Raises:
        Refused: the answer is a problem.
    """
    content = None if body is None else json.dumps(body).encode()
    headers = {} if once is None else {"idempotency-key": once}
    answer = await ask(visit, method, path, query=query, content=content, headers=headers)
    return await _json(answer)


async def ask(
    visit: Visit,
    method: str,
    path: str,
    *,
    query: Query | None = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and return the whole answer, whatever its status."""
    sent_headers = {"accept": "application/json"} | dict(headers or {})
    if content is not None:
        sent_headers = {"content-type": "application/json"} | sent_headers
    waiting = [content or b""]
    parts: list[bytes] = []
    start: Message = {}

    async def receive() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        while (message := await visit.request.receive())["type"] != "http.disconnect":
            pass  # the page's own request was read already; only the end of its connection can follow
        return message

    async def keep(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    scope = _scope(visit.request.scope, visit.session, method, path, query, sent_headers)
    await visit.request.app(scope, receive, keep)
    received = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], received, b"".join(parts))


class Relayed(Response):
    """An answer of ``/v1``, relayed as it arrives: a picture, or with ``download``, a file of that name."""

    def __init__(
        self,
        visit: Visit,
        path: str,
        query: Query | None = None,
        *,
        accept: str = "application/json",
        download: str | None = None,
    ) -> None:
        super().__init__()
        self.session, self.path, self.query, self.accept = visit.session, path, query, accept
        self.download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request, and relay the headers that describe the content; the outer middleware adds the rest."""

        async def relay(message: Message) -> None:
            if message["type"] == "http.response.start":
                relayed = [(name, value) for name, value in message["headers"] if name.lower() in _RELAYED]
                if self.download is not None and message["status"] == 200:
                    relayed.append(
                        (b"content-disposition", f"attachment; filename*=UTF-8''{quote(self.download)}".encode())
                    )
                message = {**message, "headers": [*relayed, (b"cache-control", b"no-store")]}
            await send(message)

        inner = _scope(scope, self.session, "GET", self.path, self.query, {"accept": self.accept})
        await scope["app"](inner, receive, relay)


def _scope(
    outer: Scope, session: Session, method: str, path: str, query: Query | None, headers: Mapping[str, str]
) -> Scope:
    """Return the ASGI scope of a request made for an outer one: with its connection and request id, but no headers."""
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    sent_headers = {**headers, "x-request-id": outer["state"]["request_id"]}
    state: dict[str, Any] = {PAGE: outer["state"]}
    if session.principal is None:
        sent_headers["authorization"] = f"Bearer {session.key}"
    else:
        state[SIGNED_IN] = session.principal
    return {
        "type": "http",
        "asgi": outer.get("asgi", {"version": "3.0"}),
        "http_version": outer.get("http_version", "1.1"),
        "method": method,
        "scheme": outer["scheme"],
        "server": outer.get("server"),
        "client": outer.get("client"),
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": urlencode(parameters, doseq=True).encode(),
        "headers": [
            (b"host", b"localhost"),
            *((name.encode(), value.encode()) for name, value in sent_headers.items()),
        ],
        "state": state,
    }


async def _json(answer: Answer) -> Any:
    if answer.status >= 400:
        raise Refused(json.loads(answer.body))
    if len(answer.body) > _LARGE:
        return await to_thread.run_sync(json.loads, answer.body)
    return json.loads(answer.body) if answer.body else None
