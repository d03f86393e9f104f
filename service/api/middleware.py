"""What surrounds every request: its id, its log line, its size limit, the headers of its answer."""

import re
import time
import uuid
from collections.abc import Mapping

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import problems
from service.api.body import media_type

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
_log = structlog.get_logger("service.request")

_PAGE_HEADERS = ((b"referrer-policy", b"no-referrer"),)


class Surroundings:
    """ASGI middleware: X-Request-Id echoed or made, security headers, one log line without bodies or query strings."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and see its answer out."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"]
                is_page = any(name == b"content-type" and value.startswith(b"text/html") for name, value in headers)
                given = {name for name, _ in headers}
                own = (
                    (b"x-request-id", request_id.encode("latin-1")),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", b"no-store" if scope["path"].startswith("/v1") else b"no-cache"),
                    *(_PAGE_HEADERS if is_page else ()),
                )
                message["headers"] = [*headers, *(header for header in own if header[0] not in given)]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            milliseconds = round((time.perf_counter() - started) * 1000, 1)
            _log.info(
                "request",
                request_id=request_id,
                method=scope["method"],
                path=scope["path"],
                status=status,
                milliseconds=milliseconds,
            )


class SizeLimit:
    """ASGI middleware: a body beyond its media type's limit is answered with 413, announced or not."""

    def __init__(self, app: ASGIApp, limits: Mapping[str, int], otherwise: int) -> None:
        self.app, self.limits, self.otherwise = app, limits, otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body while it is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        limit = self.limits.get(media_type(scope), self.otherwise)
        if announced.isdigit() and int(announced) > limit:
            await self._refuse(limit, scope, receive, send)
            return
        received, answered = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _BodyTooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self.app(scope, counted, watched)
        except _BodyTooLarge:
            if not answered:
                await self._refuse(limit, scope, receive, send)

    async def _refuse(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        response = problems.problem("too_large", f"expected a body of at most {limit} bytes", scope["path"])
        response.headers["Connection"] = "close"  # the rest of the body is not read
        await response(scope, receive, send)


class _BodyTooLarge(Exception):
    pass
