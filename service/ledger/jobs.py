"""Jobs: a queue in the database, from which any replica's workers take principals' oldest jobs in turn.

A worker holds a job by a lease that it renews. Where a server dies its leases run out, and the next worker that looks
takes the job and runs it again. A job is its parameters, seed included, so a second run gives the same result. A worker
that lost its lease changes nothing any more.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, cast, get_args

from sqlalchemy import Connection, Row, Select, and_, case, delete, func, insert, or_, select, text, tuple_, update

from service.errors import NotFound, TooManyRequests, Unavailable
from service.ledger.idempotent_write import Operation
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Job
from service.ledger.storage.transaction import require_written

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)

LEASE = timedelta(seconds=30)
MOST_ATTEMPTS = 3  # a job that crashes its server is not run for ever
MOST_WAITING = 100
MOST_OF_ONE = MOST_WAITING // 4
"""The number of waiting jobs that one principal may have."""
_LOCK = text(f"SELECT pg_catalog.pg_advisory_xact_lock({0x6A6F6273})")  # "jobs": of all that add a job
_PURPOSE = "job-result"
_FORGOTTEN_AT_ONCE = 100

_COLUMNS = (
    Job.id,
    Job.principal,
    Job.parameters,
    Job.state,
    Job.permille,
    Job.result,
    Job.problem,
    Job.created_at,
    Job.ended_at,
    Job.seal,
)
_ALTERED = {"code": "internal", "detail": "the stored result is not as this service wrote it; run the job again"}
_UNREADABLE = {
    "code": "internal",
    "detail": "the stored parameters are not as this service wrote them; submit it again",
}
_BROKEN_OFF = json.dumps({"code": "internal", "detail": f"the server ended {MOST_ATTEMPTS} times while the job ran"})


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job in its present state.

    Attributes:
        parameters: the request's parameters, as JSON values.
        progress: the part done, from 0 to 1.
        result: of a job that succeeded.
        problem: of a job that failed: a code and a detail.
        seal: of a result and its job.
    """

    id: str
    principal: str
    parameters: dict[str, Any]
    state: State
    progress: float
    result: dict[str, Any] | None
    problem: dict[str, str] | None
    created_at: str
    ended_at: str | None
    seal: str | None


def is_sealed(secret: Secret, job: JobRecord) -> bool:
    """Return whether the service found a job's result for these parameters, or it has none."""
    has_none = job.result is None and job.state != "succeeded"
    return has_none or secret.is_seal(job.seal, _PURPOSE, *_sealed(job, job.result))


def checked(secret: Secret, job: JobRecord) -> JobRecord:
    """Return the job as it may be shown: a result without a valid seal is left out."""
    return job if is_sealed(secret, job) else replace(job, state="failed", result=None, problem=_ALTERED)


def _sealed(job: JobRecord, result: dict[str, Any] | None) -> tuple[str, ...]:
    return job.id, job.principal, json.dumps(job.parameters), job.created_at, json.dumps(result)


def submit(request: Request, parameters: dict[str, Any]) -> Operation[JobRecord]:
    """Return the operation that adds a job at the end of the queue.

    Raises:
        TooManyRequests: too many of the principal's jobs wait already.
        Unavailable: too many jobs of all principals wait.
    """

    def work(connection: Connection, at: str) -> JobRecord:
        if connection.dialect.name == "postgresql":  # one request at a time counts and adds, as on SQLite
            connection.execute(_LOCK)
        number_of = select(func.count()).where(Job.state == "queued")
        own = connection.execute(number_of.where(Job.principal == request.principal)).scalar_one()
        if own >= MOST_OF_ONE:
            raise TooManyRequests(f"{own} jobs of one principal are waiting already", retry_after=60)
        waiting = connection.execute(number_of).scalar_one()
        if waiting >= MOST_WAITING:
            raise Unavailable(f"{waiting} jobs are waiting already", retry_after=60)
        job_id = str(uuid.uuid4())
        connection.execute(
            insert(Job).values(
                id=job_id,
                principal=request.principal,
                parameters=json.dumps(parameters),
                state="queued",
                permille=0,
                attempts=0,
                created_at=at,
            )
        )
        return read_job(connection, job_id)

    return Operation(work, lambda connection, job: _has_job(connection, job.id))


def read_job(connection: Connection, job_id: str) -> JobRecord:
    """Return one job.

    Raises:
        NotFound: there is no such job.
    """
    row = connection.execute(_selected(job_id)).one_or_none()
    if row is None:
        raise NotFound("job", job_id)
    return _record(row)


def list_jobs(
    connection: Connection,
    principal: str,
    after: tuple[str, str],
    limit: int,
    state: State | None,
    before_reading: BeforeReading,
) -> Page[JobRecord]:
    """Return a page of a principal's jobs, oldest first; ``after`` is the time and id of the last job before it."""
    query = (
        select(*_COLUMNS)
        .where(
            Job.state.in_(STATES if state is None else (state,)),  # listed in full, for the index on states
            tuple_(Job.created_at, Job.id) > after,
            Job.principal == principal,
        )
        .order_by(Job.created_at, Job.id)
    )
    stored = func.length(Job.parameters) + func.coalesce(func.length(Job.result), 0)
    size = stored + func.coalesce(func.length(Job.problem), 0)
    return page_of(rows_of(connection, query, size, limit, before_reading=before_reading), _record)


def end(database: Database, job_id: str, check: Callable[[JobRecord], None] = lambda _: None) -> JobRecord:
    """Cancel a job that waits or runs, or delete one that has ended; return its present or last state.

    Raises:
        NotFound: there is no such job.
        Exception: any error that ``check`` raises for the job; nothing is changed then.
    """

    def work(connection: Connection) -> tuple[JobRecord, bool]:
        row = connection.execute(_selected(job_id).with_for_update()).one_or_none()
        if row is None:
            raise NotFound("job", job_id)
        check(_record(row))
        if row.ended_at is not None:
            connection.execute(delete(Job).where(Job.id == job_id))
            return _record(row), True
        connection.execute(_ended(job_id, None, "cancelled"))
        return read_job(connection, job_id), False

    def is_committed(connection: Connection, ended: tuple[JobRecord, bool]) -> bool:
        job, forgotten = ended
        found = connection.execute(_selected(job_id)).one_or_none()
        return found is None or (not forgotten and _record(found) == job)  # cancelled at this moment by another request

    return database.write(work, is_committed=is_committed)[0]


def forget(database: Database, before: str) -> int:
    """Delete jobs that ended before a moment, with their results; return their number, limited to one transaction's."""

    def work(connection: Connection) -> int:
        ids = [row.id for row in connection.execute(_outdated(before).with_for_update(skip_locked=True))]
        return connection.execute(delete(Job).where(Job.id.in_(ids))).rowcount

    with database.read() as connection:  # without a write transaction, which would wait in the queue of the charges
        if connection.execute(_outdated(before)).first() is None:
            return 0
    return database.write(work, is_committed=lambda *_: False)


def _outdated(before: str) -> Select[str]:
    """Select the jobs that ended before a moment.

    No job ends before it is created, so the index on states and creation times finds them.
    """
    ended = Job.state.in_(("succeeded", "failed", "cancelled"))
    return select(Job.id).where(ended, Job.created_at < before, Job.ended_at < before).limit(_FORGOTTEN_AT_ONCE)


def take(database: Database, worker: str, after: str = "") -> JobRecord | None:
    """Take a job that no worker holds, for ``worker``; return None if there is none.

    It is the oldest job of the principal that follows the one named ``after``, by name and in a circle.

    Raises:
        Altered: the database ends no such job, which would be found again and again.
    """

    def work(connection: Connection) -> JobRecord | None:
        while (found := connection.execute(_free(after).with_for_update(skip_locked=True)).first()) is not None:
            job_id, attempts, parameters = found
            if _parameters(parameters) is not None and attempts < MOST_ATTEMPTS:
                lease = {"worker": worker, "leased_until": _lease_end()}
                started = update(Job).where(Job.id == job_id)
                connection.execute(started.values(state="running", attempts=attempts + 1, permille=0, **lease))
                return read_job(connection, job_id)
            problem = _BROKEN_OFF if _parameters(parameters) is not None else json.dumps(_UNREADABLE)
            require_written(connection.execute(_ended(job_id, None, "failed", problem=problem)), 1)
        return None

    if not _anything_free(database):  # without a write transaction, which would wait in the queue of the charges
        return None
    return database.write(work, is_committed=lambda c, job: job is not None and _holds(c, job.id, worker))


def holds(database: Database, job_id: str, worker: str) -> bool:
    """Return whether the job still runs and is this worker's."""
    with database.read() as connection:
        return _holds(connection, job_id, worker)


def renew(database: Database, job_id: str, worker: str, progress: float) -> bool:
    """Store the progress and extend the lease; return False, with no effect, if the job was taken away."""
    values = {"permille": round(1000 * progress), "leased_until": _lease_end()}
    return _changed(database, _held(job_id, worker).values(**values))


def finish(database: Database, secret: Secret, job: JobRecord, worker: str, result: dict[str, Any]) -> bool:
    """Store the result; return False, with no effect, if the job was taken away."""
    values = {"result": json.dumps(result), "seal": secret.seal(_PURPOSE, *_sealed(job, result))}
    return _changed(database, _ended(job.id, worker, "succeeded", permille=1000, **values))


def seal_old(connection: Connection, secret: Secret, after: str, limit: int) -> list[str]:
    """Seal up to ``limit`` results that are older than seals and follow ``after``; return the ids of their jobs."""
    query = select(*_COLUMNS).where(Job.state == "succeeded", Job.seal.is_(None), Job.id > after).order_by(Job.id)
    found = [_record(row) for row in connection.execute(query.limit(limit))]
    for job in found:
        seal = secret.seal(_PURPOSE, *_sealed(job, job.result))
        connection.execute(update(Job).where(Job.id == job.id).values(seal=seal))
    return [job.id for job in found]


def altered(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield the ids of jobs whose results, or whose ids, are not as the service wrote them."""
    for row in connection.execute(select(*_COLUMNS).order_by(Job.id)):
        try:
            sealed = isinstance(row.id, str) and is_sealed(secret, _record(row))
        except (TypeError, ValueError):  # invalid JSON, or a value of another type
            sealed = False
        if not sealed:
            yield row.id


def fail(database: Database, job_id: str, worker: str, code: str, detail: str) -> bool:
    """Store the reason of a failure; return False, with no effect, if the job was taken away."""
    problem = json.dumps({"code": code, "detail": detail})
    return _changed(database, _ended(job_id, worker, "failed", problem=problem))


def give_back(database: Database, job_id: str, worker: str) -> bool:
    """Return a job to the queue as its server stops, without counting the attempt."""
    values = {"state": "queued", "attempts": Job.attempts - 1, "worker": None, "leased_until": None, "permille": 0}
    return _changed(database, _held(job_id, worker).values(**values))


def unfinished(database: Database) -> dict[str, int]:
    """Return the numbers of jobs that wait, and that run on any replica."""
    row = database.ask(_UNFINISHED, {})
    return {"queued": 0, "running": 0} if row is None else {"queued": row.queued, "running": row.running}


_UNFINISHED = select(
    *(
        select(func.count()).select_from(Job).where(Job.state == state).scalar_subquery().label(state)
        for state in ("queued", "running")
    )
)


def _changed(database: Database, statement: Any) -> bool:
    """Return whether a conditional update found its row. After an unknown commit it runs again, to the same end."""

    def work(connection: Connection) -> bool:
        return bool(connection.execute(statement).rowcount)

    return database.write(work, is_committed=lambda *_: False)


def _held(job_id: str, worker: str) -> Any:
    return update(Job).where(Job.id == job_id, Job.worker == worker, Job.state == "running")


def _ended(job_id: str, worker: str | None, state: State, **values: Any) -> Any:
    statement = update(Job).where(Job.id == job_id) if worker is None else _held(job_id, worker)
    return statement.values(state=state, ended_at=clock.now(), worker=None, leased_until=None, **values)


def _free(after: str = "") -> Select[str, int, str]:
    is_next = case((Job.principal > after, 0), else_=1)
    abandoned = and_(Job.state == "running", Job.leased_until < clock.now())
    return (
        select(Job.id, Job.attempts, Job.parameters)
        .where(or_(Job.state == "queued", abandoned))
        .order_by(is_next, Job.principal, Job.created_at, Job.id)
        .limit(1)
    )


def _anything_free(database: Database) -> bool:
    with database.read() as connection:
        return connection.execute(_free()).first() is not None


def _holds(connection: Connection, job_id: str, worker: str) -> bool:
    held = select(Job.id).where(Job.id == job_id, Job.worker == worker, Job.state == "running")
    return connection.execute(held).first() is not None


def _has_job(connection: Connection, job_id: str) -> bool:
    return connection.execute(select(Job.id).where(Job.id == job_id)).first() is not None


def _lease_end() -> str:
    return clock.later(clock.now(), LEASE)


def _selected(job_id: str) -> Any:
    return select(*_COLUMNS).where(Job.id == job_id)


def _record(row: Row[*tuple[Any, ...]]) -> JobRecord:
    parameters = _parameters(row.parameters)
    job = JobRecord(
        row.id,
        row.principal,
        parameters or {},
        cast("State", row.state),  # the table's check admits no other
        row.permille / 1000 if isinstance(row.permille, int) else 0.0,  # SQLite takes any type in any column
        _json(row.result),
        _problem(row.problem),
        row.created_at,
        row.ended_at,
        row.seal,
    )
    if parameters is not None:
        return job
    if job.state in ("queued", "running"):
        return replace(job, state="failed", problem=_UNREADABLE)
    return replace(job, seal=None)  # a result of unknown origin


def _problem(text: str | None) -> dict[str, str] | None:
    """Return the reason of a failure; the row is not sealed, so it may have been replaced."""
    stated = _json(text)
    if stated is None:
        return None
    match stated:
        case {"code": "internal" | "validation", "detail": str()} if len(stated) == 2:
            return dict(stated)
    return _ALTERED


def _parameters(text: str) -> dict[str, Any] | None:
    """Return a job's parameters; None if the text was replaced by one that is no JSON object."""
    stated = _json(text)
    return stated if isinstance(stated, dict) else None


def _json(text: str | None) -> dict[str, Any] | None:
    """Return the value of a JSON text; None also if the text was replaced by invalid JSON."""
    try:
        return None if text is None else json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
