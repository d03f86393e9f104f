"""Closed-loop load: each client keeps one connection and sends its next request when the last is answered.

Plain sockets and bytes made beforehand: a usual HTTP client would take longer for a request than a server does,
and on a machine of few cores its time would hide the servers' difference.
"""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles
from urllib.parse import urlsplit


def request_bytes(address: str, path: str, key: str, body: bytes | None, method: str = "POST") -> bytes:
    """A request as it goes over the wire: a GET where there is no body."""
    method = "GET" if body is None else method
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\nAuthorization: Bearer {key}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode("ascii") + (body or b"")


@dataclass(frozen=True)
class Measured:
    """Answers a second, and how long single ones took: half of them, and all but a hundredth, in seconds."""

    rate: float
    p50: float
    p99: float


def measured(latencies: Sequence[float], elapsed: float) -> Measured:
    """The figures of one run."""
    inner = quantiles(latencies, n=100)
    return Measured(len(latencies) / elapsed, inner[49], inner[98])


def measure(address: str, requests: Iterator[bytes], clients: int, seconds: float) -> Measured:
    """Send requests from as many clients for so long.

    Raises:
        RuntimeError: an answer was neither 200 nor 201; charges that were refused would be no charges.
    """
    target = urlsplit(address)
    connections = [socket.create_connection((target.hostname, target.port)) for _ in range(clients)]
    latencies: list[list[float]] = [[] for _ in range(clients)]
    failures: list[str] = []
    mutex = threading.Lock()
    started = time.perf_counter()
    deadline = started + seconds

    def work(number: int) -> None:
        connection = connections[number]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (asked := time.perf_counter()) < deadline and not failures:
            with mutex:
                request = next(requests)
            connection.sendall(request)
            status = _status(connection)
            if status not in {200, 201}:
                failures.append(f"expected 200 or 201, got {status} from {address}")
                return
            latencies[number].append(time.perf_counter() - asked)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    for connection in connections:
        connection.close()
    if failures:
        raise RuntimeError(failures[0])
    return measured([one for own in latencies for one in own], elapsed)


def _status(connection: socket.socket) -> int:
    """Read one answer to its end and return its status; 0 where the connection broke."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        if not chunk:
            return 0
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(65536))
    return int(head[9:12])
