"""Servers that can be killed and started again where they were: replicas of the service over one database."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx2

from tests.api.calls import STEWARD, Client, bearer
from tests.forks import Fork
from tests.postgres_server import Cluster
from tests.processes import MODULE, environment
from tests.waiting import until

_PATIENCE = 120.0  # seconds


@dataclass
class Replica:
    """One server process at a fixed address; ``up`` is set while it should answer."""

    home: Path
    settings: dict[str, str]
    port: int
    up: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)  # its lines on standard output and error, of all its lives
    log: IO[str] | None = None  # where those on standard error go instead, if anywhere
    _process: Fork | subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def client(self) -> Client:
        """A steward who calls it."""
        return Client(base_url=self.address, headers=bearer(STEWARD), timeout=_PATIENCE)

    def begin(self, stdout: int, stderr: int) -> Fork | subprocess.Popen[bytes]:
        """Its process, with its output."""
        given = {"bootstrap_key": STEWARD, "helper_processes": "0"} | self.settings
        return Fork([*MODULE, "serve", "--port", str(self.port)], environment(self.home, **given), stdout, stderr)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        read, written = os.pipe()
        self._process = self.begin(written, written if self.log is None else self.log.fileno())
        os.close(written)
        self._reader = threading.Thread(target=self._listen, args=(read,))
        self._reader.start()
        until(lambda: self._answers() or not self.running, "the service answers")
        assert self.running, "".join(self.said)
        self.up.set()

    def _listen(self, read: int) -> None:
        with os.fdopen(read) as lines:
            self.said.extend(lines)

    def kill(self) -> None:
        """SIGKILL: not a line of it runs after this moment."""
        self.up.clear()
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        self.up.clear()
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        status = self._process.wait(_PATIENCE)
        if self._reader is not None:
            self._reader.join(_PATIENCE)
        self._process = self._reader = None
        return status

    def limit_files(self, size: int | None) -> None:
        """Let none of its files grow beyond a size, or all of them again."""
        assert self._process is not None
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def ready(self) -> int:
        """The status of its probe; 0 where nobody answers."""
        with contextlib.suppress(httpx2.TransportError):
            return httpx2.get(f"{self.address}/readyz", timeout=_PATIENCE, trust_env=False).status_code
        return 0

    def _answers(self) -> bool:
        return self.ready() == 200


@contextlib.contextmanager
def replicas(home: Path, number: int, log: IO[str] | None = None, **settings: str) -> Iterator[Sequence[Replica]]:
    """Servers over one database, with one secret, for as long as the block lasts."""
    started = [Replica(home, settings, port, log=log) for port in free_ports(number)]
    try:
        at_once(replica.start for replica in started)
        yield started
    finally:
        for replica in started:
            replica.kill()


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Run calls side by side; raises what one of them failed with."""
    with ThreadPoolExecutor() as threads:
        for one in [threads.submit(call) for call in calls]:
            one.result()


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def tried_to_start(cluster: Cluster) -> bool:
    """While sessions of a killed server are ending, a new one does not start beside them."""
    try:
        cluster.start()
    except RuntimeError:
        return False
    return True
