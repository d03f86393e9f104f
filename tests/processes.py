"""The service as its own process, started from its command line, with what it prints."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.api.calls import STEWARD, Client, bearer
from tests.forks import Fork

ROOT = Path(__file__).resolve().parents[1]
MODULE = ("-m", "service")
PATIENCE = 300.0  # seconds after which what hangs fails: a machine may be busy with ten other things


def environment(home: Path, **settings: str) -> dict[str, str]:
    """The environment of an installation under ``home``, whatever this one's is: its secret is there by default."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SERVICE_")}
    own = {"data_dir": str(home / "data")} | settings
    return inherited | {f"SERVICE_{name.upper()}": value for name, value in own.items()}


def run(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself; a service that is refused does so whoever listens at its usual port."""
    port = ("--port", str(_free_port())) if arguments == ("serve",) else ()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Fork([*MODULE, *arguments, *port], environment(home, **settings), out.fileno(), err.fileno())
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(imports: str, act: str, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Three processes of Python that do the same within microseconds of each other: all have imported, and wait."""
    with contextlib.ExitStack() as stack:
        gate = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gate"
        os.mkfifo(gate)
        opened = os.open(gate, os.O_RDWR)  # as long as it is, what is written waits for its readers
        stack.callback(os.close, opened)
        wait = f"os.read(os.open({str(gate)!r}, os.O_RDONLY), 1)"
        code = f"import os, sys; {imports}; print(flush=True); {wait}; {act}"
        started = []
        for _ in range(3):
            (out, its_out), (err, its_err) = os.pipe(), os.pipe()
            process = Fork(["-c", code, *arguments], os.environ, its_out, its_err)
            os.close(its_out)
            os.close(its_err)
            started.append((process, stack.enter_context(os.fdopen(out)), stack.enter_context(os.fdopen(err))))
        for _, printed, _ in started:
            printed.readline()
        os.write(opened, b"...")
        ended = [(process.wait(PATIENCE), printed.read(), told.read()) for process, printed, told in started]
        return [subprocess.CompletedProcess(code, *end) for end in ended]


@dataclass
class Served:
    """A running service: its address, and a steward who calls it."""

    process: Fork
    address: str
    client: Client
    home: Path
    said: list[str] = field(default_factory=list)  # the lines on its standard output and error so far

    def stop(self) -> int:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def service(home: Path, start: Sequence[str] = MODULE, **settings: str) -> Iterator[Served]:
    """``python -m service serve``, or the same by another way, for as long as the block lasts.

    Without helpers unless a test says how many: each process takes seconds to start another one. ``{address}`` in a
    setting stands for the service's own address.
    """
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    usual = {"bootstrap_key": STEWARD, "helper_processes": "0"}
    # an empty setting counts as none
    given = {name: value.replace("{address}", address) for name, value in (usual | settings).items()}
    caller = Client(base_url=address, headers=bearer(STEWARD), timeout=60)
    read, written = os.pipe()
    process = Fork([*start, "serve", "--port", str(port)], environment(home, **given), written, written)
    os.close(written)
    with caller as client, os.fdopen(read) as lines:
        served = Served(process, address, client, home)
        reader = threading.Thread(target=lambda: served.said.extend(lines))
        reader.start()
        try:
            _wait_until_it_answers(served)
            yield served
        finally:
            process.terminate()
            process.wait(PATIENCE)
            reader.join()


def _wait_until_it_answers(served: Served) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert served.process.poll() is None, "".join(served.said)
        with contextlib.suppress(httpx2.TransportError):
            if served.client.get("/readyz").is_success:
                return
        time.sleep(0.05)
    raise AssertionError(f"the service did not answer in {PATIENCE:.0f} s")
