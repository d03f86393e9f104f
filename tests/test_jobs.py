"""The workers, with real processes: results, ends of all sorts, restarts."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service import jobs as workers
from service.empirical.experiments import run
from service.empirical.notation import experiment_of
from service.jobs import Workers
from service.ledger import jobs
from service.ledger.jobs import JobRecord
from service.ledger.storage.database import Database, open_database
from tests.ledger.charging import SECRET, asking, carry_out, charge, draw, open_account
from tests.processes import PATIENCE

_PARAMETERS = {
    "algorithm": "rdpc",
    "epsilon": "1/2",
    "N": 100_000,
    "J": 2,
    "mu": 40,
    "P": 1,
    "strata": 1,
    "total_share": "0.25",
    "direct_runs": 100,
    "bandwidth": "0.1",
    "percentile": "95",
    "multiplier": "1",
    "bootstrap": 20,
    "confidence": "0.95",
    "seed": 7,
}
_SLOW = "import sys, time; print('{\"progress\": 0.25}', flush=True); time.sleep(600)"
_ECHO = "import json, os, sys; print(json.dumps({'result': dict(os.environ) | json.load(sys.stdin)}))"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts another program in the place of the simulation."""
    return lambda source: monkeypatch.setattr(workers, "_PROGRAM", (sys.executable, "-c", source))


@pytest.fixture
def embedded(_sqlite_template: Path, tmp_path: Path) -> Iterator[Database]:
    """A database on SQLite alone, for what does not depend on which it is."""
    path = tmp_path / "embedded.db"
    shutil.copyfile(_sqlite_template, path)
    opened = open_database(f"sqlite:///{path}")
    opened.secret = SECRET
    yield opened
    opened.close()


@contextmanager
def _working(database: Database, retention: timedelta = timedelta(days=1)) -> Iterator[Workers]:
    running = Workers(database, SECRET, 1, retention)
    with running.working():
        yield running


def _submit(database: Database, **changes: Any) -> str:
    request = asking("ann")
    return carry_out(database, jobs.submit(request, _PARAMETERS | changes), request).id


def _read(database: Database, job_id: str) -> JobRecord:
    with database.read() as connection:
        return jobs.read_job(connection, job_id)


def _once(database: Database, job_id: str, reached: Callable[[JobRecord], bool]) -> JobRecord:
    deadline = time.monotonic() + PATIENCE
    while not reached(job := _read(database, job_id)):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


def _ended(job: JobRecord) -> bool:
    return job.state in ("succeeded", "failed", "cancelled")


def test_a_job_is_the_experiment_of_its_parameters(database: Database) -> None:
    with _working(database) as running:
        job_id = _submit(database)
        running.wake()
        done = _once(database, job_id, _ended)
    assert (done.state, done.progress) == ("succeeded", 1)
    assert done.result == run(experiment_of(_PARAMETERS), lambda _: None)


def test_an_experiment_without_an_estimate_fails_with_the_reason(embedded: Database) -> None:
    job_id = _submit(embedded, epsilon="20", algorithm="gdpc")
    with _working(embedded):  # found in the queue, without a word
        done = _once(embedded, job_id, _ended)
    assert done.state == "failed"
    assert done.problem is not None
    assert done.problem["code"] == "validation"
    assert done.problem["detail"].startswith("expected ")


@pytest.mark.parametrize(
    ("source", "status"), [("raise SystemExit(3)", "3"), ("import os; os.kill(os.getpid(), 9)", "-9")]
)
def test_a_simulation_that_dies_is_a_failure(
    embedded: Database, program: Callable[[str], None], source: str, status: str
) -> None:
    program(source)
    job_id = _submit(embedded)
    with _working(embedded):
        done = _once(embedded, job_id, _ended)
    assert done.problem == {
        "code": "internal",
        "detail": f"the simulation ended without a result, with exit status {status}",
    }


def test_a_cancelled_job_ends_its_process(embedded: Database, program: Callable[[str], None]) -> None:
    program(_SLOW)
    with _working(embedded) as running:
        slow = _submit(embedded)
        running.wake()
        _once(embedded, slow, lambda job: job.progress == 0.25)
        assert jobs.end(embedded, slow).state == "cancelled"
        program(_ECHO)  # the one worker is free for it only when the first process is gone
        next_one = _submit(embedded)
        running.wake()
        assert _once(embedded, next_one, _ended).state == "succeeded"
    assert _read(embedded, slow).state == "cancelled"


def test_what_ended_long_ago_is_forgotten_by_the_workers(embedded: Database, program: Callable[[str], None]) -> None:
    program(_ECHO)
    with _working(embedded) as running:
        old, new = _submit(embedded), _submit(embedded)
        running.wake()
        for job_id in (old, new):
            assert _once(embedded, job_id, _ended).state == "succeeded"
        dated = text("UPDATE jobs SET created_at = :past, ended_at = :past WHERE id = :id")
        values = {"past": "2020-01-01T00:00:00.000000Z", "id": old}
        embedded.write(lambda c: c.execute(dated, values), is_committed=lambda *_: False)
        deadline = time.monotonic() + PATIENCE
        while _exists(embedded, old):
            assert time.monotonic() < deadline
            running.wake()
            time.sleep(0.02)
    assert _exists(embedded, new)


def test_old_noisy_counts_are_removed_by_the_workers(embedded: Database, program: Callable[[str], None]) -> None:
    program(_ECHO)
    plan = {"type": "repeat", "count": 2, "part": {"type": "geometric", "epsilon": "0.1"}}
    open_account(embedded)
    release = charge(embedded, plan)[0].id
    for turn in range(2):
        draw(embedded, release, plan, turn)
    kept = text("SELECT count(*) FROM draws WHERE noisy_removed_at IS NULL")
    for days, left in ((None, 2), (timedelta(days=1), 2), (timedelta(), 0)):
        running = Workers(embedded, SECRET, 2, timedelta(days=1), days)
        with running.working():
            job_id = _submit(embedded)
            running.wake()
            _once(embedded, job_id, _ended)  # whoever took it looked before
        with embedded.read() as connection:
            assert connection.execute(kept).scalar_one() == left


def _exists(database: Database, job_id: str) -> bool:
    with database.read() as connection:
        found = connection.execute(text("SELECT 1 FROM jobs WHERE id = :id"), {"id": job_id}).first()
    return found is not None


def test_a_stopped_server_gives_its_job_back_and_the_next_start_runs_it(
    database: Database, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = workers._PROGRAM
    program(_SLOW)
    job_id = _submit(database)
    with _working(database):
        _once(database, job_id, lambda job: job.progress == 0.25)
    assert (_read(database, job_id).state, _read(database, job_id).progress) == ("queued", 0)
    monkeypatch.setattr(workers, "_PROGRAM", simulation)
    with _working(database):
        done = _once(database, job_id, _ended)
    assert done.result == run(experiment_of(_PARAMETERS), lambda _: None)


def test_what_a_dead_server_left_is_found_at_the_next_start(database: Database) -> None:
    job_id = _submit(database)
    assert jobs.take(database, "a worker that died") is not None
    past = text("UPDATE jobs SET leased_until = '2020-01-01T00:00:00.000000Z'")
    database.write(lambda connection: connection.execute(past), is_committed=lambda *_: False)
    with _working(database):
        assert _once(database, job_id, _ended).state == "succeeded"


def test_a_simulation_sees_neither_the_secret_nor_the_database(
    embedded: Database, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_BOOTSTRAP_KEY", "do-not-hand-on")
    monkeypatch.setenv("SERVICE_DATABASE_URL", "do-not-hand-on")
    monkeypatch.setenv("PGPASSWORD", "do-not-hand-on")
    program(_ECHO)
    job_id = _submit(embedded)
    with _working(embedded):
        seen = _once(embedded, job_id, _ended).result
    assert seen is not None
    assert seen["PATH"] == os.environ["PATH"]
    assert seen["seed"] == 7
    assert "do-not-hand-on" not in json.dumps(seen)


def test_workers_outlive_a_fault(
    embedded: Database, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for a process, or words that are none: the job is left to its lease, and others are run."""
    monkeypatch.setattr(workers, "_PROGRAM", ("/nothing/here",))
    lost = _submit(embedded)
    with _working(embedded) as running:
        _once(embedded, lost, lambda job: job.state == "running")
        program("print('not JSON')")
        also_lost = _submit(embedded)
        running.wake()
        _once(embedded, also_lost, lambda job: job.state == "running")
        program(_ECHO)
        fine = _submit(embedded)
        running.wake()
        assert _once(embedded, fine, _ended).state == "succeeded"
    assert _read(embedded, lost).state == "running"
