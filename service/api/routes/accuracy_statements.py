"""Routes of accuracy statements, of a release and of a family of releases."""

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from service.api.computations.accuracy import read_confidence
from service.api.http import csv_answers
from service.api.http.accepted_types import JSON, prefers
from service.api.http.dependencies import CurrentDatabase, Streamed, in_helpers, ok
from service.api.http.kept_figures import costs_of
from service.api.http.memory_room import Room
from service.api.http.paging import with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.publication.accuracy import (
    AccuracyStatement,
    FamilyStatement,
    drawn_mechanisms,
    joint_loss,
    statement_of,
    table_of,
    table_of_family,
)
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.api.schemas.exact_numbers import Exact, number_down, stated
from service.api.schemas.release_searches import Family
from service.errors import InvalidInput
from service.ledger.accounts import accounts
from service.ledger.accounts.budgets import write_budget
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.releases.releases import list_releases
from service.ledger.storage import clock

router = APIRouter(prefix="/v1/accounts/{account}", route_class=StrictRoute)

_MOST_RELEASES = 100  # of a family
_MOST_STATED = 1_000_000  # more mechanisms than a plan has


@router.get(
    "/releases/{release}/accuracy",
    response_model=AccuracyStatement,
    responses={200: {"content": csv_answers.ANSWER}},
)
@in_helpers
def state_accuracy(
    account: AccountPath,
    release: ReleasePath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    confidence: Annotated[
        Exact, Query(description="The confidence of the margins, above 0 and below 1.", examples=["0.9"])
    ] = "0.95",
    limit: Annotated[
        int | None,
        Query(ge=1, le=_MOST_STATED, description="State only so many mechanisms, the first of the plan."),
    ] = None,
    accept: Annotated[str, Header(description=f"{csv_answers.MEDIA_TYPE} for a table; else JSON.")] = JSON,
) -> Response:
    """State the accuracy of a release.

    The answer has the margin of error of one noisy count of each mechanism, for a publication, and the guarantee and
    the population for which it holds. Margins rest on certified bounds, so no coverage is above the truth. Of a choice,
    all branches are listed. What is computed from noisy counts later, such as totals, has other margins
    (`POST /v1/accuracy`).
    """
    require(principal, "auditor", account)
    asked = read_confidence(confidence, "/query/confidence")
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        record = read_recorded(connection, owner, release).seen(clock.now())
        (cost,) = costs_of(connection, request, owner, [record])
        drawn = drawn_mechanisms(connection, owner, record)
    statement = statement_of(owner, record, cost, drawn, asked)
    statement |= {"mechanisms": islice(statement["mechanisms"], limit)}
    if prefers(accept, csv_answers.MEDIA_TYPE):
        return Streamed(csv_answers.written(*table_of(statement)), media_type=csv_answers.MEDIA_TYPE)
    return ok(statement | {"mechanisms": list(statement["mechanisms"])})


@router.get("/accuracy", response_model=FamilyStatement, responses={200: {"content": csv_answers.ANSWER}})
@in_helpers
def state_family_accuracy(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    wanted: Family,
    confidence: Annotated[
        Exact, Query(description="The confidence of the margins, above 0 and below 1.", examples=["0.9"])
    ] = "0.95",
    limit: Annotated[
        int | None,
        Query(
            ge=1, le=_MOST_STATED, description="State only so many mechanisms of each release, the first of its plan."
        ),
    ] = None,
    accept: Annotated[str, Header(description=f"{csv_answers.MEDIA_TYPE} for a table; else JSON.")] = JSON,
) -> Response:
    """State the accuracy of a family of releases.

    The family is the committed releases of the account that match all that is asked for, as in the list of releases; at
    most 100. The answer has the statement of each, and the loss of all together: the composition of their plans, as
    they turned out, whichever periods they read. It is no guarantee under adaptive choice, which only the budget gives.
    """
    require(principal, "auditor", account)
    asked = read_confidence(confidence, "/query/confidence")
    now = clock.now()
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        records = list_releases(connection, owner.chain, 0, _MOST_RELEASES, wanted, now, with_room(take))
        if records.more:
            most = f"at most {_MOST_RELEASES}" if len(records) == _MOST_RELEASES else "fewer or shorter"
            raise InvalidInput.at("/query", f"expected a family of {most} releases, got more: ask for fewer")
        costs = costs_of(connection, request, owner, records)
        drawn = [drawn_mechanisms(connection, owner, record) for record in records]
    joint = joint_loss(owner, records)
    statements = [
        statement | {"mechanisms": islice(statement["mechanisms"], limit)}
        for record, cost, found in zip(records, costs, drawn, strict=True)
        for statement in [statement_of(owner, record, cost, found, asked)]
    ]
    if prefers(accept, csv_answers.MEDIA_TYPE):
        return Streamed(csv_answers.written(*table_of_family(statements, joint)), media_type=csv_answers.MEDIA_TYPE)
    listed = [statement | {"mechanisms": list(statement["mechanisms"])} for statement in statements]
    facts = {"unit": owner.unit, "neighbouring": owner.neighbouring.value, "budget": write_budget(owner.budget)}
    stated_confidence = stated(asked, number_down)
    return ok({"account": account, **facts, "confidence": stated_confidence, "joint": joint, "releases": listed})
