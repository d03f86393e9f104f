"""Route of the releases of all accounts, to search them."""

from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request, Response

from service.api.http.account_cursors import read_place, write_place
from service.api.http.dependencies import CurrentDatabase, in_helpers
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.routes.releases import COLUMNS, Order, ReleasePage, WithPlan, listed
from service.api.schemas.charges import WithCharge
from service.api.schemas.release_searches import Search
from service.ledger.accounts.accounts import read_account
from service.ledger.releases.release_search import search_releases
from service.ledger.storage import clock

router = APIRouter(prefix="/v1/releases", route_class=StrictRoute)


@router.get("", response_model=ReleasePage, responses=AS_TABLE)
@in_helpers
def find_releases(
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    wanted: Search,
    order: Order = "asc",
    with_charge: WithCharge = False,
    with_plan: WithPlan = True,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """Search the releases of all accounts.

    The list has those of all accounts that the key reaches and that match all that is asked for, in the order in which
    the accounts were opened and the releases registered. With order=desc, both are reversed: first the releases of the
    account that was opened last, the newest first. A page looks at no more than 131,072 releases, so it may be empty
    before the list ends, where next_cursor is null.
    """
    now = clock.now()
    shown: list[dict[str, Any]] = []
    with database.read() as connection:
        after, newest_first = read_place(connection, cursor, principal.accounts), order == "desc"
        found = search_releases(
            connection, after, limit, principal.accounts, wanted, now, with_room(take), newest_first=newest_first
        )
        for account, of_account in groupby(found.releases, lambda one: one[0]):
            owner, records = read_account(connection, account), [release for _, release in of_account]
            shown += listed(connection, request, owner, records, now, with_charge=with_charge, with_plan=with_plan)
        last = None if found.last is None else write_place(connection, found.last)
    return answer_list(accept, shown, last, ("account", *COLUMNS))
