"""A thousand releases in one request: how many are registered a second, with prices, entries and answers."""

import json
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import httpx

from benchmarks.servers import KEY, open_accounts, postgresql_database, service_server, sqlite_database
from tests.postgres_server import postgres_server

_RELEASES = 1000
_ROUNDS = 9
_TARGET, _AIM = 5_000, 10_000


def run() -> None:
    """Print the releases a second of batches, on both databases."""
    print(f"Batches of {_RELEASES:,} releases over HTTP (target: {_TARGET:,} releases a second, aim: {_AIM:,})")
    print(f"  {'':<58}{'median':>10}{'best':>10}")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        for kind, url in (
            ("SQLite", stack.enter_context(sqlite_database())),
            ("PostgreSQL", stack.enter_context(postgresql_database(server))),
        ):
            open_accounts(url, ["bench"])
            address = stack.enter_context(service_server(url))
            for what, kinds, tags in (
                ("one mechanism", 1, []),
                ("forty mechanisms", 40, []),
                ("forty mechanisms, two tags each", 40, ["sex", "age"]),
            ):
                taken = _times(address, _batch(kinds, tags))
                rates = [_RELEASES / seconds for seconds in (median(taken), min(taken))]
                print(f"  {kind + ', ' + what:<58}{rates[0]:8,.0f}/s{rates[1]:8,.0f}/s", flush=True)


def _batch(kinds: int, tags: list[str]) -> bytes:
    releases: list[dict[str, Any]] = [
        {
            "name": f"release {number}",
            "plan": {"type": "discrete_gaussian", "sigma_squared": str(100 + number % kinds)},
            "tags": tags,
        }
        for number in range(_RELEASES)
    ]
    return json.dumps({"releases": releases}).encode()


def _times(address: str, body: bytes) -> list[float]:
    """Seconds of each request after the first, from the first byte sent to the last received."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    taken: list[float] = []
    with httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False) as client:
        for _ in range(_ROUNDS + 1):
            started = time.perf_counter()
            answer = client.post("/v1/accounts/bench/releases/batch", content=body)
            taken.append(time.perf_counter() - started)
            answer.raise_for_status()
    return taken[1:]
