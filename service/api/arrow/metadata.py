"""Checks of an Arrow stream's metadata, before Arrow's own reader sees them.

Flatbuffers may refer to one table or text from many places, and a reader then builds it as many times: a few kilobytes
could unfold to a terabyte. The checks follow the references without copying, and the total must not exceed the bytes.
"""

import struct
from itertools import islice

from service.api.arrow.flatbuffer import Table, integer
from service.errors import InvalidInput, TooLarge

MARK = 0xFFFFFFFF  # before each message
MOST_MESSAGES = 20_000  # a GiB of counts in Spark's batches has 13,422
# Record batches are processed one by one. Spark writes 10,000 rows in one, pyarrow 65,536 and more.
FEW_BATCHES, ROWS_OF_MORE = 100, 1000
MOST_FIELDS = 10_000
MOST_SCHEMA = 1 << 24  # bytes

_SCHEMA, _RECORD_BATCH, _TIMESTAMP = 1, 3, 10  # MessageHeader and Type of the format's flatbuffers


def check_metadata(data: memoryview) -> None:
    """Follow a stream from message to message and check its metadata.

    Args:
        data: the stream.

    Raises:
        InvalidInput: the data do not begin as a stream, or have too many record batches for their rows.
        TooLarge: there are more messages or columns than the limits allow.
        struct.error: a message is not framed as the format requires, or refers to a text several times.
    """
    if len(data) < 4 or integer(data, "<I", 0) != MARK:
        raise InvalidInput.at("", "expected an Arrow IPC stream, in the format since version 0.15")
    at = number = batches = rows = 0
    while len(data) - at >= 4 and (mark := integer(data, "<I", at)):
        size = integer(data, "<i", at + 4)
        if size == 0 and mark == MARK:
            break
        if mark != MARK or not 0 < size <= len(data) - at - 8:
            raise struct.error("the frame of a message breaks the format")
        if number > MOST_MESSAGES:
            raise TooLarge(f"expected at most {MOST_MESSAGES} record batches and dictionaries")
        body, held = _check_message(data[at + 8 : at + 8 + size])
        if held is not None:
            batches, rows = batches + 1, rows + held
        at, number = at + 8 + size + body, number + 1
    if batches > (most := FEW_BATCHES + rows // ROWS_OF_MORE):
        detail = f"expected at most {FEW_BATCHES} record batches and one more for every {ROWS_OF_MORE} rows"
        raise InvalidInput.at("", f"{detail}: {most}, got {batches}")


def check_end(last: int, read: int, size: int) -> None:
    """Refuse a stream without its end-of-stream marker, and data after it.

    Args:
        last: the end of the stream's last message.
        read: the place where its reader stopped.
        size: the number of bytes of the data.

    Raises:
        InvalidInput: the stream is refused.
    """
    if read == last:
        raise InvalidInput.at(
            "", "expected an Arrow IPC stream with its end-of-stream marker; the stream ends without one"
        )
    if read != size:
        raise InvalidInput.at("", "expected one Arrow IPC stream and nothing after it")


def _check_message(metadata: memoryview) -> tuple[int, int | None]:
    """Return the length of a message's body and the rows of a record batch; raise where metadata exceed their bytes."""
    message = Table.root(metadata, 0)
    bytes_left = len(metadata) - _custom_metadata_bytes(message, 4)
    kind, rows = message.integer(1, "<B"), None
    if kind == _RECORD_BATCH:
        rows = max(0, message.required_table(2).integer(0, "<q"))
    elif kind == _SCHEMA:
        if len(metadata) > MOST_SCHEMA:
            raise TooLarge(f"expected a schema of at most {MOST_SCHEMA} bytes")
        schema = message.required_table(2)
        bytes_left -= _custom_metadata_bytes(schema, 2) + _text_bytes(schema)
    body = message.integer(3, "<q")
    if bytes_left < 0 or body < 0:
        raise struct.error("metadata refer to a text more than once")
    return body, rows


def _text_bytes(schema: Table) -> int:
    """Return the total bytes of the texts of a schema's fields."""
    pending = list(islice(schema.tables(1), MOST_FIELDS + 1))
    fields = total = 0
    while pending:
        if (fields := fields + 1) > MOST_FIELDS:
            raise TooLarge(f"expected a schema of at most {MOST_FIELDS} columns, nested ones included")
        field = pending.pop()
        total += field.vector(0)[1] + _custom_metadata_bytes(field, 6)
        kind = field.table(3)
        if kind is not None and field.integer(2, "<B") == _TIMESTAMP:
            total += kind.vector(1)[1]
        pending += islice(field.tables(5), MOST_FIELDS + 1)
    return total


def _custom_metadata_bytes(table: Table, number: int) -> int:
    """Return the bytes of the names and values of some custom metadata."""
    return sum(pair.vector(0)[1] + pair.vector(1)[1] + 8 for pair in table.tables(number))
