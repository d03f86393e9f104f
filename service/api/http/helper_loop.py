"""The loop of a helper process: it answers one request at a time over its pipe, as ASGI messages."""

import asyncio
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
from service.api.http.kept_figures import TO_KEEP
from service.api.http.problems import KINDS, problem
from service.errors import Unavailable
from service.memory_privacy import forbid_dumps

STOPPED = "stopped"  # in the state of a request: the reason why nothing may be written any more
FAILED = 1  # exit status after an error
_NOT_STARTED = 2  # where the database does not answer
END = "end"  # type of the message that follows a request's last one
WRITE = "write"  # type of a message that has the serving process write; its answer comes before the rest
FOLLOWS = "follows"  # key of a message: the bytes of its body, which follows separately and is not copied on the way
READ_ENTRIES = "read_entries"  # likewise: those that it was the first to read, for the high-water mark
_BROUGHT_BACK = ("problem", TO_KEEP, STOPPED, READ_ENTRIES)  # keys of a request's state that a helper returns
_LARGE = 1 << 20  # bytes of a body that follows separately
_NICENESS = 10


class _RefusedWrite(Exception):
    """Refusal of a write by the serving process, which answers it."""


def _empty_answer(_: Request, __: Exception) -> Response:
    return Response()  # not passed on


async def _failure(request: Request, _: Exception) -> Response:
    return problem("internal", KINDS["internal"].explanation, request.scope["path"])


def serve(pipe: Connection, application: Callable[[], FastAPI]) -> None:
    """Answer requests until the server has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the server
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forbid_dumps()
    os.nice(_NICENESS)
    try:
        app = application()
    except Unavailable as error:
        structlog.get_logger("service.helpers").error("a helper cannot start", detail=error.for_operator or str(error))
        sys.exit(_NOT_STARTED)
    app.state.database.remembers = True
    app.add_exception_handler(_RefusedWrite, _empty_answer)
    app.add_exception_handler(Exception, _failure)
    with asyncio.Runner() as runner:
        while True:
            try:
                scope, body, heads = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of our own process
            except (EOFError, OSError):
                return
            app.state.database.newest.add(heads)
            runner.run(_answer(app, scope, body, pipe))


async def _answer(app: FastAPI, scope: Scope, body: bytes, pipe: Connection) -> None:
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

    scope["state"][WRITES] = write
    try:
        try:
            await app(scope, receive, send)
        except BrokenPipeError:
            raise
        except Exception:  # already answered, unless a part of another answer had been sent
            logging.getLogger("service.helpers").exception("request")  # without its message, which might quote input
            if not whole:
                os._exit(FAILED)
        scope["state"] |= {
            STOPPED: app.state.database.stopped,
            READ_ENTRIES: app.state.database.take_committed(),
        }
        left_behind = {name: scope["state"][name] for name in _BROUGHT_BACK if name in scope["state"]}
        await send({"type": END, "state": left_behind})
    except BrokenPipeError:  # the server has gone
        os._exit(0)
