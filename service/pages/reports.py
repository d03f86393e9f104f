"""The page of the report of an account and a period, which prints."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Response

from service.api.http.list_answers import table_text
from service.errors import NotFound
from service.ledger.storage import clock
from service.pages import days
from service.pages.account import AccountStep, of_whole_budget
from service.pages.confidences import confidence_of
from service.pages.shell.api_client import Query, Refused, SignedIn, Visit, address, get
from service.pages.shell.layout import page
from service.pages.shell.whole_tables import as_file

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_ROWS = 100
_MOST_BELOW = 20  # accounts whose releases are shown with those of the one that they are under


class _Table(NamedTuple):
    """A table of a report: its columns, and the function that returns its lines."""

    columns: tuple[str, ...]
    lines: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]


def _standings(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"moment": name} | report[name] for name in ("beginning", "end", "change") if report[name]]


_TABLES = {
    "standing": _Table(
        (
            "moment", "cap", "spent", "spent_exact", "allotted", "allotted_exact", "held", "held_exact", "left",
            "left_exact", "used", "releases",
        ),
        _standings,
    ),
    "changes": _Table(
        (
            "seq", "kind", "at", "by", "reason", "former_budget", "budget", "approval_above", "caps", "approvers",
            "proposed_by", "proposed_at", "proposal_reason",
        ),
        lambda report: report["changes"],
    ),
    "accounts": _Table(
        (
            "account", "funding", "spent_before", "spent", "spent_exact", "counted", "counted_exact", "used",
            "releases",
        ),
        lambda report: report["children"],
    ),
}  # fmt: skip


class _Period(NamedTuple):
    """The period that a visitor asks for: its first and its last day, as typed."""

    since: str
    until: str


@router.get("/report")
async def show_report(account: AccountStep, visit: SignedIn) -> Response:
    """Render the report of a period; by default, of the present year.

    With ``below=1`` it also has the releases of accounts under it, from their own reports.
    """
    period, confidence = _period(visit), confidence_of(visit)
    account_body = await get(visit, address("accounts", account))
    shown: dict[str, Any] = confidence.shown | {
        "account": account_body,
        "period": period,
        "usual_periods": _usual_periods(clock.now()[:10], account_body["created_at"][:10]),
        "report": None,
        "below": [],
        "left_out": [],
        "asked_below": "below" in visit.request.query_params,
        "of_spent": None,
        "installation": None,
        "is_over": period.until <= clock.now()[:10],
        "first_page": "cursor" not in visit.request.query_params,
    }
    query, faults = _query(period, confidence.asked)
    faults |= confidence.faults
    if not faults:
        cursor = visit.request.query_params.get("cursor")
        asked: Query = {**query, "limit": _ROWS, "cursor": cursor}
        try:
            report, installation = await asyncio.gather(
                get(visit, f"{address('accounts', account)}/report", asked), get(visit, address("installation"))
            )
            of_spent = await _of_spent(visit, report)
            shown |= {"report": report, "installation": installation, "of_spent": of_spent}
            if shown["asked_below"]:
                shown |= await _below(visit, report, query)
        except Refused as refused:
            faults = refused.faults_of_query(_Period._fields)
    shown |= {
        "faults": faults,
        "query": query,
        "query_text": urlencode(period._asdict() | {"confidence": confidence.asked}),
    }
    return page(visit.request, "report.html", shown, status=422 if faults else 200)


@router.get("/report-{which}.csv")
async def report_table(account: AccountStep, which: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send one of the other tables of a report as a file."""
    if which not in _TABLES:
        raise NotFound("table", which)
    asked: Query = {name: visit.request.query_params.getlist(name) for name in visit.request.query_params}
    report = await get(visit, f"{address('accounts', account)}/report", {**asked, "limit": 1})
    facts = {name: report[name] for name in ("since", "until")} | {"of": report["account"]}
    lines = ({**facts, **line} for line in _TABLES[which].lines(report))
    return as_file(
        "".join(table_text(("of", "since", "until", *_TABLES[which].columns), lines)), f"{account}-{which}.csv"
    )


async def _below(visit: Visit, report: Mapping[str, Any], query: Query) -> dict[str, Any]:
    """Return the reports of the accounts that are charged to a reported one, and the names of those that are too many.

    A key that does not reach an account has no report of it.
    """
    names = [one["account"] for one in report["children"] if visit.session.reaches(one["account"])]
    asked: Query = {**query, "limit": _ROWS}
    below = await asyncio.gather(
        *(get(visit, f"{address('accounts', name)}/report", asked) for name in names[:_MOST_BELOW])
    )
    return {"below": below, "left_out": names[_MOST_BELOW:]}


async def _of_spent(visit: Visit, report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the epsilon and delta that bound what is spent at the end of a report; None if it is nothing."""
    spent = report["end"]["spent"]
    if not spent:
        return None
    figure = "rho" if report["budget"]["definition"] == "zcdp" else "epsilon"
    stated: dict[str, Any] = {**report["budget"], figure: report["end"]["spent_exact"] or repr(spent)}
    return await of_whole_budget(visit, stated)


def _period(visit: Visit) -> _Period:
    parameters, today = visit.request.query_params, clock.now()[:10]
    return _Period(parameters.get("since", f"{today[:4]}-01-01").strip(), parameters.get("until", "").strip() or today)


def _usual_periods(today: str, opened: str) -> list[dict[str, str]]:
    """Return the last four quarters, the present one and the year, but for those before an account was opened."""
    year, month = int(today[:4]), int(today[5:7])
    present = 4 * year + (month - 1) // 3  # quarters are numbered from that of the year 0
    found = [
        {"name": f"Quarter {number % 4 + 1} of {number // 4}", "since": first, "until": days.before(after)}
        if number < present
        else {"name": f"Quarter {number % 4 + 1} so far", "since": first, "until": today}
        for number in range(present - 4, present + 1)
        for first, after in [(_first_day(number), _first_day(number + 1))]
        if after > opened
    ]
    return [*found, {"name": f"{year} so far", "since": f"{year}-01-01", "until": today}]


def _first_day(quarter: int) -> str:
    return f"{quarter // 4:04}-{quarter % 4 * 3 + 1:02}-01"


def _query(period: _Period, confidence: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the period as ``/v1`` asks for it, whose end is not part of it; and the faults of its days."""
    query, faults = {"confidence": confidence}, dict[str, str]()
    for name, text, moment_of in (("since", period.since, days.beginning_of), ("until", period.until, days.end_of)):
        if name == "since" and not text:
            continue  # since the account was opened
        try:
            query[name] = moment_of(text)
        except ValueError:
            faults[name] = days.EXPECTED
    if not faults and period.since > clock.now()[:10]:
        faults["since"] = "expected a day that has begun"
    elif not faults and period.since > period.until:
        faults["until"] = "expected a day that is not before the first one"
    return query, faults
