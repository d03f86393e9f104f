"""How requests are read: JSON without any rounding, and nothing that the operation does not know."""

import json
import re
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, ClassVar, cast, get_origin

from anyio import to_thread
from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from service.api import problems
from service.api.context import FINISH, IN_HELPERS, PRICES_ONLY, Elsewhere, change_of
from service.api.exact import LARGEST_SHORT, Short
from service.api.helpers import Helped
from service.api.json_size import HELD, check_items, check_size, items_in
from service.api.plans import Limits, plan_limits
from service.api.rollback import check_kept
from service.api.room import room_of
from service.api.throttle import GIVEN_UP
from service.errors import Fault, InvalidInput, NotFound, TooLarge, UnsupportedMediaType

# Bytes from which reading leaves the event loop: up to it the densest exact numbers take a millisecond.
_LARGE = 1 << 9
_STEP = 1 << 20  # after which the items that have come are counted
_LONG = 1 << 14  # from which a helper reads it, where one can: a plan in it takes tens of milliseconds
_MOST_FAULTS = 1000  # of a large body; to say millions takes minutes and gigabytes
_ANY = Limits(sys.maxsize, sys.maxsize, sys.maxsize)  # of plans that were read before, under the limits of that time
# An escape and, where it is half of a pair, its other half; the group is of one that stands alone.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictRoute(APIRoute):
    """A route that refuses unknown query parameters and reads its body exactly."""

    media_types = "application/json"

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler behind our reading of the request."""
        handle = super().get_route_handler()
        queries = [
            parameter for parameter in get_flat_params(self.dependant) if isinstance(parameter.field_info, Query)
        ]
        known = frozenset(parameter.alias for parameter in queries)
        lists = frozenset(
            parameter.alias for parameter in queries if get_origin(parameter.field_info.annotation) is list
        )
        reads_body = self.body_field is not None
        model = cast("type[BaseModel]", self.body_field.field_info.annotation) if self.body_field else BaseModel

        largest = LARGEST_SHORT if issubclass(model, Short) else sys.maxsize
        helped_from, finish = getattr(self.endpoint, IN_HELPERS, sys.maxsize), getattr(self.endpoint, FINISH, None)
        changes = any(dependency.call is change_of for dependency in self.dependant.dependencies)

        async def helped(request: Request, body: bytes) -> Helped:
            change = await change_of(request, request.headers.get("Idempotency-Key")) if changes else None
            return Helped(request.app.state.helpers, body, change)

        async def read_and_handle(request: Request) -> Response:
            if reads_body:
                self._check_media_type(request)  # first: of another type the query may be another, too
            _check_address(request, known, lists)
            state, body = request.app.state, b""
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
            if len(body) >= helped_from and state.helpers is not None:
                await check_kept(request)
                return await helped(request, body)
            if finish is not None and len(body) > _LONG and state.helpers is not None:
                await check_kept(request)
                return await _read_elsewhere(request, body, finish)
            async with state.turns.place(request.state.principal.name):
                if reads_body:  # FastAPI takes a model as it is; others it reads, on the event loop
                    request._json = await to_thread.run_sync(_model_of, model, body) if large else parse(body)
                await check_kept(request)
                with suppress(Elsewhere):
                    return await handle(request)
            return await helped(request, body)

        return read_and_handle

    def _check_media_type(self, request: Request) -> None:
        given = media_type(request.scope)
        if given != "application/json":
            raise UnsupportedMediaType(f"expected {self.media_types}, got {given or 'no Content-Type'}")


class OnlyRoute(StrictRoute):
    """A route of an address that an item could be named by: other methods are refused there, and nothing is looked for.

    It stands before those of items.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Every request to the address comes here."""
        match, found = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), found


class StreamRoute(StrictRoute):
    """A route for one media type, beside that for JSON at the same address; its body is left as bytes."""

    media_type: ClassVar[str]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Only requests with a body of the media type come here."""
        return super().matches(scope) if media_type(scope) == self.media_type else (Match.NONE, {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler behind our reading of the body."""
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            body = bytearray()  # it grows in place: joining what came would take the memory twice
            try:
                async for part in request.stream():
                    body += part
            except ClientDisconnect:
                raise _hung_up() from None
            request._body = body  # type: ignore[assignment] # what `await request.body()` gives from here on
            return await handle(request)

        return read_and_handle


def media_type(scope: Scope) -> str:
    """The media type of a request's body, without parameters; empty where it has none."""
    given = next((value for name, value in scope.get("headers", ()) if name == b"content-type"), b"")
    text: str = given.decode("latin-1")
    return text.partition(";")[0].strip().lower()


def _check_address(request: Request, known: frozenset[str], lists: frozenset[str]) -> None:
    for kind, name in request.path_params.items():
        if "\0" in name:  # nothing has such a name, and PostgreSQL does not even take it in a question
            raise NotFound(kind, name)
    faults = [
        Fault(f"/query/{_escaped(name)}", "unknown query parameter" if name not in known else "expected once")
        for name in request.query_params
        if name not in known or (name not in lists and len(request.query_params.getlist(name)) > 1)
    ]
    if faults:
        raise InvalidInput(faults)


async def _read_elsewhere(request: Request, body: bytes, finish: Callable[..., Response]) -> Response:
    change, state = await change_of(request, request.headers.get("Idempotency-Key")), request.app.state
    found = await state.helpers.read(request, body)
    if isinstance(found, Response):
        return found
    async with state.turns.place(request.state.principal.name):
        answer: Response = await change.in_thread(partial(finish, change, found))
    return answer


async def _whole_body(request: Request, largest: int, most_items: int) -> bytes:
    """The body; one that is too long, or has too many items, is not read to its end.

    Raises:
        TooLarge: it is.
        InvalidInput: the client has hung up.
    """
    body, counted, items = bytearray(), 0, 0
    try:
        async for part in request.stream():
            body += part
            if len(body) > largest:
                raise TooLarge(f"expected a body of at most {largest} bytes for this operation")
            if len(body) - counted >= _STEP:
                items += await to_thread.run_sync(items_in, bytes(memoryview(body)[counted:]))
                counted = len(body)
                check_items(items, most_items)
    except ClientDisconnect:  # nobody hears the answer; it only keeps this from being logged as a failure of ours
        request.scope["state"].get(GIVEN_UP, lambda: None)()
        raise _hung_up() from None
    request._body = body  # type: ignore[assignment] # what `await request.body()` gives from here on
    return body  # type: ignore[return-value] # a copy would hold the interpreter for as long as it takes


def _model_of(model: type[BaseModel], body: bytes) -> BaseModel:
    """A large body as an operation's model.

    Raises:
        InvalidInput: it is no JSON, or none that the operation reads.
    """
    parsed = parse(body)
    try:
        return model.model_validate(parsed)
    except ValidationError as error:
        number = error.error_count()
        if number > _MOST_FAULTS:
            raise InvalidInput.at("", f"expected what the operation reads; {number} things are wrong") from None
        raise InvalidInput(problems.faults_of(error, parsed)) from None


def _hung_up() -> InvalidInput:
    return InvalidInput.at("", "expected the whole body")


def parse(body: bytes) -> Any:
    """JSON as RFC 8259 has it, with numbers as they are written: 0.1 is one tenth, and 1.0 is not an integer.

    Raises:
        InvalidInput: not UTF-8, not JSON, NaN or an infinity, a name twice in one object, or text that
            is not Unicode. None of these may be guessed at in a ledger.
    """
    try:
        parsed = json.loads(
            body.decode("utf-8"),
            parse_float=Decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_without_repetition,
        )
    except UnicodeError:
        raise _not_unicode() from None
    except RecursionError:
        raise InvalidInput.at("", "expected JSON that is less deeply nested") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidInput.at("", f"expected JSON; the text breaks off or errs at {place}") from None
    except InvalidOperation:
        raise InvalidInput.at("", "expected numbers whose exponents have at most 18 digits") from None
    except ValueError as error:  # an integer of thousands of digits, or one of the two refusals below
        detail = str(error) if isinstance(error, _Refused) else "expected integers of a readable length"
        raise InvalidInput.at("", detail) from None
    if _SURROGATE.search(body) and any(escape[1] for escape in _ESCAPE.finditer(body)):
        raise _not_unicode()
    return parsed


def _not_unicode() -> InvalidInput:
    return InvalidInput.at("", "expected JSON in UTF-8 without lone surrogates")


class _Refused(ValueError):
    """JSON that Python would read and that we do not."""


def _refuse_constant(_: str) -> Any:
    raise _Refused("expected finite numbers; JSON has no NaN and no infinities")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("expected each name once in an object")
    return found


def _escaped(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode().replace("~", "~0").replace("/", "~1")[:200]
