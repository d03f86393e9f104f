"""The noise of an attempt that was not committed, kept for the next attempt at the same request.

The service draws noise before it commits the charge. The operator of the database can see the noisy counts then, and
can make the commit fail. The client tries again, as it should. If each attempt had fresh noise, the operator would see
many noisy versions of the same counts for one charge. So a repeated attempt gets the same noise.
"""

import secrets
import threading
from collections import OrderedDict

from service.noise.keystream import KEY_BYTES

_MOST = 10_000  # keys; beyond this the oldest is forgotten, and a retry of its request gets fresh noise


class Attempts:
    """Keystream keys of requests that were begun and not yet committed; several threads may use it."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def key(self, identity: str | None) -> bytes | None:
        """Return the keystream's key of a request, which is kept until ``forget``; None if the identity is None.

        Args:
            identity: identifies the request together with its counts. None if nothing identifies it: its keystream is
                then a new one.
        """
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
