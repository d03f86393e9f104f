"""Helper processes that answer long requests, so that the serving process keeps its interpreter for charges.

Each helper holds the whole application and answers one request at a time over a pipe, as ASGI messages. It only reads
the ledger: noisy counts go back through the pipe, the serving process stores them, and the helper writes the answer. A
helper is forked in milliseconds from a process that has imported everything and is otherwise idle. It can therefore be
ended at any moment: when the client hangs up, or when its time is over.
"""

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from starlette.types import Message, Receive, Scope, Send

from service.api.http.buffered_answer import BufferedAnswer
from service.api.http.dependencies import NOISE_KEY, PRICES_ONLY, READ_ONLY, Change, Elsewhere, HelperResult
from service.api.http.disconnects import client_gone, disconnected
from service.api.http.expected_head import HEADER
from service.api.http.fair_places import FairPlaces
from service.api.http.helper_loop import (
    END,
    FAILED,
    FOLLOWS,
    GROWN,
    OUT_OF_MEMORY,
    READ_ENTRIES,
    STOPPED,
    TAKE,
    WRITE,
    serve,
)
from service.api.http.kept_figures import TO_KEEP
from service.api.http.memory_room import Take, room_of
from service.api.identity.throttle import GIVEN_UP
from service.errors import ServiceError, TooLarge, TooManyRequests, Unavailable
from service.ledger.spending import kept_figures
from service.ledger.storage.database import Database
from service.ledger.storage.newest_heads import AT_START

_PICKLED = b"application/x-python-pickle"  # media type of answers that are not for clients
_LAST_WORDS = 5.0  # seconds until a process that ended has its exit status
_COPIES = 2  # of a large body in this process, while it is passed on
_WAITING = 64  # waiting requests of one principal
_LOOK = 1.0  # seconds between looks at a client that holds a helper
_RETRY = 5  # seconds after which a principal may ask for prices again
_HEADERS = frozenset({b"accept", b"content-type", HEADER.lower().encode()})  # the headers that operations read
_PASSED_ON = ("type", "asgi", "http_version", "method", "scheme", "server", "path", "raw_path", "query_string")


class Helpers:
    """The helper processes, and the queue for them.

    Args:
        number: the number of processes; one principal has at most all but one of them.
        application: makes the application, in the process.
        preload: the module of ``application``, imported once for all processes.
        seconds: the time in which an answer must begin.
        asking: the number of threads that may wait for a price at once.
    """

    def __init__(
        self, number: int, application: Callable[[], FastAPI], preload: str, seconds: float, asking: int
    ) -> None:
        share = max(1, number - 1)
        self.queue = FairPlaces(number, share, share, _WAITING)
        self.overran = self.hung_up = 0
        self._most_asking, self._asking, self._counting = asking, Counter[str](), threading.Condition()
        self._application, self._seconds = application, seconds
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([preload])
        self._threads = CapacityLimiter(2 * number + 2)
        self._idle: list[_Helper] = []  # the last one was used last, and has the most in its caches

    def warm(self) -> None:
        """Start one process before the first request comes."""
        with suppress(EOFError, OSError):  # a signal may end the server's own processes meanwhile
            self._idle.append(self._new())

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().end()

    async def answer(self, request: Request, body: bytes, change: Change | None, send: Send) -> None:
        """Have a helper answer a request, and pass the answer on; stop when the client hangs up.

        Args:
            request: the request.
            body: its body.
            change: writes to the ledger on the helper's behalf; None for requests that only read.
            send: receives the answer.

        Raises:
            TooManyRequests: too many of the principal's requests wait.
            Unavailable: the answer takes too long, or the process was ended.
            InvalidInput: the client has hung up.
            ServiceError: the ledger refuses the write.
        """
        messages, scope = BufferedAnswer(request, send), helper_scope(request.scope)
        if change is not None:  # idempotency stays in this process: helpers do not share it
            scope["state"][NOISE_KEY] = change.noise_key
        work = self._work(request, scope, body, change, messages.send)
        last = await self._until_disconnect(request, work, self._wait_for_slow(messages))
        if last is None:
            raise client_gone()
        await messages.pass_on()  # the helper is free by now, however slowly the client reads
        await send(last)
        if to_keep := request.scope["state"].get(TO_KEEP):
            state = request.app.state
            with suppress(ServiceError):  # the answer is complete; a later request finds the figures again
                await self._in_thread(partial(kept_figures.keep, state.database, state.secret, to_keep))

    def from_thread(self, request: Request) -> Elsewhere:
        """Return a function that asks a helper for the prices of releases, from the thread that handles the request."""
        loop, principal = asyncio.get_running_loop(), request.state.principal.name

        def ask(method: str, path: str, body: bytes) -> list[Any]:
            self._begin_asking(principal)
            try:
                return asyncio.run_coroutine_threadsafe(self._prices(request, method, path, body), loop).result()
            finally:
                with self._counting:
                    self._asking[principal] -= 1
                    self._counting.notify_all()

        return ask

    def _begin_asking(self, principal: str) -> None:
        """Count a thread that waits for prices; wait in it while the principal holds its share.

        Each principal may hold half of the places, so that others always find one.

        Raises:
            TooManyRequests: the principal's releases wait for too long.
            Unavailable: too many releases of all principals wait.
        """
        most = max(1, self._most_asking // 2)
        with self._counting:
            if not self._counting.wait_for(lambda: self._asking[principal] < most, self._seconds):
                raise TooManyRequests("too many releases of one principal wait for their price", _RETRY)
            if self._asking.total() >= self._most_asking:
                raise Unavailable("too many releases wait for their price")
            self._asking[principal] += 1
            self._asking = +self._asking  # drops principals without waiting threads

    async def _prices(self, request: Request, method: str, path: str, body: bytes) -> list[Any]:
        """Return the figures of the releases in a body.

        Raises:
            ServiceError: the helper returned it as its result.
            TooManyRequests: too many of the principal's requests wait.
            Unavailable: the helper takes too long, or was ended.
            InvalidInput: the client has hung up.
        """
        scope = helper_scope(request.scope)
        scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope["headers"] = [(b"content-type", b"application/json")]
        scope["state"][PRICES_ONLY] = True
        figures = await self._helper_result(request, scope, body)
        if isinstance(figures, list):
            return figures
        if isinstance(figures, ServiceError):
            raise figures
        raise RuntimeError("a helper refused to price what had been read")

    async def read(self, request: Request, body: bytes) -> Any:
        """Have a helper read a request that changes the ledger.

        Returns:
            The value that the helper read, or its answer: a refusal, or the answer of a dry run.

        Raises:
            TooManyRequests, Unavailable, InvalidInput: as ``answer``.
        """
        scope = helper_scope(request.scope)
        scope["state"][READ_ONLY] = True
        return await self._helper_result(request, scope, body)

    async def _helper_result(self, request: Request, scope: dict[str, Any], body: bytes) -> Any:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        last = await self._until_disconnect(request, self._work(request, scope, body, None, keep))
        if last is None:
            raise client_gone()
        start, *parts = messages
        headers = dict(start["headers"])
        if headers[b"content-type"] == _PICKLED:
            return pickle.loads(last["body"])  # noqa: S301 - of our own process
        whole = b"".join(part["body"] for part in (*parts, last))
        answer = Response(whole, start["status"])
        answer.raw_headers = start["headers"]
        return answer

    async def _wait_for_slow(self, messages: BufferedAnswer) -> None:
        """Wait until a client reads slowly while it holds a helper that others wait for."""
        while not (messages.is_slow and self.queue.waiting):
            await asyncio.sleep(_LOOK)

    async def _until_disconnect(
        self, request: Request, work: Coroutine[Any, Any, Message], *others: Coroutine[Any, Any, None]
    ) -> Message | None:
        """Return the result of some work; None where it was cancelled.

        It is cancelled when the client hangs up, or when another reason to give it up comes first.
        """
        task = asyncio.ensure_future(work)
        reasons = [asyncio.ensure_future(one) for one in (disconnected(request.receive), *others)]
        try:
            await asyncio.wait({task, *reasons}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self.hung_up += 1
            request.scope["state"].get(GIVEN_UP, lambda: None)()
            for reason in reasons:
                if reason.done():
                    reason.result()
            return None
        finally:
            for reason in reasons:
                reason.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError, ServiceError):
                await task

    async def _work(
        self, request: Request, scope: dict[str, Any], body: bytes, change: Change | None, send: Send
    ) -> Message:
        async with self.queue.place(request.state.principal.name):
            helper = self._take_idle() or await self._in_thread(self._new)
            helper.idle, helper.take = False, room_of(request.scope)
            database: Database = request.app.state.database
            try:
                message = await self._in_time(partial(helper.begin, database, scope, body))
                if change is not None and message["type"] == WRITE:
                    message = await self._write(helper, change, message)
                last = await self._relay(helper, request.scope, message, send)
                if reason := request.scope["state"].pop(STOPPED, None):
                    database.stop(reason)
                return last
            finally:
                if helper.idle and not helper.has_grown:
                    self._idle.append(helper)
                else:
                    helper.end()

    def _take_idle(self) -> "_Helper | None":
        """Return the idle process that was used last; one that was ended from outside meanwhile is left out."""
        while self._idle:
            helper = self._idle.pop()
            if helper.is_alive:
                return helper
            helper.end()
        return None

    async def _write(self, helper: "_Helper", change: Change, message: Message) -> Message:
        """Write on a helper's behalf, and return the first message of its answer.

        Raises:
            ServiceError: the ledger refuses the write. The helper is free then, and the error is answered as usual.
        """
        try:
            result = await change.in_thread(partial(change.write, message["act"], *message["arguments"]))
        except ServiceError:
            await self._in_time(partial(helper.ask, None))
            while not helper.idle:
                await self._in_thread(helper.hear)
            raise
        return await self._in_time(partial(helper.ask, (result,)))

    async def _relay(self, helper: "_Helper", scope: Scope, message: Message, send: Send) -> Message:
        """Pass on all messages but the last, which is returned."""
        database: Database = scope["app"].state.database
        while True:
            database.learn(message.pop(READ_ENTRIES, ()))  # before anything is answered from them
            following: Message = await self._in_thread(helper.hear)
            if following["type"] == END:
                break
            await send(message)
            message = following
        database.learn(following.get(READ_ENTRIES, ()))
        scope["state"].update(following["state"])
        return message

    async def _in_time(self, ask: Callable[[], Message]) -> Message:
        try:
            async with asyncio.timeout(self._seconds):
                message: Message = await self._in_thread(ask)
        except TimeoutError:
            self.overran += 1
            raise Unavailable(f"the answer took longer than {self._seconds:g} s") from None
        return message

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)

    def _new(self) -> "_Helper":
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs, self._application), name="helper", daemon=True)
        process.start()
        theirs.close()
        return _Helper(process, ours)


class _Helper:
    """One helper process, seen from the serving process."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self.idle, self.has_grown = True, False
        self._moment = AT_START  # of the heads that were sent to it
        self.take: Take = room_of({"state": {}})

    def begin(self, database: Database, scope: dict[str, Any], body: bytes) -> Message:
        """Send a request with the commits since the last one; return the first message that comes back."""
        self._moment, heads = database.newest.after(self._moment)
        return self.ask((scope, heads), body)

    def ask(self, message: object, *bodies: bytes) -> Message:
        """Send a request, or the answer that it waits for; return the first message that comes back.

        Args:
            bodies: follow the message, and are not copied, which would keep other threads waiting.
        """
        with suppress(BrokenPipeError):  # hear() reports why the process ended
            self._pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            for body in bodies:
                self._pipe.send_bytes(body)
        return self.hear()

    def hear(self) -> Message:
        """Return the next message.

        Raises:
            TooLarge: the request needs more memory than one principal may take.
            Unavailable: the memory is in use by other requests, or the process has been ended.
        """
        try:
            message: Message = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - of our own process
            if message["type"] == TAKE:
                self.take(message["bytes"])
                return self.ask(None)
            if message.get(FOLLOWS):
                self.take(_COPIES * message[FOLLOWS])
                message["body"] = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self._process.join(_LAST_WORDS)
            if self._process.exitcode == FAILED:
                raise RuntimeError("a helper failed; its error is in the log") from None
            if self._process.exitcode == OUT_OF_MEMORY:
                raise TooLarge("the request needs more memory than a helper process may take") from None
            raise Unavailable("the process that worked on the answer was ended") from None
        self.idle, self.has_grown = message["type"] == END, message.get(GROWN, False)
        return message

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.is_alive()

    def end(self) -> None:
        """End the process, whatever it does; a thread that listens to it gets an error."""
        if self._process.exitcode is None:
            self._process.kill()


class Helped(Response):
    """A response that a helper makes to a request whose body has been read; ``change`` writes on its behalf."""

    def __init__(self, helpers: Helpers, whole: bytes, change: Change | None) -> None:
        super().__init__()
        self._helpers, self._whole, self._change = helpers, whole, change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the answer made, and send it."""
        await self._helpers.answer(Request(scope, receive, send), self._whole, self._change, send)


def install(app: FastAPI) -> None:
    """Let an application in a helper return the values that it computes for the serving process."""

    def tell(_: Request, error: Exception) -> Response:
        return Response(pickle.dumps(cast(HelperResult, error).found), media_type=_PICKLED.decode())

    app.add_exception_handler(HelperResult, tell)


def helper_scope(scope: Scope) -> dict[str, Any]:
    """Return the parts of a request that a helper receives: no key and no cookies, and the principal from its state."""
    passed_on = {name: scope[name] for name in _PASSED_ON if name in scope}
    state = {name: scope["state"][name] for name in ("principal", "request_id") if name in scope["state"]}
    headers = [(name, value) for name, value in scope["headers"] if name in _HEADERS]
    return passed_on | {"headers": headers, "state": state, "root_path": "", "client": None}
