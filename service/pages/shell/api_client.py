"""In-process requests to ``/v1`` as the signed-in user, through the whole application."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

from anyio import to_thread
from fastapi import Depends, Request, Response
from starlette.types import Message, Receive, Scope, Send

from service.api.http.request_parsing import check_query
from service.api.identity.auth import SIGNED_IN, SIGNED_IN_UNTIL
from service.api.identity.throttle import PAGE, SENDER
from service.errors import Unauthenticated
from service.pages.shell.overrun_texts import overrun_faults
from service.pages.shell.session import Session, session_of

LONGEST_ANSWER = 1 << 22
"""Bytes of an answer that a page reads: one call parses it, and meanwhile nothing else runs in this process."""
WITHOUT_PLAN = {"with_plan": "false"}
"""The query of releases for pages that do not show their plans, which may be long."""
_LARGE = 1 << 18  # bytes of an answer from which it is parsed off the event loop
_RELAYED = {b"content-type", b"content-length"}
_OF_THE_VISIT = {b"accept-encoding", b"authorization", b"cookie", b"host", b"x-csrf-token", b"x-request-id"}
"""Headers of a visitor's request that are not those of the request to ``/v1``."""
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
        """The faults by JSON pointer; empty unless the request is invalid, or states a budget that is refused."""
        faults = {fault["pointer"]: fault["detail"] for fault in self.problem.get("errors", ())}
        return faults | overrun_faults(self.problem)

    def faults_of_query(self, names: Iterable[str]) -> dict[str, str]:
        """Return the faults of these parameters of the query, by their names.

        Raises:
            Refused: this refusal, whose reason is none of them.
        """
        faults = self.faults
        found = {name: faults[f"/query/{name}"] for name in names if f"/query/{name}" in faults}
        if not found:
            raise self
        return found


class TooLong(Refused):
    """An answer of ``/v1`` that is longer than a page may read."""

    def __init__(self, path: str, most: int, *, done: bool) -> None:
        detail = f"This page would be too long. Read it over the HTTP interface at {path}."
        problem = {"type": "/problems/too_large", "title": "The page is too long", "status": 413, "instance": path}
        super().__init__(problem | {"detail": f"{detail} Its answer has more than {most} bytes."})
        self.done = done
        """True where ``/v1`` carried out the request, and only its answer is not shown."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a signed-in user."""

    request: Request
    session: Session


async def _visit(request: Request) -> AsyncIterator[Visit]:
    """Return a request's user, who holds one of the turns for pages while a page is made; forms take one themselves.

    Turns of pages are separate from those of ``/v1``: a page holds its own turn while it waits for ``/v1``.

    Raises:
        Unauthenticated: there is no session.
        InvalidInput: the query has too many parameters.
    """
    session = session_of(request)
    if session is None:
        raise Unauthenticated("the request has no valid session; sign in")
    request.scope["state"][SENDER] = session.name
    check_query(request.scope)
    if request.method == "POST":
        yield Visit(request, session)
        return
    async with request.app.state.page_turns.place(session.name):
        yield Visit(request, session)


SignedIn = Annotated[Visit, Depends(_visit, scope="function")]


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
        Refused: the answer is a problem, or is too long for a page.
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
        body: JSON, or its text; None for no body.
        query: parameters; those that are None are left out.
        once: the Idempotency-Key, with which a repetition has no further effect; None for no such header.

    Raises:
        Refused: the answer is a problem, or is too long for a page.
    """
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {} if once is None else {"idempotency-key": once}
    answer = await ask(visit, method, path, query=query, content=content, headers=headers)
    return await _json(answer)


async def act(visit: Visit, method: str, path: str, body: Any = None, *, once: str) -> None:
    """Send a request whose answer is not shown, and may be as long as it is; the arguments are those of ``send``.

    Raises:
        Refused: the answer is a problem.
    """
    try:
        await send(visit, method, path, body, once=once)
    except TooLong as answer:
        if not answer.done:
            raise


async def ask(
    visit: Visit,
    method: str,
    path: str,
    *,
    query: Query | None = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    bounded: bool = True,
) -> Answer:
    """Send a request and return the whole answer, whatever its status.

    An answer that is too long is not kept, but the request is carried out to its end.

    Args:
        visit: the request of the signed-in user.
        method: the HTTP method.
        path: a path below ``/v1``.
        query: parameters; those that are None are left out.
        content: the body.
        headers: beside those of the key and the media types.
        bounded: refuse an answer of more than ``LONGEST_ANSWER`` bytes.

    Raises:
        TooLong: the answer is longer.
    """
    sent_headers = {"accept": "application/json"} | dict(headers or {})
    if content is not None:
        sent_headers = {"content-type": "application/json"} | sent_headers
    parts: list[bytes] = []
    size = 0
    start: Message = {}

    async def keep(message: Message) -> None:
        nonlocal size
        if message["type"] == "http.response.start":
            start.update(message)
            return
        size += len(message.get("body", b""))
        if bounded and size > LONGEST_ANSWER:
            parts.clear()
        else:
            parts.append(message.get("body", b""))

    inner = _scope(visit.request.scope, visit.session, method, path, query, sent_headers)
    await visit.request.app(inner, _receiving(content or b"", visit.request.receive), keep)
    if bounded and size > LONGEST_ANSWER:
        raise TooLong(path, LONGEST_ANSWER, done=start["status"] < 400)
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

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                relayed = [(name, value) for name, value in message["headers"] if name.lower() in _RELAYED]
                if self.download is not None and message["status"] == 200:
                    relayed.append((b"content-disposition", disposition(self.download).encode()))
                message = {**message, "headers": [*relayed, (b"cache-control", b"no-store")]}
            await send(message)

        await relay(scope, self.session, self.path, self.query, self.accept, receive, pass_on)


class Forwarded(Response):
    """The answer of ``/v1`` to the visitor's own request, whose query, headers and body are sent on as they arrive.

    Args:
        visit: the request of the signed-in user.
        path: a path below ``/v1``, as it is sent.
    """

    def __init__(self, visit: Visit, path: str) -> None:
        super().__init__()
        self.session, self.path = visit.session, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request with the user's own authorization, and pass the answer on."""
        inner = _scope(scope, self.session, scope["method"], self.path, None, {})
        kept = [header for header in scope["headers"] if header[0] not in _OF_THE_VISIT]
        inner.update(query_string=scope["query_string"], headers=[*inner["headers"], *kept])
        await scope["app"](inner, receive, send)


def disposition(name: str) -> str:
    """Return the header Content-Disposition of a file of this name."""
    return f"attachment; filename*=UTF-8''{quote(name)}"


async def relay(
    scope: Scope, session: Session, path: str, query: Query | None, accept: str, receive: Receive, send: Send
) -> None:
    """Send a GET request of an answer that is passed on as it arrives, however long it is."""
    inner = _scope(scope, session, "GET", path, query, {"accept": accept})
    await scope["app"](inner, _receiving(b"", receive), send)


def _receiving(content: bytes, outer: Receive) -> Receive:
    """Return the function from which a request made for an outer one reads its body."""
    waiting = [content]

    async def receive() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        while (message := await outer())["type"] != "http.disconnect":
            pass  # the page's own request was read already; only the end of its connection can follow
        return message

    return receive


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
        state |= {SIGNED_IN: session.principal, SIGNED_IN_UNTIL: session.expires}
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
