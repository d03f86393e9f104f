"""The service's command line in processes that begin at once: forks of one that has imported the service, and waits.

To start Python and import the service takes two seconds of a processor, and the tests would do so a hundred times.
A fork runs ``python -m service`` from its first line on, with an environment, output, signals and an exit status of
its own; all that it has not done itself is to import. This module, run as a program, is the process that is forked.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_LONGEST = 1 << 20  # bytes of a command with its environment


class Fork:
    """A process that runs ``python`` with these arguments, ``-m service`` or ``-c``; used as a ``subprocess.Popen``."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int) -> None:
        told, theirs = os.pipe()
        message = json.dumps([list(arguments), dict(environment)]).encode()
        socket.send_fds(_origin(), [message], [stdout, stderr, theirs])
        os.close(theirs)
        self._told = os.fdopen(told)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not after so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._told:
                self.returncode = int(self._told.readline())
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _origin() -> socket.socket:
    """Start the process that forks and is told what to run; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    atexit.register(process.wait)
    atexit.register(ours.close)  # the last is done first
    return ours


def _commands(channel: socket.socket) -> None:
    """Fork for each command, and run it there; return when there will be no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        message, (*descriptors,), _, _ = socket.recv_fds(channel, _LONGEST, 3)
        if not message:
            return
        if os.fork() == 0:
            channel.close()
            _run(*json.loads(message), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _run(arguments: list[str], environment: dict[str, str], stdout: int, stderr: int, told: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # As in a terminal: what a shell starts in the background inherits that it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (pid := os.fork()) != 0:
        os.close(stdout)
        os.close(stderr)
        os.write(told, f"{pid}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the tests were ended
            os.write(told, f"{status}\n".encode())
        os._exit(0)
    os.close(told)
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        if descriptor not in (1, 2):
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    option, what, *sys.argv[1:] = arguments
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})


if __name__ == "__main__":
    from service import server  # noqa: F401 - what `python -m service` imports

    gc.freeze()  # or each fork's collector walks all of it, and copies it by that
    _commands(socket.socket(fileno=int(sys.argv[1])))
