"""Route of the accuracy statement of a release: the margins of its noisy counts, beside its guarantee."""

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from service.api.computations.accuracy import read_confidence
from service.api.http import csv_answers
from service.api.http.accepted_types import JSON, prefers
from service.api.http.dependencies import CurrentDatabase, Streamed, in_helpers, ok
from service.api.http.kept_figures import costs_of
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.api.schemas.count_accuracy import CountAccuracy, count_accuracies
from service.api.schemas.exact_numbers import Exact, number_down, stated
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws import partitions
from service.ledger.releases.recorded_releases import read_recorded
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.releases.reservation_rows import State
from service.ledger.storage import clock
from service.ledger.verification.receipts import counted_partitions
from service.privacy.mechanisms import Mechanism
from service.privacy.plans.walking import Neighbouring, runs_of

router = APIRouter(prefix="/v1/accounts/{account}/releases", route_class=StrictRoute)

_MOST_STATED = 1_000_000  # more mechanisms than a plan has
_FACTS = ("account", "release", "name", "state", "unit", "neighbouring", "epsilon", "delta", "rho")
_FIGURES = (
    "mechanism", "tags", "type", "parameters", "repetitions", "partitions_declared", "partitions_drawn", "confidence",
    "moe", "coverage", "standard_deviation",
)  # fmt: skip


class MechanismAccuracy(CountAccuracy):
    """The accuracy of one noisy count of a mechanism, and its partitions."""

    partitions_declared: int | None = Field(description="null: none are declared.")
    partitions_drawn: int


class AccuracyStatement(BaseModel):
    """The guarantee of a release and the accuracy of each of its mechanisms, for a publication."""

    account: str
    release: str
    name: str
    state: State
    unit: str
    neighbouring: Neighbouring
    epsilon: float | None = Field(
        description="The least at delta that holds under adaptive choice, or where there is none the least of all."
        " Rounded up; null: infinite."
    )
    delta: float
    rho: float | None = Field(description="Rounded up; null: infinite.")
    confidence: float
    mechanisms: list[MechanismAccuracy]


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


def statement_of(
    owner: AccountRecord,
    release: ReleaseRecord,
    cost: Mapping[str, Any],
    drawn: Mapping[str, partitions.DrawnFor],
    confidence: Fraction,
) -> dict[str, Any]:
    """Return the accuracy statement of a release, with an iterator of its mechanisms.

    Args:
        cost: the guarantee of the release, as JSON.
        drawn: the counters of its partitions, by mechanism.
        confidence: of the margins.
    """
    (best,) = cost["best"]
    guarantee = best["adaptive"] or best["fixed"] or {}
    return {
        "account": owner.name,
        "release": release.id,
        "name": release.name,
        "state": release.state,
        "unit": owner.unit,
        "neighbouring": owner.neighbouring.value,
        "epsilon": guarantee.get("epsilon"),
        "delta": best["delta"],
        "rho": None if cost["zcdp"] is None else cost["zcdp"]["rho"],
        "confidence": stated(confidence, number_down),
        "mechanisms": _with_partitions(runs_of(release.plan), drawn, confidence),
    }


def table_of(statement: Mapping[str, Any]) -> tuple[Sequence[str], Iterator[list[Any]]]:
    """Return an accuracy statement as a table with a row for each mechanism: its columns, and its rows."""
    facts = [statement[name] for name in _FACTS]
    confidence = {"confidence": statement["confidence"]}
    rows = ([*facts, *_in_table(figures | confidence)] for figures in statement["mechanisms"])
    return (*_FACTS, *_FIGURES), rows


def _with_partitions(
    runs: Iterator[tuple[Mechanism, int]], drawn: Mapping[str, partitions.DrawnFor], confidence: Fraction
) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of each mechanism, with its partitions."""
    for mechanism, figures in count_accuracies(runs, confidence, {}):
        found = drawn.get(mechanism.name or "")
        yield figures | {
            "partitions_declared": None if mechanism.partitions is None else mechanism.partitions.most,
            "partitions_drawn": 0 if found is None else found.drawn,
        }


def _in_table(figures: dict[str, Any]) -> list[Any]:
    return [json.dumps(figures[name]) if name == "parameters" else figures[name] for name in _FIGURES]
