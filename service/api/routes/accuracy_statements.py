"""Routes of accuracy statements, of a release and of a family of releases."""

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from service.api.computations.accuracy import read_confidence
from service.api.http import csv_answers
from service.api.http.accepted_types import JSON, prefers
from service.api.http.dependencies import CurrentDatabase, Streamed, in_helpers, ok
from service.api.http.kept_figures import costs_of
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.publication.accuracy import AccuracyStatement, statement_of, table_of
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.api.schemas.exact_numbers import Exact
from service.ledger.accounts import accounts
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.storage import clock
from service.ledger.verification.receipts import counted_partitions

router = APIRouter(prefix="/v1/accounts/{account}/releases", route_class=StrictRoute)

_MOST_STATED = 1_000_000  # more mechanisms than a plan has


@router.get(
    "/{release}/accuracy",
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
        drawn = {one.mechanism: one for one in counted_partitions(connection, owner, record)}
    statement = statement_of(owner, record, cost, drawn, asked)
    statement |= {"mechanisms": islice(statement["mechanisms"], limit)}
    if prefers(accept, csv_answers.MEDIA_TYPE):
        return Streamed(csv_answers.written(*table_of(statement)), media_type=csv_answers.MEDIA_TYPE)
    return ok(statement | {"mechanisms": list(statement["mechanisms"])})
