"""The first page: what waits for the signed-in person, and the tree of accounts, which can be searched and sorted."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Response

from service.ledger.storage import clock
from service.pages.shell.api_client import Query, Refused, Visit, address, get
from service.pages.shell.approval_texts import is_asked
from service.pages.shell.layout import page

_ROOT = Path(__file__).resolve().parents[2]
_WITHIN = Path(sys.executable).is_relative_to(_ROOT)
_PYTHON = str(Path(sys.executable).relative_to(_ROOT)) if _WITHIN else "python"
"""The Python of this service, as a command in its folder states it."""
_WAITING = 50
_OLDEST, _DECIDED = timedelta(90), timedelta(30)
"""The time for which a proposal is shown to its proposer after it was made, and after it was approved or rejected."""
_ROWS = 50
_SEARCH = ("name", "state", "parent", "sort")
_STATES = [("", "any"), ("open", "open"), ("closed", "closed")]
_SORTS = {"": "name", "used": "most used", "left": "least left", "changed": "last change"}


class Row(NamedTuple):
    """An account of the tree; ``found`` says that the list has it, and not only accounts under it."""

    account: Mapping[str, Any]
    depth: int
    found: bool


async def accounts_page(visit: Visit) -> Response:
    """Render one page of the tree of accounts; the query may search, sort, and name a cursor."""
    parameters = visit.request.query_params
    asked = {name: parameters.get(name, "").strip() for name in _SEARCH}
    cursor = parameters.get("cursor")
    wanted = {name: text for name, text in asked.items() if text} | {"with_gauge": "true"}
    query = {**wanted, "with_above": "true", "limit": _ROWS, "cursor": cursor}
    first = visit.session.role != "auditor" and len(wanted) == 1 and not cursor
    (accounts, faults), waiting = await asyncio.gather(_search(visit, query), _waiting(visit, shown=first))
    shown = {
        "rows": tree_of(accounts["items"], accounts["above"]),
        "next_cursor": accounts["next_cursor"],
        "asked": asked,
        "searched": any(asked[name] for name in ("name", "state", "parent")),
        "states": _STATES,
        "sorts": list(_SORTS.items()),
        "sorted_by": {sort: "/?" + _written(asked | {"sort": sort}) for sort in _SORTS},
        "more": _written(asked),
        "table_query": wanted,
        "faults": faults,
        "python": _PYTHON,
    }
    return page(visit.request, "accounts.html", shown | waiting, status=422 if faults else 200)


def _written(asked: Mapping[str, str]) -> str:
    return urlencode({name: text for name, text in asked.items() if text})


def tree_of(items: Sequence[Mapping[str, Any]], above: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return accounts as a tree: each behind the one that it is under, the first found first.

    Args:
        items: what a list has, in its order.
        above: the accounts above these, as far as the reader may see them.
    """
    by_name = {one["name"]: one for one in (*above, *items)}
    found = {one["name"] for one in items}
    below: dict[str | None, list[str]] = {}
    placed: set[str] = set()
    for one in items:
        name: str | None = one["name"]
        while name is not None and name not in placed:
            placed.add(name)
            parent = by_name[name]["parent"]
            parent = parent if parent in by_name else None
            below.setdefault(parent, []).append(name)
            name = parent

    def rows_under(parent: str | None, depth: int) -> Iterator[Row]:
        for name in below.get(parent, ()):
            yield Row(by_name[name], depth, name in found)
            yield from rows_under(name, depth + 1)

    return list(rows_under(None, 0))


async def _search(visit: Visit, query: Query) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the accounts that were found; none, and the faults by field, if a field of the search is wrong."""
    try:
        return await get(visit, address("accounts"), query), {}
    except Refused as refused:
        return {"items": [], "above": [], "next_cursor": None}, refused.faults_of_query(_SEARCH)


async def _waiting(visit: Visit, *, shown: bool) -> dict[str, Any]:
    """Return the proposals that the signed-in person is asked to approve, and those that they made.

    Other pages of the list have none.
    """
    own = visit.session.name
    query: dict[str, str | int] = {"limit": _WAITING, "with_charge": "true", "with_obstacle": "true"}
    now = clock.now()
    earlier = query | {"proposed_by": own, "since": clock.later(now, -_OLDEST)}
    lists: list[tuple[str, Query]] = [
        ("proposals", query),
        ("accounts", {"waiting": "true", "limit": _WAITING, "with_obstacle": "true"}),
        ("proposals", query | {"proposed_by": own}),
        ("proposals", earlier | {"state": "approved"}),
        ("proposals", earlier | {"state": "rejected"}),
    ]
    found: list[Any] = [{"items": (), "next_cursor": None}] * len(lists)
    if shown:
        found = await asyncio.gather(*(get(visit, address(name), asked) for name, asked in lists))
    releases, changed, own_releases, approved, rejected = found
    changes = [(one, one["proposed_change"]) for one in changed["items"]]
    fresh = clock.later(now, -_DECIDED)
    return {
        "proposals": [one for one in releases["items"] if is_asked(one, own)],
        "changes": [one for one, change in changes if is_asked(change, own)],
        "own_proposals": own_releases["items"],
        "own_changes": [one for one, change in changes if change["proposed_by"] == own],
        "approved": [
            one for one in approved["items"] if not one["approved"]["drawn"] and one["approved"]["at"] >= fresh
        ],
        "rejected": [one for one in rejected["items"] if one["rejected"]["at"] >= fresh],
        "more_own": own_releases["next_cursor"] or approved["next_cursor"] or rejected["next_cursor"],
        "more_waiting": bool(releases["next_cursor"] or changed["next_cursor"]),
    }
