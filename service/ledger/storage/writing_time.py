"""Estimates of the time that a write transaction takes; requests above a bound are refused before they begin.

Other requests wait meanwhile. On SQLite these are all that write; on PostgreSQL those that charge an account of the
line.
"""

from collections.abc import Sequence
from typing import NamedTuple

from service.errors import InvalidInput

_MOST_MICROSECONDS = 2_000_000
_MOST_TABULATING = 3_200_000  # so that a tabulation may have 100,000 groups, each with a row of its own
# A row of a group, and a character of its key: the processor time that SQLite took for the insert, the commit and its
# checkpoint, with random names in a table of some millions of rows; with ten millions it is a fifth more. PostgreSQL
# took less. In a table of few rows it is half as much, but a table grows, and its rows stay.
_GROUP, _KEY_CHARACTER = 20, 0.15
# A byte of noisy counts, and the square of their number: on PostgreSQL libpq moves the rest of a large parameter for
# each piece that the socket takes.
_BYTE = {"sqlite": 0.006, "postgresql": 0.01}
_SQUARE = {"sqlite": 0.0, "postgresql": 1.6e-10}
_COUNT = 8  # bytes at most; not the width of the stored values, which would make a refusal depend on true counts


class Groups(NamedTuple):
    """The groups of a tabulation, by the rows that they take.

    Attributes:
        number: the number of groups.
        characters: of the keys of their rows: the names as UTF-8, each with the pointer of the level's choice.
    """

    number: int
    characters: int

    @classmethod
    def of(cls, names: Sequence[str], pointer: str) -> "Groups":
        """Return the groups of these names."""
        size = sum(len(name.encode()) for name in names)
        return cls(len(names), size + len(names) * len(pointer.encode()))


def require_brief(microseconds: float, pointer: str, causes: str, most: int = _MOST_MICROSECONDS) -> None:
    """Refuse a write that takes long.

    Args:
        microseconds: the estimate.
        causes: the words for the message that say what takes the time.
        most: the bound in microseconds.

    Raises:
        InvalidInput: the estimate is above the bound.
    """
    if microseconds > most:
        raise InvalidInput.at(
            pointer,
            f"expected at most {most / 1e6:g} seconds of writing, got an estimated {microseconds / 1e6:.2f}: {causes}",
        )


def require_few_counts(kind: str, counts: int, pointer: str, groups: Groups | None = None) -> None:
    """Refuse a draw or tabulation that takes long to write, by facts that are known before any noise is drawn.

    Args:
        kind: of the database.
        counts: the number of noisy counts that are stored, or an upper bound.

    Raises:
        InvalidInput: the estimate is above the bound; the message says how much of each there is.
    """
    size = _COUNT * counts
    microseconds = size * _BYTE[kind] + size**2 * _SQUARE[kind]
    causes = f"number of noisy counts {counts}, their bytes {size}"
    if groups is not None:
        microseconds += groups.number * _GROUP + groups.characters * _KEY_CHARACTER
        causes = f"number of groups {groups.number}, characters of their keys {groups.characters}, {causes}"
    require_brief(microseconds, pointer, causes, _MOST_MICROSECONDS if groups is None else _MOST_TABULATING)
