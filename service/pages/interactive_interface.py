"""The interactive documentation of the HTTP interface, and the requests that a signed-in user sends from it."""

import hmac

from fastapi import APIRouter, Request, Response

from service.api.openapi.contract import DESCRIPTION
from service.errors import Forbidden
from service.pages.shell.api_client import Forwarded, SignedIn
from service.pages.shell.forms import check_origin
from service.pages.shell.layout import page
from service.pages.shell.session import csrf_token

router = APIRouter(include_in_schema=False)

# Swagger UI sets styles on its elements, and its style sheet contains its pictures.
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; form-action 'self'; frame-ancestors"
    " 'none'; base-uri 'none'"
)


@router.get("/docs")
def docs(request: Request) -> Response:
    """Render Swagger UI from this package's own files: agency networks reach no other host."""
    return page(request, "docs.html", {"description": DESCRIPTION.split("\n\n")}, policy=_POLICY)


@router.api_route("/docs/v1/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def send_as_user(visit: SignedIn) -> Response:
    """Send a request to ``/v1`` as the signed-in user.

    Browsers let no other site set the header with the page's token.

    Raises:
        Forbidden: the request came from another site, or from the page of another user.
    """
    check_origin(visit.request)
    expected = csrf_token(visit.request.app.state.secret, visit.session)
    if not hmac.compare_digest(expected.encode(), visit.request.headers.get("x-csrf-token", "").encode()):
        raise Forbidden("the page was made for another user; load it again")
    return Forwarded(visit, visit.request.scope["raw_path"].decode("latin-1").removeprefix("/docs"))
