"""Addresses that a webhook may reach."""

import socket
from ipaddress import ip_network
from typing import Any

import pytest

from service.notifications.addresses import Refused, place_of

_INSIDE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # metadata of clouds
    "168.63.129.16",
    "100.100.100.200",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fec0::1",
    "feff::1",
    "192.88.99.1",
    "::ffff:192.88.99.1",
    "3fff::1",
    "3fff:fff::1",
    "192.0.0.192",  # metadata of one cloud
    "192.31.196.1",
    "192.52.193.1",
    "192.175.48.1",
    "2620:4f:8000::1",
]


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[Any]:
    """Let every name have these addresses; return the calls."""
    calls: list[Any] = []

    def found(host: str, port: int, **_: Any) -> list[Any]:
        calls.append((host, port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return calls


@pytest.mark.parametrize("address", _INSIDE)
def test_an_address_inside_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve(monkeypatch, address)
    with pytest.raises(Refused, match="not public"):
        place_of("https://hooks.agency.example/", ())


@pytest.mark.parametrize("address", _INSIDE)
def test_a_name_with_one_address_inside_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve(monkeypatch, "93.184.215.14", address)
    with pytest.raises(Refused, match="not public"):
        place_of("https://hooks.agency.example/", ())


def test_addresses_are_read_as_the_system_reads_them() -> None:
    for url in ("https://2130706433/", "https://0x7f.1/", "https://[::ffff:127.0.0.1]/", "https://localhost/"):
        with pytest.raises(Refused):
            place_of(url, ())


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_a_public_address_is_resolved_once(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    calls = resolve(monkeypatch, address)
    assert place_of("https://hooks.agency.example:8443/a", ()) == ("hooks.agency.example", 8443, address, True)
    assert place_of("https://hooks.agency.example/a", ()).port == 443
    assert calls == [("hooks.agency.example", 8443), ("hooks.agency.example", 443)]


def test_a_listed_network_is_reached_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    resolve(monkeypatch, "10.1.2.3", "fd00::1")
    assert place_of("https://inside.example/", allowed).address == "10.1.2.3"
    resolve(monkeypatch, "10.2.0.1")
    with pytest.raises(Refused):
        place_of("https://inside.example/", allowed)


def test_plain_http_is_for_a_listed_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"))
    assert place_of("http://127.0.0.1:8080/", here) == ("127.0.0.1", 8080, "127.0.0.1", False)
    with pytest.raises(Refused, match="not public"):
        place_of("http://127.0.0.1:8080/", ())
    for address in ("10.0.0.1", "93.184.215.14"):
        resolve(monkeypatch, address)
        with pytest.raises(Refused, match="https"):
            place_of("http://hooks.agency.example/", here)


def test_a_name_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Refused, match="no address"):
        place_of("https://hooks.agency.example/", ())
