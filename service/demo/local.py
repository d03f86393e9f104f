"""A service for the length of the demo: its own process, its own empty database, gone afterwards."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx

from service.demo.client import DemoStopped

_ROOT = Path(__file__).resolve().parents[2]  # where `python -m service` finds the package
_STARTING_SECONDS = 300.0  # a few, but on a machine that has other things to do
_STOPPING_SECONDS = 40.0  # longer than the service takes for the requests that it still has to finish


@contextmanager
def local_service(host: str = "127.0.0.1", port: int | None = None, notice: str = "") -> Iterator[tuple[str, str]]:
    """Start a service of its own; yield its address on this machine and a steward's key; stop it.

    It is stopped and its directory removed however the block ends, by Ctrl-C and SIGTERM too.

    Args:
        host: the address to listen at.
        port: by default a free one.
        notice: the sentence at the top of its pages.

    Raises:
        DemoStopped: it does not start; the message has the end of its log.
    """
    key = secrets.token_urlsafe(32)
    with _ending_at_sigterm(), tempfile.TemporaryDirectory(prefix="demo-") as directory:
        home, port = Path(directory), port or _free_port()
        address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "service", "serve", "--host", host, "--port", str(port)]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this package's own command, without a shell
                command,
                cwd=_ROOT,
                env=_environment(home, key, notice),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                _wait_until_ready(process, address, home / "log")
                yield address, key
            finally:
                _stop(process)


def _environment(home: Path, key: str, notice: str) -> dict[str, str]:
    """Nothing of a configured service is inherited: the demo must never touch a real ledger."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SERVICE_")}
    return inherited | {
        "SERVICE_DATA_DIR": str(home / "data"),
        "SERVICE_SECRET_FILE": str(home / "service.secret"),
        "SERVICE_BOOTSTRAP_KEY": key,
        "SERVICE_NOTICE": notice,
        "SERVICE_HELPER_PROCESSES": "0",  # for others to be answered meanwhile, and there are none
    }


def _free_port() -> int:
    """A port that was free a moment ago; where another program takes it first, the service says so and ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _STARTING_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if client.get(f"{address}/readyz").is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(0.05)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise DemoStopped("\n".join(["the demo's own service did not start", *lines[-5:]]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPPING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does; by default it would leave the service running."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
