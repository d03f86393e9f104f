"""A relay in front of a server, which breaks the line at chosen moments of a request and its answer."""

import contextlib
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from sqlalchemy import make_url

_PATIENCE = 30.0  # seconds
_COMMIT = b"COMMIT\x00"  # as a client of PostgreSQL sends it and as the server confirms it
_NAME = ".s.PGSQL.5432"  # of PostgreSQL's socket in its directory


class Break(Enum):
    BEFORE = auto()  # the server never gets the request
    DURING = auto()  # the client loses the server while that is at work
    AFTER = auto()  # the server's confirmation is lost
    HALFWAY = auto()  # half of it arrives


class Relay:
    """Listens on a socket and passes on to a server's; each entry of ``breaks`` is for one request, None lets it pass.

    A request is what holds the bytes ``asks``, its confirmation what holds ``confirms``.
    """

    def __init__(self, listener: socket.socket, server: Any, *, asks: bytes, confirms: bytes) -> None:
        self.breaks: list[Break | None] = []
        self.connections = 0  # accepted so far
        self._listener, self._server, self._asks, self._confirms = listener, server, asks, confirms
        self._mutex = threading.Lock()
        listener.listen()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._stop_writer.close()
        for thread in self._threads:
            thread.join(_PATIENCE)
        self._stop_reader.close()

    def _accept(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._stop_reader], [], [])
            if self._stop_reader in ready:
                return
            client, _ = self._listener.accept()
            self.connections += 1
            thread = threading.Thread(target=self._relay, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _next(self) -> Break | None:
        with self._mutex:
            return self.breaks.pop(0) if self.breaks else None

    def _relay(self, client: socket.socket) -> None:
        # Where one side has hung up in the meantime, closing tells the other.
        with contextlib.suppress(ConnectionError), client, socket.socket(self._listener.family) as server:
            server.connect(self._server)
            mode: Break | None = None
            while True:
                ready, _, _ = select.select([client, server, self._stop_reader], [], [])
                if self._stop_reader in ready:
                    return
                source, sink = (client, server) if client in ready else (server, client)
                sent = source.recv(65536)
                if not sent:
                    return
                if source is client and self._asks in sent:
                    mode = self._next()
                    if mode is Break.BEFORE:
                        return
                elif source is server and mode in {Break.AFTER, Break.HALFWAY} and self._confirms in sent:
                    sink.sendall(sent[: len(sent) // 2 if mode is Break.HALFWAY else 0])
                    return
                sink.sendall(sent)
                if mode is Break.DURING:
                    client.close()
                    server.shutdown(socket.SHUT_WR)
                    while server.recv(65536):  # the server goes on as if nothing had happened
                        pass
                    return


@contextlib.contextmanager
def before_postgresql(url: str) -> Iterator[tuple[Relay, str]]:
    """A relay that breaks at commits, and the URL through it."""
    server = make_url(url)
    with tempfile.TemporaryDirectory() as front, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{front}/{_NAME}")
        relay = Relay(listener, f"{server.query['host']}/{_NAME}", asks=_COMMIT, confirms=_COMMIT)
        try:
            yield relay, server.update_query_dict({"host": front}).render_as_string(hide_password=False)
        finally:
            relay.close()


@contextlib.contextmanager
def before_http(port: int) -> Iterator[tuple[Relay, int]]:
    """A relay that breaks at requests that change something, and its own port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        relay = Relay(listener, ("127.0.0.1", port), asks=b"POST /", confirms=b"HTTP/1.1 ")
        try:
            yield relay, listener.getsockname()[1]
        finally:
            relay.close()
