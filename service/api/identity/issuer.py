"""The signing keys of an OpenID Connect issuer, fetched by a thread and cached.

Keys are fetched again when they are old or when a token names an unknown one. A token whose key is known never waits
for the issuer. While the issuer is down, known keys stay valid for a day at most.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWTError

from service.errors import Unauthenticated, Unavailable
from service.urls import is_confidential, is_loopback

ALGORITHMS = ("RS256", "ES256", "EdDSA")  # asymmetric ones only: a verifier cannot sign with them

_DISCOVERY = "/.well-known/openid-configuration"
_FRESH = 600.0  # seconds after which keys are fetched again while the old ones serve, so that withdrawn ones end
_STALE = 86_400.0  # seconds after which the old keys are no longer valid
_PAUSE = 10.0  # seconds between two fetches, however many unknown keys come
_TIMEOUT = 5.0  # seconds for each step of a fetch
_LONGEST = 15.0  # seconds for one document
_LARGEST = 1 << 20  # bytes of one document
_SHORTEST_RSA = 2048  # bits

_log = structlog.get_logger("service.issuer")

Keys = Mapping[tuple[str, str], PyJWK]  # by key id and algorithm


@dataclass(frozen=True, slots=True)
class _Fetched:
    keys: Keys
    at: float  # by the monotonic clock


class _Unusable(Exception):
    """An unusable answer of the issuer; the text is for the log."""


class Issuer:
    """One issuer, with the keys that it published last."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "issuer")
        self._mutex = threading.Lock()
        self._fetched = _Fetched({}, -math.inf)
        self._running: Future[None] | None = None
        self._next = -math.inf  # time of the earliest next fetch
        self._failed = False  # the last fetch failed

    async def key(self, key_id: str, algorithm: str) -> PyJWK:
        """Return the key of this id for this algorithm.

        Raises:
            Unauthenticated: the issuer publishes no such key.
            Unavailable: the key is not cached, and the issuer does not answer.
        """
        age = self._clock() - self._fetched.at
        published = self._fetched.keys.get((key_id, algorithm))
        if published is not None and age < _FRESH:
            return published
        fetching = self._fetch_soon()
        if published is not None and age < _STALE:
            return published
        if fetching is not None:
            # shared by all waiting requests: a client that hangs up must not cancel it
            await asyncio.shield(asyncio.wrap_future(fetching))
        elif self._failed:
            raise _unavailable(self._next - self._clock())
        published = self._fetched.keys.get((key_id, algorithm))
        if published is None:
            raise Unauthenticated("the token is not signed by a key that its issuer publishes")
        return published

    def _fetch_soon(self) -> "Future[None] | None":
        """Return the fetch that is running, or a new one; None where the last was a moment ago."""
        with self._mutex:
            if self._running is not None and not self._running.done():
                return self._running
            if self._clock() < self._next:
                return None
            self._next = math.inf  # until this fetch is done
            self._running = self._thread.submit(self._fetch)
            return self._running

    def _fetch(self) -> None:
        try:
            keys = _published(self.url)
            self._fetched, self._failed = _Fetched(keys, self._clock()), False
        # OSError: such as a bad certificate file
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, _Unusable) as error:
            self._failed = True
            reason = str(error) if isinstance(error, _Unusable) else type(error).__name__
            _log.warning("the issuer's keys cannot be fetched", issuer=self.url, reason=reason)
            raise _unavailable(_PAUSE) from None
        finally:
            self._next = self._clock() + _PAUSE


def _unavailable(seconds: float) -> Unavailable:
    wait = max(1, math.ceil(min(seconds, _PAUSE)))
    return Unavailable("the issuer of the token does not answer, so its keys are not known; API keys still work", wait)


def _published(issuer: str) -> Keys:
    """Fetch the keys that the issuer publishes now.

    Raises:
        httpx.HTTPError, httpx.InvalidURL, OSError, ValueError: the issuer does not answer, or not as HTTP and JSON.
        _Unusable: the answer breaks the specification, or cannot be trusted.
    """
    # An issuer on this machine is not reached through the machine's proxy.
    with httpx.Client(timeout=_TIMEOUT, trust_env=not is_loopback(issuer)) as client:
        document = _document(client, issuer.removesuffix("/") + _DISCOVERY)
        if document.get("issuer") != issuer:
            raise _Unusable("the discovery document belongs to another issuer")
        address = document.get("jwks_uri")
        if not isinstance(address, str) or not is_confidential(address):
            raise _Unusable("expected jwks_uri with https")
        entries = _document(client, address).get("keys")
    if not isinstance(entries, list):
        raise _Unusable("expected a list of keys")
    keys: dict[tuple[str, str], PyJWK] = {}
    for entry in entries:
        key = _usable(entry)
        if key is not None:
            keys.setdefault((entry["kid"], key.algorithm_name), key)
    return keys


def _document(client: httpx.Client, address: str) -> dict[str, Any]:
    deadline, body = time.monotonic() + _LONGEST, bytearray()
    with client.stream("GET", address, headers={"Accept": "application/json"}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise _Unusable(f"the issuer answered with status {answer.status_code}")
        for part in answer.iter_bytes():
            body += part
            if len(body) > _LARGEST or time.monotonic() > deadline:
                raise _Unusable("the issuer's answer is too long or takes too long")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise _Unusable("expected JSON") from None
    if not isinstance(document, dict):
        raise _Unusable("expected a JSON object")
    return document


def _usable(entry: Any) -> PyJWK | None:
    """Return a published key that can verify tokens here; None for other keys."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or entry.get("use", "sig") != "sig":
        return None
    try:
        key = PyJWK(entry)
    except (PyJWTError, AttributeError, KeyError, TypeError, ValueError):
        return None
    public = isinstance(key.key, EllipticCurvePublicKey | Ed25519PublicKey) or (
        isinstance(key.key, RSAPublicKey) and key.key.key_size >= _SHORTEST_RSA
    )
    return key if public and key.algorithm_name in ALGORITHMS else None
