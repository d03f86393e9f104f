"""Workers that run jobs from the ledger's queue, each job in a process of its own.

Principals take turns, so that one principal's experiments never hold up all others. Between jobs the workers delete old
jobs and remove noisy counts whose retention has ended.

A simulation runs in a process and not in a thread. It can then neither hold the interpreter's lock while charges wait
nor exhaust the ledger's memory, and it can be ended at any moment. It sees neither the database nor the secret, and
runs at a lower priority than requests.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from service.ledger import jobs
from service.ledger.draws.retention import remove_noisy
from service.ledger.draws.tabulated_groups import record_left
from service.ledger.jobs import JobRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret

_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = (sys.executable, "-m", "service.empirical")
_IDLE = 10.0  # seconds between looks for jobs that other replicas left or that a restart finds
_SWEEP = 3600.0  # seconds between looks for tabulations whose groups have no rows yet
_RECORDING = timedelta(minutes=10)  # in which a tabulation has written the rows of its groups, unless it was cut short
_LOOK = 0.5  # seconds between looks at a running job
_RENEWED = 10  # looks after which a lease is renewed although there was no progress
_NICENESS = 10

_log = structlog.get_logger("service.jobs")


class Workers:
    """Threads that wait for the processes of jobs; as many jobs run at once."""

    def __init__(
        self, database: Database, secret: Secret, number: int, kept: timedelta, noisy_kept: timedelta | None = None
    ) -> None:
        self._database, self._secret, self._number = database, secret, number
        self._sweep_at = 0.0  # the next look for tabulations whose groups have no rows yet
        # time for which ended jobs and noisy counts are kept (None: for ever)
        self._kept, self._noisy_kept = kept, noisy_kept
        self._arrivals = 0  # of jobs, as far as this server knows
        self._last = ""  # the principal of the last job; the next job is of another one
        self._changed = threading.Condition()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on the queue until the end of the block.

        At the end the running processes are ended and their jobs given back, for the next start or another replica.
        """
        stopping = threading.Event()
        threads = [threading.Thread(target=self._serve, args=(stopping,), name="jobs") for _ in range(self._number)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            self.wake()
            for thread in threads:
                thread.join()

    def wake(self) -> None:
        """Wake the workers for a new job."""
        with self._changed:
            self._arrivals += 1
            self._changed.notify_all()

    def _serve(self, stopping: threading.Event) -> None:
        name = str(uuid.uuid4())
        while not stopping.is_set():
            before = self._arrivals
            try:
                self._forget(stopping)
                job = jobs.take(self._database, name, self._last)
                if job is not None:
                    self._last = job.principal
                    self._work(job, name, stopping)
                    continue
            except Exception as error:  # noqa: BLE001 - no content of the database may end the thread
                # Without a database, or without memory for a process, the job is found again when its lease has
                # expired.
                _log.warning("job", error=type(error).__name__, detail=getattr(error, "for_operator", None))
            self._wait(before, stopping)

    def _forget(self, stopping: threading.Event) -> None:
        """Do what is left from before, then delete jobs and remove noisy counts whose retention has ended."""
        now = clock.now()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP
            recorded = record_left(self._database, clock.later(now, -_RECORDING), stopping)
            if recorded:
                _log.info("groups recorded", tabulations=recorded)
        forgotten = jobs.forget(self._database, clock.later(now, -self._kept))
        if forgotten:
            _log.info("jobs deleted", number=forgotten)
        while self._noisy_kept is not None and not stopping.is_set():
            removed = remove_noisy(self._database, clock.later(now, -self._noisy_kept), now)
            if not removed:
                break
            _log.info("noisy counts removed", draws=removed)

    def _wait(self, before: int, stopping: threading.Event) -> None:
        """Wait for a new job since ``before``, or for a while."""
        with self._changed:
            self._changed.wait_for(lambda: stopping.is_set() or self._arrivals > before, _IDLE)

    def _work(self, job: JobRecord, name: str, stopping: threading.Event) -> None:
        with _start(job) as process:
            try:
                end = self._watch(process, job.id, name, stopping)
            finally:
                process.kill()
        match end:
            case {"result": result}:
                jobs.finish(self._database, self._secret, job, name, result)
            case {"refused": reason}:
                jobs.fail(self._database, job.id, name, "validation", reason)
            case {"died": status}:
                detail = f"the simulation ended without a result, with exit status {status}"
                jobs.fail(self._database, job.id, name, "internal", detail)
            case _:
                jobs.give_back(self._database, job.id, name)
        _log.info("job", job=job.id, end=next(iter(end), "none"))

    def _watch(
        self, process: subprocess.Popen[bytes], job_id: str, name: str, stopping: threading.Event
    ) -> dict[str, Any]:
        """Return the last line of the process; empty where the server stops, or the job was cancelled or reassigned."""
        progress = 0.0
        for looks, lines in enumerate(_output_lines(process), 1):
            for line in lines:
                if "progress" not in line:
                    return line
                progress = line["progress"]
            if stopping.is_set():
                return {}
            if lines or looks % _RENEWED == 0:
                mine = jobs.renew(self._database, job_id, name, progress)
            else:
                mine = jobs.holds(self._database, job_id, name)
            if not mine:
                return {}
        return {"died": process.wait()}


def _start(job: JobRecord) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SERVICE_", "PG"))}
    process = subprocess.Popen(  # noqa: S603 - our own program
        _PROGRAM,
        cwd=_ROOT,
        env=environment | {"OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for the server, which then gives the job back
    )
    with suppress(OSError):  # the process has ended already, as its exit status will show
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.write(json.dumps(job.parameters).encode())
            process.stdin.close()
    return process


def _output_lines(process: subprocess.Popen[bytes]) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of a process as they come, and an empty list after each pause without any."""
    if process.stdout is None:
        return
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_LOOK):
                yield []
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            if lines:
                yield [json.loads(line) for line in lines]
