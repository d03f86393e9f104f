"""Limits over a real socket: slow clients, too many of them, too much data at once, too many invalid keys."""

import asyncio
import contextlib
import itertools
import json
import select
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

import service.api.http.request_parsing
from service import connections
from service.api.arrow import streams
from service.api.http.body_limits import Allowance, BodyLimits
from service.api.http.fair_places import FairPlaces
from service.api.identity.throttle import PAGE, SENDER, Meter, Rate
from service.app import _ROUTERS
from service.connections import Limits, Listener
from service.ledger.access.authentication import Principal
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.server import bound_socket
from tests.api.calls import STEWARD, Client, application, bearer, json_of, make_key, open_account, problem_of, pure
from tests.api.conftest import serving
from tests.api.streams import MEDIA_TYPE, NEARLY_NONE, counts, noisy_of, register, stream
from tests.waiting import until

_HEAD = (
    "POST /v1/compositions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
)
_JSON = {"Content-Type": "application/json"}
_ROOM = {"definition": "pure", "epsilon": 10**9}
_PROBLEMS = Path(__file__).resolve().parents[2] / "service" / "web" / "problems"
_PLANS = "service.api.schemas.plan_models.Plan:"
_BODY = json.dumps({"plan": pure(1)}).encode()

Serve = Callable[..., tuple[FastAPI, Client]]


@pytest.fixture
def serve(_sqlite_template: Path, tmp_path: Path, secret: Secret) -> Iterator[Serve]:
    """Return a function that serves the application with given settings and returns a steward's client."""
    with contextlib.ExitStack() as stack:

        def start(**settings: Any) -> tuple[FastAPI, Client]:
            path = tmp_path / "limits.db"
            shutil.copyfile(_sqlite_template, path)
            app = application(open_database(f"sqlite:///{path}"), secret, **settings)
            address = stack.enter_context(serving(app))
            return app, stack.enter_context(Client(base_url=address, headers=bearer(STEWARD), timeout=60))

        yield start


@contextlib.contextmanager
def _line(client: Client) -> Iterator[socket.socket]:
    """Open a connection for arbitrary bytes."""
    where = client.base_url
    with socket.create_connection((where.host, where.port), timeout=30) as line:
        yield line


def _head(key: str = STEWARD, length: int = len(_BODY)) -> bytes:
    return _HEAD.format(key=key, length=length).encode()


def _rest(line: socket.socket) -> bytes:
    """Return all bytes until the other side hangs up."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := line.recv(1 << 16):
            said += part
    return said


def _problem(said: bytes) -> tuple[int, Any, bytes]:
    """Return the status, the problem and the headers of the only answer on a closed connection."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head.lower()
    return int(head.split()[1]), json.loads(body), head.lower()


def test_headers_that_do_not_come(serve: Serve) -> None:
    _, client = serve(header_seconds=0.4)
    for begun in (b"", b"GET /heal", _head()[:-2]):
        with _line(client) as line:
            line.sendall(begun)
            status, problem, head = _problem(_rest(line))
        assert (status, problem["type"]) == (408, "/problems/too_slow")
        assert b"connection: close" in head


def test_headers_that_come_in_drops_have_no_more_time(serve: Serve) -> None:
    """Each drop would otherwise restart the idle timer."""
    _, client = serve(header_seconds=0.5)
    with _line(client) as line:
        line.settimeout(0.05)
        drops, said = iter(_head() * 20), b""
        while not said:
            line.sendall(bytes([next(drops)]))
            with contextlib.suppress(TimeoutError):
                said = line.recv(1 << 16)
    assert b"408" in said.split(b"\r\n")[0]


def test_a_second_request_on_a_connection_has_the_same_limit(serve: Serve) -> None:
    _, client = serve(header_seconds=0.4, keep_alive_seconds=60)
    with _line(client) as line:
        line.sendall(_head() + _BODY)
        first = b""
        while b'"best"' not in first:
            first += line.recv(1 << 16)
        assert first.startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /healthz HT")
        assert _problem(_rest(line))[0] == 408


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    _, client = serve(keep_alive_seconds=1, header_seconds=60)
    with _line(client) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert _rest(line).endswith(b'{"status":"alive"}')


def _shown(code: str) -> Any:
    """Return the example on a problem's page."""
    page = (_PROBLEMS / f"{code}.md").read_text(encoding="utf-8")
    return json.loads(page.partition("```json\n")[2].partition("```")[0])


def test_a_body_that_does_not_come(serve: Serve) -> None:
    app, client = serve(body_seconds=0.4)
    for begun in (b"", _BODY[:10]):
        with _line(client) as line:
            line.sendall(_head() + begun)
            status, problem, head = _problem(_rest(line))
        shown = _shown("too_slow")
        assert (status, problem) == (408, shown | {"detail": shown["detail"].replace("30 s", "0.4 s")})
        assert b"connection: close" in head
    until(lambda: app.state.metrics.observed.bodies["json"].taken == 0)


def test_a_body_may_come_slowly_if_it_comes(serve: Serve) -> None:
    """Each byte earns a tenth of a second here, so the body may take longer than the base limit."""
    _, client = serve(body_seconds=0.3, body_bytes_per_second=10)
    with _line(client) as line:
        line.sendall(_head())
        for start in range(0, len(_BODY), 5):
            time.sleep(0.1)
            line.sendall(_BODY[start : start + 5])
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_the_rest_of_a_refused_body_is_not_waited_for(serve: Serve) -> None:
    """The answer was 401; uvicorn alone would read all that comes, for ever."""
    _, client = serve(header_seconds=0.4, keep_alive_seconds=60)
    with _line(client) as line:
        line.sendall(_head(key="wrong", length=10**7))
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 401")
        line.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while True:
                line.sendall(b" ")
                with contextlib.suppress(TimeoutError):
                    if not line.recv(1):
                        break
    json_of(client.get("/healthz"))


def test_an_answer_that_nobody_takes(serve: Serve) -> None:
    app, client = serve(answer_seconds=0.4)
    open_account(client, budget=_ROOM)
    made = register(client, counts(range(2_000_000)), mechanism=NEARLY_NONE)  # 14 MB, more than the kernel buffers
    drawn = f"/v1/accounts/people/draws/{made.headers['X-Draw']}"
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(30)
        line.connect((client.base_url.host, client.base_url.port))
        line.sendall(f"GET {drawn} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: app.state.metrics.in_progress == 0)
        assert len(_rest(line)) < 8_000_000
    json_of(client.get("/healthz"))


def test_connections_beyond_the_limit(serve: Serve) -> None:
    """All allowed connections are busy: a newcomer gets 503."""
    app, client = serve(max_connections=2, max_connections_of_address=2, header_seconds=60)
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(_line(client)) for _ in range(2))
        for line in (one, other):
            line.sendall(_head())  # the body of a client with a key
        until(lambda: app.state.metrics.in_progress == 2)
        time.sleep(0.2)  # until their keys are checked: a slow body without a key counts as idle
        third = stack.enter_context(_line(client))
        third.sendall(_head() + _BODY)
        status, problem, head = _problem(_rest(third))
        assert (status, problem["type"]) == (503, "/problems/unavailable")
        assert b"retry-after:" in head
        assert b"x-request-id:" in head
        with _line(client) as probe:  # probes are still answered
            probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert probe.recv(1 << 16).startswith(b"HTTP/1.1 200")
        for line in (one, other):  # and the others go on
            line.sendall(_BODY)
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    with _line(client) as line:
        line.sendall(_head() + _BODY)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1")


_FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 99\r\n\r\nk"
)


@pytest.mark.parametrize("begun", [b"", b"GET /heal", _FORM], ids=["nothing", "headers", "a form without a key"])
def test_the_oldest_idle_connection_makes_room_for_a_newcomer(serve: Serve, begun: bytes) -> None:
    _, client = serve(max_connections=4, header_seconds=60)
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(_line(client)) for _ in range(4)]
        for line in lines:
            line.sendall(begun)
        time.sleep(0.2)
        for number in range(2):
            with _line(client) as new:
                new.sendall(_head() + _BODY)
                assert new.recv(1 << 16).startswith(b"HTTP/1.1 200")
            if number == 0:
                assert _rest(lines[0]) == b""  # the oldest one
        lines[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            lines[-1].recv(1)


def test_who_asked_before_is_closed_after_those_who_never_did(serve: Serve) -> None:
    _, client = serve(max_connections=2, header_seconds=60, keep_alive_seconds=60)
    with _line(client) as asked, _line(client) as silent:
        asked.sendall(_head() + _BODY)
        assert asked.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with _line(client) as new:
            new.sendall(_head() + _BODY)
            assert new.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert _rest(silent) == b""
        asked.sendall(_head() + _BODY)
        assert asked.recv(1 << 16)


def test_one_address_has_its_own_limit_unless_it_is_a_proxy(serve: Serve) -> None:
    for proxies, closed in (("10.0.0.1", True), ("127.0.0.1", False)):
        _, client = serve(max_connections=50, max_connections_of_address=2, header_seconds=60, trusted_proxies=proxies)
        with _line(client) as first, _line(client), _line(client) as third:
            third.sendall(_head() + _BODY)
            assert third.recv(1 << 16).startswith(b"HTTP/1.1 200")
            first.settimeout(0.3)
            if closed:
                assert first.recv(1) == b""
            else:
                with pytest.raises(TimeoutError):
                    first.recv(1)


def _offered(listener: Listener, address: str) -> bool:
    """Return True where a connection from an address is accepted; a refused one is closed at once."""
    with socket.create_connection(listener.getsockname(), timeout=30, source_address=(address, 0)) as line:
        listener.setblocking(False)
        select.select([listener], [], [], 30)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            with pytest.raises(ConnectionResetError):
                line.recv(1)
            return False
        connection.close()
        return True


def test_connections_of_one_address_that_come_too_fast_are_closed_unless_it_is_a_proxy() -> None:
    limits = Limits(1000, 500, 10.0, 60.0, {"127.0.0.3"}, "3/hour")
    with Listener(bound_socket("127.0.0.1", 0), limits) as listener:
        listener.listen()
        assert [_offered(listener, "127.0.0.1") for _ in range(5)] == [True, True, True, False, False]
        assert listener.refused == 2
        assert _offered(listener, "127.0.0.2")
        assert all(_offered(listener, "127.0.0.3") for _ in range(5))
    with Listener(bound_socket("127.0.0.1", 0), limits._replace(rate_of_address="off")) as listener:
        listener.listen()
        assert all(_offered(listener, "127.0.0.1") for _ in range(5))


def test_connections_are_refused_for_a_moment_before_other_events_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, moments = Limits(1000, 500, 10.0, 60.0, (), "1/hour"), itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.4 * next(moments) * connections._REFUSING)
    monkeypatch.setattr(connections, "time", clock)
    with Listener(bound_socket("127.0.0.1", 0), limits) as listener, contextlib.ExitStack() as lines:
        listener.listen()
        listener.setblocking(False)
        for _ in range(9):
            lines.enter_context(socket.create_connection(listener.getsockname()[:2]))
        listener.accept()[0].close()
        for refused in (2, 4):
            with pytest.raises(BlockingIOError):
                listener.accept()
            assert listener.refused == refused


def test_a_form_without_a_key_has_the_time_of_headers(serve: Serve) -> None:
    _, client = serve(header_seconds=0.4, body_seconds=60)
    with _line(client) as line:
        line.sendall(_FORM)
        assert _problem(_rest(line))[0] == 408


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n"])
def test_what_is_no_http_is_a_problem_too(serve: Serve, said: bytes) -> None:
    _, client = serve()
    with _line(client) as line:
        line.sendall(said)
        status, problem, head = _problem(_rest(line))
    assert (status, problem["type"]) == (400, "/problems/bad_request")
    assert b"\r\nserver:" not in head


def test_headers_that_are_too_long(serve: Serve) -> None:
    _, client = serve()
    with _line(client) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert _problem(_rest(line))[0] == 400


def test_targets_in_absolute_form_are_their_paths(serve: Serve) -> None:
    """RFC 9112, 3.2.2: every server accepts them, whichever host they name."""
    _, client = serve()
    found = {}
    with capture_logs() as lines:
        for target in (
            "http://host/readyz",
            "HTTPS://user@host:1/v1/ke%79s?limit=1",
            "http://host?x=1",
            "http://h/?h/",
        ):
            with _line(client) as line:
                line.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                found[target] = int(_rest(line).split()[1])
        with _line(client) as line:
            line.sendall(b"PUT http://host/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            status, problem, head = _problem(_rest(line))
    assert list(found.values()) == [200, 401, 200, 200]
    assert (status, problem["instance"]) == (405, "/healthz")
    assert b"\r\nallow: get" in head
    told = [line["path"] for line in lines if line["event"] == "request" and line["path"] != "/readyz"]
    assert told == ["/v1/keys", "/", "/", "/healthz"]  # a good probe is told at the level debug only


@pytest.mark.parametrize("name", ["Accept", "Cookie", "X-Other"])
def test_long_headers_are_refused_before_they_are_read(client: Client, name: str) -> None:
    """Nobody needs a key to send them, and every route would look at them."""
    refused = client.get("/healthz", headers={name: "a," * 30_000})
    assert problem_of(refused, "bad_request")["detail"] == "expected headers of at most 16384 bytes together"
    assert client.get("/healthz", headers={name: "a," * 7_000}).status_code == 200


def test_a_body_of_two_lengths_is_refused(serve: Serve) -> None:
    """RFC 9112, 6.1: a proxy on the way may have used the other length, and taken the rest for another request."""
    _, client = serve()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
    with _line(client) as line:
        line.sendall(_head()[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + _head() + _BODY)
        status, problem, head = _problem(_rest(line))
    assert (status, problem["type"]) == (400, "/problems/bad_request")
    assert b"connection: close" in head


def test_streams_that_do_not_fit_beside_each_other(serve: Serve) -> None:
    """The first announces its size and is slow; the second finds no memory, and small ones do."""
    content = counts([1] * 1000)
    app, client = serve(max_arrow_bytes=60_000, max_arrow_bytes_at_once=60_000)
    open_account(client, budget=_ROOM)
    allowance = app.state.metrics.observed.bodies["arrow"]
    head = (
        "POST /v1/accounts/people/draws?name=x&mechanism=%7B%7D HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {STEWARD}\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with _line(client) as line:
        line.sendall(head.encode())
        until(lambda: allowance.taken == len(content))
        for body in (content, iter([content])):  # with and without Content-Length
            refused = register(client, body)
            assert "memory" in problem_of(refused, "unavailable")["detail"]
            assert int(refused.headers["Retry-After"]) > 0
        assert len(noisy_of(register(client, counts([1, 2, 3])))) == 3
        json_of(client.post("/v1/compositions", json={"plan": pure(1)}))
    until(lambda: allowance.taken == 0)
    assert len(noisy_of(register(client, content))) == 1000


def test_who_has_no_key_takes_no_room(serve: Serve) -> None:
    """This holds for a form that never arrives and for one that is too large."""
    _, client = serve(max_json_bytes=1 << 16, max_json_bytes_at_once=1 << 19)
    form = "POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\nk"
    with _line(client) as slow, _line(client) as disguised, _line(client) as refused:
        slow.sendall(form.format("application/x-www-form-urlencoded", 4096).encode())
        disguised.sendall(form.format("multipart/form-data; boundary=x", 4096).encode())
        refused.sendall(form.format(MEDIA_TYPE, 4097).encode())
        assert _problem(_rest(refused))[0] == 413
        body = {"plan": pure(1)}
        json_of(client.post("/v1/compositions", content=json.dumps(body).ljust(1 << 16), headers=_JSON))
        assert client.post("/sign-in", data={"key": STEWARD}).status_code == 303


def test_one_principal_takes_no_more_than_half_of_the_room(serve: Serve) -> None:
    """The limit holds for any number of slow bodies, and for all keys of the principal."""
    app, client = serve(max_json_bytes=10_000, max_json_bytes_at_once=40_000)
    keys = [make_key(client, "auditor", "slow")["Authorization"].removeprefix("Bearer ") for _ in range(2)]
    allowance = app.state.metrics.observed.bodies["json"]
    with _line(client) as first, _line(client) as second, _line(client) as third:
        for line, key in ((first, keys[0]), (second, keys[1])):
            line.sendall(_head(key, 10_000))
        until(lambda: allowance.taken == 20_000)
        third.sendall(_head(keys[0], 10))
        assert "memory" in _problem(_rest(third))[1]["detail"]
        json_of(client.post("/v1/compositions", content=_BODY.ljust(1000), headers=_JSON))
    until(lambda: allowance.taken == 0)
    json_of(client.post("/v1/compositions", content=_BODY.ljust(1000), headers=_JSON | bearer(keys[0])))


def test_who_is_signed_in_takes_no_more_than_half_either(serve: Serve) -> None:
    app, client = serve(max_json_bytes=20_000, max_json_bytes_at_once=40_000)
    key = make_key(client, "auditor", "slow")["Authorization"].removeprefix("Bearer ")
    cookie = client.post("/sign-in", data={"key": key}).headers["set-cookie"].partition(";")[0]
    form = (
        f"POST /plan HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 20000\r\n\r\nk"
    )
    with _line(client) as first, _line(client) as second:
        first.sendall(form.encode())
        until(lambda: app.state.metrics.observed.bodies["json"].taken == 20_000)
        second.sendall(form.encode())
        assert "memory" in _problem(_rest(second))[1]["detail"]
        json_of(client.post("/v1/compositions", content=_BODY.ljust(1000), headers=_JSON))


def test_small_bodies_find_room_beside_any_others(serve: Serve) -> None:
    """A charge is small: a request that takes all memory does not prevent it."""
    app, client = serve(max_json_bytes=1 << 20, max_json_bytes_at_once=1 << 20, max_connections=4)  # 16 KiB each
    with _line(client) as line:
        line.sendall(_head(length=1 << 20))
        until(lambda: app.state.metrics.observed.bodies["json"].taken == 1 << 20)
        for body in (_BODY.ljust(256), iter([_BODY.ljust(256)])):  # with and without Content-Length
            json_of(client.post("/v1/compositions", content=body, headers=_JSON))
        refused = client.post("/v1/compositions", content=_BODY.ljust(4096), headers=_JSON)
        assert "memory" in problem_of(refused, "unavailable")["detail"]


def test_an_announced_body_takes_its_room_when_it_is_read() -> None:
    """Otherwise an unread answer would hold the memory of a body that is never read."""
    allowance, taken = Allowance(100, 100), list[int]()

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        taken.append(allowance.taken)
        await receive()
        taken.append(allowance.taken)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"k", "more_body": True}

    async def send(_message: Message) -> None:
        raise AssertionError("nothing was to be refused")

    scope = {"type": "http", "path": "/", "headers": [(b"content-length", b"100")]}
    limits = BodyLimits(app, {}, {}, allowance, seconds=30, rate=1, turns=FairPlaces(1, 1, 1, 1))
    asyncio.run(limits(scope, receive, send))
    assert [*taken, allowance.taken] == [0, 100, 0]


@pytest.mark.parametrize("announced", [True, False])
def test_large_bodies_of_one_principal_are_read_in_turn(announced: bool) -> None:
    """The second is not read on while the first is processed; small ones and another principal's are."""
    size, read, worked = 1 << 20, Counter[str](), list[str]()
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        worked.append(scope["path"])
        await ended.wait()

    async def send(_message: Message) -> None:
        raise AssertionError("nothing was to be refused")

    limits = BodyLimits(app, {}, {}, Allowance(size, 10 * size), seconds=30, rate=1, turns=FairPlaces(10, 1, 1, 10))

    async def ask(path: str, name: str, length: int) -> None:
        async def receive() -> Message:
            if read[path] >= length:  # the client waits
                await asyncio.Event().wait()
            read[path] += 1 << 16
            return {"type": "http.request", "body": bytes(1 << 16), "more_body": read[path] < length}

        headers = [(b"content-length", str(length).encode())] if announced else []
        state = {"principal": Principal(None, name, "pipeline", None)}
        await limits({"type": "http", "path": path, "headers": headers, "state": state}, receive, send)

    async def run() -> None:
        asked = (("/first", "a", size), ("/second", "a", size), ("/small", "a", 1 << 16), ("/others", "b", size))
        tasks = [asyncio.create_task(ask(*one)) for one in asked]
        async with asyncio.timeout(60):
            while len(worked) < 3:
                await asyncio.sleep(0.001)
        assert sorted(worked) == ["/first", "/others", "/small"]
        assert read["/second"] <= (0 if announced else (1 << 18) + (1 << 16))
        ended.set()
        await asyncio.gather(*tasks)
        assert read["/second"] == size

    asyncio.run(run())
    assert limits.otherwise.taken == limits.turns.busy == 0


def test_bodies_that_their_clients_gave_up_are_not_worked_on(serve: Serve) -> None:
    """They arrived whole while they waited for their principal's turn; the kernel kept them."""
    app, client = serve()
    open_account(client, budget=_ROOM)
    query = urlencode({"name": "counts", "mechanism": json.dumps(pure(1))})
    body = counts([9] * 40_000)
    head = (
        f"POST /v1/accounts/people/draws?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
        f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    other = make_key(client, "auditor")
    json_of(client.get("/v1/accounts/people", headers=other))  # who is present, so the steward has one turn at a time
    with contextlib.ExitStack() as stack:
        for line in [stack.enter_context(_line(client)) for _ in range(20)]:
            line.sendall(head.encode() + body)
    until(lambda: app.state.metrics.in_progress == 0)
    drawn = json_of(client.get("/v1/accounts/people/releases?limit=100"))["items"]
    assert len(drawn) < 10  # those that began before their clients hung up


def test_a_request_that_waited_in_vain_is_not_worked_on(serve: Serve) -> None:
    """A request whose client hangs up before its turn has no effect."""
    app, client = serve()
    open_account(client, budget=_ROOM)
    content = json.dumps({"name": "a release", "plan": pure(1)}).encode()
    head = _head(length=len(content)).replace(b"/v1/compositions", b"/v1/accounts/people/releases")
    turns, name, held = app.state.turns, json_of(client.get("/v1/principal"))["name"], 0
    while turns._has_room(name):
        turns._take(name)
        held += 1
    with contextlib.ExitStack() as stack:
        for line in [stack.enter_context(_line(client)) for _ in range(5)]:
            line.sendall(head + content)
        until(lambda: turns.waiting == 5)
    for _ in range(held):
        turns.leave(name)
    until(lambda: app.state.metrics.in_progress == 0)
    assert json_of(client.get("/v1/accounts/people/releases"))["items"] == []


def test_whoever_hangs_up_before_a_turn_is_counted(serve: Serve) -> None:
    """Also where the request has no body, whose end is looked for first."""
    app, client = serve()
    head = f"GET /v1/accounts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n\r\n".encode()
    turns, name, held = app.state.turns, json_of(client.get("/v1/principal"))["name"], 0
    while turns._has_room(name):
        turns._take(name)
        held += 1
    with contextlib.ExitStack() as stack:
        for line in [stack.enter_context(_line(client)) for _ in range(60)]:
            line.sendall(head)
        until(lambda: turns.waiting == 60)
    for _ in range(held):
        turns.leave(name)
    until(lambda: app.state.metrics.in_progress == 0)
    assert "abandoned" in problem_of(client.get("/v1/accounts"), "too_many_requests")["detail"]


def test_what_a_page_asks_waits_for_no_turn_of_its_own_body() -> None:
    """Otherwise it would wait for ever: the page holds the turn and waits for its answer."""
    size, turns = 1 << 20, FairPlaces(10, 1, 1, 10)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert len((await receive())["body"]) == size
        assert turns.busy == 1
        if scope["path"] == "/page":
            state = {"principal": Principal(None, "a", "steward", None), PAGE: scope["state"]}
            await limits({"type": "http", "path": "/v1/inner", "headers": [], "state": state}, client(), send)
            done.append("page")

    def client() -> Receive:
        bodies = [bytes(size)]

        async def receive() -> Message:
            if not bodies:  # it waits for its answer
                await asyncio.Event().wait()
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        return receive

    async def send(_message: Message) -> None:
        raise AssertionError("nothing was to be refused")

    done: list[str] = []
    limits = BodyLimits(app, {}, {}, Allowance(size, 10 * size), seconds=30, rate=1, turns=turns)
    asyncio.run(limits({"type": "http", "path": "/page", "headers": [], "state": {SENDER: "a"}}, client(), send))
    assert done == ["page"]
    assert limits.otherwise.taken == turns.busy == 0


def test_bodies_of_some_types_are_shorter() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("it was to be refused before it is read")

    async def receive() -> Message:
        assert sent, "it was to be refused before it is read"
        assert limits.otherwise.taken == 0
        parts.append(len(sent))
        return {"type": "http.request", "body": bytes(5), "more_body": len(parts) < 3}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    parts: list[int] = []
    limits = BodyLimits(
        app, {}, {}, Allowance(100, 1000), seconds=30, rate=1, turns=FairPlaces(1, 1, 1, 1), shorter={"text/x": 10}
    )
    headers = [(b"content-type", b"text/x; charset=utf-8"), (b"content-length", b"11")]
    asyncio.run(limits({"type": "http", "path": "/", "headers": headers}, receive, send))
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert [one.get("more_body", False) for one in sent[1:]] == [True, False]
    assert parts == [2, 2, 2]  # the connection closes after all was read, or the client would lose the answer


def test_room_is_given_back_however_a_request_ends(serve: Serve) -> None:
    app, client = serve(max_json_bytes=1000, max_json_bytes_at_once=30_000)
    body = json.dumps({"plan": pure(1)}).ljust(1000)
    for content, status in ((body, 200), (body + " ", 413), ("{".ljust(1000), 422), (body, 200)):
        assert client.post("/v1/compositions", content=content, headers=_JSON).status_code == status
        until(lambda: app.state.metrics.observed.bodies["json"].taken == 0)


_JUNK = {  # most of them would take more than a hundred times their bytes
    "lists": b"[" + b"[]," * 70_000 + b"[]]",
    "objects": b"[" + b'{"":0},' * 70_000 + b"0]",
    "texts": b"[" + b'"",' * 200_000 + b"0]",
}


@pytest.mark.parametrize("body", _JUNK.values(), ids=_JUNK)
def test_json_of_too_many_items_is_refused_before_it_is_parsed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    parsed = list[bytes]()
    monkeypatch.setattr(service.api.http.request_parsing, "parse", parsed.append)
    app, client = serve(max_json_items=50_000)
    refused = client.post("/v1/compositions", content=body, headers=_JSON)
    assert "at most 50000 arrays, objects and texts" in problem_of(refused, "too_large")["detail"]
    assert parsed == []
    until(lambda: app.state.metrics.observed.bodies["json"].taken == 0)


@pytest.mark.parametrize("body", _JUNK.values(), ids=_JUNK)
def test_json_of_too_many_items_is_not_read_to_its_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(service.api.http.request_parsing, "_STEP", 1 << 14)
    app, client = serve(max_json_items=50_000)
    with _line(client) as line:
        line.sendall(_head(length=1 << 26) + body)
        status, problem, head = _problem(_rest(line))
    assert (status, problem["type"]) == (413, "/problems/too_large")
    assert "at most 50000 arrays, objects and texts" in problem["detail"]
    assert b"connection: close" in head
    until(lambda: app.state.metrics.observed.bodies["json"].taken == 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/accounts"),
        ("PATCH", "/v1/accounts/people"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/keys/some/rotate"),
        ("PATCH", "/v1/accounts/people/releases/some"),
        ("POST", "/v1/accounts/people/releases/some/void"),
    ],
)
def test_a_body_of_what_has_no_reason_to_be_long_is_not_read_beyond_a_megabyte(
    serve: Serve, method: str, path: str
) -> None:
    _, client = serve()
    open_account(client, budget=_ROOM)
    with _line(client) as line:
        head = _head(length=1 << 26).replace(b"POST /v1/compositions", f"{method} {path}".encode())
        line.sendall(head + b" " * ((1 << 20) + 1))
        status, problem, _ = _problem(_rest(line))
    assert (status, problem["type"]) == (413, "/problems/too_large")
    assert "at most 1048576 bytes for this operation" in problem["detail"]


@pytest.mark.parametrize("body", [*_JUNK.values(), b"[" + b"1," * 9_000 + b"1]", b"[" + b"1e5," * 3_000 + b"0]"])
def test_json_that_unfolds_to_too_much_is_refused_before_it_is_parsed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    parsed = list[bytes]()
    monkeypatch.setattr(service.api.http.request_parsing, "parse", parsed.append)
    _, client = serve(max_json_bytes=1 << 20, max_json_bytes_at_once=1 << 20)
    refused = client.post("/v1/compositions", content=body, headers=_JSON)
    assert "at most 1048576 bytes of memory" in problem_of(refused, "too_large")["detail"]
    assert parsed == []


def test_an_arrow_stream_that_unfolds_to_too_much_is_refused_before_it_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, client = serve(max_arrow_bytes=1 << 24, max_arrow_bytes_at_once=1 << 25)
    open_account(client, budget=_ROOM)
    content = stream({"count": pa.array(np.zeros(10**6, np.int64))}, compression="zstd")
    assert len(content) < 10_000
    unfolded = list[object]()
    monkeypatch.setattr(streams, "_counts", lambda *given: unfolded.append(given))
    assert "bytes of memory" in problem_of(register(client, content), "too_large")["detail"]
    assert unfolded == []
    assert json_of(client.get("/v1/accounts/people/balance"))["releases"] == 0
    until(lambda: app.state.metrics.observed.bodies["arrow"].taken == 0)


def test_a_draw_that_is_read_back_takes_its_room(serve: Serve) -> None:
    _, client = serve(max_arrow_bytes=60_000, max_arrow_bytes_at_once=60_000)
    open_account(client, budget=_ROOM)
    drawn = register(client, counts([1] * 1000)).headers
    path = f"/v1/accounts/people/draws/{drawn['X-Draw']}"
    head = (
        f"POST /v1/accounts/people/draws?name=x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
        f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: 30000\r\n\r\n"
    )
    json_of(client.get(path))
    with _line(client) as line:
        line.sendall(head.encode())
        time.sleep(0.2)
        for read in (path, f"/v1/accounts/people/releases/{drawn['X-Release']}/draws"):
            assert "memory" in problem_of(client.get(read), "unavailable")["detail"]


_NOT_READ_BY = {"json_schema_input_schema", "serialization"}


def _endless(schema: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """Return the lists of a model that have no length limit and report a fault for each item."""
    if isinstance(schema, dict) and id(schema) not in seen:
        seen.add(id(schema))
        if schema.get("type") == "list" and "max_length" not in schema and not schema.get("fail_fast"):
            yield schema
    if isinstance(schema, dict):  # what is read by a function of ours is only described and written by these
        schema = {name: below for name, below in schema.items() if name not in _NOT_READ_BY}
    for below in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if not isinstance(below, dict) or id(below) not in seen:
            yield from _endless(below, seen)


def test_no_body_can_have_millions_of_faults() -> None:
    """Each fault takes hundreds of bytes and is reported; a plan has at most as many parts as nodes."""
    routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    models = {field.field_info.annotation for route in routes if (field := route.body_field)}
    assert len(models) > 20
    for model in models:
        found = list(_endless(TypeAdapter[Any](model).core_schema, set()))  # type: ignore[arg-type] # none is None
        assert [one for one in found if not one["items_schema"].get("schema_ref", "").startswith(_PLANS)] == []


def test_wrong_keys_from_one_address(serve: Serve) -> None:
    _, client = serve(failure_rate="5/hour")
    other = make_key(client, "auditor")
    wrong = [client.get("/v1/accounts", headers=bearer(f"wrong-{number}")) for number in range(8)]
    assert [answer.status_code for answer in wrong] == [401] * 5 + [429] * 3
    problem_of(wrong[-1], "too_many_requests")
    assert 600 < int(wrong[-1].headers["Retry-After"]) <= 720  # an hour has five of them
    json_of(client.get("/v1/accounts"))  # a known key still works
    json_of(client.get("/v1/accounts", headers=other))  # so does one that was not known, as after a restart
    assert int(client.get("/v1/accounts", headers=bearer("wrong")).headers["Retry-After"]) <= 720  # it does not grow
    json_of(client.get("/healthz"))


def test_requests_of_one_key(serve: Serve) -> None:
    _, client = serve(key_rate="10/hour")
    other = make_key(client, "auditor")
    with ThreadPoolExecutor(4) as threads:
        statuses = sorted(threads.map(lambda _: client.get("/v1/accounts").status_code, range(20)))
    assert statuses == [200] * 9 + [429] * 11
    refused = client.get("/v1/accounts")
    assert problem_of(refused, "too_many_requests") == _shown("too_many_requests")
    assert 300 < int(refused.headers["Retry-After"]) <= 360
    json_of(client.get("/v1/accounts", headers=other))


def test_a_meter_lets_through_what_its_rate_says() -> None:
    """By definition no window has more than twice the rate, and after a rest it has as many."""
    now = 0.0
    meter = Meter(Rate(4, 10), clock=lambda: now)
    taken: list[float] = []
    for step in range(400):
        now = step * 0.25
        if meter.wait("a") == 0:
            meter.count("a")
            taken.append(now)
    assert taken[:4] == [0, 0.25, 0.5, 0.75]  # all at once
    later = [moment for moment in taken if moment >= 10]
    assert all(one == pytest.approx(2.5) for one in map(lambda a, b: b - a, later, later[1:]))
    assert meter.wait("b") == 0


def test_a_meter_tells_when_to_come_again() -> None:
    now = 100.0
    meter = Meter(Rate(2, 10), clock=lambda: now)
    for _ in range(2):
        assert meter.wait("a") == 0
        meter.count("a")
    assert meter.wait("a") == pytest.approx(5)
    now = 105.0
    assert meter.wait("a") == 0


def test_a_meter_forgets_who_is_at_rest_and_never_grows_beyond_its_bound() -> None:
    now = 0.0
    meter = Meter(Rate(1, 10), clock=lambda: now)
    for number in range(10_000):
        meter.count(str(number))
    now = 5.0
    meter.count("one more")
    assert len(meter._due) == 10_000
    assert meter.wait("one more") > 0
    assert meter.wait("9999") > 0
    now = 11.0
    meter.count("another")
    assert set(meter._due) == {"one more", "another"}
