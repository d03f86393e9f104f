"""Forms: read whole, in memory, and only where they come from a page of ours."""

import hmac

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from service.api.body import media_type
from service.errors import Forbidden, InvalidInput, UnsupportedMediaType
from service.pages.calls import Visit
from service.pages.session import csrf_token

_ELSEWHERE = "the form was sent by another site"
_STALE = "the form is not of who is signed in: open the page again and repeat"


async def read_form(visit: Visit) -> FormData:
    """The form of somebody who is signed in. Whoever reads files from it closes it.

    Raises:
        Forbidden: another site or another session sent it.
    """
    check_origin(visit.request)
    form = await parse_form(visit.request)
    expected = csrf_token(visit.request.app.state.secret, visit.session)
    if not hmac.compare_digest(expected.encode(), text_of(form, "csrf").encode()):
        await form.close()
        raise Forbidden(_STALE)
    return form


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


async def parse_form(request: Request) -> FormData:
    """A form of either encoding. Files stay in memory: a temporary file could be true counts on a disk.

    Raises:
        InvalidInput: it is malformed, has too many fields, or does not come whole.
        UnsupportedMediaType: it is no form.
    """
    kind = media_type(request.scope)
    charset = parse_options_header(request.headers.get("content-type"))[1].get(b"charset", b"utf-8")
    if charset.lower() != b"utf-8":  # there are some in which text is no Unicode
        raise UnsupportedMediaType("expected a form in UTF-8")
    try:
        if kind == "application/x-www-form-urlencoded":
            return await FormParser(request.headers, request.stream()).parse()
        if kind == "multipart/form-data":
            parser = MultiPartParser(request.headers, request.stream(), max_files=2)
            parser.spool_max_size = request.app.state.settings.max_json_bytes
            return await parser.parse()
    except MultiPartException as error:
        raise InvalidInput.at("", error.message) from None
    except ClientDisconnect:  # nobody hears the answer; it only keeps this from being logged as a failure of ours
        raise InvalidInput.at("", "expected the whole form") from None
    raise UnsupportedMediaType(f"expected a form, got {kind or 'no Content-Type'}")


def text_of(form: FormData, name: str) -> str:
    """A field's text without surrounding blanks; empty where there is none."""
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""
