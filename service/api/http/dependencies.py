"""Dependencies of handlers: the database, and the identity and threads of requests that change the ledger."""

import asyncio
import contextvars
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from fastapi import Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.http.fair_places import FairPlaces
from service.errors import InvalidInput, TooManyRequests
from service.ledger.access.authentication import Principal
from service.ledger.accounts.lines import root_of
from service.ledger.draws.draws import AnsweredDraw
from service.ledger.idempotent_write import Operation, idempotent_write
from service.ledger.storage import idempotency
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, request_digest
from service.ledger.storage.secret import Secret
from service.noise import Attempts, Keystream, NoiseKey

R = TypeVar("R")

PRICES_ONLY = "prices_only"  # in the state of a request to a helper: only compute the prices
WRITES = "writes"  # in the state of a request in a helper: has the serving process write to the ledger
NOISE_KEY = "noise_key"  # likewise: the key of the keystream for its noise, which the serving process keeps
READ_ONLY = "read_only"  # likewise: read and check the request without carrying it out
IN_HELPERS = "in_helpers"  # attribute of a handler that runs in a helper: the least bytes of such a body
FINISH = "finish"  # attribute of a handler whose long requests a helper reads: the function that completes them
_HEAVY = 1 << 14  # bytes of a body of counts: fewer are read, drawn and answered within some milliseconds
_LARGE = 1 << 20  # bytes of a body from which its digest is computed off the event loop
_LONGEST_REST = 2.0  # seconds that a request waits for its principal's rest
ATTEMPTS = Attempts()


async def _database(request: Request) -> Database:  # async, as FastAPI would give it a thread otherwise
    database: Database = request.app.state.database
    return database


CurrentDatabase = Annotated[Database, Depends(_database)]


async def _secret(request: Request) -> Secret:
    secret: Secret = request.app.state.secret
    return secret


CurrentSecret = Annotated[Secret, Depends(_secret)]

Elsewhere = Callable[[str, str, bytes], list[Any]]
"""Sends a request to a helper, from a thread: method, path and body; returns what it computed."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes the ledger."""

    database: Database
    secret: Secret
    principal: Principal
    request: idempotency.Request
    threads: Executor
    turns: FairPlaces
    require_partitions: bool = False  # draw a named partition only where the plan declares it
    most_work: int = 100_000  # units of work that pricing may take
    elsewhere: Elsewhere | None = None
    prices_only: bool = False  # this process is a helper that only computes prices
    # in a helper: has the serving process write
    remote: Callable[[Callable[..., Any], Sequence[Any]], Any] | None = None
    read_only: bool = False  # in a helper: read and check the request without carrying it out
    may_rest: bool = True  # what deletes is done at once: a key is revoked, a job ended
    noise_key: NoiseKey | None = None  # of a request that may be repeated; the serving process makes it

    def write(self, act: Callable[..., AnsweredDraw], *arguments: Any) -> AnsweredDraw:
        """Return the draw of ``act(database, request, *arguments)``, called in the serving process, which alone writes.

        In a helper the arguments, the function and its result are sent through the pipe. They hold noisy counts only.
        The key of the noise is kept from when the noisy counts go to the database until the draw is committed. A
        repeated answer is no reason to forget it: whoever owns the database may have shown that answer only for a
        moment.
        """
        if self.remote is not None:
            drawn: AnsweredDraw = self.remote(act, arguments)
            return drawn
        request, identity = self.request, self.request.identity
        if identity is not None and self.noise_key is not None:
            keep = functools.partial(ATTEMPTS.keep, request.principal, identity, self.noise_key)
            request = replace(request, before_noise=keep)
        drawn = act(self.database, request, *arguments)
        if not drawn.answer.replayed:
            ATTEMPTS.forget(request.principal, identity)
        return drawn

    def carry_out(self, operation: Operation[R], answer_of: Callable[[R], Answer]) -> Answer:
        """Carry out the operation that the request asks for, and return its answer, which is stored with it."""
        return idempotent_write(self.database, self.request, operation, answer_of).answer

    def keystream(self) -> Keystream:
        """Return the keystream for the request's noise, the same one until the draw is committed."""
        return Keystream(None if self.noise_key is None else self.noise_key.key)

    async def in_thread(self, work: Callable[[], R]) -> R:
        """Run work in the writers' threads, with the request's context: its id for log lines and its trace.

        Raises:
            TooManyRequests: the principal's last writes took long, and other principals are to write first.
        """
        if self.may_rest:
            await self._rest()
        in_context = functools.partial(contextvars.copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self.threads, in_context)

    async def _rest(self) -> None:
        pace, name = self.database.pace, self.principal.name
        if not pace.may_rest(name) or self.turns.is_alone(name):
            return
        root = await to_thread.run_sync(root_of, self.database, self.request.account)  # may read the database
        rest = pace.rest_of(name, root)
        if not rest:
            return
        await asyncio.sleep(min(rest, _LONGEST_REST))  # before a refusal too, or many would be repeated at once
        if rest > _LONGEST_REST:
            left = ceil(rest - _LONGEST_REST)
            detail = f"the last changes of this principal took long to write: others write first for {left} s"
            raise TooManyRequests(detail, left)


async def change_of(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="At most 255 printable ASCII characters. A repeated request with the same key receives the"
            " first successful answer.",
        ),
    ] = None,
) -> Change:
    """Read the parts of a change beside its body: idempotency key, principal and expected head.

    Raises:
        InvalidInput: the Idempotency-Key is malformed.
    """
    # Read directly: FastAPI takes longer to resolve a dependency than these reads take.
    state, principal = request.app.state, request.state.principal
    secret: Secret = state.secret
    digest = ""
    if len(request.headers.getlist("Idempotency-Key")) > 1:
        raise InvalidInput.at("/header/Idempotency-Key", "expected the header once")
    if idempotency_key is not None:
        if not (1 <= len(idempotency_key) <= 255 and idempotency_key.isascii() and idempotency_key.isprintable()):
            raise InvalidInput.at("/header/Idempotency-Key", "expected 1 to 255 printable ASCII characters")
        path = request.scope["path"] + "?" + request.scope["query_string"].decode("latin-1")
        parts = (secret, request.method, path, await request.body())
        large = len(parts[-1]) > _LARGE
        digest = await to_thread.run_sync(request_digest, *parts) if large else request_digest(*parts)
    expected_head = getattr(request.state, "kept", None)
    identity = idempotency.Request(
        principal.name,
        idempotency_key,
        digest,
        secret,
        expected_head,
        principal.key_id,
        request.path_params.get("account"),
    )
    return Change(
        state.database,
        secret,
        principal,
        identity,
        state.writers,
        state.turns,
        require_partitions=state.settings.require_partitions,
        most_work=state.settings.max_work,
        elsewhere=None if state.helpers is None else state.helpers.from_thread(request),
        prices_only=getattr(request.state, PRICES_ONLY, False),
        remote=getattr(request.state, WRITES, None),
        read_only=getattr(request.state, READ_ONLY, False),
        may_rest=request.method != "DELETE",
        noise_key=getattr(request.state, NOISE_KEY, None) or ATTEMPTS.key(identity.identity),
    )


Changing = Annotated[Change, Depends(change_of)]


def in_writers(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run a writing handler in the writers' threads.

    Writers wait for locks. In threads of their own they leave the readers' threads free, and queue in order.
    """

    @functools.wraps(handler)
    async def run(*args: Any, **named: Any) -> Any:
        change = next(value for value in named.values() if isinstance(value, Change))
        return await change.in_thread(functools.partial(handler, *args, **named))

    return run


def in_helpers(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Run a handler in a helper process: it computes or reads for long, and would hold the interpreter."""
    setattr(handler, IN_HELPERS, 0)
    return handler


def heavy_in_helpers(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Run a handler in a helper process where its body is large; it writes only through ``Change.write``.

    A stream that is larger than any JSON body stays in the serving process: a helper has no memory for it.
    """
    setattr(handler, IN_HELPERS, _HEAVY)
    return handler


def read_by_helpers(finish: Callable[[Change, Any], Response]) -> Callable[..., Any]:
    """Have a helper read, check and price a long request of a handler; ``finish`` then completes it."""

    def marked(handler: Callable[..., Any]) -> Callable[..., Any]:
        setattr(handler, FINISH, finish)
        return handler

    return marked


class HelperResult(Exception):
    """Result of a request to a helper that only computes something; pickled, and never sent to clients."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found


class AnswerInHelper(Exception):
    """Signal of a handler that a helper should answer, raised before it has any effect."""


class Streamed(StreamingResponse):
    """A streamed response that releases its source however it ends.

    Each part is made in one of the principal's turns. No turn is held while a part is sent, so a slow client delays
    no other. The source is closed explicitly: after a client hangs up, the error's frames refer to each other and
    would keep it until the garbage collector runs.
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
        """Send the response."""
        self.body_iterator = self._in_turns(scope["app"].state.turns, scope["state"]["principal"].name)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()

    async def _in_turns(self, turns: FairPlaces, principal: str) -> AsyncIterator[bytes | str]:
        part: bytes | str | None = b""
        while part is not None:
            async with turns.place(principal, begun=True):
                part = await to_thread.run_sync(next, self._content, None)
            if part is not None:
                yield part


def _passed_on(content: Iterator[bytes | str]) -> Generator[bytes | str]:
    yield from content


def respond(answer: Answer) -> Response:
    """Return an answer of the ledger as an HTTP response."""
    return Response(answer.body, answer.status, replay_header(answer), "application/json")


def replay_header(answer: Answer) -> dict[str, str]:
    """Return the header that marks an idempotent replay."""
    return {"Idempotent-Replay": "true"} if answer.replayed else {}


def ok(body: dict[str, Any]) -> Response:
    """Return a successful response with a JSON body."""
    return Response(json.dumps(body), media_type="application/json")
