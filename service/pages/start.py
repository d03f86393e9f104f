"""The start page: sign in, the list of accounts, and sign out."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.http.request_parsing import check_query
from service.errors import ServiceError
from service.pages.accounts import accounts_page
from service.pages.shell.api_client import Refused, SignedIn, Visit, address, get
from service.pages.shell.forms import Form, SentForm, check_origin, read_form, text_of
from service.pages.shell.layout import page
from service.pages.shell.local_addresses import local_address
from service.pages.shell.session import LONGEST_KEY, SIGN_OUT, forget, new_session, remember, session_of

router = APIRouter(include_in_schema=False)

SIGN_IN = "/sign-in"
LARGEST_FORM = 4096  # bytes of the sign-in form, which is read before a key is known: the longest key, and an address
_MOST_FIELDS = 3

_NOT_A_KEY = "The key is unknown, expired or revoked."


@router.get("/")
async def start(request: Request) -> Response:
    """Render the accounts, or the sign-in form."""
    check_query(request.scope)
    session = session_of(request)
    if session is None:
        return _sign_in(request, request.query_params.get("next", ""))
    async with request.app.state.page_turns.place(session.name):
        return await accounts_page(Visit(request, session))


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Sign in: exchange a valid key for a session cookie."""
    check_origin(request)
    form, malformed = Form(), None
    try:
        form = await read_form(request, _MOST_FIELDS)
    except ServiceError as error:
        malformed = error
    key, onward = text_of(form, "key"), text_of(form, "next")
    if not (key.isascii() and key.isprintable() and len(key) <= LONGEST_KEY):
        key = ""  # checked nevertheless, so that the attempt counts as one with an invalid key
    hours = request.app.state.settings.session_hours
    try:
        caller = await get(Visit(request, new_session(key, "", "auditor", hours)), address("principal"))
    except Refused as refused:
        if refused.status != 401:
            raise
        if malformed is not None:
            raise malformed from None
        return _sign_in(request, onward, fault=_NOT_A_KEY)
    response = RedirectResponse(local_address(onward), 303)
    remember(request, response, new_session(key, caller["name"], caller["role"], hours, caller["accounts"]))
    return response


@router.post(SIGN_OUT)
async def sign_out(visit: SignedIn, _: SentForm) -> Response:
    """Sign out by deleting the cookie."""
    response = RedirectResponse("/", 303)
    response.headers["Clear-Site-Data"] = '"cache"'  # pages that the browser kept for its way back
    forget(visit.request, response)
    return response


def _sign_in(request: Request, onward: str, fault: str = "") -> Response:
    issuer = request.app.state.issuer_sign_in
    shown = {
        "next": local_address(onward),
        "fault": fault,
        "ended": "ended" in request.query_params,
        "issuer": None if issuer is None else issuer.name,
    }
    return page(request, "sign-in.html", shown, status=401 if fault else 200)
