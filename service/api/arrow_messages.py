"""What an Arrow IPC stream unfolds to, read off its messages before anything is decompressed or decoded.

The metadata of a message is a flatbuffer; the few fields that are needed are read by the format's public layout
(Message.fbs of Arrow; "FlatBuffer Internals"). pyarrow has verified it by then, so that no offset leaves it.
"""

import struct
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from service.errors import InvalidInput, TooLarge

MOST_MESSAGES = 100_000
_CODECS = ("lz4", "zstd")  # CompressionType of Message.fbs


def measure(buffer: pa.Buffer, most_bytes: int) -> str | None:
    """Check that a buffer is one whole stream of a bearable size, and tell how its batches are compressed.

    A stream without its end, or with something after it, is refused: what was cut off would never be drawn.

    Raises:
        InvalidInput: it is not one whole stream.
        TooLarge: it unfolds to more than ``most_bytes``, or has too many messages.
    """
    source = pa.BufferReader(buffer)
    dictionaries: dict[int, int] = {}
    total, codec = 0, None
    try:
        messages, position = pa.ipc.MessageReader.open_stream(source), 0
        for number, message in enumerate(messages):
            if number > MOST_MESSAGES:
                raise TooLarge(f"expected at most {MOST_MESSAGES} record batches and dictionaries")
            position = source.tell()
            table = _Table.root(message.metadata)
            if message.type == "record batch":
                size, found = _unfolded(table.table(2), message.body)
                codec = codec or found
            elif message.type == "dictionary":
                size = _dictionary(table.table(2), message.body, dictionaries)
            else:
                continue
            total += size
            if total > most_bytes:
                raise TooLarge(f"expected a stream that holds at most {most_bytes} bytes when it is decompressed")
        end = source.tell()
    except (pa.ArrowException, OSError, struct.error):
        raise InvalidInput.at("", "expected a whole Arrow IPC stream") from None
    if not 0 < position < end:
        raise InvalidInput.at("", "expected an Arrow IPC stream with its end-of-stream marker; it breaks off")
    if end != buffer.size:
        raise InvalidInput.at("", "expected one Arrow IPC stream and nothing after it")
    return codec


class _Table:
    """A table of a flatbuffer: it begins with the distance to its vtable, which has each field's place in it."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._integer("<i", at)
        self._size = self._integer("<H", self._fields)

    @classmethod
    def root(cls, metadata: pa.Buffer) -> "_Table":
        data = memoryview(metadata)
        return cls(data, struct.unpack_from("<I", data)[0])

    def _integer(self, form: str, at: int) -> int:
        value: int = struct.unpack_from(form, self._data, at)[0]
        return value

    def _place(self, number: int) -> int | None:
        slot = 4 + 2 * number
        offset = self._integer("<H", self._fields + slot) if slot < self._size else 0
        return self._at + offset if offset else None

    def integer(self, number: int, form: str) -> int:
        """A field that is a number; 0 where it is not there."""
        place = self._place(number)
        return 0 if place is None else self._integer(form, place)

    def table(self, number: int) -> "_Table | None":
        """A field that is a table."""
        place = self._place(number)
        return None if place is None else _Table(self._data, place + self._integer("<I", place))

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """A field that is a vector of structs of two 64-bit integers."""
        place = self._place(number)
        if place is None:
            return []
        start = place + self._integer("<I", place)
        length = self._integer("<I", start)
        if length > len(self._data) // 16:
            raise struct.error("a vector that leaves the metadata")
        return list(struct.iter_unpack("<qq", self._data[start + 4 : start + 4 + 16 * length]))


def _unfolded(batch: _Table | None, body: Any) -> tuple[int, str | None]:
    """The bytes of a RecordBatch's buffers when they are decompressed, and its codec."""
    if batch is None:
        raise struct.error("a message without its header")
    compression = batch.table(3)
    buffers = batch.pairs(2)
    if compression is None:
        return sum(max(length, 0) for _, length in buffers), None
    codec = compression.integer(0, "<b")
    if codec not in range(len(_CODECS)):
        raise struct.error("a codec that the format does not have")
    data, total = memoryview(body), 0
    for offset, length in buffers:
        if length > 0:
            whole: int = struct.unpack_from("<q", data, offset)[0]  # -1: this buffer is not compressed
            total += length if whole == -1 else max(whole, 0)
    return total, _CODECS[codec]


def _dictionary(header: _Table | None, body: Any, known: dict[int, int]) -> int:
    """A dictionary is built anew with each delta, so a delta counts with all that came before it."""
    if header is None:
        raise struct.error("a message without its header")
    size, _ = _unfolded(header.table(1), body)
    identity = header.integer(0, "<q")
    known[identity] = size + (known.get(identity, 0) if header.integer(2, "<?") else 0)
    return known[identity]
