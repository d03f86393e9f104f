"""Arrow streams for the tests of bulk draws, written and read by pyarrow."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from tests.api.calls import Answer, Client

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
NEARLY_NONE = {"type": "geometric", "scale": "1e-4"}  # other than 0 with probability below e^-9999


def written(schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: Any) -> bytes:
    """Return a stream of batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def stream(columns: dict[str, Any], **options: Any) -> bytes:
    """Return a stream of one batch."""
    batch = pa.record_batch(columns)
    return written(batch.schema, [batch], **options)


def counts(values: Sequence[int]) -> bytes:
    """Return a stream of only counts."""
    return stream({"count": pa.array(values, pa.int64())})


def batches_of(content: bytes) -> list[Any]:
    """Return the batches of a stream, each with its own metadata."""
    reader, found = pa.ipc.open_stream(content), []
    while True:
        try:
            found.append(reader.read_next_batch_with_custom_metadata())
        except StopIteration:
            return found


def noisy_of(answer: Answer) -> list[int]:
    """Return the noisy counts of an answer that must be a stream."""
    assert answer.status_code in (200, 201), answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    whole: list[int] = np.concatenate(
        [found.batch["noisy"].to_numpy() for found in batches_of(answer.content)]
    ).tolist()
    return whole


def register(
    client: Client, content: Any, key: str | None = None, mechanism: Any = NEARLY_NONE, **query: Any
) -> Answer:
    """Register a mechanism and draw a stream of counts."""
    given = {"name": "x", "mechanism": json.dumps(mechanism)} | query
    return client.post("/v1/accounts/people/draws", params=given, content=content, headers=headers(key))


def draw(client: Client, release: Any, content: Any, key: str | None = None, **query: Any) -> Answer:
    """Draw a mechanism of a release on a stream of counts."""
    path = f"/v1/accounts/{release['account']}/releases/{release['id']}/draws"
    return client.post(path, params=query, content=content, headers=headers(key))


def headers(key: str | None = None) -> dict[str, str]:
    """Return the headers of a request with a stream."""
    return {"Content-Type": MEDIA_TYPE} | ({} if key is None else {"Idempotency-Key": key})
