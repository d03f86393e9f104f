"""Flatbuffers as far as Arrow's messages need them: fields of tables, by the public layout ("FlatBuffer Internals").

Places are positions in the whole data, so that what has a fixed size can be changed where it stands.
"""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Table:
    """A table: it begins with the distance to its vtable, which has the place of each field in it."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - integer(data, "<i", at)
        self._size = integer(data, "<H", self._fields)

    @classmethod
    def root(cls, data: memoryview, start: int) -> "Table":
        """The table that a flatbuffer at ``start`` holds."""
        return cls(data, start + integer(data, "<I", start))

    def place(self, number: int) -> int | None:
        """Where a field is; None where it is not there and has its default."""
        slot = 4 + 2 * number
        offset = integer(self._data, "<H", self._fields + slot) if slot < self._size else 0
        return self._at + offset if offset else None

    def integer(self, number: int, form: str) -> int:
        """A field that is a number, by default 0."""
        place = self.place(number)
        return 0 if place is None else integer(self._data, form, place)

    def table(self, number: int) -> "Table | None":
        """A field that is a table."""
        place = self.place(number)
        return None if place is None else Table(self._data, place + integer(self._data, "<I", place))

    def required_table(self, number: int) -> "Table":
        """The same where the format says that it is there."""
        found = self.table(number)
        if found is None:
            raise struct.error("a table is missing")
        return found

    def vector(self, number: int) -> tuple[int, int]:
        """Where a vector's or string's first item is, and how many there are."""
        place = self.place(number)
        if place is None:
            return 0, 0
        start = place + integer(self._data, "<I", place)
        return start + 4, integer(self._data, "<I", start)

    def tables(self, number: int) -> Iterator["Table"]:
        """The tables of a vector."""
        start, length = self.vector(number)
        if length > len(self._data) // 4:
            raise struct.error("a vector that leaves the data")
        for place in range(start, start + 4 * length, 4):
            yield Table(self._data, place + integer(self._data, "<I", place))

    def pairs(self, number: int) -> NDArray[np.int64]:
        """A vector of structs of two numbers, one row for each, where they are."""
        start, length = self.vector(number)
        if start + 16 * length > len(self._data):
            raise struct.error("a vector that leaves the data")
        return np.frombuffer(self._data[start : start + 16 * length], "<i8").reshape(length, 2)


def integer(data: memoryview, form: str, at: int) -> int:
    """A number at a place.

    Raises:
        struct.error: the place is not in the data.
    """
    if at < 0:
        raise struct.error("a place before the data")
    value: int = struct.unpack_from(form, data, at)[0]
    return value
