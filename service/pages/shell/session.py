"""Sessions in an encrypted cookie: every replica can read them, and none is stored.

The cookie contains the key itself. A revoked or expired key therefore ends the session with the next request. Where an
issuer signed the user in, it contains the user's principal instead: the token was verified, and is not kept.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import Request, Response

from service.api.identity.authorization_code import Identity, SignInFailed
from service.ledger.access.authentication import Principal
from service.ledger.access.key_records import Role
from service.ledger.storage import clock
from service.ledger.storage.secret import Secret
from service.pages.shell import sealed
from service.pages.shell.sealed import is_secure, name_of, text_of_bytes

COOKIE = "ledger_session"
SIGN_OUT = "/sign-out"
LONGEST_KEY = 2500  # characters: the cookie stays below the 4,096 bytes that browsers keep
_LONGEST_IDENTITY = 2800  # characters of a person's name and accounts, for the same reason
_PURPOSE, _VERSION = "page-session", b"session 3"


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in user.

    Attributes:
        key: the bearer key of the pages' requests; empty where an issuer signed the user in.
        name: the principal.
        role: its role, for display; ``/v1`` decides what the principal may do.
        expires: seconds since 1970.
        configuration: the configuration of the issuer that signed the user in; empty for a key.
        accounts: the only accounts that the user reaches, for display where a key says which they are; None: all. Empty
            where a key has so many that they do not fit into a cookie.
    """

    key: str = field(repr=False)
    name: str
    role: Role
    expires: int
    configuration: str = ""
    accounts: tuple[str, ...] | None = None

    def reaches(self, account: str) -> bool:
        """Return whether the user may read an account. This decides what is shown; ``/v1`` decides what is allowed."""
        return self.accounts is None or account in self.accounts

    @property
    def principal(self) -> Principal | None:
        """The principal for whom an issuer vouched; None where the key says who it is."""
        if not self.configuration:
            return None
        return Principal(None, self.name, self.role, None if self.accounts is None else frozenset(self.accounts))


def new_session(key: str, name: str, role: Role, hours: int, accounts: Sequence[str] | None = None) -> Session:
    """Return a session that begins now.

    Args:
        key: the bearer key.
        name: the principal.
        role: its role.
        hours: the lifetime.
        accounts: the only accounts that the key reaches; None: all.
    """
    reach = None if accounts is None else tuple(accounts)
    if reach is not None and len(json.dumps([name, reach])) > _LONGEST_IDENTITY:
        reach = ()
    return Session(key, name, role, int(clock.seconds()) + 3600 * hours, "", reach)


def issued_session(identity: Identity, configuration: str, hours: int) -> Session:
    """Return a session that begins now, of a person whom an issuer signed in.

    Args:
        identity: the person; the session ends with the issuer's word at the latest.
        configuration: the present configuration of the issuer.
        hours: the longest lifetime.

    Raises:
        SignInFailed: the person's accounts do not fit into a cookie.
    """
    principal = identity.principal
    expires = min(identity.expires, int(clock.seconds()) + 3600 * hours)
    reach = None if principal.accounts is None else tuple(sorted(principal.accounts))
    if len(json.dumps([principal.name, reach])) > _LONGEST_IDENTITY:
        raise SignInFailed("too_many_accounts")
    return Session("", principal.name, principal.role, expires, configuration, reach)


def seal(secret: Secret, session: Session) -> str:
    """Return the cookie's value."""
    values = (
        session.key,
        session.name,
        session.role,
        session.expires,
        session.configuration,
        session.accounts,
    )
    return sealed.seal(secret, _PURPOSE, _VERSION, values)


def unseal(secret: Secret, text: str) -> Session | None:
    """Return the session in a cookie; None if it has expired or was not sealed with this secret."""
    values = sealed.unseal(secret, _PURPOSE, _VERSION, text)
    if values is None:
        return None
    key, name, role, expires, configuration, reach = values
    session = Session(key, name, role, expires, configuration, None if reach is None else tuple(reach))
    return session if session.expires > clock.seconds() else None


def session_of(request: Request) -> Session | None:
    """Return the session of a request; None if the user is not signed in.

    A session that an issuer began ends where the issuer is no longer configured as it was then.
    """
    text = request.cookies.get(name_of_cookie(request))
    session = None if text is None else unseal(request.app.state.secret, text)
    if session is not None and session.configuration:
        present = request.app.state.issuer_sign_in
        return session if present is not None and present.configuration == session.configuration else None
    return session


def csrf_token(secret: Secret, session: Session) -> str:
    """Return the CSRF token of all forms on this principal's pages, which no other site can know.

    The token does not depend on the session, so a form that outlives its session can be sent in the next one.
    """
    return text_of_bytes(secret.hmac("page-form", session.name.encode()))


def remember(request: Request, response: Response, session: Session) -> None:
    """Set the session cookie; a browser that got it over HTTPS never sends it without TLS."""
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        name_of_cookie(request),
        seal(request.app.state.secret, session),
        max_age=session.expires - int(clock.seconds()),
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )


def forget(request: Request, response: Response) -> None:
    """Delete the session cookie."""
    secure = is_secure(request)
    response.delete_cookie(name_of_cookie(request), httponly=True, samesite="strict", secure=secure)


def name_of_cookie(request: Request) -> str:
    """Return the name of the cookie that holds the request's session."""
    return name_of(request, COOKIE)
