"""Requests to an OpenID Connect issuer: JSON without redirects, bounded in size and time.

No error has an address, a header or a body of a request: these may contain codes and secrets.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import httpx
from anyio import to_thread

from service.urls import is_loopback

_TIMEOUT = 5.0  # seconds for each step of a request
_LONGEST = 15.0  # seconds for one document
_LARGEST = 1 << 20  # bytes of one document


class Unusable(Exception):
    """An unusable answer of the issuer; the text is for the log."""


# OSError: such as a bad certificate file, or a request that takes too long
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, Unusable)


class Answer(NamedTuple):
    """An answer of the issuer: its status, and a JSON object."""

    status: int
    document: dict[str, Any]


async def ask(address: str, *, form: Mapping[str, str] | None = None, basic: tuple[str, str] | None = None) -> Answer:
    """Read a document of the issuer, or send it a form.

    Args:
        address: the URL, which ``is_confidential``.
        form: the form to send; None to read.
        basic: the name and the password of HTTP Basic.

    Raises:
        httpx.HTTPError, httpx.InvalidURL, OSError, ValueError: the issuer does not answer, or not as HTTP.
        Unusable: the answer redirects, is not a JSON object, or is too long.
    """
    async with asyncio.timeout(_LONGEST):
        # An issuer on this machine is not reached through the machine's proxy. Certificates are read in a thread.
        make = partial(httpx.AsyncClient, timeout=_TIMEOUT, trust_env=not is_loopback(address), follow_redirects=False)
        async with await to_thread.run_sync(make) as client:
            # Compressed answers are refused: a small one could unfold to any size.
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            method, auth = ("GET" if form is None else "POST"), None if basic is None else httpx.BasicAuth(*basic)
            async with client.stream(method, address, data=form, headers=headers, auth=auth) as answer:
                return Answer(answer.status_code, _object(await _body(answer)))


async def _body(answer: httpx.Response) -> bytearray:
    if answer.is_redirect:
        raise Unusable(f"the issuer answered with a redirect (status {answer.status_code})")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Unusable("the issuer's answer is compressed")
    body = bytearray()
    async for part in answer.aiter_raw():
        body += part
        if len(body) > _LARGEST:
            raise Unusable("the issuer's answer is too long")
    return body


def _object(body: bytearray) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Unusable("expected JSON") from None
    if not isinstance(document, dict):
        raise Unusable("expected a JSON object")
    return document
