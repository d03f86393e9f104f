"""A tabulation of 100,000 population groups over Arrow: durable, each group once, against a running service."""

import time
from contextlib import ExitStack
from statistics import median

import httpx
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from benchmarks.servers import KEY, open_account, opened, postgresql_database, service_server, sqlite_database
from tests.postgres_server import postgres_server

_GROUPS, _AGES = 100_000, 116
_ROUNDS = 3
_TARGET = 5.0  # seconds
_ARROW = "application/vnd.apache.arrow.stream"


def run() -> None:
    """Print how long the groups take, from the first byte that is sent to the last that comes back."""
    body = _stream()
    print(f"Tabulation of {_GROUPS:,} groups over Arrow, {len(body) / 2**20:.0f} MiB (target: under {_TARGET:.0f} s)")
    print(f"  {'':<14}{'first':>9}{'median':>9}{'replay':>9}   counts published")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        for kind, url in (
            ("SQLite", stack.enter_context(sqlite_database())),
            ("PostgreSQL", stack.enter_context(postgresql_database(server))),
        ):
            database = opened(url)
            open_account(database, "people")
            database.close()
            address = stack.enter_context(service_server(url))
            _tabulate(kind, address, body)


def _stream() -> bytes:
    """Groups from nobody to millions, a third of them marked, with the nested lists of ages that Spark makes too."""
    rng = np.random.default_rng(2020)
    sizes = rng.lognormal(5, 2.5, _GROUPS)
    ages = rng.poisson(np.repeat(sizes / (2 * _AGES), 2 * _AGES))
    rows = pa.ListArray.from_arrays(np.arange(0, ages.size + 1, _AGES, dtype=np.int32), ages)
    table = pa.table(
        {
            "group": [f"36{number % 1000:03d}/{number // 1000:04d} alone" for number in range(_GROUPS)],
            "sex_by_age": pa.ListArray.from_arrays(np.arange(0, 2 * _GROUPS + 1, 2, dtype=np.int32), rows),
            "total_only": rng.random(_GROUPS) < 1 / 3,
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _tabulate(kind: str, address: str, body: bytes) -> None:
    noise = {"type": "discrete_gaussian", "cells": 9}
    names = [f"Level {number}" for number in range(_ROUNDS)]
    levels = [
        {
            "type": "choice",
            "parts": [
                noise | {"name": f"{name}/total", "sigma_squared": "10"},
                {
                    "type": "sequence",
                    "parts": [
                        noise | {"name": f"{name}/step 1", "sigma_squared": "100"},
                        noise | {"name": f"{name}/step 2", "sigma_squared": "11.1"},
                    ],
                },
            ],
        }
        for name in names
    ]
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=address, headers=headers, timeout=600, trust_env=False) as client:
        release = {"name": "groups", "plan": {"type": "sequence", "parts": levels}}
        of = client.post("/v1/accounts/people/releases", json=release).raise_for_status().json()["id"]
        taken: list[float] = []
        for name in [*names, names[-1]]:
            started = time.perf_counter()
            answer = client.post(
                f"/v1/accounts/people/releases/{of}/tabulations",
                params={"level": name},
                content=body,
                headers={"Content-Type": _ARROW, "Idempotency-Key": name},
            ).raise_for_status()
            taken.append(time.perf_counter() - started)
        table = pa.ipc.open_stream(answer.content).read_all()
        if table.num_rows != _GROUPS:
            raise RuntimeError(f"expected {_GROUPS} groups, got {table.num_rows}")
        *first, replay = taken
        published = len(table["noisy"].combine_chunks().flatten())
        print(f"  {kind:<14}{first[0]:8.2f}s{median(first):8.2f}s{replay:8.2f}s   {published:,}", flush=True)


if __name__ == "__main__":
    run()
