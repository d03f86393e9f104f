"""Connections through the proxy: idle ones, many at once and slow bodies of one address keep no other one waiting."""

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.api.calls import STEWARD, Client, bearer, concentrated, json_of, open_account, problem_of, release
from tests.faults.conftest import Form
from tests.faults.processes import free_ports, replicas
from tests.faults.proxy import Proxy
from tests.waiting import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="the proxy, Debian's haproxy, is not installed"),
]

_HOSTILE, _OTHER = "127.0.0.7", "127.0.0.8"
_PACE = 1 / 90  # seconds: an address may open a hundred connections in each
_OFTEN = 30  # connections after each of which another address charges
_PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
_FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 1000\r\n\r\nkey="
)
_RELEASE = (
    f"POST /v1/accounts/people/releases HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
    f'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"name": "'
).encode()


@dataclass
class _Attack:
    """The proxy before one replica in all three places, and the connections of the hostile address."""

    proxy: Proxy
    lines: ExitStack = field(default_factory=ExitStack)

    def connect(self, said: bytes) -> socket.socket:
        """Open one more connection."""
        made = socket.create_connection(("127.0.0.1", self.proxy.port), source_address=(_HOSTILE, 0))
        self.lines.enter_context(made).setblocking(False)
        with suppress(ConnectionError):  # it was closed at once
            made.send(said)
        return made

    def client(self, source: str) -> Client:
        """Return a steward's client at an address."""
        transport = httpx2.HTTPTransport(local_address=source)
        return Client(base_url=self.proxy.address, headers=bearer(STEWARD), timeout=60, transport=transport)


@contextmanager
def _attacked(home: Path) -> Iterator[tuple[_Attack, Client]]:
    """Yield an attack, and a client at another address."""
    (port,) = free_ports(1)
    with replicas(home, 1, body_seconds="2") as (server,):
        attack = _Attack(Proxy(home, {}, port, behind=[server] * 3))
        try:
            attack.proxy.start()
            with attack.lines, attack.client(_OTHER) as other:
                open_account(other, budget={"definition": "zcdp", "rho": 1000})
                yield attack, other
        finally:
            attack.proxy.kill()


def _heard(line: socket.socket) -> tuple[bytes, bool]:
    """Return what has come since the last look, and whether the connection is still open."""
    heard = b""
    try:
        while part := line.recv(1 << 16):
            heard += part
    except BlockingIOError:
        return heard, True
    except ConnectionError:
        return heard, False
    return heard, False


def _is_open(line: socket.socket) -> bool:
    return _heard(line)[1]


def test_idle_connections_go_within_seconds_the_oldest_first(tmp_path: Path, times: Form) -> None:
    """Some never ask, and some have been answered; they are more than an address may have at once."""
    with _attacked(tmp_path) as (attack, other):
        lines = []
        for number in range(times(540, 2000)):
            lines.append(attack.connect(_PROBE if number % 2 else b""))
            time.sleep(_PACE)
            if number % _OFTEN == 0:
                release(other, concentrated("0.001"))
        assert _is_open(lines[-1])
        with attack.client(_HOSTILE) as newcomer:
            release(newcomer, concentrated("0.001"))
        assert sum(map(_is_open, lines)) < 500
        until(lambda: not any(map(_is_open, lines[:100])), "the oldest are closed")


def test_connections_that_come_all_at_once_are_closed_unheard(tmp_path: Path) -> None:
    with _attacked(tmp_path) as (attack, other):
        lines = [attack.connect(b"") for _ in range(400)]
        release(other, concentrated("0.001"))
        until(lambda: sum(map(_is_open, lines)) < 300, "all but the first hundred are closed")


def test_slow_bodies_are_answered_within_seconds_and_keep_nobody_waiting(tmp_path: Path) -> None:
    """Those without a key reach no replica; those with one are refused by it."""
    with _attacked(tmp_path) as (attack, other):
        forms, keyed = ([attack.connect(said) for _ in range(40)] for said in (_FORM, _RELEASE))
        heard = dict.fromkeys([*forms, *keyed], b"")
        waiting = set(heard)
        while waiting:
            release(other, concentrated("0.001"))
            for line in [*waiting]:
                said, is_open = _heard(line)
                heard[line] += said
                if not is_open:
                    waiting.discard(line)
                with suppress(OSError):
                    line.send(b"x")
            time.sleep(0.3)
        assert all(b" 408 " in said.partition(b"\r\n")[0] for said in heard.values())
        assert all(b"/problems/too_slow" in heard[line] for line in keyed)
        servers = {str(line["server"]) for line in attack.proxy.log_lines() if line["path"] == "/sign-in"}
        assert servers == {"<NOSRV>"}
        problem_of(other.get("/v1/accounts/nobody"), "not_found")
        json_of(other.get("/v1/accounts/people/verify"))
