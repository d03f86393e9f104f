"""Noisy counts over HTTP: their law, one draw for each place in the plan's tree, and reading."""

import hashlib
import json
import math
import struct
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest
from sqlalchemy import Connection

from service.api.routes.noisy_counts import draws as draws_api
from service.errors import Unavailable
from service.ledger.draws import draws
from service.ledger.draws.draws import Sealed
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.noise import attempts
from tests.api.calls import (
    Answer,
    Client,
    application,
    charge,
    client_of,
    concentrated,
    head_of,
    json_of,
    open_account,
    pages_of,
    pointers_of,
    problem_of,
    pure,
    release,
)

_WIDE = {"definition": "pure", "epsilon": 10**6}
_DECLARED = {"type": "declared", "epsilon": "0.1", "reference": "a proof"}


def _register_and_draw(client: Client, mechanism: Any, counts: Any, account: str = "people") -> Answer:
    body = {"name": "counts", "mechanism": mechanism, "counts": counts}
    return client.post(f"/v1/accounts/{account}/draws", json=body)


def _draw(client: Client, of: Any, mechanism: str, counts: Any = (1, 2), **fields: Any) -> Answer:
    """Return the answer to a draw of a registered release."""
    path = f"/v1/accounts/{of['account']}/releases/{of['id']}/draws"
    return client.post(path, json={"mechanism": mechanism, "counts": list(counts), **fields})


# The law


@pytest.mark.parametrize(
    ("mechanism", "weight"),
    [
        ({"type": "geometric", "scale": "2.5"}, lambda x: mpmath.exp(-abs(x) / mpmath.mpf("2.5"))),
        ({"type": "geometric", "epsilon": "1/3", "sensitivity": 2}, lambda x: mpmath.exp(-abs(x) / mpmath.mpf(6))),
        ({"type": "discrete_gaussian", "sigma_squared": "9.375"}, lambda x: mpmath.exp(-x * x / mpmath.mpf("18.75"))),
        ({"type": "discrete_gaussian", "rho": 2}, lambda x: mpmath.exp(-x * x * 2)),
    ],
)
def test_the_noise_has_the_stated_law(embedded: Client, mechanism: Any, weight: Any) -> None:
    """Each share is within six standard deviations: the noise is fresh, and correct noise fails once in 10^7 runs."""
    open_account(embedded, budget={"definition": "rdp", "alpha": 2, "epsilon": 1000})
    size, base = 20_000, 10**6
    drawn = json_of(_register_and_draw(embedded, mechanism, [base] * size), 201)
    noise = [noisy - base for noisy in drawn["noisy"]]
    assert len(noise) == size
    whole = mpmath.fsum(weight(x) for x in range(-400, 401))
    for low, high in ((0, 0), (1, 1), (-1, -1), (2, 400), (-400, -2), (5, 400), (-400, -5), (20, 400)):
        share = float(mpmath.fsum(weight(x) for x in range(low, high + 1)) / whole)
        found = sum(low <= x <= high for x in noise)
        assert abs(found - size * share) <= 6 * math.sqrt(size * share * (1 - share)) + 1


def test_counts_move_nothing_but_the_centre(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    counts = [0, 1, -1, 2**53, -(2**53), 54571]
    nearly_none = {"type": "geometric", "scale": "1e-4"}  # other than 0 with probability below e^-9999
    assert json_of(_register_and_draw(embedded, nearly_none, counts), 201)["noisy"] == counts


def test_every_draw_is_fresh(embedded: Client) -> None:
    open_account(embedded, budget=_WIDE)
    draws = [json_of(_register_and_draw(embedded, pure("0.001"), [0] * 50), 201)["noisy"] for _ in range(3)]
    assert len({tuple(noisy) for noisy in draws}) == 3


@pytest.mark.parametrize("number", [20, 9_000])  # the second is drawn by one of two helpers
@pytest.mark.parametrize("of_release", [True, False])
def test_attempts_that_are_not_committed_have_one_noise(
    database: Database, secret: Secret, monkeypatch: pytest.MonkeyPatch, of_release: bool, number: int
) -> None:
    """Otherwise a database that lets commits fail would see fresh noise of the same counts each time."""
    with client_of(application(database, secret, helper_processes=2)) as client:
        _try_again(client, monkeypatch, of_release, number)


def _try_again(client: Client, monkeypatch: pytest.MonkeyPatch, of_release: bool, number: int) -> None:
    open_account(client, budget=_WIDE)
    path = "/v1/accounts/people/draws"
    body: dict[str, Any] = {"counts": [7] * number}
    if of_release:
        path = f"/v1/accounts/people/releases/{release(client, pure('0.1', name='m'))['id']}/draws"
        body |= {"mechanism": "m"}
    else:
        body |= {"name": "counts", "mechanism": pure("0.1")}
    store, seen, fails = draws.store, [], [True]

    def watched(connection: Connection, account: Any, release_id: str, sealed: Sealed, *more: Any) -> Any:
        seen.append(sealed.noisy.tolist())
        found = store(connection, account, release_id, sealed, *more)
        if fails[0]:
            raise Unavailable("the database failed")
        return found

    def ask(body: Any, key: str | None) -> Answer:
        return client.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})

    monkeypatch.setattr(draws, "store", watched)
    for _ in range(3):
        problem_of(ask(body, "one"), "unavailable")
    problem_of(ask(body | {"counts": [8] * number}, "one"), "unavailable")
    problem_of(ask(body, "two"), "unavailable")
    problem_of(ask(body, None), "unavailable")
    first, *others = seen
    assert others[:2] == [first, first]
    unlike = [first, *others[2:]]
    assert len({tuple(noisy) for noisy in unlike}) == 4
    assert [count - 1 for count in others[2]] != first, "other counts have other noise"
    fails[0] = False
    assert json_of(ask(body, "one"), 201)["noisy"] == first
    assert json_of(ask(body, "one"), 201)["noisy"] == first  # a replay


def test_refused_draws_push_out_no_noise_of_a_failed_one(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: 10,000 requests that are refused made the service forget what somebody else is to get again."""
    monkeypatch.setattr(attempts, "_MOST", 2)
    open_account(embedded, budget={"definition": "pure", "epsilon": "1"})
    drawn, failing = (release(embedded, pure("0.1", name="m")) for _ in range(2))
    json_of(_draw(embedded, drawn, "m"), 201)
    store, seen = draws.store, []

    def fail(connection: Connection, account: Any, release_id: str, sealed: Sealed, *more: Any) -> Any:
        seen.append(sealed.noisy.tolist())
        store(connection, account, release_id, sealed, *more)
        raise Unavailable("the database failed")

    def ask(key: str) -> Answer:
        path = f"/v1/accounts/people/releases/{failing['id']}/draws"
        body = {"mechanism": "m", "counts": [7] * 20}
        return embedded.post(path, json=body, headers={"Idempotency-Key": key})

    with monkeypatch.context() as failed:
        failed.setattr(draws, "store", fail)
        problem_of(ask("one"), "unavailable")
    too_much = {"name": "counts", "mechanism": pure("2"), "counts": [1]}
    for number in range(3):
        key = {"Idempotency-Key": f"refused {number}"}
        path = f"/v1/accounts/people/releases/{drawn['id']}/draws"
        problem_of(embedded.post(path, json={"mechanism": "m", "counts": [1]}, headers=key), "already_drawn")
        problem_of(embedded.post("/v1/accounts/people/draws", json=too_much, headers=key), "budget_exceeded")
    assert json_of(ask("one"), 201)["noisy"] == seen[0]


@pytest.mark.parametrize("scale", ["0.1", "1", "2.18865443911", "10", "1000.5"])
def test_the_margin_of_error_is_the_smallest_that_holds(embedded: Client, scale: str) -> None:
    """P(|X| > m) = 2 q^(m+1)/(1+q), q = exp(-1/b)."""
    open_account(embedded, budget=_WIDE)
    drawn = json_of(_register_and_draw(embedded, {"type": "geometric", "scale": scale}, [1]), 201)
    q = mpmath.exp(-1 / mpmath.mpf(scale))
    margin = next(m for m in range(10**5) if 2 * q ** (m + 1) / (1 + q) <= mpmath.mpf("0.05"))
    assert drawn["margin_of_error"] == {"confidence": 0.95, "moe": margin}


def test_a_draw_says_what_it_is_and_the_journal_holds_its_hash(client: Client) -> None:
    opened = open_account(client)
    mechanism = {"type": "discrete_gaussian", "name": "county", "rho": "0.125", "tags": ["t"]}
    drawn = json_of(_register_and_draw(client, mechanism, [5, 6, 7]), 201)
    assert drawn["mechanism"] == {
        "type": "discrete_gaussian", "name": "county", "sigma_squared": "4", "sensitivity": 1, "tags": ["t"],
    }  # fmt: skip
    assert (drawn["partition"], drawn["repetition"]) == (None, 0)
    registered = json_of(client.get(f"/v1/accounts/people/releases/{drawn['release']}"))
    assert (registered["plan"], registered["name"]) == (mechanism, "counts")
    assert [registered["head"]["seq"], drawn["head"]["seq"]] == [opened["head"]["seq"] + 1, opened["head"]["seq"] + 2]
    entry = json_of(client.get("/v1/accounts/people/journal"))["items"][-1]["entry"]
    packed = struct.pack("<3q", *drawn["noisy"])
    assert entry["content"]["noisy_hash"] == hashlib.sha256(packed).hexdigest()
    assert (entry["content"]["draw"], entry["content"]["size"], entry["release"]) == (
        drawn["draw"],
        3,
        drawn["release"],
    )
    assert json_of(client.get(f"/v1/accounts/people/draws/{drawn['draw']}")) == drawn


# Once


def test_each_partition_and_repetition_is_drawn_once(client: Client) -> None:
    open_account(client)
    of = release(client, {"type": "repeat", "count": 3, "part": concentrated("0.01") | {"type": "discrete_gaussian"}})
    first = json_of(_draw(client, of, "/part", partition="36"), 201)
    assert (first["partition"], first["repetition"]) == ("36", 0)
    for counts in ((1, 2), (3, 4, 5)):
        refused = problem_of(_draw(client, of, "/part", counts, partition="36"), "already_drawn")
        assert refused["draw"] == first["draw"]
    json_of(_draw(client, of, "/part", partition="01"), 201)
    json_of(_draw(client, of, "/part", partition="36", repetition=2), 201)
    problem_of(_draw(client, of, "/part", partition="36", repetition=2), "already_drawn")
    json_of(_draw(client, of, "/part", repetition=1), 201)


def test_the_whole_input_overlaps_every_partition(client: Client) -> None:
    open_account(client)
    of = release(client, {"type": "sequence", "parts": [pure("0.1", name="a"), pure("0.1", name="b")]})
    whole = json_of(_draw(client, of, "a"), 201)["draw"]
    assert problem_of(_draw(client, of, "a", partition="1"), "already_drawn")["draw"] == whole
    part = json_of(_draw(client, of, "b", partition="1"), 201)["draw"]
    assert problem_of(_draw(client, of, "b"), "already_drawn")["draw"] == part


def test_mechanisms_of_a_sequence_do_not_exclude_each_other(client: Client) -> None:
    open_account(client)
    of = release(client, {"type": "sequence", "parts": [pure("0.1"), pure("0.1"), pure("0.1", name="named")]})
    for name in ("/parts/0", "/parts/1", "named"):
        assert json_of(_draw(client, of, name), 201)["mechanism"]["name"] == name
    for name in ("/parts/2", "/parts/3", "", "parts/0"):
        assert pointers_of(_draw(client, of, name)) == ["/mechanism"]


def test_the_first_draw_below_a_choice_fixes_its_branch(client: Client) -> None:
    open_account(client)
    detailed = {"type": "sequence", "parts": [pure("0.1", name="by sex"), pure("0.1", name="by age")]}
    of = release(client, {"type": "choice", "parts": [pure("0.2", name="total"), detailed]})
    first = json_of(_draw(client, of, "by age", partition="1"), 201)["draw"]
    assert problem_of(_draw(client, of, "total", partition="1"), "already_drawn")["draw"] == first
    json_of(_draw(client, of, "by sex", partition="1"), 201)
    json_of(_draw(client, of, "total", partition="2"), 201)
    problem_of(_draw(client, of, "by sex", partition="2"), "already_drawn")
    # The whole input contains partition 2, where the other branch was drawn.
    problem_of(_draw(client, of, "by sex"), "already_drawn")
    problem_of(_draw(client, of, "total"), "already_drawn")


def test_a_draw_of_the_whole_input_fixes_the_branch_of_every_partition(client: Client) -> None:
    open_account(client)
    both = [{"type": "sequence", "parts": [pure("0.1", name=f"{n}1"), pure("0.1", name=f"{n}2")]} for n in "ab"]
    of = release(client, {"type": "choice", "parts": both})
    json_of(_draw(client, of, "a1"), 201)
    problem_of(_draw(client, of, "b1", partition="1"), "already_drawn")
    json_of(_draw(client, of, "a2", partition="1"), 201)


def test_the_branch_is_chosen_anew_at_every_turn(client: Client) -> None:
    """A repetition counts the turns of all repeats above a mechanism; a choice depends on those above itself."""
    open_account(client)
    inner = {
        "type": "choice",
        "parts": [{"type": "repeat", "count": 3, "part": pure("0.01", name="a")}, pure("0.02", name="b")],
    }
    of = release(client, {"type": "repeat", "count": 2, "part": inner})
    json_of(_draw(client, of, "a", repetition=4), 201)  # turn 1 of the outer, turn 1 of the inner repeat
    problem_of(_draw(client, of, "b", repetition=1), "already_drawn")
    json_of(_draw(client, of, "b", repetition=0), 201)
    for repetition in (0, 1, 2):
        problem_of(_draw(client, of, "a", repetition=repetition), "already_drawn")
    for repetition in (3, 5):
        json_of(_draw(client, of, "a", repetition=repetition), 201)
    for name, beyond in (("a", 6), ("b", 2)):
        assert pointers_of(_draw(client, of, name, repetition=beyond)) == ["/repetition"]


def test_nested_choices_each_hold_their_branch(client: Client) -> None:
    open_account(client)
    inner = {"type": "choice", "parts": [pure("0.1", name="b"), pure("0.1", name="c")]}
    outer = {
        "type": "choice",
        "parts": [pure("0.1", name="a"), {"type": "parallel", "max_degree": 1, "parts": [inner]}],
    }
    of = release(client, outer)
    json_of(_draw(client, of, "b", partition="x"), 201)
    problem_of(_draw(client, of, "c", partition="x"), "already_drawn")
    problem_of(_draw(client, of, "a", partition="x"), "already_drawn")
    json_of(_draw(client, of, "c", partition="y"), 201)
    json_of(_draw(client, of, "a", partition="z"), 201)


def test_equal_mechanisms_in_two_branches_are_two(client: Client) -> None:
    open_account(client)
    of = release(client, {"type": "choice", "parts": [pure("0.1"), pure("0.1")]})
    json_of(_draw(client, of, "/parts/1"), 201)
    problem_of(_draw(client, of, "/parts/0"), "already_drawn")


# Atomicity


def test_a_draw_that_does_not_fit_leaves_nothing(client: Client) -> None:
    head = open_account(client)["head"]
    refused = problem_of(_register_and_draw(client, pure(3), [1, 2]), "budget_exceeded")
    assert refused["noise_multiplier_that_fits"] > 1
    assert json_of(client.get("/v1/accounts/people/releases"))["items"] == []
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] == head["seq"] + 1  # the refusal is a journal entry


@pytest.mark.parametrize(
    "mechanism",
    [
        concentrated(1),
        {"type": "laplace", "scale": 1},
        _DECLARED,
        {"type": "geometric", "scale": 2**50 + 1},
        {"type": "geometric", "epsilon": "1e-300"},
        {"type": "discrete_gaussian", "sigma_squared": 2**100 + 1},
        {"type": "discrete_osgt", "sigma_squared": 2**100 + 1, "m": 1},
        {"type": "osgt", "sigma_squared": 100, "m": 1},
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused_before_it_is_charged(embedded: Client, mechanism: Any) -> None:
    head = open_account(embedded, budget={"definition": "rdp", "alpha": 2, "epsilon": 100})["head"]
    assert pointers_of(_register_and_draw(embedded, mechanism, [1])) == ["/mechanism"]
    assert head_of(embedded) == head
    of = release(embedded, mechanism | {"name": "m"})
    assert pointers_of(_draw(embedded, of, "m")) == ["/mechanism"]


def test_a_dry_run_is_one_of_the_release(embedded: Client) -> None:
    open_account(embedded)
    made = release(embedded, pure("0.1"))
    body = {"name": "x", "mechanism": pure("0.1"), "counts": [1]}
    for path in ("draws", f"releases/{made['id']}/draws"):
        for kind in ("application/json", "text/csv", "application/vnd.apache.arrow.stream"):
            at = f"/v1/accounts/people/{path}?dry_run=true"
            answer = embedded.post(at, content=json.dumps(body), headers={"Content-Type": kind})
            (fault,) = [one for one in problem_of(answer, "validation")["errors"] if one["pointer"] == "/query/dry_run"]
            assert "expected no dry run of a draw" in fault["detail"]
    assert json_of(embedded.get("/v1/accounts/people/balance"))["releases"] == 1


def test_a_mechanism_that_the_plan_does_not_have_is_told_with_those_that_it_has(embedded: Client) -> None:
    open_account(embedded)
    parts = [pure("0.1") | {"name": name} for name in ("county", "tract")]
    of = release(embedded, {"type": "sequence", "parts": parts})
    for name, hint in (("couny", "; did you mean county?"), ("x", "")):
        (fault,) = problem_of(_draw(embedded, of, name), "validation")["errors"]
        assert fault["pointer"] == "/mechanism"
        assert fault["detail"].endswith(f"mechanism of the release's plan, one of county, tract{hint}")


def test_randomised_response_is_only_accounted(embedded: Client) -> None:
    open_account(embedded, neighbouring="replace_one")
    answer = _register_and_draw(embedded, {"type": "randomized_response", "epsilon": "0.1"}, [1])
    assert pointers_of(answer) == ["/mechanism"]
    of = release(embedded, {"type": "randomized_response", "epsilon": "0.1"})
    assert pointers_of(_draw(embedded, of, "/")) == ["/mechanism"]


def test_the_widest_laws_that_fit(embedded: Client) -> None:
    open_account(embedded)
    for mechanism in (
        {"type": "geometric", "scale": 2**50},
        {"type": "discrete_gaussian", "sigma_squared": 2**100},
        {"type": "discrete_osgt", "sigma_squared": 2**100, "m": 2**40},
    ):
        noisy = json_of(_register_and_draw(embedded, mechanism, [2**53, -(2**53)] * 5), 201)["noisy"]
        assert all(-(2**63) <= value < 2**63 for value in noisy)


def test_offset_tails_are_drawn_with_their_margin(embedded: Client) -> None:
    """The law has sigma² = 40 and m = 3; the masses are summed here."""
    open_account(embedded)
    mechanism = {"type": "discrete_osgt", "sigma_squared": 40, "m": 3}
    drawn = json_of(_register_and_draw(embedded, mechanism, [0] * 4000), 201)
    weights = [math.exp(-(x * x + 6 * x) / 80) for x in range(200)]
    beyond = [2 * sum(weights[m + 1 :]) / (2 * sum(weights) - weights[0]) for m in range(30)]
    margin = next(m for m, share in enumerate(beyond) if share <= 0.05)
    assert drawn["margin_of_error"] == {"confidence": 0.95, "moe": margin}
    strays = sum(abs(value) > margin for value in drawn["noisy"])
    assert abs(strays - 4000 * beyond[margin]) < 7 * math.sqrt(4000 * beyond[margin])  # seven standard deviations


# Reading


def test_draws_are_listed_page_by_page(alone: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(alone)
    of = release(alone, {"type": "repeat", "count": 5, "part": pure("0.01")})
    drawn = [json_of(_draw(alone, of, "/part", range(4), repetition=n), 201) for n in range(5)]
    path = f"/v1/accounts/people/releases/{of['id']}/draws"
    assert json_of(alone.get(path)) == {"items": drawn, "next_cursor": None}
    assert _pages(alone, path, limit=2) == [drawn[:2], drawn[2:4], drawn[4:]]
    monkeypatch.setattr(draws_api, "PAGE_OF_COUNTS", 5)
    assert _pages(alone, path) == [drawn[:2], drawn[2:4], drawn[4:]]


def test_draws_are_listed_without_their_counts(client: Client) -> None:
    open_account(client)
    of = release(client, {"type": "repeat", "count": 2, "part": pure("0.01")})
    drawn = [json_of(_draw(client, of, "/part", range(4), repetition=n, partition="36"), 201) for n in range(2)]
    path = f"/v1/accounts/people/releases/{of['id']}/draws"
    added = {"size": 4, "level": None, "noisy_removed_at": None}
    expected = [{name: value for name, value in one.items() if name != "noisy"} | added for one in drawn]
    assert json_of(client.get(path, params={"noisy": "false"})) == {"items": expected, "next_cursor": None}
    assert _pages(client, path, noisy="false", limit=1) == [expected[:1], expected[1:]]


def _pages(client: Client, path: str, **query: Any) -> list[Any]:
    return [page for page in pages_of(client, path, **query) if page]


def test_draws_belong_to_their_account_and_release(client: Client) -> None:
    for name in ("people", "others"):
        open_account(client, name)
    drawn = json_of(_register_and_draw(client, pure("0.1"), [1]), 201)
    problem_of(client.get(f"/v1/accounts/others/draws/{drawn['draw']}"), "not_found")
    problem_of(client.get(f"/v1/accounts/others/releases/{drawn['release']}/draws"), "not_found")
    problem_of(_draw(client, {"account": "others", "id": drawn["release"]}, "/"), "not_found")
    problem_of(_draw(client, {"account": "people", "id": "unknown"}, "/"), "not_found")


# Requests


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"partition": ""}, "/partition"),
        ({"partition": 36}, "/partition"),
        ({"partition": "a\u0000"}, "/partition"),
        ({"repetition": -1}, "/repetition"),
        ({"repetition": 10**12}, "/repetition"),
        ({"repetition": 0.0}, "/repetition"),
        ({"repetition": True}, "/repetition"),
        ({"repetitions": 1}, "/repetitions"),
    ],
)
def test_turns_without_a_meaning(shared_client: Client, fields: Any, pointer: str) -> None:
    if shared_client.get("/v1/accounts/people").status_code == 404:
        open_account(shared_client)
    of = json_of(charge(shared_client, pure("1e-6")), 201)
    assert pointers_of(_draw(shared_client, of, "/", **fields)) == [pointer]
