"""Arrow IPC streams: true counts in, noisy counts out, every other column as it came.

A stream is untrusted: its metadata may point anywhere and its compressed buffers unfold to anything. So before any
of it is used its messages are counted and measured, then every batch is validated in full. Nothing of what Arrow says
in its errors is passed on, since it may quote values.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from service.api import lattice
from service.api.arrow_messages import measure
from service.errors import InvalidInput

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNT, NOISY = "count", "noisy"
LARGEST_COUNT = 2**62

_BLOCK = 1 << 20  # bytes that are sent at a time
_ROWS = 1 << 20  # of a record batch of our own
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class CountStream:
    """A checked stream. ``counts`` are its counts, a part for each record batch."""

    body: pa.Buffer
    column: int
    codec: str | None
    counts: list[pa.Array]

    @property
    def rows(self) -> int:
        """How many counts there are."""
        return sum(map(len, self.counts))

    def units(self, unit: Fraction, below: str = "") -> Iterator[NDArray[np.int64]]:
        """The counts in units of a granularity; views of the stream where it is 1.

        Raises:
            InvalidInput: the column has another type, or a count is off the lattice or not within 2^62 units of 0.
                A fault names a row and never its value.
        """
        first = 0
        for part in self.counts:
            values = lattice.units_of_column(part, unit, first, below)
            _check_range(values, first)
            yield values
            first += len(part)


def read_counts(body: bytes | bytearray, most_bytes: int) -> CountStream:
    """Check a stream and find its counts.

    Raises:
        InvalidInput: it is not one whole stream, or has not one column ``count`` of numbers without nulls, or no
            row, or a column ``noisy``.
        TooLarge: it unfolds to more than ``most_bytes``, or has too many messages.
    """
    with _opened(body, most_bytes) as (buffer, codec, reader):
        column = _column(reader.schema)
        counts = [_counts(batch.batch, column) for batch in _batches(reader)]
    stream = CountStream(buffer, column, codec, counts)
    if not stream.rows:
        raise InvalidInput.at(f"/{COUNT}", "expected at least one row")
    return stream


def read_table(body: bytes | bytearray, most_bytes: int) -> pa.Table:
    """Check a stream and take it whole, as views of its bytes.

    Raises:
        InvalidInput: it is not one whole stream.
        TooLarge: as ``read_counts``.
    """
    with _opened(body, most_bytes) as (_, _, reader):
        batches = [batch.batch for batch in _batches(reader)]
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, reader.schema)


@contextmanager
def _opened(
    body: bytes | bytearray, most_bytes: int
) -> Iterator[tuple[pa.Buffer, str | None, pa.RecordBatchStreamReader]]:
    """A measured stream with its codec; whatever is wrong with its bytes is one fault."""
    buffer = pa.py_buffer(body)
    codec = measure(buffer, most_bytes)
    try:
        yield buffer, codec, pa.ipc.open_stream(pa.BufferReader(buffer))
    except _UNREADABLE:
        raise _unreadable() from None


def _unreadable() -> InvalidInput:
    return InvalidInput.at("", "expected one whole and valid Arrow IPC stream")


def _column(schema: pa.Schema) -> int:
    places = schema.get_all_field_indices(COUNT)
    if len(places) != 1:
        raise InvalidInput.at(f"/{COUNT}", f"expected one column of this name, got {len(places)}")
    kind = schema.field(places[0]).type
    if not (pa.types.is_int64(kind) or pa.types.is_decimal128(kind)):
        raise InvalidInput.at(f"/{COUNT}", "expected a column of type int64, or with a granularity decimal128")
    if schema.get_all_field_indices(NOISY):
        raise InvalidInput.at(f"/{NOISY}", "expected no column of this name: it is the one that comes back")
    column: int = places[0]
    return column


def _batches(reader: pa.RecordBatchStreamReader) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return


def _counts(batch: pa.RecordBatch, column: int) -> pa.Array:
    batch.validate(full=True)
    counts = batch.column(column)
    if counts.null_count:
        raise InvalidInput.at(f"/{COUNT}", "expected a column without nulls")
    return counts


def _check_range(counts: NDArray[np.int64], first: int) -> None:
    if counts.size and (int(counts.min()) < -LARGEST_COUNT or int(counts.max()) > LARGEST_COUNT):
        row = first + int(np.argmax((counts < -LARGEST_COUNT) | (counts > LARGEST_COUNT)))
        raise InvalidInput.at(f"/{COUNT}/{row}", "expected a count within 2^62 of 0")


def with_noisy(stream: CountStream, noisy: NDArray[np.int64], unit: Fraction) -> Iterator[bytes]:
    """The stream with ``noisy``, in units, in the place of its counts, batch by batch, compressed as it came."""
    reader = pa.ipc.open_stream(pa.BufferReader(stream.body))
    field = reader.schema.field(stream.column)
    kind = lattice.column_type(unit, "")
    renamed = pa.field(NOISY, kind, nullable=field.nullable, metadata=field.metadata)
    schema = reader.schema.set(stream.column, renamed)
    return _blocks(_written(schema, _replaced(reader, stream.column, schema, noisy, unit), stream.codec))


def _replaced(
    reader: pa.RecordBatchStreamReader, column: int, schema: pa.Schema, noisy: NDArray[np.int64], unit: Fraction
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    first = 0
    for batch, metadata in _batches(reader):
        arrays = batch.columns
        arrays[column] = lattice.column_of(noisy[first : first + batch.num_rows], unit)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema), metadata
        first += batch.num_rows


def of_table(table: pa.Table) -> Iterator[bytes]:
    """A table as a stream."""
    batches = ((batch, None) for batch in table.to_batches(max_chunksize=_ROWS))
    return _blocks(_written(table.schema, batches, None))


def only_noisy(noisy: NDArray[np.int64], unit: Fraction) -> Iterator[bytes]:
    """A stream of one column ``noisy``, of counts that are given in units."""
    schema = pa.schema([pa.field(NOISY, lattice.column_type(unit, ""), nullable=False)])
    parts = (noisy[first : first + _ROWS] for first in range(0, noisy.size, _ROWS))
    batches = ((pa.RecordBatch.from_arrays([lattice.column_of(part, unit)], schema=schema), None) for part in parts)
    return _blocks(_written(schema, batches, None))


class _Sink:
    """What pyarrow writes to: pieces are kept as they come, large ones as views of its own memory."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: Any) -> int:
        view = memoryview(piece)
        self.pieces.append(view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing waits here."""


def _written(
    schema: pa.Schema, batches: Iterable[tuple[pa.RecordBatch, Any]], codec: str | None
) -> Iterator[memoryview]:
    sink = _Sink()
    options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
        for batch, metadata in batches:
            writer.write_batch(batch, custom_metadata=metadata)
            yield from sink.pieces
            sink.pieces.clear()
    yield from sink.pieces


def _blocks(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    """The same bytes, a mebibyte at a time: little is copied at once, and small pieces go together."""
    gathered: list[memoryview] = []
    size = 0
    for piece in pieces:
        for start in range(0, piece.nbytes, _BLOCK):
            part = piece[start : start + _BLOCK]
            if size + part.nbytes > _BLOCK:
                yield b"".join(gathered)
                gathered, size = [], 0
            gathered.append(part)
            size += part.nbytes
    if gathered:
        yield b"".join(gathered)
