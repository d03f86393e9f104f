"""Reading of submitted forms: in memory, and only those that pages of this service send.

A client chooses the size of a form, so the fields are counted by their separators before any of them is parsed. Both
encodings are parsed by searches in C, without long loops in Python. A form of more than a few fields is parsed in a
thread. While a form is processed, the signed-in principal holds one of the turns for pages.

Pages read fields by ``text_of`` and ``texts_of``, so no page parses a longer text than the limit of its field.
"""

import hmac
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import Depends, Request
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from service.api.http.memory_room import room_of
from service.api.http.request_parsing import media_type
from service.errors import Forbidden, InvalidInput, TooLarge, UnsupportedMediaType
from service.pages.shell.api_client import SignedIn, Visit
from service.pages.shell.figures import in_words
from service.pages.shell.session import csrf_token
from service.pages.shell.typed_numbers import number_text

URL_ENCODED = "application/x-www-form-urlencoded"
LARGEST_TEXT = 1 << 21
"""Bytes of a URL-encoded form, and of one text in a form with files: a description has at most 230,400 characters."""
MOST_FIELDS = 1000  # the planner's 100 rows of six columns, its other fields, and a reserve
LONGEST_LINE = 4000  # characters of a field of one line
LONGEST_TEXT = 40_000  # characters of a field of several lines: four times what /v1 takes, which then says so
_LONGEST_LIST = 1 << 17  # characters of a list: a thousand accounts, ten thousand periods
_LONGEST: Mapping[str, int] = {
    **dict.fromkeys(("description", "purpose", "reason", "attestation"), LONGEST_TEXT),
    **dict.fromkeys(("tags", "reads", "offsets", "mail", "approver_names"), LONGEST_TEXT),
    **dict.fromkeys(("accounts", "periods", "mechanism", "targets"), _LONGEST_LIST),
    "residuals_pasted": LARGEST_TEXT,  # read in a thread
}
"""The limits of fields that are longer than one line, by their names."""
_SMALL = 1 << 12  # bytes up to which a form is parsed on the event loop: it takes a fraction of a millisecond
_UNFOLDED = 32  # bytes of memory per byte of a URL-encoded form, where every character is written as %41
_STEP = 1 << 18  # bytes of a form that are searched at once
_LONGEST_TYPE, _LONGEST_BOUNDARY, _LONGEST_HEAD = 300, 70, 1024  # bytes; the boundary's limit is from RFC 2046
_ELSEWHERE = "the form was sent by another site; open the page here and repeat"
_STALE = "the form belongs to another session: open the page again and repeat"
_QUOTED = rb'"((?:[^"\\]|\\.)*)"'
_DISPOSITION = re.compile(
    rb"content-disposition: *form-data; *name=(?:" + _QUOTED + rb'|([^";]+))(; *filename=)?', re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Form:
    """The content of a form.

    Attributes:
        texts: the texts of each name, in the order of the form.
        files: the content of the file of each name. It is never written to a disk, since it may be true counts.
    """

    texts: Mapping[str, list[str]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def _sent(largest: int) -> Callable[[Visit], AsyncIterator[Form]]:
    """Return the dependency that reads a form of at most so many bytes."""

    async def read(visit: SignedIn) -> AsyncIterator[Form]:
        """Read the form of a signed-in user, and hold one of the turns for pages until the page is made.

        Raises:
            Forbidden: the form came from another site or another session.
            TooLarge: the form is too large.
        """
        check_origin(visit.request)
        body = await _whole(visit.request, largest)
        async with visit.request.app.state.page_turns.place(visit.session.name):
            form = await _parsed(visit.request, body, MOST_FIELDS)
            expected = csrf_token(visit.request.app.state.secret, visit.session)
            if not hmac.compare_digest(expected.encode(), text_of(form, "csrf").encode()):
                raise Forbidden(_STALE)
            yield form

    return read


SentForm = Annotated[Form, Depends(_sent(LARGEST_TEXT), scope="function")]
SentFiles = Annotated[Form, Depends(_sent(sys.maxsize), scope="function")]
"""A form with files of counts or numbers, which the limits on all bodies bound."""


def check_origin(request: Request) -> None:
    """Refuse a form that another site made the browser send; browsers state the site.

    Requests without a session carry no cookie, so they need no CSRF check.

    Raises:
        Forbidden: the form came from another site.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        raise Forbidden(_ELSEWHERE)
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise Forbidden(_ELSEWHERE)


async def read_form(request: Request, most_fields: int) -> Form:
    """Read a form of either encoding.

    Raises:
        InvalidInput: the form is malformed, has too many fields, or is incomplete.
        TooLarge, Unavailable: there is not enough memory for its content.
        UnsupportedMediaType: the body is not a form.
    """
    return await _parsed(request, await _whole(request, LARGEST_TEXT), most_fields)


def text_of(form: Form, name: str, longest: int | None = None) -> str:
    """Return a field's text without surrounding blanks; empty if the field is absent.

    Args:
        form: the form.
        name: the name of the field.
        longest: the limit on its characters; None for that of its name, which for most fields is ``LONGEST_LINE``.

    Raises:
        InvalidInput: the text is longer.
    """
    return _bounded(name, form.texts.get(name, [""])[-1], longest)


def number_of(form: Form, name: str) -> str:
    """Return the text of a field for a number, as ``/v1`` takes numbers; raise as ``text_of``."""
    return number_text(text_of(form, name))


def texts_of(form: Form, name: str) -> list[str]:
    """Return all texts of a field, without surrounding blanks, in the order of the form.

    Raises:
        InvalidInput: one is longer than the limit of its name.
    """
    return [_bounded(name, text) for text in form.texts.get(name, [])]


def _bounded(name: str, text: str, longest: int | None = None) -> str:
    most = longest or _LONGEST.get(name, LONGEST_LINE)
    if len(text) > most:
        detail = f"{in_words(name)}: expected at most {most:,} characters, got {len(text):,}"
        raise InvalidInput.at(f"/{name}", detail)
    return text.strip()


async def _whole(request: Request, largest: int) -> bytearray:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > largest:
                raise TooLarge(f"expected a form of at most {largest} bytes")
    except ClientDisconnect:  # the client is gone; this answer only prevents a log line about a failure of the service
        raise InvalidInput.at("", "expected the whole form") from None
    return body


async def _parsed(request: Request, body: bytearray, most_fields: int) -> Form:
    content_type, kind = request.headers.get("content-type", ""), media_type(request.scope)
    if len(content_type) > _LONGEST_TYPE:  # splitting takes time quadratic in its length
        raise UnsupportedMediaType(f"expected a Content-Type of at most {_LONGEST_TYPE} characters")
    options = parse_options_header(content_type)[1]
    if options.get(b"charset", b"utf-8").lower() != b"utf-8":  # some charsets decode to text that is not valid Unicode
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
    """Parse a form of parts between delimiters (RFC 7578); the last delimiter ends in two hyphens.

    Raises:
        InvalidInput: the form is malformed.
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
    """Yield the positions of a delimiter; the interpreter is released between two steps of the search."""
    begin = 0
    while begin < len(body):
        position = body.find(delimiter, begin, begin + _STEP + len(delimiter))
        if position >= 0:
            yield position
        begin = begin + _STEP if position < 0 else position + len(delimiter)


def _disposition(head: bytes) -> tuple[str, bool] | None:
    """Return the name of a part, and whether it is a file; None if its headers do not state exactly one name."""
    first, *lines = head.split(b"\r\n")
    matches = [match for line in lines if (match := _DISPOSITION.match(line)) is not None]
    if first or len(matches) != 1:
        return None
    quoted, token, is_file = matches[0].groups()
    return (token if quoted is None else quoted).decode(), is_file is not None


def _check_number(number: int, most: int) -> None:
    if number > most:
        raise InvalidInput.at("", f"expected a form of at most {most} fields")


def _malformed() -> InvalidInput:
    return InvalidInput.at("", "expected a form as a browser sends it, with a name for each part")
