"""What handlers are given: the database, and for changing requests their identity and their threads."""

import asyncio
import contextvars
import functools
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.fair import Fair
from service.errors import InvalidInput
from service.ledger import idempotency
from service.ledger.database import Database
from service.ledger.idempotency import request_digest
from service.ledger.keys import Principal
from service.ledger.once import Answer
from service.ledger.secret import Secret
from service.noise import Attempts, Keystream

R = TypeVar("R")

_QUALITY = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # RFC 9110, 12.4.2
PRICES_ONLY = "prices_only"  # in the state of a request that a helper is asked
WRITES = "writes"  # in the state of a request in a helper: has the serving process write
NOISE_KEY = "noise_key"  # likewise: of the keystream for its noise, which the serving process keeps
READ_ONLY = "read_only"  # likewise, of one that it reads and does not do
IN_HELPERS = "in_helpers"  # of a handler that runs in a helper: for bodies of so many bytes or more
FINISH = "finish"  # of one whose request a helper reads where it is long: what does the rest
_HEAVY = 1 << 14  # bytes of a body of counts: fewer are read, drawn and answered within some milliseconds
_LARGE = 1 << 20  # bytes of a body from which its digest leaves the event loop
ATTEMPTS = Attempts()


async def _database(request: Request) -> Database:  # async, as FastAPI would give it a thread otherwise
    database: Database = request.app.state.database
    return database


CurrentDatabase = Annotated[Database, Depends(_database)]


async def _secret(request: Request) -> Secret:
    secret: Secret = request.app.state.secret
    return secret


CurrentSecret = Annotated[Secret, Depends(_secret)]


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes the ledger."""

    database: Database
    secret: Secret
    principal: Principal
    request: idempotency.Request
    threads: Executor
    require_partitions: bool = False  # whether a named partition is drawn only where the plan declares it
    most_work: int = 100_000  # units that pricing may take
    elsewhere: Callable[[str, bytes], list[Any]] | None = None  # asks a helper, from a thread
    prices_only: bool = False  # this is a helper, and is asked what releases would cost
    remote: Callable[[Callable[..., Any], Sequence[Any]], Any] | None = None  # this is a helper, and that writes

    def write(self, act: Callable[..., R], *arguments: Any) -> R:
        """Return ``act(database, request, *arguments)``, called in the serving process, which alone writes.

        In a helper the arguments, the function and its result are sent through the pipe. They hold noisy counts only.
        """
        if self.remote is None:
            return act(self.database, self.request, *arguments)
        result: R = self.remote(act, arguments)
        return result

    def keystream(self) -> AbstractContextManager[Keystream]:
        """Return a block with the keystream for the request's noise, to be committed within it."""
        if self.noise_key is not None:
            return nullcontext(Keystream(self.noise_key))
        return ATTEMPTS.keystream(self.request.identity)

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Run work in the writers' threads, with what is bound to the request: its id for log lines, its trace."""
        in_context = functools.partial(contextvars.copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self.threads, in_context)

    read_only: bool = False  # likewise, and only reads what is to be changed
    noise_key: bytes | None = field(default=None, repr=False)  # likewise, of a request that may come again


async def change_of(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="At most 255 printable ASCII characters. The first success is replayed to the same request.",
        ),
    ] = None,
) -> Change:
    """Read from a request what a change of the ledger takes beside its body.

    Raises:
        InvalidInput: its Idempotency-Key is malformed.
    """
    # Read here and not asked of FastAPI one by one: it takes longer to find a dependency than these take.
    state, principal = request.app.state, request.state.principal
    secret: Secret = state.secret
    digest = ""
    if len(request.headers.getlist("Idempotency-Key")) > 1:
        raise InvalidInput.at("/header/Idempotency-Key", "expected once")
    if idempotency_key is not None:
        if not (1 <= len(idempotency_key) <= 255 and idempotency_key.isascii() and idempotency_key.isprintable()):
            raise InvalidInput.at("/header/Idempotency-Key", "expected 1 to 255 printable ASCII characters")
        path = request.scope["path"] + "?" + request.scope["query_string"].decode("latin-1")
        parts = (secret, request.method, path, await request.body())
        large = len(parts[-1]) > _LARGE
        digest = await to_thread.run_sync(request_digest, *parts) if large else request_digest(*parts)
    kept = getattr(request.state, "kept", None)
    identity = idempotency.Request(principal.name, idempotency_key, digest, secret, kept, principal.key_id)
    return Change(
        state.database,
        secret,
        principal,
        identity,
        state.writers,
        require_partitions=state.settings.require_partitions,
        most_work=state.settings.max_work,
        elsewhere=None if state.helpers is None else state.helpers.from_thread(request),
        prices_only=getattr(request.state, PRICES_ONLY, False),
        remote=getattr(request.state, WRITES, None),
        read_only=getattr(request.state, READ_ONLY, False),
        noise_key=getattr(request.state, NOISE_KEY, None),
    )


Changing = Annotated[Change, Depends(change_of)]


def in_writers(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run a handler that writes in the writers' threads.

    Writers wait for locks; in threads of their own they leave the readers' free, and queue in order.
    """

    @functools.wraps(handler)
    async def run(*args: Any, **named: Any) -> Any:
        change = next(value for value in named.values() if isinstance(value, Change))
        return await change.in_thread(functools.partial(handler, *args, **named))

    return run


def in_helpers(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Have a handler run in a helper's process: it computes long, or reads much, and would hold the interpreter."""
    setattr(handler, IN_HELPERS, 0)
    return handler


def heavy_in_helpers(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Have a handler run in a helper's process where its body is large; it writes by ``Change.write`` alone."""
    setattr(handler, IN_HELPERS, _HEAVY)
    return handler


def read_by_helpers(finish: Callable[[Change, Any], Response]) -> Callable[..., Any]:
    """Have a long request of a handler read, checked and priced by a helper; ``finish`` does what it asks for."""

    def marked(handler: Callable[..., Any]) -> Callable[..., Any]:
        setattr(handler, FINISH, finish)
        return handler

    return marked


class Found(Exception):
    """What ends a request in a helper that is only to find something out: for the server alone, so it is pickled."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found


class Elsewhere(Exception):
    """What a handler raises that finds out, before it does anything, that a helper should answer."""


class Streamed(StreamingResponse):
    """An answer that is made while it is taken; however it ends, it lets go of what it is made of.

    Each part is made in a turn of the principal's. While a part is sent no turn is held, so that who takes an answer
    slowly keeps nobody waiting. Where a client hangs up, the error's frames refer to each other until the collector
    looks, and that may be long.
    """

    def __init__(
        self,
        content: Iterator[bytes | str],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        self._content = _passed_on(content)
        super().__init__(self._content, status_code, headers, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        self.body_iterator = self._in_turns(scope["app"].state.turns, scope["state"]["principal"].name)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()

    async def _in_turns(self, turns: Fair, principal: str) -> AsyncIterator[bytes | str]:
        part: bytes | str | None = b""
        while part is not None:
            async with turns.place(principal, begun=True):
                part = await to_thread.run_sync(next, self._content, None)
            if part is not None:
                yield part


def _passed_on(content: Iterator[bytes | str]) -> Generator[bytes | str]:
    yield from content


def respond(answer: Answer) -> Response:
    """An answer of the ledger as HTTP."""
    return Response(answer.body, answer.status, replay_header(answer), "application/json")


def replay_header(answer: Answer) -> dict[str, str]:
    """What says that an answer was given before."""
    return {"Idempotent-Replay": "true"} if answer.replayed else {}


def ok(body: dict[str, Any]) -> Response:
    """What was read or computed."""
    return Response(json.dumps(body), media_type="application/json")


def prefers(accept: str, media_type: str) -> bool:
    """Whether an Accept header asks for this media type, by its name, at least as much as for JSON."""
    return preferred(accept, (media_type,)) is not None


def preferred(accept: str, media_types: Sequence[str]) -> str | None:
    """Which of some media types an Accept header asks for most, by name; None where it asks for JSON rather."""
    weights = {"application/json": 0.0} | dict.fromkeys(media_types, 0.0)
    for wish in accept.split(","):
        name, *parameters = (part.strip().lower() for part in wish.split(";"))
        if name in weights:
            weights[name] = max(weights[name], _weight(parameters))
    best = max(media_types, key=lambda media_type: weights[media_type])  # the first of equal ones
    return best if weights[best] > 0 and weights[best] >= weights["application/json"] else None


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            return float(value) if _QUALITY.fullmatch(value) else 0.0
    return 1.0
