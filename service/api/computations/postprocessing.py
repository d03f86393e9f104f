"""Routes that make noisy counts meet published totals."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, FailFast, Field

from service.api.http.dependencies import in_helpers, ok
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal
from service.api.openapi import examples
from service.api.schemas.exact_numbers import LARGEST_INTEGER, Strict
from service.postprocess import tables
from service.postprocess.crossing import TOLERANCE
from service.postprocess.tables import MOST_AXES, MarginTotal

router = APIRouter(prefix="/v1/postprocessing", route_class=StrictRoute)

MOST_TOTALS = 32

Noisy = Annotated[int, Field(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST_INTEGER)]
Published = Annotated[int, Field(strict=True, ge=0, le=LARGEST_INTEGER)]
Axis = Annotated[int, Field(strict=True, ge=0, lt=MOST_AXES)]


class PublishedTotals(Strict):
    """Totals to meet: sums over all but the given axes, in row-major order along these."""

    axes: Annotated[list[Axis], Field(max_length=MOST_AXES)]
    values: Annotated[list[Published], FailFast(), Field(min_length=1)]


class Table(Strict):
    """Noisy counts in row-major order, and the totals that they are to meet."""

    counts: Annotated[list[Noisy], FailFast(), Field(min_length=1)]
    shape: Annotated[list[Size], Field(max_length=MOST_AXES)]
    totals: Annotated[list[PublishedTotals], Field(max_length=MOST_TOTALS)] = Field(
        default_factory=list,
        description="Any margins; they may cross, such as rows and columns. [] is the grand total.",
    )
    integer: Annotated[bool, Field(strict=True)] = Field(
        True,
        description="true: whole counts, by controlled rounding that keeps every total. false: real numbers, which"
        f" meet crossing totals up to a relative error of {TOLERANCE:g}.",
    )


class AdjustedTable(BaseModel):
    """The adjusted counts, in the order of the request; none is negative, and the totals are met."""

    counts: list[int] | list[float]


@router.post("/rake", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
@in_helpers
def rake(body: Table, _: CurrentPrincipal) -> Response:
    """Rake noisy counts to published totals.

    Counts of one total keep their proportions. Negative counts become 0; where no count is above 0, all get the same
    value. Crossing totals, such as those of rows and of columns, are met by iterative proportional fitting. Where the
    zeros leave no such table, the answer is the nearest one to the last fit. Whole counts are the floor or the ceiling
    of these, so every total is met exactly.

    Totals that contradict each other are refused. Totals of more than two crossing hierarchies are also refused where
    the search finds no whole counts, since there need not be any.
    """
    return ok(_adjusted(tables.rake, body))


@router.post("/project", response_model=AdjustedTable, openapi_extra=examples.body(examples.TABLE))
@in_helpers
def project(body: Table, _: CurrentPrincipal) -> Response:
    """Project noisy counts on published totals.

    The answer has the nearest counts, by least squares, of those that are not negative and meet the totals. Whole
    counts are the nearest whole ones; where totals cross, they are the nearest real ones, each rounded down or up so
    that every total is met.

    Totals that contradict each other are refused. Totals of more than two crossing hierarchies are also refused where
    the search finds no whole counts, since there need not be any.
    """
    return ok(_adjusted(tables.project, body))


def _adjusted(adjust: Callable[..., list[int] | list[float]], body: Table) -> dict[str, Any]:
    totals = [MarginTotal(tuple(one.axes), tuple(one.values)) for one in body.totals]
    return {"counts": adjust(body.counts, body.shape, totals, integer=body.integer)}
