"""The signing keys and the endpoints of an OpenID Connect issuer, fetched by a thread and cached.

They are fetched again when they are old or when a token names an unknown one. A token whose key is known never waits
for the issuer. While the issuer is down, what is known stays valid for a day at most.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWTError

from service.api.identity.issuer_requests import FAILURES, Unusable, ask
from service.errors import Unauthenticated, Unavailable
from service.urls import is_confidential

ALGORITHMS = ("RS256", "ES256", "EdDSA")  # asymmetric ones only: a verifier cannot sign with them

_DISCOVERY = "/.well-known/openid-configuration"
_FRESH = 600.0  # seconds after which keys are fetched again while the old ones serve, so that withdrawn ones end
_STALE = 86_400.0  # seconds after which the old keys are no longer valid
_PAUSE = 10.0  # seconds between two fetches, however many unknown keys come
_OK = 200
_S256 = "S256"
_SHORTEST_RSA = 2048  # bits

_log = structlog.get_logger("service.issuer")

Keys = Mapping[tuple[str, str], PyJWK]  # by key id and algorithm


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of an issuer at which people sign in.

    Attributes:
        authorization: where the browser is sent.
        token: where the service exchanges the code for the token.
        states_issuer: the issuer names itself beside each code (RFC 9207).
    """

    authorization: str
    token: str
    states_issuer: bool


@dataclass(frozen=True, slots=True)
class _Fetched:
    keys: Keys
    endpoints: Endpoints | None  # None: the issuer publishes none that can be used
    at: float  # by the monotonic clock


class Issuer:
    """One issuer, with the keys and the endpoints that it published last."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "issuer")
        self._mutex = threading.Lock()
        self._fetched = _Fetched({}, None, -math.inf)
        self._running: Future[None] | None = None
        self._next = -math.inf  # time of the earliest next fetch
        self._failed = False  # the last fetch failed

    async def key(self, key_id: str, algorithm: str) -> PyJWK:
        """Return the key of this id for this algorithm.

        Raises:
            Unauthenticated: the issuer publishes no such key.
            Unavailable: the key is not cached, and the issuer does not answer.
        """
        published = await self._published(lambda fetched: fetched.keys.get((key_id, algorithm)))
        if published is None:
            raise Unauthenticated("the token is not signed by a key that its issuer publishes")
        return published

    async def endpoints(self) -> Endpoints | None:
        """Return the endpoints for signing in; None where the issuer publishes none that can be used.

        Raises:
            Unavailable: they are not cached, and the issuer does not answer.
        """
        return await self._published(lambda fetched: fetched.endpoints)

    async def _published(self, look_up: Callable[[_Fetched], _Found | None]) -> _Found | None:
        age = self._clock() - self._fetched.at
        published = look_up(self._fetched)
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
        return look_up(self._fetched)

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
            keys, endpoints = asyncio.run(_fetch_documents(self.url))
            self._fetched, self._failed = _Fetched(keys, endpoints, self._clock()), False
        except FAILURES as error:
            self._failed = True
            reason = str(error) if isinstance(error, Unusable) else type(error).__name__
            _log.warning("the issuer's keys cannot be fetched", issuer=self.url, reason=reason)
            raise _unavailable(_PAUSE) from None
        finally:
            self._next = self._clock() + _PAUSE


def _unavailable(seconds: float) -> Unavailable:
    wait = max(1, math.ceil(min(seconds, _PAUSE)))
    return Unavailable("the issuer of the token does not answer, so its keys are not known; API keys still work", wait)


async def _fetch_documents(issuer: str) -> tuple[Keys, Endpoints | None]:
    """Fetch the keys and the endpoints that the issuer publishes now.

    Raises:
        httpx.HTTPError, httpx.InvalidURL, OSError, ValueError: the issuer does not answer, or not as HTTP.
        Unusable: the answer breaks the specification, or cannot be trusted.
    """
    discovery = await _document(issuer.removesuffix("/") + _DISCOVERY)
    if discovery.get("issuer") != issuer:
        raise Unusable("the discovery document belongs to another issuer")
    address = discovery.get("jwks_uri")
    if not isinstance(address, str) or not is_confidential(address):
        raise Unusable("expected jwks_uri with https")
    entries = (await _document(address)).get("keys")
    if not isinstance(entries, list):
        raise Unusable("expected a list of keys")
    keys: dict[tuple[str, str], PyJWK] = {}
    for entry in entries:
        key = _usable(entry)
        if key is not None:
            keys.setdefault((entry["kid"], key.algorithm_name), key)
    return keys, _endpoints(discovery)


async def _document(address: str) -> dict[str, Any]:
    answer = await ask(address)
    if answer.status != _OK:
        raise Unusable(f"the issuer answered with status {answer.status}")
    return answer.document


def _endpoints(discovery: Mapping[str, Any]) -> Endpoints | None:
    """Return the endpoints for signing in; None where they are missing or without https, or PKCE is not supported."""
    authorization, token = (discovery.get(f"{name}_endpoint") for name in ("authorization", "token"))
    methods = discovery.get("code_challenge_methods_supported", [_S256])  # some support it and do not say so
    if not (isinstance(authorization, str) and isinstance(token, str) and isinstance(methods, list)):
        return None
    usable = all(is_confidential(address) and "#" not in address for address in (authorization, token))
    if not usable or _S256 not in methods:
        return None
    return Endpoints(authorization, token, discovery.get("authorization_response_iss_parameter_supported") is True)


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
