"""Draws of mechanisms with a threshold: only keys whose noisy count reaches it are stored, answered and replayed."""

import csv
import io
import itertools
import json
import math
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.ledger.draws import count_codec
from service.ledger.draws.retention import remove_noisy
from service.ledger.installation.signing import BadSignature
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Base
from service.ledger.verification import packages
from service.ledger.verification.packages import check_package
from tests.api.calls import Answer, Client, json_of, open_account, pointers_of, problem_of, release
from tests.api.streams import counts, headers

_BUDGET = {"definition": "pure", "epsilon": 10**6, "delta": "0.9"}
_QUIET = {"type": "geometric", "scale": "1e-4", "threshold": {"at_least": 10}}  # noise below e^-9999
_NOISY = {"type": "geometric", "scale": "3", "threshold": {"at_least": 10}}
_KEYS = ["=b", "été", "hidden-key", "a", "'c", "no-one-sees"]
_COUNTS = [10, 11, 9, 50, 12, -48151623]
_SHOWN = {"'c": 12, "=b": 10, "a": 50, "été": 11}
_PATH = "/v1/accounts/people"
_CSV = {"Content-Type": "text/csv"}


def _post(client: Client, mechanism: Any, keys: Any, values: Any, key: str | None = None, **fields: Any) -> Answer:
    body = {"name": "n", "mechanism": mechanism, "keys": keys, "counts": values} | fields
    return client.post(f"{_PATH}/draws", json=body, headers={"Idempotency-Key": key} if key else {})


def test_only_what_reaches_the_threshold_is_answered_in_the_order_of_keys(client: TestClient) -> None:
    """The order in which keys are sent may depend on suppressed ones, or on the true counts."""
    open_account(client, budget=_BUDGET)
    drawn = json_of(_post(client, _QUIET, _KEYS, _COUNTS), 201)
    assert dict(zip(drawn["keys"], drawn["noisy"], strict=True)) == _SHOWN
    assert drawn["keys"] == sorted(_SHOWN)
    path = f"{_PATH}/draws/{drawn['draw']}"
    assert json_of(client.get(path)) == drawn
    assert json_of(client.get(f"{_PATH}/releases/{drawn['release']}/draws"))["items"] == [drawn]
    (outline,) = json_of(client.get(f"{_PATH}/releases/{drawn['release']}/draws?noisy=false"))["items"]
    assert outline["size"] == 4
    rows = list(csv.DictReader(io.StringIO(client.get(path, headers={"Accept": "text/csv"}).text)))
    assert [row["noisy"] for row in rows] == [str(one) for one in drawn["noisy"]]
    assert [row["key"] for row in rows] == ["'c", "'=b", "a", "été"]  # a spreadsheet would run =b
    streamed = client.get(path, headers={"Accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(streamed.content).read_all()
    assert table.to_pydict() == {"key": drawn["keys"], "noisy": drawn["noisy"]}
    filed = client.get(path, headers={"Accept": "application/vnd.apache.parquet"})
    table = pq.read_table(io.BytesIO(filed.content))
    assert (table["key"].to_pylist(), table["noisy"].to_pylist()) == (drawn["keys"], drawn["noisy"])
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


def test_a_replay_has_the_same_bytes_and_a_second_draw_is_refused(client: TestClient) -> None:
    open_account(client, budget=_BUDGET)
    keys = [f"key {number}" for number in range(300)]
    first = _post(client, _NOISY, keys, [9] * 300, "once")
    drawn = json_of(first, 201)
    assert 0 < len(drawn["keys"]) < 300
    again = _post(client, _NOISY, keys, [9] * 300, "once")
    assert (again.content, again.headers["Idempotent-Replay"]) == (first.content, "true")
    body = {"mechanism": "/", "keys": keys, "counts": [9] * 300}
    refused = client.post(f"{_PATH}/releases/{drawn['release']}/draws", json=body)
    assert "key" not in problem_of(refused, "already_drawn")["detail"]


def test_a_key_is_published_as_often_as_its_noise_reaches_the_threshold(embedded: Client) -> None:
    """Within six standard deviations of P(c + X >= T), and the counts from T on have the law of the noise."""
    open_account(embedded, budget=_BUDGET)
    size, ratio = 20_000, math.exp(-1 / 3)
    for true in (5, 9, 10, 13):
        drawn = json_of(_post(embedded, _NOISY, [str(number) for number in range(size)], [true] * size), 201)
        beyond = ratio ** abs(10 - true) / (1 + ratio)
        share = beyond if true < 10 else 1 - ratio * beyond
        for at_least, expected in ((10, share), (16, ratio ** (16 - true) / (1 + ratio))):
            found = sum(noisy >= at_least for noisy in drawn["noisy"])
            assert abs(found - size * expected) <= 6 * math.sqrt(size * expected * (1 - expected))
        assert min(drawn["noisy"]) == 10


def test_nothing_stored_or_answered_names_a_suppressed_key(
    client: TestClient, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not the key, not its count, and not how many keys there were."""
    open_account(client, budget=_BUDGET)
    drawn = json_of(_post(client, _QUIET, _KEYS, _COUNTS), 201)
    release_path = f"{_PATH}/releases/{drawn['release']}"
    answers = [
        client.get(path).content
        for path in (
            f"{_PATH}/draws/{drawn['draw']}",
            f"{release_path}/draws",
            f"{release_path}/receipt",
            f"{release_path}/package",
            f"{release_path}/events",
            f"{_PATH}/journal",
            f"{_PATH}/export",
            f"{_PATH}/draws/{drawn['draw']}x",
        )
    ]
    package = zipfile.ZipFile(io.BytesIO(answers[3]))
    answers += [package.read(name) for name in package.namelist()]
    with database.read() as connection:
        rows = [
            value
            for table in Base.metadata.sorted_tables
            for row in connection.execute(select(table)).all()
            for value in row
        ]
    (packed,) = [value for value in rows if isinstance(value, bytes) and value[:1] == b"k"]
    stored = [value if isinstance(value, bytes) else str(value).encode() for value in rows]
    assert count_codec.unpack_keys(packed, 4) == tuple(sorted(_SHOWN))
    assert count_codec.unpack(packed, 4).tolist() == [12, 10, 50, 11]
    said = "".join(capfd.readouterr()).encode()
    for content in (*answers, *stored, said):
        for secret in (b"hidden-key", b"no-one-sees", b"48151623"):
            assert secret not in content
    (entry,) = [one for one in map(json.dumps, json_of(client.get(f"{_PATH}/journal"))["items"]) if "noisy_hash" in one]
    assert '"size": 4' in entry.replace('\\"size\\":4', '"size": 4')


def test_a_suppressed_partition_is_answered_as_empty_for_ever(embedded: Client) -> None:
    """So is one without any keys, and a draw of it can be made too: that there are none is not told either."""
    open_account(embedded, budget=_BUDGET)
    plan = _QUIET | {"name": "m", "partitions": ["01", "02", "03"]}
    of = release(embedded, plan)
    for partition, keys, values in (("01", ["a"], [9]), ("02", [], []), ("03", ["a"], [10])):
        body = {"mechanism": "m", "partition": partition, "keys": keys, "counts": values}
        drawn = json_of(embedded.post(f"{_PATH}/releases/{of['id']}/draws", json=body), 201)
        shown = keys if partition == "03" else []
        assert (drawn["keys"], len(drawn["noisy"])) == (shown, len(shown))
        assert json_of(embedded.get(f"{_PATH}/draws/{drawn['draw']}")) == drawn
        again = embedded.post(f"{_PATH}/releases/{of['id']}/draws", json=body | {"counts": [99] * len(keys)})
        problem_of(again, "already_drawn")
    assert json_of(embedded.get(f"{_PATH}/verify"))["valid"]


def test_a_package_has_the_keys_and_is_checked_with_them(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(client, budget=_BUDGET)
    plan = {
        "type": "sequence",
        "parts": [
            _QUIET | {"name": "m", "granularity": "0.5"},
            {"type": "geometric", "scale": "1e-4", "name": "all", "partitions": ["x"]},
        ],
    }
    of = release(client, plan)
    for body in (
        {"mechanism": "m", "keys": _KEYS, "counts": _COUNTS},
        {"mechanism": "all", "partition": "x", "counts": [1, 2]},
    ):
        json_of(client.post(f"{_PATH}/releases/{of['id']}/draws", json=body), 201)
    content = client.get(f"{_PATH}/releases/{of['id']}/package").content
    key = json_of(client.get("/v1/installation"))["public_key"]
    check_package(io.BytesIO(content), key)
    table = pq.read_table(io.BytesIO(zipfile.ZipFile(io.BytesIO(content)).read("noisy-counts.parquet")))
    assert table["key"].to_pylist() == [*sorted(_SHOWN), None, None]
    assert table["noisy"].to_pylist() == ["12.0", "10.0", "50.0", "11.0", "1", "2"]
    changes: list[Callable[[list[Any]], list[Any]]] = [
        lambda rows: [(draw, noisy, "another" if one == "a" else one) for draw, noisy, one in rows],
        lambda rows: rows[:-1],
        lambda rows: rows[1:],
        lambda rows: [*rows, rows[-1]],
        lambda rows: [(draw, noisy, one or "key") for draw, noisy, one in rows],
    ]
    for reader, change in itertools.product(("_from_parquet", "_from_csv"), changes):
        real = getattr(packages, reader)
        with monkeypatch.context() as patched:
            patched.setattr(packages, reader, lambda file, real=real, change=change: iter(change(list(real(file)))))
            with pytest.raises(BadSignature, match="noisy-counts"):
                check_package(io.BytesIO(content), key)


def test_keys_are_removed_with_the_noisy_counts(client: TestClient, database: Database) -> None:
    open_account(client, budget=_BUDGET)
    drawn = json_of(_post(client, _QUIET, _KEYS, _COUNTS), 201)
    remove_noisy(database, "2100-01-01T00:00:00.000000Z", clock.now())
    problem_of(client.get(f"{_PATH}/draws/{drawn['draw']}"), "gone")
    (outline,) = json_of(client.get(f"{_PATH}/releases/{drawn['release']}/draws"))["items"]
    assert "keys" not in outline
    assert json_of(client.get(f"{_PATH}/verify"))["valid"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"keys": None}, "/keys"),
        ({"keys": ["secret-a", "secret-a"]}, "/keys"),
        ({"keys": ["secret-a"]}, "/keys"),
        ({"keys": ["secret-a", "secret-b", "secret-c"]}, "/keys"),
        ({"keys": []}, "/keys"),
        ({"keys": ["secret-a", ""]}, "/keys/1"),
        ({"keys": ["secret-a", "secret\n"]}, "/keys/1"),
        ({"keys": ["secret-a", "secret" * 100]}, "/keys/1"),
        ({"keys": ["secret-a", 7]}, "/keys/1"),
        ({"keys": ["secret-a", "secret \ufb01"]}, "/keys/1"),
        ({"keys": "secret-a"}, "/keys"),
        ({"keys": ["s"] * 65537, "counts": [1] * 65537}, "/keys"),
        ({"mechanism": {"type": "geometric", "scale": "1"}}, "/keys"),
        ({"mechanism": {"type": "geometric", "scale": "1"}, "keys": None, "counts": []}, "/counts"),
        ({"keys": None, "counts": []}, "/counts"),
    ],
)
def test_wrong_keys_are_refused_and_not_repeated(embedded: Client, fields: dict[str, Any], pointer: str) -> None:
    open_account(embedded, budget=_BUDGET)
    body = {"name": "n", "mechanism": _NOISY, "keys": ["secret-a", "secret-b"], "counts": [1, 2]} | fields
    refused = embedded.post(f"{_PATH}/draws", json={name: one for name, one in body.items() if one is not None})
    assert pointers_of(refused) == [pointer]
    assert "secret" not in refused.text
    assert json_of(embedded.get(f"{_PATH}/releases"))["items"] == []


def test_a_table_is_answered_without_its_suppressed_rows(client: TestClient) -> None:
    """Its other labels come from the request, also in a replay; they are stored nowhere."""
    open_account(client, budget=_BUDGET)
    table = "".join(f"{key},{count},about {key}\r\n" for key, count in zip(_KEYS, _COUNTS, strict=True))
    query = {"name": "n", "mechanism": json.dumps(_QUIET)}
    sent: dict[str, Any] = {"content": f"key,count,note\r\n{table}".encode(), "params": query}
    first = client.post(f"{_PATH}/draws", **sent, headers=_CSV | {"Idempotency-Key": "k"})
    assert first.status_code == 201
    rows = list(csv.DictReader(io.StringIO(first.text)))
    shown = [(row["key"].replace("'=", "="), int(row["noisy"]), row["note"]) for row in rows]
    assert shown == [(key, _SHOWN[key], f"about {key}") for key in sorted(_SHOWN)]
    assert "hidden" not in first.text
    again = client.post(f"{_PATH}/draws", **sent, headers=_CSV | {"Idempotency-Key": "k"})
    assert (again.content, again.headers["Idempotent-Replay"]) == (first.content, "true")
    drawn = json_of(client.get(f"{_PATH}/draws/{first.headers['X-Draw']}"))
    assert dict(zip(drawn["keys"], drawn["noisy"], strict=True)) == _SHOWN
    filed = client.post(f"{_PATH}/draws", **sent, headers=_CSV | {"Accept": "application/vnd.apache.parquet"})
    assert pq.read_table(io.BytesIO(filed.content))["key"].to_pylist() == sorted(_SHOWN)
    asked = client.post(f"{_PATH}/draws", **sent, headers=_CSV | {"Accept": "application/json"})
    assert json_of(asked, 201)["keys"] == sorted(_SHOWN)
    of = release(client, _QUIET | {"name": "m"})
    path, query = f"{_PATH}/releases/{of['id']}/draws", {"mechanism": "m"}
    refused = client.post(path, content="key,note,count\r\na,1,2\r\na,2,2\r\n", headers=_CSV, params=query)
    assert pointers_of(refused) == ["/key"]
    drawn_later = client.post(path, content="key,count\r\nb,2\r\na,30\r\n", headers=_CSV, params=query)
    assert [row["key"] for row in csv.DictReader(io.StringIO(drawn_later.text))] == ["a"]
    plain = {"name": "n", "mechanism": json.dumps({"type": "geometric", "scale": "1e-4"})}
    unsuppressed = client.post(f"{_PATH}/draws", content="key,count\r\nb,2\r\na,30\r\n", headers=_CSV, params=plain)
    assert [row["key"] for row in csv.DictReader(io.StringIO(unsuppressed.text))] == ["b", "a"]


def test_a_lone_surrogate_is_no_key(embedded: Client) -> None:
    open_account(embedded, budget=_BUDGET)
    body = json.dumps({"name": "n", "mechanism": _NOISY, "keys": ["\ud800"], "counts": [1]})
    refused = embedded.post(f"{_PATH}/draws", content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code in (400, 422)


def test_a_partition_that_the_plan_does_not_name_is_refused(embedded: Client) -> None:
    """Its name would stand in the journal, whatever is suppressed of it."""
    open_account(embedded, budget=_BUDGET)
    for partitions in (None, 7):
        of = release(embedded, _QUIET | {"name": "m"} | ({} if partitions is None else {"partitions": partitions}))
        body = {"mechanism": "m", "partition": "hidden", "keys": ["a"], "counts": [9]}
        assert pointers_of(embedded.post(f"{_PATH}/releases/{of['id']}/draws", json=body)) == ["/partition"]


def test_forms_without_keys_and_tables_of_all_cells_are_refused(embedded: Client) -> None:
    open_account(embedded, budget=_BUDGET)
    query = {"name": "n", "mechanism": json.dumps(_NOISY)}
    streamed = embedded.post(f"{_PATH}/draws", content=counts([1, 2]), headers=headers(), params=query)
    tabled = embedded.post(f"{_PATH}/draws", content="area,count\r\na,1\r\n", headers=_CSV, params=query)
    assert pointers_of(streamed) == pointers_of(tabled) == ["/query/mechanism"]
    table = {"name": "n", "mechanism": _NOISY, "counts": [1, 2], "dimensions": [{"name": "d", "values": ["a", "b"]}]}
    refused = embedded.post(f"{_PATH}/histograms", json=table)
    assert pointers_of(refused) == ["/mechanism/threshold"]
    noise = {"type": "geometric", "scale": "5", "cells": 1}
    steps = [noise | {"name": f"Nation/step {number}"} for number in (1, 2)]
    level = {
        "type": "choice",
        "parts": [noise | _QUIET | {"name": "Nation/total"}, {"type": "sequence", "parts": steps}],
    }
    of = release(embedded, level)
    groups = {"level": "Nation", "groups": [{"group": "g", "total_only": True, "total": 5}]}
    refused = embedded.post(f"{_PATH}/releases/{of['id']}/tabulations", json=groups)
    assert pointers_of(refused) == ["/level"]
