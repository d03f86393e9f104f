"""The accounts, each with how much of its budget is spent."""

from fastapi import Response

from service.pages.calls import Visit, address, get
from service.pages.layout import page


async def accounts_page(visit: Visit) -> Response:
    """A page of accounts."""
    cursor = visit.request.query_params.get("cursor")
    found = await get(visit, address("accounts"), {"limit": 50, "cursor": cursor})
    return page(visit.request, "accounts.html", {"accounts": found["items"], "next_cursor": found["next_cursor"]})
