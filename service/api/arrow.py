"""Arrow IPC streams: true counts in, noisy counts out, every other byte as it came.

Of a stream only the column of counts is looked at. In the answer its values and its name are changed where they stand,
and all other columns, dictionaries, metadata and compressed buffers are passed on without being decoded: nothing
that they hold can go wrong, cost memory or come back otherwise. Errors never quote what was sent.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from service.api.arrow_layout import Place, place_of
from service.api.flatbuffer import Table, integer
from service.errors import InvalidInput, TooLarge

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNT, NOISY = "count", "noisy"  # of one length: a name is changed where it stands
LARGEST_COUNT = 2**62
MOST_MESSAGES = 100_000

_BLOCK = 1 << 20  # bytes that are sent at a time
_ROWS = 1 << 20  # of a record batch of our own
_MARK = 0xFFFFFFFF  # before each message
_VERSION_5 = 4  # of Message.fbs
_CODECS = ("lz4", "zstd")  # CompressionType of Message.fbs
_RAW = -1  # in place of the length of a buffer that was not worth compressing
_END = struct.pack("<II", _MARK, 0)
_PAIR = struct.Struct("<qq")


@dataclass(frozen=True)
class CountBatch:
    """A record batch: its counts and where they are. Positions are those in the whole stream."""

    start: int
    body: int
    end: int
    body_length: int  # where the length of the body stands
    buffers: int  # where its buffers are listed
    listed: list[tuple[int, ...]]  # offset in the body, and length
    place: int  # of the counts' buffer among them
    codec: str | None
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class CountStream:
    """A checked stream."""

    data: memoryview
    name: int  # where the column's name stands
    batches: list[CountBatch]

    @property
    def rows(self) -> int:
        """How many counts there are."""
        return sum(batch.counts.size for batch in self.batches)


def read_counts(body: bytes | bytearray, most_bytes: int) -> CountStream:
    """Check a stream and find its counts.

    A stream without its end, or with something after it, is refused: what was cut off could never be drawn.

    Raises:
        InvalidInput: it is not one whole stream, or has not one column ``count`` of int64 without nulls and within
            ±2^62, or no row, or a column ``noisy``. A fault names a row and never its value.
        TooLarge: its counts take more than ``most_bytes`` when they are decompressed, or it has too many messages.
    """
    data = memoryview(body)
    try:
        stream = _read(data, most_bytes)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error):
        raise InvalidInput.at("", "expected one whole and valid Arrow IPC stream") from None
    if not stream.rows:
        raise InvalidInput.at(f"/{COUNT}", "expected at least one row")
    _check_range(stream)
    return stream


def _read(data: memoryview, most_bytes: int) -> CountStream:
    source = pa.BufferReader(pa.py_buffer(data))
    messages = pa.ipc.MessageReader.open_stream(source)
    schema, end = next(messages, None), source.tell()
    if schema is None or schema.type != "schema" or integer(data, "<I", 0) != _MARK:
        raise InvalidInput.at("", "expected an Arrow IPC stream, in the format since version 0.15")
    name, place = _column(data, end, pa.ipc.read_schema(schema))
    batches: list[CountBatch] = []
    left = most_bytes
    for number, message in enumerate(messages):
        if number >= MOST_MESSAGES:
            raise TooLarge(f"expected at most {MOST_MESSAGES} record batches and dictionaries")
        start, end = end, source.tell()
        if message.type == "record batch":
            batches.append(_batch(data, start, end, place, left))
            left -= batches[-1].counts.nbytes
    if source.tell() == end:
        raise InvalidInput.at("", "expected an Arrow IPC stream with its end-of-stream marker; it breaks off")
    if source.tell() != len(data):
        raise InvalidInput.at("", "expected one Arrow IPC stream and nothing after it")
    return CountStream(data, name, batches)


def _column(data: memoryview, end: int, schema: pa.Schema) -> tuple[int, Place]:
    """Where the name of the column of counts stands, and where its buffer is in each batch."""
    places = schema.get_all_field_indices(COUNT)
    if len(places) != 1:
        raise InvalidInput.at(f"/{COUNT}", f"expected one column of this name, got {len(places)}")
    (column,) = places
    if schema.field(column).type != pa.int64():
        raise InvalidInput.at(f"/{COUNT}", "expected a column of type int64")
    if schema.get_all_field_indices(NOISY):
        raise InvalidInput.at(f"/{NOISY}", "expected no column of this name: it is the one that comes back")
    message = Table.root(data, 8)
    header = message.required_table(2)
    if header.integer(0, "<h"):
        raise InvalidInput.at(f"/{COUNT}", "expected little-endian integers")
    fields, _ = header.vector(1)
    field = fields + 4 * column
    name, _ = Table(data, field + integer(data, "<I", field)).vector(0)
    renamed = bytearray(data[:end])
    renamed[name : name + len(NOISY)] = NOISY.encode()
    if not pa.ipc.read_schema(pa.py_buffer(renamed)).equals(
        schema.set(column, schema.field(column).with_name(NOISY)), check_metadata=True
    ):
        raise InvalidInput.at("", "expected a schema in which no two names share their bytes")
    return name, place_of(schema, column, before_5=message.integer(0, "<h") < _VERSION_5)


def _batch(data: memoryview, start: int, end: int, place: Place, most_bytes: int) -> CountBatch:
    message = Table.root(data, start + 8)
    header = message.required_table(2)
    body = start + 8 + integer(data, "<i", start + 4)
    body_length = message.place(3) or 0  # without one, and without a body, there are no rows below
    if integer(data, "<I", start) != _MARK or body + message.integer(3, "<q") != end:
        raise struct.error("a message that is not framed as its metadata say")
    nodes = header.structs(1, _PAIR)
    rows, nulls = nodes[place.node] if place.node < len(nodes) else (-1, 0)
    variadic_at, variadic = header.vector(4)
    if rows < 0 or rows != header.integer(0, "<q") or variadic < place.views:
        raise struct.error("a batch whose columns are not of its length")
    if nulls:
        raise InvalidInput.at(f"/{COUNT}", "expected a column without nulls")
    if 8 * rows > most_bytes:
        raise TooLarge("expected counts that take at most the limit of a stream when they are decompressed")
    listed = header.structs(2, _PAIR)
    number = place.buffer + sum(integer(data, "<q", variadic_at + 8 * view) for view in range(place.views))
    if not 0 <= number < len(listed):
        raise struct.error("a batch without the buffer of its counts")
    offset, length = listed[number]
    if offset < 0 or length < 0 or offset + length > end - body or _shared(listed, number):
        raise struct.error("a buffer that is not the counts' alone")
    compression = header.table(3)
    codec = None if compression is None else _CODECS[_known_codec(compression)]
    counts = _counts(data[body + offset : body + offset + length], rows, codec)
    return CountBatch(start, body, end, body_length, header.vector(2)[0], listed, number, codec, counts)


def _known_codec(compression: Table) -> int:
    codec = compression.integer(0, "<b")
    if codec not in range(len(_CODECS)):
        raise struct.error("a codec that the format has not")
    return codec


def _shared(listed: list[tuple[int, ...]], number: int) -> bool:
    """Whether another buffer overlaps this one: it would be changed with it."""
    first, length = listed[number]
    return any(
        other != number and size > 0 and offset < first + length and first < offset + size
        for other, (offset, size) in enumerate(listed)
    )


def _counts(buffer: memoryview, rows: int, codec: str | None) -> NDArray[np.int64]:
    """The values of a buffer, where they are if they are not compressed."""
    if rows and codec is not None:
        whole = integer(buffer, "<q", 0)
        buffer = buffer[8:]
        if whole != _RAW:
            if not 8 * rows <= whole < 8 * rows + 64:  # writers may pad
                raise struct.error("a buffer of another length than its column")
            buffer = memoryview(pa.Codec(codec).decompress(pa.py_buffer(buffer), whole))
    if len(buffer) < 8 * rows:
        raise struct.error("a buffer that is too short")
    return np.frombuffer(buffer, "<i8", rows)


def _check_range(stream: CountStream) -> None:
    first = 0
    for batch in stream.batches:
        part = batch.counts
        if part.size and (int(part.min()) < -LARGEST_COUNT or int(part.max()) > LARGEST_COUNT):
            row = first + int(np.argmax((part < -LARGEST_COUNT) | (part > LARGEST_COUNT)))
            raise InvalidInput.at(f"/{COUNT}/{row}", "expected a count within 2^62 of 0")
        first += part.size


def with_noisy(stream: CountStream, noisy: NDArray[np.int64]) -> Iterator[bytes]:
    """The stream with ``noisy`` in the place of its counts, batch by batch, compressed as they were."""
    return _blocks(_changed(stream, noisy.astype("<i8", copy=False)))


def _changed(stream: CountStream, noisy: NDArray[np.int64]) -> Iterator[memoryview]:
    data, done, first = stream.data, stream.name + len(NOISY), 0
    yield data[: stream.name]
    yield memoryview(NOISY.encode())
    for batch in stream.batches:
        values = noisy[first : first + batch.counts.size].data.cast("B")
        first += batch.counts.size
        if not values.nbytes:
            continue
        yield data[done : batch.start]
        begin = batch.body + batch.listed[batch.place][0]
        if batch.codec is None:
            yield data[batch.start : begin]
            yield values
            done = begin + values.nbytes
        else:
            yield from _recompressed(data, batch, values)
            done = batch.end
    yield data[done:]


def _recompressed(data: memoryview, batch: CountBatch, values: memoryview) -> Iterator[memoryview]:
    """A batch whose counts are of another length now: what comes after them moves, by whole words."""
    offset, length = batch.listed[batch.place]
    begin, size = batch.body + offset, batch.end - batch.body
    after = min((at for at, long in batch.listed if long > 0 and at >= offset + length), default=size)
    packed = struct.pack("<q", values.nbytes) + pa.Codec(batch.codec).compress(pa.py_buffer(values), asbytes=True)
    if len(packed) > values.nbytes + 8:
        packed = struct.pack("<q", _RAW) + bytes(values)
    padding = -(len(packed) - (after - offset)) % 8
    moved = len(packed) + padding - (after - offset)
    head = bytearray(data[batch.start : batch.body])
    struct.pack_into("<q", head, batch.body_length - batch.start, size + moved)
    for number, (at, long) in enumerate(batch.listed):
        new = at + moved if at >= after else at
        pair = (offset, len(packed)) if number == batch.place else (new if long > 0 else 0, long)
        _PAIR.pack_into(head, batch.buffers - batch.start + number * _PAIR.size, *pair)
    yield memoryview(head)
    yield data[batch.body : begin]
    yield memoryview(packed + bytes(padding))
    yield data[batch.body + after : batch.end]


def only_noisy(noisy: NDArray[np.int64]) -> Iterator[bytes]:
    """A stream of one column ``noisy``."""
    schema = pa.schema([pa.field(NOISY, pa.int64(), nullable=False)])
    yield from _framed(schema.serialize())
    for first in range(0, noisy.size, _ROWS):
        yield from _framed(pa.record_batch([pa.array(noisy[first : first + _ROWS])], schema=schema).serialize())
    yield _END


def of_table(table: pa.Table) -> Iterator[bytes]:
    """A table as a stream."""
    yield from _framed(table.schema.serialize())
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from _framed(batch.serialize())
    yield _END


def _framed(message: pa.Buffer) -> Iterator[bytes]:
    """pyarrow serialises a message with its frame, so its bytes only need to be cut."""
    return _blocks([memoryview(message)])


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
