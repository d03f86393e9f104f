"""Route of the shares of an account's spent loss."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.charts import pictures
from service.api.charts.share_figures import shares_picture
from service.api.http import csv_answers
from service.api.http.accepted_types import prefers
from service.api.http.dependencies import CurrentDatabase, in_helpers, ok
from service.api.http.list_answers import table_answer
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.schemas.shares import SharesBody, shares_body
from service.errors import Conflict
from service.ledger.accounts import accounts
from service.ledger.spending.shares import By, shares_of

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)

_COLUMNS = ("by", "part", "names", "allotted", "number", "spent", "spent_exact", "share")


@router.get(
    "/{account}/shares",
    response_model=SharesBody,
    responses=pictures.responses("The shares; or a picture, as SVG or PNG; or a table.", csv_answers.ANSWER),
)
@in_helpers
def read_shares(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    by: Annotated[By, Query(description="What the loss is divided among.", examples=["tag"])] = "account",
    with_picture: Annotated[bool, Query(description="Include a picture of the shares in the answer.")] = False,
) -> Response:
    """Read how the spent loss divides.

    Among the accounts directly under the account and its own releases; among tags; or among types of mechanisms, of the
    account and of those under it. Figures are in the budget's own definition. Each part of a plan is in one share, so
    shares add up, except those of an (epsilon, delta) budget. A part of a plan with two tags is in the share of both
    together. The 20 greatest are stated, the others together; of more than 200 accounts under it, those with the most
    releases are looked at. Losses are those of the plans at present, and what is held is left out.

    With Accept: image/svg+xml or image/png the answer is only the picture, and with text/csv only the table. An account
    with periods has no shares (409): what its windows spent is in its periods.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        if record.periods is not None:
            raise Conflict(f"the account {account!r} has periods; its losses are those of windows, at /periods")
        body = shares_body(record, by, shares_of(connection, record, by))
    kind = pictures.wanted_type(request)
    if kind is not None:
        return shares_picture(body, kind)
    if prefers(request.headers.get("accept", ""), csv_answers.MEDIA_TYPE):
        return table_answer(_COLUMNS, _lines(body), None)
    return ok(body | {"picture": bytes(shares_picture(body, pictures.SVG).body).decode()} if with_picture else body)


def _lines(body: dict[str, Any]) -> list[dict[str, Any]]:
    rest = [] if body["rest"] is None else [{"part": "rest"} | body["rest"]]
    whole = {"part": "whole", "spent": body["spent"], "spent_exact": body["spent_exact"]}
    lines = [*({"part": "part"} | part for part in body["parts"]), *rest, whole]
    return [line | {"by": body["by"]} for line in lines]
