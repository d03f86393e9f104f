"""The page of the report of an account and a period, which prints."""

import asyncio
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from service.ledger.storage import clock
from service.pages import days
from service.pages.account import AccountStep
from service.pages.confidences import confidence_of
from service.pages.shell.api_client import Query, Refused, SignedIn, Visit, address, get
from service.pages.shell.layout import page

router = APIRouter(prefix="/accounts/{account}", include_in_schema=False)

_ROWS = 100


class _Period(NamedTuple):
    """The period that a visitor asks for: its first and its last day, as typed."""

    since: str
    until: str


@router.get("/report")
async def show_report(account: AccountStep, visit: SignedIn) -> Response:
    """Render the report of a period; by default, of the present year."""
    period, confidence = _period(visit), confidence_of(visit)
    account_body = await get(visit, address("accounts", account))
    shown: dict[str, Any] = confidence.shown | {
        "account": account_body,
        "period": period,
        "usual_periods": _usual_periods(clock.now()[:10], account_body["created_at"][:10]),
        "report": None,
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
            shown |= {"report": report, "installation": installation}
        except Refused as refused:
            faults = refused.faults_of_query(_Period._fields)
    return page(visit.request, "report.html", shown | {"faults": faults, "query": query}, status=422 if faults else 200)


def _period(visit: Visit) -> _Period:
    parameters, today = visit.request.query_params, clock.now()[:10]
    return _Period(parameters.get("since", f"{today[:4]}-01-01").strip(), parameters.get("until", "").strip() or today)


def _usual_periods(today: str, opened: str) -> list[dict[str, str]]:
    """Return the last four quarters that are over, and the present year, without those before an account was opened."""
    year, month = int(today[:4]), int(today[5:7])
    present = 4 * year + (month - 1) // 3  # quarters are numbered from that of the year 0
    found = [
        {"name": f"Quarter {number % 4 + 1} of {number // 4}", "since": first, "until": days.before(after)}
        for number in range(present - 4, present)
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
