"""The one place where the ledger asks for the time, and the one text in which it writes it down.

Moments are stored as text and compared as text, so all of them have the same shape: RFC 3339 in
UTC with exactly six decimals and a ``Z``.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_SHAPE = "%Y-%m-%dT%H:%M:%S.%fZ"


def now() -> str:
    """The present moment."""
    return stamp(datetime.now(UTC))


def stamp(moment: datetime) -> str:
    """A moment as the ledger writes it.

    Raises:
        ValueError: the moment has no time zone, so it names no moment.
    """
    if moment.utcoffset() is None:
        raise ValueError("expected a moment with a time zone")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@lru_cache(maxsize=64)  # reservations of a batch end at one moment
def later(moment: str, duration: timedelta) -> str:
    """The moment that is so much later than one that the ledger wrote down; at most the last one of the year 9999."""
    try:
        return stamp(datetime.strptime(moment, _SHAPE).replace(tzinfo=UTC) + duration)
    except OverflowError:
        return stamp(datetime.max.replace(tzinfo=UTC))


def between(moment: str, end: str) -> timedelta:
    """The time from one moment that the ledger wrote down to another."""
    return datetime.strptime(end, _SHAPE) - datetime.strptime(moment, _SHAPE)  # noqa: DTZ007 - both are in UTC


def is_stamp(text: str) -> bool:
    """Whether a text has the ledger's shape; any other would be compared wrongly."""
    try:
        return stamp(datetime.strptime(text, _SHAPE).replace(tzinfo=UTC)) == text
    except ValueError:
        return False
