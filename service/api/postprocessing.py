"""Noisy counts made to meet published totals."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, FailFast, Field

from service import postprocess
from service.api import examples
from service.api.auth import CurrentPrincipal
from service.api.body import StrictRoute
from service.api.context import ok
from service.api.exact import LARGEST_INTEGER, Strict
from service.postprocess import MOST_AXES, Total

router = APIRouter(prefix="/v1/postprocessing", tags=["computations"], route_class=StrictRoute)

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
        description="Of any two, the axes of one include those of the other, as in a hierarchy; [] is the whole.",
    )
    integer: Annotated[bool, Field(strict=True)] = Field(
        True, description="Whole counts, by controlled rounding that keeps every total; else real numbers."
    )


class AdjustedTable(BaseModel):
    """The counts in the order in which they came; none is negative, and the totals are met."""

    counts: list[int] | list[float]


@router.post("/rake", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
def rake(body: Table, _: CurrentPrincipal) -> Response:
    """Rake noisy counts to published totals.

    Counts of one total keep their proportions; negative ones count as 0, and where none is above 0 all get the same.
    Whole counts are the floor or the ceiling of these, so that every total is met exactly. Totals that contradict each
    other are refused.
    """
    return ok(_adjusted(postprocess.rake, body))


@router.post("/project", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
def project(body: Table, _: CurrentPrincipal) -> Response:
    """Project noisy counts on published totals.

    The nearest counts, by least squares, of those that are not negative and meet the totals; of whole ones the nearest
    whole ones. Totals that contradict each other are refused.
    """
    return ok(_adjusted(postprocess.project, body))


def _adjusted(adjust: Callable[..., list[int] | list[float]], body: Table) -> dict[str, Any]:
    totals = [Total(tuple(one.axes), tuple(one.values)) for one in body.totals]
    return {"counts": adjust(body.counts, body.shape, totals, integer=body.integer)}
