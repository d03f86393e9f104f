"""Routes of tabulations: SafeTab's algorithm for the groups of a level, each group once ever."""

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Response
from pydantic import FailFast, Field

from service.api.http.dependencies import Change, Changing, heavy_in_helpers, in_writers, respond
from service.api.identity.auth import require
from service.api.openapi import contract, examples
from service.api.routes.accounts import AccountPath
from service.api.routes.noisy_counts.arrow_draws import (
    Accepted,
    ArrowRoute,
    Uploaded,
    answer_stream,
    json_parameter,
    model_of,
)
from service.api.routes.noisy_counts.draws import DrawRoute
from service.api.routes.releases import ReleasePath
from service.api.schemas import population_groups as groups
from service.api.schemas.draw_responses import CONFIDENCE, json_of, stream_of
from service.api.schemas.exact_numbers import Label, Strict
from service.api.schemas.population_groups import NamedGroups, PopulationGroup
from service.api.schemas.tabulation_responses import AgeBins, TabulationBody, Thresholds, terms_of
from service.errors import InvalidInput, ServiceError
from service.ledger.accounts import accounts
from service.ledger.draws import partitions, tabulations
from service.ledger.draws.draws import AnsweredDraw
from service.ledger.draws.tabulation_layout import Layout
from service.ledger.releases import releases
from service.ledger.storage.writing_time import require_few_counts
from service.noise.tabulation import MOST_AGES, SIZES, USUAL_RULES, DetailRules, LevelLaws, tabulate
from service.privacy.accuracy.tails import margin_of_error
from service.privacy.planning.levels import Level, find_level, laws_of
from service.privacy.plans.notation import write_plan

router = APIRouter(prefix="/v1/accounts/{account}", route_class=DrawRoute)
# The operation is documented with its JSON twin, as those of ``arrow_draws`` are.
streams = APIRouter(prefix="/v1/accounts/{account}", route_class=ArrowRoute, include_in_schema=False)


class TabulationTerms(Strict):
    """The level, and the details that its groups may get."""

    level: Label = Field(description="The common prefix of the level's mechanisms, up to their last /.")
    thresholds: Thresholds = Field(
        default_factory=lambda: list(USUAL_RULES.thresholds),
        description="Ascending. A group is tabulated by its first noisy total: below the first threshold as a total,"
        " below the second as sex by 4 ages, below the third as sex by 9, else as sex by 23. The default"
        " is that of the 2020 Detailed DHC-A for detailed groups of the nation and of states; it had"
        " 1000, 5000, 20000 for those of smaller areas, and 5000, 20000, 150000 for regional groups.",
    )
    age_bins: AgeBins = Field(default_factory=AgeBins)


class Tabulate(TabulationTerms):
    """A level to tabulate, with its groups."""

    groups: Annotated[list[PopulationGroup], FailFast(), Field(min_length=1)]


@router.post(
    "/releases/{release}/tabulations",
    status_code=201,
    response_model=TabulationBody,
    responses=contract.bulk_answer(201),
    openapi_extra=contract.bulk_body(examples.TABULATION, examples.TABULATION_QUERY),
)
@heavy_in_helpers
@in_writers
def tabulate_groups(account: AccountPath, release: ReleasePath, body: Tabulate, change: Changing) -> Response:
    """Tabulate population groups by SafeTab.

    The release's plan must have the level: a choice between its total and a sequence of two steps, as
    `/v1/plans/safetab` makes it. For a total_only group the total is drawn. For any other group, step 1 draws a total
    that is not published; by the thresholds it decides if step 2 draws the total or sex by 4, 9 or 23 ages.

    Each group is drawn once ever at a level. The caller promises that no record is in more groups of the level than the
    number of repetitions of the choice in the plan. Where the plan declares partitions, groups count as partitions of
    the mechanisms that draw them.

    Groups may also be sent as an Arrow IPC stream with the columns `group`, `sex_by_age` (lists of lists of int64),
    `total_only` and `total`, with the other fields in the query. The answer is then a stream with `group`,
    `total_only`, `detail` and `noisy`; its schema's metadata have the rest. With application/json as Accept it is JSON.

    A tabulation may have 250,000 groups, and their names together 16 MiB in UTF-8 (67 bytes for each of 250,000). A
    tabulation that would delay others for more than an estimated 2 seconds, by the most counts that its groups may get,
    is refused too. Each of these is answered with 422, with the limit and the number. Send more in several tabulations.
    """
    drawn = _tabulate(account, release, body, groups.of_json(body.groups), change, "")
    return respond(replace(drawn.answer, body="".join(json_of(drawn.record))))


@streams.post("/releases/{release}/tabulations")
@heavy_in_helpers
@in_writers
def tabulate_stream(
    account: AccountPath,
    release: ReleasePath,
    upload: Uploaded,
    change: Changing,
    level: Annotated[str, Query()],
    thresholds: Annotated[str | None, Query()] = None,
    age_bins: Annotated[str | None, Query()] = None,
    accept: Accepted = "",
) -> Response:
    """Tabulate population groups that are sent as an Arrow stream."""
    fields: dict[str, Any] = {"level": level}
    for name, text in (("thresholds", thresholds), ("age_bins", age_bins)):
        if text is not None:
            fields[name] = json_parameter(name, text)
    terms = model_of(TabulationTerms, fields)
    given_groups = groups.of_stream(upload.body, upload.most, upload.take)
    drawn = _tabulate(account, release, terms, given_groups, change, "/query")
    return answer_stream(drawn, stream_of(drawn.record), accept)


def _tabulate(
    account: str, release: str, tabulation: TabulationTerms, groups: NamedGroups, change: Change, below: str
) -> AnsweredDraw:
    """Draw and store the noisy counts of groups; ``below`` is the pointer under which faults are reported."""
    require(change.principal, "pipeline", account)
    rules = _rules(tabulation, below)
    with change.database.read() as connection:
        owner = accounts.read_account(connection, account)
        record = releases.read_release(connection, owner.id, release)
    plan = record.plan  # after the transaction: reading a long plan takes seconds
    level = find_level(plan, tabulation.level)
    laws = None if level is None else laws_of(level)
    if level is None or laws is None:
        expected = "expected the name of one level of the release's plan, with integer noise and no threshold"
        raise InvalidInput.at(f"{below}/level", expected)
    marked = int(groups.counts.total_only.sum())
    most = marked + (len(groups.names) - marked) * max(SIZES)  # the details are not known before noise is drawn
    require_few_counts(change.database.kind, most, groups.pointer)
    try:
        details, noisy = tabulate(groups.counts, rules, LevelLaws(*laws), change.keystream())
    except ValueError as error:  # the law is too wide for 64-bit results; the message names the limit, not a count
        raise InvalidInput.at(f"{below}/level", str(error)) from None
    total, _, step_2 = laws
    margins = {
        "confidence": float(CONFIDENCE),
        "total_only": margin_of_error(total, CONFIDENCE),
        "step_2": margin_of_error(step_2, CONFIDENCE),
    }
    digits = (details + ord("0")).astype("u1").tobytes().decode()
    mechanisms = {name: write_plan(getattr(level, name)) for name in ("total", "step_1", "step_2")}
    terms = terms_of(rules, mechanisms, level.count, margins)
    layout = Layout(level.name, terms, groups.names, digits)
    refusal = _refusal(level, groups, change.require_partitions)
    return change.write(tabulations.tabulate, account, release, plan, level, layout, noisy, refusal)


def _refusal(level: Level, groups: NamedGroups, required: bool) -> ServiceError | None:
    """Return the reason why groups are not drawn by the mechanisms that would draw them; None where all may be."""
    marked = groups.counts.total_only
    for mechanism, drawn in ((level.total, marked), (level.step_1, ~marked), (level.step_2, ~marked)):
        places = np.flatnonzero(drawn).tolist()
        names = [groups.names[place] for place in places]

        def at(number: int, places: list[int] = places) -> str:
            return groups.at(places[number], "group")

        refusal = partitions.refusal(mechanism, names, at, required=required)
        if refusal is not None:
            return refusal
    return None


def _rules(terms: TabulationTerms, below: str) -> DetailRules:
    first, second, third = terms.thresholds
    if not first <= second <= third:
        raise InvalidInput.at(f"{below}/thresholds", "expected ascending thresholds")
    bins = {name: tuple(ages) for name, ages in terms.age_bins.model_dump().items()}
    for name, ages in bins.items():
        if ages[0] != 0 or ages[-1] >= MOST_AGES or any(a >= b for a, b in pairwise(ages)):
            raise InvalidInput.at(f"{below}/age_bins/{name}", f"expected ascending ages from 0 to below {MOST_AGES}")
    four, nine, twenty_three = bins.values()
    return DetailRules((first, second, third), (four, nine, twenty_three))
