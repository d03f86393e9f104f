"""The page that lists accounts, each with the used share of its budget."""

from fastapi import Response

from service.pages.shell.api_client import Visit, address, get
from service.pages.shell.layout import page


async def accounts_page(visit: Visit) -> Response:
    """Render one page of the list of accounts; the query may name a cursor and a parent account."""
    parameters = visit.request.query_params
    parent = parameters.get("parent")
    query = {"limit": 50, "cursor": parameters.get("cursor"), "parent": parent, "with_gauge": "true"}
    accounts = await get(visit, address("accounts"), query)
    shown = {"accounts": accounts["items"], "next_cursor": accounts["next_cursor"], "parent": parent}
    return page(visit.request, "accounts.html", shown)
