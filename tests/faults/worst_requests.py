"""Requests that take the most memory: bodies that unfold to far more than they are, and legal ones of every kind."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types

from tests.api.calls import STEWARD, Client, concentrated, json_of, open_account, pure
from tests.api.streams import NEARLY_NONE, headers, stream
from tests.pages.forms import form_of
from tests.pages.visits import sign_in

MIB = 2**20
LARGEST = 16 * MIB  # bytes of a JSON body
EMOJI = "\U0001f600"
_DRAWS = "/v1/accounts/people/draws"
_LARGE = "/v1/accounts/large"
_JSON = {"Content-Type": "application/json"}
_NOISE = {"type": "discrete_gaussian", "sigma_squared": "100"}

Ask = Callable[[Client], int]
"""A request and the status of its answer."""


def prepared(client: Client) -> dict[str, str]:
    """Open the accounts, and register what is listed, exported, read and tabulated; return the ids."""
    open_account(client, budget={"definition": "pure", "epsilon": 10**9})
    for name in ("large", "tables"):
        open_account(client, name, budget={"definition": "zcdp", "rho": 10**9})
    of = f"{_LARGE}/releases"
    for plan in (_plan(2_000), tagged_plan(320)):
        body = json.dumps({"name": "x", "plan": plan}, ensure_ascii=False).encode()
        registered = json_of(client.post(of, content=body, headers=_JSON), 201)
    counts = {"name": "x", "mechanism": NEARLY_NONE, "counts": [2**40] * 500_000}
    drawn = json_of(client.post(_DRAWS, json=counts), 201)
    steps = {"type": "sequence", "parts": [_NOISE | {"name": f"County/{number}"} for number in range(2)]}
    level = {"type": "choice", "parts": [_NOISE | {"name": "County/total"}, steps]}
    tables = json_of(client.post("/v1/accounts/tables/releases", json={"name": "x", "plan": level}), 201)
    return {"release": registered["id"], "draw": drawn["draw"], "tables": tables["id"]}


def tagged_plan(parts: int) -> dict[str, Any]:
    """Return a plan of long tags, whose characters take four bytes each."""
    part = {"type": "declared", "epsilon": 0, "tags": [f"{number}{EMOJI * 190}" for number in range(60)]}
    return {"type": "sequence", "parts": [part | {"reference": str(number)} for number in range(parts)]}


def _plan(parts: int) -> dict[str, Any]:
    return {"type": "sequence", "parts": [concentrated(f"{number + 1}e-9") for number in range(parts)]}


def worst_requests(ids: dict[str, str]) -> list[Ask]:
    """Return requests of every kind, legal or not."""
    return [*_junk(), *_reads(ids), *_writes(ids), *_forms()]


def _junk() -> list[Ask]:
    units = [b'{"":0},', b"[],", b"[[]],", b'"ab",', b"1,", b"1e5,", b"300,", b"null,"]
    bodies = [_filled(unit) for unit in units]
    bodies.append(_filled(b"[" * 900 + b"]" * 900 + b",", b'["\xf0\x9f\x98\x80",'))
    bodies.append(b" " * LARGEST)
    counted = [_counts_of(unit) for unit in (b"1,", b"300,", b"9007199254740991,")]
    invalid = ",".join(json.dumps(pure(f"1e-9{number}")) for number in range(40_000))  # below the smallest accepted
    plan = f'{{"plan": {{"type": "sequence", "parts": [{invalid}]}}}}'.encode()
    streams = [_zeros(rows) for rows in (10**5, 5 * 10**6, 3 * 10**7)]
    streams.append(stream({"count": pa.array(np.arange(5 * 10**6))}))
    return [
        *(_post("/v1/compositions", body) for body in (*bodies, plan)),
        *(_post(_DRAWS, body) for body in (*bodies, *counted)),
        *(_draw(content) for content in streams),
    ]


def _filled(unit: bytes, head: bytes = b"[", end: bytes = b"0]") -> bytes:
    return head + unit * ((LARGEST - len(head) - len(end)) // len(unit)) + end


def _counts_of(unit: bytes) -> bytes:
    head = json.dumps({"name": "x", "mechanism": NEARLY_NONE})[:-1].encode() + b', "counts": ['
    return head + unit * 1_500_000 + b"0]}"


def _zeros(rows: int) -> bytes:
    return stream({"count": pa.array(np.zeros(rows, np.int64))}, compression="zstd")


def _reads(ids: dict[str, str]) -> list[Ask]:
    lists = ["releases?limit=1000", "journal?limit=1000", "export", "verify", "history", "balance"]
    paths = [f"{_LARGE}/{what}" for what in (*lists, f"releases/{ids['release']}")]
    return [_get(path) for path in (*paths, f"{_DRAWS}/{ids['draw']}")]


def _writes(ids: dict[str, str]) -> list[Ask]:
    groups = [{"group": f"{EMOJI * 12}{number}", "total_only": True, "total": 5} for number in range(50_000)]
    tables = json.dumps({"level": "County", "groups": groups}, ensure_ascii=False).encode()
    columns = {
        "group": [f"{EMOJI * 15}{number:06}" for number in range(250_000)],
        "total_only": [True] * 250_000,
        "total": [5] * 250_000,
    }
    named = stream({name: pa.array(column) for name, column in columns.items()}, compression="zstd")
    values = [str(number) for number in range(1000)]
    histogram = {
        "name": "x",
        "mechanism": NEARLY_NONE,
        "dimensions": [{"name": "a", "values": values}, {"name": "b", "values": values[:600]}],
        "counts": [9] * 600_000,
        "margins": [["a"], ["b"]],
        "published": [{"margin": ["a"], "values": [one], "total": 5400} for one in values],
        "adjust": "rake",
    }
    batch = {"releases": [{"name": EMOJI * 200, "plan": pure("1e-9")}] * 2000}
    of = f"/v1/accounts/tables/releases/{ids['tables']}/tabulations"
    return [
        _post(of, tables),
        lambda caller: caller.post(f"{of}?level=County", content=named, headers=headers()).status_code,
        _post("/v1/accounts/people/histograms", json.dumps(histogram).encode()),
        _post("/v1/accounts/people/releases/batch", json.dumps(batch, ensure_ascii=False).encode()),
        _post(f"{_LARGE}/releases?dry_run=true", json.dumps({"name": "x", "plan": _plan(2_000)}).encode()),
    ]


def _forms() -> list[Ask]:
    """Return forms of somebody who is signed in: of 2 MiB of separators, and with a file of 12 MiB."""

    def post(caller: Client, **sent: Any) -> int:
        with Client(base_url=caller.base_url, timeout=300, headers={"Accept": "text/html"}) as visitor:
            sign_in(visitor, STEWARD)
            fields = form_of(visitor.get("/empirical"), "/empirical/noise").with_texts({})
            return visitor.post("/empirical/noise", **({"data": fields} | sent)).status_code

    file = ("noise.csv", b"residual\n" + b"7\n" * (6 * MIB), "text/csv")
    urlencoded = {"Content-Type": "application/x-www-form-urlencoded"}
    return [
        lambda caller: post(caller, data=None, content=b"a=&" * (2 * MIB // 3), headers=urlencoded),
        lambda caller: post(caller, files={"noise": file}),
    ]


def _post(path: str, body: bytes) -> Ask:
    return lambda caller: caller.post(path, content=body, headers=_JSON).status_code


def _draw(content: bytes) -> Ask:
    query = {"name": "x", "mechanism": json.dumps(NEARLY_NONE)}
    return lambda caller: caller.post(_DRAWS, params=query, content=content, headers=headers()).status_code


def _get(path: str) -> Ask:
    return lambda caller: caller.get(path).status_code
