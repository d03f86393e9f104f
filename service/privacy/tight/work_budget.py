"""Bounds on one analysis, in numbers to compute and not in seconds: every machine finds the same figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class NotTight(Exception):
    """There is no tight figure: no law is known to have the loss, or it is beyond the bounds on time and memory."""


CALL = 1 << 11
"""What a step takes that is done for one law at a time, however few its numbers are."""

_left: ContextVar[float] = ContextVar("left", default=float("inf"))


@contextmanager
def at_most(numbers: float) -> Iterator[None]:
    """Bound the work done within the block, and by what is left outside it, where it counts too."""
    before = _left.get()
    allowed = min(numbers, before)
    token = _left.set(allowed)
    try:
        yield
    finally:
        taken = allowed - _left.get()
        _left.reset(token)
        if taken > 0:
            _left.set(before - taken)


def spend(numbers: float) -> None:
    """Before so many numbers are computed, each by a short formula; some 50 nanoseconds.

    Raises:
        NotTight: it would take too long.
    """
    left = _left.get() - numbers
    if left < 0:
        raise NotTight
    _left.set(left)


def most() -> float:
    """Yield what is left but for a part, to try something with and then do otherwise."""
    return _left.get() * 7 / 8
