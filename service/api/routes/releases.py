"""Routes of releases: register plans against an account's budget, and read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy import Connection

from service.api.http.dependencies import (
    AnswerInHelper,
    Change,
    Changing,
    CurrentDatabase,
    CurrentSecret,
    HelperResult,
    in_helpers,
    in_writers,
    ok,
    read_by_helpers,
    respond,
)
from service.api.http.kept_figures import costs_of
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_seq, with_room
from service.api.http.request_parsing import OnlyRoute, StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.routes.accounts import AccountPath
from service.api.routes.release_pricing import keep_costs, prepared
from service.api.schemas.approvals import ApprovalBody, Judge, Obstacle, WithObstacle, approval_member
from service.api.schemas.charges import ChargeBody, WithCharge, charge_member
from service.api.schemas.exact_numbers import Duration, Label, Reason, Short, Strict, Tags, duration_of
from service.api.schemas.guarantees import CostDelta, GuaranteeBody, HeadBody, Remaining, read_delta
from service.api.schemas.metadata import DescribeRelease, Metadata, patch_of
from service.api.schemas.periods import StatedPeriods
from service.api.schemas.plan_models import Plan, StatedPartitions
from service.api.schemas.plans import BoundedPlan, DeclaredPartitions, document_of, plan_of_document
from service.api.schemas.release_searches import Search
from service.api.schemas.settlement_responses import answered, around_plan, body_of
from service.errors import Fault, InvalidInput
from service.ledger.access.key_events import see_keys
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.descriptions import descriptions
from service.ledger.draws import partitions
from service.ledger.releases import charges, proposals, releases, reservations
from service.ledger.releases.charges import Registered
from service.ledger.releases.persons import Persons, persons_of
from service.ledger.releases.preparation import NewRelease, Prepared
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.releases.releases import LONG, ReleaseRecord
from service.ledger.releases.reservation_rows import State
from service.ledger.releases.settlement import without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer
from service.privacy.accounting.pricing import MEMOISED_SIZE
from service.privacy.plans import Plan as PlanValue

router = APIRouter(prefix="/v1/accounts/{account}/releases", route_class=StrictRoute)


class _Ready(NamedTuple):
    """Releases to register in one request, with the guarantee of each; the answer is one release or a batch."""

    new: list[Prepared]
    costs: list[str]
    is_batch: bool


def _register(change: Change, ready: _Ready) -> Response:
    if change.read_only:
        raise HelperResult(ready)

    costs: dict[str, str] = {}

    def answer(done: list[Registered]) -> Answer:
        costs.clear()  # of an earlier attempt
        costs.update(
            (one.id, cost) for one, cost in zip(done, ready.costs, strict=True) if len(one.release.document) > LONG
        )
        return Answer(
            201, _text(ready, [_registered_text(one, cost) for one, cost in zip(done, ready.costs, strict=True)])
        )

    answered_with = change.carry_out(charges.register(change.request, ready.new), answer)
    keep_costs(change, costs)
    return respond(answered_with)


def _rehearse(change: Change, ready: _Ready) -> Response:
    """Answer as ``_register`` would, and register nothing: no id, no times."""
    done = charges.dry_run(change.database, ready.new)
    texts = [
        _registered_text(one, cost, id=None, created_at=None, expires_at=None)
        for one, cost in zip(done, ready.costs, strict=True)
    ]
    return Response(_text(ready, texts), media_type="application/json")


def _text(ready: _Ready, releases: Sequence[str]) -> str:
    return f'{{"releases": [{", ".join(releases)}]}}' if ready.is_batch else releases[0]


ReleasePath = Annotated[str, Path(description="The release's id.", examples=[examples.RELEASE_ID])]


DryRun = Annotated[bool, Query(description="Compute the answer and register nothing.")]
Order = Annotated[Literal["asc", "desc"], Query(description="By registration: the oldest first, or the newest.")]
WithPlan = Annotated[bool, Query(description="Include the plan, which may be long.", examples=[False])]


class RegisterRelease(Strict):
    """A release to register."""

    name: Label = Field(description="A label; it need not be unique.")
    plan: BoundedPlan
    tags: Tags = Field(default_factory=list)
    partitions: StatedPartitions = Field(
        None,
        description="The partitions of each drawn mechanism that has none declared, on itself or on a node above;"
        " they are stored as those of the plan's root. They must be disjoint sets of records: the ledger"
        " counts one charge for all of them and relies on your promise.",
    )
    delta: CostDelta = None
    reserve_for: Duration | None = Field(
        None,
        description="Only reserve the release, for this time (ISO 8601, at most 366 days); null: it commits at once.",
    )
    periods: StatedPeriods = None


class RegisterBatch(Strict):
    """Releases to register, all or none."""

    releases: Annotated[list[RegisterRelease], Field(min_length=1, max_length=10_000)]


class PartitionsBody(BaseModel):
    """The number of partitions that a mechanism was drawn for, in the repetition with the most of them."""

    mechanism: str
    declared: DeclaredPartitions
    drawn: int


class ReleaseBody(BaseModel):
    """A release; id, created_at and expires_at are null in a dry run.

    expires_at: the end of its reservation, in the future or the past; null where it has none, or no longer has one.
    overdue: that time is over and the release is still held, since parts of it could be published without this service.
    """

    id: str | None
    account: str
    name: str
    state: State
    expires_at: str | None
    overdue: bool
    plan: Plan | SkipJsonSchema[None] = Field(None, description="Left out only in answers to with_plan=false.")
    tags: list[str]
    plan_tags: list[str] | SkipJsonSchema[None] = Field(
        None,
        description="Where releases are read or listed: the tags on the plan and its parts, in their order as texts.",
    )
    partitions: list[PartitionsBody] = Field(description="For each mechanism that was drawn for partitions.")
    metadata: Metadata
    delta: str
    cost: GuaranteeBody
    remaining: Remaining
    head: HeadBody
    created_at: str | None
    periods: StatedPeriods = None
    registered_by: str | SkipJsonSchema[None] = Field(
        None, description="Where releases are read or listed: the principal that registered it."
    )
    approved_by: list[str] | SkipJsonSchema[None] = Field(
        None,
        description="Where releases are read or listed: those that approved it, in the order in which they did.",
    )
    approval: ApprovalBody | SkipJsonSchema[None] = Field(
        None, description="Only of a proposed release, where an account that asks for its approval states approvers."
    )
    obstacle: Obstacle = None
    charge: ChargeBody | SkipJsonSchema[None] = Field(
        None,
        description="Only in answers to with_charge=true; in a list, left out for plans of more than"
        f" {MEMOISED_SIZE} mechanisms and nodes.",
    )


class BatchBody(BaseModel):
    """The releases of a batch, in its order."""

    releases: list[ReleaseBody]


class ReleasePage(BaseModel):
    """A page of releases."""

    items: list[ReleaseBody]
    next_cursor: str | None


@router.post(
    "",
    status_code=201,
    response_model=ReleaseBody,
    responses={200: {"model": ReleaseBody, "description": "The release that would be registered (dry_run)."}},
    openapi_extra=examples.body(examples.RELEASE),
)
@read_by_helpers(_register)
@in_writers
def register_release(
    account: AccountPath,
    body: RegisterRelease,
    change: Changing,
    dry_run: DryRun = False,
) -> Response:
    """Register a release.

    Its plan is priced under the account's neighbouring relation. The release is charged if it fits the budget of the
    account and those of all accounts above, and refused with 409 otherwise; it is never charged in part. Register
    before publishing: a publication cannot be undone.

    With reserve_for the release is held, and can be voided until its first draw. Where an account requires approval and
    the release is large enough, it is proposed, and held in the same way. With `?dry_run=true` the service computes the
    answer and registers nothing.
    """
    require(change.principal, "pipeline", account)
    if dry_run and change.elsewhere is not None:
        raise AnswerInHelper
    new, costs = prepared(change, account, [_new(body, "", {})])
    return (_rehearse if dry_run else _register)(change, _Ready(new, costs, is_batch=False))


batches = APIRouter(prefix=router.prefix, route_class=OnlyRoute)


@batches.post(
    "/batch",
    status_code=201,
    response_model=BatchBody,
    responses={200: {"model": BatchBody, "description": "The releases that would be registered (dry_run)."}},
    openapi_extra=examples.body(examples.BATCH),
)
@read_by_helpers(_register)
@in_writers
def register_batch(account: AccountPath, body: RegisterBatch, change: Changing, dry_run: DryRun = False) -> Response:
    """Register several releases, all or none.

    They are charged in their order in one transaction; where one does not fit, none is registered. A batch that would
    take more than two seconds to write is refused with 422, with the estimated time and its causes: a line of several
    accounts, or an (epsilon, delta) account, admits fewer than 10,000 releases at once. So is one whose distinct
    subplans would repeat more than 16 MiB of tags and periods, or whose periods are too scattered. With
    `?dry_run=true` the service computes the answer and registers nothing.
    """
    require(change.principal, "pipeline", account)
    if dry_run and change.elsewhere is not None:
        raise AnswerInHelper
    plans: dict[str, PlanValue] = {}
    new_releases = [_new(release, f"/releases/{number}", plans) for number, release in enumerate(body.releases)]
    ready = _Ready(*prepared(change, account, new_releases), is_batch=True)
    return (_rehearse if dry_run else _register)(change, ready)


router.routes.extend(batches.routes)  # before the routes of one release


COLUMNS = (
    "id", "name", "state", "created_at", "expires_at", "overdue", "tags", "delta", "charge.definition", "charge.alpha",
    "charge.rho", "charge.rho_exact", "charge.epsilon", "charge.epsilon_exact", "charge.delta", "charge.share",
    "cost.pure.epsilon", "cost.zcdp.rho", "cost.delta", "periods", "metadata", "plan", "head.seq", "head.hash",
    "registered_by", "approved_by", "plan_tags",
)  # fmt: skip


@router.get("", response_model=ReleasePage, responses=AS_TABLE)
@in_helpers
def list_releases(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    wanted: Search,
    order: Order = "asc",
    with_charge: WithCharge = False,
    with_obstacle: WithObstacle = False,
    with_plan: WithPlan = True,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List an account's releases.

    They are in the order in which they were registered, with order=desc the newest first. A list has the releases that
    match all that is asked for.
    """
    require(principal, "auditor", account)
    now = clock.now()
    seen = see_keys(database, secret) if with_obstacle else None
    with database.read() as connection:
        judge = Judge(connection, principal, seen) if with_obstacle else None
        owner = accounts.read_account(connection, account)
        records = releases.list_releases(
            connection, owner.chain, read_seq(cursor), limit, wanted, now, with_room(take), newest_first=order == "desc"
        )
        shown = listed(
            connection, request, owner, records, now, with_charge=with_charge, with_plan=with_plan, judge=judge
        )
    return answer_list(accept, shown, records[-1].head.seq if records.more else None, COLUMNS)


def listed(
    connection: Connection,
    request: Request,
    owner: AccountRecord,
    records: Sequence[ReleaseRecord],
    now: str,
    *,
    with_charge: bool,
    with_plan: bool,
    judge: Judge | None = None,
) -> list[dict[str, Any]]:
    """Return releases of an account as items of a list."""
    costs = costs_of(connection, request, owner, records)
    present = without_due_reservations(connection, owner, now)
    drawn = partitions.drawn_for(connection, [release.id for release in records])
    approvals = proposals.approvals_of(connection, owner, records)
    persons = persons_of(connection, owner, records)
    return [
        body_of(release, present, now, drawn.get(release.id, []))
        | _found_members(release, persons)
        | approval_member(approvals.get(release.id), judge)
        | {"cost": cost}
        | _plan_member(release, with_plan=with_plan)
        | (charge_member(present, release.plan, cost) if with_charge else {})
        for release, cost in zip(records, costs, strict=True)
    ]


@router.get("/{release}", response_model=ReleaseBody)
@in_helpers
def read_release(
    account: AccountPath,
    release: ReleasePath,
    request: Request,
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    with_charge: WithCharge = False,
    with_obstacle: WithObstacle = False,
    with_plan: WithPlan = True,
) -> Response:
    """Read a release.

    The answer has its plan as it was stated, its cost, the account's remaining budget at present, and the journal entry
    that charged it.
    """
    require(principal, "auditor", account)
    now = clock.now()
    seen = see_keys(database, secret) if with_obstacle else None
    with database.read() as connection:
        judge = Judge(connection, principal, seen) if with_obstacle else None
        owner = accounts.read_account(connection, account)
        record = read_recorded(connection, owner, release).seen(now)
        (cost,) = costs_of(connection, request, owner, [record])
        owner = without_due_reservations(connection, owner, now)
        drawn = partitions.drawn_for(connection, [release]).get(release, [])
        waits = approval_member(proposals.approvals_of(connection, owner, [record]).get(release), judge)
        found = _found_members(record, persons_of(connection, owner, [record]))
    charge = charge_member(owner, record.plan, cost, however_large=True) if with_charge else {}
    plan = _plan_member(record, with_plan=with_plan)
    return ok(body_of(record, owner, now, drawn) | found | waits | plan | {"cost": cost} | charge)


def _plan_member(release: ReleaseRecord, *, with_plan: bool) -> dict[str, Any]:
    return {"plan": release.document} if with_plan else {}


def _found_members(release: ReleaseRecord, persons: Mapping[str, Persons]) -> dict[str, Any]:
    """Return the members that only answers to reading and listing releases have."""
    return {"plan_tags": sorted(release.plan_tags)} | persons[release.id]._asdict()


@router.patch("/{release}", response_model=ReleaseBody, openapi_extra=examples.body(examples.RELEASE_CHANGE))
@in_writers
def describe_release(account: AccountPath, release: ReleasePath, body: DescribeRelease, change: Changing) -> Response:
    """Change a release's metadata.

    The metadata are the facts for the deployments registry that only people know; they can be changed in every state of
    the release. Where they are empty, the account's metadata apply. Each change is a journal entry. head is the
    account's.
    """
    require(change.principal, "pipeline", account)
    return answered(change, descriptions.describe_release, account, release, patch_of(body.metadata))


class VoidRelease(Short):
    """The reason for voiding a release."""

    reason: Reason = Field(description="Stored in the journal.")
    attestation: Reason | None = Field(
        None,
        description="A statement that nothing was published; needed where the plan has mechanisms that this service"
        " does not draw.",
    )


@router.post("/{release}/commit", response_model=ReleaseBody)
@in_writers
def commit_release(account: AccountPath, release: ReleasePath, change: Changing) -> Response:
    """Commit a reserved release.

    Its reserved loss becomes spent. The first draw of a release commits it too. Repeating the request has no further
    effect. head is the account's.
    """
    require(change.principal, "pipeline", account)
    return answered(change, reservations.commit, account, release)


@router.post("/{release}/void", response_model=ReleaseBody, openapi_extra=examples.body(examples.VOID))
@in_writers
def void_release(account: AccountPath, release: ReleasePath, body: VoidRelease, change: Changing) -> Response:
    """Void a proposed or reserved release.

    Its reserved loss is released. An approver voids proposals only, and so rejects them. A committed release cannot be
    voided, and the first draw commits. Repeating the request has no further effect. head is the account's.
    """
    require(change.principal, "approver", account)
    return answered(change, reservations.void, account, release, body.reason, body.attestation, change.principal.role)


class ApproveRelease(Short):
    """The reason for approving a release."""

    reason: Reason | None = Field(None, description="Stored in the journal.")


@router.post("/{release}/approve", response_model=ReleaseBody, openapi_extra=examples.body(examples.APPROVAL))
@in_writers
def approve_release(
    account: AccountPath, release: ReleasePath, change: Changing, body: ApproveRelease | None = None
) -> Response:
    """Approve a proposed release.

    The caller must be a steward or an approver, and not the proposer; principals are compared, not keys. The key must
    reach every account of the line that requires approval. Where accounts state approvers, the caller must be one of
    those who may still approve, and the release stays proposed until the rules of all accounts that ask are met; no two
    of these persons may have had one key. It is then reserved until its expires_at, or committed where it has none.
    Repeating the request has no further effect. head is the account's.
    """
    require(change.principal, "approver", account)
    with change.database.read() as connection:
        line = lines.charged_line(lines.line_above(connection, account))
    for asking in line:
        if asking.approval_above is not None:
            require(change.principal, "approver", asking.name)
    return answered(change, reservations.approve, account, release, None if body is None else body.reason)


def _new(body: RegisterRelease, pointer: str, plans: dict[str, PlanValue]) -> NewRelease:
    """Read a release of a request; ``plans`` caches plans by their text, so that equal ones are one object."""
    delta = read_delta(body.delta, f"{pointer}/delta")
    document = document_of(body.plan)
    by_default = body.partitions is not None and "partitions" not in document
    if by_default:
        document["partitions"] = body.partitions
    text = json.dumps(document)
    if text not in plans:
        plans[text] = _plan(document, pointer, by_default=by_default)
    reserve_for = None if body.reserve_for is None else duration_of(body.reserve_for)
    return NewRelease(
        body.name,
        plans[text],
        document,
        tuple(body.tags),
        delta,
        f"{pointer}/plan",
        reserve_for,
        body.periods,
        f"{pointer}/periods",
    )


def _plan(document: dict[str, Any], pointer: str, *, by_default: bool) -> PlanValue:
    """Read a plan; ``by_default``: its root has the release's partitions, and their faults are reported there."""
    try:
        return plan_of_document(document, f"{pointer}/plan")
    except InvalidInput as refused:
        if not by_default:
            raise
        raise InvalidInput(
            [_relocated(fault, f"{pointer}/plan/partitions", pointer) for fault in refused.faults]
        ) from None


def _relocated(fault: Fault, below: str, pointer: str) -> Fault:
    at = fault.pointer.removeprefix(below)
    return fault if at == fault.pointer else Fault(f"{pointer}/partitions{at}", fault.detail)


def _registered_text(registered: Registered, cost: str, **but: None) -> str:
    """Return the answer to a charge; without the fields in ``but``."""
    release = registered.release
    record = ReleaseRecord(
        id=registered.id,
        name=release.name,
        plan_text="",
        tags=release.tags,
        delta=release.delta,
        state=registered.state,
        created_at=registered.created_at,
        head=registered.account.head,
        expires_at=registered.expires_at,
        periods=None if (periods := release.periods[-1]) is None else periods.text,
    )
    shown = body_of(record, registered.account, registered.created_at, []) | but
    return release.document.join(around_plan(shown, cost))
