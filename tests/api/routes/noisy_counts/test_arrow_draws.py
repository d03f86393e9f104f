"""Draws over Arrow by HTTP: parameters in the query, one draw and one charge, replays, limits, and permissions."""

import asyncio
import hashlib
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import Message

from service.api.arrow import streams
from service.api.http.dependencies import Streamed
from service.api.http.fair_places import FairPlaces
from service.ledger.access.authentication import Principal
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    STEWARD,
    Answer,
    Client,
    application,
    bearer,
    charge,
    client_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.api.conftest import serving
from tests.api.streams import MEDIA_TYPE, NEARLY_NONE, batches_of, counts, draw, headers, noisy_of, register, stream

_WIDE = {"definition": "pure", "epsilon": 10**6}
_ALL = [0, 1, -1, 2**53 + 1, 2**62, -(2**62)]


def _head(client: Client) -> Any:
    return json_of(client.get("/v1/accounts/people/head"))


def test_counts_come_back_noisy_beside_what_they_are_of(client: Client) -> None:
    open_account(client, budget=_WIDE)
    names = pa.array(["a", None, "c", "d", "e", "f"])
    answer = register(client, stream({"county": names, "count": pa.array(_ALL), "x": pa.array([1.5] * 6)}))
    assert noisy_of(answer) == _ALL
    (found,) = batches_of(answer.content)
    assert found.batch.schema.names == ["county", "noisy", "x"]
    assert found.batch["county"].equals(names)
    read = json_of(client.get(f"/v1/accounts/people/draws/{answer.headers['X-Draw']}"))
    assert (read["noisy"], read["release"]) == (_ALL, answer.headers["X-Release"])
    head = _head(client)
    assert answer.headers["X-Ledger-Head"] == f"{head['seq']}:{head['hash']}" == "{seq}:{hash}".format(**read["head"])
    entry = json_of(client.get("/v1/accounts/people/journal"))["items"][-1]["entry"]
    assert entry["content"]["noisy_hash"] == hashlib.sha256(struct.pack("<6q", *_ALL)).hexdigest()


def test_the_query_says_what_json_says(client: Client) -> None:
    open_account(client)
    mechanism = {"type": "discrete_gaussian", "rho": 0.1, "tags": ["t"]}
    tags = ["county", "ä&b"]
    as_json = {"name": "né", "mechanism": mechanism, "counts": [5], "tags": tags, "delta": "1/3"}
    one = json_of(client.post("/v1/accounts/people/draws", json=as_json), 201)["release"]
    other = register(client, counts([5]), name="né", mechanism=mechanism, tags=tags, delta="1/3").headers["X-Release"]
    found = [json_of(client.get(f"/v1/accounts/people/releases/{name}")) for name in (one, other)]
    same = {"name", "plan", "tags", "cost", "state"}
    assert {name: found[0][name] for name in same} == {name: found[1][name] for name in same}


def test_partitions_and_repetitions(client: Client) -> None:
    open_account(client, budget=_WIDE)
    of = release(client, {"type": "repeat", "count": 3, "part": NEARLY_NONE | {"name": "m"}})
    first = draw(client, of, counts([1, 2]), mechanism="m", partition="36", repetition="1")
    assert noisy_of(first) == [1, 2]
    read = json_of(client.get(f"/v1/accounts/people/draws/{first.headers['X-Draw']}"))
    assert (read["partition"], read["repetition"]) == ("36", 1)
    again = problem_of(draw(client, of, counts([1]), mechanism="m", partition="36", repetition="1"), "already_drawn")
    assert again["draw"] == first.headers["X-Draw"]
    assert noisy_of(draw(client, of, counts([3]), mechanism="m", partition="36")) == [3]
    problem_of(draw(client, of, counts([3]), mechanism="m", repetition="1"), "already_drawn")
    assert pointers_of(draw(client, of, counts([3]), mechanism="m", repetition="3")) == ["/query/repetition"]
    assert pointers_of(draw(client, of, counts([3]), mechanism="other")) == ["/query/mechanism"]


def test_the_noise_has_its_law_across_batches(embedded: Client) -> None:
    open_account(embedded)
    batch = pa.record_batch({"count": pa.array(np.zeros(2000, np.int64))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(10):
            writer.write_batch(batch)
    mechanism = {"type": "discrete_gaussian", "sigma_squared": 100}
    noise = np.array(noisy_of(register(embedded, sink.getvalue().to_pybytes(), mechanism=mechanism)))
    assert abs(noise.mean()) < 6 * 10 / 20000**0.5
    assert abs(noise.var() / 100 - 1) < 6 * (2 / 20000) ** 0.5
    assert len({tuple(part) for part in noise.reshape(10, 2000).tolist()}) == 10


def test_a_retry_is_the_same_answer(client: Client) -> None:
    open_account(client, budget=_WIDE)
    of = release(client, pure("0.01", name="m"))
    content = stream({"x": pa.array(["a", "b"] * 500), "count": pa.array(range(1000))}, compression="zstd")
    calls: dict[str, Callable[[], Answer]] = {
        "k1": lambda: register(client, content, "k1", pure("0.01")),
        "k2": lambda: draw(client, of, content, "k2", mechanism="m"),
    }
    for key, call in calls.items():
        first, *again = (call() for _ in range(3))
        assert "Idempotent-Replay" not in first.headers
        for replay in again:
            assert replay.headers["Idempotent-Replay"] == "true"
            assert (replay.status_code, replay.content) == (201, first.content)
            same = {"content-type", "x-release", "x-draw", "x-ledger-head"}
            assert {name: replay.headers[name] for name in same} == {name: first.headers[name] for name in same}
        changed = counts([1]) if key == "k1" else content[:-9] + b"\1" + content[-8:]
        answer = (
            register(client, changed, key, pure("0.01"))
            if key == "k1"
            else draw(client, of, changed, key, mechanism="m")
        )
        problem_of(answer, "idempotency_conflict")
    problem_of(register(client, content, "k1", pure("0.02")), "idempotency_conflict")
    assert json_of(client.get("/v1/accounts/people/balance"))["releases"] == 2


def test_a_stream_that_is_refused_charges_nothing(client: Client) -> None:
    open_account(client)
    head = _head(client)
    for content in (b"", b"x" * 1000, counts([1])[:-8], counts([]), stream({"count": pa.array([1.0])})):
        problem_of(register(client, content), "validation")
    answer = register(client, stream({"count": pa.array([None, 7], pa.int64())}))
    assert pointers_of(answer) == ["/count"]
    assert pointers_of(register(client, counts([1, 2**62 + 1]))) == ["/count/1"]
    assert str(2**62 + 1) not in register(client, counts([1, 2**62 + 1])).text
    assert _head(client) == head
    problem_of(register(client, counts([1]), mechanism=pure(2)), "budget_exceeded")
    assert _head(client)["seq"] == head["seq"] + 1  # the refusal is a journal entry


def test_a_damaged_stream_is_answered_whole_or_charges_nothing(client: Client) -> None:
    """No stream is charged, stored, and then answered with an empty or a broken body."""
    open_account(client, budget=_WIDE)
    chance, charged = random.Random(1315), 0
    columns = {"count": pa.array(range(100))}  # others would come back as they were sent, damaged too
    whole = [stream(columns), stream(columns, compression="zstd"), stream(columns, compression="lz4")]
    for _ in range(90):
        damaged = bytearray(chance.choice(whole))
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        before = _head(client)["seq"]
        answer = register(client, bytes(damaged))
        if answer.status_code == 201:
            charged += 1
            assert _head(client)["seq"] > before
            stored = json_of(client.get(f"/v1/accounts/people/draws/{answer.headers['X-Draw']}"))
            assert noisy_of(answer) == stored["noisy"]
        else:
            assert answer.status_code in (413, 422), answer.text
            assert _head(client)["seq"] == before
    assert 10 < charged < 80


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ({"name": None}, ["/query/name"]),
        ({"mechanism": None}, ["/query/mechanism"]),
        ({"name": ""}, ["/query/name"]),
        ({"name": "x" * 201}, ["/query/name"]),
        ({"mechanism": "County"}, ["/query/mechanism"]),
        ({"mechanism": "{"}, ["/query/mechanism"]),
        ({"mechanism": "1"}, ["/query/mechanism"]),
        ({"mechanism": '{"type": "geometric", "scale": NaN}'}, ["/query/mechanism/scale"]),
        ({"mechanism": "1e" + "9" * 25}, ["/query/mechanism"]),
        ({"mechanism": '{"type": "geometric", "scale": -1}'}, ["/query/mechanism/scale"]),
        ({"mechanism": '{"type": "geometric", "scale": 1, "x": 1}'}, ["/query/mechanism/x"]),
        ({"mechanism": '{"type": "geometric", "scale": 1, "tags": [1]}'}, ["/query/mechanism/tags/0"]),
        ({"mechanism": '{"type": "geometric"}'}, ["/query/mechanism"]),
        ({"mechanism": '{"type": "laplace", "scale": 1}'}, ["/query/mechanism"]),
        ({"mechanism": '{"type": "geometric", "scale": 1e16}'}, ["/query/mechanism"]),
        ({"delta": "x"}, ["/query/delta"]),
        ({"delta": "-1"}, ["/query/delta"]),
        ({"tags": ["a", ""]}, ["/query/tags/1"]),
        ({"counts": "[1]"}, ["/query/counts"]),
        ({"name": ["a", "b"]}, ["/query/name"]),
        ({"repetition": "0"}, ["/query/repetition"]),
    ],
)
def test_a_query_without_meaning(shared_client: Client, query: dict[str, Any], pointers: list[str]) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    given = {"name": "x", "mechanism": json.dumps(NEARLY_NONE)} | query
    wanted = {name: value for name, value in given.items() if value is not None}
    answer = shared_client.post("/v1/accounts/people/draws", params=wanted, content=counts([1]), headers=headers())
    assert pointers_of(answer) == pointers


@pytest.mark.parametrize("repetition", ["", "-1", "1.0", "x", "1e3", str(10**12), "true", '"1"'])
def test_a_repetition_without_meaning(shared_client: Client, repetition: str) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    of = release(shared_client, pure("1e-6", name="m"))
    assert pointers_of(draw(shared_client, of, counts([1]), mechanism="m", repetition=repetition)) == [
        "/query/repetition"
    ]


def test_media_types(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    path = "/v1/accounts/people/draws"
    for kind in ("application/vnd.apache.arrow.file", "application/octet-stream", "text/plain", ""):
        problem_of(embedded.post(path, content=counts([1]), headers={"Content-Type": kind}), "unsupported_media_type")
    problem_of(embedded.post("/v1/accounts", content=counts([1]), headers=headers()), "unsupported_media_type")
    given = {"name": "x", "mechanism": json.dumps(NEARLY_NONE)}
    for kind in ("Application/vnd.Apache.arrow.STREAM", f"{MEDIA_TYPE}; x=y"):
        answer = embedded.post(path, params=given, content=counts([1]), headers={"Content-Type": kind})
        assert noisy_of(answer) == [1]
    body = {"name": "x", "mechanism": NEARLY_NONE, "counts": [1]}
    assert pointers_of(embedded.post(path, params={"name": "x"}, json=body)) == ["/query/name"]
    problem_of(embedded.put(path, content=counts([1]), headers=headers()), "method_not_allowed")


@pytest.mark.parametrize("accept", [MEDIA_TYPE, "*/*", "application/*", "application/json, */*", ""])
def test_a_stream_is_answered_with_a_stream_that_may_be_named(accept: str, embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    embedded.headers["Accept"] = accept
    answer = register(embedded, stream({"count": pa.array(_ALL)}))
    assert noisy_of(answer) == _ALL


@pytest.mark.parametrize("accept", ["application/json", f"application/json, {MEDIA_TYPE};q=0.5"])
def test_a_stream_is_answered_with_json_where_that_is_preferred(accept: str, embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    embedded.headers["Accept"] = accept
    drawn = json_of(register(embedded, stream({"count": pa.array(_ALL)})), 201)
    assert drawn["noisy"] == _ALL
    stored = json_of(embedded.get(f"/v1/accounts/people/draws/{drawn['draw']}"))
    assert stored == drawn


def test_a_stream_whose_answer_is_not_accepted_charges_nothing(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    before = _head(embedded)
    embedded.headers["Accept"] = "text/csv"
    refused = register(embedded, stream({"count": pa.array(_ALL)}))
    detail = f"expected an Accept header that admits application/json or {MEDIA_TYPE}"
    assert problem_of(refused, "not_acceptable")["detail"] == detail
    embedded.headers["Accept"] = "*/*"
    assert _head(embedded) == before


def test_who_may_draw(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    for role, status in (("auditor", 403), ("pipeline", 201)):
        answer = embedded.post(
            "/v1/accounts/people/draws",
            params={"name": "x", "mechanism": json.dumps(NEARLY_NONE)},
            content=counts([1]),
            headers=make_key(embedded, role, role) | headers(),
        )
        assert answer.status_code == status
    refused = embedded.post("/v1/accounts/people/draws", content=b"", headers=headers() | bearer("nobody's"))
    problem_of(refused, "unauthenticated")
    problem_of(draw(embedded, {"account": "people", "id": "unknown"}, counts([1]), mechanism="m"), "not_found")


# Limits


@pytest.fixture
def small(_sqlite_template: Any, tmp_path: Any, secret: Secret) -> Iterator[Client]:
    """Return a steward's client of a service that accepts 2,000 bytes of Arrow and 1,000 of JSON."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    (tmp_path / "ledger.db").write_bytes(_sqlite_template.read_bytes())
    app = application(open_database(url), secret, max_arrow_bytes=2000, max_json_bytes=1000)
    with client_of(app) as opened:
        open_account(opened, budget=_WIDE)
        yield opened


def test_streams_have_a_limit_of_their_own(small: Client) -> None:
    fitting, large = counts(range(150)), counts(range(400))
    assert 1000 < len(fitting) <= 2000 < len(large)
    assert noisy_of(register(small, fitting)) == list(range(150))
    assert noisy_of(register(small, iter([fitting[:700], fitting[700:]]))) == list(range(150))
    for content in (large, iter([large[:1500], large[1500:]])):
        assert "2000" in problem_of(register(small, content), "too_large")["detail"]
    zeros = stream({"count": pa.array([0] * 400)}, compression="zstd")
    assert len(zeros) < 1000
    problem_of(register(small, zeros), "too_large")
    body = {"name": "x", "mechanism": NEARLY_NONE, "counts": [0] * 500}
    assert "1000" in problem_of(small.post("/v1/accounts/people/draws", json=body), "too_large")["detail"]


def test_a_slow_caller_keeps_nobody_waiting(database_url: str, secret: Secret) -> None:
    """There is one writer's thread; while half of a stream has arrived, other requests charge and draw."""
    app: FastAPI = application(open_database(database_url), secret, writer_threads=1)
    content = counts(range(1000))
    with serving(app) as address, Client(base_url=address, headers=bearer(STEWARD), timeout=30) as client:
        open_account(client, budget=_WIDE)
        host, port = address.removeprefix("http://").split(":")
        query = "name=x&mechanism=%7B%22type%22%3A%22geometric%22%2C%22scale%22%3A%221e-4%22%7D"
        head = (
            f"POST /v1/accounts/people/draws?{query} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {STEWARD}\r\n"
            f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(head.encode() + content[:100])
            assert noisy_of(register(client, counts([1]))) == [1]
            json_of(charge(client, pure("0.1")), 201)
            slow.sendall(content[100:])
            with slow.makefile("rb") as answer:
                assert b"201" in answer.readline()
                assert content.replace(b"count", b"noisy", 1)[-400:-8] in answer.read()


# Reading


def test_a_draw_is_read_as_json_or_arrow(client: Client) -> None:
    open_account(client, budget=_WIDE)
    body = {"name": "x", "mechanism": NEARLY_NONE, "counts": list(range(10))}
    drawn = json_of(client.post("/v1/accounts/people/draws", json=body), 201)
    path = f"/v1/accounts/people/draws/{drawn['draw']}"
    for accept in ("*/*", "application/json", f"{MEDIA_TYPE};q=0.1, application/json", f"*/*, {MEDIA_TYPE};q=0"):
        assert json_of(client.get(path, headers={"Accept": accept})) == drawn
    for accept in (MEDIA_TYPE, f"{MEDIA_TYPE}, */*;q=0.1", f"application/json;q=0.5,{MEDIA_TYPE};q=0.9"):
        answer = client.get(path, headers={"Accept": accept})
        assert noisy_of(answer) == list(range(10))
        assert (answer.headers["X-Release"], answer.headers["X-Draw"]) == (drawn["release"], drawn["draw"])
        assert answer.headers["X-Ledger-Head"] == "{seq}:{hash}".format(**drawn["head"])
    problem_of(client.get("/v1/accounts/people/draws/unknown", headers={"Accept": MEDIA_TYPE}), "not_found")


def test_a_stream_of_another_media_type_is_told_which_are_read(client: Client) -> None:
    open_account(client, budget=_WIDE)
    query = {"name": "counts", "mechanism": json.dumps(NEARLY_NONE)}
    other = {"Content-Type": "application/vnd.apache.arrow.file"}
    answer = client.post("/v1/accounts/people/draws", params=query, content=counts([1]), headers=other)
    assert answer.status_code == 415
    assert MEDIA_TYPE in answer.json()["detail"]


def _scope(turns: FairPlaces, name: str) -> dict[str, Any]:
    app = SimpleNamespace(state=SimpleNamespace(turns=turns))
    state = {"principal": Principal(None, name, "auditor", None)}
    return {"type": "http", "asgi": {"spec_version": "2.4"}, "method": "GET", "app": app, "state": state}


def test_an_answer_is_made_in_turns_and_taken_outside_of_them() -> None:
    """Many readers at once delay others no more than few do, and a slow reader delays no other."""
    turns, made, busy = FairPlaces(1, 1, 1, 1), list[int](), list[int]()
    parts = [b"1, ", b"2, ", b"3"]

    def counts_of() -> Iterator[bytes]:
        for part in parts:
            made.append(turns.busy)
            yield part

    async def receive() -> Message:
        raise AssertionError("nothing more is to come")

    async def read() -> None:
        stalled = asyncio.Event()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                busy.append(turns.busy)
                async with turns.place("another"):
                    await stalled.wait()

        turn = asyncio.Event()

        async def work() -> None:
            async with turns.place("a"):
                await turn.wait()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        reading = asyncio.create_task(Streamed(counts_of())(_scope(turns, "a"), receive, send))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (made, turns.waiting) == ([], 1)
        turn.set()
        stalled.set()
        await asyncio.gather(working, reading)

    asyncio.run(read())
    assert made == [1] * len(parts)
    assert busy == [0] * (len(parts) + 1)


def test_an_answer_that_nobody_takes_to_its_end_is_let_go() -> None:
    """The answer is released even where an error, with its frames, is still referenced."""

    def counts_of() -> Iterator[bytes]:
        try:
            while True:
                yield b"1, "
        finally:
            let_go.append(True)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError

    let_go: list[bool] = []
    answer, turns = Streamed(counts_of()), FairPlaces(1, 1, 1, 0)
    with pytest.raises(ClientDisconnect) as held:
        asyncio.run(answer(_scope(turns, "a"), receive, send))
    assert let_go
    assert turns.busy == 0
    assert held.tb is not None


@pytest.mark.parametrize("content", [counts([1]), counts([1] * 40_000)], ids=["small", "large"])
def test_every_stream_is_read_in_a_turn_of_its_principal(
    secret: Secret, database_url: str, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    app: FastAPI = application(open_database(database_url), secret)
    read, busy = streams.read_counts, list[int]()

    def watched(*given: Any) -> streams.CountStream:
        busy.append(app.state.turns.busy)
        return read(*given)

    monkeypatch.setattr(streams, "read_counts", watched)
    with client_of(app) as client:
        open_account(client, budget=_WIDE)
        assert register(client, content).status_code == 201
    assert (busy, app.state.turns.busy) == ([1], 0)
