"""One hostile principal of each role doing its worst, and what another's requests take meanwhile.

``python -m benchmarks.hostile`` prints the table of ``docs/hostile-principal.md``. An attack is one function, which
gives the requests that are sent again and again from many connections.
"""

import itertools
import json
import multiprocessing
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from benchmarks.load import request_bytes
from benchmarks.servers import KEY, open_accounts, postgresql_database, service_server, sqlite_database
from tests.postgres_server import postgres_server

_CLIENTS = 40  # connections of the hostile principal
_ROUNDS = 3  # each with a database and a server of its own: one round has too few requests for a 99th percentile
_LONG = 40.0  # seconds of an attack by single requests that write for long
_QUIET = 2.0  # before each
_SETTLED = 1.0  # from the attack's begin to the first that is measured
_ENTRIES = 20_000  # in the journal that is walked
_PARTS = 5_000  # unlike mechanisms of a large release
_TABULATED = 200_000  # groups of a level
_BATCH = 10_000  # releases
_OFFSETS, _WAVES = 300, 7_000  # of a panel: so many waves touch 7,300 windows
_DAYS = 2_000  # of an account with any three periods
_GROUPS = 250_000  # of one tabulation at most
_LONG_NAMES = {"4-byte characters": "\U0001f600", "decomposed characters": "q\u0301q"}  # of 4 bytes each
_NESTED = 100  # mechanisms below choices within each other
_CAPPED = 20  # unlike discrete_osgt that a new cap counts
_HANG_UP = 0.2  # seconds
_TARGET = 3.0
ELSEWHERE = "127.0.0.2"  # where the attacks come from: 127.0.0.1 is a trusted proxy, whose connections nothing limits

_NOISE = {"type": "discrete_gaussian", "sigma_squared": "100"}
_OWN = "/v1/accounts/other"  # the account of the one who is not hostile
Ask = tuple[str, Any]
"""A path, and a body: an Arrow stream as bytes, else JSON, or None."""
_numbers = itertools.count(10**9)


def _new_noise() -> Ask:
    """A draw of noise whose table no draw before has made."""
    noise = {"type": "geometric", "epsilon": f"0.{next(_numbers)}"}
    return "/v1/accounts/drawn/draws", {"name": "small", "mechanism": noise, "counts": [5]}


_ASKED: dict[str, Callable[[], Ask]] = {
    "charge": lambda: (f"{_OWN}/releases", {"name": "small", "plan": _NOISE}),
    "draw": _new_noise,
    "balance": lambda: (f"{_OWN}/balance", None),
    "readyz": lambda: ("/readyz", None),
}


@dataclass(frozen=True)
class Attack:
    """An action that a role repeats from so many connections; with ``stays`` it waits for its answers."""

    role: str
    what: str
    requests: Callable[[], list[Ask]]
    stays: bool = True
    accept: str = "application/json"
    seconds: float = 6.0
    method: str = "POST"


def _offset(k: int) -> dict[str, Any]:
    return {"type": "discrete_osgt", "sigma_squared": f"{100 + k}.5", "m": "3"}


def _plan(parts: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "parts": list(parts)}


def _compositions() -> list[Ask]:
    orders = [str(2 + k) for k in range(999)]
    return [("/v1/compositions", {"plan": _plan(map(_offset, range(100))), "orders": orders})]


def _admitted_compositions() -> list[Ask]:
    return [("/v1/compositions", {"plan": _plan(_offset(100 * n + k) for k in range(100))}) for n in range(5)]


def _verifications() -> list[Ask]:
    return [("/v1/accounts/long/verify", None), ("/v1/accounts/long/history", None)]


def _pictures() -> list[Ask]:
    return [("/v1/accounts/long/history?points=1000", None), ("/v1/accounts/large/balance?picture=profile", None)]


def _exports() -> list[Ask]:
    return [("/v1/accounts/long/export", None)]


def _lists() -> list[Ask]:
    return [
        (f"/v1/accounts/{name}/{what}?limit=1000", None)
        for name in ("long", "large")
        for what in ("releases", "journal")
    ]


def _balances() -> list[Ask]:
    return [("/v1/accounts/large/balance", None)]


def _small_balances() -> list[Ask]:
    return [("/v1/accounts/small/balance", None)]


def _noises() -> list[Ask]:
    asked = {"mechanism": "discrete_osgt", "delta": "1e-9"}
    return [("/v1/calibrations/noise", asked | {"epsilon": f"0.{k}", "cells": k}) for k in range(11, 20)]


def _safetabs() -> list[Ask]:
    levels = [{"name": str(k), "moe": 10 + 3 * k} for k in range(16)]
    body = {"levels": levels, "stability": 9, "mechanism": "discrete_gaussian", "delta": "1e-7"}
    return [("/v1/plans/safetab", body)]


def _crossings() -> list[Ask]:
    counts = [(7 * k) % 50 for k in range(400 * 500)]
    totals = [{"axes": [0], "values": [12_500] * 400}, {"axes": [1], "values": [10_000] * 500}]
    return [("/v1/postprocessing/project", {"counts": counts, "shape": [400, 500], "totals": totals})]


def _charges() -> list[Ask]:
    return [("/v1/accounts/small/releases", {"name": "x", "plan": _NOISE})]


def _reservations() -> list[Ask]:
    held = {"name": "x", "plan": _NOISE, "reserve_for": "PT1S"}
    return [("/v1/accounts/small/releases/batch", {"releases": [held] * 100})]


def _large_batches() -> list[Ask]:
    return [("/v1/accounts/small/releases/batch", {"releases": [{"name": "x", "plan": _NOISE}] * _BATCH})]


def _of_periods(account: str, **fields: Any) -> list[Ask]:
    return [(f"/v1/accounts/{account}/releases", {"name": "x", "plan": _NOISE, **fields})]


def _window_reservations() -> list[Ask]:
    return _of_periods("panel", periods={"from": 0, "to": _WAVES}, reserve_for="PT1S")


def _charges_of_any_periods() -> list[Ask]:
    return _of_periods("days", periods={"from": 0, "to": _DAYS})


def _leading_expiries() -> list[Ask]:
    return _of_periods("days", periods={"list": [0]}, reserve_for="PT1S")


def _heavy_charges() -> list[Ask]:
    return [
        ("/v1/accounts/curved/releases", {"name": "x", "plan": _plan(_offset(100 * n + k) for k in range(50))})
        for n in range(20)
    ]


def _wide_charges() -> list[Ask]:
    return [("/v1/accounts/wide/releases?dry_run=true", {"name": "x", "plan": _wide(7 * n)}) for n in range(3)]


def _stored_wide_charges() -> list[Ask]:
    return [("/v1/accounts/wide/releases", {"name": "x", "plan": _wide(_PARTS * n)}) for n in range(20)]


def _wide(first: int) -> dict[str, Any]:
    return _plan({"type": "gaussian", "sigma_squared": str(100 + first + k)} for k in range(_PARTS))


def _histograms() -> list[Ask]:
    values = [str(k) for k in range(200)]
    body = {
        "name": "x",
        "mechanism": _NOISE,
        "dimensions": [{"name": "a", "values": values}, {"name": "b", "values": values}],
        "counts": [9] * 40_000,
        "margins": [["a"], ["b"]],
        "published": [{"margin": [of], "values": [one], "total": 1800} for of in "ab" for one in values],
        "adjust": "rake",
    }
    return [("/v1/accounts/wide/histograms", body)]


def _draws() -> list[Ask]:
    return [("/v1/accounts/wide/draws", {"name": "x", "mechanism": _NOISE, "counts": [9] * 200_000})]


def _small_streams() -> list[Ask]:
    return [
        (f"/v1/accounts/wide/draws?name=x&mechanism={quote(json.dumps(_NOISE))}", _arrow_stream({"count": [9] * 10}))
    ]


def _streams() -> list[Ask]:
    content = _arrow_stream({"count": [9] * 2_000_000})
    return [(f"/v1/accounts/wide/draws?name=x&mechanism={quote(json.dumps(_NOISE))}", content)]


def _arrow_stream(columns: dict[str, Any], compression: str | None = None) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _tabulations() -> list[Ask]:
    groups = [{"group": str(k), "sex_by_age": [[9] * 100, [9] * 100]} for k in range(2_000)]
    return [("/v1/accounts/tables/releases/{tables}/tabulations", {"level": "County", "groups": groups})]


def _long_names(characters: str, times: int) -> Callable[[], list[Ask]]:
    """Return a tabulation of which the last group was drawn, or whose names are too long; it is refused each time."""

    def requests() -> list[Ask]:
        names = [_long_name(characters, times, number) for number in range(_GROUPS)]
        columns = {"group": names, "total_only": [True] * _GROUPS, "total": [5] * _GROUPS}
        path = "/v1/accounts/tables/releases/{tables}/tabulations?level=County"
        return [(path, _arrow_stream(columns, "zstd"))]

    return requests


def _long_names_as_json() -> list[Ask]:
    characters = _LONG_NAMES["decomposed characters"]
    names = [_long_name(characters, 15, number) for number in range(_GROUPS)]
    groups = [{"group": name, "total_only": True, "total": 5} for name in names]
    return [("/v1/accounts/tables/releases/{tables}/tabulations", {"level": "County", "groups": groups})]


def _long_name(characters: str, times: int, number: int) -> str:
    return characters * times + f"{number:06}"


def _whole_draws() -> list[Ask]:
    asked = {"mechanism": "County/total", "counts": [1]}
    return [("/v1/accounts/tables/releases/{whole}/draws", asked)]


def _nested_draws() -> list[Ask]:
    path = "/v1/accounts/small/releases/{nested}/draws"
    return [(path, {"mechanism": "m0", "partition": f"p{number}", "counts": [1]}) for number in range(2_000)]


def _read_draws() -> list[Ask]:
    return [("/v1/accounts/tables/draws/{draw}", None)]


def _settled() -> list[Ask]:
    of = "/v1/accounts/large/releases/{large}"
    return [(f"{of}/commit", {}), (f"{of}/draws?noisy=false", None)]


def _new_caps() -> list[Ask]:
    """Return a cap below what is spent; it is refused when the account's earlier releases are priced under it."""
    budgets = ({"definition": "approximate", "epsilon": "1", "delta": f"1e-{k}"} for k in range(6, 26))
    return [("/v1/accounts/offsets", {"caps": [{"tag": "t", "budget": budget}]}) for budget in budgets]


def _losses() -> list[Ask]:
    return [("/v1/empirical/loss", {"residuals": [k % 31 - 15 for k in range(100_000)], "bootstrap": 200})]


ATTACKS = (
    Attack("auditor", "compositions of 100 discrete_osgt at 999 orders", _compositions),
    Attack("auditor", "compositions that are admitted", _admitted_compositions),
    Attack("auditor", "the same, hung up on", _admitted_compositions, stays=False),
    Attack("auditor", f"verify and history of {_ENTRIES:,} entries", _verifications),
    Attack("auditor", "pictures of long journals", _pictures, accept="image/png"),
    Attack("auditor", "exports", _exports),
    Attack("auditor", "lists of 1,000 and of large releases", _lists),
    Attack("auditor", f"balances of {4 * _PARTS:,} unlike mechanisms", _balances),
    Attack("auditor", "small balances", _small_balances),
    Attack("auditor", "calibrations of discrete_osgt", _noises),
    Attack("auditor", "SafeTab plans of 16 levels", _safetabs),
    Attack("auditor", "200,000 cells to crossing totals", _crossings),
    Attack("pipeline", "small charges", _charges),
    Attack("pipeline", "batches of 100 reservations of a second", _reservations),
    Attack("pipeline", f"batches of {_BATCH:,} releases", _large_batches, seconds=_LONG),
    Attack("pipeline", f"reservations of {_OFFSETS + _WAVES:,} windows", _window_reservations, seconds=_LONG),
    Attack("pipeline", f"charges to {_DAYS:,} of any periods", _charges_of_any_periods, seconds=_LONG),
    Attack("pipeline", "charges of 50 discrete_osgt at 250 orders", _heavy_charges),
    Attack("pipeline", f"dry runs of {_PARTS:,} unlike mechanisms", _wide_charges),
    Attack("pipeline", f"charges of {_PARTS:,} unlike mechanisms", _stored_wide_charges),
    Attack("pipeline", f"commits and lists of draws of a release of {_PARTS:,} mechanisms", _settled),
    Attack("pipeline", "histograms of 40,000 cells, raked", _histograms),
    Attack("pipeline", "draws of 200,000 counts as JSON", _draws),
    Attack("pipeline", "draws of 10 counts as Arrow streams", _small_streams),
    Attack("pipeline", "draws of 2,000,000 counts as Arrow streams", _streams),
    Attack("pipeline", "tabulations of 2,000 groups as JSON", _tabulations),
    *(
        Attack("pipeline", f"tabulations of {_GROUPS:,} long names of {kind}", _long_names(characters, 15))
        for kind, characters in _LONG_NAMES.items()
    ),
    Attack("pipeline", f"tabulations of {_GROUPS:,} long names as JSON", _long_names_as_json),
    Attack("pipeline", f"tabulations of {_GROUPS:,} names beyond the bound", _long_names("\U0001f600", 194)),
    Attack("pipeline", f"draws of the whole input beside {_TABULATED:,} tabulated groups", _whole_draws),
    Attack("pipeline", f"partitions of {_NESTED} drawn mechanisms below 15 choices", _nested_draws),
    Attack("auditor", "1,000,000 drawn counts read back as JSON", _read_draws),
    Attack("approver", f"new caps over {_CAPPED} discrete_osgt that nobody proposed", _new_caps, method="PATCH"),
    Attack("steward", f"new caps over {_CAPPED} discrete_osgt", _new_caps, method="PATCH"),
    Attack("steward", "empirical losses of 100,000 residuals", _losses),
    # The last one, because its holds go on expiring for some minutes.
    Attack("pipeline", f"expiries in the leading one of {4 * _DAYS:,} periods", _leading_expiries, seconds=_LONG),
)


def run() -> None:
    """Print the table on both databases; with words on the command line, of the attacks that hold one of them."""
    print(f"Ratios are of the 99th percentiles; the goal is under {_TARGET:g}.\n")
    _on("SQLite", sqlite_database)
    with postgres_server(durable=True) as server:
        _on("PostgreSQL", lambda: postgresql_database(server))


def _on(kind: str, new_database: Callable[[], AbstractContextManager[str]]) -> None:
    words = sys.argv[1:]
    chosen = [one for one in ATTACKS if not words or any(word in f"{kind} {one.role} {one.what}" for word in words)]
    if not chosen:
        return
    rounds = [_round(new_database, chosen) for _ in range(_ROUNDS)]
    quiet = _Latencies.of_all(one.quiet for one in rounds)
    print(
        f"**{kind}**: one client that asks for each in turn, milliseconds (p50, p99) over {_ROUNDS} rounds, the ratio"
        " of the p99, and in brackets the least and the greatest ratio of a single round\n"
    )
    print("| who | what | " + " | ".join(_ASKED) + " | answers |\n|---|---|" + "---|" * (len(_ASKED) + 1))
    print("| nobody | | " + " | ".join(quiet.shown(of) for of in _ASKED) + " | |")
    for number, attack in enumerate(chosen):
        during = _Latencies.of_all(one.during[number] for one in rounds)
        cells = []
        for of in _ASKED:
            single = [one.during[number].p99(of) / one.quiet.p99(of) for one in rounds]
            ratio = f"{during.p99(of) / quiet.p99(of):.1f} ({min(single):.1f} to {max(single):.1f})"
            cells.append(f"{during.shown(of)}, {ratio}")
        statuses = sum((one.statuses[number] for one in rounds), Counter[int]())
        said = ", ".join(f"{times} of {status or 'none'}" for status, times in sorted(statuses.items()))
        print(f"| {attack.role} | {attack.what} | {' | '.join(cells)} | {said} |")
    print(flush=True)


def _round(new_database: Callable[[], AbstractContextManager[str]], attacks: Sequence[Attack]) -> "_Round":
    """Measure each attack once, and quiet before each."""
    found = _Round()
    with new_database() as url:
        open_accounts(url, ("other", "long", "large", "small", "wide", "tables", "offsets", "drawn"))
        with service_server(url) as address:
            other, ids = _prepare(address)
            _measure(address, other, _QUIET, _Latencies())  # the first ones come with cold pages
            for number, attack in enumerate(attacks):
                _measure(address, other, _QUIET, found.quiet)
                key = _key(address, f"hostile-{number}", attack.role)  # that of the last one has hung up too often
                during, answers = _Latencies(), _attacked(address, key, ids, attack)
                with answers as statuses:
                    time.sleep(_SETTLED)
                    _measure(address, other, attack.seconds - _SETTLED, during)
                found.during.append(during)
                found.statuses.append(Counter(statuses))
    return found


@dataclass
class _Latencies:
    """Seconds that each kind of request took."""

    by: dict[str, list[float]] = field(default_factory=lambda: {of: [] for of in _ASKED})

    @classmethod
    def of_all(cls, some: Iterable["_Latencies"]) -> "_Latencies":
        several = list(some)
        return cls({of: [seconds for one in several for seconds in one.by[of]] for of in _ASKED})

    def p99(self, of: str) -> float:
        return quantiles(self.by[of], n=100)[98]

    def shown(self, of: str) -> str:
        return f"{1e3 * quantiles(self.by[of], n=100)[49]:.1f}, {1e3 * self.p99(of):.1f}"


@dataclass
class _Round:
    """The measurements of one round: in quiet, and for each attack."""

    quiet: _Latencies = field(default_factory=_Latencies)
    during: list[_Latencies] = field(default_factory=list)
    statuses: list[Counter[int]] = field(default_factory=list)


def _measure(address: str, key: str, seconds: float, found: _Latencies) -> None:
    """Ask for each in turn, on one connection."""
    deadline = time.perf_counter() + seconds
    with _connected(address) as connection:
        while (now := time.perf_counter()) < deadline or any(len(one) < 2 for one in found.by.values()):
            for of, asked in _ASKED.items():
                request = _bytes(address, key, *asked())
                now = time.perf_counter()
                connection.sendall(request)
                status = answered(connection)
                if status not in {200, 201}:
                    raise RuntimeError(f"expected 200 or 201, got {status} for a {of}")
                found.by[of].append(time.perf_counter() - now)


def _key(address: str, name: str, role: str) -> str:
    """Make a key of a principal of its own."""
    with _steward(address) as send:
        return str(send("/v1/keys", {"name": name, "role": role})["key"])


@contextmanager
def _steward(address: str) -> Iterator[Callable[[str, Any], Any]]:
    """Return a function that prepares the attacked resources: it posts a body to a path and returns the answer."""
    with httpx.Client(
        base_url=address, headers={"Authorization": f"Bearer {KEY}"}, timeout=300, trust_env=False
    ) as caller:

        def send(path: str, body: Any) -> Any:
            answer = caller.post(path, json=body)
            if not answer.is_success:
                raise RuntimeError(f"{path}: {answer.text}")
            return answer.json()

        yield send


def _prepare(address: str) -> tuple[str, dict[str, str]]:
    """Another principal's key, and the ids of what is attacked."""
    other = _key(address, "other", "pipeline")
    with _steward(address) as send:
        budget = {"definition": "approximate", "epsilon": 1000, "delta": "1e-6"}
        send("/v1/accounts", {"name": "curved", "unit": "person", "neighbouring": "add_remove", "budget": budget})
        panel, days = ({"offsets": list(range(_OFFSETS))}, {"any": 3})
        for name, participation in (("panel", panel), ("days", days)):
            periods = {"calendar": "index", "participation": participation}
            budget = {"definition": "zcdp", "rho": 10**9}
            shared = {"unit": "person", "neighbouring": "add_remove", "budget": budget}
            send("/v1/accounts", {"name": name, "periods": periods, **shared})
        for first in range(0, 4 * _DAYS, _DAYS):
            read = {"from": first, "to": first + _DAYS - 1}
            send("/v1/accounts/days/releases", {"name": "x", "plan": _NOISE, "periods": read})
        for _ in range(_ENTRIES // 1000):
            send("/v1/accounts/long/releases/batch", {"releases": [{"name": "small", "plan": _NOISE}] * 1000})
        for number in range(4):
            large = send("/v1/accounts/large/releases", {"name": "large", "plan": _wide(_PARTS * number)})
        send("/v1/accounts/small/releases", {"name": "small", "plan": _NOISE})
        send("/v1/accounts/offsets/releases", {"name": "x", "plan": _plan(map(_offset, range(_CAPPED)))})
        noises = {of: _NOISE | {"name": f"County/{of}"} for of in ("total", "step 1", "step 2")}
        steps = {"type": "sequence", "parts": [noises["step 1"], noises["step 2"]]}
        plan = {"type": "choice", "parts": [noises["total"], steps]}
        ids = {"tables": send("/v1/accounts/tables/releases", {"name": "x", "plan": plan})["id"], "large": large["id"]}
        names = [_long_name(characters, 15, _GROUPS - 1) for characters in _LONG_NAMES.values()]
        groups = [{"group": name, "total_only": True, "total": 5} for name in names]
        send(f"/v1/accounts/tables/releases/{ids['tables']}/tabulations", {"level": "County", "groups": groups})
        drawn = {"name": "x", "mechanism": _NOISE, "counts": [9] * 1_000_000}
        ids["draw"] = send("/v1/accounts/tables/draws", drawn)["draw"]
        ids["whole"] = send("/v1/accounts/tables/releases", {"name": "x", "plan": plan})["id"]
        of_whole = f"/v1/accounts/tables/releases/{ids['whole']}/tabulations"
        for first in range(0, _TABULATED, 50_000):
            groups = [{"group": str(first + k), "total_only": True, "total": 5} for k in range(50_000)]
            send(of_whole, {"level": "County", "groups": groups})
        nested = _plan(_NOISE | {"name": f"m{k}", "sigma_squared": "1e15"} for k in range(_NESTED))
        for _ in range(15):
            nested = {"type": "repeat", "count": 2, "part": {"type": "choice", "parts": [nested]}}
        nested["partitions"] = 10**9
        ids["nested"] = send("/v1/accounts/small/releases", {"name": "x", "plan": nested})["id"]
        for k in range(_NESTED):
            asked = {"mechanism": f"m{k}", "partition": "first", "counts": [1]}
            send(f"/v1/accounts/small/releases/{ids['nested']}/draws", asked)
    return other, ids


class _attacked:  # noqa: N801 - used as a function
    """Attack from a process of its own while the block lasts; gives the statuses of the answers."""

    def __init__(self, address: str, key: str, ids: dict[str, str], attack: Attack) -> None:
        asked = [
            _bytes(address, key, path.format_map(ids), body, accept=attack.accept, method=attack.method)
            for path, body in attack.requests()
        ]
        self._statuses: list[int] = []
        context = multiprocessing.get_context("fork")  # importing all of this again would take the cores
        self._heard, told = context.Pipe(duplex=False)
        self._process = context.Process(target=send_all, args=(address, asked, attack.stays, attack.seconds, told))

    def __enter__(self) -> list[int]:
        self._process.start()
        self._heard.recv()  # it begins
        return self._statuses

    def __exit__(self, *_: object) -> None:
        self._statuses += self._heard.recv()
        self._process.join()


def send_all(address: str, asked: list[bytes], stays: bool, seconds: float, told: Any) -> None:
    """Send requests from as many connections for so long, and tell the statuses of the answers."""
    statuses: list[int] = []
    deadline = time.perf_counter() + seconds
    told.send("begun")

    def work(number: int) -> None:
        for request in itertools.islice(itertools.cycle(asked), number % len(asked), None):
            if time.perf_counter() > deadline:
                return
            with suppress(OSError), _connected(address, ELSEWHERE) as connection:
                connection.settimeout(max(0.1, deadline - time.perf_counter()) if stays else _HANG_UP)
                connection.sendall(request)
                statuses.append(answered(connection))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.1, deadline + 2 - time.perf_counter()))
    told.send(statuses)


def _connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    target = urlsplit(address)
    connection = socket.create_connection((target.hostname, target.port), source_address=(source, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _bytes(
    address: str, key: str, path: str, body: Any, *, accept: str = "application/json", method: str = "POST"
) -> bytes:
    streamed = isinstance(body, bytes)
    request = request_bytes(address, path, key, body if body is None or streamed else json.dumps(body).encode(), method)
    if streamed:
        request = request.replace(b"application/json", b"application/vnd.apache.arrow.stream", 1)
    head, _, rest = request.partition(b"\r\n")
    return head + f"\r\nAccept: {accept}\r\n".encode() + rest


def answered(connection: socket.socket) -> int:
    """Read one answer, of a stated length or in chunks, to its end; its status, or 0 where the connection broke."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        if not chunk:
            return 0
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
    left = -1 if length is None else length - len(body)
    end = body[-5:]
    while left > 0 or (length is None and end != b"0\r\n\r\n"):
        chunk = connection.recv(1 << 18)
        if not chunk:
            return 0
        left -= len(chunk)
        end = (end + chunk)[-5:]
    return int(head[9:12])


if __name__ == "__main__":
    run()
