"""Request parsing: JSON without any rounding, and no field that the operation does not know."""

import re
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import NoneType
from typing import Any, ClassVar, get_args, get_origin

from anyio import to_thread
from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from service.api.http.accepted_types import JSON, require_acceptable
from service.api.http.dependencies import FINISH, IN_HELPERS, PRICES_ONLY, AnswerInHelper, change_of
from service.api.http.disconnects import client_gone, has_hung_up
from service.api.http.expected_head import check_kept
from service.api.http.faults import faults_of
from service.api.http.field_names import SUGGESTIONS, unknown
from service.api.http.helper_processes import Helped
from service.api.http.json_size import HELD, check_items, check_size, items_in
from service.api.http.json_text import parse, pointer_step
from service.api.http.memory_room import room_of
from service.api.identity.throttle import GIVEN_UP
from service.api.schemas.exact_numbers import LARGEST_SHORT, Short
from service.api.schemas.plans import Limits, plan_limits
from service.errors import Fault, InvalidInput, NotFound, TooLarge, UnsupportedMediaType

# Bytes from which reading leaves the event loop: the densest exact numbers below it take a millisecond.
_LARGE = 1 << 9
_STEP = 1 << 20  # bytes after which the received items are counted
# bytes from which a helper reads the body where it can: a plan of that length takes tens of milliseconds
_LONG = 1 << 14
_MOST_PARAMETERS = 128  # of a query: balances take 100 deltas, and a few others
_MOST_FAULTS = 1000  # reported of a large body: to write out millions takes minutes and gigabytes
_ANY = Limits(sys.maxsize, sys.maxsize, sys.maxsize)  # for plans that were read before, under the limits of that time

_ENCODING = re.compile("[a-z0-9-]{1,20}")


class StrictRoute(APIRoute):
    """Route class that refuses unknown query parameters and reads the body exactly."""

    media_type: ClassVar[str] = JSON  # of the body, and of answers beside those that the route declares
    media_types = "application/json"
    instead: ClassVar[Mapping[str, str]] = {}  # of unknown query parameters: what to do instead

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the service's own reading of the request."""
        handle = super().get_route_handler()
        queries = [
            parameter for parameter in get_flat_params(self.dependant) if isinstance(parameter.field_info, Query)
        ]
        known = frozenset(parameter.alias for parameter in queries)
        lists = frozenset(
            parameter.alias for parameter in queries if get_origin(parameter.field_info.annotation) is list
        )
        has_model = self.body_field is not None
        model, may_be_absent = (
            _model_in(self.body_field.field_info.annotation) if self.body_field else (BaseModel, False)
        )
        largest = LARGEST_SHORT if issubclass(model, Short) else sys.maxsize
        helped_from, finish = getattr(self.endpoint, IN_HELPERS, sys.maxsize), getattr(self.endpoint, FINISH, None)
        declared = (one for answer in self.responses.values() for one in answer.get("content", ()))
        produced = {JSON, self.media_type, *declared}
        answers = self.status_code != HTTPStatus.NO_CONTENT
        changes = any(dependency.call is change_of for dependency in self.dependant.dependencies)

        async def helped(request: Request, body: bytes) -> Helped:
            change = await change_of(request, request.headers.get("Idempotency-Key")) if changes else None
            return Helped(request.app.state.helpers, body, change)

        async def read_and_handle(request: Request) -> Response:
            if answers:
                require_acceptable(request.headers.get("accept", ""), produced)
            reads_body = has_model and not (may_be_absent and _is_without_body(request))
            if reads_body:
                self._check_media_type(request)  # first, since the query may differ for another media type
            _check_address(request, known, lists, self.instead)
            state, body = request.app.state, getattr(request, "_body", b"")  # a StreamRoute has read it
            if reads_body:
                settings = state.settings
                limits = Limits(settings.max_plan_nodes, settings.max_plan_depth, settings.max_plan_osgt)
                plan_limits.set(_ANY if getattr(request.state, PRICES_ONLY, False) else limits)
                body = await _whole_body(request, largest, settings.max_json_items)
                large = len(body) > _LARGE
                measured = body, settings.max_json_items, room_of(request.scope)
                if len(body) > HELD:
                    await to_thread.run_sync(check_size, *measured)
                else:
                    check_size(*measured)
            if helped_from <= len(body) <= state.settings.max_json_bytes and state.helpers is not None:
                await check_kept(request)
                return await helped(request, body)
            if finish is not None and len(body) > _LONG and state.helpers is not None:
                await check_kept(request)
                return await _read_in_helper(request, body, finish)
            async with state.turns.place(request.state.principal.name) as waited:
                if waited:
                    await _require_client(request)
                if reads_body:  # FastAPI accepts a model as it is; it would parse anything else on the event loop
                    request._json = await to_thread.run_sync(_model_of, model, body) if large else parse(body)
                await check_kept(request)
                with suppress(AnswerInHelper):
                    return await handle(request)
            return await helped(request, body)

        return read_and_handle

    def _check_media_type(self, request: Request) -> None:
        require_plain(request)
        received = media_type(request.scope)
        if received != "application/json":
            raise UnsupportedMediaType(f"expected {self.media_types}, got {received or 'no Content-Type'}")


class OnlyRoute(StrictRoute):
    """Route class for an address that an item's name would match too: it answers other methods with 405.

    It must be listed before the routes of items.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match every request to the address, whatever its method."""
        match, child_scope = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child_scope


class StreamRoute(StrictRoute):
    """Route class for one media type, beside the JSON route of the same address; the body stays bytes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only requests whose body has the media type."""
        return super().matches(scope) if media_type(scope) == self.media_type else (Match.NONE, {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler behind the service's own reading of the body."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            require_plain(request)
            body = bytearray()  # extended in place: joining the parts would take the memory twice
            try:
                async for part in request.stream():
                    body += part
            except ClientDisconnect:
                _count_abandoned(request)
                raise _incomplete_body() from None
            request._body = body  # type: ignore[assignment] # the result of later calls of `await request.body()`
            return await handle(request)

        return read_and_handle


def require_plain(request: Request) -> None:
    """Require a body that is sent as it is.

    Raises:
        UnsupportedMediaType: it is compressed, or encoded in another way.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        named = encoding if _ENCODING.fullmatch(encoding) else "another one"
        raise UnsupportedMediaType(f"expected a body without Content-Encoding, got {named}")


def media_type(scope: Scope) -> str:
    """Return the media type of a request's body, without parameters; empty where it has none."""
    header = next((value for name, value in scope.get("headers", ()) if name == b"content-type"), b"")
    text: str = header.decode("latin-1")
    return text.partition(";")[0].strip().lower()


def _model_in(annotation: Any) -> tuple[type[BaseModel], bool]:
    """Return the model of an operation's body, and whether a request may lack the body."""
    models = [one for one in get_args(annotation) if one is not NoneType]
    return (models[0], True) if models else (annotation, False)


def _is_without_body(request: Request) -> bool:
    return request.headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in request.headers


def _check_address(request: Request, known: frozenset[str], lists: frozenset[str], instead: Mapping[str, str]) -> None:
    for kind, name in request.path_params.items():
        if "\0" in name:  # no name holds NUL, and PostgreSQL does not accept one even in a query
            raise NotFound(kind, name)
    check_query(request.scope)
    wrong = [
        name
        for name in request.query_params
        if name not in known or (name not in lists and len(request.query_params.getlist(name)) > 1)
    ]
    if wrong:
        compared = [name for name in wrong if name not in known][:SUGGESTIONS]
        raise InvalidInput([_fault_of_parameter(name, known, compared, instead) for name in wrong])


def check_query(scope: Scope) -> None:
    """Refuse a query with too many parameters, before they are parsed.

    Raises:
        InvalidInput: there are more than any operation takes.
    """
    if scope["query_string"].count(b"&") >= _MOST_PARAMETERS:
        raise InvalidInput.at("/query", f"expected at most {_MOST_PARAMETERS} query parameters")


def _fault_of_parameter(
    name: str, known: frozenset[str], compared: Collection[str], instead: Mapping[str, str]
) -> Fault:
    what = "query parameter"
    detail = instead.get(name) or unknown(what, name, known if name in compared else ())
    return Fault(f"/query{_escaped(name)}", "expected once" if name in known else detail)


async def _read_in_helper(request: Request, body: bytes, finish: Callable[..., Response]) -> Response:
    change, state = await change_of(request, request.headers.get("Idempotency-Key")), request.app.state
    result = await state.helpers.read(request, body)
    if isinstance(result, Response):
        return result
    async with state.turns.place(request.state.principal.name) as waited:
        if waited:
            await _require_client(request)
        answer: Response = await change.in_thread(partial(finish, change, result))
    return answer


async def _require_client(request: Request) -> None:
    """Require that the client still waits, before work that nobody would receive.

    Raises:
        InvalidInput: the client has hung up.
    """
    try:
        await request.body()  # otherwise the look at the connection would take it
        gone = await has_hung_up(request.receive)
    except ClientDisconnect:  # while the body was awaited
        gone = True
    if gone:
        _count_abandoned(request)
        raise client_gone()


def _count_abandoned(request: Request) -> None:
    """Count that the client of a request hung up, against its key."""
    request.scope["state"].get(GIVEN_UP, lambda: None)()


async def _whole_body(request: Request, largest: int, most_items: int) -> bytes:
    """Read a body; stop early where it is too long or has too many items.

    Raises:
        TooLarge: the body is too long or has too many items.
        InvalidInput: the client has hung up.
    """
    body, measured, items = bytearray(), 0, 0
    try:
        async for part in request.stream():
            body += part
            if len(body) > largest:
                raise TooLarge(f"expected a body of at most {largest} bytes for this operation")
            if len(body) - measured >= _STEP:
                items += await to_thread.run_sync(items_in, bytes(memoryview(body)[measured:]))
                measured = len(body)
                check_items(items, most_items)
    except ClientDisconnect:  # the client is gone; this answer only prevents a log line about a failure of the service
        _count_abandoned(request)
        raise _incomplete_body() from None
    request._body = body  # type: ignore[assignment] # the result of later calls of `await request.body()`
    return body  # type: ignore[return-value] # a copy would hold the interpreter while it is made


def _model_of(model: type[BaseModel], body: bytes) -> BaseModel:
    """Parse a large body as an operation's model.

    Raises:
        InvalidInput: the body is not JSON, or the operation does not accept it.
    """
    parsed = parse(body)
    try:
        return model.model_validate(parsed)
    except ValidationError as error:
        number = error.error_count()
        if number > _MOST_FAULTS:
            raise InvalidInput.at(
                "", f"expected a body that the operation accepts; {number} faults were found"
            ) from None
        raise InvalidInput(faults_of(error, parsed, model)) from None


def _incomplete_body() -> InvalidInput:
    return InvalidInput.at("", "expected the whole body")


def _escaped(name: str) -> str:
    return pointer_step(name.encode("ascii", "backslashreplace").decode())[:201]
