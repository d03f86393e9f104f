"""Route of bottom-up tables: noise on every cell of a full cross-tabulation, and margins as sums of noisy cells."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray
from pydantic import BaseModel, FailFast, Field

from service.api.http.dependencies import AnswerInHelper, Changing, heavy_in_helpers, in_writers, respond
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import require
from service.api.openapi import examples
from service.api.routes.accounts import AccountPath
from service.api.routes.noisy_counts.draws import NewDraw, drawn_mechanism, noisy_counts, register
from service.api.schemas.draw_responses import CONFIDENCE
from service.api.schemas.exact_numbers import Label, Strict
from service.api.schemas.granularity import Count, Counts, count_text, in_units, json_counts, unit_of
from service.api.schemas.guarantees import HeadBody, head_body
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import law_of
from service.errors import Fault, InvalidInput
from service.ledger.draws.stored_draws import DrawRecord
from service.postprocess.published import CrossedTotals, PlaceTotal, TotalBlocks, blocks_of, project, rake
from service.privacy.accuracy.sums import NoiseSum
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.plans.notation import write_plan

router = APIRouter(prefix="/v1/accounts/{account}", route_class=StrictRoute)

MOST_DIMENSIONS = 20
MOST_MARGINS = 100
_MANY = 1 << 13  # counts of margins: fewer are written as JSON in a millisecond


class Dimension(Strict):
    """A variable of the table, with its values in the order of the counts."""

    name: Label
    values: Annotated[list[Label], FailFast(), Field(min_length=1)]


Dimensions = Annotated[list[Dimension], Field(min_length=1, max_length=MOST_DIMENSIONS)]
Margin = Annotated[list[Label], Field(max_length=MOST_DIMENSIONS)]


class PublishedTotal(Strict):
    """A published total: of all cells with these values of a margin's dimensions."""

    margin: Margin = Field(description="The dimensions of the margin. Margins may cross, such as rows and columns.")
    values: Annotated[list[Label], Field(max_length=MOST_DIMENSIONS)] = Field(
        description="A value for each dimension of the margin."
    )
    total: Count


class Histogram(NewDraw):
    """A full cross-tabulation to register and draw, with its margins and published totals."""

    dimensions: Dimensions
    counts: Counts = Field(description="True counts, row-major: the last dimension varies fastest.")
    margins: Annotated[list[Margin], Field(max_length=MOST_MARGINS)] = Field(
        default_factory=list,
        description="The dimensions that each margin keeps, in its order; an empty list is the total.",
    )
    published: Annotated[list[PublishedTotal], FailFast()] = Field(
        default_factory=list,
        description="Totals that the adjusted cells meet, of at most 100 different margins. They are public; a"
        " margin may list only some of its totals.",
    )
    adjust: Literal["none", "rake", "least_squares"] = Field(
        "none",
        description="The method: in the proportions of the noisy cells, or nearest to them. Adjusted cells are whole"
        " units and not negative. Where margins cross, they are the raked or nearest real cells, rounded"
        " so that totals are met.",
    )


class Cells(BaseModel):
    """The cells, row-major: noisy, and adjusted; moe is that of the noise, and adjustment changes the error."""

    noisy: list[int | str]
    adjusted: list[int | str] | None
    moe: int | str


class MarginTable(BaseModel):
    """Sums of cells, row-major over these dimensions; moe is exact for the noise of so many noisy cells."""

    dimensions: list[str]
    noisy: list[int | str]
    adjusted: list[int | str] | None
    moe: int | str


class HistogramBody(BaseModel):
    """A noisy table; at most a share 1 - confidence of its counts is further from the truth than their moe."""

    release: str
    draw: str
    mechanism: Mechanism
    confidence: float
    cells: Cells
    margins: list[MarginTable]
    head: HeadBody
    created_at: str


@dataclass(frozen=True)
class Table:
    """The layout of a table, known before it is drawn.

    Attributes:
        margins: the axes that each margin keeps.
        moes: margins of error of sums of so many cells, in units.
        blocks: the published totals that adjusted cells meet; None without adjustment.
    """

    shape: tuple[int, ...]
    margins: list[tuple[int, ...]]
    moes: dict[int, int]
    blocks: TotalBlocks | CrossedTotals | None

    def cells_of(self, axes: Sequence[int]) -> int:
        """Return the number of cells that are added up for each count of a margin."""
        return math.prod(self.shape) // math.prod(self.shape[axis] for axis in axes)


@router.post(
    "/histograms", status_code=201, response_model=HistogramBody, openapi_extra=examples.body(examples.HISTOGRAM)
)
@heavy_in_helpers
@in_writers
def draw_histogram(account: AccountPath, body: Histogram, change: Changing) -> Response:
    """Register a mechanism and draw a full cross-tabulation with it, bottom-up.

    The operation makes one release and one draw, with noise on every cell; a record is in one cell. Margins are sums of
    noisy cells and cost nothing more. Each has the exact margin of error of a sum of so many cells.

    Published totals are met afterwards, by raking or by least squares, exactly and without negative cells. Totals that
    contradict each other, or for which no whole cells are found, are refused before anything is charged. Totals of at
    most two hierarchies always have whole cells if they have any. Only the noisy cells are stored; a replay derives the
    rest from them. As many cells are admitted at once as counts of a draw.
    """
    require(change.principal, "pipeline", account)
    # However few the cells are, a search for whole ones may take long, and any margin may have as many counts as cells.
    long = body.adjust != "none" or len(body.margins) * len(body.counts) > _MANY
    if long and change.elsewhere is not None:
        raise AnswerInHelper
    table = _table(body)
    drawn = register(account, body, change, noisy_counts(body.counts), len(body.counts), "/counts")
    return respond(replace(drawn.answer, body=json.dumps(_body(drawn.record, body, table))))


def _table(body: Histogram) -> Table:
    """Check the request and return the table's layout, before anything is charged.

    Raises:
        InvalidInput: names are repeated or unknown, or the number of counts is not the number of cells.
    """
    names = [dimension.name for dimension in body.dimensions]
    faults = [
        Fault(f"/dimensions/{number}/name", "expected each name only once")
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    faults += [
        Fault(f"/dimensions/{number}/values", "expected each value only once")
        for number, dimension in enumerate(body.dimensions)
        if len(set(dimension.values)) < len(dimension.values)
    ]
    faults += [
        Fault(f"/margins/{number}", "expected names of dimensions, each once")
        for number, margin in enumerate(body.margins)
        if len(set(margin)) < len(margin) or not set(margin) <= set(names)
    ]
    shape = tuple(len(dimension.values) for dimension in body.dimensions)
    if len(body.counts) != math.prod(shape):
        faults.append(
            Fault("/counts", f"expected {math.prod(shape)} counts, one for each cell; got {len(body.counts)}")
        )
    if body.published and body.adjust == "none":
        faults.append(Fault("/adjust", "expected rake or least_squares, since there are published totals to meet"))
    if faults:
        raise InvalidInput(faults)
    _, mechanism = drawn_mechanism(body)
    if mechanism.threshold is not None:
        detail = "expected none: all cells of a table are published, and its margins and totals add up all of them"
        raise InvalidInput.at("/mechanism/threshold", detail)
    law = law_of(mechanism, "/mechanism")
    blocks = None if body.adjust == "none" else blocks_of(shape, _published(body, unit_of(mechanism)))
    table = Table(shape, [tuple(map(names.index, margin)) for margin in body.margins], {}, blocks)
    for cells in {1, *map(table.cells_of, table.margins)}:
        table.moes[cells] = _margin_of_error(law, cells)
    return table


def _published(body: Histogram, unit: Fraction) -> list[PlaceTotal]:
    places = {
        dimension.name: (axis, {value: place for place, value in enumerate(dimension.values)})
        for axis, dimension in enumerate(body.dimensions)
    }
    if len({frozenset(one.margin) for one in body.published}) > MOST_MARGINS:
        raise InvalidInput.at("/published", f"expected totals of at most {MOST_MARGINS} different margins")
    totals: list[PlaceTotal] = []
    for number, one in enumerate(body.published):
        at = f"/published/{number}"
        if len(set(one.margin)) < len(one.margin) or not set(one.margin) <= places.keys():
            raise InvalidInput.at(f"{at}/margin", "expected names of dimensions, each once")
        if len(one.values) != len(one.margin):
            raise InvalidInput.at(f"{at}/values", "expected a value for each dimension of the margin")
        along: dict[int, int] = {}
        for step, (name, value) in enumerate(zip(one.margin, one.values, strict=True)):
            axis, known = places[name]
            if value not in known:
                raise InvalidInput.at(f"{at}/values/{step}", "expected a value of the dimension")
            along[axis] = known[value]
        axes = tuple(sorted(along))
        total = in_units(one.total, unit, f"{at}/total")
        totals.append(PlaceTotal(axes, tuple(along[axis] for axis in axes), total))
    return totals


def _margin_of_error(law: NoiseLaw, cells: int) -> int:
    try:
        margin, _ = NoiseSum.of(law, cells, 1 - CONFIDENCE).margin(CONFIDENCE)
    except ValueError as error:
        raise InvalidInput.at("/mechanism", str(error)) from None
    return margin


def _body(record: DrawRecord, body: Histogram, table: Table) -> dict[str, Any]:
    unit = unit_of(record.mechanism)
    noisy = record.noisy.reshape(table.shape)
    adjusted = None
    if table.blocks is not None:
        adjust = rake if body.adjust == "rake" else project
        adjusted = adjust(record.noisy, table.blocks).reshape(table.shape)

    def sums(cells: NDArray[np.int64] | None, axes: Sequence[int]) -> Sequence[int | str] | None:
        return None if cells is None else json_counts(added_up(cells, axes), unit)

    every = range(len(table.shape))
    return {
        "release": record.release_id,
        "draw": record.id,
        "mechanism": write_plan(record.mechanism),
        "confidence": float(CONFIDENCE),
        "cells": {
            "noisy": sums(noisy, every),
            "adjusted": sums(adjusted, every),
            "moe": count_text(table.moes[1], unit),
        },
        "margins": [
            {
                "dimensions": names,
                "noisy": sums(noisy, axes),
                "adjusted": sums(adjusted, axes),
                "moe": count_text(table.moes[table.cells_of(axes)], unit),
            }
            for names, axes in zip(body.margins, table.margins, strict=True)
        ],
        "head": head_body(record.head),
        "created_at": record.created_at,
    }


def added_up(cells: NDArray[np.int64], axes: Sequence[int]) -> list[int]:
    """Return the cells added up over all other axes, row-major over these in their order; exact, however large."""
    largest = max(abs(int(cells.min())), abs(int(cells.max())))
    exact: NDArray[Any] = cells if largest * cells.size < 2**63 else cells.astype(object)
    others = tuple(axis for axis in range(cells.ndim) if axis not in axes)
    sums = exact.sum(axis=others, keepdims=True).transpose(*axes, *others)
    counts: list[int] = sums.ravel().tolist()
    return counts
