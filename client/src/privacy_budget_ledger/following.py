"""The journal of an account as it grows, without input or output: requests, texts of streams and entries as values."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from privacy_budget_ledger.errors import UnexpectedAnswer, problem_of
from privacy_budget_ledger.exchange import Answer, Call, Pause, Retries, is_lost

EVENTS = "text/event-stream"
SILENCE = 60.0
"""Seconds after which a stream is lost: the service sends a comment every 15 seconds."""


@dataclass(frozen=True)
class Entry:
    """An entry of a journal; ``document`` is the whole item, as the list of entries has it."""

    seq: int
    kind: str
    hash: str
    previous: str
    document: Mapping[str, Any] = field(repr=False)


class Following:
    """The state of a client that follows a journal: the last entry that it has, and how often it failed since."""

    def __init__(self, account: str, after: int, retries: Retries) -> None:
        if after < 0:
            raise ValueError("expected the number of an entry, or 0")
        self._path = f"/v1/accounts/{quote(account, safe='')}/journal"
        self._after, self._retries = after, retries
        self._failed, self._text = 0, ""

    def call(self) -> Call:
        """Return the request for the entries after the last one."""
        self._text = ""
        return Call("GET", self._path, {"after": self._after}, {"Accept": f"{EVENTS}, application/problem+json;q=0.1"})

    def read(self, text: str) -> Iterator[Entry]:
        """Yield the entries that a further text of the stream completes, each once in the order of the journal.

        Raises:
            UnexpectedAnswer: it is no entry, or not the next one.
        """
        *events, self._text = (self._text + text).split("\n\n")
        for event in events:
            data = [line.removeprefix("data: ") for line in event.split("\n") if line.startswith("data: ")]
            if data:
                entry = _entry("".join(data))
                if entry.seq != self._after + 1:
                    raise UnexpectedAnswer(f"expected entry {self._after + 1} of the journal, got entry {entry.seq}")
                self._after, self._failed = entry.seq, 0
                yield entry

    def ended(self) -> Pause:
        """Return the pause after a stream that the service ended."""
        return Pause(self._retries.shortest)

    def refused(self, answer: Answer) -> Pause:
        """Return the pause after an answer that is no stream.

        Raises:
            Problem: another request would get the same answer, or all attempts failed.
            UnexpectedAnswer: it is not the service's.
        """
        pause = self._pause(answer.retry_after) if answer.is_busy else None
        if pause is not None:
            return pause
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        try:
            members = json.loads(answer.content) if kind == "application/problem+json" else None
        except ValueError:
            members = None
        if not isinstance(members, dict):
            raise UnexpectedAnswer(f"expected a stream of events, got status {answer.status} and {kind or 'no type'}")
        raise problem_of(answer.status, members, answer.retry_after)

    def lost(self, error: httpx.HTTPError) -> Pause | None:
        """Return the pause after a connection that failed; None where another attempt makes no sense."""
        return self._pause(None) if is_lost(error) else None

    def _pause(self, retry_after: float | None) -> Pause | None:
        self._failed += 1
        pause = self._retries.pause(self._failed, retry_after)
        return None if pause is None else Pause(pause)


def _entry(text: str) -> Entry:
    try:
        item = json.loads(text)
        entry = item["entry"]
        return Entry(int(entry["seq"]), str(entry["kind"]), str(item["hash"]), str(item["previous"]), item)
    except (LookupError, TypeError, ValueError) as error:
        message = f"expected an entry of a journal, got another document: {type(error).__name__}"
    raise UnexpectedAnswer(message)
