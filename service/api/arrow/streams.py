"""Arrow IPC streams of counts: read the true counts and write the noisy ones in their place.

Only the column of counts is read. The answer changes its values and its name in place. All other columns, dictionaries,
metadata and compressed buffers are copied without being decoded, so they cannot cause an error, take memory or change.
Errors never quote a value of the stream.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from service.api.arrow.flatbuffer import Table, integer
from service.api.arrow.layout import Place, place_of
from service.api.arrow.metadata import MARK, check_end, check_metadata
from service.api.http.memory_room import Take
from service.errors import InvalidInput, TooLarge

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNT, NOISY = "count", "noisy"  # of equal length: the name is changed in place
LARGEST_COUNT = 2**62

_BLOCK = 1 << 20  # bytes of a piece of an answer
_ROWS = 1 << 20  # rows of a record batch in a stream of only noisy counts
_VERSION_5 = 4  # of Message.fbs
_CODECS = ("lz4", "zstd")  # CompressionType of Message.fbs
_RAW = -1  # written in place of the length of a buffer that is not compressed
_NONE: NDArray[np.int64] = np.empty(0, np.int64)
_END = struct.pack("<II", MARK, 0)
# Upper bound on the memory of one count beside the stream: the noisy count, its packed form, and two copies on the way
# to a database or back.
_A_COUNT, _UNFOLDED = 48, 8


@dataclass(frozen=True, eq=False)
class CountBatch:
    """A record batch with its counts. Positions are offsets in the whole stream."""

    start: int
    body: int
    end: int
    body_length: int  # position of the body's length
    buffers: int  # position of the list of buffers
    listed: NDArray[np.int64]  # offset in the body, and length
    place: int  # number of the counts' buffer in that list
    codec: str | None
    rows: int
    counts: NDArray[np.int64]  # empty until memory is reserved for them


@dataclass(frozen=True)
class CountStream:
    """A checked stream with its batches of counts."""

    data: memoryview
    name: int  # position of the column's name
    batches: list[CountBatch]

    @property
    def rows(self) -> int:
        """The number of counts."""
        return sum(batch.rows for batch in self.batches)


def read_counts(body: bytes | bytearray, most_bytes: int, take: Take) -> CountStream:
    """Check a stream and return its counts, after reserving memory for their processing.

    A stream without its end marker, or with bytes after it, is refused: the missing part could never be drawn. A stream
    whose answer could not be written is refused too, before anything is charged.

    Args:
        body: the stream.
        most_bytes: the limit on the decompressed counts, in bytes.
        take: reserves so many bytes of the shared memory limit.

    Raises:
        InvalidInput: the stream is not one whole stream, has no row, has a column ``noisy``, or does not have exactly
            one column ``count`` of int64 without nulls and within ±2^62. A fault names a row and never its value.
        TooLarge: the decompressed counts exceed ``most_bytes``, there are too many messages or columns, or the memory
            needed is above the limit of one principal.
        Unavailable: the memory is in use by other requests.
    """
    data = memoryview(body)
    try:
        check_metadata(data)
        stream = _read(data, most_bytes)
        take(sum(batch.rows * (_A_COUNT if batch.codec is None else _A_COUNT + _UNFOLDED) for batch in stream.batches))
        stream = replace(stream, batches=[replace(batch, counts=_counts(data, batch)) for batch in stream.batches])
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
    if schema is None or schema.type != "schema":
        raise InvalidInput.at("", "expected an Arrow IPC stream that begins with a schema")
    name, place = _column(data, end, pa.ipc.read_schema(schema))
    batches: list[CountBatch] = []
    bytes_left = most_bytes
    for message in messages:
        start, end = end, source.tell()
        if message.type == "record batch":
            batches.append(_batch(data, start, end, place, bytes_left))
            bytes_left -= 8 * batches[-1].rows
    check_end(end, source.tell(), len(data))
    return CountStream(data, name, batches)


def _column(data: memoryview, end: int, schema: pa.Schema) -> tuple[int, Place]:
    """Return the position of the name of the counts' column, and the place of its buffer in each batch."""
    places = schema.get_all_field_indices(COUNT)
    if len(places) != 1:
        raise InvalidInput.at(f"/{COUNT}", f"expected one column of this name, got {len(places)}")
    (column,) = places
    if schema.field(column).type != pa.int64():
        raise InvalidInput.at(f"/{COUNT}", "expected a column of type int64")
    if schema.get_all_field_indices(NOISY):
        raise InvalidInput.at(f"/{NOISY}", "expected no column of this name: the answer adds it")
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
    if integer(data, "<I", start) != MARK:
        raise struct.error("the message has the format from before version 0.15")
    batch = _parsed_batch(data[start:end], start, place)
    if batch.body + Table.root(data, start + 8).integer(3, "<q") != end:
        raise struct.error("the frame of the message disagrees with its metadata")
    if 8 * batch.rows > most_bytes:
        raise TooLarge("expected counts that take at most the stream limit when they are decompressed")
    if batch.rows:
        _check_buffers(data, batch)
        if batch.codec is not None:
            _check_answer(data, batch, place)
    return batch


def _parsed_batch(data: memoryview, start: int, place: Place) -> CountBatch:
    """Parse a record batch from its metadata, at the beginning of ``data``; ``start`` is its offset in the stream."""
    message = Table.root(data, 8)
    header, body_length = message.required_table(2), message.place(3) or 0  # an absent length means an empty body
    nodes = header.pairs(1)
    rows, nulls = nodes[place.node].tolist() if place.node < len(nodes) else (-1, 0)
    variadic_at, variadic = header.vector(4)
    if rows < 0 or rows != header.integer(0, "<q") or variadic < place.views:
        raise struct.error("the columns of the batch disagree with its length")
    if nulls:
        raise InvalidInput.at(f"/{COUNT}", "expected a column without nulls")
    descriptors = header.pairs(2)
    number = place.buffer + sum(integer(data, "<q", variadic_at + 8 * view) for view in range(place.views))
    if not 0 <= number < len(descriptors):
        raise struct.error("the buffer of the counts is missing from the batch")
    compression = header.table(3)
    if compression is not None and message.integer(0, "<h") < _VERSION_5:
        raise InvalidInput.at("", "expected no compression in a stream of metadata version 4: its readers know none")
    codec = None if compression is None else _CODECS[_known_codec(compression)]
    body, buffers = start + 8 + integer(data, "<i", 4), start + header.vector(2)[0]
    end = start + len(data)
    return CountBatch(start, body, end, start + body_length, buffers, descriptors, number, codec, rows, _NONE)


def _known_codec(compression: Table) -> int:
    codec = compression.integer(0, "<b")
    if codec not in range(len(_CODECS)):
        raise struct.error("the codec is unknown to the format")
    return codec


def _check_buffers(data: memoryview, batch: CountBatch) -> None:
    """Check that all buffers lie in the body, and that the counts' buffer has its size and overlaps no other."""
    offsets, lengths = batch.listed[:, 0], batch.listed[:, 1]
    size, some = batch.end - batch.body, lengths > 0
    # Each size is checked by itself first, so their sum cannot overflow.
    if lengths.min() < 0 or (some & ((offsets < 0) | (offsets > size) | (lengths > size))).any():
        raise struct.error("a buffer lies outside the body")
    ends = np.where(some, offsets + np.where(some, lengths, 0), 0)
    offset, length = batch.listed[batch.place].tolist()
    others = some & (np.arange(len(offsets)) != batch.place)
    if (ends > size).any() or (others & (offsets < offset + length) & (ends > offset)).any():
        raise struct.error("the counts' buffer overlaps another one")
    begin, least = batch.body + offset, 8 * batch.rows
    whole = _RAW if batch.codec is None else integer(data[begin : begin + length], "<q", 0)
    if whole == _RAW:
        whole = length - (0 if batch.codec is None else 8)
        if whole < least:
            raise struct.error("the counts' buffer is too short")
    elif not least <= whole < least + 64:  # writers may pad to 64 bytes
        raise struct.error("the length of the counts' buffer disagrees with the column")


def _check_answer(data: memoryview, batch: CountBatch, place: Place) -> None:
    """Check that a reader of the metadata sees the same whatever lengths are written into them."""
    message = data[batch.start : batch.body]
    length_at, buffers, table_bytes = (
        batch.body_length - batch.start,
        batch.buffers - batch.start,
        16 * len(batch.listed),
    )
    fixed = _fixed_parts(message)
    if length_at - table_bytes < buffers < length_at + 8:
        raise struct.error("the lengths share bytes with each other")
    for filled in (b"\0", b"\xa5", b"\xff"):
        changed = bytearray(message)
        changed[length_at : length_at + 8] = filled * 8
        changed[buffers : buffers + table_bytes] = filled * table_bytes
        new = _parsed_batch(memoryview(changed), batch.start, place)
        if _fixed_parts(memoryview(changed)) != fixed or _used_parts(new) != _used_parts(batch):
            raise struct.error("the lengths share bytes with other metadata")


def _used_parts(batch: CountBatch) -> tuple[object, ...]:
    """Return the parts of a batch's metadata that are used here, beside the lengths."""
    lengths = (batch.body_length, batch.buffers, len(batch.listed))
    return (batch.body, batch.place, batch.codec, batch.rows, *lengths)


def _fixed_parts(head: memoryview) -> tuple[object, ...]:
    """Return the parts of a batch's metadata that a rewrite must not change."""
    message = Table.root(head, 8)
    header = message.required_table(2)
    compression = header.table(3)
    notes = [tuple(bytes(head[at : at + size]) for at, size in map(pair.vector, (0, 1))) for pair in message.tables(4)]
    views, number = header.vector(4)
    method = None if compression is None else (compression.integer(0, "<b"), compression.integer(1, "<b"))
    kinds = message.integer(0, "<h"), message.integer(1, "<B")
    return kinds, notes, header.pairs(1).tobytes(), bytes(head[views : views + 8 * number]), method


def _counts(data: memoryview, batch: CountBatch) -> NDArray[np.int64]:
    """Return the values of a batch, as a view of the stream if they are not compressed."""
    if not batch.rows:
        return _NONE
    offset, length = batch.listed[batch.place].tolist()
    buffer = data[batch.body + offset : batch.body + offset + length]
    if batch.codec is not None:
        whole = integer(buffer, "<q", 0)
        buffer = buffer[8:]
        if whole != _RAW:
            buffer = memoryview(pa.Codec(batch.codec).decompress(pa.py_buffer(buffer), whole))
    return np.frombuffer(buffer, "<i8", batch.rows)


def _check_range(stream: CountStream) -> None:
    first = 0
    for batch in stream.batches:
        part = batch.counts
        if part.size and (int(part.min()) < -LARGEST_COUNT or int(part.max()) > LARGEST_COUNT):
            row = first + int(np.argmax((part < -LARGEST_COUNT) | (part > LARGEST_COUNT)))
            raise InvalidInput.at(f"/{COUNT}/{row}", "expected a count within 2^62 of 0")
        first += part.size


def with_noisy(stream: CountStream, noisy: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the stream with ``noisy`` in place of its counts, batch by batch, with the compression of the original."""
    return _blocks(_rewritten(stream, noisy.astype("<i8", copy=False)))


def _rewritten(stream: CountStream, noisy: NDArray[np.int64]) -> Iterator[memoryview]:
    data, done, first = stream.data, stream.name + len(NOISY), 0
    yield data[: stream.name]
    yield memoryview(NOISY.encode())
    for batch in stream.batches:
        values = noisy[first : first + batch.counts.size].data.cast("B")
        first += batch.counts.size
        if not values.nbytes:
            continue
        yield data[done : batch.start]
        begin = batch.body + int(batch.listed[batch.place, 0])
        if batch.codec is None:
            yield data[batch.start : begin]
            yield values
            done = begin + values.nbytes
        else:
            yield from _recompressed(data, batch, values)
            done = batch.end
    yield data[done:]


def _recompressed(data: memoryview, batch: CountBatch, values: memoryview) -> Iterator[memoryview]:
    """Yield a batch whose counts have another length, moving the buffers after them by whole words."""
    offset = int(batch.listed[batch.place, 0])
    # Sliced as an array, since a view of pyarrow's buffer has the length of its allocation.
    buffer = np.frombuffer(pa.Codec(batch.codec).compress(pa.py_buffer(values)), np.uint8)
    whole, packed = values.nbytes, buffer.data
    if packed.nbytes > values.nbytes:
        whole, packed = _RAW, values
    after, moved = _shift(batch, packed.nbytes + 8)
    yield memoryview(_head(data, batch, packed.nbytes + 8))
    yield data[batch.body : batch.body + offset]
    yield memoryview(struct.pack("<q", whole))
    yield packed
    yield memoryview(bytes(after + moved - offset - 8 - packed.nbytes))
    yield data[batch.body + after : batch.end]


def _shift(batch: CountBatch, packed: int) -> tuple[int, int]:
    """Return the offset at which the buffers after the counts begin, and their shift for counts of ``packed`` bytes."""
    offset, length = batch.listed[batch.place].tolist()
    behind = batch.listed[(batch.listed[:, 1] > 0) & (batch.listed[:, 0] >= offset + length), 0]
    after = int(behind.min(initial=batch.end - batch.body))
    return after, packed + -(packed - (after - offset)) % 8 - (after - offset)


def _head(data: memoryview, batch: CountBatch, packed: int) -> bytearray:
    """Return the metadata of a batch whose counts take ``packed`` bytes."""
    after, moved = _shift(batch, packed)
    places = batch.listed.copy()
    places[places[:, 0] >= after, 0] += moved
    places[places[:, 1] == 0, 0] = 0
    places[batch.place] = batch.listed[batch.place, 0], packed
    head, encoded = bytearray(data[batch.start : batch.body]), places.tobytes()
    struct.pack_into("<q", head, batch.body_length - batch.start, batch.end - batch.body + moved)
    head[batch.buffers - batch.start : batch.buffers - batch.start + len(encoded)] = encoded
    return head


def only_noisy(noisy: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield a stream of one column ``noisy``."""
    schema = pa.schema([pa.field(NOISY, pa.int64(), nullable=False)])
    yield from _message_bytes(schema.serialize())
    for first in range(0, noisy.size, _ROWS):
        yield from _message_bytes(pa.record_batch([pa.array(noisy[first : first + _ROWS])], schema=schema).serialize())
    yield _END


def of_table(table: pa.Table) -> Iterator[bytes]:
    """Yield a table as a stream."""
    yield from _message_bytes(table.schema.serialize())
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from _message_bytes(batch.serialize())
    yield _END


def _message_bytes(message: pa.Buffer) -> Iterator[bytes]:
    """Yield the bytes of a message, which pyarrow serialises with its frame, in pieces."""
    return _blocks([memoryview(message)])


def _blocks(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the same bytes a mebibyte at a time: copies stay small, and short pieces are joined."""
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
