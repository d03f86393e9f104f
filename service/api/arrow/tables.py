"""Whole tables from Arrow IPC streams with known columns, read as views of the stream."""

import struct
from collections.abc import Callable

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from service.api.arrow.flatbuffer import Table, integer
from service.api.arrow.metadata import check_end, check_metadata
from service.api.http.memory_room import Take
from service.errors import InvalidInput, TooLarge

# Upper bound on the bytes beside the stream while it is read: the table, and each row's name as Python text.
_A_BYTE, _A_ROW = 4, 500


def read_table(body: bytes | bytearray, most_bytes: int, check: Callable[[pa.Schema], None], take: Take) -> pa.Table:
    """Return the table of one whole stream, with every value validated.

    A stream is untrusted. ``check`` sees the schema, and the decompressed size is measured, before anything is
    decompressed. Arrow's own error messages are not passed on, since they may quote values.

    Args:
        body: the stream.
        most_bytes: the limit on the decompressed table, in bytes.
        check: raises InvalidInput for a schema that is not accepted.
        take: reserves so many bytes of the shared memory limit, for reading alone.

    Raises:
        InvalidInput: the body is not one whole stream, or ``check`` refuses its schema.
        TooLarge: the table decompresses to more than ``most_bytes``, has too many batches, or needs more memory than
            one principal may take.
        Unavailable: the memory is in use by other requests.
    """
    buffer = pa.py_buffer(body)
    try:
        check_metadata(memoryview(buffer))
        take(_measure(buffer, most_bytes, check))
        reader = pa.ipc.open_stream(pa.BufferReader(buffer))
        table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error):
        raise InvalidInput.at("", "expected one whole and valid Arrow IPC stream") from None
    return table


def _measure(buffer: pa.Buffer, most_bytes: int, check: Callable[[pa.Schema], None]) -> int:
    """Return the bytes of memory that a stream takes beside its own."""
    source, data = pa.BufferReader(buffer), memoryview(buffer)
    messages = pa.ipc.MessageReader.open_stream(source)
    schema, end, total, rows = next(messages, None), source.tell(), 0, 0
    if schema is None or schema.type != "schema":
        raise InvalidInput.at("", "expected an Arrow IPC stream that begins with a schema")
    check(pa.ipc.read_schema(schema))
    for message in messages:
        if message.type != "record batch":
            raise InvalidInput.at("", "expected record batches and no dictionaries")
        start, end = end, source.tell()
        header = Table.root(data, start + 8).required_table(2)
        total += _decompressed_bytes(data, header, start, end)
        rows += max(0, header.integer(0, "<q"))
        if max(total, rows // 8) > most_bytes:  # a row takes at least one bit
            raise TooLarge("expected a table that takes at most the stream limit when it is decompressed")
    check_end(end, source.tell(), len(data))
    return _A_BYTE * total + _A_ROW * rows


def _decompressed_bytes(data: memoryview, header: Table, start: int, end: int) -> int:
    """Return the decompressed bytes of a record batch's buffers, as the batch states them."""
    descriptors = header.pairs(2)
    if header.table(3) is None:
        return sum(max(length, 0) for length in descriptors[:, 1].tolist())
    body, total = start + 8 + integer(data, "<i", start + 4), 0
    for offset, length in descriptors.tolist():
        if length > 0:
            if offset < 0 or body + offset + 8 > end:
                raise struct.error("a buffer lies outside the body")
            whole = integer(data, "<q", body + offset)  # -1: the buffer is not compressed
            total += max(whole, length)
    return total
