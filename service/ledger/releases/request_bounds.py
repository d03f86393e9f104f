"""Bounds on the work and the rows that one request causes, checked before any of it is done.

They hold for single releases and for batches. A few bytes of a request can cause much: each distinct subplan repeats
its tags and its periods in each account of the line, and each range of periods is paired with each run of offsets of an
account.
"""

from collections.abc import Iterable

from service.errors import InvalidInput
from service.privacy.periods import MOST_PAIRS

MOST_REPEATED = 1 << 24
"""The largest number of bytes of tags and periods in a request's subplans, such as 250 with 5,000 periods each."""


class RequestBounds:
    """Counters of what the releases of one request cause, raised as they are prepared; excess is refused."""

    def __init__(self, pointer: str) -> None:
        """Start at zero.

        Args:
            pointer: the JSON pointer of the releases in the request, for faults.
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
            InvalidInput: there are too many in the request; the remaining sizes are not read.
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
            InvalidInput: there are too many in the request.
        """
        self._pairs += pairs
        if self._pairs > MOST_PAIRS:
            raise InvalidInput.at(
                self._pointer,
                f"expected at most {MOST_PAIRS} pairs of a range of adjacent periods and a run of adjacent offsets, of"
                f" all releases in all accounts of the line, got at least {self._pairs}",
            )
