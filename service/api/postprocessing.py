"""Noisy counts made to meet published totals."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, FailFast, Field

from service.api import examples
from service.api.auth import CurrentPrincipal
from service.api.body import StrictRoute
from service.api.context import in_helpers, ok
from service.api.exact import LARGEST_INTEGER, Strict
from service.postprocess import tables
from service.postprocess.crossing import TOLERANCE
from service.postprocess.tables import MOST_AXES, Total

router = APIRouter(prefix="/v1/postprocessing", route_class=StrictRoute)

MOST_TOTALS = 32

Noisy = Annotated[int, Field(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]
Published = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]
Axis = Annotated[int, Field(strict=True, ge=0, lt=MOST_AXES)]


class PublishedTotals(Strict):
    """Sums that are to be met: over all but the given axes, one for each place along these, in row-major order."""

    axes: Annotated[list[Axis], Field(max_length=MOST_AXES)]
    values: Annotated[list[Published], FailFast(), Field(min_length=1)]


class Table(Strict):
    """Noisy counts in row-major order, and what they are to add up to."""

    counts: Annotated[list[Noisy], FailFast(), Field(min_length=1)]
    shape: Annotated[list[Size], Field(max_length=MOST_AXES)]
    totals: Annotated[list[PublishedTotals], Field(max_length=MOST_TOTALS)] = Field(
        default_factory=list,
        description="Any margins, also such as cross: rows and columns; [] is the whole.",
    )
    integer: Annotated[bool, Field(strict=True)] = Field(
        True,
        description="Whole counts, by controlled rounding that keeps every total; else real numbers, which meet"
        f" crossing totals within a share of {TOLERANCE:g} of them.",
    )


class AdjustedTable(BaseModel):
    """The counts in the order in which they came; none is negative, and the totals are met."""

    counts: list[int] | list[float]


@router.post("/rake", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
@in_helpers
def rake(body: Table, _: CurrentPrincipal) -> Response:
    """Rake noisy counts to published totals.

    Counts of one total keep their proportions; negative ones count as 0, and where none is above 0 all get the same.
    Totals that cross, such as those of rows and of columns, are met by iterative proportional fitting; where the zeros
    leave no such table, by the nearest to the last fit. Whole counts are the floor or the ceiling of these, so that
    every total is met exactly. Totals that contradict each other are refused, as are those of more than two crossing
    hierarchies for which the search finds no whole counts, since there need not be any.
    """
    return ok(_adjusted(tables.rake, body))


@router.post("/project", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
@in_helpers
def project(body: Table, _: CurrentPrincipal) -> Response:
    """Project noisy counts on published totals.

    The nearest counts, by least squares, of those that are not negative and meet the totals; of whole ones the nearest
    whole ones, or, where totals cross, the nearest real ones, each rounded down or up so that every total is met.
    Totals that contradict each other are refused, as are those of more than two crossing hierarchies for which the
    search finds no whole counts, since there need not be any.
    """
    return ok(_adjusted(tables.project, body))


def _adjusted(adjust: Callable[..., list[int] | list[float]], body: Table) -> dict[str, Any]:
    totals = [Total(tuple(one.axes), tuple(one.values)) for one in body.totals]
    return {"counts": adjust(body.counts, body.shape, totals, integer=body.integer)}
