"""What an Arrow stream's metadata may make a reader build, checked before Arrow's own reader sees them.

Flatbuffers may refer to one table or text from many places, and whoever reads them has it as often: a few kilobytes
could be a terabyte. So what is there is followed here, without copying, and has to be as small as its bytes.
"""

import struct
from itertools import islice

from service.api.flatbuffer import Table, integer
from service.errors import InvalidInput, TooLarge

MARK = 0xFFFFFFFF  # before each message
MOST_MESSAGES = 100_000
MOST_FIELDS = 10_000
MOST_SCHEMA = 1 << 24  # bytes

_SCHEMA, _TIMESTAMP = 1, 10  # MessageHeader and Type of the format's flatbuffers


def check_metadata(data: memoryview) -> None:
    """Follow a stream from message to message.

    Raises:
        InvalidInput: it does not begin as one.
        TooLarge: it has more messages or columns than it may.
        struct.error: a message is not framed as the format says, or says something many times over.
    """
    if len(data) < 4 or integer(data, "<I", 0) != MARK:
        raise InvalidInput.at("", "expected an Arrow IPC stream, in the format since version 0.15")
    at = number = 0
    while len(data) - at >= 4 and (mark := integer(data, "<I", at)):
        size = integer(data, "<i", at + 4)
        if size == 0 and mark == MARK:
            return
        if mark != MARK or not 0 < size <= len(data) - at - 8:
            raise struct.error("a message that is not framed as the format says")
        if number > MOST_MESSAGES:
            raise TooLarge(f"expected at most {MOST_MESSAGES} record batches and dictionaries")
        at, number = at + 8 + size + _checked(data[at + 8 : at + 8 + size]), number + 1


def _checked(metadata: memoryview) -> int:
    """The length of a message's body; raises where its metadata say more than they are."""
    message = Table.root(metadata, 0)
    left = len(metadata) - _noted(message, 4)
    if message.integer(1, "<B") == _SCHEMA:
        if len(metadata) > MOST_SCHEMA:
            raise TooLarge(f"expected a schema of at most {MOST_SCHEMA} bytes")
        schema = message.required_table(2)
        left -= _noted(schema, 2) + _named(schema)
    body = message.integer(3, "<q")
    if left < 0 or body < 0:
        raise struct.error("texts that are said more than once")
    return body


def _named(schema: Table) -> int:
    """The bytes of all texts of a schema's fields."""
    pending = list(islice(schema.tables(1), MOST_FIELDS + 1))
    fields = total = 0
    while pending:
        if (fields := fields + 1) > MOST_FIELDS:
            raise TooLarge(f"expected a schema of at most {MOST_FIELDS} columns, with those within others")
        field = pending.pop()
        total += field.vector(0)[1] + _noted(field, 6)
        kind = field.table(3)
        if kind is not None and field.integer(2, "<B") == _TIMESTAMP:
            total += kind.vector(1)[1]
        pending += islice(field.tables(5), MOST_FIELDS + 1)
    return total


def _noted(table: Table, number: int) -> int:
    """The bytes of the names and values of some custom metadata."""
    return sum(pair.vector(0)[1] + pair.vector(1)[1] + 8 for pair in table.tables(number))
