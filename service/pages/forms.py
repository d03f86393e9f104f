"""Forms: read whole, in memory, and only where they come from a page of ours.

A client chooses what a form holds, so its fields are counted by their separators before any of it is parsed, and both
encodings are taken apart by searches that the interpreter does at once. What is larger than a few fields is parsed in a
thread. A form is worked on in a turn of the principal that is signed in.
"""

import hmac
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import Depends, Request
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from service.api.body import media_type
from service.api.room import room_of
from service.errors import Forbidden, InvalidInput, TooLarge, UnsupportedMediaType
from service.pages.calls import SignedIn
from service.pages.session import csrf_token

URL_ENCODED = "application/x-www-form-urlencoded"
LARGEST_TEXT = 1 << 21
"""Bytes of a URL-encoded form, and of one text in a form with files: a description has 230,400 characters at most."""
MOST_FIELDS = 1000  # the planner's 100 rows of six columns, its other fields, and some to spare
_SMALL = 1 << 12  # bytes up to which a form is parsed at once: it takes a fraction of a millisecond
_UNFOLDED = 32  # bytes of memory for a byte of a URL-encoded form, where every one is written as %41
_STEP = 1 << 18  # bytes of a form that are searched at once
_LONGEST_TYPE, _LONGEST_BOUNDARY, _LONGEST_HEAD = 300, 70, 1024  # bytes; of a boundary as RFC 2046 has it
_ELSEWHERE = "the form was sent by another site"
_STALE = "the form is not of who is signed in: open the page again and repeat"
_QUOTED = rb'"((?:[^"\\]|\\.)*)"'
_DISPOSITION = re.compile(
    rb"content-disposition: *form-data; *name=(?:" + _QUOTED + rb'|([^";]+))(; *filename=)?', re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Form:
    """What was sent.

    Attributes:
        texts: the texts of each name, in the order in which they came.
        files: the content of the file of each name; never on a disk, as it may be true counts.
    """

    texts: Mapping[str, list[str]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


async def _sent_form(visit: SignedIn) -> AsyncIterator[Form]:
    """Read the form of somebody who is signed in, and hold a turn until the page is made.

    Turns of pages are apart from those of ``/v1``, for which a page waits while it holds its own.

    Raises:
        Forbidden: another site or another session sent it.
    """
    check_origin(visit.request)
    body = await _whole(visit.request)
    async with visit.request.app.state.page_turns.place(visit.session.name):
        form = await _parsed(visit.request, body, MOST_FIELDS)
        expected = csrf_token(visit.request.app.state.secret, visit.session)
        if not hmac.compare_digest(expected.encode(), text_of(form, "csrf").encode()):
            raise Forbidden(_STALE)
        yield form


SentForm = Annotated[Form, Depends(_sent_form, scope="function")]


def check_origin(request: Request) -> None:
    """Refuse what another site makes a browser send. Browsers say which; what is none has no cookie to abuse.

    Raises:
        Forbidden: it comes from elsewhere.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        raise Forbidden(_ELSEWHERE)
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Forbidden(_ELSEWHERE)


async def read_form(request: Request, most_fields: int) -> Form:
    """Read a form of either encoding.

    Raises:
        InvalidInput: it is malformed, has too many fields, or does not come whole.
        TooLarge, Unavailable: there is no room for what it unfolds to.
        UnsupportedMediaType: it is no form.
    """
    return await _parsed(request, await _whole(request), most_fields)


def text_of(form: Form, name: str) -> str:
    """A field's text without surrounding blanks; empty where there is none."""
    return form.texts.get(name, [""])[-1].strip()


async def _whole(request: Request) -> bytearray:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
    except ClientDisconnect:  # nobody hears the answer; it only keeps this from being logged as a failure of ours
        raise InvalidInput.at("", "expected the whole form") from None
    return body


async def _parsed(request: Request, body: bytearray, most_fields: int) -> Form:
    given, kind = request.headers.get("content-type", ""), media_type(request.scope)
    if len(given) > _LONGEST_TYPE:  # splitting it takes the square of its length
        raise UnsupportedMediaType(f"expected a Content-Type of at most {_LONGEST_TYPE} characters")
    options = parse_options_header(given)[1]
    if options.get(b"charset", b"utf-8").lower() != b"utf-8":  # there are some in which text is no Unicode
        raise UnsupportedMediaType("expected a form in UTF-8")
    if kind not in (URL_ENCODED, "multipart/form-data"):
        raise UnsupportedMediaType(f"expected a form, got {kind or 'no Content-Type'}")

    def parse() -> Form:
        try:
            if kind == URL_ENCODED:
                return _of_pairs(body, most_fields)
            return _of_parts(body, options.get(b"boundary", b""), most_fields)
        except UnicodeDecodeError:
            raise InvalidInput.at("", "expected a form in UTF-8") from None

    if len(body) <= _SMALL:
        return parse()
    room_of(request.scope)(len(body) * (_UNFOLDED if kind == URL_ENCODED else 1))
    return await to_thread.run_sync(parse)


def _of_pairs(body: bytearray, most_fields: int) -> Form:
    _check_number(body.count(b"&") + 1, most_fields)
    texts: dict[str, list[str]] = {}
    for name, text in parse_qsl(body.decode(), keep_blank_values=True, errors="strict"):
        texts.setdefault(name, []).append(text)
    return Form(texts)


def _of_parts(body: bytearray, boundary: bytes, most_fields: int) -> Form:
    """RFC 7578: parts between delimiters, of which the last one ends in two hyphens; nothing stands before the first.

    Raises:
        InvalidInput: it is malformed.
    """
    delimiter = b"\r\n--" + boundary
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY or not body.startswith(delimiter[2:]):
        raise _malformed()
    texts: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    begin = len(delimiter) - 2
    for number, end in enumerate(_places(body, delimiter), 1):
        _check_number(number, most_fields)
        head = body.find(b"\r\n\r\n", begin, min(end, begin + _LONGEST_HEAD))
        disposition = None if head < 0 else _disposition(bytes(body[begin:head]))
        if disposition is None:
            raise _malformed()
        name, is_file = disposition
        start, begin = head + 4, end + len(delimiter)
        if is_file:
            files[name] = bytes(memoryview(body)[start:end])
        elif end - start > LARGEST_TEXT:
            raise TooLarge(f"expected texts of at most {LARGEST_TEXT} bytes in a form")
        else:
            texts.setdefault(name, []).append(body[start:end].decode())
    if body[begin : begin + 2] != b"--":
        raise InvalidInput.at("", "expected the whole form")
    return Form(texts, files)


def _places(body: bytearray, delimiter: bytes) -> Iterator[int]:
    """Where a delimiter stands. Others have the interpreter between two steps of the search."""
    begin = 0
    while begin < len(body):
        found = body.find(delimiter, begin, begin + _STEP + len(delimiter))
        if found >= 0:
            yield found
        begin = begin + _STEP if found < 0 else found + len(delimiter)


def _disposition(head: bytes) -> tuple[str, bool] | None:
    """The name of a part and whether it is a file; None where its headers do not say."""
    first, *lines = head.split(b"\r\n")
    found = [match for line in lines if (match := _DISPOSITION.match(line)) is not None]
    if first or len(found) != 1:
        return None
    quoted, token, is_file = found[0].groups()
    return (token if quoted is None else quoted).decode(), is_file is not None


def _check_number(number: int, most: int) -> None:
    if number > most:
        raise InvalidInput.at("", f"expected a form of at most {most} fields")


def _malformed() -> InvalidInput:
    return InvalidInput.at("", "expected a form as a browser sends it, each of its parts with a name")
