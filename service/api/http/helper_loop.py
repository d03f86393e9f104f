"""The loop of a helper process: it answers one request at a time over its pipe, as ASGI messages."""

import asyncio
import gc
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from starlette.types import Message, Scope

from service.api.http.dependencies import WRITES
from service.api.http.helper_memory import HelperMemory
from service.api.http.kept_figures import TO_KEEP
from service.api.http.memory_room import ROOM, Take
from service.api.http.problems import KINDS, problem
from service.errors import Unavailable
from service.ledger.storage.database import Database
from service.memory_privacy import forbid_dumps

STOPPED = "stopped"  # in the state of a request: the reason why nothing may be written any more
FAILED = 1  # exit status after an error
_NOT_STARTED = 2  # where the database does not answer
OUT_OF_MEMORY = 3  # where a request needs more than it may take
END = "end"  # type of the message that follows a request's last one
TAKE = "take"  # type of a message that has the serving process reserve memory; it answers, or ends this process
GROWN = "grown"  # key of the last message: this process keeps so much memory that it should be replaced
WRITE = "write"  # type of a message that has the serving process write; its answer comes before the rest
FOLLOWS = "follows"  # key of a message: the bytes of its body, which follows separately and is not copied on the way
READ_ENTRIES = "read_entries"  # key of a message: the entries that it was the first to read, for the high-water mark
_BROUGHT_BACK = ("problem", TO_KEEP, STOPPED)  # keys of a request's state that a helper returns
_LARGE = 1 << 20  # bytes of a body that follows separately
_SMALL = 1 << 20  # bytes that a request takes without a reservation
_NICENESS = 10
_COLLECTED_AFTER = 100_000
"""Objects after which cycles are looked for. Plans are millions of objects without any, and Python's own 700 would take
a quarter of the time of a large balance."""


class _RefusedWrite(Exception):
    """Refusal of a write by the serving process, which answers it."""


def _empty_answer(_: Request, __: Exception) -> Response:
    return Response()  # not passed on


async def _failure(request: Request, _: Exception) -> Response:
    return problem("internal", KINDS["internal"].explanation, request.scope["path"])


async def _out_of_memory(_: Request, __: Exception) -> Response:
    os._exit(OUT_OF_MEMORY)


def serve(pipe: Connection, application: Callable[[], FastAPI]) -> None:
    """Answer requests until the server has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the server
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forbid_dumps()
    os.nice(_NICENESS)
    gc.set_threshold(_COLLECTED_AFTER)
    try:
        app = application()
    except Unavailable as error:
        structlog.get_logger("service.helpers").error("a helper cannot start", detail=error.for_operator or str(error))
        sys.exit(_NOT_STARTED)
    app.state.database.remembers = True
    app.add_exception_handler(_RefusedWrite, _empty_answer)
    app.add_exception_handler(MemoryError, _out_of_memory)
    app.add_exception_handler(Exception, _failure)
    memory = HelperMemory(app.state.settings.memory_of_helper)
    with asyncio.Runner() as runner:
        while True:
            memory.allow(0)
            try:
                scope, heads = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of our own process
                body = pipe.recv_bytes()
            except (EOFError, OSError):
                return
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
            app.state.database.newest.add(heads)
            runner.run(_answer(app, scope, body, pipe, memory))


def _room(pipe: Connection, memory: HelperMemory) -> Take:
    """Return the function that has the serving process reserve memory, which this process may then take."""

    def take(size: int) -> None:
        if size > _SMALL:
            pipe.send_bytes(pickle.dumps({"type": TAKE, "bytes": size}))
            pipe.recv_bytes()
            memory.allow(size)

    return take


def _with_read(database: Database, message: Message) -> Message:
    """Return a message with the entries that were read for it: after it the client may hang up, and the process end."""
    read = database.take_committed()
    return {**message, READ_ENTRIES: read} if read else message


async def _answer(app: FastAPI, scope: Scope, body: bytes, pipe: Connection, memory: HelperMemory) -> None:
    structlog.contextvars.bind_contextvars(request_id=scope["state"].get("request_id"))
    unread, whole = [body], False

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()  # a hang-up of the client ends the process
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal whole
        whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        content = message.get("body", b"")
        if len(content) > _LARGE:
            message = {**message, "body": b"", FOLLOWS: len(content)}
        message = _with_read(app.state.database, message)
        pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        if FOLLOWS in message:
            pipe.send_bytes(content)

    def write(act: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        message = {"type": WRITE, "act": act, "arguments": arguments}
        pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        answered = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of our own process
        if answered is None:
            raise _RefusedWrite
        return answered[0]

    scope["state"] |= {WRITES: write, ROOM: _room(pipe, memory)}
    try:
        try:
            await app(scope, receive, send)
        except BrokenPipeError:
            raise
        except Exception:  # already answered, unless a part of another answer had been sent
            logging.getLogger("service.helpers").exception("request")  # without its message, which might quote input
            if not whole:
                os._exit(FAILED)
        scope["state"][STOPPED] = app.state.database.stopped
        left_behind = {name: scope["state"][name] for name in _BROUGHT_BACK if name in scope["state"]}
        await send({"type": END, "state": left_behind, GROWN: memory.has_grown})
    except BrokenPipeError:  # the server has gone
        os._exit(0)
