"""The one address at which a webhook's host is reached."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from service.ledger.notifications.targets import EXPECTED, Network, is_allowed


class Refused(Exception):
    """A target that is not allowed, or has no address; the text says why."""


class Place(NamedTuple):
    """The one address at which a host is reached."""

    host: str
    port: int
    address: str
    tls: bool


def place_of(url: str, allowed: Sequence[Network]) -> Place:
    """Resolve the host of a URL once, and return the address to connect to.

    All of its addresses must be allowed: a name that also leads inside is not reached at all.

    Raises:
        Refused: one is not allowed, the scheme is not, or the name cannot be resolved.
    """
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        raise Refused("the host has no address") from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not is_allowed(ip_address(address), allowed):
            raise Refused(EXPECTED)
        if not tls and not ip_address(address).is_loopback:
            raise Refused("expected https")
    return Place(host, port, addresses[0], tls)
