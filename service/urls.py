"""Addresses: URLs of databases and of identity providers."""

import ipaddress
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError


def read_url(text: str) -> URL:
    """Parse a database's URL; the message of a refusal never quotes it, since it may hold a password.

    Raises:
        ValueError: it is not a URL, or part of its password could be read as a host, or the reverse.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: a port that is not a number
        raise ValueError("expected an SQLAlchemy URL such as postgresql+psycopg://user@host/database") from None
    if url.get_backend_name() != "sqlite":
        if text.count("@") > 1:
            raise ValueError("expected one @, before the host; write any other, as in a password, as %40")
        if "\0" in unquote(text):
            raise ValueError("expected a URL without null characters (%00)")  # libpq would end there and connect
    return url


def is_loopback(url: str) -> bool:
    """Return True where a URL's host is this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # no address, or no URL
        return False


def is_origin(url: str) -> bool:
    """Return True where a URL is a scheme, a host and perhaps a port, and nothing else."""
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError:  # no URL, or a port that is not a number
        return False
    return url == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc and port != 0


def is_confidential(url: str) -> bool:
    """Return True where a URL is safe from changes on the way: it has https, or is on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url)))
