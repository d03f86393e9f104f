"""A running service, and what stands between it and a client."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from privacy_budget_ledger import Account, Client, Retries, ZcdpBudget
from tests.api.calls import STEWARD
from tests.processes import Served, service

AT_ONCE = Retries(shortest=0.001)
"""Attempts without waiting."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with service(tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.fixture
def ledger(served: Served) -> Iterator[Client]:
    with Client(served.address, STEWARD, retries=AT_ONCE) as client:
        yield client


@pytest.fixture
def account(ledger: Client) -> Account:
    """Return an account of this test alone."""
    return opened(ledger)


def opened(client: Client) -> Account:
    name, budget = f"town-{uuid.uuid4()}", ZcdpBudget(rho="0.5")
    return client.open_account(name, unit="person", neighbouring="add_remove", budget=budget)


Fault = Callable[[httpx.Request, Callable[[httpx.Request], httpx.Response]], httpx.Response]


class Faulty(httpx.BaseTransport):
    """A connection on which the next requests go wrong, one fault for each; later ones reach the service.

    Attributes:
        seen: the requests, those that went wrong too.
    """

    def __init__(self, *faults: Fault) -> None:
        self._faults, self._inner = list(faults), httpx.HTTPTransport()
        self.seen: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self._faults:
            return self._faults.pop(0)(request, self._inner.handle_request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def refused(request: httpx.Request, _: Callable[[httpx.Request], httpx.Response]) -> httpx.Response:
    """Fail before the request is sent."""
    raise httpx.ConnectError("connection refused", request=request)


def answer_lost(request: httpx.Request, send: Callable[[httpx.Request], httpx.Response]) -> httpx.Response:
    """Have the service carry the request out, and lose its answer."""
    answer = send(request)
    answer.read()
    answer.close()
    raise httpx.ReadError("connection reset by peer", request=request)


def answered(status: int, body: bytes = b"", **headers: str) -> Fault:
    """Return a fault that answers in the place of the service."""

    def fault(request: httpx.Request, _: Callable[[httpx.Request], httpx.Response]) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Response(status, content=body, headers=named, request=request)

    return fault


def faulty(served: Served, *faults: Fault, heads: Path | None = None, attempts: int = 6) -> tuple[Client, Faulty]:
    """Return a client whose next requests go wrong, and its connection."""
    transport = Faulty(*faults)
    retries = Retries(attempts=attempts, shortest=0.001)
    return Client(served.address, STEWARD, retries=retries, heads=heads, transport=transport), transport
