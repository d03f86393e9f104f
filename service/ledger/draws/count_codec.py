"""The stored form of noisy counts: small, and fast to make, because a draw waits for it.

The first byte is the width in bytes of the widest value of the draw: 1, 2, 4 or 8. Then comes one Zstandard frame of
the values in planes: all lowest bytes, then all second ones, and so on. So the high bytes, which the counts have in
common, stand together. Older rows are a zlib stream of 8-byte values, whose first byte is none of these.

Where a threshold suppressed counts, the keys of the published ones follow: the first byte is 107, then come the length
of the packed counts in 8 bytes, these, and a zlib stream of the keys as JSON. Suppressed keys are in no form.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from service.errors import TooLarge

MOST_BYTES = 10**9
"""The most bytes that both databases hold in one value: SQLite by default, PostgreSQL 1 GiB less overhead."""

_WIDTHS = (1, 2, 4, 8)
_KEYED, _AHEAD = 107, 9  # the first byte before keys, and the bytes before the packed counts
_LONGEST_KEY = 6 * 200 + 3  # bytes of a key with its quotes and comma; escapes take at most six for a character
_LEVEL = 1
_MOST_UNFOLDED = 1 << 15  # a block of 128 KiB takes 4 bytes at least


def digest(values: NDArray[np.int64], keys: Sequence[str] | None = None) -> str:
    """Return SHA-256 of the values as 8-byte little-endian integers, then of any keys as JSON: that in the journal.

    The journal also has the number of values, so the two parts cannot be taken for one another.
    """
    found = hashlib.sha256(values.astype("<i8", copy=False).data)
    found.update(b"" if keys is None else _written(keys))
    return found.hexdigest()


def pack(values: NDArray[np.int64], keys: Sequence[str] | None = None) -> bytes:
    """Return the bytes to store.

    Args:
        values: one-dimensional.
        keys: those of the values, where a threshold suppressed others.

    Raises:
        TooLarge: they are more than a database holds in one value.
    """
    packed = _pack(values)
    if keys is not None:
        packed = b"".join((bytes([_KEYED]), len(packed).to_bytes(8, "little"), packed, zlib.compress(_written(keys))))
    if len(packed) > MOST_BYTES:
        raise TooLarge(f"expected noisy counts that compress to at most {MOST_BYTES} bytes; draw them in partitions")
    return packed


def _written(keys: Sequence[str]) -> bytes:
    return json.dumps(list(keys), ensure_ascii=False, separators=(",", ":")).encode()


def _pack(values: NDArray[np.int64]) -> bytes:
    width = _width(values)
    planes = np.empty((width, values.size), np.uint8)
    planes[:] = values.astype(f"<i{width}", copy=False).view(np.uint8).reshape(values.size, width).T
    frame = pa.Codec("zstd", _LEVEL).compress(planes)
    del planes  # as large as the counts; the next line makes a copy
    return b"".join((bytes([width]), frame))


def unpack(packed: bytes, size: int) -> NDArray[np.int64]:
    """Return exactly the ``size`` values that were packed.

    Raises:
        ValueError: the bytes are not those of so many values. However much they would unpack to, the memory used is at
            most that of these values, and at most what the shortest frames of zeros account for.
    """
    if packed[:1] == bytes([_KEYED]):
        packed = packed[_AHEAD : _AHEAD + int.from_bytes(packed[1:_AHEAD], "little")]
    width = packed[0] if packed else 0
    if width not in _WIDTHS:
        return np.frombuffer(_inflated(packed, 8 * size), "<i8").astype(np.int64, copy=False)
    frame = memoryview(packed)[1:]
    if size * width > _MOST_UNFOLDED * len(frame):
        raise ValueError("expected a frame of as many values as there should be")
    try:
        unpacked = pa.Codec("zstd").decompress(frame, size * width)
    except OSError:
        raise ValueError("expected one whole Zstandard frame of as many values as there should be") from None
    planes = np.frombuffer(unpacked, np.uint8).reshape(width, size)
    return np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(size).astype(np.int64)


def unpack_keys(packed: bytes, size: int) -> tuple[str, ...] | None:
    """Return exactly the ``size`` keys that were packed with the values; None if there were none.

    Raises:
        ValueError: the bytes are not those of so many keys; the memory used is at most that of so many.
    """
    if packed[:1] != bytes([_KEYED]):
        return None
    unpacking = zlib.decompressobj()
    try:
        written = unpacking.decompress(
            packed[_AHEAD + int.from_bytes(packed[1:_AHEAD], "little") :], _LONGEST_KEY * size + 2
        )
        keys = json.loads(written) if unpacking.eof and not unpacking.unused_data else None
    except (zlib.error, RecursionError):
        keys = None
    if not isinstance(keys, list) or len(keys) != size or not all(isinstance(key, str) for key in keys):
        raise ValueError("expected one whole zlib stream of as many keys as there are values")
    return tuple(keys)


def is_pack_of(packed: bytes, size: int, expected: str) -> bool:
    """Return whether these bytes, of any origin, hold ``size`` values, with any keys, of this digest.

    Args:
        expected: the digest, as ``digest`` returns it.
    """
    try:
        return digest(unpack(packed, size), unpack_keys(packed, size)) == expected
    except (MemoryError, ValueError):
        return False


def _inflated(packed: bytes, size: int) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(packed, size + 1)
    except zlib.error:
        unpacked = b""
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise ValueError("expected one whole zlib stream of as many values as there should be")
    return unpacked


def _width(values: NDArray[np.int64]) -> int:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    return next(width for width in _WIDTHS if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1)
