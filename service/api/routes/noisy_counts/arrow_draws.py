"""Draws over Arrow: the counts are the body, and the other fields of the JSON body are query parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from service.api.arrow import streams
from service.api.arrow.streams import CountStream
from service.api.http.accepted_types import JSON, form_of
from service.api.http.dependencies import Changing, Streamed, in_writers, replay_header
from service.api.http.faults import faults_of
from service.api.http.json_text import parse
from service.api.http.memory_room import Take, room_of
from service.api.http.request_parsing import StreamRoute
from service.api.routes.accounts import AccountPath
from service.api.routes.noisy_counts import draws
from service.api.routes.noisy_counts.draws import DrawSelection, NewDraw
from service.api.routes.releases import ReleasePath
from service.api.schemas.charges import WithCharge
from service.api.schemas.draw_responses import identity_of, json_of
from service.errors import Fault, InvalidInput
from service.ledger.draws.draws import AnsweredDraw
from service.noise import Keystream, add_noise
from service.privacy.laws.noise_law import NoiseLaw

M = TypeVar("M", bound=BaseModel)


class ArrowRoute(StreamRoute):
    """Route class for requests whose body is an Arrow stream."""

    media_type = streams.MEDIA_TYPE
    instead = draws.NO_DRY_RUN


# The operations are documented with their JSON twins in ``draws``: OpenAPI has one operation per address and method.
router = APIRouter(prefix="/v1/accounts/{account}", route_class=ArrowRoute, include_in_schema=False)


@dataclass(frozen=True)
class Upload:
    """A received body, and the limit on its content: of a stream, on its decompressed size.

    Attributes:
        most: of a stream bytes, of a table values.
    """

    body: bytes
    most: int
    take: Take


async def _upload(request: Request) -> Upload:
    # The route has read the body already; Starlette returns it as it is.
    return Upload(await request.body(), request.app.state.settings.max_arrow_bytes, room_of(request.scope))


Uploaded = Annotated[Upload, Depends(_upload)]
Accepted = Annotated[str, Header(alias="Accept")]
Text = Annotated[str, Query()]
Texts = Annotated[list[str], Query(default_factory=list)]


@router.post("/draws")
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
    counts = streams.read_counts(upload.body, upload.most, upload.take)
    noisy, at = partial(_noisy, counts, granularity), f"/{streams.COUNT}"
    drawn = draws.register(account, new_draw, change, noisy, counts.rows, at, "/query")
    return _respond(counts, drawn, accept, draws.charge_header(account, drawn, change, asked=with_charge))


@router.post("/releases/{release}/draws")
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
    counts = streams.read_counts(upload.body, upload.most, upload.take)
    noisy, at = partial(_noisy, counts, granularity), f"/{streams.COUNT}"
    drawn = draws.draw_of(account, release, selection, change, noisy, counts.rows, at, "/query")
    return _respond(counts, drawn, accept)


def new_draw_of(
    name: str, mechanism: str, tags: list[str], delta: str | None, granularity: str | None, periods: str | None
) -> NewDraw:
    """Build the fields of a mechanism to register and draw from query parameters."""
    fields = {"name": name, "mechanism": json_parameter("mechanism", mechanism), "tags": tags, "delta": delta}
    fields["granularity"] = granularity
    fields["periods"] = None if periods is None else json_parameter("periods", periods)
    return model_of(NewDraw, fields)


def selection_of(mechanism: str, partition: str | None, repetition: str, granularity: str | None) -> DrawSelection:
    """Build the selection of a registered mechanism from query parameters."""
    fields = {"mechanism": mechanism, "partition": partition, "repetition": json_parameter("repetition", repetition)}
    fields["granularity"] = granularity
    return model_of(DrawSelection, fields)


def json_parameter(name: str, text: str) -> Any:
    """Parse a query parameter that is not text: its value is JSON."""
    try:
        return parse(text.encode())
    except InvalidInput as refused:
        raise in_query(refused, f"/{name}") from None


def model_of(model: type[M], fields: Mapping[str, Any]) -> M:
    """Build the model of a JSON body from query parameters."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise in_query(InvalidInput(faults_of(error, fields, model))) from None


def in_query(refused: InvalidInput, below: str = "") -> InvalidInput:
    """Return the faults with pointers to query parameters."""
    return InvalidInput([Fault(f"/query{below}{fault.pointer}", fault.detail) for fault in refused.faults])


def _noisy(
    counts: CountStream, granularity: str | None, law: NoiseLaw, unit: Fraction, keystream: Keystream
) -> NDArray[np.int64]:
    """Add noise to the column's integers; with a granularity the caller must state it, since they are units of it."""
    if unit != 1 and granularity is None:
        detail = "expected the granularity of the mechanism: the column counts units of it"
        raise InvalidInput.at("/query/granularity", detail)
    noisy, first = np.empty(counts.rows, np.int64), 0
    for batch in counts.batches:
        part = noisy[first : first + batch.counts.size]
        add_noise(batch.counts, law, keystream, out=part)
        first += part.size
    return noisy


def _respond(counts: CountStream, drawn: AnsweredDraw, accept: str, charge: dict[str, str] | None = None) -> Response:
    return answer_stream(drawn, streams.with_noisy(counts, drawn.record.noisy), accept, charge)


def answer_stream(
    drawn: AnsweredDraw, stream: Iterator[bytes], accept: str, charge: dict[str, str] | None = None
) -> Response:
    """Answer a request whose body was a stream with another one, or with JSON where it prefers that."""
    kind = form_of(accept, streams.MEDIA_TYPE)
    headers = identity_of(drawn.record) | replay_header(drawn.answer) | (charge or {})
    content: Iterator[bytes | str] = json_of(drawn.record) if kind == JSON else stream
    return Streamed(content, drawn.answer.status, headers, kind)
