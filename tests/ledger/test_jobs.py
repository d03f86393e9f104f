"""The queue of jobs: taken once, oldest first; held by leases; ended once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from service.errors import IdempotencyConflict, NotFound, TooManyRequests, Unavailable
from service.ledger import jobs
from service.ledger.idempotent_write import idempotent_write
from service.ledger.jobs import JobRecord
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer
from tests.ledger.charging import SECRET, asking, carry_out
from tests.ledger.writing import run

_PAST = "2020-01-01T00:00:00.000000Z"


def _submit(database: Database, number: int = 0, key: str | None = None, of: str = "ann") -> str:
    request = asking(of, key, f"digest of {number}")
    answer = idempotent_write(
        database, request, jobs.submit(request, {"number": number}), lambda job: Answer(202, job.id)
    ).answer
    return answer.body or ""


def _read(database: Database, job_id: str) -> JobRecord:
    with database.read() as connection:
        return jobs.read_job(connection, job_id)


def _let_the_lease_run_out(database: Database, job_id: str) -> None:
    statement = text("UPDATE jobs SET leased_until = :past WHERE id = :id")
    database.write(lambda c: c.execute(statement, {"past": _PAST, "id": job_id}), is_committed=lambda *_: False)


def _taken(database: Database, worker: str = "w") -> JobRecord:
    job = jobs.take(database, worker)
    assert job is not None
    return job


def test_jobs_are_taken_oldest_first_and_each_once(database: Database) -> None:
    ids = [_submit(database, number) for number in range(3)]
    assert _read(database, ids[0]).state == "queued"
    taken = [_taken(database) for _ in ids]
    assert [(job.id, job.parameters["number"], job.state) for job in taken] == [
        (job_id, number, "running") for number, job_id in enumerate(ids)
    ]
    assert jobs.take(database, "w") is None


def test_workers_that_ask_at_once_get_different_jobs(database: Database) -> None:
    ids = {_submit(database, number) for number in range(8)}
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: jobs.take(database, f"worker {number}"), range(8)))
    found = [job.id for job in taken if job is not None]
    while (late := jobs.take(database, "late")) is not None:  # whoever met only locked rows went away without one
        found.append(late.id)
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize("parameters", ["x", "", "[]", "5", "null", '"', "[" * 100_000])
def test_a_job_whose_parameters_cannot_be_read_fails_and_holds_up_no_other(database: Database, parameters: str) -> None:
    bad, good = _submit(database, 1), _submit(database, 2)
    change = text("UPDATE jobs SET parameters = :parameters WHERE id = :id")
    given = {"parameters": parameters, "id": bad}
    database.write(lambda c: c.execute(change, given), is_committed=lambda *_: False)
    assert (_read(database, bad).state, _read(database, bad).parameters) == ("failed", {})
    assert _taken(database).id == good
    shown = _read(database, bad)
    assert shown.problem is not None
    assert "parameters" in shown.problem["detail"]
    with database.read() as connection:
        assert [job.id for job in jobs.list_jobs(connection, "ann", ("", ""), 9, "failed", lambda _: None)] == [bad]
        assert jobs.unfinished(database) == {"queued": 0, "running": 1}


@pytest.mark.parametrize(
    "problem", ["5", "{}", "x", '{"code": "none", "detail": "d"}', '{"code": "internal", "detail": 5}']
)
def test_a_reason_that_was_changed_is_not_shown(database: Database, problem: str) -> None:
    job_id = _submit(database, 1)
    assert jobs.fail(database, _taken(database).id, "w", "internal", "it broke")
    change = text("UPDATE jobs SET problem = :problem")
    database.write(lambda c: c.execute(change, {"problem": problem}), is_committed=lambda *_: False)
    shown = _read(database, job_id).problem
    assert shown is None or "not as this service wrote it" in shown["detail"]


def test_a_result_of_parameters_that_cannot_be_read_is_none(database: Database) -> None:
    job_id = carry_out(database, jobs.submit(asking("ann"), {})).id
    assert jobs.finish(database, SECRET, _taken(database), "w", {"a": 1})
    database.write(lambda c: c.execute(text("UPDATE jobs SET parameters = 'x'")), is_committed=lambda *_: False)
    assert jobs.checked(SECRET, _read(database, job_id)).state == "failed"
    with database.read() as connection:
        assert list(jobs.altered(connection, SECRET)) == [job_id]


@pytest.mark.parametrize("state", ["failed", "cancelled", "running"])
def test_a_result_without_a_seal_is_shown_in_no_state(database: Database, state: str) -> None:
    """The attack: only the results of jobs that succeeded were checked."""
    job_id = _submit(database, 1)
    change = text("UPDATE jobs SET state = :state, result = :result")
    given = {"state": state, "result": '{"a": 1}'}
    database.write(lambda c: c.execute(change, given), is_committed=lambda *_: False)
    shown = jobs.checked(SECRET, _read(database, job_id))
    assert (shown.state, shown.result) == ("failed", None)
    assert "not as this service wrote it" in (shown.problem or {})["detail"]
    with database.read() as connection:
        assert list(jobs.altered(connection, SECRET)) == [job_id]


def test_a_result_is_kept(database: Database) -> None:
    _submit(database)
    job = _taken(database)
    assert jobs.holds(database, job.id, "w")
    assert jobs.renew(database, job.id, "w", 0.25)
    assert _read(database, job.id).progress == 0.25
    assert jobs.finish(database, SECRET, job, "w", {"found": [1.5, None]})
    done = _read(database, job.id)
    assert (done.state, done.progress, done.result, done.problem) == ("succeeded", 1, {"found": [1.5, None]}, None)
    assert done.ended_at is not None
    assert done.ended_at >= done.created_at
    assert not jobs.holds(database, job.id, "w")


def test_a_failure_says_why(database: Database) -> None:
    _submit(database)
    job = _taken(database)
    assert jobs.fail(database, job.id, "w", "validation", "no range")
    done = _read(database, job.id)
    assert (done.state, done.result, done.problem) == ("failed", None, {"code": "validation", "detail": "no range"})


def test_what_nobody_holds_any_more_is_taken_again(database: Database) -> None:
    """A server died: its lease runs out, another runs the job, and the first one changes nothing if it comes back."""
    _submit(database)
    job = _taken(database, "dead")
    assert jobs.renew(database, job.id, "dead", 0.9)
    assert jobs.take(database, "other") is None
    _let_the_lease_run_out(database, job.id)
    again = _taken(database, "other")
    assert (again.id, again.parameters, again.progress) == (job.id, job.parameters, 0)
    assert not jobs.holds(database, job.id, "dead")
    assert not jobs.renew(database, job.id, "dead", 0.95)
    assert not jobs.finish(database, SECRET, job, "dead", {"wrong": True})
    assert not jobs.fail(database, job.id, "dead", "internal", "wrong")
    assert not jobs.give_back(database, job.id, "dead")
    assert jobs.finish(database, SECRET, job, "other", {})
    assert _read(database, job.id).result == {}


def test_a_job_that_ends_its_server_is_not_run_for_ever(database: Database) -> None:
    poison, healthy = _submit(database, 1), _submit(database, 2)
    for _ in range(jobs.MOST_ATTEMPTS):
        assert _taken(database).id == poison
        _let_the_lease_run_out(database, poison)
    assert _taken(database).id == healthy
    failed = _read(database, poison)
    assert failed.state == "failed"
    assert failed.problem == {"code": "internal", "detail": "the server ended 3 times while the job ran"}


def test_a_job_given_back_is_as_new(database: Database) -> None:
    job_id = _submit(database)
    for _ in range(2 * jobs.MOST_ATTEMPTS):
        assert _taken(database).id == job_id
        assert jobs.renew(database, job_id, "w", 0.5)
        assert jobs.give_back(database, job_id, "w")
        assert (_read(database, job_id).state, _read(database, job_id).progress) == ("queued", 0)


@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_job_is_over(database: Database, running: bool) -> None:
    job_id = _submit(database)
    if running:
        _taken(database)
    cancelled = jobs.end(database, job_id)
    assert (cancelled.state, cancelled) == ("cancelled", _read(database, job_id))
    assert jobs.take(database, "w") is None
    assert not jobs.finish(database, SECRET, _read(database, job_id), "w", {})
    assert _read(database, job_id).state == "cancelled"


def _end(database: Database, job_id: str, state: str) -> None:
    match state:
        case "succeeded":
            assert jobs.finish(database, SECRET, _read(database, job_id), "w", {"found": 1})
        case "failed":
            assert jobs.fail(database, job_id, "w", "validation", "")
        case _:
            jobs.end(database, job_id)


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_job_that_has_ended_is_deleted(database: Database, state: str) -> None:
    job_id, other = _submit(database), _submit(database, 1)
    _taken(database)
    _end(database, job_id, state)
    last = _read(database, job_id)
    assert last.state == state
    assert jobs.end(database, job_id) == last
    for again in (_read, jobs.end):
        with pytest.raises(NotFound):
            again(database, job_id)
    assert _read(database, other).state == "queued"


def _dated(database: Database, job_id: str, created_at: str, ended_at: str | None) -> None:
    statement = text("UPDATE jobs SET created_at = :created, ended_at = :ended WHERE id = :id")
    values = {"created": created_at, "ended": ended_at, "id": job_id}
    database.write(lambda c: c.execute(statement, values), is_committed=lambda *_: False)


def test_what_ended_before_a_time_is_forgotten_and_nothing_else(database: Database) -> None:
    ids = {}
    for state in ("succeeded", "failed", "cancelled"):
        ids[state] = _submit(database)
        _taken(database)
        _end(database, ids[state], state)
        _dated(database, ids[state], _PAST, "2020-01-02T00:00:00.000000Z")
    ids["late"] = _submit(database)
    _taken(database)
    _end(database, ids["late"], "succeeded")
    _dated(database, ids["late"], _PAST, "2020-01-03T00:00:00.000000Z")
    ids["running"] = _submit(database)
    _taken(database)
    ids["queued"] = _submit(database)
    for name in ("running", "queued"):
        _dated(database, ids[name], _PAST, None)
    assert jobs.forget(database, "2020-01-02T00:00:00.000000Z") == 0
    assert jobs.forget(database, "2020-01-02T00:00:00.000001Z") == 3
    assert jobs.forget(database, "2020-01-02T00:00:00.000001Z") == 0
    for name in ("late", "running", "queued"):
        assert _read(database, ids[name]).id == ids[name]
    with pytest.raises(NotFound):
        _read(database, ids["succeeded"])


def test_jobs_are_listed_by_pages_in_order_and_to_who_asked(database: Database) -> None:
    mine = [_submit(database, number) for number in range(5)]
    carry_out(database, jobs.submit(asking("bob"), {"number": 9}), asking("bob"))
    _taken(database)
    for number, job_id in enumerate(mine):  # some were made at the same time
        _dated(database, job_id, f"2020-01-01T00:00:00.00000{number // 2}Z", None)
    expected = [job_id for pair in (mine[:2], mine[2:4], mine[4:]) for job_id in sorted(pair)]
    found: list[JobRecord] = []
    with database.read() as connection:
        for _ in range(3):
            last = (found[-1].created_at, found[-1].id) if found else ("", "")
            found += jobs.list_jobs(connection, "ann", last, 2, None, lambda _: None)
        running = jobs.list_jobs(connection, "ann", ("", ""), 10, "running", lambda _: None)
        assert jobs.list_jobs(connection, "nobody", ("", ""), 10, None, lambda _: None) == []
    assert [job.id for job in found] == expected
    assert [job.id for job in running] == mine[:1]


@pytest.mark.parametrize("column", ["parameters", "result", "problem"])
def test_a_page_of_jobs_is_counted_whole_before_it_is_read(database: Database, column: str) -> None:
    """Each column can be made long in the database, and memory is reserved by the size of all."""
    _submit(database)
    run(database, f"UPDATE jobs SET {column} = :long", long="x" * 10_000)
    sizes: list[int] = []
    with database.read() as connection:
        jobs.list_jobs(connection, "ann", ("", ""), 9, None, sizes.append)
    assert sizes[0] >= 10_000


def test_an_unknown_job(database: Database) -> None:
    with pytest.raises(NotFound):
        _read(database, "nothing")
    with pytest.raises(NotFound):
        jobs.end(database, "nothing")


def test_the_same_request_makes_one_job(database: Database) -> None:
    first = _submit(database, 1, "key")
    assert _submit(database, 1, "key") == first
    with pytest.raises(IdempotencyConflict):
        _submit(database, 2, "key")
    assert _taken(database).id == first
    assert jobs.take(database, "w") is None


def test_one_principal_has_a_share_of_the_queue(database: Database) -> None:
    for _ in range(jobs.MOST_OF_ONE):
        _submit(database)
    with pytest.raises(TooManyRequests, match=f"{jobs.MOST_OF_ONE} jobs of one principal"):
        _submit(database)
    _submit(database, of="bob")
    _taken(database)
    _submit(database)


def test_requests_at_one_time_do_not_pass_the_bound(database: Database) -> None:
    together = 8
    for _ in range(jobs.MOST_OF_ONE - 1):
        _submit(database)
    start = threading.Barrier(together)

    def submit(_: int) -> bool:
        start.wait(60)
        try:
            return bool(_submit(database))
        except TooManyRequests:
            return False

    with ThreadPoolExecutor(together) as pool:
        assert sum(pool.map(submit, range(together))) == 1


def test_principals_take_turns(database: Database) -> None:
    for number in range(3):
        _submit(database, number)
    for of in ("bob", "cy", "bob"):
        _submit(database, 9, of=of)
    order, last = [], ""
    while (job := jobs.take(database, "w", last)) is not None:
        last = job.principal
        order.append((last, job.parameters["number"]))
    assert order == [("ann", 0), ("bob", 9), ("cy", 9), ("ann", 1), ("bob", 9), ("ann", 2)]


def test_the_queue_has_an_end(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_WAITING", 2)
    _submit(database)
    _submit(database)
    with pytest.raises(Unavailable, match="2 jobs are waiting"):
        _submit(database)
    _taken(database)
    _submit(database)
