"""The search of releases as parameters of a query, which lists and accuracy statements take."""

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Query

from service.api.schemas.exact_numbers import Label
from service.api.schemas.moments import MomentInQuery
from service.ledger.releases.releases import Wanted
from service.ledger.releases.reservation_rows import State
from service.ledger.storage import clock


async def _family(  # async, as FastAPI would give it a thread otherwise
    tag: Annotated[
        Label | None, Query(description="Only releases that carry this tag, on themselves or on a node.")
    ] = None,
    name: Annotated[
        Label | None, Query(description="Only releases whose name contains this, whatever the case of ASCII letters.")
    ] = None,
    registered_by: Annotated[Label | None, Query(description="Only releases that this principal registered.")] = None,
    approved_by: Annotated[
        Label | None,
        Query(description="Only releases that this principal approved, by itself or as one of several."),
    ] = None,
    since: Annotated[
        MomentInQuery | None,
        Query(description="Only releases registered at this moment, or on this day in UTC, or later."),
    ] = None,
    before: Annotated[
        MomentInQuery | None,
        Query(description="Only releases registered earlier than this moment, or than this day in UTC."),
    ] = None,
) -> Wanted:
    since_text, before_text = (None if moment is None else clock.stamp(moment) for moment in (since, before))
    return Wanted(tag, "committed", name, registered_by, since_text, before_text, approved_by)


Family = Annotated[Wanted, Depends(_family)]
"""Committed releases that match all that is asked for."""


async def _search(
    family: Family,
    state: Annotated[State | None, Query(description="Only releases in this state.")] = None,
) -> Wanted:
    return replace(family, state=state)


Search = Annotated[Wanted, Depends(_search)]
"""Releases that match all that is asked for."""
