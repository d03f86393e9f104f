"""Rate limits of keys, and of addresses that send invalid keys; counted in this process alone.

They use the generic cell rate algorithm: for each name only one time is kept, at which its last request would have been
due at the steady rate. It takes a microsecond, and unlike the usual libraries no thread to remove old names.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from service.errors import TooManyRequests
from service.settings import RATE_UNITS

PAGE = "page"  # in the state of a request that a page makes in process: the state of the page's own request
SENDER = "sender"  # in the state of a request that has no key of its own: the principal that sent it
GIVEN_UP = "given_up"  # in the state of a request: the function to call when its client hung up before the answer
_MOST_NAMES = 10_000


class Rate(NamedTuple):
    """A number of requests in a number of seconds, which may come all at once."""

    number: int
    seconds: int


_HANG_UPS = Rate(60, 60)
"""The limit of abandoned requests with one key. Each has cost the results of a helper process."""


def read_rate(text: str) -> Rate:
    """Parse a rate as the settings have it: ``100/minute``."""
    count, _, unit = text.partition("/")
    return Rate(int(count), RATE_UNITS[unit])


class Meter:
    """A rate limit for each of many names. Names at rest are removed."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._burst = rate.seconds / rate.number, float(rate.seconds)
        self._clock = clock
        self._due: dict[str, float] = {}  # time at which each is at rest again

    def wait(self, name: str) -> float:
        """Return the seconds until the next request is within the rate; 0 where it is now."""
        return max(0.0, self._due.get(name, 0.0) + self._step - self._burst - self._clock())

    def count(self, name: str) -> None:
        """Count one request."""
        now = self._clock()
        if name not in self._due and len(self._due) >= _MOST_NAMES:
            self._forget(now)
        self._due[name] = max(self._due.get(name, now), now) + self._step

    def _forget(self, now: float) -> None:
        self._due = {name: due for name, due in self._due.items() if due > now}
        while len(self._due) >= _MOST_NAMES:  # of very many names, the oldest one
            del self._due[next(iter(self._due))]


class Throttle:
    """The rate limits of callers.

    An address that sent too many invalid keys gets 429 instead of 401. A valid key is never refused for its address:
    clients may share a proxy's address with one that is misconfigured.
    """

    def __init__(self, requests: str, failures: str) -> None:
        self._requests, self._failures = (
            None if rate == "off" else Meter(read_rate(rate)) for rate in (requests, failures)
        )
        self._known: dict[int, None] = {}  # salted hashes of tokens that were valid
        self._hang_ups = Meter(_HANG_UPS)

    def is_suspect(self, address: str, token: str) -> bool:
        """Return True where a key was not valid before, and its address sent too many invalid ones.

        The lookup of such keys must not take time from other requests.
        """
        return self._failures is not None and self._failures.wait(address) > 0 and hash(token) not in self._known

    def count_abandoned(self, token: str) -> None:
        """Count an abandoned request with this token."""
        self._hang_ups.count(_name(token))

    def check_abandoned(self, token: str) -> None:
        """Refuse a key whose clients hang up over and over, before it is looked up.

        Raises:
            TooManyRequests: the limit of abandoned requests is reached.
        """
        wait = self._hang_ups.wait(_name(token))
        if wait:
            raise _refusal("requests with this key were abandoned before their answers", wait)

    def count_invalid(self, address: str) -> None:
        """Count an invalid key.

        Raises:
            TooManyRequests: the address has sent too many.
        """
        if self._failures is not None:
            wait = self._failures.wait(address)
            if wait:
                raise _refusal("invalid keys came from this address", wait)
            self._failures.count(address)

    def count_valid(self, token: str, key: str) -> None:
        """Count a request with a valid key.

        Raises:
            TooManyRequests: the key's rate limit is reached.
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
