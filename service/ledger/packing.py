"""Noisy counts as they are stored: small, and quickly made, since a draw waits for it.

The first byte is how many bytes the widest value of the draw needs: 1, 2, 4 or 8. Then comes one Zstandard frame of the
values in planes: all lowest bytes, then all second ones, and so on, so that what counts have in common, their high
bytes, stands together. Older rows are a zlib stream of 8-byte values, whose first byte is none of these.
"""

import zlib

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from service.errors import TooLarge

MOST_BYTES = 10**9
"""What both databases hold in one value: SQLite by its default, PostgreSQL by 1 GiB less what surrounds it."""

_WIDTHS = (1, 2, 4, 8)
_LEVEL = 1


def pack(values: NDArray[np.int64]) -> bytes:
    """The bytes to store.

    Raises:
        TooLarge: they are more than a database holds in one value.
    """
    width = _width(values)
    planes = np.empty((width, values.size), np.uint8)
    planes[:] = values.astype(f"<i{width}", copy=False).view(np.uint8).reshape(values.size, width).T
    packed: bytes = bytes([width]) + pa.Codec("zstd", _LEVEL).compress(planes, asbytes=True)
    require_small(packed)
    return packed


def require_small(packed: bytes) -> None:
    """Refuse what a database does not hold in one value.

    Raises:
        TooLarge: it is too long.
    """
    if len(packed) > MOST_BYTES:
        raise TooLarge(f"expected noisy counts that compress to at most {MOST_BYTES} bytes; draw them in partitions")


def unpack(packed: bytes, size: int) -> NDArray[np.int64]:
    """The ``size`` values that were packed."""
    width = packed[0]
    if width not in _WIDTHS:
        return np.frombuffer(zlib.decompress(packed), "<i8").astype(np.int64, copy=False)
    frame = memoryview(packed)[1:]
    planes = np.frombuffer(pa.Codec("zstd").decompress(frame, size * width), np.uint8).reshape(width, size)
    return np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(size).astype(np.int64)


def _width(values: NDArray[np.int64]) -> int:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    return next(width for width in _WIDTHS if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1)
