"""Errors as RFC 9457 problem+json: one table from exceptions to codes and statuses.

No message repeats an input's values: an input may be a true count.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service import errors
from service.api.http.addresses import address_meant, is_contract
from service.api.http.faults import faults_of_errors
from service.api.identity.throttle import SENDER
from service.api.schemas.exact_numbers import number_down, number_up
from service.errors import Fault, Overrun, ServiceError
from service.ledger.access.authentication import Principal

MEDIA_TYPE = "application/problem+json"
_log = structlog.get_logger("service.request")
_PAUSE = 0.01  # seconds of a principal's turn that a refusal takes while other principals send requests
_PLACES = 3  # of faults that the detail names; errors has all of them
_THREADS = 4  # for refusals whose details take a while to compute, and as many for invalid requests


class Kind(NamedTuple):
    """A code of the contract: its status, its title, and the page that explains it."""

    status: int
    title: str
    explanation: str


KINDS: dict[str, Kind] = {
    "validation": Kind(
        422, "Invalid request", "Each item of errors names a place (a JSON pointer) and what is accepted there."
    ),
    "unauthenticated": Kind(
        401, "Invalid or missing key", "Send Authorization: Bearer <key>. The key may be unknown, expired or revoked."
    ),
    "forbidden": Kind(
        403,
        "Forbidden",
        "The key lacks the role or the account. Auditors read, pipelines register and draw, stewards manage.",
    ),
    "not_found": Kind(404, "Not found", "The address, or a name or id in it, is unknown."),
    "method_not_allowed": Kind(405, "Method not allowed", "The Allow header lists the methods of this address."),
    "budget_exceeded": Kind(
        409,
        "The release exceeds the budget",
        "Nothing was charged. failures lists every cap that the release exceeds, of the account and of those above"
        " it; the first is repeated beside it. requested and remaining are in the budget's definition (nats; a"
        " probability where cap is a delta). noise_multiplier_that_fits is the factor on every noise scale with which"
        " all releases would fit. It is null where there is none and where the search would take long: with offset"
        " tails (osgt, discrete_osgt) and noise tables, and with many different mechanisms. For accounts above that the"
        " key does not reach, there is one failure without an account and figures, and no noise_multiplier_that_fits.",
    ),
    "not_acceptable": Kind(
        406,
        "No media type of the answer is accepted",
        "The detail names the media types of the answer. Send one of them in Accept, or */*, or no such header. Nothing"
        " was done.",
    ),
    "already_drawn": Kind(
        409,
        "The counts are already drawn",
        "Each mechanism, partition and repetition is drawn once: a second draw would double the privacy loss. Read"
        " the stored draw instead.",
    ),
    "gone": Kind(
        410,
        "The noisy counts are no longer kept",
        "They were removed when their retention period ended. Their hash is in the journal, and they cannot be drawn"
        " again.",
    ),
    "account_closed": Kind(409, "The account is closed", "A steward can reopen it."),
    "conflict": Kind(409, "Conflict with the present state", "The detail names the conflict."),
    "incomplete": Kind(
        409,
        "Metadata are missing",
        "missing lists the fields that people must supply before a registry entry can be made: PATCH the account's"
        " or the release's metadata.",
    ),
    "ledger_rolled_back": Kind(
        412,
        "The ledger has lost an entry",
        "The entry that If-Ledger-Includes names is not in the account's journal. Most likely an old backup was"
        " restored, and later spending is lost. Stop publishing, and restore the rest from an export.",
    ),
    "too_large": Kind(413, "The request is too large", "The detail names the limit."),
    "unsupported_media_type": Kind(
        415,
        "Unsupported media type",
        "Send application/json, without Content-Encoding. Counts to draw may also be an Arrow stream or a table.",
    ),
    "idempotency_conflict": Kind(
        422, "The Idempotency-Key was used before", "It belongs to another request. Use a new key for a new request."
    ),
    "bad_request": Kind(
        400, "Malformed HTTP request", "The request line or the headers break the rules of HTTP/1.1, or are too long."
    ),
    "too_slow": Kind(
        408,
        "The request arrived too slowly",
        "Its headers or its body did not arrive within the service's time limit. Nothing was charged.",
    ),
    "too_many_requests": Kind(
        429,
        "Too many requests",
        "A limit on the rate of requests was reached: of a key, of an address that sends invalid keys, of one"
        " principal's waiting requests, or of requests whose client hung up before the answer (60 per minute and key;"
        " use a longer timeout). Nothing was charged. Try again after the seconds in Retry-After.",
    ),
    "unavailable": Kind(
        503,
        "The ledger is unavailable",
        "Nothing was charged, unless a request with the same Idempotency-Key replays an answer. Try again.",
    ),
    "internal": Kind(
        500, "Internal error", "Nothing was charged, unless a request with the same Idempotency-Key replays an answer."
    ),
}

_CODES: dict[type[ServiceError], str] = {
    errors.InvalidInput: "validation",
    errors.Unauthenticated: "unauthenticated",
    errors.Forbidden: "forbidden",
    errors.NotFound: "not_found",
    errors.Conflict: "conflict",
    errors.Incomplete: "incomplete",
    errors.AccountClosed: "account_closed",
    errors.BudgetExceeded: "budget_exceeded",
    errors.NotAcceptable: "not_acceptable",
    errors.AlreadyDrawn: "already_drawn",
    errors.Gone: "gone",
    errors.LedgerRolledBack: "ledger_rolled_back",
    errors.IdempotencyConflict: "idempotency_conflict",
    errors.UnsupportedMediaType: "unsupported_media_type",
    errors.TooLarge: "too_large",
    errors.TooManyRequests: "too_many_requests",
    errors.Unavailable: "unavailable",
    errors.Altered: "unavailable",
    errors.OtherSchema: "unavailable",
}
_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


class Problem(Response):
    """A problem as a response; it leaves its code in the request's state for log lines and metrics."""

    media_type = MEDIA_TYPE

    def __init__(self, code: str, body: dict[str, Any], headers: dict[str, str] | None) -> None:
        super().__init__(json.dumps(body), KINDS[code].status, headers)
        self.code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the problem."""
        scope.setdefault("state", {})["problem"] = self.code
        await super().__call__(scope, receive, send)


def problem(code: str, detail: str, instance: str, **fields: Any) -> Problem:
    """Return an answer of a code.

    Args:
        code: a key of KINDS.
        detail: the reason, in a sentence without values of the input.
        instance: the path after percent-decoding.
        fields: further members of the problem.
    """
    kind = KINDS[code]
    body = {"type": f"/problems/{code}", "title": kind.title, "status": kind.status, "detail": detail}
    body |= {"instance": quote(instance, safe="/:@!$&'()*+,;=~"), **fields}
    headers = {"WWW-Authenticate": "Bearer"} if kind.status == HTTPStatus.UNAUTHORIZED else None
    return Problem(code, body, headers)


def of_error(error: ServiceError, instance: str) -> Problem:
    """Return the answer to a refusal; details that clients must not see go to the log."""
    if error.for_operator is not None:
        _log.warning("refused", detail=error.for_operator)
    code = _CODES[type(error)]
    match error:
        case errors.InvalidInput(faults=faults):
            return validation(faults, instance)
        case errors.BudgetExceeded(failures=failures, pointer=pointer):
            overruns = [_overrun_body(failure) for failure in failures]
            first: dict[str, Any] = overruns[0] if pointer is None else {"pointer": pointer, **overruns[0]}
            of_release = {"failures": overruns, "noise_multiplier_that_fits": error.noise_multiplier()}
            return problem(code, str(error), instance, title=error.title, **first, **of_release)
        case errors.AlreadyDrawn(draw=draw) | errors.Gone(draw=draw):
            return problem(code, str(error), instance, draw=draw)
        case errors.Incomplete(missing=missing):
            return problem(code, str(error), instance, missing=list(missing))
        case errors.AccountClosed(account=account) | errors.LedgerRolledBack(account=account):
            return problem(code, str(error), instance, account=account)
        case errors.TooManyRequests(retry_after=seconds) | errors.Unavailable(retry_after=seconds):
            response = problem(code, str(error), instance)
            response.headers["Retry-After"] = str(seconds)
            return response
        case _:
            return problem(code, str(error), instance)


def _overrun_body(failure: Overrun) -> dict[str, Any]:
    part = {"tag": failure.tag, "window": failure.window}
    return {
        "account": failure.account,
        "definition": failure.definition,
        "cap": failure.cap,
        "requested": None if failure.requested is None else number_up(failure.requested),
        "remaining": None if failure.remaining is None else number_down(failure.remaining),
        **{name: value for name, value in part.items() if value is not None},
    }


def validation(faults: Iterable[Fault], instance: str) -> Problem:
    """Return the answer to an invalid request."""
    errors = [{"pointer": fault.pointer, "detail": fault.detail} for fault in faults]
    places = ", ".join(fault["pointer"] or "the body" for fault in errors[:_PLACES])
    places += f" and {len(errors) - _PLACES} more" if len(errors) > _PLACES else ""
    detail = f"{len(errors)} {'fault' if len(errors) == 1 else 'faults'}: {places}"
    return problem("validation", detail, instance, errors=errors)


def install(app: FastAPI) -> None:
    """Answer every error of the app with a problem.

    Few threads are used, none of them from the pools that requests run in: hundreds of refused requests must not hold
    up all others.
    """

    @cache
    def addresses() -> tuple[str, ...]:
        """Return the templates of the contract, whose routes are all there when a request comes."""
        return tuple(
            {route.path for route in app.routes if isinstance(route, APIRoute) and route.path.startswith("/v1")}
        )

    searching, wording = CapacityLimiter(_THREADS), CapacityLimiter(_THREADS)

    async def refused(request: Request, error: Exception) -> Response:
        principal: Principal | None = getattr(request.state, "principal", None)
        if principal is not None and isinstance(error, errors.BudgetExceeded | errors.AccountClosed):
            error = error.redacted(principal.may_use)
        asked = cast(ServiceError, error), request.scope["path"]
        if isinstance(error, errors.TooManyRequests | errors.Unavailable):
            return of_error(*asked)  # no turn: too many requests may wait for one
        async with _turn_of_refusal(request):
            if principal is None or not isinstance(error, errors.BudgetExceeded):
                return of_error(*asked)
            return await to_thread.run_sync(of_error, *asked, limiter=searching)  # which looks for noise that fits

    async def meaningless(request: Request, error: Exception) -> Response:
        invalid = cast(RequestValidationError, error)

        def render() -> Problem:
            field = getattr(request.scope.get("route"), "body_field", None)
            model = BaseModel if field is None else field.field_info.annotation
            return validation(faults_of_errors(invalid.errors(), invalid.body, model), request.scope["path"])

        async with _turn_of_refusal(request):
            return await to_thread.run_sync(render, limiter=wording)

    async def http(request: Request, error: Exception) -> Response:
        code, path = _BY_STATUS.get(cast(HTTPException, error).status_code, "validation"), request.scope["path"]
        meant = address_meant(path, addresses()) if code == "not_found" else None
        hint = f" Did you mean {meant}?" if meant else ""
        response = problem(code, KINDS[code].explanation + hint, path)
        if code == "method_not_allowed":
            # Static files refuse methods by themselves: no route lists theirs.
            response.headers["Allow"] = ", ".join(_allowed(app, request)) or "GET, HEAD"
        async with _turn_of_refusal(request):
            return response

    app.add_exception_handler(ServiceError, refused)
    app.add_exception_handler(RequestValidationError, meaningless)
    app.add_exception_handler(HTTPException, http)


@asynccontextmanager
async def _turn_of_refusal(request: Request) -> AsyncIterator[None]:
    """Hold one of the principal's turns while a refusal is made, and a little longer while others send requests.

    The turn of the request is over, or it had none: most refusals take next to no work. Without a pause, a principal
    could have a thousand of them in a second, each with the work of reading a request and writing an answer.
    """
    state, shared = request.scope.get("state", {}), request.app.state
    principal: Principal | None = state.get("principal")
    name, turns = (state.get(SENDER), "page_turns") if principal is None else (principal.name, "turns")
    if not name:
        yield
        return
    places = getattr(shared, turns)
    async with places.place(name, begun=True):
        if not places.is_alone(name):
            await asyncio.sleep(_PAUSE)
        yield


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """Return the methods of an address; Starlette's own Allow names only those of the first route."""
    scopes = {method: {**request.scope, "method": method} for method in ("DELETE", "GET", "PATCH", "POST", "PUT")}
    methods = {
        method: next((route for route in app.router.routes if route.matches(scope)[0] is Match.FULL), None)
        for method, scope in scopes.items()
    }
    allowed = [method for method, route in methods.items() if method in (getattr(route, "methods", None) or ())]
    if "GET" in allowed and not is_contract(request.scope["path"]):
        allowed.insert(allowed.index("GET") + 1, "HEAD")
    return allowed
