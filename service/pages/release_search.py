"""The search of an account's releases, as the fields of its form and as the query of ``/v1``."""

from collections.abc import Mapping
from typing import NamedTuple

from service.pages.shell.api_client import Visit

_DAYS = ("since", "before")
FIELDS = ("tag", "name", "registered_by", *_DAYS)


class ReleaseSearch(NamedTuple):
    """The fields of a search of releases, and its query.

    Attributes:
        asked: the fields as they were typed; empty where nothing is asked for.
        query: the same as ``/v1`` expects it, without empty fields.
    """

    asked: Mapping[str, str]
    query: Mapping[str, str]


def read_search(visit: Visit, *more: str) -> ReleaseSearch:
    """Return the search in a page's address, with the fields ``more`` beside those of every search."""
    parameters = visit.request.query_params
    asked = {name: parameters.get(name, "").strip() for name in (*more, *FIELDS)}
    days = {name: f"{asked[name]}T00:00:00Z" for name in _DAYS if asked[name]}
    return ReleaseSearch(asked, {name: text for name, text in asked.items() if text} | days)
