"""A charge over HTTP, beside a bare endpoint that runs the same three statements."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from statistics import median

from benchmarks.load import rate, request_bytes
from benchmarks.servers import (
    KEY,
    bare_server,
    open_one_account,
    postgresql_database,
    service_server,
    sqlite_database,
)
from tests.postgres_server import postgres_server

_ROUNDS = 7
_SECONDS = 0.7  # a round of one server
_TARGET = 0.5
_EQUAL = json.dumps({"name": "small", "plan": {"type": "discrete_gaussian", "sigma_squared": "100"}}).encode()

Target = tuple[str, str]
"""A server's address, and the path that charges."""


def run() -> None:
    """Print the service's rate as a part of the bare endpoint's, on both databases, with 1 client and with 16."""
    print(f"Charges over HTTP: the service's rate as a part of a bare endpoint's (target: at least {_TARGET})")
    print(f"  {'':<46}{'service':>9}{'driver alone':>16}{'SQLAlchemy':>16}")
    _on("SQLite", sqlite_database)
    with postgres_server(durable=True) as server:
        _on("PostgreSQL", lambda: postgresql_database(server))


def _on(kind: str, new_database: Callable[[], AbstractContextManager[str]]) -> None:
    with ExitStack() as stack:
        ours, *theirs = (stack.enter_context(new_database()) for _ in range(3))
        for url in (ours, *theirs):
            open_one_account(url, "bench")
        targets = [
            (stack.enter_context(service_server(ours)), "/v1/accounts/bench/releases"),
            (stack.enter_context(bare_server(theirs[0], "driver")), "/charges"),
            (stack.enter_context(bare_server(theirs[1], "sqlalchemy")), "/charges"),
        ]
        for clients in (1, 16):
            _compare(f"{kind}, {clients} client{'s' * (clients > 1)}", targets, clients, _equal)
        _compare(f"{kind}, 1 client, never the same noise twice", targets, 1, _fresh)


def _compare(what: str, targets: list[Target], clients: int, bodies: Callable[[], Iterator[bytes]]) -> None:
    requests = [_requests(target, bodies()) for target in targets]
    rounds: list[list[float]] = []
    for number in range(_ROUNDS + 1):
        rates = [rate(address, sent, clients, _SECONDS) for (address, _), sent in zip(targets, requests, strict=True)]
        if number:  # the first round warms all of them up
            rounds.append(rates)
    service, *peers = (median(column) for column in zip(*rounds, strict=True))
    shown = [
        f"{median(one[0] / one[place] for one in rounds):6.2f} of {peer:5.0f}/s"
        for place, peer in enumerate(peers, start=1)
    ]
    print(f"  {what:<46}{service:7.0f}/s{shown[0]:>16}{shown[1]:>16}", flush=True)


def _requests(target: Target, bodies: Iterator[bytes]) -> Iterator[bytes]:
    address, path = target
    return (request_bytes(address, path, KEY, body) for body in bodies)


def _equal() -> Iterator[bytes]:
    """The same release again and again, as a pipeline sends it."""
    return itertools.repeat(_EQUAL)


_variances = itertools.count(1)


def _fresh() -> Iterator[bytes]:
    """A variance that was never priced before in every request."""
    while True:
        plan = {"type": "discrete_gaussian", "sigma_squared": str(100 + next(_variances))}
        yield json.dumps({"name": "small", "plan": plan}).encode()
