"""The clients, blocking and not: they carry out the same operations."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_args

import httpx

from privacy_budget_ledger.exchange import Answer, Call, Exchange, Operation, Pause, Retries, failed
from privacy_budget_ledger.following import EVENTS, SILENCE, Entry, Following
from privacy_budget_ledger.heads import KeptHeads
from privacy_budget_ledger.operations import Operations
from privacy_budget_ledger.version import __version__

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H")
_KEY = re.compile(r"[!-~]+")
_AGENT = f"privacy-budget-ledger-client/{__version__}"


def _blocking(
    operation: Callable[Concatenate[Operations, P], Operation[T]],
) -> Callable[Concatenate["Client", P], T]:
    @wraps(operation)
    def carry_out(client: "Client", /, *arguments: P.args, **named: P.kwargs) -> T:
        steps = operation(client._operations, *arguments, **named)
        try:
            step = next(steps)
            while True:
                step = steps.send(client._carry_out(step))
        except StopIteration as done:
            return cast(T, done.value)

    return cast("Callable[Concatenate[Client, P], T]", _shown(carry_out))


def _awaitable(
    operation: Callable[Concatenate[Operations, P], Operation[T]],
) -> Callable[Concatenate["AsyncClient", P], Awaitable[T]]:
    @wraps(operation)
    async def carry_out(client: "AsyncClient", /, *arguments: P.args, **named: P.kwargs) -> T:
        steps = operation(client._operations, *arguments, **named)
        try:
            step = next(steps)
            while True:
                step = steps.send(await client._carry_out(step))
        except StopIteration as done:
            return cast(T, done.value)

    return cast("Callable[Concatenate[AsyncClient, P], Awaitable[T]]", _shown(carry_out))


def _shown(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method the signature that help() shows: it returns what its operation ends with."""
    stated = signature(method)
    *_, result = get_args(stated.return_annotation)
    method.__signature__ = stated.replace(return_annotation=result)  # type: ignore[attr-defined]
    method.__annotations__ = method.__annotations__ | {"return": result}
    return method


class _Connected(Generic[H]):
    """The common part of both clients: their settings, and the operations that they carry out."""

    _OPEN: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        address: str,
        key: str,
        *,
        heads: str | os.PathLike[str] | None = None,
        retries: Retries | None = None,
        timeout: float = 120.0,
        **connection: Any,
    ) -> None:
        """Make a client.

        Args:
            address: the service's, such as https://ledger.example.
            key: of a pipeline, or of another role with fewer operations.
            heads: a directory for the heads of this ledger's accounts. With it, each request states the newest head
                that was seen, and a ledger that does not contain it is refused with ``LedgerRolledBack``.
            retries: when a request is sent again.
            timeout: of each attempt, in seconds.
            connection: further settings of httpx, such as verify or transport.

        Raises:
            ValueError: the address is none of HTTP or contains a password, or the key has another character than keys
                have.
        """
        parsed = httpx.URL(address)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("expected an address that begins with http:// or https://, such as https://ledger.example")
        if parsed.userinfo:
            raise ValueError("expected an address without a user and a password: the key is sent instead of them")
        if not _KEY.fullmatch(key):
            raise ValueError("expected a key of printable ASCII characters, without spaces and line ends")
        headers = {"Authorization": f"Bearer {key}", "User-Agent": _AGENT}
        self._http: H = self._OPEN(base_url=address, headers=headers, timeout=timeout, **connection)
        kept = None if heads is None else KeptHeads(heads)
        self._address, self._retries = address, retries or Retries()
        self._operations = Operations(Exchange(kept, self._retries))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"


class Client(_Connected[httpx.Client]):
    """A client that blocks. Threads may share it."""

    _OPEN = httpx.Client

    def _carry_out(self, step: Call | Pause) -> Answer | httpx.HTTPError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            answer = self._http.request(
                step.method, step.path, params=step.params, headers=step.headers, content=step.content
            )
        except httpx.HTTPError as error:
            return error
        return Answer(answer.status_code, answer.headers, answer.content)

    def follow(self, account: str, *, after: int = 0) -> Iterator[Entry]:
        """Yield the entries of an account's journal after a number, and each new one as it comes, without end.

        A stream that breaks off is resumed after the last entry. Leave the loop to end it.

        Args:
            account: the account's name.
            after: the number of the last entry that you have; 0 for all of them.

        Raises:
            LedgerRolledBack: the journal ends before ``after``, as after an old backup was restored.
            Problem: the service refuses, as when the key has ended.
            ConnectionFailed: no attempt since the last entry was answered.
            UnexpectedAnswer: the answer is no stream of the journal's next entries.
        """
        following = Following(account, after, self._retries)
        while True:
            call = following.call()
            asked = self._http.stream(call.method, call.path, params=call.params, headers=call.headers, timeout=SILENCE)
            try:
                with asked as answer:
                    if answer.headers.get("Content-Type", "").startswith(EVENTS):
                        for text in answer.iter_text():
                            yield from following.read(text)
                        pause = following.ended()
                    else:
                        content = answer.read()
                        pause = following.refused(Answer(answer.status_code, answer.headers, content))
            except httpx.HTTPError as error:
                lost = following.lost(error)
                if lost is None:
                    raise failed(call, error) from None
                pause = lost
            self._carry_out(pause)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    request = _blocking(Operations.request)
    open_account = _blocking(Operations.open_account)
    account = _blocking(Operations.account)
    calibrate = _blocking(Operations.calibrate)
    register = _blocking(Operations.register)
    register_batch = _blocking(Operations.register_batch)
    balance = _blocking(Operations.balance)
    release = _blocking(Operations.release)
    releases = _blocking(Operations.releases)
    find_releases = _blocking(Operations.find_releases)
    receipt = _blocking(Operations.receipt)
    accuracy = _blocking(Operations.accuracy)
    package = _blocking(Operations.package)
    commit = _blocking(Operations.commit)
    void = _blocking(Operations.void)
    draw = _blocking(Operations.draw)
    draw_release = _blocking(Operations.draw_release)
    draw_partitions = _blocking(Operations.draw_partitions)


class AsyncClient(_Connected[httpx.AsyncClient]):
    """A client for asyncio. Heads are read and written in the event loop: their files are small."""

    _OPEN = httpx.AsyncClient

    async def _carry_out(self, step: Call | Pause) -> Answer | httpx.HTTPError | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            answer = await self._http.request(
                step.method, step.path, params=step.params, headers=step.headers, content=step.content
            )
        except httpx.HTTPError as error:
            return error
        return Answer(answer.status_code, answer.headers, answer.content)

    async def follow(self, account: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """Yield the entries of an account's journal after a number, and each new one as it comes, without end.

        A stream that breaks off is resumed after the last entry. Leave the loop to end it.

        Args:
            account: the account's name.
            after: the number of the last entry that you have; 0 for all of them.

        Raises:
            LedgerRolledBack: the journal ends before ``after``, as after an old backup was restored.
            Problem: the service refuses, as when the key has ended.
            ConnectionFailed: no attempt since the last entry was answered.
            UnexpectedAnswer: the answer is no stream of the journal's next entries.
        """
        following = Following(account, after, self._retries)
        while True:
            call = following.call()
            asked = self._http.stream(call.method, call.path, params=call.params, headers=call.headers, timeout=SILENCE)
            try:
                async with asked as answer:
                    if answer.headers.get("Content-Type", "").startswith(EVENTS):
                        async for text in answer.aiter_text():
                            for entry in following.read(text):
                                yield entry
                        pause = following.ended()
                    else:
                        content = await answer.aread()
                        pause = following.refused(Answer(answer.status_code, answer.headers, content))
            except httpx.HTTPError as error:
                lost = following.lost(error)
                if lost is None:
                    raise failed(call, error) from None
                pause = lost
            await self._carry_out(pause)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    request = _awaitable(Operations.request)
    open_account = _awaitable(Operations.open_account)
    account = _awaitable(Operations.account)
    calibrate = _awaitable(Operations.calibrate)
    register = _awaitable(Operations.register)
    register_batch = _awaitable(Operations.register_batch)
    balance = _awaitable(Operations.balance)
    release = _awaitable(Operations.release)
    releases = _awaitable(Operations.releases)
    find_releases = _awaitable(Operations.find_releases)
    receipt = _awaitable(Operations.receipt)
    accuracy = _awaitable(Operations.accuracy)
    package = _awaitable(Operations.package)
    commit = _awaitable(Operations.commit)
    void = _awaitable(Operations.void)
    draw = _awaitable(Operations.draw)
    draw_release = _awaitable(Operations.draw_release)
    draw_partitions = _awaitable(Operations.draw_partitions)
