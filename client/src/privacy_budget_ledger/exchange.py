"""One exchange with the service, without input or output: requests, pauses and answers as values.

An operation is a generator. It yields a ``Call`` and is sent its ``Answer``, or the error of httpx; it yields a
``Pause`` and is sent nothing. The clients in ``clients`` carry these out, blocking or not.
"""

import email.utils
import json
import random
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx

from privacy_budget_ledger.errors import ConnectionFailed, LedgerError, UnexpectedAnswer, problem_of
from privacy_budget_ledger.heads import Head, KeptHeads, rolled_back

T = TypeVar("T")
ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"
_ACCOUNT = re.compile(r"/v1/accounts/([^/?]+)(/[^?]*)?(?:\?.*)?")
_PRESENT = (None, "/head", "/history")  # below an account: answers to GET that have its present head
_KEY = re.compile(r"[ -~]{1,255}")
_AGAIN = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_BUSY = (429, 502, 503, 504)  # 502 and 504 are a proxy's: the request may have been carried out


@dataclass(frozen=True)
class Call:
    """A request; its body, which may have true counts, is not in its repr."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Answer:
    """An answer; its body is not in its repr."""

    status: int
    headers: httpx.Headers
    content: bytes = field(repr=False)

    @property
    def retry_after(self) -> float | None:
        """The seconds of its Retry-After header, from now where it is a date; None without a valid one."""
        text = str(self.headers.get("Retry-After", ""))
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (OverflowError, ValueError):
            return None

    @property
    def is_busy(self) -> bool:
        """Return whether the same request may get another answer later."""
        return self.status in _BUSY


@dataclass(frozen=True)
class Pause:
    """A time to wait, in seconds."""

    seconds: float


Operation = Generator[Call | Pause, Answer | httpx.HTTPError | None, T]


@dataclass(frozen=True)
class Retries:
    """The rules for sending a request again: after connection errors, timeouts, 429, 502, 503 and 504 alone.

    Attributes:
        attempts: how often a request is sent at most.
        shortest: the pause after the first attempt, in seconds; each further one is twice as long.
        longest: the longest pause; a longer Retry-After ends the attempts.
        jitter: returns a number from 0 to 1; a pause is shortened by up to half.
    """

    attempts: int = 6
    shortest: float = 0.5
    longest: float = 60.0
    jitter: Callable[[], float] = field(default=random.random, repr=False)

    def pause(self, attempt: int, retry_after: float | None) -> float | None:
        """Return the pause after an attempt, counted from 1; None to give up."""
        if attempt >= self.attempts or (retry_after or 0) > self.longest:
            return None
        backoff: float = min(self.longest, self.shortest * 2 ** (attempt - 1)) * (1 - self.jitter() / 2)
        return max(backoff, retry_after or 0.0)


class Exchange:
    """The way of every request: a head that is expected, a key, attempts, and a problem as an error."""

    def __init__(self, heads: KeptHeads | None, retries: Retries) -> None:
        self._heads, self._retries = heads, retries

    def json(
        self,
        read: Callable[[Any], T],
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Operation[T]:
        """Send JSON; return what ``read`` makes of the parsed answer, or of its text where it is not JSON."""
        headers = {} if body is None else {"Content-Type": _JSON}
        content = None if body is None else json.dumps(body).encode()

        def result(answer: Answer, parsed: Any) -> T:
            return read(answer.content.decode() if parsed is None else parsed)

        return self._send(Call(method, path, params or {}, headers, content), key, result)

    def arrow(
        self, read: Callable[[Answer], T], path: str, stream: bytes, params: Mapping[str, Any], key: str
    ) -> Operation[T]:
        """Send a stream of counts; return what ``read`` makes of the answer with the stream of noisy counts."""
        call = Call("POST", path, params, {"Content-Type": ARROW, "Accept": ARROW}, stream)
        return self._send(call, key, lambda answer, _: read(answer))

    def file(self, path: str, params: Mapping[str, Any], media_type: str) -> Operation[bytes]:
        """Return the content of a file."""
        accept = f"{media_type}, application/problem+json"
        return self._send(Call("GET", path, params, {"Accept": accept}), None, lambda answer, _: answer.content)

    def _send(self, call: Call, key: str | None, read: Callable[[Answer, Any], T]) -> Operation[T]:
        if not call.path.startswith("/") or call.path.startswith("//"):
            raise ValueError("expected a path such as /v1/principal: the key is sent to no other address")
        headers, expected = dict(call.headers), None
        if call.method != "GET":
            key = headers["Idempotency-Key"] = key_of(key)
        found = _ACCOUNT.fullmatch(call.path)
        account = None if found is None else unquote(found[1])
        try:
            if self._heads is not None and account is not None and (expected := self._heads.of(account)) is not None:
                headers["If-Ledger-Includes"] = str(expected)
            answer = yield from self._attempts(Call(call.method, call.path, call.params, headers, call.content))
            parsed = _parsed(answer)
            if call.path == "/v1/accounts" and isinstance(parsed, dict):
                account = parsed.get("name")  # it has just been opened
            if self._heads is not None and account is not None:
                present = found is None or call.method != "GET" or found[2] in _PRESENT
                _keep(self._heads, account, answer, parsed, expected if present else None)
            return _result(read, answer, parsed)
        except LedgerError as error:
            error.idempotency_key = key
            raise

    def _attempts(self, call: Call) -> Operation[Answer]:
        attempt = 0
        while True:
            attempt += 1
            reply = yield call
            if isinstance(reply, Answer) and not reply.is_busy:
                return reply
            if isinstance(reply, Answer):
                pause = self._retries.pause(attempt, reply.retry_after)
            else:
                pause = self._retries.pause(attempt, None) if is_lost(reply) else None
            if pause is not None:
                yield Pause(pause)
            elif isinstance(reply, Answer):
                return reply
            else:
                raise failed(call, reply)


def is_lost(error: Any) -> bool:
    """Return whether an error is one of the connection, after which a request is sent again."""
    return isinstance(error, _AGAIN)


def failed(call: Call, error: Any) -> ConnectionFailed:
    """Return the error of a request without an answer, without the error itself, which refers to the counts."""
    return ConnectionFailed(f"no answer to {call.method} {call.path}: {_reason(error)}")


def _reason(error: Any) -> str:
    """Return the kind of an error, and its text unless that may quote a header, such as the one with the key."""
    kind = type(error).__name__
    return kind if isinstance(error, httpx.ProtocolError) else f"{kind}: {error}"


def _result(read: Callable[[Answer, Any], T], answer: Answer, parsed: Any) -> T:
    try:
        return read(answer, parsed)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"expected a result of the service, got another document: {type(error).__name__}"
    raise UnexpectedAnswer(message)


def _keep(heads: KeptHeads, account: str, answer: Answer, parsed: Any, expected: Head | None) -> None:
    """Keep the head of an answer, where it has one; ``expected`` is in the journal whose present head this is.

    Raises:
        LedgerRolledBack: the answer's head contradicts the expected or the kept one.
    """
    text = answer.headers.get("X-Ledger-Head")
    stated = parsed if isinstance(parsed, dict) else {}
    batch = stated.get("releases")
    if isinstance(batch, list) and batch and isinstance(batch[-1], dict):
        stated = batch[-1]
    stated = stated["head"] if isinstance(stated.get("head"), dict) else stated
    if {"seq", "hash"} <= set(stated):
        text = f"{stated['seq']}:{stated['hash']}"
    if text is None:
        return
    head = _head(text)
    if expected is not None and head.seq < expected.seq and answer.headers.get("Idempotent-Replay") != "true":
        raise rolled_back(account, f"the answer's head of {account!r} is older than the one that was expected")
    heads.keep(account, head)


def _head(text: str) -> Head:
    try:
        return Head.read(text)
    except ValueError as error:
        message = f"the answer's head: {error}"
    raise UnexpectedAnswer(message)


def _parsed(answer: Answer) -> Any:
    """Return the JSON of an answer; None where it is of another type.

    Raises:
        Problem: the answer is a problem.
        UnexpectedAnswer: it is neither that nor a result.
    """
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    is_problem = kind == "application/problem+json"
    try:
        parsed = json.loads(answer.content) if is_problem or kind == _JSON else None
    except ValueError:
        parsed, is_problem = None, False
        kind = "malformed JSON"
    if is_problem and isinstance(parsed, dict):
        raise problem_of(answer.status, parsed, answer.retry_after)
    if not 200 <= answer.status < 300 or kind == "malformed JSON":
        raise UnexpectedAnswer(f"expected an answer of the service, got status {answer.status} and {kind or 'no type'}")
    return parsed


def key_of(stated: str | None) -> str:
    """Return the idempotency key that a caller states, or a fresh one.

    Raises:
        ValueError: the service does not accept the stated key.
    """
    if stated is None:
        return str(uuid.uuid4())
    if not _KEY.fullmatch(stated):  # an empty one too: a fresh key in its place would charge a repeated call again
        raise ValueError("expected an idempotency key of 1 to 255 printable ASCII characters")
    return stated
