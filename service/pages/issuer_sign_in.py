"""The pages of signing in at an OpenID Connect issuer: to the issuer, and back."""

from urllib.parse import quote

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.identity.authorization_code import (
    CALLBACK,
    Attempt,
    IssuerSignIn,
    SignInFailed,
    parameters_of,
)
from service.errors import Forbidden, NotFound, TooManyRequests
from service.ledger.storage import clock
from service.pages.issuer_failures import failure_page
from service.pages.shell import sealed
from service.pages.shell.forms import check_origin
from service.pages.shell.layout import page
from service.pages.shell.local_addresses import local_address
from service.pages.shell.session import csrf_token, issued_session, remember

router = APIRouter(include_in_schema=False)

BEGIN = "/sign-in/oidc"
_COOKIE = "ledger_sign_in"
_PURPOSE = "page-sign-in"
_SUSPECTS = "suspects"  # addresses that failed too often take turns as one

_log = structlog.get_logger("service.sign_in")


@router.get(BEGIN)
async def begin(request: Request) -> Response:
    """Send the browser to the issuer.

    This is a link and not a form, because browsers apply ``form-action`` to the redirect of a form too.
    """
    sign_in, onward = _configured(request), local_address(request.query_params.get("next", ""))
    try:
        check_origin(request)
    except Forbidden:  # another site leads here: the person decides on the sign-in page
        return RedirectResponse(f"/?next={quote(onward, safe='')}", 303)
    try:
        address, attempt = await sign_in.begin(onward)
    except SignInFailed as failure:
        return _failed(request, sign_in, failure, onward)
    response = RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})
    _keep(request, response, sign_in, attempt)
    return response


@router.get(CALLBACK)
async def end(request: Request) -> Response:
    """Sign in the person whom the issuer sends back.

    The answer is a page that leads on, and no redirect: with one, browsers would not send the session's cookie, because
    the navigation began at another site.
    """
    sign_in = _configured(request)
    attempt = _kept(request, sign_in)
    onward = "/" if attempt is None else attempt.onward
    try:
        known, parameters = parameters_of(attempt, request.query_params.multi_items())
    except SignInFailed as failure:
        # The attempt stays: it may be another one, whose answer is still to come.
        return _failed(request, sign_in, failure, onward)
    try:
        address = _address(request)
        sender = _SUSPECTS if request.app.state.throttle.is_suspect(address, "") else address
        identity = await sign_in.end(known, parameters, sender)
        session = issued_session(identity, sign_in.configuration, request.app.state.settings.session_hours)
    except SignInFailed as failure:
        response = _failed(request, sign_in, failure, onward)
        _forget(request, response)
        return response
    request.scope["state"]["principal"] = identity.principal  # for the log
    csrf = csrf_token(request.app.state.secret, session)  # the request itself has no session yet
    shown = {"onward": local_address(onward), "session": session, "csrf": csrf}
    response = page(request, "signed-in.html", shown)
    response.headers["Referrer-Policy"] = "no-referrer"  # the address of this page contains the code
    _forget(request, response)
    remember(request, response, session)
    return response


def _configured(request: Request) -> IssuerSignIn:
    sign_in: IssuerSignIn | None = request.app.state.issuer_sign_in
    if sign_in is None:
        raise NotFound("page", request.url.path)
    return sign_in


def _failed(request: Request, sign_in: IssuerSignIn, failure: SignInFailed, onward: str) -> Response:
    """Return the page of a failed sign-in, and count it as the use of an invalid key."""
    address = _address(request)
    try:
        if failure.reason not in ("unavailable", "misconfigured"):  # for which the person cannot be blamed
            request.app.state.throttle.count_invalid(address)
    except TooManyRequests:
        failure = SignInFailed("too_many_attempts")
    _log.warning("a sign-in at the issuer failed", reason=failure.reason, detail=failure.detail, client=address)
    return failure_page(request, sign_in, failure, onward)


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _keep(request: Request, response: Response, sign_in: IssuerSignIn, attempt: Attempt) -> None:
    """Set the cookie of an attempt. It is Lax, so that browsers send it when the issuer sends them back."""
    response.set_cookie(
        sealed.name_of(request, _COOKIE),
        sealed.seal(request.app.state.secret, _PURPOSE, _version(sign_in), attempt),
        max_age=attempt.expires - int(clock.seconds()),
        httponly=True,
        samesite="lax",
        secure=sealed.is_secure(request),
    )


def _kept(request: Request, sign_in: IssuerSignIn) -> Attempt | None:
    text = request.cookies.get(sealed.name_of(request, _COOKIE), "")
    values = sealed.unseal(request.app.state.secret, _PURPOSE, _version(sign_in), text)
    return None if values is None else Attempt(*values)


def _version(sign_in: IssuerSignIn) -> bytes:
    """Return what an attempt is bound to: no other issuer than the one where it began may end it."""
    return f"attempt 1, {sign_in.configuration}".encode()


def _forget(request: Request, response: Response) -> None:
    secure = sealed.is_secure(request)
    response.delete_cookie(sealed.name_of(request, _COOKIE), httponly=True, samesite="lax", secure=secure)
