"""The first page: what waits for the signed-in person, and the accounts with the used share of each budget."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from service.pages.shell.api_client import Visit, address, get
from service.pages.shell.approval_texts import may_approve
from service.pages.shell.layout import may, page

_WAITING = 20


async def accounts_page(visit: Visit) -> Response:
    """Render one page of the list of accounts; the query may name a cursor and a parent account."""
    parameters = visit.request.query_params
    parent, cursor = parameters.get("parent"), parameters.get("cursor")
    query = {"limit": 50, "cursor": cursor, "parent": parent, "with_gauge": "true"}
    decides = may(visit.session.role, "approver") and not parent and not cursor
    accounts, waiting = await asyncio.gather(get(visit, address("accounts"), query), _waiting(visit, decides=decides))
    shown = {"accounts": accounts["items"], "next_cursor": accounts["next_cursor"], "parent": parent}
    return page(visit.request, "accounts.html", shown | waiting)


async def _waiting(visit: Visit, *, decides: bool) -> dict[str, Any]:
    """Return the proposals that the signed-in person may approve; nothing on other pages."""
    if not decides:
        return {"proposals": [], "changes": [], "more_waiting": False}
    releases, changed = await asyncio.gather(
        get(visit, address("proposals"), {"limit": _WAITING}),
        get(visit, address("accounts"), {"waiting": "true", "limit": _WAITING}),
    )
    own = visit.session.name
    return {
        "proposals": [one for one in releases["items"] if may_approve(one.get("approval"), own, one["proposed_by"])],
        "changes": [one for one in changed["items"] if _may_approve(one["proposed_change"], own)],
        "more_waiting": bool(releases["next_cursor"] or changed["next_cursor"]),
    }


def _may_approve(proposed: Mapping[str, Any], own: str) -> bool:
    return may_approve(proposed.get("approval"), own, proposed["proposed_by"])
