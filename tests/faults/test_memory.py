"""The most memory of a server: bodies that unfold to far more than they are, all at once, and legal ones."""

import json
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.settings import Settings
from tests.api.calls import STEWARD, Client, bearer, json_of, make_key, open_account, pure, release
from tests.api.streams import NEARLY_NONE, headers, stream
from tests.faults.conftest import Form
from tests.faults.processes import Replica, replicas

pytestmark = pytest.mark.faults

_MIB = 2**20
_LIMITS = {
    "max_json_bytes": 16 * _MIB,
    "max_json_bytes_at_once": 512 * _MIB,
    "max_arrow_bytes": 256 * _MIB,
    "max_arrow_bytes_at_once": 1024 * _MIB,
    "max_connections": 64,
}
_DRAWS = "/v1/accounts/people/draws"
_CALLERS = 16


def _filled(unit: bytes, head: bytes = b"[", end: bytes = b"0]") -> bytes:
    return head + unit * ((16 * _MIB - len(head) - len(end)) // len(unit)) + end


def _counts_of(unit: bytes) -> bytes:
    head = json.dumps({"name": "x", "mechanism": NEARLY_NONE})[:-1].encode() + b', "counts": ['
    return head + unit * 1_500_000 + b"0]}"


def _zeros(rows: int) -> bytes:
    return stream({"count": pa.array(np.zeros(rows, np.int64))}, compression="zstd")


def _worst() -> list[Callable[[Client], int]]:
    """Requests of any kind, legal or not."""
    as_json = {"Content-Type": "application/json"}
    query = {"name": "x", "mechanism": json.dumps(NEARLY_NONE)}
    junk = [b'{"":0},', b"[],", b"[[]],", b'"ab",', b"1,", b"1e5,", b"300,", b"null,"]
    bodies = [_filled(unit) for unit in junk]
    bodies.append(_filled(b"[" * 900 + b"]" * 900 + b",", b'["\xf0\x9f\x98\x80",'))
    bodies.append(b" " * (16 * _MIB))
    nodes = ",".join(json.dumps(pure(f"1e-9{number}")) for number in range(40_000))
    plan = f'{{"plan": {{"type": "sequence", "parts": [{nodes}]}}}}'.encode()
    counted = [_counts_of(unit) for unit in (b"1,", b"300,", b"9007199254740991,")]
    streams = [_zeros(rows) for rows in (10**5, 5 * 10**6, 3 * 10**7)]
    streams.append(stream({"count": pa.array(np.arange(5 * 10**6))}))

    def post(path: str, body: bytes) -> Callable[[Client], int]:
        return lambda caller: caller.post(path, content=body, headers=as_json).status_code

    def draw(body: bytes) -> Callable[[Client], int]:
        return lambda caller: caller.post(_DRAWS, params=query, content=body, headers=headers()).status_code

    return [
        *(post("/v1/compositions", body) for body in (*bodies, plan)),
        *(post(_DRAWS, body) for body in (*bodies, *counted)),
        *map(draw, streams),
        lambda caller: caller.get(f"{_DRAWS}/{_stored(caller)}").status_code,
    ]


def _stored(client: Client) -> str:
    found = json_of(client.get("/v1/accounts/people/journal?limit=1000"))["items"]
    draws = [entry["entry"]["content"]["draw"] for entry in found if "draw" in entry["entry"]["content"]]
    return str(draws[0]) if draws else "none"


def _peak(server: Replica) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_no_mix_of_bodies_takes_more_than_is_stated(tmp_path: Path, times: Form) -> None:
    given = {name: str(value) for name, value in _LIMITS.items()} | {"helper_processes": "2"}
    with (
        replicas(tmp_path, 1, database_url=f"sqlite:///{tmp_path / 'ledger.db'}", log=None, **given) as (server,),
        server.client() as client,
    ):
        open_account(client, budget={"definition": "pure", "epsilon": 10**9})
        keys = [bearer(STEWARD), make_key(client, "pipeline", "one"), make_key(client, "steward", "two")]
        mix = _worst() * times(2, 6)

        def send(number: int) -> int:
            with Client(base_url=server.address, headers=keys[number % len(keys)], timeout=300) as caller:
                return mix[number](caller)

        with ThreadPoolExecutor(_CALLERS) as callers:
            statuses = Counter(callers.map(send, range(len(mix))))
        release(client, pure("0.1"))
        assert {201, 413, 422} <= statuses.keys() <= {200, 201, 404, 413, 422, 429, 503}, statuses
        assert _peak(server) < Settings(**_LIMITS).most_memory  # type: ignore[arg-type] # all are numbers
        print(f"\n{statuses}: {_peak(server) / _MIB:.0f} MiB of {Settings(**_LIMITS).most_memory / _MIB:.0f}")  # type: ignore[arg-type]


def test_answers_that_nobody_takes_take_no_more_than_is_stated(tmp_path: Path, times: Form) -> None:
    """A few hundred bytes ask for a plan of 15 MB, and what comes is left where it is."""
    given = {name: str(value) for name, value in _LIMITS.items()} | {"helper_processes": "2"}
    emoji = "\U0001f600"
    with (
        replicas(tmp_path, 1, database_url=f"sqlite:///{tmp_path / 'ledger.db'}", log=None, **given) as (server,),
        server.client() as client,
        ExitStack() as open_ones,
    ):
        open_account(client)
        part = {"type": "declared", "epsilon": 0, "tags": [f"{number}{emoji * 190}" for number in range(60)]}
        plan = {"type": "sequence", "parts": [part | {"reference": str(number)} for number in range(320)]}
        body = json.dumps({"name": "x", "plan": plan}, ensure_ascii=False).encode()
        as_json = {"Content-Type": "application/json"}
        registered = json_of(client.post("/v1/accounts/people/releases", content=body, headers=as_json), 201)
        at = f"/v1/accounts/people/releases/{registered['id']}"
        assert len(json_of(client.post(f"{at}/commit"))["plan"]["parts"]) == len(plan["parts"])  # and its cost is known
        before = _peak(server)
        target, unread = urlsplit(server.address), list[socket.socket]()
        asked = f"POST {at}/commit HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {STEWARD}\r\nContent-Length: 0\r\n\r\n"
        for _ in range(times(60, 60)):
            one = open_ones.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((target.hostname, target.port))
            one.sendall(asked.encode())
            unread.append(one)
        assert all(one.recv(9) == b"HTTP/1.1 " for one in unread)  # each has begun to come
        release(client, pure("0.1"))
        held, more = len(unread) * len(body), _peak(server) - before
        print(f"\n{before / _MIB:.0f} MiB and {more / _MIB:.0f}, for answers of {held / _MIB:.0f}")
        assert _peak(server) < Settings(**_LIMITS).most_memory  # type: ignore[arg-type] # all are numbers
        assert more < held / 2
