"""Addresses to open after sign-in, which come from outside: only those of this service are opened."""

from urllib.parse import quote_plus

_LONGEST = 1000  # characters in percent-encoding, so that the sign-in form stays within its limit


def local_address(onward: str) -> str:
    """Return the address to open after sign-in: the requested one if it is a path of this service, else the start."""
    ours = onward.startswith("/") and not onward.startswith("//") and "\\" not in onward and onward.isprintable()
    return onward if ours and len(quote_plus(onward)) <= _LONGEST else "/"
