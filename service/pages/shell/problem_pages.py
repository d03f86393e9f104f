"""Problems as pages, for browsers that request a page.

Programs get problem+json, and so does every request below ``/v1``.
"""

import json
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.accepted_types import prefers
from service.api.http.problems import MEDIA_TYPE, problem
from service.pages.shell.api_client import Refused
from service.pages.shell.layout import page
from service.pages.shell.session import SIGN_OUT, forget, name_of_cookie


class ProblemPages:
    """ASGI middleware that renders problems for browsers, and leads users without a session to the sign-in page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay an answer, or collect a problem until it is whole and send its page instead."""
        if scope["type"] != "http" or f"{scope['path']}/".startswith("/v1/") or not _wants_page(scope):
            await self.app(scope, receive, send)
            return
        started, held, parts = False, False, bytearray()
        headers: list[tuple[bytes, bytes]] = []

        async def rendered(message: Message) -> None:
            nonlocal started, held
            if message["type"] == "http.response.start":
                held = (b"content-type", MEDIA_TYPE.encode()) in message["headers"]
                started = not held
                headers.extend(header for header in message["headers"] if header[0] in _KEPT)
            if not held:
                await send(message)
                return
            parts.extend(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                started = True
                response = _render(scope, json.loads(parts))
                response.raw_headers.extend(headers)
                await response(scope, receive, send)

        try:
            await self.app(scope, receive, rendered)
        except Exception:
            if not started:
                failure = json.loads(bytes(problem("internal", _FAILED, scope["path"]).body))
                response = _render(scope, failure)
                response.headers["Connection"] = "close"  # the server closes it after an error
                await response(scope, receive, send)
            raise  # an outer middleware logs it


_KEPT = (b"allow", b"retry-after")
_FAILED = "The service failed. Nothing was changed unless the page shows a change when you open it again."


def install(app: FastAPI) -> None:
    """Have the handlers of pages answer with the problem with which ``/v1`` refused their request."""

    async def refused(_: Request, error: Exception) -> Response:
        if not isinstance(error, Refused):
            raise TypeError("expected a refusal by /v1") from error
        return Response(json.dumps(error.problem), error.status, media_type=MEDIA_TYPE)

    app.add_exception_handler(Refused, refused)


def _wants_page(scope: Scope) -> bool:
    accepted = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"]
    return prefers(",".join(accepted), "text/html")


def _render(scope: Scope, body: dict[str, object]) -> Response:
    request = Request(scope)
    if body["status"] == 401 and (request.method in ("GET", "HEAD") or request.url.path == SIGN_OUT):
        return _to_sign_in(request)
    if body["status"] == 401:
        return _form_kept(request)
    status = int(str(body["status"]))
    return page(request, "problem.html", {"refusal": body}, status=status)


def _form_kept(request: Request) -> Response:
    """Answer a form without a session: the browser keeps the typed text and can send it again after sign-in."""
    response = page(request, "ended.html", status=401)
    if name_of_cookie(request) in request.cookies:
        forget(request, response)
    return response


def _to_sign_in(request: Request) -> Response:
    """Redirect to the start, with the address to return to; the page tells the user if a session has ended."""
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    onward = f"next={quote(target, safe='')}" if request.method == "GET" and target not in ("/", SIGN_OUT) else ""
    ended = "ended=1" if name_of_cookie(request) in request.cookies else ""
    query = "&".join(filter(None, (ended, onward)))
    response = RedirectResponse(f"/?{query}" if query else "/", 303)
    if ended:  # a link from another site comes without the cookie, whose session may still be valid
        forget(request, response)
    return response
