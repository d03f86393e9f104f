"""Selections over HTTP: their law, one for each place in the plan, their reading, and what is refused."""

from collections import Counter
from typing import Any

import pytest

from service.api.routes.noisy_counts.selections import MOST_CANDIDATES
from service.errors import Unavailable
from service.ledger.draws import draws
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.api.calls import (
    Answer,
    Client,
    application,
    client_of,
    json_of,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.noise.reference import chi_square_p
from tests.privacy.reference import mp

_WIDE = {"definition": "pure", "epsilon": 10**6}


def _exponential(epsilon: Any = "1", **fields: Any) -> dict[str, Any]:
    return {"type": "exponential", "epsilon": epsilon, "name": "best"} | fields


def _select(client: Client, of: Any, scores: Any = (1, 2), key: str | None = None, **fields: Any) -> Answer:
    path = f"/v1/accounts/{of['account']}/releases/{of['id']}/selections"
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(path, json={"mechanism": "best", "scores": list(scores)} | fields, headers=headers)


@pytest.mark.parametrize(("fields", "rate"), [({}, 0.25), ({"scores": "monotone"}, 0.5), ({"sensitivity": "0.1"}, 2.5)])
def test_probabilities_follow_the_scores(embedded: Client, fields: Any, rate: float) -> None:
    open_account(embedded, budget=_WIDE)
    count, scores = 300, ["0", 1, "3/2", "0.1"]
    of = release(embedded, {"type": "repeat", "count": count, "part": _exponential("0.5", **fields)})
    seen = Counter(json_of(_select(embedded, of, scores, repetition=k), 201)["selected"] for k in range(count))
    weights = [float(mp.exp(rate * score)) for score in (0, 1, 1.5, 0.1)]
    expected = [weight / sum(weights) * count for weight in weights]
    assert chi_square_p([seen[k] for k in range(4)], expected) > 1e-6


def test_each_place_is_drawn_once_and_replayed(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    of = release(embedded, {"type": "sequence", "parts": [_exponential(), pure("0.1", name="count")]})
    first = _select(embedded, of, [0] * 1000, key="one")
    assert _select(embedded, of, [0] * 1000, key="one").content == first.content
    made = json_of(first, 201)
    assert set(made) == {
        *("release", "draw", "mechanism", "partition", "declared_partitions", "repetition", "selected", "head"),
        "created_at",
    }
    problem_of(_select(embedded, of, [0] * 1000, key="two"), "already_drawn")
    problem_of(_select(embedded, of, partition="01"), "already_drawn")
    problem_of(_select(embedded, of, [1], key="one"), "idempotency_conflict")
    assert json_of(embedded.get(f"/v1/accounts/people/draws/{made['draw']}")) == made
    path = f"/v1/accounts/people/releases/{of['id']}/draws"
    assert json_of(embedded.get(path))["items"] == [made]
    (outline,) = json_of(embedded.get(path, params={"noisy": "false"}))["items"]
    assert (outline["size"], outline["margin_of_error"]) == (1, None)
    table = embedded.get(f"/v1/accounts/people/draws/{made['draw']}", headers={"Accept": "text/csv"})
    assert table.text.split() == ["noisy", str(made["selected"])]
    assert json_of(embedded.get("/v1/accounts/people/verify"))["valid"]
    for part in ("accuracy", "package"):
        assert embedded.get(f"/v1/accounts/people/releases/{of['id']}/{part}").status_code == 200


def test_partitions_are_selected_from_each_by_itself(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    of = release(embedded, _exponential())
    for name in ("01", "02"):
        assert json_of(_select(embedded, of, partition=name), 201)["partition"] == name
    problem_of(_select(embedded, of, partition="01"), "already_drawn")
    problem_of(_select(embedded, of), "already_drawn")


@pytest.mark.parametrize("number", [20, 9_000])  # the second is drawn by one of two helpers
def test_attempts_that_are_not_committed_select_the_same(
    database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store, seen, fails = draws.store, [], [True]

    def watched(*arguments: Any) -> Any:
        seen.append(arguments[3].noisy.tolist())
        found = store(*arguments)
        if fails[0]:
            raise Unavailable("the database failed")
        return found

    monkeypatch.setattr(draws, "store", watched)
    with client_of(application(database, secret, helper_processes=2)) as client:
        open_account(client, budget=_WIDE)
        of = release(client, _exponential())
        for _ in range(3):
            problem_of(_select(client, of, [0] * number, key="one"), "unavailable")
        problem_of(_select(client, of, [0] * number, key="two"), "unavailable")
        fails[0] = False
        selected = json_of(_select(client, of, [0] * number, key="one"), 201)["selected"]
    assert seen[:3] == [seen[0]] * 3
    assert seen[4] == [selected] == seen[0]
    assert number < 1000 or seen[3] != seen[0]


@pytest.mark.parametrize(
    ("scores", "pointer"),
    [
        ([], "/scores"),
        ([1, None], "/scores/1"),
        (["NaN"], "/scores/0"),
        ([1, 2, "1/0"], "/scores/2"),
        ([True], "/scores/0"),
        (["1e500"], "/scores/0"),
        ([0] * (MOST_CANDIDATES + 1), "/scores"),
    ],
)
def test_scores_that_are_no_numbers_are_refused(embedded: Client, scores: Any, pointer: str) -> None:
    open_account(embedded, budget=_WIDE)
    assert pointers_of(_select(embedded, release(embedded, _exponential()), scores)) == [pointer]


def test_other_mechanisms_select_nothing_and_this_one_draws_no_counts(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    noise, best = release(embedded, pure("0.1", name="best")), release(embedded, _exponential())
    assert pointers_of(_select(embedded, noise)) == ["/mechanism"]
    assert pointers_of(_select(embedded, best, mechanism="worst")) == ["/mechanism"]
    assert pointers_of(_select(embedded, best, repetition=1)) == ["/repetition"]
    path = f"/v1/accounts/people/releases/{best['id']}/draws"
    assert pointers_of(embedded.post(path, json={"mechanism": "best", "counts": [1]})) == ["/mechanism"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"epsilon": 0}, "/plan/epsilon"),
        ({"epsilon": "-1"}, "/plan/epsilon"),
        ({"sensitivity": 0}, "/plan/sensitivity"),
        ({"scores": "rising"}, "/plan/scores"),
        ({"partitions": 2}, "/plan/partitions"),
        ({"cells": 2}, "/plan/cells"),
    ],
)
def test_a_wrong_mechanism_is_refused(embedded: Client, fields: Any, pointer: str) -> None:
    assert pointers_of(embedded.post("/v1/compositions", json={"plan": _exponential() | fields})) == [pointer]
