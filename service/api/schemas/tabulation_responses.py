"""Stored tabulations as answers, for the first answer and all later reads: JSON or Arrow streams."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from service.api.schemas.exact_numbers import LARGEST_INTEGER, Strict
from service.api.schemas.guarantees import HeadBody, head_body
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import DeclaredPartitions, declared_partitions
from service.ledger.draws.stored_draws import DrawRecord
from service.ledger.draws.tabulation_layout import Layout
from service.noise.tabulation import BINS, SIZES, TOTAL_ONLY, USUAL_RULES, DetailRules

Detail = Literal["total", "sex_by_age_4", "sex_by_age_9", "sex_by_age_23"]
DETAILS: tuple[Detail, ...] = ("total", "total", "sex_by_age_4", "sex_by_age_9", "sex_by_age_23")
_PART = 1 << 12  # groups that are written as JSON at a time

_FirstAges = list[Annotated[int, Field(strict=True, ge=0)]]


class AgeBins(Strict):
    """The first age of each bin, ascending from 0; the last bin has no end."""

    sex_by_age_4: Annotated[_FirstAges, Field(min_length=BINS[0], max_length=BINS[0])] = Field(
        default_factory=lambda: list(USUAL_RULES.age_bins[0])
    )
    sex_by_age_9: Annotated[_FirstAges, Field(min_length=BINS[1], max_length=BINS[1])] = Field(
        default_factory=lambda: list(USUAL_RULES.age_bins[1])
    )
    sex_by_age_23: Annotated[_FirstAges, Field(min_length=BINS[2], max_length=BINS[2])] = Field(
        default_factory=lambda: list(USUAL_RULES.age_bins[2])
    )


Threshold = Annotated[int, Field(strict=True, ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Thresholds = Annotated[list[Threshold], Field(min_length=len(BINS), max_length=len(BINS))]


class LevelMechanisms(BaseModel):
    """The noise of a level: of total_only groups, of the deciding total, and of the tables that are then published."""

    total: Mechanism
    step_1: Mechanism
    step_2: Mechanism


class LevelMargins(BaseModel):
    """Margins of error: at most a share 1 - confidence of the counts is off by more. step_2: groups not total_only."""

    confidence: float
    total_only: int
    step_2: int


class GroupBody(BaseModel):
    """A group's noisy counts: its total, or row-major by sex and age bin."""

    group: str
    total_only: bool
    detail: Detail
    noisy: list[int]


class TabulationBody(BaseModel):
    """Noisy counts of groups, in the order of the request; they may be negative."""

    release: str
    draw: str
    level: str
    mechanisms: LevelMechanisms
    declared_partitions: DeclaredPartitions
    groups_per_record: int = Field(
        description="The largest number of groups of the level that contain a record: the caller's promise."
    )
    thresholds: Thresholds
    age_bins: AgeBins
    margin_of_error: LevelMargins
    groups: list[GroupBody]
    head: HeadBody
    created_at: str


def terms_of(
    rules: DetailRules, mechanisms: dict[str, Any], groups_per_record: int, margins: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of an answer beside the groups."""
    return {
        "mechanisms": mechanisms,
        "groups_per_record": groups_per_record,
        "thresholds": list(rules.thresholds),
        "age_bins": {f"sex_by_age_{len(ages)}": list(ages) for ages in rules.age_bins},
        "margin_of_error": margins,
    }


def json_of(record: DrawRecord, layout: Layout) -> Iterator[str]:
    """Yield a tabulation as JSON text, some groups at a time."""
    around = {
        "release": record.release_id,
        "draw": record.id,
        "level": layout.level,
        "declared_partitions": declared_partitions(record.mechanism),
        **layout.terms,
        "head": head_body(record.head),
        "created_at": record.created_at,
    }
    yield json.dumps(around)[:-1] + ', "groups": ['
    ends = ends_of(layout)
    for first in range(0, len(layout.groups), _PART):
        rows: list[dict[str, Any]] = []
        for number in range(first, min(first + _PART, len(layout.groups))):
            detail, end = int(layout.details[number]), int(ends[number])
            noisy = record.noisy[end - SIZES[detail] : end].tolist()
            group = {"group": layout.groups[number], "total_only": detail == TOTAL_ONLY, "detail": DETAILS[detail]}
            rows.append(group | {"noisy": noisy})
        yield (", " if first else "") + json.dumps(rows)[1:-1]
    yield "]}"


def table_of(record: DrawRecord, layout: Layout) -> pa.Table:
    """Return a tabulation as an Arrow table: group, total_only, detail and noisy, a list of int64."""
    details = _details(layout)
    offsets = np.concatenate([[0], ends_of(layout)]).astype(np.int64)
    names = pa.DictionaryArray.from_arrays(np.maximum(details, 1) - 1, pa.array(DETAILS[1:]))
    columns = {
        "group": pa.array(layout.groups, pa.string()),
        "total_only": pa.array(details == TOTAL_ONLY),
        "detail": names.dictionary_decode(),
        "noisy": pa.LargeListArray.from_arrays(offsets, record.noisy),
    }
    terms = json.dumps({"level": layout.level, **layout.terms})
    return pa.table(columns).replace_schema_metadata({"tabulation": terms})


def rows_of(record: DrawRecord, layout: Layout) -> tuple[list[str], Iterator[list[object]]]:
    """Return a tabulation as a table with a row for each noisy count: its columns, and its rows."""
    table = table_of(record, layout)
    rows = (
        [group["group"], group["total_only"], group["detail"], place, noisy]
        for batch in table.to_batches(max_chunksize=1024)
        for group in batch.to_pylist()
        for place, noisy in enumerate(group["noisy"])
    )
    return ["group", "total_only", "detail", "place", "noisy"], rows


def ends_of(layout: Layout) -> NDArray[np.int64]:
    """Return the position in all counts at which each group's counts end."""
    ends: NDArray[np.int64] = np.cumsum(np.take(SIZES, _details(layout)))
    return ends


def _details(layout: Layout) -> NDArray[np.int8]:
    return np.frombuffer(layout.details.encode(), np.int8) - ord("0")
