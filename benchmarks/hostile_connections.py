"""Latency of another client's charges while bodies unfold, connections idle and forms never arrive.

``python -m benchmarks.hostile_connections`` prints a line for each attack. An attack is a function that attacks an
address with a key until a moment, in a process of its own, and gives the statuses of its answers.
"""

import json
import multiprocessing
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from benchmarks.hostile import ELSEWHERE
from benchmarks.servers import KEY, open_accounts, peak_memory, service_server, sqlite_database

_SECONDS, _QUIET = 8.0, 3.0
_SETTLED = 1.0  # from an attack's begin to the first charge that is measured
_LARGEST = 64 * 2**20  # bytes of a JSON body
_BODIES = 4  # connections that bring the largest bodies
_IDLE = 1100  # connections
_NOISE = {"type": "discrete_gaussian", "sigma_squared": "100"}
_JSON, _ARROW = "application/json", "application/vnd.apache.arrow.stream"
_FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 30000\r\n\r\nk"
)
Hostile = Callable[[str, str, float], Counter[int]]


@dataclass(frozen=True)
class Attack:
    """An action that a role repeats until a deadline; without a role it has no key."""

    role: str
    what: str
    hostile: Hostile


def _junk(unit: bytes, address: str, key: str, until: float) -> Counter[int]:
    body = b"[" + unit * ((_LARGEST - 3) // len(unit)) + b"0]"
    return _post(address, key, "/v1/compositions", _JSON, body, until)


def _numbers(address: str, key: str, until: float) -> Counter[int]:
    counts = b"1," * 5_000_000
    head = json.dumps({"name": "x", "mechanism": _NOISE})[:-1].encode()
    return _post(address, key, "/v1/accounts/hostile/draws", _JSON, head + b', "counts": [' + counts + b"1]}", until)


def _unfolding(address: str, key: str, until: float) -> Counter[int]:
    batch, sink = pa.record_batch({"count": pa.array(np.zeros(10**7, np.int64))}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(10):
            writer.write_batch(batch)
    query = urlencode({"name": "x", "mechanism": json.dumps(_NOISE)})
    return _post(address, key, f"/v1/accounts/hostile/draws?{query}", _ARROW, sink.getvalue().to_pybytes(), until)


def _idle(said: bytes, address: str, _key: str, until: float) -> Counter[int]:
    """Hold as many connections as ever; one that is closed, or refused, is opened again."""
    lines: list[socket.socket | None] = [None] * _IDLE
    opened = Counter[int]()
    while time.monotonic() < until:
        for place, line in enumerate(lines):
            if line is None or _is_closed(line):
                with suppress(OSError):
                    lines[place] = None
                    opened[0] += 1
                    lines[place] = new = _connected(address, ELSEWHERE)
                    new.sendall(said)
        time.sleep(0.05)
    return opened


def _is_closed(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return not line.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


ATTACKS = (
    Attack("auditor", '4 x 64 MiB of [{"":0},...', partial(_junk, b'{"":0},')),
    Attack("auditor", "4 x 64 MiB of [[],[],...", partial(_junk, b"[],")),
    Attack("auditor", "4 x 64 MiB of [1,1,...", partial(_junk, b"1,")),
    Attack("pipeline", "draws of 5,000,000 counts as JSON", _numbers),
    Attack("pipeline", "Arrow streams of some kilobytes that unfold to 10^8 counts", _unfolding),
    Attack("", f"{_IDLE:,} idle connections", partial(_idle, b"")),
    Attack("", f"{_IDLE:,} forms that never come", partial(_idle, _FORM)),
)


def run() -> None:
    """Print the lines; with words on the command line, of the attacks that hold one of them."""
    chosen = [one for one in ATTACKS if not sys.argv[1:] or any(word in one.what for word in sys.argv[1:])]
    print("Charges of another, one after the other on connections of their own: milliseconds, p50 and p99")
    for attack in chosen:
        with sqlite_database() as url:
            open_accounts(url, ("other", "hostile"))
            with service_server(url) as address:
                _show(attack, address)


def _show(attack: Attack, address: str) -> None:
    keys = {role: _key(address, role) for role in ("auditor", "pipeline")}
    _charges(address, keys["pipeline"], 1.0)  # the first ones come with cold pages
    quiet, _ = _charges(address, keys["pipeline"], _QUIET)
    hostile = _key(address, attack.role, "hostile") if attack.role else ""
    context = multiprocessing.get_context("spawn")
    heard, told = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(attack.hostile, address, hostile, told))
    process.start()
    heard.recv()
    time.sleep(_SETTLED)
    during, failed = _charges(address, keys["pipeline"], _SECONDS - _SETTLED)
    statuses = heard.recv()
    process.join()
    shown = " ".join(f"{1e3 * quantiles(some, n=100)[at]:9.1f}" for some in (quiet, during) for at in (49, 98))
    ratio = quantiles(during, n=100)[98] / quantiles(quiet, n=100)[98]
    answers = ", ".join(f"{number} of {status}" for status, number in sorted(statuses.items()))
    print(f"  {attack.role or 'no key':<9} {attack.what:<60} {shown} {ratio:6.1f}  {failed} of {len(during)} failed")
    print(f"    peak {peak_memory(address):.0f} MiB; the attacker's answers: {answers}", flush=True)


def _key(address: str, role: str, name: str = "other") -> str:
    sent = httpx.post(
        f"{address}/v1/keys",
        json={"name": name, "role": role},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=60,
        trust_env=False,
    )
    return str(sent.raise_for_status().json()["key"])


def _charges(address: str, key: str, seconds: float) -> tuple[list[float], int]:
    """Seconds that charges took, and how many failed."""
    request = _request(
        "/v1/accounts/other/releases", key, _JSON, json.dumps({"name": "x", "plan": _NOISE}).encode(), "close"
    )
    taken, failed, deadline = list[float](), 0, time.monotonic() + seconds
    while time.monotonic() < deadline or len(taken) < 2:
        started = time.perf_counter()
        failed += _answer(address, request) != 201
        taken.append(time.perf_counter() - started)
    return taken, failed


def _attack(hostile: Hostile, address: str, key: str, told: Any) -> None:
    told.send("begun")
    told.send(hostile(address, key, time.monotonic() + _SECONDS))


def _post(address: str, key: str, path: str, media_type: str, body: bytes, until: float) -> Counter[int]:
    statuses, request = Counter[int](), _request(path, key, media_type, body, "close")

    def work() -> None:
        while time.monotonic() < until:
            statuses[_answer(address, request, ELSEWHERE)] += 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(_BODIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.1, until + 60 - time.monotonic()))
    return statuses


def _answer(address: str, request: bytes, source: str = "127.0.0.1") -> int:
    """The status of an answer that is read to its end; 0 where the connection broke before it came."""
    said = b""
    with suppress(OSError), _connected(address, source) as line:
        line.settimeout(120)
        with suppress(ConnectionError):  # it may be answered before all is sent
            line.sendall(request)
        while part := line.recv(1 << 18):
            said = said or part
    return int(said[9:12]) if said else 0


def _connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    target = urlsplit(address)
    return socket.create_connection((target.hostname, target.port), timeout=30, source_address=(source, 0))


def _request(path: str, key: str, media_type: str, body: bytes, connection: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: {media_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: {connection}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    run()
