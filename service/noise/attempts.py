"""The noise of an attempt that was not committed, kept for the next attempt at the same request.

The service draws noise before it commits the charge. The operator of the database can see the noisy counts then, and
can make the commit fail. The client tries again, as it should. If each attempt had fresh noise, the operator would see
many noisy versions of the same counts for one charge. So a repeated attempt gets the same noise.

An attempt that was refused before its noisy counts went to the database leaves nothing here. So no number of refused
requests pushes out the key of one whose commit failed.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from service.noise.keystream import KEY_BYTES

_MOST = 10_000  # keys of a principal; beyond this its oldest is forgotten, and a retry of that request gets fresh noise


@dataclass(frozen=True, eq=False)
class NoiseKey:
    """The key of a request's keystream, which all attempts that are under way share."""

    key: bytes = field(repr=False)


class Attempts:
    """Keystream keys of requests that are under way, or were not committed; several threads may use it."""

    def __init__(self) -> None:
        # A key that is not kept is forgotten with the last attempt that holds it.
        self._known = WeakValueDictionary[str, NoiseKey]()
        self._kept: dict[str, OrderedDict[str, NoiseKey]] = {}  # by principal, then by the request's identity
        self._lock = threading.Lock()

    def key(self, identity: str | None) -> NoiseKey | None:
        """Return the key of a request, to be held until the attempt ends; None if the identity is None.

        Args:
            identity: identifies the request together with its counts. None if nothing identifies it: its keystream is
                then a new one.
        """
        if identity is None:
            return None
        with self._lock:
            return self._known.setdefault(identity, NoiseKey(secrets.token_bytes(KEY_BYTES)))

    def keep(self, principal: str, identity: str, key: NoiseKey) -> None:
        """Keep a key until ``forget``, because noise that is made with it goes to the database now."""
        with self._lock:
            kept = self._kept.setdefault(principal, OrderedDict())
            kept[identity] = key
            if len(kept) > _MOST:
                kept.popitem(last=False)

    def forget(self, principal: str, identity: str | None) -> None:
        """Forget the key of a request that was committed."""
        with self._lock:
            kept = self._kept.get(principal, OrderedDict())
            kept.pop(identity or "", None)
            if not kept:
                self._kept.pop(principal, None)
