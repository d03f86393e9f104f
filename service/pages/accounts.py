"""Page of accounts, each with the used share of its budget."""

from fastapi import Response

from service.pages.calls import Visit, address, get
from service.pages.layout import page


async def accounts_page(visit: Visit) -> Response:
    """Render a page of accounts."""
    asked = visit.request.query_params
    parent = asked.get("parent")
    query = {"limit": 50, "cursor": asked.get("cursor"), "parent": parent}
    found = await get(visit, address("accounts"), query)
    shown = {"accounts": found["items"], "next_cursor": found["next_cursor"], "parent": parent}
    return page(visit.request, "accounts.html", shown)
