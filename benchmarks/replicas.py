"""The main endpoints through the proxy of ``deploy/``, before one replica and before three, on one PostgreSQL."""

import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import Measured, measure, request_bytes
from benchmarks.servers import KEY, free_port, open_accounts, postgresql_database, service_servers, started
from tests.postgres_server import postgres_server

_CONFIGURATION = Path(__file__).resolve().parents[1] / "deploy" / "haproxy.cfg"
_ROUNDS = 3
_SECONDS = 1  # a round of one endpoint
_NOISE = {"type": "discrete_gaussian", "sigma_squared": "100"}
_RELEASE = {"name": "small", "plan": _NOISE}
_DRAW = {"name": "counts", "mechanism": _NOISE, "counts": list(range(1000))}
_PLAN = {"type": "sequence", "parts": [_NOISE, {"type": "geometric", "scale": "2.5"}]}
_ENDPOINTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "charge": ("/v1/accounts/bench/releases", _RELEASE),
    "draw of 1,000 counts": ("/v1/accounts/bench/draws", _DRAW),
    "balance": ("/v1/accounts/bench/balance", None),
    "head": ("/v1/accounts/bench/head", None),
    "composition": ("/v1/compositions", {"plan": _PLAN}),
    "conversion": ("/v1/conversions", {"rho": "2.56", "delta": "1e-10"}),
    "health": ("/healthz", None),
}


def run() -> None:
    """Print one table."""
    if shutil.which("haproxy") is None:
        print("Through the proxy: haproxy is not installed")
        return
    print("Through the proxy, PostgreSQL: answers a second, median and 99th percentile in milliseconds")
    columns = [(clients, replicas) for clients in (1, 16) for replicas in (1, 3)]
    print(" " * 24 + "".join(f"{f'{clients} clients, {replicas} replicas':>28}" for clients, replicas in columns))
    figures: dict[tuple[str, int, int], Measured] = {}
    for replicas in (1, 3):
        with _proxied(replicas) as address:
            for clients in (1, 16):
                for name, (path, body) in _ENDPOINTS.items():
                    figures[name, clients, replicas] = _measured(address, path, body, clients)
    for name in _ENDPOINTS:
        cells = [figures[name, clients, replicas] for clients, replicas in columns]
        print(f"  {name:<22}" + "".join(map(_cell, cells)))


def _cell(found: Measured) -> str:
    return f"{found.rate:12.0f}/s{1e3 * found.p50:7.1f}{1e3 * found.p99:7.1f}"


def _measured(address: str, path: str, body: dict[str, Any] | None, clients: int) -> Measured:
    request = request_bytes(address, path, KEY, None if body is None else json.dumps(body).encode())
    rounds = [measure(address, itertools.repeat(request), clients, _SECONDS) for _ in range(_ROUNDS + 1)]
    return Measured(*(median(getattr(one, field) for one in rounds[1:]) for field in ("rate", "p50", "p99")))


@contextmanager
def _proxied(number: int) -> Iterator[str]:
    """The address of the proxy before so many replicas; where there is one, it has the places of all."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        url = stack.enter_context(postgresql_database(server))
        open_accounts(url, ["bench"])
        addresses = stack.enter_context(service_servers(url, number))
        address = f"http://127.0.0.1:{free_port()}"
        environment = {f"SERVICE_{place + 1}": addresses[place % number].removeprefix("http://") for place in range(3)}
        environment["PROXY_BIND"] = address.removeprefix("http://")
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        command = ["haproxy", "-db", "-f", str(_CONFIGURATION)]
        stack.enter_context(started(command, environment, home, address, "/readyz"))
        yield address
