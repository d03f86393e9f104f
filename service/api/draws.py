"""Noisy counts: drawing them, once, and reading them again."""

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Response
from numpy.typing import NDArray
from pydantic import BaseModel, FailFast, Field

from service.api import examples
from service.api.accounts import AccountPath
from service.api.auth import CurrentPrincipal, require
from service.api.body import StrictRoute
from service.api.context import Changing, CurrentDatabase, in_writers, ok, respond
from service.api.exact import LARGEST_INTEGER, Exact, Label, Strict, Tags
from service.api.guarantees import HeadBody, head_body, read_deltas
from service.api.paging import Cursor, Limit, page, read_seq
from service.api.plans import Mechanism, document_of, mechanism_of
from service.api.releases import ReleasePath
from service.errors import InvalidInput
from service.ledger import accounts, charges, draws, releases
from service.ledger.charges import NewRelease
from service.ledger.draws import WHOLE, DrawRecord, Turn
from service.noise import Keystream, add_noise
from service.privacy.accuracy import margin_of_error
from service.privacy.law import Law, noise_law
from service.privacy.mechanisms import Mechanism as MechanismValue
from service.privacy.notation import write_plan

router = APIRouter(prefix="/v1/accounts/{account}", tags=["noisy counts"], route_class=StrictRoute)

CONFIDENCE = Fraction(95, 100)
PAGE_OF_COUNTS = 1_000_000

Count = Annotated[int, Field(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Counts = Annotated[
    list[Count],
    FailFast(),  # a million faults would take longer to say than the draw
    Field(min_length=1, description="True counts; they are never stored or logged."),
]


class RegisterAndDraw(Strict):
    """One mechanism to register as a release of its own, and the counts to draw it on."""

    name: Label
    mechanism: Mechanism
    counts: Counts
    tags: Tags = Field(default_factory=list)
    delta: Exact = Field("1e-10", description="At which the release's cost is shown as (epsilon, delta).")


class DrawMechanism(Strict):
    """A mechanism of a registered release, and the counts to draw it on."""

    mechanism: Label = Field(description="Its name in the plan, or else its path.")
    partition: Label | None = Field(
        None, description="Which of disjoint subsets of the input the counts are of; without it, the whole input."
    )
    repetition: Annotated[int, Field(strict=True, ge=0, lt=10**12)] = Field(
        0, description="Which turn, where the mechanism is repeated."
    )
    counts: Counts


class MarginOfError(BaseModel):
    """At most a share 1 - confidence of the counts is further from the truth than moe."""

    confidence: float
    moe: int


class DrawBody(BaseModel):
    """Noisy counts, in the order of the counts that came in."""

    release: str
    draw: str
    mechanism: Mechanism
    partition: str | None
    repetition: int
    noisy: list[int]
    margin_of_error: MarginOfError
    head: HeadBody
    created_at: str


class DrawPage(BaseModel):
    """A page of draws; it ends early where it holds a million counts."""

    items: list[DrawBody]
    next_cursor: str | None


DrawPath = Annotated[str, Path(description="The draw's id.", examples=[examples.DRAW_ID])]


@router.post("/draws", status_code=201, response_model=DrawBody, openapi_extra=examples.body(examples.DRAW))
@in_writers
def register_and_draw(account: AccountPath, body: RegisterAndDraw, change: Changing) -> Response:
    """Register a mechanism and draw its noisy counts, in one step.

    The charge and the noisy counts are stored in one transaction, and only then answered.
    """
    require(change.principal, "pipeline", account)
    mechanism = mechanism_of(body.mechanism, "/mechanism")
    (delta,) = read_deltas([body.delta], ["/delta"])
    new = NewRelease(body.name, mechanism, document_of(body.mechanism), tuple(body.tags), delta, "/mechanism")
    (prepared,) = charges.prepare(change.database, account, [new])
    noisy = _noisy(body.counts, mechanism)
    return respond(draws.register_and_draw(change.database, change.request, prepared, noisy, _rendered))


@router.post(
    "/releases/{release}/draws",
    status_code=201,
    response_model=DrawBody,
    openapi_extra=examples.body(examples.DRAW_OF_RELEASE),
)
@in_writers
def draw_mechanism(account: AccountPath, release: ReleasePath, body: DrawMechanism, change: Changing) -> Response:
    """Draw the noisy counts of a mechanism of a registered release.

    The first draw commits a reservation. Each mechanism, partition and repetition is drawn once; under a
    choice, the first draw fixes the branch for its partition and turn. The partitions of one mechanism must be
    disjoint subsets of the input: that is the caller's promise, as is the mechanism's sensitivity.
    """
    require(change.principal, "pipeline", account)
    with change.database.read() as connection:
        owner = accounts.read_account(connection, account)
        found = releases.read_release(connection, owner.id, release)
    plan = found.plan
    mechanism = draws.find_mechanism(plan, body.mechanism, "/mechanism")
    turn = Turn(WHOLE if body.partition is None else body.partition, body.repetition)
    draws.check_turn(plan, mechanism, turn, "/repetition")
    noisy = _noisy(body.counts, mechanism)
    return respond(
        draws.draw(change.database, change.request, account, release, plan, mechanism, turn, noisy, _rendered)
    )


@router.get("/releases/{release}/draws", response_model=DrawPage)
def list_draws(
    account: AccountPath,
    release: ReleasePath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the draws of a release.

    With their noisy counts, oldest first.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        releases.state_of(connection, owner.id, release)
        drawn = draws.list_draws(connection, release, read_seq(cursor), limit, PAGE_OF_COUNTS)
    full = len(drawn) >= limit or sum(len(record.noisy) for record in drawn) >= PAGE_OF_COUNTS
    return ok(page([draw_body(record) for record in drawn], 1, drawn[-1].head.seq if full else None))


@router.get("/draws/{draw}", response_model=DrawBody)
def read_draw(account: AccountPath, draw: DrawPath, database: CurrentDatabase, principal: CurrentPrincipal) -> Response:
    """Read a draw.

    The stored noisy counts, the same as when they were drawn.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        return ok(draw_body(draws.read_draw(connection, owner.id, draw)))


def _noisy(counts: Sequence[int], mechanism: MechanismValue) -> NDArray[np.int64]:
    law = law_of(mechanism, "/mechanism")
    try:
        return add_noise(counts, law, Keystream())
    except ValueError as error:  # a law too wide for 64-bit results; the message names the limit, not a count
        raise InvalidInput.at("/mechanism", str(error)) from None


def law_of(mechanism: MechanismValue, pointer: str) -> Law:
    """The law of a mechanism's noise.

    Raises:
        InvalidInput: it is continuous or declared, which this service accounts for and never draws.
    """
    law = noise_law(mechanism)
    if law is None:
        raise InvalidInput.at(
            pointer,
            "expected a mechanism with integer noise: geometric, discrete_gaussian or discrete_osgt; others are"
            " only accounted",
        )
    return law


def draw_body(record: DrawRecord) -> dict[str, Any]:
    """A draw as JSON."""
    return {
        "release": record.release_id,
        "draw": record.id,
        "mechanism": write_plan(record.mechanism),
        "partition": record.turn.partition or None,
        "repetition": record.turn.repetition,
        "noisy": record.noisy,
        "margin_of_error": {
            "confidence": float(CONFIDENCE),
            "moe": margin_of_error(law_of(record.mechanism, "/mechanism"), CONFIDENCE),
        },
        "head": head_body(record.head),
        "created_at": record.created_at,
    }


def _rendered(record: DrawRecord) -> str:
    return json.dumps(draw_body(record))
