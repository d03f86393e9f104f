"""Whole tables from Arrow IPC streams whose columns are all known beforehand, read as views of the stream."""

import struct
from collections.abc import Callable

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from service.api.flatbuffer import Table, integer
from service.errors import InvalidInput, TooLarge

MOST_BATCHES = 100_000
_PAIR = struct.Struct("<qq")
_MARK = 0xFFFFFFFF


def read_table(body: bytes | bytearray, most_bytes: int, check: Callable[[pa.Schema], None]) -> pa.Table:
    """The table of one whole stream, every value of it validated.

    A stream is untrusted: before anything is decompressed, ``check`` has seen the schema, and all that it unfolds to
    is measured. Nothing of what Arrow says in its errors is passed on, since it may quote values.

    Raises:
        InvalidInput: it is not one whole stream, or whatever ``check`` raises.
        TooLarge: it unfolds to more than ``most_bytes``, or has too many batches.
    """
    buffer = pa.py_buffer(body)
    try:
        _measure(buffer, most_bytes, check)
        reader = pa.ipc.open_stream(pa.BufferReader(buffer))
        table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error):
        raise InvalidInput.at("", "expected one whole and valid Arrow IPC stream") from None
    return table


def _measure(buffer: pa.Buffer, most_bytes: int, check: Callable[[pa.Schema], None]) -> None:
    source, data = pa.BufferReader(buffer), memoryview(buffer)
    messages = pa.ipc.MessageReader.open_stream(source)
    schema, end, left = next(messages, None), source.tell(), most_bytes
    if schema is None or schema.type != "schema" or integer(data, "<I", 0) != _MARK:
        raise InvalidInput.at("", "expected an Arrow IPC stream, in the format since version 0.15")
    check(pa.ipc.read_schema(schema))
    for number, message in enumerate(messages):
        if number >= MOST_BATCHES:
            raise TooLarge(f"expected at most {MOST_BATCHES} record batches")
        if message.type != "record batch":
            raise InvalidInput.at("", "expected record batches and no dictionaries")
        start, end = end, source.tell()
        left -= _unfolded(data, start, end)
        if left < 0:
            raise TooLarge("expected a table that takes at most the limit of a stream when it is decompressed")
    if source.tell() == end:
        raise InvalidInput.at("", "expected an Arrow IPC stream with its end-of-stream marker; it breaks off")
    if source.tell() != len(data):
        raise InvalidInput.at("", "expected one Arrow IPC stream and nothing after it")


def _unfolded(data: memoryview, start: int, end: int) -> int:
    """The bytes of a record batch's buffers when they are decompressed, as far as they say."""
    header = Table.root(data, start + 8).required_table(2)
    listed = header.structs(2, _PAIR)
    if header.table(3) is None:
        return sum(max(length, 0) for _, length in listed)
    body, total = start + 8 + integer(data, "<i", start + 4), 0
    for offset, length in listed:
        if length > 0:
            if offset < 0 or body + offset + 8 > end:
                raise struct.error("a buffer that is not in the body")
            whole = integer(data, "<q", body + offset)  # -1: this buffer is not compressed
            total += max(whole, length)
    return total
