"""The noise of an attempt that was not committed, kept for the next attempt at the same request.

Noise is sampled before its charge is committed. The operator of the database sees the noise then, and could make the
commit fail: a client that tries again, as it should, would hand over fresh noise for the same counts each time, and be
charged once. Hence a repeated attempt draws the same noise.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from service.noise.keystream import KEY_BYTES, Keystream

_MOST = 10_000  # requests that failed; of the oldest one the noise is sampled anew


class Attempts:
    """Keys of the keystreams of requests that were begun and not yet answered with success; safe between threads."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def keystream(self, identity: str | None) -> Iterator[Keystream]:
        """Yield the keystream of a request, forgotten at the end of the block unless that raises.

        Args:
            identity: of the request with its counts; None where it cannot be told from others: it is a new one then.
        """
        yield Keystream(self.key(identity))
        self.forget(identity)

    def key(self, identity: str | None) -> bytes | None:
        """Return the key of a request, kept until ``forget``; None where the identity is None."""
        if identity is None:
            return None
        with self._lock:
            key = self._keys.setdefault(identity, secrets.token_bytes(KEY_BYTES))
            if len(self._keys) > _MOST:
                self._keys.popitem(last=False)
        return key

    def forget(self, identity: str | None) -> None:
        """Forget the key of a request that was committed."""
        with self._lock:
            self._keys.pop(identity or "", None)
