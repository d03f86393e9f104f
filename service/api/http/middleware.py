"""Outermost middleware: request id, log line, metrics and headers of every answer."""

import re
import time
import uuid
from typing import Any
from urllib.parse import unquote

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http import problems
from service.api.http.addresses import is_contract
from service.api.http.metrics import Metrics
from service.errors import Unavailable

_REQUEST_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,198}[\x21-\x7e])?")
_AUTHORITY = re.compile(rb"https?://[^/]*", re.IGNORECASE)
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
# requested every few seconds, and answered however busy the service is
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_LONGEST = 300  # characters of a text in a log line
_TOO_MANY = 429  # status after which the log line has the client's address
BEYOND_LIMIT = "beyond_limit"  # in the state of requests on connections above the limit
_log = structlog.get_logger("service.request")

# Pages bring their own policy; an answer without one gets the strictest policy that shows it.
_PAGE_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"referrer-policy", b"no-referrer"),
)
# Answers that are not pages run nothing; a picture has its styles inside.
_OTHER_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_OTHER_HEADERS = ((b"content-security-policy", _OTHER_POLICY), (b"referrer-policy", b"no-referrer"))


LARGEST_HEADERS = 1 << 14  # bytes: as many as the server reads of headers that come in parts


class OuterMiddleware:
    """ASGI middleware for request ids, security headers, and one log line per request without body or query string.

    It also answers unexpected errors, so that their answers have all of that too.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, hsts_seconds: int) -> None:
        self.app, self.metrics = app, metrics
        always = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
        if hsts_seconds:
            always.append((b"strict-transport-security", b"max-age=%d" % hsts_seconds))
        self.page_headers, self.other_headers = (*always, *_PAGE_HEADERS), (*always, *_OTHER_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and complete its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        _take_path(scope)
        _drop_quoted_cookies(scope)
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        # Never unbound: the server logs a crash after this, and its task ends with the request.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.perf_counter(), 0
        asked = scope  # as the client sent it
        without_body = scope["method"] == "HEAD" and not is_contract(scope["path"])
        if without_body:
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = self._headers(scope["path"], request_id, message["headers"])
            elif without_body:
                message = {**message, "body": b""}
            await send(message)

        app = self.app
        if BEYOND_LIMIT in scope["state"] and scope["path"] not in PROBES:
            app = _no_room
        elif b"content-length" in headers and b"transfer-encoding" in headers:
            app = _two_lengths
        elif sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEADERS:
            app = _long_headers
        self.metrics.in_progress += 1
        try:
            await app(scope, receive, send_with_headers)
        except Exception:
            if not status:
                await _failure(scope)(scope, receive, send_with_headers)
            raise
        finally:
            self.metrics.in_progress -= 1
            scope["method"] = asked["method"]
            self._log_request(scope, status or 500, time.perf_counter() - started)

    def _headers(self, path: str, request_id: str, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        present = dict(headers)
        is_page = present.get(b"content-type", b"").startswith(b"text/html")
        own = (
            (b"x-request-id", request_id.encode("latin-1")),
            (b"cache-control", b"no-store" if path.startswith("/v1") else b"no-cache"),
            *(self.page_headers if is_page else self.other_headers),
        )
        return [*headers, *(header for header in own if header[0] not in present)]

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        state, method = scope["state"], scope["method"]
        route, problem = template_of(scope), state.get("problem")
        self.metrics.observe(method if method in _METHODS else "other", route or "none", status, seconds, problem)
        more: dict[str, Any] = {}
        principal = state.get("principal")
        if principal is not None:
            more["principal"], more["key"] = principal.name, principal.key_id
        if "account" in scope.get("path_params", ()):
            more["account"] = scope["path_params"]["account"]
        if problem is not None:
            more["problem"] = problem
        if problem is not None and (principal is None or status == _TOO_MANY):
            more["client"] = (scope.get("client") or ("unknown",))[0]
        tell = _log.debug if scope["path"] in PROBES and status == 200 else _log.info
        more = {"method": method, "route": route, "path": scope["path"]} | more
        fields = {name: value and value[:_LONGEST] for name, value in more.items()}  # these texts come from outside
        tell("request", status=status, milliseconds=round(seconds * 1000, 1), **fields)


def template_of(scope: Scope) -> str | None:
    """Return the template of the address that a request came to, or of the mount; None where there is no route."""
    return getattr(scope.get("route"), "path", None) or scope.get("root_path") or None


def _take_path(scope: Scope) -> None:
    """Reduce a target in absolute form to its path; RFC 9112 (3.2.2) requires every server to accept the form.

    The server passes the whole target as the path. Nothing here depends on the host.
    """
    authority = _AUTHORITY.match(scope["raw_path"])
    if authority is not None:
        scope["raw_path"] = scope["raw_path"][authority.end() :] or b"/"
        scope["path"] = unquote(scope["raw_path"].decode("ascii"))


def _drop_quoted_cookies(scope: Scope) -> None:
    """Drop the cookies with quotation marks, which are none of this service's.

    The standard library unquotes a cookie in time that grows with the square of its length, before any key is known:
    16 KB take 0.3 seconds.
    """
    if any(name == b"cookie" and b'"' in value for name, value in scope["headers"]):
        scope["headers"] = [
            (name, b";".join(one for one in value.split(b";") if b'"' not in one) if name == b"cookie" else value)
            for name, value in scope["headers"]
        ]


async def _no_room(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problems.of_error(Unavailable("the service has reached its limit of connections"), scope["path"])
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


async def _two_lengths(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a body with two lengths: a server on the way may have read another end of it, and so other requests."""
    answer = problems.problem("bad_request", "expected Content-Length or Transfer-Encoding, not both", scope["path"])
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


async def _long_headers(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse headers that would take long to read: nobody needs a key to send them."""
    detail = f"expected headers of at most {LARGEST_HEADERS} bytes together"
    answer = problems.problem("bad_request", detail, scope["path"])
    await answer(scope, receive, send)


def _failure(scope: Scope) -> problems.Problem:
    answer = problems.problem("internal", problems.KINDS["internal"].explanation, scope["path"])
    answer.headers["Connection"] = "close"  # the server closes it after an error
    return answer
