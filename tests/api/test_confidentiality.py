"""True counts leave no trace: no error answer, no log line and no row of the database contains one."""

import json
import signal
import socket
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest
from sqlalchemy import make_url

from tests.api.calls import STEWARD, Answer, Client, json_of, open_account, pointers_of, problem_of, pure, release
from tests.api.streams import counts, draw, noisy_of, register, stream
from tests.processes import Served, service

_CANARY = 8675309021  # a count that cannot occur here otherwise
_COUNTS = [_CANARY, -_CANARY]
_MANY = _COUNTS * 5_000  # enough that a helper reads them
_TEXT = str(_CANARY)
_WIDE = {"type": "geometric", "scale": 10**9}  # so that no noisy count equals the true one

# A service with built-in faults: errors whose messages contain counts, and counts in place of noise.
_FAULTY = """\
import os, signal
from service.api.routes.noisy_counts import arrow_draws, draws

add_noise = draws.add_noise

def failing(counts, law, keystream, out=None):
    if len(counts) == 3:
        raise RuntimeError(f"cannot draw {counts}")
    if len(counts) == 4:
        try:
            raise ValueError(f"cannot read {counts}")
        except ValueError as error:
            raise KeyError(counts[0]) from error
    if len(counts) == 5:
        return [str(count) + "?" for count in counts]
    if len(counts) == 6:
        raise ExceptionGroup(f"{counts}", [RuntimeError(f"{counts}")])
    if len(counts) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return add_noise(counts, law, keystream, out)

draws.add_noise = arrow_draws.add_noise = failing
from service.__main__ import main
main()
"""


@dataclass
class _Aftermath:
    """The traces of a service that drew, refused and crashed: its answers, its output, its files before and after."""

    drawn: list[Answer]
    streamed: list[Answer]
    tabled: list[Answer]
    refused: list[Answer]
    crashed: list[Answer]
    printed: list[str]
    running: dict[str, bytes]
    stopped: dict[str, bytes]
    dumped: str


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> _Aftermath:
    home = tmp_path_factory.mktemp("installation")
    with (
        _temporary_files_in(home),
        service(home, ("-c", _FAULTY), log_level="debug", max_arrow_bytes="4000", helper_processes="2") as served,
    ):
        client = served.client
        open_account(client, budget={"definition": "pure", "epsilon": 1})
        refused = _refusals(client)
        crashed = [
            *(_crash(served, _draw_json, size) for size in (3, 4, 5, 6)),
            *(_crash(served, _draw_stream, size) for size in (3, 4, 6)),
        ]
        refused += _measure(client)
        drawn = [_draw(client, counts=_COUNTS * 50), *(_draw(client, key="again") for _ in range(2))]
        drawn += [_draw(client, key="many", counts=_MANY) for _ in range(2)]
        streamed = [register(client, counts(_COUNTS * 50), "a stream", _WIDE) for _ in range(2)]
        tabled = _tables(client)
        running = _contents(home)
        with closing(sqlite3.connect(home / "data" / "ledger.db")) as connection:
            dumped = "\n".join(connection.iterdump())
        assert served.stop() == 0
    return _Aftermath(drawn, streamed, tabled, refused, crashed, served.said, running, _contents(home), dumped)


@contextmanager
def _temporary_files_in(home: Path) -> Iterator[None]:
    """Direct the service's temporary files to a directory that is searched too."""
    (home / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(home / "temporary"))
        yield


def _contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def _draw(client: Client, mechanism: Any = _WIDE, counts: Any = None, key: str | None = None, **fields: Any) -> Answer:
    body = {"name": "x", "mechanism": mechanism, "counts": _COUNTS if counts is None else counts} | fields
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/accounts/people/draws", json=body, headers=headers)


def _crash(served: Served, call: Callable[[Client, int], Answer], size: int) -> Answer:
    with Client(base_url=served.address, headers=served.client.headers) as client:
        return call(client, size)


def _draw_json(client: Client, size: int) -> Answer:
    return _draw(client, counts=[_CANARY] * size)


def _draw_stream(client: Client, size: int) -> Answer:
    return register(client, counts([_CANARY] * size), mechanism=_WIDE)


def _measure(client: Client) -> list[Answer]:
    """Send residuals, which are as secret as counts: to a bound that succeeds, and to refusals."""
    residuals = [*_COUNTS, *range(50)]
    json_of(client.post("/v1/empirical/lower-bound", json={"residuals": residuals}))
    json_of(client.post("/v1/empirical/lower-bound", json={"outputs": residuals, "neighbouring_outputs": _COUNTS}))
    wrong: list[dict[str, Any]] = [
        {"residuals": _COUNTS},  # too far apart
        {"residuals": [*residuals, _TEXT]},
        {"residuals": [*residuals, _CANARY * 10**9]},
        {"residuals": [0, 1, 2], "counts": _COUNTS},
        {"residuals": [0, 1, 2], "bandwidth": _CANARY},
    ]
    return [client.post("/v1/empirical/loss", json=body) for body in wrong]


def _refusals(client: Client) -> list[Answer]:
    """Send every kind of faulty request with counts in it."""
    of = release(client, pure("1e-9", name="m"))
    path = f"/v1/accounts/people/releases/{of['id']}/draws"
    json_of(client.post(path, json={"mechanism": "m", "counts": _COUNTS}), 201)
    json_of(_draw(client, key="k"), 201)
    wrong_counts: list[Any] = [
        _CANARY,
        _TEXT,
        {_TEXT: 1},
        [float(_CANARY)],
        [_CANARY + 0.5],
        [_TEXT],
        [[_CANARY]],
        [{"count": _CANARY}],
        [_CANARY, None],
        [_CANARY * 10**9],
        [True, _CANARY],
        [*_MANY, None],
        [*_MANY, _CANARY * 10**9],
    ]
    wrong_mechanisms: list[Any] = [
        pure(2),  # above the budget
        {"type": "laplace", "scale": 1},
        _CANARY,
        _COUNTS,
        {"type": _TEXT},
        {"type": _CANARY},
        {"type": "geometric", "scale": _COUNTS},
        {"type": "geometric", "scale": f"{_TEXT}x"},
        {"type": "geometric", "scale": 1, "tags": [_CANARY]},
    ]
    wrong_fields: list[dict[str, Any]] = [{"delta": _CANARY}, {"tags": _COUNTS}, {"name": _CANARY}]
    wrong_turns: list[dict[str, Any]] = [
        {},  # already drawn
        {"mechanism": _TEXT},
        {"repetition": _CANARY},
        {"partition": _CANARY},
    ]
    broken = [
        f"[{_TEXT},",
        f"[{_TEXT}{'0' * 5000}]",
        f'{{"counts": [{_TEXT}], "counts": 1}}',
        _TEXT,
        f"{_TEXT} {_TEXT}",
    ]
    headers = {"Content-Type": "application/json"}
    return [
        _draw(client, key="k", counts=[_CANARY]),  # the same Idempotency-Key
        client.post("/v1/accounts/people/draws", content=_TEXT),
        *(_draw(client, counts=counts) for counts in wrong_counts),
        *(_draw(client, mechanism) for mechanism in wrong_mechanisms),
        _draw(client, pure(2), counts=_MANY),
        *(_draw(client, **fields) for fields in wrong_fields),
        *(client.post(path, json={"mechanism": "m", "counts": _COUNTS} | turn) for turn in wrong_turns),
        *(client.post("/v1/accounts/people/draws", content=text, headers=headers) for text in broken),
        *_refused_streams(client, of),
        *_refused_tables(client),
        *_selections(client),
    ]


def _selections(client: Client) -> list[Answer]:
    """Select by scores, and send wrong ones."""
    of = release(client, {"type": "exponential", "epsilon": "1e-9", "name": "best"})
    path = f"/v1/accounts/people/releases/{of['id']}/selections"
    wrong: list[Any] = [_CANARY, [_CANARY, None], [_TEXT + "x"], [[_CANARY]], [_CANARY] * 20_000, {_TEXT: 1}]
    answers = [client.post(path, json={"mechanism": "best", "scores": scores}) for scores in wrong]
    answers.append(client.post(path, json={"mechanism": "best", "scores": _COUNTS, "partition": _CANARY}))
    assert set(json_of(client.post(path, json={"mechanism": "best", "scores": _COUNTS}), 201)) >= {"selected"}
    return [*answers, client.post(path, json={"mechanism": "best", "scores": _COUNTS})]


_LEVEL = {
    "type": "choice",
    "parts": [
        _WIDE | {"name": "level/total"},
        {"type": "sequence", "parts": [_WIDE | {"name": "level/1"}, _WIDE | {"name": "level/2"}]},
    ],
}
_AGES = [[_CANARY, 1], [2, _CANARY]]  # their sum is a canary too, and the first noisy total is near it


def _histogram(client: Client, **fields: Any) -> Answer:
    body = {"name": "h", "mechanism": _WIDE, "dimensions": [{"name": "a", "values": ["x", "y"]}], "counts": _COUNTS}
    return client.post("/v1/accounts/people/histograms", json=body | fields)


def _tabulated(client: Client, of: Any, group: dict[str, Any], **fields: Any) -> Answer:
    body = {"level": "level", "groups": [{"group": "g"} | group]} | fields
    return client.post(f"/v1/accounts/people/releases/{of['id']}/tabulations", json=body)


def _refused_tables(client: Client) -> list[Answer]:
    """Send faulty requests with tables and groups."""
    of = release(client, _LEVEL)
    json_of(_tabulated(client, of, {"group": "drawn", "sex_by_age": _AGES}), 201)
    quarters = [_CANARY, f"{_TEXT}.5"]
    arrow = stream({"group": pa.array(["g"]), "sex_by_age": pa.array([[[_CANARY], [-_CANARY]]])})
    headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
    path = f"/v1/accounts/people/releases/{of['id']}/tabulations?level=level"
    return [
        _histogram(client, counts=[_CANARY] * 3),
        _histogram(client, counts=quarters),
        _histogram(client, counts=quarters, granularity="0.3", mechanism=_WIDE | {"sensitivity": "0.3"}),
        _histogram(client, published=[{"margin": [], "values": [], "total": -_CANARY}], adjust="rake"),
        _histogram(client, mechanism=pure(2)),
        _tabulated(client, of, {"group": "drawn", "sex_by_age": _AGES}),
        _tabulated(client, of, {"sex_by_age": _AGES[:1]}),
        _tabulated(client, of, {"sex_by_age": [[-_CANARY], [_CANARY]]}),
        _tabulated(client, of, {"total": _CANARY}),
        _tabulated(client, of, {"total_only": _CANARY, "total": _CANARY}),
        _tabulated(client, of, {"sex_by_age": _AGES}, level="none"),
        client.post(path, content=arrow, headers=headers),
        client.post(path, content=arrow[:-20], headers=headers),
    ]


def _tables(client: Client) -> list[Answer]:
    """Draw tables: cells and margins, and groups with deciding totals."""
    of = release(client, _LEVEL)
    return [
        _histogram(client, margins=[["a"]], published=[{"margin": [], "values": [], "total": 7}], adjust="rake"),
        _histogram(client, counts=[_CANARY, f"{_TEXT}.5"], granularity="0.5"),
        _tabulated(client, of, {"sex_by_age": _AGES}),
        _tabulated(client, of, {"group": "h", "total_only": True, "total": _CANARY}),
    ]


def _refused_streams(client: Client, of: Any) -> list[Answer]:
    """Send faulty requests with counts in Arrow streams."""
    whole = counts(_COUNTS)
    texts = pa.array([_TEXT, None])
    assert register(client, whole, "s", _WIDE).status_code == 201
    return [
        register(client, counts([_CANARY]), "s", _WIDE),  # the same Idempotency-Key
        register(client, whole, mechanism=pure(2)),
        *_refused_csv(client),
        register(client, counts(_COUNTS * 1000)),
        register(client, iter([counts(_COUNTS * 1000)])),
        register(client, stream({"count": pa.array([_CANARY] * 1000)}, compression="zstd")),
        *(register(client, content) for content in (whole[:-8], whole[:-20], whole + whole, _TEXT.encode(), b"")),
        register(client, counts([_CANARY, _CANARY * 2**29])),
        register(client, stream({"count": pa.array([_CANARY, None])})),
        *(register(client, stream({"count": column})) for column in (texts, pa.array([_CANARY + 0.5]))),
        register(client, stream({_TEXT: pa.array(_COUNTS)})),
        register(client, stream({"count": pa.array(_COUNTS), "noisy": pa.array(_COUNTS)})),
        *(register(client, whole, **{name: _TEXT}) for name in ("delta", "counts", "mechanism")),
        register(client, whole, mechanism={"type": "geometric", "scale": f"{_TEXT}x"}),
        draw(client, of, whole, mechanism="m"),  # already drawn
        *(draw(client, of, whole, **turn) for turn in ({"mechanism": _TEXT}, {"mechanism": "m", "repetition": _TEXT})),
    ]


def _refused_csv(client: Client) -> list[Answer]:
    """Send faulty tables of counts."""
    path, query = "/v1/accounts/people/draws", {"name": "t", "mechanism": json.dumps(_WIDE)}
    tables = [f"a,{_CANARY}\n", f"a,count\nb,{_TEXT}x\n", f"a,count\nb,{_TEXT}.5\n", f"{_TEXT},count\n\u200b,1\n"]
    return [client.post(path, content=one, params=query, headers={"Content-Type": "text/csv"}) for one in tables]


def test_no_refusal_repeats_a_count(aftermath: _Aftermath) -> None:
    for answer in aftermath.refused:
        assert 400 <= answer.status_code < 500
        assert _TEXT not in answer.text
        assert _TEXT not in str(answer.headers)
    codes = {answer.json()["type"].rpartition("/")[2] for answer in aftermath.refused}
    assert codes == {
        "validation", "budget_exceeded", "already_drawn", "idempotency_conflict", "unsupported_media_type", "too_large",
    }  # fmt: skip


def test_no_crash_repeats_a_count(aftermath: _Aftermath) -> None:
    for answer in aftermath.crashed:
        problem_of(answer, "internal")
        assert _TEXT not in answer.text
        assert any(answer.headers["X-Request-Id"] in line for line in aftermath.printed)


def test_no_count_is_logged(aftermath: _Aftermath) -> None:
    assert _TEXT not in "".join(aftermath.printed)
    # Each crash is still in the log, with its type and its place.
    for kind in ("RuntimeError", "KeyError", "ExceptionGroup"):
        assert any(kind in line and "draws.py" in line for line in aftermath.printed)
    requests = [line for line in map(_parsed, aftermath.printed) if line and line.get("event") == "request"]
    assert {line["status"] for line in requests} >= {200, 201, 409, 415, 422, 500}


def test_no_file_holds_a_count(aftermath: _Aftermath) -> None:
    """The search covers text, hexadecimal digits, and the bytes of an integer."""
    for answer in aftermath.drawn:
        assert not set(json_of(answer, 201)["noisy"]) & set(_COUNTS)
    for answer in aftermath.tabled:
        json_of(answer, 201)
        assert _TEXT not in answer.text
    for answer in aftermath.streamed:
        assert not set(noisy_of(answer)) & set(_COUNTS)
    assert aftermath.streamed[1].headers["Idempotent-Replay"] == "true"
    for place in (2, 4):
        assert aftermath.drawn[place].headers["Idempotent-Replay"] == "true"
    assert aftermath.running.keys() >= {"data/ledger.db", "data/ledger.db-wal", "service.secret"}
    for files in (aftermath.running, aftermath.stopped):
        assert [name for name, content in files.items() if _holds_a_count(content)] == []
    assert _TEXT not in aftermath.dumped
    assert aftermath.drawn[0].json()["draw"] in aftermath.dumped


def _holds_a_count(content: bytes) -> bool:
    signed = [struct.pack(form, count) for form in ("<q", ">q") for count in _COUNTS]
    return any(form in content for form in (_TEXT.encode(), f"{_CANARY:x}".encode(), *signed))


@pytest.mark.parametrize("call", [_draw_json, _draw_stream])
def test_a_service_that_is_killed_in_a_draw_leaves_no_count(
    tmp_path: Path, empty_database_url: str, call: Callable[[Client, int], Answer]
) -> None:
    """The search covers the database's own files: SQLite's, or those of the PostgreSQL cluster that changed."""
    started = time.time()
    with _temporary_files_in(tmp_path), service(tmp_path, ("-c", _FAULTY), database_url=empty_database_url) as served:
        open_account(served.client)
        json_of(_draw(served.client, counts=_COUNTS), 201)
        noisy_of(register(served.client, counts(_COUNTS * 50), mechanism=_WIDE))
        with pytest.raises(httpx2.TransportError):
            call(served.client, 7)
        assert served.process.wait(60) == -signal.SIGKILL
    assert _TEXT not in "".join(served.said)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    cluster = make_url(empty_database_url).query.get("host")
    if cluster is not None:
        files += [path for path in Path(str(cluster)).rglob("*") if path.is_file() and path.stat().st_mtime >= started]
    assert len(files) > 2
    assert [path for path in files if _holds_a_count(path.read_bytes())] == []


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/v1/accounts", "application/json"),
        ("/sign-in", "application/x-www-form-urlencoded"),
        ("/sign-in", "multipart/form-data; boundary=x"),
    ],
)
def test_a_caller_who_hangs_up_is_no_failure_of_the_service(tmp_path: Path, path: str, media_type: str) -> None:
    with service(tmp_path) as running:
        host, port = running.address.removeprefix("http://").split(":")
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {STEWARD}\r\n"
            f"X-Request-Id: hung-up\r\nContent-Type: {media_type}\r\nContent-Length: 100\r\n\r\n-"
        )
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode())
        deadline = time.monotonic() + 30
        while not any("hung-up" in line for line in running.said) and time.monotonic() < deadline:
            json_of(running.client.get("/healthz"))  # the log line is written when the request ends
        assert running.stop() == 0
    lines = [line for line in map(_parsed, running.said) if line and line.get("request_id") == "hung-up"]
    # signing in without a key makes a second request, which counts as a failure
    (line,) = [line for line in lines if line["path"] == path]
    assert (line["status"], line["level"]) == (422, "info")
    assert not any('"level": "error"' in line for line in running.said)


def _parsed(line: str) -> Any:
    return json.loads(line) if line.startswith("{") else None


def test_queries_and_headers_stay_out_of_the_log(tmp_path: Path) -> None:
    with service(tmp_path, log_level="debug") as running:
        open_account(running.client)
        headers = {"X-Request-Id": "abc", "Idempotency-Key": "do-not-log-me", "Authorization": "Bearer do-not-log-me"}
        running.client.get("/v1/accounts/people/balance?tag=do-not-log-me", headers={"X-Request-Id": "abc"})
        running.client.get("/v1/accounts?do-not-log-me=do-not-log-me", headers=headers)
        pointers_of(running.client.post("/v1/accounts", json={"do-not-log-me": "do-not-log-me"}))
        assert running.stop() == 0
    printed = "".join(running.said)
    assert "do-not-log-me" not in printed
    assert printed.count('"request_id": "abc"') == 2
