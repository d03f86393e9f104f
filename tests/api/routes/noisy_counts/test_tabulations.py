"""SafeTab's tabulation over HTTP: the detail of each group, one draw for each, and refusals."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it publishes no types
import pytest
from sqlalchemy import text

from service.ledger.storage.database import Database
from tests.api.calls import Answer, Client, json_of, open_account, pointers_of, problem_of, release

_ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
_WIDE = {"definition": "pure", "epsilon": 10**6}
_BINS_4, _BINS_9 = (0, 18, 45, 65), (0, 5, 18, 25, 35, 45, 55, 65, 75)


def _level(name: str, scale: str = "2", **fields: Any) -> dict[str, Any]:
    """Return a level as a plan; its scale is so small that the noise is 0 and sums are visible."""
    noise = {"type": "geometric", "scale": scale, "cells": 1} | fields
    steps = [noise | {"name": f"{name}/step 1"}, noise | {"name": f"{name}/step 2"}]
    parts = [noise | {"name": f"{name}/total"}, {"type": "sequence", "parts": steps}]
    return {"type": "repeat", "count": 9, "part": {"type": "choice", "parts": parts}}


_EXACT = {"type": "sequence", "parts": [_level("Nation", "1e-4"), _level("State", "1e-4"), _level("Noisy", "5")]}


def _people(size: int, ages: int = 100, seed: int = 1) -> list[list[int]]:
    """Return counts by sex and single year of age, of so many people."""
    rng = np.random.default_rng(seed)
    found: list[list[int]] = rng.multinomial(size, np.full(2 * ages, 1 / (2 * ages))).reshape(2, ages).tolist()
    return found


def _tabulate(client: Client, of: Any, level: str, groups: Any, key: str | None = None, **fields: Any) -> Answer:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"level": level, "groups": groups} | fields
    return client.post(f"/v1/accounts/people/releases/{of['id']}/tabulations", json=body, headers=headers)


def _released(client: Client, plan: Any = _EXACT) -> Any:
    open_account(client, budget=_WIDE)
    return release(client, plan)


def _binned(rows: list[list[int]], first_ages: tuple[int, ...]) -> list[int]:
    ends = [*first_ages[1:], len(rows[0])]
    return [sum(row[first:end]) for row in rows for first, end in zip(first_ages, ends, strict=True)]


def test_thresholds_choose_the_detail_and_bins_add_up(embedded: Client) -> None:
    of = _released(embedded)
    sizes = {"below": 499, "4": 500, "4 too": 999, "9": 1000, "9 too": 6999, "23": 7000, "nobody": 0}
    groups: list[dict[str, Any]] = [{"group": name, "sex_by_age": _people(size)} for name, size in sizes.items()]
    groups += [
        {"group": "marked", "total_only": True, "sex_by_age": _people(10**5)},
        {"group": "total", "total_only": True, "total": 12},
    ]
    done = json_of(_tabulate(embedded, of, "Nation", groups), 201)
    found = {group["group"]: group for group in done["groups"]}
    assert [group["group"] for group in done["groups"]] == [group["group"] for group in groups]
    for name, size in sizes.items():
        rows = _people(size)
        detail = "total" if size < 500 else "sex_by_age_4" if size < 1000 else "sex_by_age_9" if size < 7000 else None
        expected = {"total": [size], "sex_by_age_4": _binned(rows, _BINS_4), "sex_by_age_9": _binned(rows, _BINS_9)}
        assert found[name]["detail"] == (detail or "sex_by_age_23")
        assert found[name]["total_only"] is False
        if detail is not None:
            assert found[name]["noisy"] == expected[detail]
    fine = found["23"]["noisy"]
    assert len(fine) == 46
    assert fine == _binned(_people(7000), tuple(done["age_bins"]["sex_by_age_23"]))
    assert found["marked"] == {"group": "marked", "total_only": True, "detail": "total", "noisy": [10**5]}
    assert found["total"]["noisy"] == [12]
    assert done["thresholds"] == [500, 1000, 7000]
    assert done["groups_per_record"] == 9
    assert done["margin_of_error"] == {"confidence": 0.95, "total_only": 0, "step_2": 0}
    (outline,) = json_of(embedded.get(f"/v1/accounts/people/releases/{of['id']}/draws?noisy=false"))["items"]
    assert (outline["level"], outline["draw"], outline["head"]) == ("Nation", done["draw"], done["head"])
    assert outline["size"] == sum(len(group["noisy"]) for group in done["groups"])
    assert outline["margin_of_error"] == {"confidence": 0.95, "moe": 0}


def test_rules_are_parameters(embedded: Client) -> None:
    of = _released(embedded)
    rows = _people(50, ages=7)
    fields: dict[str, Any] = {"thresholds": [-5, 40, 41], "age_bins": {"sex_by_age_4": [0, 1, 2, 150]}}
    done = json_of(_tabulate(embedded, of, "Nation", [{"group": "a", "sex_by_age": rows}], **fields), 201)
    assert done["groups"][0]["detail"] == "sex_by_age_23"  # most ages have no people: those bins are empty
    assert sum(done["groups"][0]["noisy"]) == 50
    fields["thresholds"] = [-5, 100, 1000]
    (group,) = json_of(_tabulate(embedded, of, "State", [{"group": "a", "sex_by_age": rows}], **fields), 201)["groups"]
    assert group["detail"] == "sex_by_age_4"
    assert group["noisy"] == [x for row in rows for x in (row[0], row[1], sum(row[2:]), 0)]


@pytest.mark.parametrize("mechanism", ["geometric", "discrete_gaussian"])
def test_a_plan_from_margins_is_registered_and_tabulated(embedded: Client, mechanism: str) -> None:
    """The requested margin of error is in the answer, with the caller's promise beside it."""
    target = {
        "mechanism": mechanism,
        "levels": [{"name": "Nation, Detailed", "moe": 6}, {"name": "County, Regional", "moe": 50}],
        "stability": 4,
        "stage_1_fraction": "0.1",
        "delta": "1e-10",
    }
    plan = json_of(embedded.post("/v1/plans/safetab", json=target))["plan"]
    of = _released(embedded, plan) if mechanism == "geometric" else None
    if of is None:
        open_account(embedded, budget={"definition": "zcdp", "rho": 10})
        of = release(embedded, plan)
    groups = [
        {"group": "many", "sex_by_age": _people(50_000)},
        {"group": "marked", "total_only": True, "total": 50_000},
    ]
    for level, moe in (("Nation, Detailed", 6), ("County, Regional", 50)):
        done = json_of(_tabulate(embedded, of, level, groups), 201)
        assert done["margin_of_error"]["step_2"] == moe
        assert done["margin_of_error"]["total_only"] <= moe  # with the whole budget of the group
        assert done["groups_per_record"] == 4
        assert [group["detail"] for group in done["groups"]] == ["sex_by_age_23", "total"]
        assert abs(sum(done["groups"][0]["noisy"]) - 50_000) < 3000
        assert abs(done["groups"][1]["noisy"][0] - 50_000) < 500


def test_noise_may_make_counts_negative(embedded: Client) -> None:
    of = _released(embedded)
    groups = [{"group": str(n), "total_only": True, "total": 0} for n in range(200)]
    done = json_of(_tabulate(embedded, of, "Noisy", groups), 201)
    noisy = [group["noisy"][0] for group in done["groups"]]
    assert min(noisy) < 0 < max(noisy)


def test_each_group_is_drawn_once_ever_at_its_level(client: Client) -> None:
    of = _released(client)
    groups = [{"group": name, "sex_by_age": _people(600)} for name in "ab"]
    first = _tabulate(client, of, "Noisy", groups, key="k")
    done = json_of(first, 201)
    again = _tabulate(client, of, "Noisy", groups, key="k")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Idempotent-Replay"] == "true"
    for others in ([{"group": "c", "total_only": True, "total": 1}, groups[1]], groups[:1]):
        assert problem_of(_tabulate(client, of, "Noisy", others), "already_drawn")["draw"] == done["draw"]
    json_of(_tabulate(client, of, "Noisy", [{"group": "c", "total_only": True, "total": 1}]), 201)
    json_of(_tabulate(client, of, "State", groups), 201)
    assert json_of(client.get(f"/v1/accounts/people/draws/{done['draw']}")) == done
    assert json_of(client.get(f"/v1/accounts/people/releases/{of['id']}/draws"))["items"][0] == done
    journal = json_of(client.get("/v1/accounts/people/head"))
    assert journal["seq"] == 5  # opened, committed, three draws


def test_draws_and_tabulations_exclude_each_other(client: Client) -> None:
    of = _released(client)
    path = f"/v1/accounts/people/releases/{of['id']}/draws"

    def draw(mechanism: str, **fields: Any) -> Answer:
        return client.post(path, json={"mechanism": mechanism, "counts": [1]} | fields)

    def tabulate(level: str, group: str) -> Answer:
        return _tabulate(client, of, level, [{"group": group, "sex_by_age": [[3], [4]]}])

    drawn = json_of(draw("Nation/step 1", partition="a"), 201)
    assert problem_of(tabulate("Nation", "a"), "already_drawn")["draw"] == drawn["draw"]
    json_of(draw("Nation/step 2", partition="a"), 201)  # as before tabulations were added
    tabulated = json_of(tabulate("Nation", "b"), 201)
    for mechanism in ("Nation/step 1", "Nation/step 2", "Nation/total"):
        assert problem_of(draw(mechanism, partition="b"), "already_drawn")["draw"] == tabulated["draw"]
        problem_of(draw(mechanism), "already_drawn")  # the whole input
        json_of(draw(mechanism, partition=f"c {mechanism}"), 201)
    whole = json_of(draw("State/total"), 201)
    assert problem_of(tabulate("State", "a"), "already_drawn")["draw"] == whole["draw"]


def test_under_a_repeat_a_tabulation_takes_every_turn_of_its_groups(client: Client) -> None:
    """The groups of one record cost so many choices; a group has one of them."""
    of = _released(client, _level("a"))
    path = f"/v1/accounts/people/releases/{of['id']}/draws"

    def draw(mechanism: str, partition: str, turn: int) -> Answer:
        body = {"mechanism": mechanism, "counts": [1], "partition": partition, "repetition": turn}
        return client.post(path, json=body)

    def tabulate(group: str) -> Answer:
        return _tabulate(client, of, "a", [{"group": group, "sex_by_age": [[3], [4]]}])

    done = json_of(tabulate("x"), 201)
    assert done["groups_per_record"] == 9
    for turn in (0, 8):
        assert problem_of(draw("a/total", "x", turn), "already_drawn")["draw"] == done["draw"]
    drawn = json_of(draw("a/step 1", "y", 3), 201)
    assert problem_of(tabulate("y"), "already_drawn")["draw"] == drawn["draw"]


def test_many_at_once_draw_each_group_once(served: Client) -> None:
    of = _released(served)

    def attempt(number: int) -> Answer:
        names = [f"own {number}", "shared"] if number % 2 else [f"own {number}"]
        return _tabulate(served, of, "Noisy", [{"group": name, "sex_by_age": [[1], [2]]} for name in names])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(12)))
    drawn = [group["group"] for answer in answers if answer.status_code == 201 for group in answer.json()["groups"]]
    assert len(drawn) == len(set(drawn))
    assert "shared" in drawn
    assert sum(answer.status_code == 409 for answer in answers) == 5


def test_a_tabulation_commits_a_reservation_and_a_void_one_is_not_tabulated(client: Client) -> None:
    open_account(client, budget=_WIDE)
    held = [release(client, _EXACT, reserve_for="PT1H") for _ in range(2)]
    group = [{"group": "a", "total_only": True, "total": 1}]
    json_of(_tabulate(client, held[0], "State", group), 201)
    assert json_of(client.get(f"/v1/accounts/people/releases/{held[0]['id']}"))["state"] == "committed"
    json_of(client.post(f"/v1/accounts/people/releases/{held[1]['id']}/void", json={"reason": "withdrawn"}))
    problem_of(_tabulate(client, held[1], "State", group), "conflict")


# Arrow


def _stream(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _send(client: Client, of: Any, columns: dict[str, Any], level: str = "Nation", **query: str) -> Answer:
    path = f"/v1/accounts/people/releases/{of['id']}/tabulations"
    headers = _ARROW | {"Idempotency-Key": query.pop("key", f"{len(columns)} {level} {query}")}
    return client.post(path, params={"level": level, **query}, content=_stream(columns), headers=headers)


_NESTED = pa.list_(pa.list_(pa.int64()))


@pytest.mark.parametrize(
    "kind", [_NESTED, pa.large_list(pa.list_(pa.int64())), pa.list_(pa.large_list(pa.int64()), 2)], ids=str
)
def test_arrow_brings_what_json_brings(embedded: Client, kind: Any) -> None:
    of = _released(embedded)
    sizes = [499, 500, 1000, 7000, 3, 8000]
    rows: list[Any] = [_people(size, ages=100 if size != 3 else 2) for size in sizes]
    rows[5] = None
    total_only = [False] * 5 + [True]
    names = [f"group {number}" for number in range(6)]
    totals = pa.array([None] * 5 + [77], pa.int64())
    columns = {"group": names, "sex_by_age": pa.array(rows, kind), "total_only": total_only, "total": totals}
    answer = _send(embedded, of, columns)
    assert answer.status_code == 201, answer.text
    table = pa.ipc.open_stream(answer.content).read_all()
    groups = [
        {"group": name, "total_only": only} | ({"total": 77} if only else {"sex_by_age": row})
        for name, only, row in zip(names, total_only, rows, strict=True)
    ]
    by_json = json_of(_tabulate(embedded, of, "State", groups), 201)
    assert table.to_pylist() == [
        {field: group[field] for field in ("group", "total_only", "detail", "noisy")} for group in by_json["groups"]
    ]
    terms = json.loads(table.schema.metadata[b"tabulation"])
    assert terms["margin_of_error"] == by_json["margin_of_error"]
    again = _send(embedded, of, columns)
    assert again.content == answer.content
    stored = f"/v1/accounts/people/draws/{answer.headers['X-Draw']}"
    assert embedded.get(stored, headers={"Accept": _ARROW["Content-Type"]}).content == answer.content
    assert len(json_of(embedded.get(stored))["groups"]) == 6


@pytest.mark.parametrize(
    ("columns", "pointer"),
    [
        ({"group": ["a"]}, "/sex_by_age/0"),
        ({"sex_by_age": pa.array([[[1], [2]]], _NESTED)}, "/group"),
        ({"group": ["a", "a"], "sex_by_age": pa.array([[[1], [2]]] * 2, _NESTED)}, "/group/1"),
        ({"group": ["a", ""], "sex_by_age": pa.array([[[1], [2]]] * 2, _NESTED)}, "/group/1"),
        ({"group": ["a", None], "sex_by_age": pa.array([[[1], [2]]] * 2, _NESTED)}, "/group"),
        ({"group": ["a", "b"], "sex_by_age": pa.array([[[1], [2]], [[1]]], _NESTED)}, "/sex_by_age/1"),
        ({"group": ["a", "b"], "sex_by_age": pa.array([[[1], [2]], [[1], []]], _NESTED)}, "/sex_by_age/1"),
        ({"group": ["a", "b"], "sex_by_age": pa.array([[[1], [2]], [[1], None]], _NESTED)}, "/sex_by_age/1"),
        ({"group": ["a", "b"], "sex_by_age": pa.array([[[1], [2]], [[1], [None]]], _NESTED)}, "/sex_by_age/1"),
        ({"group": ["a", "b"], "sex_by_age": pa.array([[[1], [2]], [[1], [-8675309]]], _NESTED)}, "/sex_by_age/1"),
        ({"group": ["a"], "sex_by_age": pa.array([[[1], [2**53 + 1]]], _NESTED)}, "/sex_by_age/0"),
        ({"group": ["a"], "sex_by_age": pa.array([[[1], [2] * 201]], _NESTED)}, "/sex_by_age/0"),
        ({"group": ["a"], "sex_by_age": pa.array([[1, 2]], pa.list_(pa.int64()))}, "/sex_by_age"),
        ({"group": ["a"], "total_only": [True], "total": pa.array([1.5])}, "/total"),
        ({"group": ["a"], "total_only": [True], "total": pa.array([-1])}, "/total/0"),
        ({"group": ["a"], "total_only": [1], "total": [1]}, "/total_only"),
        ({"group": ["a"], "total": [1]}, "/sex_by_age/0"),
        ({"group": ["a"], "total_only": [True], "total": [1], "more": [1]}, ""),
        ({"group": pa.array([], pa.string())}, "/group"),
        ({"group": [1]}, "/group"),
    ],
)
def test_streams_without_a_meaning(shared_client: Client, columns: Any, pointer: str) -> None:
    of = _shared(shared_client)
    answer = _send(shared_client, of, columns)
    assert pointers_of(answer) == [pointer]
    assert "8675309" not in answer.text


def _shared(shared_client: Client) -> Any:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        return _released(shared_client)
    return json_of(shared_client.get("/v1/accounts/people/releases"))["items"][0]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"level": "County"}, "/level"),
        ({"level": ""}, "/level"),
        ({"thresholds": [1, 2]}, "/thresholds"),
        ({"thresholds": [1, 3, 2]}, "/thresholds"),
        ({"thresholds": [1, 2.5, 3]}, "/thresholds/1"),
        ({"age_bins": {"sex_by_age_4": [0, 18, 45]}}, "/age_bins/sex_by_age_4"),
        ({"age_bins": {"sex_by_age_4": [1, 18, 45, 65]}}, "/age_bins/sex_by_age_4"),
        ({"age_bins": {"sex_by_age_4": [0, 18, 18, 65]}}, "/age_bins/sex_by_age_4"),
        ({"age_bins": {"sex_by_age_4": [0, 18, 45, 200]}}, "/age_bins/sex_by_age_4"),
        ({"age_bins": {"sex_by_age_5": []}}, "/age_bins/sex_by_age_5"),
        ({"groups": []}, "/groups"),
        ({"groups": [{"group": "a"}]}, "/groups/0/sex_by_age"),
        ({"groups": [{"group": "a", "total": 8675309}]}, "/groups/0/sex_by_age"),
        ({"groups": [{"group": "a", "total_only": True}]}, "/groups/0/sex_by_age"),
        ({"groups": [{"group": "a", "total_only": "yes", "total": 1}]}, "/groups/0/total_only"),
        ({"groups": [{"group": "a", "total_only": True, "total": -8675309}]}, "/groups/0/total"),
        ({"groups": [{"group": "a", "sex_by_age": [[1], [8675309.5]]}]}, "/groups/0/sex_by_age/1/0"),
        ({"groups": [{"group": "a", "sex_by_age": [[1], []]}]}, "/groups/0/sex_by_age/1"),
        ({"groups": [{"group": "a", "sex_by_age": [[1]]}]}, "/groups/0/sex_by_age"),
        ({"groups": [{"group": "a", "sex_by_age": [[1], [2]]}] * 2}, "/groups/1/group"),
        ({"groups": [{"group": "a\u0000", "sex_by_age": [[1], [2]]}]}, "/groups/0/group"),
        ({"group": []}, "/group"),
    ],
    ids=str,
)
def test_tabulations_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    of = _shared(shared_client)
    body = {"level": "Nation", "groups": [{"group": "a", "sex_by_age": [[1], [2]]}]} | fields
    answer = shared_client.post(f"/v1/accounts/people/releases/{of['id']}/tabulations", json=body)
    assert pointers_of(answer) == [pointer]
    assert "8675309" not in answer.text


@pytest.mark.parametrize(
    "plan",
    [
        _level("a")["part"]["parts"][0],
        {"type": "repeat", "count": 2, "part": _level("b")},
        _level("a", granularity="0.5"),
        {"type": "choice", "parts": [_level("a"), _level("b")]},
        {"type": "sequence", "parts": [_level("a"), {"type": "repeat", "count": 1, "part": _level("b")}]}["parts"][1],
        {
            "type": "choice",
            "parts": [{"type": "gaussian", "rho": 1, "name": "a/x"}, _level("a")["part"]["parts"][1]],
        },
    ],
    ids=str,
)
def test_plans_without_the_level(embedded: Client, plan: Any) -> None:
    open_account(embedded, budget={"definition": "zcdp", "rho": 10**6})
    of = release(embedded, plan)
    assert pointers_of(_tabulate(embedded, of, "a", [{"group": "g", "total_only": True, "total": 1}])) == ["/level"]


def test_true_counts_are_not_in_the_database(client: Client, database: Database) -> None:
    """The noisy counts are stored; the deciding totals are not."""
    of = _released(client, _level("Noisy", "1000"))
    canary = 86753091234
    json_of(_tabulate(client, of, "Noisy", [{"group": "a", "sex_by_age": [[canary], [1]]}]), 201)
    with database.read() as connection:
        for table in ("journal", "draws", "tabulations", "branches_taken", "releases", "stored_answers"):
            for row in connection.execute(text(f"SELECT * FROM {table}")):
                shown = repr(tuple(row))
                assert str(canary) not in shown
                assert str(canary + 1) not in shown
