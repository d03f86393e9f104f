"""Draws in bulk over HTTP: ten million counts as an Arrow stream, a hundred thousand as JSON, stored durably."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

import httpx
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
from numpy.typing import NDArray

from benchmarks.servers import KEY, open_accounts, peak_memory, postgresql_database, service_server, sqlite_database
from tests.postgres_server import postgres_server

_STREAMED, _LISTED = 10_000_000, 100_000
_BATCH, _BLOCK = 1 << 20, 1 << 20  # rows, and bytes
_ROUNDS = 5
_MECHANISM = {"type": "discrete_gaussian", "sigma_squared": "9.375"}
_ACCOUNT = "bulk"
_DRAWS = f"/v1/accounts/{_ACCOUNT}/draws"


def run() -> None:
    """Print counts a second from the client's array to the client's array, and the service's peak memory."""
    print("Draws over HTTP, millions of counts a second (target: 5 by Arrow, 0.5 by JSON); the service's peak memory")
    counts = _like_a_census(_STREAMED)
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        databases = {
            "SQLite": stack.enter_context(sqlite_database()),
            "PostgreSQL": stack.enter_context(postgresql_database(server)),
        }
        for name, url in databases.items():
            open_accounts(url, [_ACCOUNT])
            with service_server(url) as address, _caller(address) as caller:
                before = peak_memory(address)
                _line(f"{name}, Arrow, {_STREAMED:,}", partial(_by_arrow, caller, counts), _STREAMED)
                after = peak_memory(address)
                stream = counts.nbytes / 2**20
                print(
                    f"    peak {after:.0f} MiB, {before:.0f} before: {(after - before) / stream:.1f} times the stream"
                )
                few = counts[:_LISTED].tolist()
                _line(f"{name}, JSON, {_LISTED:,}", partial(_by_json, caller, few), _LISTED)


def _like_a_census(size: int) -> NDArray[np.int64]:
    """Mostly small counts and some large ones."""
    drawn = np.random.default_rng(1).lognormal(3, 1.5, size)
    return np.minimum(drawn, 1e7).astype(np.int64)


def _caller(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False)


def _line(name: str, draw: Callable[[], object], size: int) -> None:
    rates = []
    for _ in range(_ROUNDS + 1):
        started = time.perf_counter()
        draw()
        rates.append(size / (time.perf_counter() - started) / 1e6)
    print(f"  {name:<32}{median(rates[1:]):8.2f}   the first {rates[0]:.2f}", flush=True)


def _by_arrow(caller: httpx.Client, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    table, sink = pa.table({"count": counts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_BATCH)
    body = sink.getvalue()
    answer = caller.post(
        _DRAWS,
        params={"name": "bulk", "mechanism": json.dumps(_MECHANISM)},
        content=_blocks(body),
        headers={"Content-Type": "application/vnd.apache.arrow.stream", "Content-Length": str(body.size)},
    )
    noisy: NDArray[np.int64] = pa.ipc.open_stream(answer.raise_for_status().content).read_all()["noisy"].to_numpy()
    return noisy


def _blocks(body: pa.Buffer) -> Iterator[bytes]:
    """httpx copies what is left of one block for each piece that the socket takes, so blocks are short."""
    for start in range(0, body.size, _BLOCK):
        yield body[start : start + _BLOCK].to_pybytes()


def _by_json(caller: httpx.Client, counts: list[int]) -> list[int]:
    answer = caller.post(_DRAWS, json={"name": "bulk", "mechanism": _MECHANISM, "counts": counts})
    noisy: list[int] = answer.raise_for_status().json()["noisy"]
    return noisy


if __name__ == "__main__":
    run()
