"""The proxies beside HAProxy, nginx and Caddy: the promises of ``deploy/haproxy.cfg`` that each of them keeps."""

import re
import select
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from service.settings import Settings
from tests.api.calls import STEWARD, Client, bearer, json_of, open_account, problem_of, pure, release
from tests.faults.other_proxies import KINDS, OtherProxy
from tests.faults.processes import Replica, free_ports, replicas
from tests.processes import ROOT
from tests.waiting import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in KINDS), reason="Debian's nginx and caddy are not installed"
    ),
]

_FILLER = 987_654_321  # a true count that is searched for
_GONE = {"nginx": 502, "caddy": 503}  # the status where no replica answers
_CLIENT = "127.0.0.8"
_FORGED = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Proto": "https",
    "Forwarded": "for=203.0.113.9;proto=https",
}


@contextmanager
def _serving(home: Path, kind: str, number: int = 3, **more: Any) -> Iterator[tuple[OtherProxy, list[Replica]]]:
    """A proxy, and replicas that take its three places."""
    (port,) = free_ports(1)
    with replicas(home, number, body_seconds="2") as servers:
        behind = [servers[place % number] for place in range(3)]
        proxy = KINDS[kind](home, {}, port, behind=behind, **more)
        try:
            proxy.start()
            yield proxy, [*servers]
        finally:
            proxy.kill()


def _client(proxy: OtherProxy, **headers: str) -> Client:
    """A steward at an address of its own, which is none of the proxy's."""
    transport = httpx2.HTTPTransport(local_address=_CLIENT)
    return Client(base_url=proxy.address, headers=bearer(STEWARD) | headers, timeout=60, transport=transport)


@pytest.mark.parametrize("kind", KINDS)
def test_the_programs_own_check_finds_nothing(tmp_path: Path, kind: str) -> None:
    stand_in = Replica(tmp_path, {}, 9)
    done = KINDS[kind](tmp_path, {}, 9, behind=[stand_in] * 3).check()
    assert done.returncode == 0, done.stderr
    assert {"nginx": "test is successful", "caddy": "Valid configuration"}[kind] in done.stdout + done.stderr
    assert not re.search("warn", done.stdout + done.stderr, re.IGNORECASE)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_proxys_statements_about_the_client_reach_the_service(tmp_path: Path, kind: str) -> None:
    """Neither a forged address is logged, nor is a forged scheme believed."""
    with _serving(tmp_path, kind) as (proxy, servers), _client(proxy, **_FORGED) as client:
        open_account(client, budget={"definition": "pure", "epsilon": 10})
        release(client, pure("0.1"))
        refused = client.get("/v1/accounts", headers={"Authorization": "Bearer pbl_unknown", "X-Request-Id": "forged"})
        problem_of(refused, "unauthenticated")
        signed_in = client.post("/sign-in", data={"key": STEWARD}, follow_redirects=False)
        assert signed_in.status_code == 303
        assert "Secure" not in signed_in.headers["Set-Cookie"]

        def lines() -> list[str]:
            return [line for server in servers for line in server.said if '"forged"' in line]

        until(lambda: bool(lines()), "the request is logged")
        assert all(f'"client": "{_CLIENT}"' in line for line in lines())
        assert "203.0.113.9" not in "".join(line for server in servers for line in server.said)


@pytest.mark.parametrize("kind", KINDS)
def test_no_count_is_left_with_the_proxy(tmp_path: Path, kind: str) -> None:
    """Neither in its log nor in a file; and the query string, which names mechanisms, is not logged either."""
    home = tmp_path / "home"
    home.mkdir()
    with _serving(home, kind) as (proxy, servers), _client(proxy) as client:
        open_account(client, budget={"definition": "pure", "epsilon": 10})
        body = {"name": "n", "mechanism": {"type": "geometric", "epsilon": 1}, "counts": [_FILLER] * 200_000}
        opened = proxy.files()
        answer = client.post("/v1/accounts/people/draws?unknown=name-in-a-query", json=body)
        assert answer.status_code == 422
        answer = client.post("/v1/accounts/people/draws", json=body, headers={"X-Request-Id": "asked-once"})
        drawn = json_of(answer, 201)
        assert answer.headers["X-Request-Id"] == "asked-once"
        assert len(drawn["noisy"]) == 200_000
        assert proxy.files() == opened
        for server in servers:
            server.stop()
        assert client.get("/v1/accounts?unknown=name-in-a-query").status_code == _GONE[kind]
        assert (
            client.post("/v1/accounts?unknown=name-in-a-query", json={"name": str(_FILLER)}).status_code == _GONE[kind]
        )
        until(lambda: "/v1/accounts/people/draws" in "".join(proxy.said), "the requests are logged")
        said = "".join(proxy.said)
        assert "name-in-a-query" not in said
        assert STEWARD not in said
        said += "".join(line for server in servers for line in server.said)
        assert str(_FILLER) not in said
    written = [path for path in home.rglob("*") if path.is_file() and str(_FILLER).encode() in path.read_bytes()]
    assert written == []


def _answer_while_sending(line: socket.socket) -> bytes:
    """Return the answer to a body that goes on; Caddy sends it with the next part of the body, in several pieces."""
    told = b""
    for _ in range(1000):
        while select.select([line], [], [], 0.01)[0]:
            piece = line.recv(65536)
            assert piece, f"the connection ended after {told!r}"
            told += piece
            head, _, body = told.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: ([0-9]+)", head)
            if length is not None and len(body) >= int(length[1]):
                return told
        if not told:
            line.sendall(b" " * 1000)
    raise AssertionError(f"there was no whole answer, but {told!r}")


def _half_a_body(proxy: OtherProxy) -> socket.socket:
    """Send a megabyte of a larger body, and wait until the proxy has read it."""
    made = socket.create_connection(("127.0.0.1", proxy.port))
    head = f"POST /v1/accounts/people/draws HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
    made.sendall((head + "Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n").encode())
    made.sendall(b'{"counts": [' + b"1234567," * 131_072)
    time.sleep(0.5)
    return made


def test_half_a_body_is_in_no_file_of_nginx(tmp_path: Path) -> None:
    with _serving(tmp_path, "nginx") as (proxy, _), _half_a_body(proxy):
        assert [name for name in proxy.files() if "nginx-body" in name] == []


def test_half_a_body_would_be_in_a_file_without_the_settings(tmp_path: Path) -> None:
    """A body is found in a file with the default of nginx, so the test above can fail."""
    changes = {"proxy_request_buffering off;": ""}
    with _serving(tmp_path, "nginx", changes=changes) as (proxy, _), _half_a_body(proxy):
        assert [name for name in proxy.files() if "nginx-body" in name] != []


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_proxy_answers_itself(tmp_path: Path, kind: str) -> None:
    with _serving(tmp_path, kind) as (proxy, servers), _client(proxy) as client:
        metrics = client.get("/metrics")
        assert (metrics.status_code, metrics.headers["Content-Type"]) == (404, "application/problem+json")
        assert metrics.json()["type"] == "/problems/not_found"
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as line:
            size = Settings().max_arrow_bytes + 1
            head = f"POST /v1/accounts/people/draws HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\n"
            line.sendall((head + f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n").encode())
            told = _answer_while_sending(line)
        assert b" 413 " in told.split(b"\r\n", 1)[0]
        assert b"/problems/too_large" in told
        for server in servers:
            server.stop()
        answer = client.get("/v1/accounts")
        assert (answer.status_code, answer.headers["Content-Type"]) == (_GONE[kind], "application/problem+json")
        assert answer.json()["type"] == "/problems/unavailable"
        assert answer.json()["status"] == _GONE[kind]
        assert answer.headers["Retry-After"] == "1"


def _charge_until_done(client: Client, key: str) -> set[int]:
    """Charge as a client would, with one Idempotency-Key for all attempts; return the statuses before the success."""
    refused = set[int]()
    body = {"name": key, "plan": pure("0.1")}
    while (answer := client.post("/v1/accounts/people/releases", json=body, headers={"Idempotency-Key": key})).is_error:
        refused.add(answer.status_code)
        assert len(answer.headers["Retry-After"]) == 1
        time.sleep(0.1)
    assert answer.status_code == 201
    return refused


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_that_end_take_no_request_with_them(tmp_path: Path, kind: str) -> None:
    """nginx sends requests that no replica has received to another one; Debian's Caddy answers some with 503."""
    with _serving(tmp_path, kind) as (proxy, servers), _client(proxy) as client:
        open_account(client, budget={"definition": "pure", "epsilon": 10})
        servers[0].kill()
        refused = set().union(*(_charge_until_done(client, f"killed {number}") for number in range(12)))
        servers[0].start()
        servers[1].stop()
        refused |= set().union(*(_charge_until_done(client, f"stopped {number}") for number in range(12)))
        assert refused <= {"nginx": set(), "caddy": {503}}[kind]
        assert json_of(client.get("/v1/accounts/people/verify"))["entries"] == 1 + 24


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "said", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_idle_connections_are_closed_within_seconds(tmp_path: Path, kind: str, said: bytes) -> None:
    """One that never asks, one whose headers do not end, and one that was answered."""
    with _serving(tmp_path, kind, 1) as (proxy, _):
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as line:
            line.sendall(said)
            while line.recv(65536):
                pass
        assert 2 < time.monotonic() - begun < 8


def test_an_address_has_500_requests_at_nginx_and_others_are_served(tmp_path: Path) -> None:
    with _serving(tmp_path, "nginx") as (proxy, _), ExitStack() as lines, _client(proxy) as other:
        open_account(other, budget={"definition": "pure", "epsilon": 10})
        head = b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"  # waits at the proxy
        for _ in range(500):
            lines.enter_context(socket.create_connection(("127.0.0.1", proxy.port))).sendall(head)
        with Client(base_url=proxy.address, headers=bearer(STEWARD), timeout=60) as client:
            until(lambda: client.get("/healthz").status_code == 429, "the address has its 500")
            refused = client.get("/v1/accounts")
            assert (refused.json()["type"], refused.json()["status"]) == ("/problems/too_many_requests", 429)
            assert refused.headers["Retry-After"] == "1"
            release(other, pure("0.1"))
            lines.close()
            until(lambda: client.get("/healthz").status_code == 200, "the address has room again")


def test_slow_sign_in_forms_use_no_connection_of_a_replica(tmp_path: Path) -> None:
    with _serving(tmp_path, "nginx", 1) as (proxy, (server,)):
        head = b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nkey="
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as line:
            line.sendall(head)
            told = line.recv(65536)
        assert told == b"" or b" 408 " in told.split(b"\r\n", 1)[0]
        until(lambda: "/sign-in" in "".join(proxy.said), "the request is logged")
        assert "/sign-in" not in "".join(server.said)


def _certificate(home: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "proxy")]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, private = home / "chain.pem", home / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return chain, private


@pytest.mark.parametrize("kind", KINDS)
def test_with_tls_the_service_knows_that_it_is_https(tmp_path: Path, kind: str) -> None:
    certificate = _certificate(tmp_path)
    with _serving(tmp_path, kind, 1, certificate=certificate) as (proxy, _):
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        forged = {"X-Forwarded-Proto": "http"}
        with Client(base_url=proxy.address, headers=forged, verify=trusting, timeout=60) as client:
            signed_in = client.post("/sign-in", data={"key": STEWARD}, follow_redirects=False)
        assert signed_in.status_code == 303
        assert "__Host-ledger_session" in signed_in.headers["Set-Cookie"]
        assert "Secure" in signed_in.headers["Set-Cookie"]


def test_limits_and_timeouts_fit_the_settings() -> None:
    nginx, caddy = ((ROOT / "deploy" / name).read_text(encoding="utf-8") for name in ("nginx.conf", "Caddyfile"))
    haproxy = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
    settings = Settings()
    assert "client_max_body_size 1g;" in nginx
    assert "max_size 1GiB" in caddy
    assert settings.max_arrow_bytes == 2**30
    most = [int(number) for number in re.findall(r"(?:max_conns=|max_conns_per_host )(\d+)", nginx + caddy)]
    assert len(most) == 4
    assert max(most) < settings.max_connections
    (silent,) = re.findall(r"timeout server (\d+)s", haproxy)
    assert re.findall(r"(?:proxy_read_timeout|response_header_timeout) (\d+)s", nginx + caddy) == [silent] * 2
    assert "keepalive off" in caddy
    assert not re.search(r"^\s*keepalive ", nginx, re.MULTILINE), (
        "no request is sent on a connection that is being closed"
    )
