"""An account's journal as server-sent events, over a socket."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from fastapi import FastAPI

from service.api.http.followed_journals import OF_PRINCIPAL, FollowedJournals
from service.api.routes import journal_streams
from service.api.routes.journal_streams import JournalStream
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.server import EndSignal, Server, configuration
from tests.api.calls import (
    STEWARD,
    Answer,
    Client,
    application,
    bearer,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_JOURNAL = "/v1/accounts/people/journal"
_EVENTS = {"Accept": "text/event-stream"}


@contextmanager
def _running(app: FastAPI) -> Iterator[tuple[Client, Server]]:
    """A steward's client of a server as the command line makes it, and that server."""
    server = Server(configuration(app.state.settings, app, "127.0.0.1", 0), app, 0, EndSignal())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with Client(base_url=address, headers=bearer(STEWARD), timeout=60) as client:
                yield client, server
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def running(app: FastAPI) -> Iterator[tuple[Client, Server]]:
    with _running(app) as (client, server):
        open_account(client)
        yield client, server


@pytest.fixture
def steward(running: tuple[Client, Server]) -> Client:
    return running[0]


def _parts(answer: Answer) -> Iterator[dict[str, str]]:
    """The parts of a stream, each by the names of its fields; a comment has an empty name."""
    assert answer.status_code == 200, answer.read()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    kept = ""
    for text in answer.iter_text():  # not by lines: the client would end one at U+2028 too
        *whole, kept = (kept + text).split("\n\n")
        for part in whole:
            yield {name: value for name, _, value in (line.partition(": ") for line in part.split("\n"))}
    assert not kept


def _events(answer: Answer) -> Iterator[dict[str, str]]:
    return (part for part in _parts(answer) if "data" in part)


def _items(client: Client) -> list[Any]:
    items: list[Any] = json_of(client.get(_JOURNAL))["items"]
    return items


def test_a_stream_has_the_entries_of_the_list_and_goes_on_with_new_ones(steward: Client) -> None:
    release(steward, pure("0.1"), name="Zählung\u2028data: x")
    with steward.stream("GET", _JOURNAL, headers=_EVENTS) as answer:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Accel-Buffering"] == "no"
        parts = _parts(answer)
        assert next(parts) == {"retry": "3000"}
        received = [next(parts), next(parts)]
        release(steward, pure("0.2"))
        received.append(next(part for part in parts if "data" in part))
    items = _items(steward)
    assert [json.loads(one["data"]) for one in received] == items
    assert [one["id"] for one in received] == ["1", "2", "3"]
    assert [one["event"] for one in received] == ["account_opened", "committed", "committed"]


def test_a_client_resumes_after_the_last_entry_that_it_has(steward: Client) -> None:
    for _ in range(3):
        release(steward, pure("0.1"))
    for query, header, first in (("?after=2", {}, "3"), ("?after=1", {"Last-Event-ID": "3"}, "4"), ("", {}, "1")):
        with steward.stream("GET", f"{_JOURNAL}{query}", headers=_EVENTS | header) as answer:
            assert next(_events(answer))["id"] == first


def test_what_a_stream_does_not_take_is_refused(steward: Client) -> None:
    for query in ("limit=1", "cursor=MQ", "since=1"):
        assert pointers_of(steward.get(f"{_JOURNAL}?{query}", headers=_EVENTS)) == [f"/query/{query.split('=')[0]}"]
    for after in ("-1", "1.5", "NaN", "9" * 30):
        assert pointers_of(steward.get(f"{_JOURNAL}?after={after}", headers=_EVENTS)) == ["/query/after"]
    for last in ("-1", "x", "9" * 16, "1" * 5000):
        answer = steward.get(_JOURNAL, headers=_EVENTS | {"Last-Event-ID": last})
        assert pointers_of(answer) == ["/header/Last-Event-ID"]
    problem_of(steward.get("/v1/accounts/none/journal", headers=_EVENTS), "not_found")
    for query, header in (("?after=2", {}), ("", {"Last-Event-ID": "2"})):  # it would wait for ever
        answer = steward.get(f"{_JOURNAL}{query}", headers=_EVENTS | header)
        assert problem_of(answer, "ledger_rolled_back")["account"] == "people"
    kept = {"If-Ledger-Includes": f"1:{'0' * 64}"}
    problem_of(steward.get(_JOURNAL, headers=_EVENTS | kept), "ledger_rolled_back")


def test_a_limited_key_follows_the_accounts_that_it_reaches(steward: Client) -> None:
    open_account(steward, "others")
    key = make_key(steward, "auditor", accounts=["others"]) | _EVENTS
    problem_of(steward.get(_JOURNAL, headers=key), "forbidden")
    with steward.stream("GET", "/v1/accounts/others/journal", headers=key) as answer:
        assert json.loads(next(_events(answer))["data"])["entry"]["account"] == "others"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("*/*", "application/json"),
        ("text/*", "text/csv"),
        ("text/csv, text/event-stream;q=0.5", "text/csv"),
        ("application/json, text/event-stream;q=0.9", "application/json"),
    ],
)
def test_only_a_client_that_prefers_events_gets_them(accept: str, expected: str, steward: Client) -> None:
    assert steward.get(_JOURNAL, headers={"Accept": accept}).headers["Content-Type"].startswith(expected)


def test_one_principal_has_a_bounded_number_of_streams(running: tuple[Client, Server]) -> None:
    steward, _ = running
    hostile, other = make_key(steward, "auditor", "hostile"), make_key(steward, "auditor", "other")
    followed = []  # the client closes a stream that nobody iterates any more
    with ExitStack() as streams:
        for _ in range(OF_PRINCIPAL):
            answer = streams.enter_context(steward.stream("GET", _JOURNAL, headers=hostile | _EVENTS))
            followed.append(_events(answer))
            assert next(followed[-1])["id"] == "1"
        refused = steward.get(_JOURNAL, headers=hostile | _EVENTS)
        assert "at most 16 streams" in problem_of(refused, "too_many_requests")["detail"]
        assert refused.headers["Retry-After"]
        # Streams that wait take nobody's turn and no thread.
        with steward.stream("GET", _JOURNAL, headers=other | _EVENTS) as answer:
            events = _events(answer)
            assert next(events)["id"] == "1"
            release(steward, pure("0.1"))
            assert next(events)["id"] == "2"
            assert {next(one)["id"] for one in followed} == {"2"}
    _until(lambda: steward.stream("GET", _JOURNAL, headers=hostile | _EVENTS))


def _until(ask: Any) -> None:
    """Ask until the streams that were closed are no longer counted."""
    end = time.monotonic() + 60
    while True:
        with ask() as answer:
            if answer.status_code == 200:
                return
        assert time.monotonic() < end
        time.sleep(0.05)


def test_all_principals_together_have_a_quarter_of_the_connections(database: Database, secret: Secret) -> None:
    with _running(application(database, secret, max_connections=8)) as (steward, _), ExitStack() as streams:
        open_account(steward)
        keys = [make_key(steward, "auditor", name) for name in ("a", "b", "c")]
        for key in keys[:2]:
            assert streams.enter_context(steward.stream("GET", _JOURNAL, headers=key | _EVENTS)).status_code == 200
        refused = steward.get(_JOURNAL, headers=keys[2] | _EVENTS)
        assert "at most 2 streams" in problem_of(refused, "too_many_requests")["detail"]


def test_the_end_of_a_key_ends_its_streams(steward: Client) -> None:
    key = make_key(steward, "auditor", "leaving")
    with steward.stream("GET", _JOURNAL, headers=key | _EVENTS) as answer:
        parts = _parts(answer)
        next(parts), next(parts)
        (made,) = [one["id"] for one in json_of(steward.get("/v1/keys"))["items"] if one["name"] == "leaving"]
        assert steward.delete(f"/v1/keys/{made}").status_code == 204
        release(steward, pure("0.1"))
        *_, last = parts
    assert last == {"": "the stream ends: the key is unknown, expired or revoked"}


def test_a_server_that_stops_ends_its_streams(running: tuple[Client, Server]) -> None:
    steward, server = running
    with steward.stream("GET", _JOURNAL, headers=_EVENTS) as answer:
        events = _events(answer)
        next(events)
        server.should_exit = True
        assert list(events) == []  # an answer that broke off would raise


def test_a_comment_keeps_a_silent_stream_open(steward: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_streams, "_HEARTBEAT", 0)
    with steward.stream("GET", f"{_JOURNAL}?after=1", headers=_EVENTS) as answer:
        parts = _parts(answer)
        next(parts)
        assert [next(parts), next(parts)] == [{"": ""}, {"": ""}]


def test_long_entries_come_in_pieces_and_the_principal_rests_after_them(
    steward: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        release(steward, pure("0.01"), name=f"{number} {'x' * 100}")
    rested: list[float] = []

    async def rest(_: FollowedJournals, seconds: float) -> None:
        rested.append(seconds)

    monkeypatch.setattr(FollowedJournals, "rest", rest)
    for longest, rests in ((50, True), (1 << 19, False)):
        monkeypatch.setattr(journal_streams, "_LONG", longest)
        rested.clear()
        with steward.stream("GET", _JOURNAL, headers=_EVENTS) as answer:
            events = _events(answer)
            found = [json.loads(next(events)["data"]) for _ in range(4)]
            release(steward, pure("0.01"))
            found.append(json.loads(next(events)["data"]))
        assert found[:4] == _items(steward)[:4]
        assert bool(rested) is rests
        assert all(0 < one <= 30 for one in rested)


def test_nothing_is_read_for_a_client_that_does_not_read(
    database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection ends, and what the server holds for it meanwhile is bounded."""
    read: list[int] = []

    def endless(_: JournalStream, after: int) -> list[tuple[int, bytes]]:
        read.append(after + 1)
        return [(after + 1, bytes(1 << 20))]

    monkeypatch.setattr(JournalStream, "read", endless)
    monkeypatch.setattr("service.api.http.followed_journals.FollowedJournals.wait", _at_once)
    with _running(application(database, secret, answer_seconds=1.0)) as (steward, _):
        open_account(steward)
        address = steward.base_url
        with socket.create_connection((str(address.host), address.port or 0)) as silent:
            lines = f"GET {_JOURNAL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
            silent.sendall(f"{lines}Accept: text/event-stream\r\n\r\n".encode())
            _until_quiet(read)
            silent.settimeout(60)
            assert _received(silent) < 1 << 26  # closed by force, as the client did not read
    assert 0 < len(read) < 64  # mebibytes, which the buffers of both sockets take


def _received(silent: socket.socket) -> int:
    """Read to the end of a connection; return the number of bytes."""
    number = 0
    with suppress(ConnectionError):
        while part := silent.recv(1 << 20):
            number += len(part)
    return number


async def _at_once(*_: Any) -> bool:
    return True


def _until_quiet(read: list[int]) -> None:
    """Wait until nothing was read for some seconds."""
    seen = -1
    while seen != len(read):
        seen = len(read)
        time.sleep(3)
