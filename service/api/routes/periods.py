"""Route of the periods of an account: what the worst window that holds each has spent and left."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from service.api.http.accepted_types import prefers
from service.api.http.csv_answers import MEDIA_TYPE as CSV
from service.api.http.dependencies import AnswerInHelper, CurrentDatabase, ok
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, table_answer
from service.api.http.paging import Cursor, Limit, not_a_cursor, page, read_cursor
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.schemas.exact_numbers import number_up, short_exact
from service.api.schemas.guarantees import HeadBody, Remaining, head_body, remaining_body
from service.api.schemas.periods import WindowBody, read_query_period, window_body
from service.errors import InvalidInput, NotFound
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.releases.settlement import has_many_due, without_due_reservations
from service.ledger.spending.worst_windows import PeriodView, period_views, touched_periods
from service.ledger.storage import clock
from service.privacy.accounting.privacy_filter import spent_of_cap
from service.privacy.periods import Periods, write_period

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

_MANY = 2000  # windows
_MOST_COMPARED = 50_000  # pairs of a period and an offset on a page


class PeriodBody(BaseModel):
    """A period, with the window of the largest loss of those that hold it.

    With participation any: the period together with the worst others. The figures are then the sums of the largest
    periods, this one among them, each figure by itself.
    """

    period: str | int
    window: WindowBody
    spent: float | None = Field(
        description="The window's loss by committed releases, by admission's count, those to all periods included;"
        " rounded up; null: infinite. The window is the one with the largest counted: another one that holds the period"
        " may have spent more, and holds less."
    )
    spent_exact: str | None = Field(description="spent as an exact number, where it is rational and short.")
    counted: float | None = Field(description="spent with reservations: the figure that is compared with the cap.")
    counted_exact: str | None = Field(description="counted as an exact number, where it is rational and short.")
    remaining: Remaining
    releases: int = Field(
        description="The number of committed and held releases that touch the window; with participation any, a release"
        " counts once for each of the periods."
    )


class CommonBody(BaseModel):
    """The releases to all periods, which every window has, also one that nothing else touched."""

    spent: float | None
    counted: float | None
    releases: int


class ReadBody(BaseModel):
    """The first and the last period that releases read, but for those to all periods."""

    first: str | int = Field(alias="from")
    last: str | int = Field(alias="to")


class PeriodPage(BaseModel):
    """Periods of an account, in order."""

    items: list[PeriodBody]
    next_cursor: str | None
    read: ReadBody | None = Field(description="null: no release is to fewer than all periods.")
    common: CommonBody
    head: HeadBody


_COLUMNS = (
    "period", "window", "spent", "spent_exact", "counted", "counted_exact", "remaining.rho", "remaining.epsilon",
    "remaining.delta", "releases",
)  # fmt: skip


@router.get("/{account}/periods", response_model=PeriodPage, responses=AS_TABLE)
def list_periods(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    first: Annotated[
        str | None, Query(alias="from", max_length=20, description="The first period; without it, the first read one.")
    ] = None,
    last: Annotated[
        str | None, Query(alias="to", max_length=20, description="The last period; without it, the last read one.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the periods of an account with periods.

    Each period is shown with the window of the largest loss, in the budget's figure, of those that hold it: what a unit
    that was in this period's data has lost at most, and what is left for it. An account without periods has no such
    list: 404.

    Without from and to, the list goes from the first to the last period that was ever read. A period stays in it when
    its releases are voided or expire: with no others, its window is shown with what releases to all periods have
    charged, or with zeros.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record, now = accounts.read_account(connection, account), clock.now()
        if request.app.state.helpers is not None and has_many_due(connection, [record], now):
            raise AnswerInHelper
        record = without_due_reservations(connection, record, now)
        if record.periods is None or record.windows is None:
            raise NotFound("list of periods of the account", account)
        if record.periods.several and record.windows.number > _MANY and request.app.state.helpers is not None:
            raise AnswerInHelper  # all of them are read
        stated = read_query_period(record, first, "from"), read_query_period(record, last, "to")
        if stated[0] is not None and stated[1] is not None and stated[1] < stated[0]:
            raise InvalidInput.at("/query/to", "expected a period not before /query/from")
        read = touched_periods(connection, record)
        ends = read or (0, -1)
        begins, until = (given if given is not None else found for given, found in zip(stated, ends, strict=True))
        if cursor is not None:
            begins = max(begins, _after(cursor))
        end = min(until, begins + _at_most(record.periods, limit) - 1)
        views = list(period_views(connection, record, begins, end)) if begins <= end else []
    body = page([_period_body(record.periods, view) for view in views], end if views and end < until else None)
    if prefers(accept, CSV):
        return table_answer(_COLUMNS, body["items"], body["next_cursor"])
    body["read"] = None if read is None else _ends_body(record.periods, *read)
    return ok(body | {"common": _common_body(record), "head": head_body(record.head)})


def _at_most(periods: Periods, limit: int) -> int:
    """Return the number of periods of a page: fewer where each is in many windows."""
    return max(1, min(limit, _MOST_COMPARED // max(1, periods.windows_of_each)))


def _after(cursor: str) -> int:
    last = read_cursor(cursor)
    if not last.lstrip("-").isdecimal() or len(last) > 15 or not last.isascii():
        raise not_a_cursor()
    return int(last) + 1


def _period_body(periods: Periods, view: PeriodView) -> dict[str, Any]:
    return {
        "period": write_period(periods.calendar, view.period),
        "window": window_body(periods, view.window),
        "spent": None if view.committed is None else number_up(view.committed),
        "spent_exact": None if view.committed is None else short_exact(view.committed),
        "counted": None if view.counted is None else number_up(view.counted),
        "counted_exact": None if view.counted is None else short_exact(view.counted),
        "remaining": remaining_body(view.account),
        "releases": view.account.releases,
    }


def _ends_body(periods: Periods, first: int, last: int) -> dict[str, Any]:
    return {"from": write_period(periods.calendar, first), "to": write_period(periods.calendar, last)}


def _common_body(account: AccountRecord) -> dict[str, Any]:
    if account.windows is None:
        raise ValueError("expected an account with periods")
    common = account.windows.common
    figures = [spent_of_cap(account.budget, account.weights, one) for one in (common.committed, common.totals)]
    spent, counted = [None if figure is None else number_up(figure) for figure in figures]
    return {"spent": spent, "counted": counted, "releases": common.releases}
