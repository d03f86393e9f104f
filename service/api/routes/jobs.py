"""Routes of experiments, which run as jobs: enqueue, list, read, cancel and delete."""

import json
import secrets
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from service.api.charts import pictures
from service.api.charts.empirical_figures import loss_picture
from service.api.computations.empirical import BiasBody, EventBody, Point, Smoothing, read_confidence, setting_of
from service.api.http.dependencies import Changing, CurrentDatabase, CurrentSecret, in_writers, ok, respond
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_cursor, with_room
from service.api.http.problems import KINDS
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Exact
from service.empirical.experiments import MOST_COUNTS, MOST_VALUES, STRATIFIED, Algorithm, Measurement
from service.empirical.notation import experiment_of
from service.errors import Forbidden, InvalidInput
from service.ledger import jobs
from service.ledger.access.authentication import Principal
from service.ledger.jobs import JobRecord, State
from service.ledger.storage.idempotency import Answer
from service.privacy.numerics.numbers import parse_exact

router = APIRouter(prefix="/v1", route_class=StrictRoute)

_STRATA = 24  # of voting age or not, by six races, by two ethnicities
_LARGEST_PRINTED = 2 - 1e-6  # of a measurement's budget, half of which is a success probability
_LOCATION = {"Location": {"description": "The job's address.", "schema": {"type": "string"}}}

Size = Annotated[int, Field(strict=True, ge=1, le=10**12)]


class RunExperiment(Smoothing):
    """A synthetic population, an algorithm, and the measurements of it."""

    algorithm: Algorithm
    epsilon: Exact = Field(description="The algorithm's budget, in nats.")
    N: Size = Field(description="People.")
    J: Annotated[int, Field(strict=True, ge=1, le=12)] = Field(description="Levels of areas.")
    mu: Size = Field(description="The average number of people in an area: each area has floor((N/mu)^(1/J)) children.")
    P: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = Field(
        None, description="The number of parts of adpc; 4 unless given. The other algorithms have one, and ignore it."
    )
    strata: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = Field(
        None,
        description="The number of strata of each area in consistent and invariant, each half as large as the one"
        " before; 24 unless given.",
    )
    total_share: Exact | None = Field(
        None, description="The share of epsilon for the totals of consistent; 0.25 unless given."
    )
    noise: Measurement | None = Field(
        None,
        description="The noise of consistent and invariant; geometric unless given. as_printed takes half of a"
        " measurement's budget as its success probability, as Table SA1 does; its loss is above its"
        " budget.",
    )
    direct_runs: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = Field(
        0,
        description="The number of runs on D and on D', which has one person moved out of the first count, for the"
        " direct estimate; 0 for none. With invariant the person stays in the county.",
    )
    confidence: Exact = Field("0.95", description="The confidence of the lower bounds.")
    seed: Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)] | None = Field(
        None, description="The same seed gives the same result. Without it, a seed is drawn and shown."
    )


class Parameters(BaseModel):
    """The parameters of a job, with defaults filled in."""

    algorithm: Algorithm
    epsilon: str
    N: int
    J: int
    mu: int
    P: int
    strata: int
    total_share: str
    noise: Measurement
    direct_runs: int
    bandwidth: str
    percentile: str
    multiplier: str
    bootstrap: int
    confidence: str
    seed: int


class CertifiedBound(BaseModel):
    """A lower bound; where it is not certified, the residuals are not of independent noise and it is an estimate."""

    epsilon_lower_bound: float
    event: EventBody | None
    certified: bool


class RatioPoint(BaseModel):
    """log P(D's count at least x above the truth)/P(the same on D')."""

    x: float
    epl: float | None


class DirectBody(BaseModel):
    """The direct estimate: the first area's noisy count (of its first stratum) over runs on D and on D'."""

    runs: int
    moved_to: int
    epl: float | None
    curve: list[RatioPoint]
    lower_bound: CertifiedBound


class ExperimentResult(BaseModel):
    """The result of an experiment."""

    children: int
    areas: int
    residuals: int
    divided_equally: int | None = Field(
        description="The number of areas whose raked count was divided equally, in rdpc."
    )
    epl: float
    at: float
    interval: list[float] | None
    bias: BiasBody | None
    curve: list[Point]
    lower_bound: CertifiedBound
    direct: DirectBody | None


class JobProblem(BaseModel):
    """The reason of a job's failure, as a problem of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str


class JobBody(BaseModel):
    """A job in its present state."""

    id: str
    parameters: Parameters
    state: State
    progress: float
    result: ExperimentResult | None
    problem: JobProblem | None
    created_at: str
    ended_at: str | None
    protected: Literal[False]


class JobOutline(BaseModel):
    """A job without its result."""

    id: str
    parameters: Parameters
    state: State
    progress: float
    problem: JobProblem | None
    created_at: str
    ended_at: str | None


class JobPage(BaseModel):
    """A page of jobs."""

    items: list[JobOutline]
    next_cursor: str | None


JobPath = Annotated[str, Path(description="The job's id.", examples=[examples.JOB_ID])]


@router.post(
    "/empirical/experiments",
    status_code=202,
    response_model=JobBody,
    responses={202: {"description": "The job, which waits or runs.", "headers": _LOCATION}},
    openapi_extra=examples.body(examples.EXPERIMENT),
)
@in_writers
def run_experiment(body: RunExperiment, change: Changing, request: Request) -> Response:
    """Run an experiment on a synthetic population.

    The algorithms of Flaxman (2019) are gdpc (one noisy count per area), adpc (the mean of P of them) and rdpc (noisy
    counts of J levels, raked from the top). Those of Flaxman and Petti (2020) are consistent (noisy totals and strata
    made consistent) and invariant (noisy strata with true county totals). The experiment runs as a job, which survives
    a restart.
    """
    require(change.principal, "steward")
    parameters = _parameters(body)
    submission = jobs.submit(change.request, parameters)
    answer = change.carry_out(submission, lambda job: Answer(202, json.dumps(job_body(job))))
    request.app.state.workers.wake()
    response = respond(answer)
    response.headers["Location"] = f"/v1/jobs/{json.loads(answer.body or '')['id']}"
    return response


_COLUMNS = tuple(JobOutline.model_fields)


@router.get("/jobs", response_model=JobPage, responses=AS_TABLE)
def list_jobs(
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the caller's jobs.

    The oldest job comes first; results are not included. A job that has ended is kept for a year, unless the
    installation sets another time (SERVICE_JOB_RETENTION_DAYS).
    """
    require(principal, "steward")
    after, _, last_id = read_cursor(cursor).partition(" ")
    with database.read() as connection:
        records = jobs.list_jobs(connection, principal.name, (after, last_id), limit, state, with_room(take))
    last = f"{records[-1].created_at} {records[-1].id}" if records.more else None
    shown = [_outline(jobs.checked(secret, job)) for job in records]
    return answer_list(accept, shown, last, _COLUMNS)


@router.get(
    "/jobs/{job}",
    response_model=JobBody,
    responses=pictures.responses("The job; or its result as a picture in the form of figure SA2, as SVG or PNG."),
)
def read_job(
    job: JobPath, request: Request, database: CurrentDatabase, secret: CurrentSecret, principal: CurrentPrincipal
) -> Response:
    """Read a job.

    The answer has its state and progress, and its result once it has succeeded. A key that is limited to accounts reads
    only its principal's own jobs.
    """
    require(principal, "steward")
    with database.read() as connection:
        record = jobs.checked(secret, jobs.read_job(connection, job))
    _require_reach(principal, record)
    kind = pictures.wanted_type(request)
    if record.result is not None and kind is not None:
        return loss_picture(record.result, None, kind)
    return ok(job_body(record))


@router.delete("/jobs/{job}", response_model=JobBody)
@in_writers
def end_job(job: JobPath, change: Changing) -> Response:
    """Cancel a job, or delete it.

    A job that waits or runs is cancelled, and can still be read. A job that has ended is deleted with its result, which
    this answer shows for the last time. A key that is limited to accounts reaches only its principal's own jobs.
    """
    require(change.principal, "steward")
    ended = jobs.end(change.database, job, partial(_require_reach, change.principal))
    return ok(job_body(jobs.checked(change.secret, ended)))


def _require_reach(principal: Principal, job: JobRecord) -> None:
    if principal.accounts is not None and job.principal != principal.name:
        raise Forbidden("the key is limited to accounts: it reaches only its principal's own jobs")


def job_body(job: JobRecord) -> dict[str, Any]:
    """Return a job as JSON."""
    body = asdict(job)
    del body["principal"], body["seal"]
    if job.problem is not None:
        kind = KINDS[job.problem["code"]]
        body["problem"] = {
            "type": f"/problems/{job.problem['code']}",
            "title": kind.title,
            "status": kind.status,
            "detail": job.problem["detail"],
            "instance": f"/v1/jobs/{job.id}",
        }
    return body | {"protected": False}


def _outline(job: JobRecord) -> dict[str, Any]:
    body = job_body(job)
    return {name: body[name] for name in JobOutline.model_fields}


def _parameters(body: RunExperiment) -> dict[str, Any]:
    """Return the complete parameters of the job: a second run with them gives the same result.

    Raises:
        InvalidInput: a parameter is out of its range or unknown to the algorithm, or the experiment is too large.
    """
    setting_of(body)
    read_confidence(body.confidence)
    if not Fraction(1, 10**6) <= parse_exact(body.epsilon) <= 100:
        raise InvalidInput.at("/epsilon", "expected a number of at least 0.000001 and at most 100")
    if body.total_share is not None and not 0 < parse_exact(body.total_share) < 1:
        raise InvalidInput.at("/total_share", "expected a number above 0 and below 1")
    _check_belonging(body)
    stratified = body.algorithm in STRATIFIED
    parameters = body.model_dump() | {
        "P": (body.P or 4) if body.algorithm == "adpc" else 1,
        "strata": (body.strata or _STRATA) if stratified else 1,
        "total_share": body.total_share or "0.25",
        "noise": body.noise or "geometric",
        "seed": secrets.randbits(53) if body.seed is None else body.seed,
    }
    experiment = experiment_of(parameters)
    largest = experiment.epsilon
    if body.algorithm == "consistent":
        largest *= max(experiment.total_share, 1 - experiment.total_share)
    if experiment.noise == "as_printed" and largest >= _LARGEST_PRINTED:
        raise InvalidInput.at("/epsilon", "expected measurements with budgets below 2: half of one is a probability")
    if body.direct_runs and body.algorithm == "invariant" and experiment.county == 1:
        raise InvalidInput.at(
            "/direct_runs",
            "expected 0: each county is one count, which is its total, so no person can be moved within it",
        )
    if experiment.counts > MOST_COUNTS:
        raise InvalidInput.at("/N", f"expected a population of at most {MOST_COUNTS} counts: lower N or raise mu")
    if experiment.values > MOST_VALUES:
        raise InvalidInput.at(
            "/direct_runs" if body.direct_runs else "/P", f"expected at most {MOST_VALUES} noise values"
        )
    return parameters


def _check_belonging(body: RunExperiment) -> None:
    belongs = {
        "strata": body.algorithm in STRATIFIED,
        "total_share": body.algorithm == "consistent",
        "noise": body.algorithm in STRATIFIED,
    }
    for name, fits in belongs.items():
        if getattr(body, name) is not None and not fits:
            raise InvalidInput.at(f"/{name}", "expected no such field: the algorithm does not have it")
