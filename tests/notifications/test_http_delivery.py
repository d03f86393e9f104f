"""Tries to post a message to a real receiver."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.notifications import http_delivery
from service.notifications.http_delivery import Answer, post, trusted
from tests.certificates import certified
from tests.receivers import Receiver, http_receiver

_HERE = (ip_network("127.0.0.0/8"),)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as running:
        yield running


def send(url: str) -> Answer:
    return post(url, b'{"type":"test"}', {"webhook-id": "1"}, _HERE)


def test_a_message_is_posted_as_it_is(receiver: Receiver) -> None:
    receiver.answer = b"thanks"
    assert send(receiver.url) == (204, None, None)  # 204 has no body
    receiver.status = 201
    assert send(receiver.url) == (201, None, "thanks")
    first = receiver.requests[0]
    assert (first.path, first.body) == ("/hook?from=ledger", b'{"type":"test"}')
    assert first.headers["content-type"] == "application/json"
    assert first.headers["host"] == urlsplit(receiver.url).netloc
    assert first.headers["user-agent"].startswith("privacy-budget-ledger/")
    assert "authorization" not in first.headers


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    with http_receiver() as other:
        receiver.status, receiver.headers = 307, {"Location": other.url}
        assert send(receiver.url) == (307, "redirects are not followed", None)
        assert other.requests == []


def test_only_the_beginning_of_an_answer_is_read(receiver: Receiver) -> None:
    receiver.status, receiver.answer = 500, b"x\0<b>\n" * 10**6
    answer = send(receiver.url)
    assert answer.text is not None
    assert answer.text.startswith("x <b> x")
    assert len(answer.text) <= 200


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_slow_answer_is_broken_off(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    """A byte now and then is an answer to each step, and not to all of it."""
    monkeypatch.setattr(http_delivery, "_LONGEST", 0.5)
    stopping = threading.Event()

    def drip(listening: socket.socket) -> None:
        with closing(listening.accept()[0]) as connection:
            connection.sendall(beginning)
            while not stopping.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        began = time.monotonic()
        answer = send(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        assert time.monotonic() - began < 60
        stopping.set()
        thread.join()
    assert answer.status is None
    assert answer.reason is not None
    assert answer.reason.startswith("no answer within")


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (_CHUNKED + b"1\r\na\r\n0\r\n", b"a: b\r\n"),
        (_CHUNKED, b"1\r\na\r\n"),
        (_CHUNKED, b"1;" + b"a" * 60_000 + b"\r\na\r\n"),
    ],
    ids=["interim answers", "trailers", "chunks", "long lines"],
)
def test_an_endless_answer_is_broken_off(beginning: bytes, again: bytes) -> None:
    """Reading goes on in the serving process, so that it must not last as long as a receiver sends."""
    sent = 0

    def flood(listening: socket.socket) -> None:
        nonlocal sent
        with closing(listening.accept()[0]) as connection, suppress(OSError):
            connection.settimeout(60)
            connection.sendall(beginning)
            for _ in range(100):
                connection.sendall(again * (1 + 60_000 // len(again)))
                sent += 1

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=flood, args=(listening,))
        thread.start()
        answer = send(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()
    assert answer == (None, "the answer is too long", None)
    assert sent < 100


def test_a_few_interim_answers_and_trailers_are_admitted() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def talk() -> None:
            with closing(listening.accept()[0]) as connection:
                connection.recv(1000)
                interim = b"HTTP/1.1 100 Continue\r\n\r\n" * 5
                connection.sendall(interim + _CHUNKED + b"2\r\nok\r\n0\r\nExpires: never\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        answer = send(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()
    assert answer == (200, None, "ok")


def test_a_slow_resolver_does_not_hold_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_delivery, "_STEP", 0.2)
    stopping = threading.Event()

    def resolve(*_: Any, **__: Any) -> list[Any]:
        stopping.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    began = time.monotonic()
    answer = send("https://hooks.agency.example/")
    assert time.monotonic() - began < 30
    stopping.set()
    assert answer == (None, "the host's name was not resolved within 0 s", None)


def test_what_is_no_http_is_refused() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def talk() -> None:
            with closing(listening.accept()[0]) as connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.agency.example ESMTP\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        answer = send(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        thread.join()
    assert answer == (None, "not an answer of HTTP: BadStatusLine", None)


def test_nobody_listens() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    assert send(f"http://127.0.0.1:{port}/") == (None, "no connection: Connection refused", None)


def test_a_certificate_is_checked_for_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, receiver: Receiver
) -> None:
    """The connection goes to the checked address, with the host's name in TLS and in the header."""
    context, authority = certified(tmp_path, "hooks.agency.example")

    def resolved(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    named: list[Any] = []
    context.sni_callback = lambda _, name, __: named.append(name)
    with http_receiver(context) as encrypted:
        port = urlsplit(encrypted.url).port
        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        url = f"https://hooks.agency.example:{port}/a"
        try:
            trusted.cache_clear()
            untrusted = send(url)
            monkeypatch.setenv("SSL_CERT_FILE", str(authority))
            trusted.cache_clear()
            assert send(url).status == 204
            other = send(f"https://other.agency.example:{port}/a")
        finally:
            trusted.cache_clear()
    assert named[1] == "hooks.agency.example"
    (request,) = encrypted.requests
    assert request.headers["host"] == f"hooks.agency.example:{port}"
    for refused in (untrusted, other):
        assert refused.status is None
        assert refused.reason is not None
        assert refused.reason.startswith("the certificate is not valid")


def test_a_refused_address_is_not_connected_to(receiver: Receiver) -> None:
    answer = post(receiver.url, b"", {}, ())
    assert answer == (None, "the host's address is not public, and not in SERVICE_WEBHOOK_NETWORKS", None)
    assert receiver.requests == []
