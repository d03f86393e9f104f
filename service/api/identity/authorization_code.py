"""Sign-in of people at the issuer: the authorization code flow with PKCE.

Source: RFC 6749 (4.1), RFC 7636, RFC 9207, RFC 9700, OpenID Connect Core 1.0 (3.1).
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

import structlog

from service.api.http.fair_places import FairPlaces
from service.api.identity.issuer import Endpoints
from service.api.identity.issuer_requests import FAILURES, Answer, Unusable, ask
from service.api.identity.oidc import Tokens
from service.errors import Forbidden, TooManyRequests, Unauthenticated, Unavailable
from service.ledger.access.authentication import Principal
from service.ledger.storage import clock
from service.settings import Settings

CALLBACK = "/sign-in/oidc/callback"

_ATTEMPT = 600  # seconds in which a person signs in at the issuer
_PATIENCE = 20.0  # seconds for all requests to the issuer that one person waits for
_LONGEST = 4096  # characters of each parameter of the issuer's answer
_AT_ONCE, _OF_ADDRESS, _WAITING = 16, 4, 100  # exchanges of codes: in all, of one address, and waiting for their turn
_OK = 200
# Errors of RFC 6749 (4.1.2.1, 5.2) and OpenID Connect (3.1.2.6), by what they mean to the person.
_DENIED = {"access_denied", "account_selection_required", "consent_required", "interaction_required", "login_required"}
_MISCONFIGURED = {
    "invalid_client",
    "invalid_request",
    "invalid_scope",
    "unauthorized_client",
    "unsupported_grant_type",
    "unsupported_response_type",
}

_log = structlog.get_logger("service.sign_in")

Reason = Literal[
    "not_begun",
    "another_attempt",
    "another_issuer",
    "malformed",
    "denied",
    "misconfigured",
    "unavailable",
    "code_refused",
    "token_refused",
    "no_permission",
    "too_many_accounts",
    "too_many_attempts",
]


class SignInFailed(Exception):
    """A sign-in that did not succeed.

    Attributes:
        reason: the kind of failure.
        detail: more about it, in words of this service; empty where there is no more.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Attempt(NamedTuple):
    """A sign-in that has begun; the person's browser keeps it, encrypted.

    Attributes:
        state: recognises the browser when it comes back.
        nonce: recognises the token.
        verifier: proves to the issuer that the code is redeemed by the service that asked for it.
        onward: the page to open after sign-in.
        expires: seconds since 1970.
    """

    state: str
    nonce: str
    verifier: str
    onward: str
    expires: int


class Identity(NamedTuple):
    """A person for whom the issuer vouches, and the second since 1970 until which it does."""

    principal: Principal
    expires: int


class IssuerSignIn:
    """Sign-in at the configured issuer.

    Attributes:
        name: the issuer's name, for people.
        public_url: the address at which browsers reach the pages.
        configuration: differs where another issuer, client or meaning of claims is configured; it binds sessions.
    """

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._issuer, self._tokens = tokens.issuer, tokens
        self._client, self._scope = str(settings.oidc_client_id), settings.oidc_scope
        secret = settings.oidc_client_secret
        self._secret = None if secret is None else secret.get_secret_value()
        self._places = FairPlaces(_AT_ONCE, 1, _OF_ADDRESS, _WAITING)
        self.name = settings.oidc_name or urlsplit(self._issuer.url).netloc
        self.public_url = str(settings.public_url)
        stated = repr((self._issuer.url, self._client, tokens.configuration))
        self.configuration = hashlib.sha256(stated.encode()).hexdigest()[:32]

    @classmethod
    def configured(cls, settings: Settings, tokens: Tokens | None) -> "IssuerSignIn | None":
        """Return the sign-in of the settings; None where people sign in with keys only."""
        return None if tokens is None or settings.oidc_client_id is None else cls(settings, tokens)

    async def begin(self, onward: str) -> tuple[str, Attempt]:
        """Begin a sign-in, and return the issuer's address to which the browser goes.

        Args:
            onward: the page to open after the sign-in.

        Raises:
            SignInFailed: the issuer does not answer, or publishes no endpoints for signing in.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                endpoints = await self._endpoints()
        except TimeoutError:
            raise _slow() from None
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        parameters = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self.public_url + CALLBACK,
            "scope": self._scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge_of(verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in endpoints.authorization else "?"
        attempt = Attempt(state, nonce, verifier, onward, int(clock.seconds()) + _ATTEMPT)
        return f"{endpoints.authorization}{joint}{urlencode(parameters)}", attempt

    async def end(self, attempt: Attempt, parameters: Mapping[str, str], sender: str) -> Identity:
        """End a sign-in: redeem the issuer's code for a token, and verify the token.

        Args:
            attempt: the attempt that this browser keeps.
            parameters: the issuer's answer to it.
            sender: the browser's address; requests to the issuer for one address wait for each other.

        Raises:
            SignInFailed: the sign-in did not succeed.
        """
        try:
            async with asyncio.timeout(_PATIENCE), self._places.place(sender):
                endpoints = await self._endpoints()
                code = self._code(endpoints, parameters)
                token = _id_token(await self._redeem(endpoints, code, attempt.verifier))
                return Identity(*await self._tokens.person(token, self._client, attempt.nonce))
        except TooManyRequests:
            raise SignInFailed("too_many_attempts") from None
        except TimeoutError:
            raise _slow() from None
        except Unauthenticated as refusal:
            raise SignInFailed("token_refused", str(refusal)) from None
        except Forbidden as refusal:
            raise SignInFailed("no_permission", str(refusal)) from None
        except Unavailable:
            raise SignInFailed("unavailable") from None

    def _code(self, endpoints: Endpoints, parameters: Mapping[str, str]) -> str:
        """Return the code in the issuer's answer.

        Raises:
            SignInFailed: another issuer answers, or the answer is an error, or is malformed.
        """
        issuer = parameters.get("iss", None if endpoints.states_issuer else self._issuer.url)
        if issuer != self._issuer.url:
            raise SignInFailed("another_issuer")
        if (error := parameters.get("error")) is not None:
            raise _of_error(error)
        if not parameters.get("code"):
            raise SignInFailed("malformed")
        return parameters["code"]

    async def _endpoints(self) -> Endpoints:
        try:
            endpoints = await self._issuer.endpoints()
        except Unavailable:
            raise SignInFailed("unavailable") from None
        if endpoints is None:
            detail = "its discovery document has no endpoints with https for the authorization code flow with PKCE"
            raise SignInFailed("misconfigured", detail)
        return endpoints

    async def _redeem(self, endpoints: Endpoints, code: str, verifier: str) -> Answer:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.public_url + CALLBACK,
            "code_verifier": verifier,
        }
        try:
            if self._secret is None:
                return await ask(endpoints.token, form=form | {"client_id": self._client})
            # RFC 6749 (2.3.1): both are encoded as in a form first
            return await ask(endpoints.token, form=form, basic=(quote_plus(self._client), quote_plus(self._secret)))
        except FAILURES as error:
            reason = str(error) if isinstance(error, Unusable) else type(error).__name__
            _log.warning("a code cannot be redeemed at the issuer", issuer=self._issuer.url, reason=reason)
            raise SignInFailed("unavailable", str(error) if isinstance(error, Unusable) else "") from None


def challenge_of(verifier: str) -> str:
    """Return the PKCE challenge of a verifier, by the method S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def parameters_of(attempt: Attempt | None, query: Sequence[tuple[str, str]]) -> tuple[Attempt, dict[str, str]]:
    """Return the attempt that the issuer answers, and the parameters of the answer.

    Args:
        attempt: the attempt that this browser keeps; None where it keeps none.
        query: the names and values with which the browser came back.

    Raises:
        SignInFailed: the answer belongs to no attempt, or to another one than this browser's.
    """
    if attempt is None or attempt.expires <= clock.seconds():
        raise SignInFailed("not_begun")
    parameters = dict(query)
    given = parameters.get("state", "")
    if not hmac.compare_digest(attempt.state.encode(), given.encode(errors="replace")):
        raise SignInFailed("another_attempt")
    if len(parameters) != len(query) or any(len(value) > _LONGEST for value in parameters.values()):
        raise SignInFailed("malformed")
    return attempt, parameters


def _of_error(error: str) -> SignInFailed:
    """Return the failure of an error's code; a code that no standard has is not repeated."""
    if error in _DENIED:
        return SignInFailed("denied")
    if error in _MISCONFIGURED:
        return SignInFailed("misconfigured", f"its answer is the error {error}")
    return SignInFailed("unavailable", "it reported an error of its own")


def _id_token(answer: Answer) -> str:
    token, error = answer.document.get("id_token"), answer.document.get("error")
    if answer.status == _OK and isinstance(token, str):
        return token
    if answer.status == _OK:
        raise SignInFailed("misconfigured", "its answer contains no ID token; the scope must contain openid")
    if error == "invalid_grant":
        raise SignInFailed("code_refused")
    raise _of_error(error if isinstance(error, str) else "")


def _slow() -> SignInFailed:
    return SignInFailed("unavailable", f"it did not answer within {_PATIENCE:.0f} seconds")
