"""Limits on one analysis, in numbers to compute and not in seconds, so that all machines find the same figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class NotTight(Exception):
    """There is no tight figure: no law of the loss is known, or the figure takes too much time or memory."""


CALL = 1 << 11
"""The least work of a step that is done for one law at a time."""

_work_left: ContextVar[float] = ContextVar("left", default=float("inf"))


@contextmanager
def work_limit(numbers: float) -> Iterator[None]:
    """Limit the work done within the block; it counts against the outer limit too.

    Args:
        numbers: as ``spend`` counts them.
    """
    outer = _work_left.get()
    allowed = min(numbers, outer)
    token = _work_left.set(allowed)
    try:
        yield
    finally:
        used = allowed - _work_left.get()
        _work_left.reset(token)
        if used > 0:
            _work_left.set(outer - used)


def spend(numbers: float) -> None:
    """Take from the budget the work of computing so many numbers, each by a short formula of some 50 nanoseconds.

    Raises:
        NotTight: it would take too long.
    """
    remaining = _work_left.get() - numbers
    if remaining < 0:
        raise NotTight
    _work_left.set(remaining)


def remaining_work() -> float:
    """Return the remaining budget, as ``spend`` counts; infinite outside every ``work_limit``."""
    return _work_left.get()


def attempt_budget() -> float:
    """Return most of the remaining budget: an attempt may use it, and the rest is for the alternative.

    Returns:
        Numbers, as ``spend`` counts them; infinite outside every ``work_limit``.
    """
    return _work_left.get() * 7 / 8
