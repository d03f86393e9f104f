"""The tables of pages as files: each has the address of its page, or of its part of a page, with ``.csv`` behind it."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from service.errors import NotFound
from service.pages.account import AccountStep
from service.pages.releases import ReleaseStep
from service.pages.shell.api_client import Query, SignedIn, Visit, address
from service.pages.shell.whole_tables import WholeTable

router = APIRouter(include_in_schema=False)

_LARGEST_PAGE = 1000
_OF_ACCOUNT = {"releases": 1000, "journal": 1000, "periods": 1000, "report": 200, "history": None, "shares": None}
"""The tables of an account, with the largest page of each; None: it has no pages."""
_OF_RELEASE = ("draws", "events")
_OF_ALL = ("accounts", "releases", "proposals", "keys", "jobs", "scenarios", "webhooks")


@router.get("/{which}.csv")
async def table(which: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send a list of the whole ledger."""
    if which not in _OF_ALL:
        raise NotFound("table", which)
    return WholeTable(visit, address(which), _asked(visit, _LARGEST_PAGE), f"{which}.csv")


@router.get("/accounts/{account}/{which}.csv")
async def table_of_account(account: AccountStep, which: Annotated[str, Path()], visit: SignedIn) -> Response:
    """Send a list of an account."""
    if which not in _OF_ACCOUNT:
        raise NotFound("table", which)
    query = _asked(visit, _OF_ACCOUNT[which])
    return WholeTable(visit, f"{address('accounts', account)}/{which}", query, f"{account}-{which}.csv")


@router.get("/accounts/{account}/releases/{release}/{which}.csv")
async def table_of_release(
    account: AccountStep, release: ReleaseStep, which: Annotated[str, Path()], visit: SignedIn
) -> Response:
    """Send a list of a release."""
    if which not in _OF_RELEASE:
        raise NotFound("table", which)
    path = f"{address('accounts', account, 'releases', release)}/{which}"
    return WholeTable(visit, path, _asked(visit, _LARGEST_PAGE), f"{which}-{release}.csv")


def _asked(visit: Visit, limit: int | None) -> Query:
    """Return the query, which ``/v1`` checks, with the largest page."""
    parameters = visit.request.query_params
    return {**{name: parameters.getlist(name) for name in parameters}, "limit": limit}
