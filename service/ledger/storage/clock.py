"""The ledger's clock, and the text form of its moments.

Moments are stored as text and compared as text, so all of them have the same shape: RFC 3339 in UTC with exactly six
decimals and a ``Z``.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from service.errors import Unavailable

_SHAPE = "%Y-%m-%dT%H:%M:%S.%fZ"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 10**9  # nanoseconds


class _Clock:
    """The system's clock, which never goes back while the process lives.

    A clock that was set back would make expired keys valid again and date new entries before old ones. Where the
    system's clock falls behind, time goes on from the latest moment at the speed of the monotonic clock.
    """

    def __init__(self) -> None:
        self._latest, self._measured = 0, time.monotonic_ns()
        self._reading = threading.Lock()

    def read(self) -> int:
        """Return the present moment in nanoseconds since 1970."""
        with self._reading:
            passed, system = time.monotonic_ns() - self._measured, time.time_ns()
            self._latest, self._measured = max(self._latest + passed, system), self._measured + passed
            return self._latest

    def raise_to(self, moment: int) -> None:
        """Continue from a moment, in nanoseconds since 1970, unless the clock is already later."""
        self.read()
        with self._reading:
            self._latest = max(self._latest, moment)


_clock = _Clock()


def now() -> str:
    """Return the present moment, which is never earlier than one that this process returned before.

    Raises:
        Unavailable: the system's clock is beyond the year 9999.
    """
    try:
        return stamp(_EPOCH + timedelta(microseconds=_clock.read() // 1000))
    except OverflowError:
        detail = "this machine's clock is beyond the year 9999: set it, and start again"
        raise Unavailable(detail, for_operator=detail) from None


def seconds() -> float:
    """Return the present moment in seconds since 1970; like ``now``, it never goes back."""
    return _clock.read() / _SECOND


def seconds_behind() -> float:
    """Return by how many seconds the system's clock is behind the moments that this process returns; 0 if it is not."""
    return max(0.0, (_clock.read() - time.time_ns()) / _SECOND)


def go_on_from(moment: str) -> None:
    """Continue the clock from a moment that the ledger stored, so that no earlier one is returned."""
    parsed = datetime.strptime(moment, _SHAPE).replace(tzinfo=UTC)
    _clock.raise_to((parsed - _EPOCH) // timedelta(microseconds=1) * 1000)


def stamp(moment: datetime) -> str:
    """Return a moment as the ledger writes it.

    Raises:
        ValueError: the moment has no time zone, so it names no moment.
    """
    if moment.utcoffset() is None:
        raise ValueError("expected a moment with a time zone")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@lru_cache(maxsize=64)  # the reservations of a batch all end at one moment
def later(moment: str, duration: timedelta) -> str:
    """Return the moment that is ``duration`` later; at most the last moment of the year 9999."""
    try:
        return stamp(datetime.strptime(moment, _SHAPE).replace(tzinfo=UTC) + duration)
    except OverflowError:
        return stamp(datetime.max.replace(tzinfo=UTC))


def between(moment: str, end: str) -> timedelta:
    """Return the time from one stored moment to another."""
    return datetime.strptime(end, _SHAPE) - datetime.strptime(moment, _SHAPE)  # noqa: DTZ007 - both are in UTC


def is_stamp(text: str) -> bool:
    """Return whether a text has the shape of a stored moment; texts of any other shape would compare wrongly."""
    try:
        return stamp(datetime.strptime(text, _SHAPE).replace(tzinfo=UTC)) == text
    except ValueError:
        return False
