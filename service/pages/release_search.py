"""The search of releases, as the fields of its form and as the query of ``/v1``; and its page over all accounts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Response

from service.pages.days import beginning_of, end_of
from service.pages.shell.api_client import WITHOUT_PLAN, Query, Refused, SignedIn, Visit, address, get
from service.pages.shell.layout import page

router = APIRouter(include_in_schema=False)

_ROWS = 50
BRIEFLY: Query = {"with_charge": "true"} | WITHOUT_PLAN
"""The charges of listed releases, and no plans."""

# Visitors state the last day, which the search includes; ``/v1`` takes the moment before which a release is found.
_DAYS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "since": ("since", beginning_of),
    "until": ("before", end_of),
}
_FIELDS = ("tag", "name", "registered_by", "approved_by", *_DAYS)
_ORDERS = [("desc", "newest first"), ("asc", "oldest first")]
_STATES = [
    ("proposed", "proposed"),
    ("reserved", "reserved"),
    ("committed", "committed"),
    ("voided", "voided or rejected"),
    ("expired", "expired"),
]


class ReleaseSearch(NamedTuple):
    """The fields of a search of releases, and its query.

    Attributes:
        asked: the fields as they were typed; empty where nothing is asked for.
        query: the same as ``/v1`` expects it, without empty fields.
    """

    asked: Mapping[str, str]
    query: Mapping[str, str]

    def faults_in(self, refused: Refused) -> dict[str, str]:
        """Return the faults of a refused search by field.

        Raises:
            Refused: the refusal has another reason.
        """
        fields = {of_query: name for name, (of_query, _) in _DAYS.items()}
        return {fields.get(name, name): fault for name, fault in refused.faults_of_query(self.query).items()}


def read_search(visit: Visit, *more: str) -> ReleaseSearch:
    """Return the search in a page's address, with the fields ``more`` beside those of every search."""
    parameters = visit.request.query_params
    asked = {name: parameters.get(name, "").strip() for name in (*more, *_FIELDS)}
    query = {name: text for name, text in asked.items() if text and name not in _DAYS}
    for name, (of_query, moment_of) in _DAYS.items():
        if asked[name]:
            try:
                query[of_query] = moment_of(asked[name])
            except ValueError:
                query[of_query] = asked[name]  # ``/v1`` refuses it
    return ReleaseSearch(asked, query)


@router.get("/releases")
async def show_found(visit: SignedIn) -> Response:
    """Render the releases of all accounts that match a search."""
    found = await search(visit, address("releases"))
    return page(visit.request, "found-releases.html", found, status=422 if found["faults"] else 200)


async def search(visit: Visit, path: str) -> dict[str, Any]:
    """Return a page of a list of releases for its template; none, and the faults by field, if a field is wrong."""
    wanted = read_search(visit, "state")
    order = visit.request.query_params.get("order", "").strip() or _ORDERS[0][0]
    asked: Query = {**BRIEFLY, **wanted.query, "order": order}
    releases: dict[str, Any] = {"items": [], "next_cursor": None}
    faults: dict[str, str] = {}
    try:
        releases = await get(visit, path, {**asked, "limit": _ROWS, "cursor": visit.request.query_params.get("cursor")})
    except Refused as refused:
        faults = wanted.faults_in(refused)
    if not faults and wanted.asked["until"] and wanted.asked["until"] < wanted.asked["since"]:  # days, as ISO 8601
        faults = {"until": "expected a day that is not before the first one"}
    return {
        "releases": releases["items"],
        "next_cursor": releases["next_cursor"],
        "table_query": asked,
        "states": _STATES,
        "asked": wanted.asked,
        "orders": _ORDERS,
        "order": order,
        "more": urlencode({name: text for name, text in wanted.asked.items() if text} | {"order": order}),
        "faults": faults,
    }
