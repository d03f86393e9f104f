"""A service for the length of the demo: its own process, its own empty database, gone afterwards."""

import os
import re
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
from typing import NamedTuple

import httpx

from service.demo.client import DemoStopped

_ROOT = Path(__file__).resolve().parents[2]  # where `python -m service` finds the package
_COMMAND = (sys.executable, "-m", "service")
_KEY = re.compile(r"\bpbl_\S+")
_STARTING_SECONDS = 300.0  # a few, but on a machine that has other things to do
_STOPPING_SECONDS = 40.0  # longer than the service takes for the requests that it still has to finish


class LocalService(NamedTuple):
    """A running service of the demo's own.

    Attributes:
        address: on this machine.
        key: a steward's.
        environment: that of its commands.
    """

    address: str
    key: str
    environment: dict[str, str]

    def make_key(self, role: str, name: str) -> str:
        """Make a key by the operator's command, as keys of persons are made who approve each other's releases.

        Raises:
            DemoStopped: the command fails.
        """
        command = [*_COMMAND, "keys", "create", "--role", role, "--name", name]
        made = subprocess.run(  # noqa: S603 - this package's own command, without a shell
            command, cwd=_ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        found = _KEY.search(made.stdout)
        if made.returncode or found is None:
            raise DemoStopped(f"no key for {name} could be made: {made.stderr.strip()}")
        return found[0]


@contextmanager
def local_service(host: str = "127.0.0.1", port: int | None = None, notice: str = "") -> Iterator[LocalService]:
    """Start a service of its own; yield it; stop it.

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
        command, environment = (
            [*_COMMAND, "serve", "--host", host, "--port", str(port)],
            _environment(home, key, notice),
        )
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this package's own command, without a shell
                command,
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                _wait_until_ready(process, address, home / "log")
                yield LocalService(address, key, environment)
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
