"""What handlers are given: the database, and for changing requests their identity and their threads."""

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response

from service.errors import InvalidInput
from service.ledger import idempotency
from service.ledger.database import Database
from service.ledger.installation import Secret
from service.ledger.keys import Principal
from service.ledger.once import Answer


async def _database(request: Request) -> Database:  # async, as FastAPI would give it a thread otherwise
    database: Database = request.app.state.database
    return database


CurrentDatabase = Annotated[Database, Depends(_database)]


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes the ledger."""

    database: Database
    secret: Secret
    principal: Principal
    request: idempotency.Request
    threads: Executor


async def _change(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="At most 255 printable ASCII characters. The first success is replayed to the same request.",
        ),
    ] = None,
) -> Change:
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
        digest = idempotency.request_digest(secret, request.method, path, await request.body())
    identity = idempotency.Request(principal.name, idempotency_key, digest, getattr(request.state, "kept", None))
    return Change(state.database, secret, principal, identity, state.writers)


Changing = Annotated[Change, Depends(_change)]


def in_writers(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Run a handler that writes in the writers' threads.

    Writers wait for locks; in threads of their own they leave the readers' free, and queue in order.
    """

    @functools.wraps(handler)
    async def run(*args: Any, **named: Any) -> Any:
        change = next(value for value in named.values() if isinstance(value, Change))
        work = functools.partial(handler, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(change.threads, work)

    return run


def respond(answer: Answer) -> Response:
    """An answer of the ledger as HTTP."""
    headers = {"Idempotent-Replay": "true"} if answer.replayed else None
    return Response(answer.body, answer.status, headers, "application/json")


def ok(body: dict[str, Any]) -> Response:
    """What was read or computed."""
    return Response(json.dumps(body), media_type="application/json")
