"""One exchange with the service, without input or output: requests, pauses and answers as values.

An operation is a generator. It yields a ``Call`` and is sent its ``Answer``, or the error of httpx; it yields a
``Pause`` and is sent nothing. The clients in ``clients`` carry these out, blocking or not.
"""

import json
import random
import re
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx

from privacy_budget_ledger.errors import ConnectionFailed, LedgerError, UnexpectedAnswer, problem_of
from privacy_budget_ledger.heads import Head, KeptHeads

T = TypeVar("T")
ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"
_ACCOUNT = re.compile(r"/v1/accounts/([^/]+)(?:/.*)?")
_AGAIN = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)
_BUSY = (429, 503)


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
        """The seconds of its Retry-After header; None without one, or where it is a date."""
        text = str(self.headers.get("Retry-After", ""))
        return float(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True)
class Pause:
    """A time to wait, in seconds."""

    seconds: float


Operation = Generator[Call | Pause, Answer | httpx.HTTPError | None, T]


@dataclass(frozen=True)
class Retries:
    """The rules for sending a request again: after connection errors, timeouts, 429 and 503, never after other answers.

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
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Operation[Any]:
        """Send JSON; return the parsed answer, or its text where it is not JSON."""
        headers = {} if body is None else {"Content-Type": _JSON}
        content = None if body is None else json.dumps(body).encode()
        answer, parsed = yield from self._send(Call(method, path, params or {}, headers, content), key)
        return answer.content.decode() if parsed is None else parsed

    def arrow(self, path: str, stream: bytes, params: Mapping[str, Any], key: str) -> Operation[Answer]:
        """Send a stream of counts; return the answer with the stream of noisy counts."""
        call = Call("POST", path, params, {"Content-Type": ARROW, "Accept": ARROW}, stream)
        answer, _ = yield from self._send(call, key)
        return answer

    def _send(self, call: Call, key: str | None) -> Operation[tuple[Answer, Any]]:
        found = _ACCOUNT.fullmatch(call.path)
        account = None if found is None else unquote(found[1])
        headers = dict(call.headers)
        if call.method != "GET":
            key = headers["Idempotency-Key"] = key or new_key()
        try:
            if self._heads is not None and account is not None and (head := self._heads.of(account)) is not None:
                headers["If-Ledger-Includes"] = str(head)
            answer = yield from self._attempts(Call(call.method, call.path, call.params, headers, call.content))
            parsed = _parsed(answer)
            if call.path == "/v1/accounts" and isinstance(parsed, dict):
                account = parsed.get("name")  # it has just been opened
            if self._heads is not None and account is not None:
                _keep(self._heads, account, answer, parsed)
        except LedgerError as error:
            error.idempotency_key = key
            raise
        return answer, parsed

    def _attempts(self, call: Call) -> Operation[Answer]:
        attempt = 0
        while True:
            attempt += 1
            reply = yield call
            if isinstance(reply, Answer) and reply.status not in _BUSY:
                return reply
            if isinstance(reply, Answer):
                pause = self._retries.pause(attempt, reply.retry_after)
            else:
                pause = self._retries.pause(attempt, None) if isinstance(reply, _AGAIN) else None
            if pause is not None:
                yield Pause(pause)
            elif isinstance(reply, Answer):
                return reply
            else:  # without the error itself, which refers to the request and so to the counts
                raise ConnectionFailed(f"no answer to {call.method} {call.path}: {type(reply).__name__}: {reply}")


def _keep(heads: KeptHeads, account: str, answer: Answer, parsed: Any) -> None:
    """Keep the head of an answer, where it has one."""
    text = answer.headers.get("X-Ledger-Head")
    stated = parsed.get("head") if isinstance(parsed, dict) else None
    if isinstance(stated, dict) and {"seq", "hash"} <= set(stated):
        text = f"{stated['seq']}:{stated['hash']}"
    if text is not None:
        heads.keep(account, _head(text))


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


def new_key() -> str:
    """Return a fresh idempotency key."""
    return str(uuid.uuid4())
