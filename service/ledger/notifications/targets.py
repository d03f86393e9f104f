"""Addresses to which webhooks may lead: public ones, and those in networks that the operator allows."""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
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
EXPECTED = "the host's address is not public, and not in SERVICE_WEBHOOK_NETWORKS"


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Return whether requests may go to an address."""
    return any(address in network for network in allowed) or all(map(_is_public, _with_embedded(address)))


def _with_embedded(address: Address) -> list[Address]:
    """Return an address with the IPv4 addresses to which its packets may be sent on."""
    if isinstance(address, IPv4Address):
        return [address]
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _TRANSLATED:
        embedded.append(IPv4Address(int(address) & 0xFFFFFFFF))
    found = [one for one in embedded if one is not None]
    return [*found] if address.ipv4_mapped is not None else [address, *found]


def _is_public(address: Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address == _METADATA
    return address.is_global and not special and not any(address in network for network in _RESERVED)


def stated_address(host: str) -> Address | None:
    """Return the address that a URL's host states by itself, without a name that would have to be resolved."""
    try:
        found = socket.getaddrinfo("127.0.0.1" if host == "localhost" else host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return ip_address(str(found[0][4][0]))
