"""A charge over HTTP, beside a bare endpoint that runs the same three statements and pgbench that runs all of them."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from statistics import median

from benchmarks.load import Measured, measure, request_bytes
from benchmarks.pgbench import pgbench
from benchmarks.servers import (
    KEY,
    bare_server,
    open_accounts,
    postgresql_database,
    service_server,
    sqlite_database,
)
from tests.postgres_server import postgres_server

_ROUNDS = 5
_SECONDS = 1  # a round of one contender
_TARGET = 0.5
_ACCOUNTS = 64
_EQUAL = json.dumps({"name": "small", "plan": {"type": "discrete_gaussian", "sigma_squared": "100"}}).encode()

Contender = Callable[[int, int, Callable[[], Iterator[bytes]]], Measured]
"""Who charges from some clients on some accounts, with these bodies."""


def run() -> None:
    """Print the service's rate as a part of its peers', on both databases, with 1 client and with 16."""
    print(f"Charges over HTTP, and the service's rate as a part of its peers' (target: {_TARGET} of SQLAlchemy's)")
    print(f"  {'':<58}{'rate':>9}{'p50':>11}{'p99':>11}{'part':>7}")
    _on("SQLite", sqlite_database)
    with postgres_server(durable=True) as server:
        _on("PostgreSQL", lambda: postgresql_database(server))


def _on(kind: str, new_database: Callable[[], AbstractContextManager[str]]) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(new_database()) for _ in range(4)]
        for url in urls:
            open_accounts(url, (f"bench-{number}" for number in range(_ACCOUNTS)))
        contenders: dict[str, Contender] = {
            "service": partial(
                _over_http, stack.enter_context(service_server(urls[0])), "/v1/accounts/bench-{}/releases", 0
            ),
            "bare endpoint, driver alone": partial(
                _over_http, stack.enter_context(bare_server(urls[1], "driver")), "/charges/{}", 1
            ),
            "bare endpoint, SQLAlchemy": partial(
                _over_http, stack.enter_context(bare_server(urls[2], "sqlalchemy")), "/charges/{}", 1
            ),
        }
        if kind == "PostgreSQL":
            contenders["pgbench"] = lambda clients, accounts, _: pgbench(urls[3], clients, accounts, _SECONDS)
        _compare(f"{kind}, 1 client", contenders, 1, 1, _equal)
        _compare(f"{kind}, 1 client, never the same noise twice", contenders, 1, 1, _fresh)
        _compare(f"{kind}, 16 clients, one account", contenders, 16, 1, _equal)
        _compare(f"{kind}, 16 clients, {_ACCOUNTS} accounts", contenders, 16, _ACCOUNTS, _equal)


def _over_http(
    address: str, path: str, first: int, clients: int, accounts: int, bodies: Callable[[], Iterator[bytes]]
) -> Measured:
    paths = itertools.cycle(path.format(number) for number in range(first, first + accounts))
    requests = (request_bytes(address, one, KEY, body) for one, body in zip(paths, bodies(), strict=False))
    return measure(address, requests, clients, _SECONDS)


def _compare(
    what: str, contenders: dict[str, Contender], clients: int, accounts: int, bodies: Callable[[], Iterator[bytes]]
) -> None:
    rounds: list[dict[str, Measured]] = []
    for number in range(_ROUNDS + 1):
        figures = {name: contender(clients, accounts, bodies) for name, contender in contenders.items()}
        if number:  # the first round warms all of them up
            rounds.append(figures)
    print(f"  {what}")
    for name in contenders:
        rate = median(figures[name].rate for figures in rounds)
        p50, p99 = (1e3 * median(getattr(figures[name], field) for figures in rounds) for field in ("p50", "p99"))
        part = median(figures["service"].rate / figures[name].rate for figures in rounds)
        shown = "" if name == "service" else f"{part:7.2f}"
        print(f"    {name:<56}{rate:7.0f}/s{p50:8.2f} ms{p99:8.2f} ms{shown}", flush=True)


def _equal() -> Iterator[bytes]:
    """Return one release that is sent again and again, as a pipeline does."""
    return itertools.repeat(_EQUAL)


_variances = itertools.count(1)


def _fresh() -> Iterator[bytes]:
    """A variance that was never priced before in every request."""
    while True:
        plan = {"type": "discrete_gaussian", "sigma_squared": str(100 + next(_variances))}
        yield json.dumps({"name": "small", "plan": plan}).encode()
