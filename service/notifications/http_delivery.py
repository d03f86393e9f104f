"""One try to post a message to a webhook: a checked address, no redirects, and bounds on time and size."""

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from service import __version__
from service.ledger.notifications.deliveries import LONGEST_ANSWER
from service.ledger.notifications.targets import Network
from service.notifications.addresses import Place, Refused, place_of

_STEP = 5.0  # seconds for each step, such as connecting
_LONGEST = 15.0  # seconds for all of it, however slowly the answer comes
_MOST_LINES = 300  # of an answer: of status, headers, sizes of chunks, and trailers, with those of interim answers
_MOST_BYTES = 1 << 16  # in these lines
_USER_AGENT = f"privacy-budget-ledger/{__version__}"


class Answer(NamedTuple):
    """The outcome of a try: delivered where there is no reason."""

    status: int | None
    reason: str | None
    text: str | None


class _TooLong(http.client.HTTPException):
    """An answer with more lines or bytes than are read."""


class _Bounded(io.BufferedReader):
    """The bytes of an answer, up to a number of lines: http.client reads interim answers and trailers without end."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self._lines, self._bytes = _MOST_LINES, _MOST_BYTES  # that may still come

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, as http.client reads everything but the body.

        Raises:
            _TooLong: the answer has too many lines or bytes.
        """
        most = self._bytes + 1
        line = super().readline(most if size is None or size < 0 else min(size, most))
        self._lines, self._bytes = self._lines - 1, self._bytes - len(line)
        if min(self._lines, self._bytes) < 0:
            raise _TooLong
        return line


class _Response(http.client.HTTPResponse):
    """An answer whose lines are counted."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.fp = _Bounded(self.fp.detach())


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, under the name of the host: it is not resolved again."""

    response_class = _Response

    def __init__(self, place: Place, longest: float) -> None:
        super().__init__(place.host, place.port, timeout=_STEP)
        self.default_port = 443 if place.tls else 80  # left out of the header Host
        self._place = place
        self._ending = threading.Timer(longest, self._end)
        self._ending.daemon = True
        self.ended = False

    def connect(self) -> None:
        """Connect to the address, and check the certificate for the host's name."""
        self._ending.start()
        self.sock = socket.create_connection((self._place.address, self._place.port), _STEP)
        if self._place.tls:
            self.sock = trusted().wrap_socket(
                self.sock, server_hostname=self._place.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()

    def close(self) -> None:
        """Close the connection."""
        self._ending.cancel()
        super().close()

    def _end(self) -> None:
        """Break off whatever the connection waits for."""
        self.ended = True
        try:
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except (OSError, AttributeError, TypeError):
            return  # it is not open, or no longer


@cache
def trusted() -> ssl.SSLContext:
    """Return the context of encrypted connections, with the machine's authorities, or those of SSL_CERT_FILE."""
    return ssl.create_default_context()


def post(url: str, payload: bytes, headers: Mapping[str, str], allowed: Sequence[Network]) -> Answer:
    """Post a message; every status of 200 to 299 means that it was delivered.

    Args:
        allowed: networks that may be reached although they are not public.
    """
    began = time.monotonic()
    try:
        place = _resolved(url, allowed)
    except Refused as refused:
        return Answer(None, str(refused), None)
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _Connection(place, _LONGEST - (time.monotonic() - began))
    try:
        sent = {"Content-Type": "application/json", "User-Agent": _USER_AGENT, "Connection": "close", **headers}
        connection.request("POST", path, payload, sent)
        answer = connection.getresponse()
        text = answer.read(4 * LONGEST_ANSWER)  # no more is read: a character has at most four bytes
        if connection.ended:
            raise TimeoutError
        return Answer(answer.status, _fault(answer.status), _shown(text))
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        late = connection.ended or isinstance(error, TimeoutError)
        seconds = round(time.monotonic() - began)
        return Answer(None, f"no answer within {seconds} s" if late else _words(error), None)
    finally:
        connection.close()


def _resolved(url: str, allowed: Sequence[Network]) -> Place:
    """Resolve a URL as ``place_of`` does, in a thread that is left behind where the resolver takes too long.

    Nothing can break off the system's resolver. A sender leaves one behind at most every ``_STEP`` seconds.
    """
    found = Future[Place]()

    def resolve() -> None:
        try:
            found.set_result(place_of(url, allowed))
        except Exception as error:  # noqa: BLE001 - it is raised by those who wait
            found.set_exception(error)

    threading.Thread(target=resolve, name="resolver", daemon=True).start()
    try:
        return found.result(_STEP)
    except TimeoutError:
        raise Refused(f"the host's name was not resolved within {_STEP:.0f} s") from None


def _fault(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    return "redirects are not followed" if 300 <= status < 400 else f"the answer has status {status}"


def _words(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate is not valid: {error.verify_message}"
        case ssl.SSLError():
            return "no TLS connection"
        case OSError():
            return f"no connection: {error.strerror or type(error).__name__}"
        case _TooLong():
            return "the answer is too long"
    return f"not an answer of HTTP: {type(error).__name__}"


def _shown(text: bytes) -> str | None:
    """Return the beginning of an answer, without characters that a page or a database could not show."""
    return printable(text.decode("utf-8", "replace"))[:LONGEST_ANSWER].strip() or None


def printable(text: str) -> str:
    """Return a text with spaces in place of characters that control how it is shown, such as ends of lines."""
    return "".join(one if one.isprintable() else " " for one in text)
