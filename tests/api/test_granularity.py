"""Counts that are multiples of a granularity: weighted tables, drawn on their lattice as JSON and as Arrow."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest

from tests.api.calls import Answer, Client, json_of, open_account, pointers_of, pure, release

_ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
_WEIGHTED = {"type": "geometric", "scale": "3", "sensitivity": "1.75", "granularity": "0.25"}
_WIDE = {"definition": "pure", "epsilon": 10**6}
_NEARLY_NONE = {"type": "geometric", "scale": "1e-4", "sensitivity": "0.25"}  # noise below e^-2499


def _post(client: Client, body: Any, path: str = "draws", **headers: str) -> Answer:
    return client.post(f"/v1/accounts/people/{path}", json={"name": "weighted"} | body, headers=headers)


def _stream(values: Any, kind: Any) -> bytes:
    table = pa.table({"area": ["a"] * len(values), "count": pa.array(values, kind)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _table(answer: Answer) -> Any:
    assert answer.status_code in (200, 201), answer.text
    return pa.ipc.open_stream(answer.content).read_all()


def test_noise_is_drawn_on_the_lattice_with_the_stated_law(embedded: Client) -> None:
    """Shares of the noise in counts are within six standard deviations of masses ~ exp(-|x|/3) on quarters."""
    open_account(embedded, budget=_WIDE)
    size = 20_000
    drawn = json_of(_post(embedded, {"mechanism": _WEIGHTED, "counts": ["100.5"] * size}), 201)
    noise = [Fraction(noisy) - Fraction("100.5") for noisy in drawn["noisy"]]
    assert all((4 * x).denominator == 1 for x in noise)
    q = math.exp(-1 / 12)
    for beyond in (0, 4, 12, 40):
        share = 2 * q ** (beyond + 1) / (1 + q)  # P(|X| > beyond quarters)
        found = sum(abs(4 * x) > beyond for x in noise)
        assert abs(found - size * share) <= 6 * math.sqrt(size * share * (1 - share)) + 1
    margin = next(m for m in range(1000) if 2 * q ** (m + 1) / (1 + q) <= 0.05)
    assert drawn["margin_of_error"] == {"confidence": 0.95, "moe": f"{Decimal(margin) / 4:.2f}"}
    assert drawn["mechanism"] == _WEIGHTED | {"name": "/"}


def test_counts_come_and_go_exactly(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    mechanism = _NEARLY_NONE | {"granularity": "0.25"}
    given: list[Any] = [3, "7.25", "-15/4", 0, 2**51, f"-{2**51}"]
    sent = {"mechanism": mechanism, "counts": given, "granularity": "1/4"}
    drawn = json_of(_post(embedded, sent), 201)
    assert [Fraction(noisy) for noisy in drawn["noisy"]] == [Fraction(count) for count in given]
    assert drawn["noisy"][:3] == ["3.00", "7.25", "-3.75"]
    decimals = b'{"name": "n", "mechanism": {"type": "geometric", "scale": 1e-5}, "granularity": 0.1, "counts": [0.3]}'
    written = embedded.post(  # a JSON number means its decimal text
        "/v1/accounts/people/draws",
        content=decimals,
        headers={"Content-Type": "application/json"},
    )
    assert json_of(written, 201)["noisy"] == ["0.3"]
    thirds = {"type": "geometric", "scale": "1e-4", "granularity": "1/3"}
    assert json_of(_post(embedded, {"mechanism": thirds, "counts": ["2/3", 5]}), 201)["noisy"] == ["2/3", "5"]
    tens = {"type": "geometric", "scale": "1e-4", "granularity": 10, "sensitivity": 20}
    assert json_of(_post(embedded, {"mechanism": tens, "counts": [70, -20]}), 201)["noisy"] == ["70", "-20"]


def test_a_release_is_charged_and_drawn_with_its_granularity(client: Client) -> None:
    """The plan has it; a draw may repeat it and cannot change it, and a read returns it unchanged."""
    open_account(client)
    of = release(
        client, {"type": "repeat", "count": 3, "part": _WEIGHTED | {"name": "m", "epsilon": "0.1", "scale": None}}
    )
    assert of["plan"]["part"]["granularity"] == "0.25"
    path = f"releases/{of['id']}/draws"
    body = {"mechanism": "m", "counts": ["1.25", 7]}

    def draw(**fields: Any) -> Answer:
        return client.post(f"/v1/accounts/people/{path}", json=body | fields)

    first = json_of(draw(), 201)
    json_of(draw(repetition=1, granularity=0.25), 201)
    assert pointers_of(draw(repetition=2, granularity="0.5")) == ["/granularity"]
    assert pointers_of(draw(repetition=2, granularity="1")) == ["/granularity"]
    assert json_of(client.get(f"/v1/accounts/people/draws/{first['draw']}")) == first
    assert json_of(client.get(f"/v1/accounts/people/{path}"))["items"][0] == first


def test_a_lattice_costs_what_integers_of_its_units_cost(embedded: Client) -> None:
    open_account(embedded)
    integers = {"type": "geometric", "scale": "12", "sensitivity": 7}
    for plan in (_WEIGHTED, integers):
        answer = embedded.post("/v1/compositions", json={"plan": plan})
        assert json_of(answer) == json_of(embedded.post("/v1/compositions", json={"plan": integers}))


def test_accuracy_is_told_in_counts(shared_client: Client) -> None:
    """On a lattice of quarters, the margins are a quarter of those of integers of its units."""

    def told(mechanism: Any) -> Any:
        return json_of(shared_client.post("/v1/accuracy", json={"mechanism": mechanism, "summed_cells": 40}))

    quarters, units = told(_WEIGHTED), told({"type": "geometric", "scale": 12, "sensitivity": 7})
    assert Fraction(quarters["margins"][0]["moe"]) * 4 == units["margins"][0]["moe"]
    assert quarters["margins"][0]["coverage"] == units["margins"][0]["coverage"]
    assert quarters["variance"] * 16 == pytest.approx(units["variance"], rel=1e-12)
    assert quarters["mean_absolute"] * 4 == pytest.approx(units["mean_absolute"], rel=1e-12)


@pytest.mark.parametrize("granularity", ["0.25", "1/3"])
def test_arrow_counts_units(embedded: Client, granularity: str) -> None:
    """A column of integers holds any granularity exactly; the caller states it to show that the unit is known."""
    open_account(embedded, budget=_WIDE)
    units = [1, -14, 4003, 28, 2**62]
    of = release(embedded, {"type": "geometric", "scale": "1e-4", "granularity": granularity, "name": "m"})
    path = f"/v1/accounts/people/releases/{of['id']}/draws"

    def draw(**query: str) -> Answer:
        headers = _ARROW | {"Idempotency-Key": f"{query}"}
        return embedded.post(
            path, params={"mechanism": "m"} | query, content=_stream(units, pa.int64()), headers=headers
        )

    assert pointers_of(draw()) == ["/query/granularity"]
    assert pointers_of(draw(granularity="0.5")) == ["/query/granularity"]
    answers = [draw(granularity=granularity) for _ in range(2)]
    table = _table(answers[0])
    assert table["noisy"].to_pylist() == units
    assert answers[1].content == answers[0].content
    stored = f"/v1/accounts/people/draws/{answers[0].headers['X-Draw']}"
    read = embedded.get(stored, headers={"Accept": _ARROW["Content-Type"]})
    assert _table(read)["noisy"].to_pylist() == units
    assert {answer.headers["X-Granularity"] for answer in (*answers, read)} == {granularity}
    shown = json_of(embedded.get(stored))["noisy"]
    assert [Fraction(value) for value in shown] == [count * Fraction(granularity) for count in units]


def test_arrow_registers_with_a_granularity(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    query = {
        "name": "n",
        "mechanism": '{"type": "geometric", "scale": "1e-4", "sensitivity": "2.5"}',
        "granularity": "0.5",
    }
    answer = embedded.post(
        "/v1/accounts/people/draws", params=query, content=_stream([3, 4], pa.int64()), headers=_ARROW
    )
    assert _table(answer)["noisy"].to_pylist() == [3, 4]
    registered = json_of(embedded.get(f"/v1/accounts/people/releases/{answer.headers['X-Release']}"))
    assert registered["plan"]["granularity"] == "0.5"
    whole = {"name": "n", "mechanism": '{"type": "geometric", "scale": "1e-4"}'}
    answer = embedded.post("/v1/accounts/people/draws", params=whole, content=_stream([3], pa.int64()), headers=_ARROW)
    assert "X-Granularity" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"counts": [1, "8675309.3"]}, "/counts/1"),
        ({"counts": [1, 2**53]}, "/counts/1"),
        ({"counts": ["nan"]}, "/counts/0"),
        ({"counts": ["1e500"]}, "/counts/0"),
        ({"counts": [True]}, "/counts/0"),
        ({"counts": []}, "/counts"),
        ({"granularity": 0}, "/mechanism/granularity"),
        ({"granularity": "-0.25"}, "/mechanism/granularity"),
        ({"granularity": "x"}, "/granularity"),
        ({"mechanism": _WEIGHTED, "granularity": "0.5"}, "/granularity"),
        ({"mechanism": _WEIGHTED | {"sensitivity": "0.3"}}, "/mechanism/sensitivity"),
        ({"mechanism": pure(1) | {"sensitivity": "1.75"}, "granularity": None}, "/mechanism/sensitivity"),
        ({"mechanism": pure(1), "granularity": None, "counts": ["2"]}, "/counts/0"),
        ({"mechanism": {"type": "gaussian", "rho": 1, "granularity": 1}}, "/mechanism/granularity"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused_without_an_echo(shared_client: Client, fields: Any, pointer: str) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    mechanism = {"type": "geometric", "scale": 1, "sensitivity": "0.25"}
    answer = _post(shared_client, {"mechanism": mechanism, "granularity": "0.25", "counts": [1]} | fields)
    assert pointers_of(answer) == [pointer]
    assert "8675309" not in answer.text
