"""Flatbuffers as far as Arrow's messages need them: fields of tables, by the public layout ("FlatBuffer Internals").

Positions are offsets in the whole data, so that fields of a fixed size can be changed in place.
"""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Table:
    """A table: it begins with the distance to its vtable, which has the position of each field."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - integer(data, "<i", at)
        self._size = integer(data, "<H", self._fields)

    @classmethod
    def root(cls, data: memoryview, start: int) -> "Table":
        """Return the root table of a flatbuffer at ``start``."""
        return cls(data, start + integer(data, "<I", start))

    def place(self, number: int) -> int | None:
        """Return the position of a field; None where it is absent and has its default."""
        slot = 4 + 2 * number
        offset = integer(self._data, "<H", self._fields + slot) if slot < self._size else 0
        return self._at + offset if offset else None

    def integer(self, number: int, form: str) -> int:
        """Return a number field, by default 0."""
        place = self.place(number)
        return 0 if place is None else integer(self._data, form, place)

    def table(self, number: int) -> "Table | None":
        """Return a table field; None where it is absent."""
        place = self.place(number)
        return None if place is None else Table(self._data, place + integer(self._data, "<I", place))

    def required_table(self, number: int) -> "Table":
        """Return a table field that the format requires."""
        child = self.table(number)
        if child is None:
            raise struct.error("a required table is missing")
        return child

    def vector(self, number: int) -> tuple[int, int]:
        """Return the position of the first item of a vector or string, and the number of items."""
        place = self.place(number)
        if place is None:
            return 0, 0
        start = place + integer(self._data, "<I", place)
        return start + 4, integer(self._data, "<I", start)

    def tables(self, number: int) -> Iterator["Table"]:
        """Yield the tables of a vector."""
        start, length = self.vector(number)
        if length > len(self._data) // 4:
            raise struct.error("a vector exceeds the data")
        for place in range(start, start + 4 * length, 4):
            yield Table(self._data, place + integer(self._data, "<I", place))

    def pairs(self, number: int) -> NDArray[np.int64]:
        """Return a vector of structs of two numbers, one row for each, as a view."""
        start, length = self.vector(number)
        if start + 16 * length > len(self._data):
            raise struct.error("a vector exceeds the data")
        return np.frombuffer(self._data[start : start + 16 * length], "<i8").reshape(length, 2)


def integer(data: memoryview, form: str, at: int) -> int:
    """Return the number at a position.

    Args:
        data: the bytes.
        form: the number's format, as in ``struct``.
        at: the position.

    Raises:
        struct.error: the position is outside the data.
    """
    if at < 0:
        raise struct.error("a position is before the data")
    value: int = struct.unpack_from(form, data, at)[0]
    return value
