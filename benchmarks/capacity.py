"""The capacity of an (epsilon, delta) account for plans of 65 unlike queries, over HTTP."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.servers import KEY, postgresql_database, processor_seconds, service_server, sqlite_database
from tests.postgres_server import postgres_server

_QUERIES = 65
_ROUNDS = 15
_TARGET = 100  # milliseconds
_KINDS = {"geometric": ("scale", 300), "laplace": ("scale", 300), "discrete_gaussian": ("sigma_squared", 40_000)}
_BUDGET = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
_ACCOUNTS = ("alone", "under-two")


class Times(NamedTuple):
    """The median of the elapsed times and the mean of the server's processor times, in milliseconds."""

    elapsed: float
    processor: float
    fits: int


def run() -> None:
    """Print the times of plans that were never priced before, and of one that was."""
    print(f"Capacity for plans of {_QUERIES} unlike queries (target: under {_TARGET} ms, milliseconds)")
    print(f"  {'':<52}{'new plans':>10}{'processor':>10}{'again':>8}{'processor':>10}{'fits':>6}")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        for database, url in (
            ("SQLite", stack.enter_context(sqlite_database())),
            ("PostgreSQL", stack.enter_context(postgresql_database(server))),
        ):
            address = stack.enter_context(service_server(url))
            headers = {"Authorization": f"Bearer {KEY}"}
            client = stack.enter_context(httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False))
            _open(client)
            numbers = count()
            for kind in _KINDS:
                for account in _ACCOUNTS:
                    new = _ask(client, account, [_plan(kind, next(numbers)) for _ in range(_ROUNDS)])
                    again = _ask(client, account, [_plan(kind, next(numbers))] * _ROUNDS)
                    print(
                        f"  {f'{database}, {kind}, account {account}':<52}{new.elapsed:10.1f}{new.processor:10.1f}"
                        f"{again.elapsed:8.1f}{again.processor:10.1f}{again.fits:6}"
                    )


def _open(client: httpx.Client) -> None:
    """Open an account by itself, and one below two others of other budgets, whose orders have other weights."""
    common: dict[str, Any] = {"unit": "person", "neighbouring": "add_remove"}
    above: dict[str, Any] = {}
    for name, budget in (
        ("alone", _BUDGET),
        ("top", _BUDGET | {"epsilon": "12"}),
        ("middle", _BUDGET | {"epsilon": "8"}),
        ("under-two", _BUDGET),
    ):
        account = common | {"name": name, "budget": budget} | (above if name != "alone" else {})
        client.post("/v1/accounts", json=account).raise_for_status()
        above = {"parent": name} if name != "alone" else {}


def _plan(kind: str, number: int) -> dict[str, Any]:
    """Return a plan of mechanisms that no other number's plan has."""
    name, size = _KINDS[kind]
    first = _QUERIES * number
    parts = [{"type": kind, name: f"{size}.{place:06}1"} for place in range(first, first + _QUERIES)]
    return {"type": "sequence", "parts": parts}


def _ask(client: httpx.Client, account: str, plans: Sequence[dict[str, Any]]) -> Times:
    address, elapsed = str(client.base_url).rstrip("/"), []
    first = processor_seconds(address)
    for plan in plans:
        started = time.perf_counter()
        answer = client.post(f"/v1/accounts/{account}/capacity", json={"plan": plan}).raise_for_status()
        elapsed.append(time.perf_counter() - started)
    processor = (processor_seconds(address) - first) / len(plans)
    return Times(1e3 * median(elapsed), 1e3 * processor, answer.json()["fits"])


if __name__ == "__main__":
    run()
