"""Draws over CSV: the body is a table of labels and counts, and the other fields are those of an Arrow draw's query."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from numpy.typing import NDArray
from python_multipart.multipart import parse_options_header

from service.api.http import csv_answers
from service.api.http.accepted_types import JSON, form_of
from service.api.http.dependencies import Changing, Streamed, heavy_in_helpers, in_writers, replay_header
from service.api.http.memory_room import room_of
from service.api.http.request_parsing import StreamRoute
from service.api.publication.noisy_tables import PARQUET, drawn_as_parquet
from service.api.routes.accounts import AccountPath
from service.api.routes.noisy_counts import draws
from service.api.routes.noisy_counts.arrow_draws import Accepted, Text, Texts, Upload, new_draw_of, selection_of
from service.api.routes.releases import ReleasePath
from service.api.schemas import count_tables
from service.api.schemas.charges import WithCharge
from service.api.schemas.count_tables import CountTable
from service.api.schemas.draw_responses import CONFIDENCE, identity_of, json_of, margin_of
from service.api.schemas.granularity import unit_of
from service.errors import UnsupportedMediaType
from service.ledger.draws.draws import AnsweredDraw
from service.noise import Keystream, add_noise
from service.privacy.laws.noise_law import NoiseLaw

_LONGEST_TYPE = 300  # characters: splitting takes time quadratic in the length


class CsvRoute(StreamRoute):
    """Route class for requests whose body is a table."""

    media_type = csv_answers.MEDIA_TYPE
    instead = draws.NO_DRY_RUN


# The operations are documented with their JSON twins, as those of ``arrow_draws`` are.
router = APIRouter(prefix="/v1/accounts/{account}", route_class=CsvRoute, include_in_schema=False)

_OR_PARQUET: dict[int | str, dict[str, Any]] = {201: {"content": {PARQUET: {}}}}


async def _upload(request: Request) -> Upload:
    content_type = request.headers.get("content-type", "")
    if len(content_type) > _LONGEST_TYPE:
        raise UnsupportedMediaType(f"expected a Content-Type of at most {_LONGEST_TYPE} characters")
    if parse_options_header(content_type)[1].get(b"charset", b"utf-8").lower() != b"utf-8":
        raise UnsupportedMediaType("expected a table in UTF-8")
    return Upload(await request.body(), request.app.state.settings.max_json_items, room_of(request.scope))


Uploaded = Annotated[Upload, Depends(_upload)]


@router.post("/draws", responses=_OR_PARQUET)
@heavy_in_helpers
@in_writers
def register_and_draw(
    account: AccountPath,
    upload: Uploaded,
    change: Changing,
    tags: Texts,
    name: Text,
    mechanism: Text,
    delta: Annotated[str | None, Query()] = None,
    granularity: Annotated[str | None, Query()] = None,
    periods: Annotated[str | None, Query()] = None,
    with_charge: WithCharge = False,
    accept: Accepted = "",
) -> Response:
    """Register a mechanism and draw its noisy counts."""
    new_draw = new_draw_of(name, mechanism, tags, delta, granularity, periods)
    table = count_tables.read_table(upload.body, upload.most, upload.take)
    noisy, size = partial(_noisy, table), len(table.rows)
    at = f"/{count_tables.COUNT}"
    drawn = draws.register(account, new_draw, change, noisy, size, at, "/query", table.keys)
    return _respond(table, drawn, accept, draws.charge_header(account, drawn, change, asked=with_charge))


@router.post("/releases/{release}/draws", responses=_OR_PARQUET)
@heavy_in_helpers
@in_writers
def draw_mechanism(
    account: AccountPath,
    release: ReleasePath,
    upload: Uploaded,
    change: Changing,
    mechanism: Text,
    partition: Annotated[str | None, Query()] = None,
    repetition: Text = "0",
    granularity: Annotated[str | None, Query()] = None,
    accept: Accepted = "",
) -> Response:
    """Draw the noisy counts of a mechanism of a registered release."""
    selection = selection_of(mechanism, partition, repetition, granularity)
    table = count_tables.read_table(upload.body, upload.most, upload.take)
    noisy, size, at = partial(_noisy, table), len(table.rows), f"/{count_tables.COUNT}"
    drawn = draws.draw_of(account, release, selection, change, noisy, size, at, "/query", table.keys)
    return _respond(table, drawn, accept)


def _noisy(table: CountTable, law: NoiseLaw, unit: Fraction, keystream: Keystream) -> NDArray[np.int64]:
    return add_noise(table.units(unit), law, keystream)


def _respond(table: CountTable, drawn: AnsweredDraw, accept: str, charge: dict[str, str] | None = None) -> Response:
    record, kind = drawn.record, form_of(accept, csv_answers.MEDIA_TYPE, (PARQUET,))
    headers = identity_of(record) | replay_header(drawn.answer) | (charge or {})
    if kind == JSON:
        return Streamed(json_of(record), drawn.answer.status, headers, kind)
    unit, margin = unit_of(record.mechanism), margin_of(record.mechanism)
    names, shown = count_tables.names_with_noisy(table), table.published(record.keys)
    parts = count_tables.rows_with_noisy(shown, record.noisy, unit, margin, float(CONFIDENCE))
    content: Iterator[bytes | str]
    if kind == PARQUET:
        content = drawn_as_parquet(names, parts, whole=unit == 1)
    else:
        content = csv_answers.written(names, chain.from_iterable(parts))
    return Streamed(content, drawn.answer.status, headers, kind)
