"""How an account's spending went."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api import pictures
from service.api.accounts import AccountPath
from service.api.auth import CurrentPrincipal, require
from service.api.balance_figures import spending_picture
from service.api.body import StrictRoute
from service.api.context import CurrentDatabase, in_helpers, ok
from service.api.courses import USUAL_POINTS, HistoryBody, history_body
from service.ledger import accounts

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)


@router.get(
    "/{account}/history",
    response_model=HistoryBody,
    responses=pictures.responses("The course of the budget; as SVG or PNG."),
)
@in_helpers
def read_history(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    points: Annotated[int, Query(ge=2, le=1000, description="How many points at the most.")] = USUAL_POINTS,
    with_picture: Annotated[
        bool, Query(description="Draw the points too, in the same answer: the journal is followed once for both.")
    ] = False,
) -> Response:
    """Spending over time.

    What was spent, what was held, and the cap, after each journal entry that changed one of them; where these are
    more than points, after every so many of them and after the last. All of it comes from the journal: a reservation
    whose time is over is held until an entry says that it expired. Figures are those that admission compares with
    the cap, in the budget's own definition. With Accept: image/svg+xml or image/png the picture alone. Takes some
    five seconds for a million entries.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        found = accounts.read_account(connection, account)
        body = history_body(connection, found, points)
    kind = pictures.wanted(request)
    if kind is not None:
        return spending_picture(body, kind)
    return ok(body | {"picture": bytes(spending_picture(body, pictures.SVG).body).decode()} if with_picture else body)
