"""Route of an account's spending history."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.charts import pictures
from service.api.charts.balance_figures import spending_picture
from service.api.http import csv_answers
from service.api.http.accepted_types import prefers
from service.api.http.dependencies import CurrentDatabase, in_helpers, ok
from service.api.http.list_answers import table_answer
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.schemas.exact_numbers import Label
from service.api.schemas.spending_history import USUAL_POINTS, HistoryBody, HistoryPoint, history_body, without_names
from service.ledger.accounts import accounts

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)


@router.get(
    "/{account}/history",
    response_model=HistoryBody,
    responses=pictures.responses("The budget over time; or a picture, as SVG or PNG; or a table.", csv_answers.ANSWER),
)
@in_helpers
def read_history(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    points: Annotated[int, Query(ge=2, le=1000, description="The largest number of points.")] = USUAL_POINTS,
    tag: Annotated[
        Label | None,
        Query(description="Show what the cap on this tag counts, from the entry on that set it."),
    ] = None,
    with_picture: Annotated[
        bool, Query(description="Include a picture of the points in the answer; the journal is read once for both.")
    ] = False,
) -> Response:
    """Read the spending over time.

    The answer has the spent loss, the reserved loss and the cap after each journal entry that changed one of them.
    Where there are more such entries than points, it has every n-th of them and the last. All figures come from the
    journal: a reservation counts until an entry records its expiry. Figures are those that admission compares with the
    cap, in the budget's own definition. With Accept: image/svg+xml or image/png the answer is only the picture, and
    with text/csv only the table of points. The operation takes some five seconds for a million entries.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        body = history_body(connection, record, points, tag)
    kind = pictures.wanted_type(request)
    if kind is not None:
        return spending_picture(body, kind)
    shown = without_names(body)
    if prefers(request.headers.get("accept", ""), csv_answers.MEDIA_TYPE):
        return table_answer(tuple(HistoryPoint.model_fields), shown["points"], None)
    return ok(shown | {"picture": bytes(spending_picture(body, pictures.SVG).body).decode()} if with_picture else shown)
