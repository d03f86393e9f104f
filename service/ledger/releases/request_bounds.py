"""Bounds of what one request makes and writes, single releases and batches alike, before it is made.

A few bytes of a request can stand for much: each distinct subplan repeats the tags that hold for it, and the periods
that it is charged to, in each account of the line; and each range of periods meets each run of offsets of an account.
"""

from collections.abc import Iterable

from service.errors import InvalidInput
from service.privacy.periods import MOST_PAIRS

MOST_REPEATED = 1 << 24
"""The most bytes of tags and periods in the subplans of a request: 250 subplans with 5,000 listed periods each."""


class RequestBounds:
    """Counts of what the releases of one request stand for, as they are prepared; above a bound they are refused."""

    def __init__(self, pointer: str) -> None:
        """Begin to count.

        Args:
            pointer: the place of the releases in the request, for faults.
        """
        self._pointer = pointer
        self._repeated = self._pairs = 0

    @property
    def repeated(self) -> int:
        """The bytes of tags and periods that subplans repeat, in all accounts of the line."""
        return self._repeated

    def repeat(self, sizes: Iterable[int]) -> None:
        """Count bytes of tags and periods in subplans.

        Raises:
            InvalidInput: they are too many together; further sizes are not asked for.
        """
        for size in sizes:
            self._repeated += size
            if self._repeated > MOST_REPEATED:
                raise InvalidInput.at(
                    self._pointer,
                    f"expected at most {MOST_REPEATED} bytes of tags and periods, which each distinct subplan repeats"
                    f" in each account of the line, got at least {self._repeated}",
                )

    def pair(self, pairs: int) -> None:
        """Count pairs of a range of periods and a run of offsets.

        Raises:
            InvalidInput: they are too many together.
        """
        self._pairs += pairs
        if self._pairs > MOST_PAIRS:
            raise InvalidInput.at(
                self._pointer,
                f"expected at most {MOST_PAIRS} pairs of a range of adjacent periods and a run of adjacent offsets, of"
                f" all releases in all accounts of the line, got at least {self._pairs}",
            )
