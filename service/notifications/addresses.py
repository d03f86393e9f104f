"""The addresses that a webhook may reach: public ones, and those in networks that the operator allows."""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network
_ADDRESS = IPv4Address | IPv6Address
_TRANSLATED = ip_network("64:ff9b::/96")  # an IPv4 address behind a translator is in the last 32 bits
_RESERVED = tuple(  # for other things than hosts of the Internet, although Python takes some of them for global
    ip_network(text)
    for text in (
        *("fec0::/10", "192.88.99.0/24", "3fff::/20"),  # local sites, relays of 6to4, documentation
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24"),  # protocols, AS112, tunnels of multicast
        *("192.175.48.0/24", "2620:4f:8000::/48"),  # AS112
    )
)
_METADATA = ip_address("168.63.129.16")  # public by its number, and a cloud's own service for its machines


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
        if not _is_allowed(ip_address(address), allowed):
            raise Refused("the host's address is not public, and not in SERVICE_WEBHOOK_NETWORKS")
        if not tls and not ip_address(address).is_loopback:
            raise Refused("expected https")
    return Place(host, port, addresses[0], tls)


def _is_allowed(address: _ADDRESS, allowed: Sequence[Network]) -> bool:
    return any(address in network for network in allowed) or all(map(_is_public, _with_embedded(address)))


def _with_embedded(address: _ADDRESS) -> list[_ADDRESS]:
    """Return an address with the IPv4 addresses to which its packets may be sent on."""
    if isinstance(address, IPv4Address):
        return [address]
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _TRANSLATED:
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    found = [one for one in embedded if one is not None]
    return [*found] if address.ipv4_mapped is not None else [address, *found]


def _is_public(address: _ADDRESS) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address == _METADATA
    return address.is_global and not special and not any(address in network for network in _RESERVED)
