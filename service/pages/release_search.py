"""The search of an account's releases, as the fields of its form and as the query of ``/v1``."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from service.pages.days import beginning_of, end_of
from service.pages.shell.api_client import Refused, Visit

# Visitors state the last day, which the search includes; ``/v1`` takes the moment before which a release is found.
_DAYS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "since": ("since", beginning_of),
    "until": ("before", end_of),
}
_FIELDS = ("tag", "name", "registered_by", *_DAYS)


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
