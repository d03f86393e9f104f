"""How often somebody may ask: each key, and each address whose keys are not valid. Counted in this process alone.

The generic cell rate algorithm: of each name only the moment is kept at which its last request would have been due
at the steady rate. It takes a microsecond and no thread, which the usual libraries need to forget what is over.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from service.errors import TooManyRequests
from service.settings import RATE_UNITS

PAGE = "page"  # in the state of a request that a page makes in process: the state of the page's own
GIVEN_UP = "given_up"  # in the state of a request: what counts that its client hung up before its answer
_MOST_NAMES = 10_000


class Rate(NamedTuple):
    """So many in so many seconds, all of them at once if need be."""

    number: int
    seconds: int


_HANG_UPS = Rate(60, 60)
"""Requests with one key that are given up. Each has cost a helper's process what it had found by then."""


def read_rate(text: str) -> Rate:
    """A rate as the settings have it: ``100/minute``."""
    count, _, unit = text.partition("/")
    return Rate(int(count), RATE_UNITS[unit])


class Meter:
    """A rate for each of many names. Those that are at rest are forgotten."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._burst = rate.seconds / rate.number, float(rate.seconds)
        self._clock = clock
        self._due: dict[str, float] = {}  # when each is at rest again

    def wait(self, name: str) -> float:
        """Seconds until the next one is within the rate; 0 where it is now."""
        return max(0.0, self._due.get(name, 0.0) + self._step - self._burst - self._clock())

    def count(self, name: str) -> None:
        """Count one."""
        now = self._clock()
        if name not in self._due and len(self._due) >= _MOST_NAMES:
            self._forget(now)
        self._due[name] = max(self._due.get(name, now), now) + self._step

    def _forget(self, now: float) -> None:
        self._due = {name: due for name, due in self._due.items() if due > now}
        while len(self._due) >= _MOST_NAMES:  # of those who come in such numbers, the one that came first
            del self._due[next(iter(self._due))]


class Throttle:
    """Refuses those who ask too often.

    An address that showed too many keys that are not valid is told so instead of that its key is not valid. A valid
    key is never refused for it: clients may share the address of a proxy with one that has gone wrong.
    """

    def __init__(self, requests: str, failures: str) -> None:
        self._requests, self._failures = (
            None if rate == "off" else Meter(read_rate(rate)) for rate in (requests, failures)
        )
        self._known: dict[int, None] = {}  # salted hashes of tokens that were valid
        self._hang_ups = Meter(_HANG_UPS)

    def is_suspect(self, address: str, token: str) -> bool:
        """Whether a key comes from an address that showed too many that are not valid, and was not valid before.

        Looking these up must not take the time of others.
        """
        return self._failures is not None and self._failures.wait(address) > 0 and hash(token) not in self._known

    def gave_up(self, token: str) -> None:
        """A request with this token was given up before its answer."""
        self._hang_ups.count(_name(token))

    def check_patience(self, token: str) -> None:
        """Refuse a key whose clients hang up over and over, before it is even looked up.

        Raises:
            TooManyRequests: they do.
        """
        wait = self._hang_ups.wait(_name(token))
        if wait:
            raise _refusal("requests with this key were given up before their answers", wait)

    def failed(self, address: str) -> None:
        """A key was not valid.

        Raises:
            TooManyRequests: too many were not, from this address.
        """
        if self._failures is not None:
            wait = self._failures.wait(address)
            if wait:
                raise _refusal("keys that are not valid came from this address", wait)
            self._failures.count(address)

    def passed(self, token: str, key: str) -> None:
        """A key was valid.

        Raises:
            TooManyRequests: it asks too often.
        """
        if self._failures is not None:
            if len(self._known) >= _MOST_NAMES:
                self._known.clear()
            self._known[hash(token)] = None
        if self._requests is not None:
            wait = self._requests.wait(key)
            if wait:
                raise _refusal("requests came with this key", wait)
            self._requests.count(key)


def _name(token: str) -> str:
    return str(hash(token))  # salted, so that no token is kept


def _refusal(what: str, wait: float) -> TooManyRequests:
    return TooManyRequests(f"too many {what}", max(1, math.ceil(wait)))
