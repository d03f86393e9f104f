"""Texts for people who could not be signed in at the issuer: the cause, and the next step."""

from collections.abc import Mapping
from typing import NamedTuple

from fastapi import Request, Response

from service.api.identity.authorization_code import IssuerSignIn, Reason, SignInFailed
from service.pages.shell.layout import page

_RETRY = "10"  # seconds


class _Words(NamedTuple):
    """The page of a failure.

    ``{issuer}`` and ``{address}`` are the issuer's name and the address of the pages; ``{detail}`` is a colon and the
    failure's detail, or nothing.
    """

    status: int
    title: str
    happened: str
    remedy: str


_WORDS: Mapping[Reason, _Words] = {
    "not_begun": _Words(
        400,
        "This sign-in has ended or did not begin here",
        "A sign-in has to end in the browser in which it began, within 10 minutes, and once. This browser keeps no such"
        " sign-in.",
        "Sign in again. If that leads here once more, check that this browser accepts cookies, and that you open the"
        " pages at {address}.",
    ),
    "another_attempt": _Words(
        400,
        "The answer belongs to another sign-in",
        "This browser has begun a sign-in, and the answer that arrived is not for it. That happens after two sign-ins"
        " at once in one browser, and after a link that somebody else made. You were not signed in.",
        "Sign in again, in one window. Do not use the link again if somebody sent it to you.",
    ),
    "another_issuer": _Words(
        400,
        "The answer does not come from {issuer}",
        "The answer to the sign-in does not name {issuer} as its origin. The service did not use it.",
        "Sign in again. If that leads here once more, tell the operator of this service.",
    ),
    "malformed": _Words(
        400,
        "The answer is incomplete",
        "The answer to the sign-in has no code, or has a part twice or too long.",
        "Sign in again. If that leads here once more, tell the operator of this service.",
    ),
    "denied": _Words(
        403,
        "{issuer} did not sign you in",
        "{issuer} refused, or you cancelled.",
        "Sign in again, with the account that may use this service. If you have none, ask the administrators of"
        " {issuer} for access.",
    ),
    "misconfigured": _Words(
        503,
        "This service and {issuer} do not agree",
        "{issuer} does not accept this service as it is configured{detail}.",
        "Tell the operator of this service; the log has a line about it. Keys of this service still work.",
    ),
    "unavailable": _Words(
        503,
        "{issuer} does not answer as expected",
        "The service could not complete the sign-in with {issuer}{detail}.",
        "Sign in again in a minute. If that leads here once more, tell the operator of this service; the log has a line"
        " about it. Keys of this service still work.",
    ),
    "code_refused": _Words(
        400,
        "{issuer} has ended this sign-in",
        "{issuer} no longer accepts the code of this sign-in. A code is accepted once, and for a short time.",
        "Sign in again.",
    ),
    "token_refused": _Words(
        403,
        "The service did not accept the answer of {issuer}",
        "{issuer} signed you in, and the service refused its token{detail}.",
        "Sign in again. If that leads here once more, tell the operator of this service.",
    ),
    "no_permission": _Words(
        403,
        "You have no access yet",
        "{issuer} signed you in, and its token does not permit you to use this service{detail}.",
        "Ask the administrators of {issuer} for a role of this service. Then sign in again.",
    ),
    "too_many_accounts": _Words(
        403,
        "Too many accounts for a session",
        "{issuer} signed you in, and its token lists more accounts than a browser's cookie can hold.",
        "Ask the administrators of {issuer} to list fewer accounts, or * for all. Programs can use the token as it is.",
    ),
    "too_many_attempts": _Words(
        429,
        "Too many sign-ins",
        "Too many sign-ins came from your network address at once, or failed.",
        "Wait a minute, then sign in again.",
    ),
}


def failure_page(request: Request, sign_in: IssuerSignIn, failure: SignInFailed, onward: str) -> Response:
    """Return the page of a failed sign-in, which leads back.

    Args:
        request: the request.
        sign_in: the sign-in at the issuer.
        failure: the failure.
        onward: the page that the person wanted to open.
    """
    words = _WORDS[failure.reason]
    detail = f": {failure.detail}" if failure.detail else ""
    names = {"issuer": sign_in.name, "address": sign_in.public_url, "detail": detail}
    shown = {name: text.format(**names) for name, text in words._asdict().items() if isinstance(text, str)}
    response = page(request, "sign-in-failed.html", shown | {"onward": onward}, status=words.status)
    response.headers["Referrer-Policy"] = "no-referrer"  # the address of this page may contain a code
    if words.status in (429, 503):
        response.headers["Retry-After"] = _RETRY
    return response
