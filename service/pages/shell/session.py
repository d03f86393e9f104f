"""Sessions in an encrypted cookie: every replica can read them, and none is stored.

The cookie contains the key itself. A revoked or expired key therefore ends the session with the next request.
"""

import base64
import binascii
import json
import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import Request, Response

from service.ledger.access.key_records import Role
from service.ledger.storage import clock
from service.ledger.storage.secret import Secret

COOKIE = "ledger_session"
SECURE_COOKIE = f"__Host-{COOKIE}"  # over HTTPS: browsers accept the prefix only from this host, and only with TLS
SIGN_OUT = "/sign-out"
LONGEST_KEY = 2500  # characters: the cookie stays below the 4,096 bytes that browsers keep
_NONCE_BYTES = 12
_VERSION = b"session 2"  # authenticated with the rest


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in user.

    Attributes:
        key: the bearer key of the pages' requests.
        name: the principal, for display.
        role: its role, for display; ``/v1`` decides what the key may do.
        expires: seconds since 1970.
    """

    key: str = field(repr=False)
    name: str
    role: Role
    expires: int


def new_session(key: str, name: str, role: Role, hours: int) -> Session:
    """Return a session that begins now.

    Args:
        key: the bearer key.
        name: the principal.
        role: its role.
        hours: the lifetime.
    """
    return Session(key, name, role, int(clock.seconds()) + 3600 * hours)


def seal(secret: Secret, session: Session) -> str:
    """Return the cookie's value: AES-256-GCM under a key that HMAC derives from the installation's secret."""
    plain = json.dumps([session.key, session.name, session.role, session.expires]).encode()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _text(nonce + _cipher(secret).encrypt(nonce, plain, _VERSION))


def unseal(secret: Secret, sealed: str) -> Session | None:
    """Return the session in a cookie; None if it has expired or was not sealed with this secret."""
    try:
        decoded = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        plain = _cipher(secret).decrypt(decoded[:_NONCE_BYTES], decoded[_NONCE_BYTES:], _VERSION)
    except (ValueError, binascii.Error, InvalidTag):  # ValueError: too short to hold a nonce, or not ASCII
        return None
    session = Session(*json.loads(plain))
    return session if session.expires > clock.seconds() else None


def session_of(request: Request) -> Session | None:
    """Return the session of a request; None if the user is not signed in."""
    sealed = request.cookies.get(name_of_cookie(request))
    return None if sealed is None else unseal(request.app.state.secret, sealed)


def csrf_token(secret: Secret, session: Session) -> str:
    """Return the CSRF token of all forms on this principal's pages, which no other site can know.

    The token does not depend on the session, so a form that outlives its session can be sent in the next one.
    """
    return _text(secret.hmac("page-form", session.name.encode()))


def remember(request: Request, response: Response, session: Session) -> None:
    """Set the session cookie; a browser that got it over HTTPS never sends it without TLS."""
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        name_of_cookie(request),
        seal(request.app.state.secret, session),
        max_age=session.expires - int(clock.seconds()),
        httponly=True,
        samesite="strict",
        secure=_is_secure(request),
    )


def forget(request: Request, response: Response) -> None:
    """Delete the session cookie."""
    secure = _is_secure(request)
    response.delete_cookie(name_of_cookie(request), httponly=True, samesite="strict", secure=secure)


def name_of_cookie(request: Request) -> str:
    """Return the name of the cookie that holds the request's session."""
    return SECURE_COOKIE if _is_secure(request) else COOKIE


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _cipher(secret: Secret) -> AESGCM:
    return AESGCM(secret.hmac("page-session"))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
