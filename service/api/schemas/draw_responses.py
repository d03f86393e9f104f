"""Stored draws as answers, for the first answer and all later reads: JSON or Arrow streams."""

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from pydantic import BaseModel, Field

from service.api.arrow import streams
from service.api.http import csv_answers
from service.api.schemas import tabulation_responses
from service.api.schemas.granularity import count_text, json_counts, unit_of
from service.api.schemas.guarantees import HeadBody, head_body
from service.api.schemas.plan_models import Mechanism
from service.api.schemas.plans import DeclaredPartitions, declared_partitions, law_of
from service.api.schemas.tabulation_responses import TabulationBody
from service.ledger.draws.stored_draws import DrawOutline, DrawRecord
from service.privacy.accuracy.tails import margin_of_error
from service.privacy.mechanisms import Mechanism as MechanismValue
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.notation import write_plan

CONFIDENCE = Fraction(95, 100)
_KEY = "key"
_PART = 1 << 13  # counts that are written at a time, in a millisecond: the serving process writes long ones too


class MarginOfError(BaseModel):
    """Margin of error: at most a share 1 - confidence of the counts is further from the truth than moe.

    With a threshold it holds for all counts before suppression, and not for published counts given that they reach it.
    """

    confidence: float
    moe: int | str


class DrawBody(BaseModel):
    """Noisy counts, in the order of the true counts; with a granularity, texts of exact numbers."""

    release: str
    draw: str
    mechanism: Mechanism
    partition: str | None
    declared_partitions: DeclaredPartitions
    repetition: int
    keys: list[str] | None = Field(
        None, description="Where the mechanism has a threshold: the keys of the noisy counts, in order."
    )
    noisy: list[int | str]
    margin_of_error: MarginOfError
    head: HeadBody
    created_at: str


class SelectionBody(BaseModel):
    """The candidate that a mechanism selected."""

    release: str
    draw: str
    mechanism: Mechanism
    partition: str | None
    declared_partitions: DeclaredPartitions
    repetition: int
    selected: int = Field(description="The place of the candidate among the scores, from 0.")
    head: HeadBody
    created_at: str


class DrawOutlineBody(BaseModel):
    """A draw without its noisy counts; for a tabulation with its level, and with the margin of its step 2."""

    release: str
    draw: str
    mechanism: Mechanism
    level: str | None
    partition: str | None
    declared_partitions: DeclaredPartitions
    repetition: int
    size: int = Field(description="The number of noisy counts.")
    margin_of_error: MarginOfError | None = Field(description="Null for a selection.")
    head: HeadBody
    created_at: str
    noisy_removed_at: str | None = Field(
        description="The time at which they were removed, where they are no longer kept."
    )


class DrawPage(BaseModel):
    """A page of draws; it ends early at a million counts."""

    items: list[DrawBody | TabulationBody | SelectionBody | DrawOutlineBody]
    next_cursor: str | None


def outline_body(outline: DrawOutline) -> dict[str, Any]:
    """Return a draw without its noisy counts, as JSON."""
    if outline.layout is not None:
        margin = outline.layout.terms["margin_of_error"]["step_2"]
    elif outline.mechanism.score_rate() is None:
        margin = count_text(margin_of(outline.mechanism), unit_of(outline.mechanism))
    else:
        margin = None
    return {
        "release": outline.release_id,
        "draw": outline.id,
        "mechanism": write_plan(outline.mechanism),
        "level": None if outline.layout is None else outline.layout.level,
        "partition": outline.turn.partition or None,
        "declared_partitions": declared_partitions(outline.mechanism),
        "repetition": outline.turn.repetition,
        "size": outline.size,
        "margin_of_error": None if margin is None else {"confidence": float(CONFIDENCE), "moe": margin},
        "head": head_body(outline.head),
        "created_at": outline.created_at,
        "noisy_removed_at": outline.noisy_removed_at,
    }


def margin_of(mechanism: MechanismValue) -> int:
    """Return the margin of error of a mechanism's noisy counts, in units of its granularity."""
    return margin_of_error(law_of(mechanism, "/mechanism"), CONFIDENCE)


def stream_of(record: DrawRecord) -> Iterator[bytes]:
    """Yield a stored draw as an Arrow stream."""
    if record.layout is not None:
        return streams.of_table(tabulation_responses.table_of(record, record.layout))
    if record.keys is not None:
        return streams.of_table(pa.table({_KEY: pa.array(record.keys, pa.string()), "noisy": pa.array(record.noisy)}))
    return streams.only_noisy(record.noisy)


def csv_of(record: DrawRecord) -> Iterator[str]:
    """Yield a stored draw as CSV: a line for each noisy count."""
    if record.layout is not None:
        yield from csv_answers.written(*tabulation_responses.rows_of(record, record.layout))
        return
    unit = unit_of(record.mechanism)
    parts = (record.noisy[start : start + _PART].tolist() for start in range(0, record.noisy.size, _PART))
    counts = (count for part in parts for count in json_counts(part, unit))
    if record.keys is None:
        yield from csv_answers.written(["noisy"], ([count] for count in counts))
    else:
        yield from csv_answers.written([_KEY, "noisy"], map(list, zip(record.keys, counts, strict=True)))


def identity_of(record: DrawRecord) -> dict[str, str]:
    """Return the headers that identify a stream or a table; with a granularity, a stream counts units of it."""
    unit = unit_of(record.mechanism)
    return {
        "X-Release": record.release_id,
        "X-Draw": record.id,
        "X-Ledger-Head": f"{record.head.seq}:{record.head.hash}",
        **({} if unit == 1 else {"X-Granularity": exact_text(unit)}),
    }


def page_of(drawn: Sequence[DrawRecord | DrawOutline], cursor: str | None) -> Iterator[str]:
    """Yield a page of draws as JSON text."""
    yield '{"items": ['
    for number, record in enumerate(drawn):
        yield ", " if number else ""
        yield from json_of(record) if isinstance(record, DrawRecord) else (json.dumps(outline_body(record)),)
    yield f'], "next_cursor": {json.dumps(cursor)}}}'


def json_of(record: DrawRecord) -> Iterator[str]:
    """Yield a draw as JSON text, some counts at a time: as text and integers they take many times the memory."""
    if record.layout is not None:
        yield from tabulation_responses.json_of(record, record.layout)
        return
    around: dict[str, Any] = {
        "release": record.release_id,
        "draw": record.id,
        "mechanism": write_plan(record.mechanism),
        "partition": record.turn.partition or None,
        "declared_partitions": declared_partitions(record.mechanism),
        "repetition": record.turn.repetition,
        "head": head_body(record.head),
        "created_at": record.created_at,
    }
    if record.mechanism.score_rate() is not None:
        yield json.dumps(around | {"selected": int(record.noisy[0])})
        return
    unit = unit_of(record.mechanism)
    moe = count_text(margin_of(record.mechanism), unit)
    around["margin_of_error"] = {"confidence": float(CONFIDENCE), "moe": moe}
    if record.keys is not None:
        around["keys"] = list(record.keys)
    yield json.dumps(around)[:-1] + ', "noisy": ['
    for start in range(0, record.noisy.size, _PART):
        yield (", " if start else "") + json.dumps(json_counts(record.noisy[start : start + _PART].tolist(), unit))[
            1:-1
        ]
    yield "]}"
