"""Route of the report of an account and a period, for those who decide on the budget."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from service.api.computations.accuracy import read_confidence
from service.api.http.accepted_types import prefers
from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.http.dependencies import CurrentDatabase, in_helpers, ok
from service.api.http.kept_figures import costs_of
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, table_answer
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, read_seq, with_room, write_cursor
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.schemas.charges import charge_body
from service.api.schemas.count_accuracy import Accuracy, count_accuracies
from service.api.schemas.exact_numbers import Exact, number_down, stated
from service.api.schemas.guarantees import head_body
from service.api.schemas.moments import MomentInQuery
from service.api.schemas.period_reports import (
    MOST_CHILDREN,
    MOST_MECHANISMS,
    ReportBody,
    change_body,
    draws_body,
    numbers_body,
    reported_change,
    reported_child,
    standing_body,
    waiting_body,
)
from service.api.schemas.whole_budgets import whole_budget_body
from service.errors import InvalidInput
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import usual_delta, write_budget
from service.ledger.journal.entries import Drawn
from service.ledger.journal.entry_texts import price_of_key
from service.ledger.journal.journal import write_head
from service.ledger.releases import releases
from service.ledger.releases.recorded_releases import charge_of, later_entries
from service.ledger.releases.releases import ReleaseRecord, entry_of
from service.ledger.spending.period_records import PeriodReport, ReleaseActivity, Step
from service.ledger.spending.period_report import report_period
from service.ledger.storage import clock
from service.ledger.storage.paging import CHARACTERS
from service.privacy.accounting.privacy_filter import Definition
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.walking import runs_of

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

_MOST_RELEASES = 200
_MOST_NOISES = 400  # unlike mechanisms of a page, each of which takes milliseconds
_IN_PLACE_OF_MECHANISMS = (
    "mechanism.mechanism", "mechanism.tags", "mechanism.type", "mechanism.parameters", "mechanism.repetitions",
    "mechanism.moe", "mechanism.coverage", "mechanism.standard_deviation",
)  # fmt: skip
_COLUMNS = (
    "account", "since", "until", "head", "budget", "spent_before", "spent", "held", "left", "release", "name", "tags",
    "purpose", "state_before", "state", "registered_at", "registered_by", "approved_at", "approved_by",
    "approval_reason", "ended_at", "ended_by", "end_reason", "draws.number", "draws.first_at", "draws.last_at",
    "draws.by", "charge.definition", "charge.alpha", "charge.rho", "charge.rho_exact", "charge.epsilon",
    "charge.epsilon_exact", "charge.delta", "charge.share", "confidence", *_IN_PLACE_OF_MECHANISMS, "approvals",
    "mechanism.drawn",
)  # fmt: skip


@router.get("/{account}/report", response_model=ReportBody, responses=AS_TABLE)
@in_helpers
def report_account(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    since: Annotated[
        MomentInQuery | None, Query(description="The beginning of the period; by default the opening of the account.")
    ] = None,
    until: Annotated[
        MomentInQuery | None,
        Query(description="The end of the period, which is not part of it; by default the present."),
    ] = None,
    confidence: Annotated[
        Exact, Query(description="The confidence of the margins, above 0 and below 1.", examples=["0.9"])
    ] = "0.95",
    limit: Annotated[
        int, Query(ge=1, le=_MOST_RELEASES, description="The largest number of releases of a page.")
    ] = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """Report on an account and a period.

    The report is for those who decide on the budget, and for an archive: what was spent, held and left at the beginning
    and at the end of the period, the releases of the period with their charges and their accuracy, the changes of the
    account with their reasons, the parts of accounts below, and what waits for approval. All figures come from
    the journal up to head, in the budget's own definition, so anybody who has the journal can compute them again.

    releases is a page, in the order of the first entries of the period: it ends early with many unlike mechanisms or
    long plans. All other figures are of the whole period, on each page. As a table, there is a line for each mechanism
    of these releases, however many; JSON lists at most 20 of each release. The operation takes some ten seconds for a
    million entries.
    """
    require(principal, "auditor", account)
    asked = read_confidence(confidence, "/query/confidence")
    now, as_table = clock.now(), prefers(accept, CSV)
    first = "" if since is None else clock.stamp(since)
    end = now if until is None else clock.stamp(until)
    if first >= end:
        raise InvalidInput.at("/query/until", "expected a moment after since, and since before the present")
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        report = report_period(connection, owner, first, end, after=read_seq(cursor), limit=limit)
        page, more = _first_of(connection, owner, report)
        with_room(take)(sum(size for _, size in page))
        activities = [activity for activity, _ in page]
        known: dict[str, Accuracy] = {}
        shown: list[dict[str, Any]] = []
        for activity, record in zip(activities, _records(connection, owner, activities), strict=True):
            facts = _facts(connection, request, owner, report, activity, record)
            runs = runs_of(record.plan)
            listed = islice(runs, None if as_table else MOST_MECHANISMS)
            drawn = _drawn(connection, owner, record, report.end.head.seq)
            mechanisms = [
                figures | {"drawn": (mechanism.name or "") in drawn}
                for mechanism, figures in count_accuracies(listed, asked, known)
            ]
            number = len(mechanisms) + sum(1 for _ in runs)
            shown.append(facts | {"mechanisms": mechanisms, "mechanisms_number": number})
            if len(known) >= _MOST_NOISES:
                break
    more = more or len(shown) < len(activities)
    last = activities[len(shown) - 1].first if more else None
    body = {
        "account": owner.name,
        "unit": owner.unit,
        "neighbouring": owner.neighbouring.value,
        "parent": owner.parent,
        "since": first or None,
        "until": end,
        "made_at": now,
        "budget": write_budget(report.end.budget),
        "delta": exact_text(usual_delta(report.end.budget)),
        "whole_budget": whole_budget_body(report.end.budget),
        "beginning": None if report.beginning is None else standing_body(report.beginning),
        "end": standing_body(report.end),
        "change": change_body(report.beginning, report.end),
        "numbers": numbers_body(report),
        "confidence": stated(asked, number_down),
        "releases": shown,
        "next_cursor": None if last is None else write_cursor(last),
        "changes": [reported_change(change) for change in report.changes],
        "children": [reported_child(name, share) for name, share in islice(report.children.items(), MOST_CHILDREN)],
        "children_number": len(report.children),
        "waiting": waiting_body(report),
        "head": head_body(owner.head),
    }
    if not as_table:
        return ok(body)
    shared = {
        **{name: body[name] for name in ("account", "since", "until", "budget", "confidence")},
        "head": write_head(owner.head),
        "spent_before": None if report.beginning is None else standing_body(report.beginning)["spent"],
        **{name: standing_body(report.end)[name] for name in ("spent", "held", "left")},
    }
    lines = ({**shared, **release, "mechanism": mechanism} for release in shown for mechanism in release["mechanisms"])
    return table_answer(_COLUMNS, lines, None if last is None else write_cursor(last))


def _first_of(
    connection: Connection, owner: AccountRecord, report: PeriodReport
) -> tuple[list[tuple[ReleaseActivity, int]], bool]:
    """Return as many of the report's releases as a page holds, each with its size, and whether others follow."""
    sizes = releases.sizes_of(connection, owner.id, [one.release for one in report.releases])
    page: list[tuple[ReleaseActivity, int]] = []
    total = 0
    for activity in report.releases:
        page.append((activity, sizes.get(activity.release, 0)))
        total += page[-1][1]
        if total >= CHARACTERS:
            break
    return page, report.more or len(page) < len(report.releases)


def _records(
    connection: Connection, owner: AccountRecord, activities: Sequence[ReleaseActivity]
) -> list[ReleaseRecord]:
    """Return the releases of a page, in its order.

    Raises:
        NotFound: the account has lost one of them.
    """
    found = {one.id: one for one in releases.read_some(connection, owner.id, [one.release for one in activities])}
    return [found.get(one.release) or releases.read_release(connection, owner.id, one.release) for one in activities]


def _facts(
    connection: Connection,
    request: Request,
    owner: AccountRecord,
    report: PeriodReport,
    activity: ReleaseActivity,
    record: ReleaseRecord,
) -> dict[str, Any]:
    """Return a release of the report without its mechanisms."""
    registered, approved, approvals = activity.registered, activity.approved, activity.approvals
    if registered is None:
        entry = entry_of(connection, owner.id, record)
        registered = Step(record.head.seq, record.created_at, entry["actor"])
        if entry["kind"] == "proposed":
            earlier, last = _approvals(connection, owner, record, before=activity.first)
            approved, approvals = approved or last, [*earlier, *approvals]
    amount = activity.amount or charge_of(connection, owner, record).price
    budget = report.end.budget
    cost = costs_of(connection, request, owner, [record])[0] if budget.definition is Definition.APPROXIMATE else None
    ended = activity.ended
    return {
        "release": record.id,
        "name": record.name,
        "tags": list(record.tags),
        "purpose": record.metadata.get("intended_use") or owner.metadata.get("intended_use"),
        "state_before": activity.before,
        "state": activity.state,
        "registered_at": registered.at,
        "registered_by": registered.by,
        "approved_at": None if approved is None else approved.at,
        "approved_by": None if approved is None else approved.by,
        "approval_reason": None if approved is None else approved.reason,
        "approvals": [{"by": one.by, "at": one.at, "reason": one.reason, "seq": one.seq} for one in approvals],
        "ended_at": None if ended is None else ended.at,
        "ended_by": None if ended is None else ended.by,
        "end_reason": None if ended is None else ended.reason,
        "draws": draws_body(activity.draws),
        "charge": charge_body(budget, owner.weights, price_of_key(amount), cost),
    }


def _drawn(connection: Connection, owner: AccountRecord, record: ReleaseRecord, last: int) -> frozenset[str]:
    """Return the names of the mechanisms of a release that were drawn up to an entry of its account's journal."""
    draws = (one for one in later_entries(connection, owner, record, [Drawn.KIND]) if one.seq <= last)
    return frozenset(one.content.mechanism for one in draws if isinstance(one.content, Drawn))


def _approvals(
    connection: Connection, owner: AccountRecord, record: ReleaseRecord, *, before: int
) -> tuple[list[Step], Step | None]:
    """Return the approvals of a release before an entry, and the one that completed them; None: none did."""
    entries = [one for one in later_entries(connection, owner, record, ["approved"]) if one.seq < before]
    last = next((one for one in entries if one.content.next_state() != "proposed"), None)
    return [Step.of(one) for one in entries], None if last is None else Step.of(last)
