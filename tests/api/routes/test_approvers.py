"""Approvers of an account over HTTP: what is accepted, what is shown, and who is refused."""

from typing import Any

import pytest

from tests.api.calls import (
    Client,
    bearer,
    json_of,
    make_key,
    open_account,
    operators_key,
    pointers_of,
    problem_of,
    pure,
    release,
)

_TWO: dict[str, Any] = {"at_least": 2, "of": ["bob", "carol", "dan"]}
_SORTED = {"at_least": 2, "of": ["a", "b"]}


def _persons(client: Client, *names: str) -> list[dict[str, str]]:
    return [operators_key(client, "approver", name) for name in names]


def _account(client: Client, name: str = "people", **fields: Any) -> Any:
    return open_account(client, name, **{"approval_above": "0.001", "approvers": _TWO} | fields)


def _approve(client: Client, of: Any, headers: dict[str, str], **fields: Any) -> Any:
    return client.post(f"/v1/accounts/{of['account']}/releases/{of['id']}/approve", headers=headers | fields)


def _patch(client: Client, approvers: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return client.patch("/v1/accounts/people", json={"approvers": approvers} | fields, headers=headers)


def test_a_release_shows_who_must_still_approve_it(client: Client) -> None:
    assert _account(client)["approvers"] == _TWO
    bob, carol, eve = _persons(client, "bob", "carol", "eve")
    of = release(client, pure("0.2"), name="large")
    path = f"/v1/accounts/people/releases/{of['id']}"
    asked = {"account": "people", "at_least": 2, "of": ["bob", "carol", "dan"], "missing": 2}
    waits = {"approved_by": [], "may_approve": ["bob", "carol", "dan"], "asked": [asked]}
    assert json_of(client.get(path))["approval"] == waits
    outsider = problem_of(_approve(client, of, eve), "forbidden")
    assert "people still asks for: bob, carol, dan" in outsider["detail"]
    answer = json_of(_approve(client, of, bob))
    once = {"approved_by": ["bob"], "may_approve": ["carol", "dan"], "asked": [asked | {"missing": 1}]}
    assert (answer["state"], answer["approval"]) == ("proposed", once)
    assert json_of(client.get(path))["approval"] == once
    assert json_of(client.get("/v1/accounts/people/releases"))["items"][0]["approval"] == once
    assert [one["approval"] for one in json_of(client.get("/v1/proposals"))["items"]] == [once]
    assert json_of(_approve(client, of, bob))["approval"] == once
    answer = json_of(_approve(client, of, carol))
    assert (answer["state"], "approval" in answer) == ("committed", False)
    assert "approval" not in json_of(client.get(path))
    events = json_of(client.get(f"{path}/events"))["items"]
    assert [(one["kind"], one["principal"], one["state"]) for one in events] == [
        ("proposed", "first-steward", "proposed"),
        ("approved", "bob", "proposed"),
        ("approved", "carol", "committed"),
    ]


def test_accounts_without_approvers_are_shown_as_before(client: Client) -> None:
    opened = open_account(client, approval_above="0.001")
    assert "approvers" not in opened
    of = release(client, pure("0.2"))
    assert "approval" not in json_of(client.get(f"/v1/accounts/people/releases/{of['id']}"))
    assert "approval" not in json_of(client.get("/v1/proposals"))["items"][0]
    waits = json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 9}}), 202)
    assert "approval" not in waits["proposed_change"]


def test_a_change_shows_who_must_still_approve_it(client: Client) -> None:
    open_account(client, "agency", approval_above="9", approvers={"at_least": 1})
    _account(client, parent="agency")
    bob, carol, eve = _persons(client, "bob", "carol", "eve")
    change = {"budget": {"definition": "zcdp", "rho": "2"}}

    def ask(headers: dict[str, str] | None = None) -> Any:
        return client.patch("/v1/accounts/people", json=change, headers=headers)

    above = {"account": "agency", "at_least": 1, "of": None, "missing": 1}
    own = {"account": "people", "missing": 2} | _TWO
    waits: dict[str, Any] = {"approved_by": [], "may_approve": None, "asked": [above, own]}
    assert json_of(ask(), 202)["proposed_change"]["approval"] == waits
    waits |= {"approved_by": ["eve"], "may_approve": ["bob", "carol", "dan"], "asked": [above | {"missing": 0}, own]}
    assert json_of(ask(eve), 202)["proposed_change"]["approval"] == waits
    assert json_of(client.get("/v1/accounts/people"))["proposed_change"]["approval"] == waits
    assert json_of(ask(bob), 202)["proposed_change"]["approval"]["approved_by"] == ["eve", "bob"]
    (found,) = json_of(client.get("/v1/accounts", params={"waiting": "true"}))["items"]
    assert found["proposed_change"]["approval"]["approved_by"] == ["eve", "bob"]
    changed = json_of(ask(carol))
    assert (changed["proposed_change"], changed["budget"]["rho"]) == (None, "2")
    assert json_of(client.get("/v1/accounts", params={"waiting": "true"}))["items"] == []


def test_approvers_are_set_once_by_one_steward_and_then_by_themselves(client: Client) -> None:
    problem_of(client.patch("/v1/accounts/nobody", json={"approvers": _TWO}), "not_found")
    open_account(client)
    problem_of(_patch(client, _TWO), "conflict")
    json_of(client.patch("/v1/accounts/people", json={"approval_above": "0.001"}))
    bob, carol, eve = _persons(client, "bob", "carol", "eve")
    problem_of(_patch(client, _TWO, bob), "forbidden")  # approvers propose nothing
    assert json_of(_patch(client, _TWO | {"of": ["dan", "carol", "bob"]}, reason="the board"))["approvers"] == _TWO
    waits = json_of(_patch(client, {"at_least": 1}), 202)
    assert waits["approvers"] == _TWO
    assert waits["proposed_change"]["approvers"] == {"at_least": 1}
    problem_of(_patch(client, {"at_least": 1}, eve), "forbidden")
    json_of(_patch(client, {"at_least": 1}, bob), 202)
    assert json_of(_patch(client, {"at_least": 1, "of": None}, carol))["approvers"] == {"at_least": 1}


@pytest.mark.parametrize(
    ("approvers", "pointers"),
    [
        ({}, ["/approvers/at_least"]),
        ({"at_least": 0}, ["/approvers/at_least"]),
        ({"at_least": -1}, ["/approvers/at_least"]),
        ({"at_least": 11}, ["/approvers/at_least"]),
        ({"at_least": 10**400}, ["/approvers/at_least"]),
        ({"at_least": "2"}, ["/approvers/at_least"]),
        ({"at_least": 1.5}, ["/approvers/at_least"]),
        ({"at_least": True}, ["/approvers/at_least"]),
        ({"at_least": None}, ["/approvers/at_least"]),
        ({"at_least": 3, "of": ["a", "b"]}, ["/approvers/at_least"]),
        ({"at_least": 1, "of": []}, ["/approvers/of"]),
        ({"at_least": 1, "of": "ann"}, ["/approvers/of"]),
        ({"at_least": 1, "of": [""]}, ["/approvers/of/0"]),
        ({"at_least": 1, "of": ["a", 7]}, ["/approvers/of/1"]),
        ({"at_least": 1, "of": ["a\n"]}, ["/approvers/of/0"]),
        ({"at_least": 1, "of": ["x" * 201]}, ["/approvers/of/0"]),
        ({"at_least": 1, "of": ["a", "b", "a"]}, ["/approvers/of/2"]),
        ({"at_least": 1, "of": [f"n{number}" for number in range(51)]}, ["/approvers/of"]),
        ({"at_least": 1, "from": ["a"]}, ["/approvers/from"]),
        (2, ["/approvers"]),
        ([], ["/approvers"]),
    ],
)
def test_wrong_approvers_are_refused(shared_client: Client, approvers: Any, pointers: list[str]) -> None:
    body: dict[str, Any] = {"name": "wrong", "unit": "person", "neighbouring": "add_remove", "approval_above": "1"}
    body |= {"budget": {"definition": "zcdp", "rho": 1}}
    assert pointers_of(shared_client.post("/v1/accounts", json=body | {"approvers": approvers})) == pointers
    assert pointers_of(shared_client.patch("/v1/accounts/wrong", json={"approvers": approvers})) == pointers
    problem_of(shared_client.get("/v1/accounts/wrong"), "not_found")


@pytest.mark.parametrize("at_least", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(shared_client: Client, at_least: float) -> None:
    text = f'{{"approvers": {{"at_least": {"NaN" if at_least != at_least else at_least}}}}}'  # noqa: PLR0124
    answer = shared_client.patch(
        "/v1/accounts/wrong", content=text.replace("inf", "Infinity"), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422)


def test_approvers_need_a_price_above_which_they_approve(embedded: Client) -> None:
    body: dict[str, Any] = {"name": "people", "unit": "person", "neighbouring": "add_remove"}
    body |= {"budget": {"definition": "zcdp", "rho": 1}, "approvers": _SORTED}
    assert pointers_of(embedded.post("/v1/accounts", json=body)) == ["/approvers"]


def test_a_change_is_of_one_field(embedded: Client) -> None:
    _account(embedded)
    assert pointers_of(_patch(embedded, _SORTED, approval_above="0")) == [""]


def test_a_repeated_approval_has_its_first_answer(client: Client) -> None:
    _account(client)
    bob, carol = _persons(client, "bob", "carol")
    of = release(client, pure("0.2"))
    first = _approve(client, of, bob, **{"Idempotency-Key": "once"})
    json_of(_approve(client, of, carol))
    again = _approve(client, of, bob, **{"Idempotency-Key": "once"})
    assert again.text == first.text
    assert again.headers["Idempotent-Replay"] == "true"


def test_pipelines_on_the_list_do_not_approve(embedded: Client) -> None:
    _account(embedded, approvers={"at_least": 1, "of": ["robot"]})
    of = release(embedded, pure("0.2"))
    problem_of(_approve(embedded, of, make_key(embedded, "pipeline", "robot")), "forbidden")


def test_a_key_reaches_all_accounts_that_ask(embedded: Client) -> None:
    open_account(embedded, "agency", approval_above="0.001", approvers={"at_least": 1, "of": ["bob"]})
    open_account(embedded, "people", parent="agency", approval_above="0.001")
    of = release(embedded, pure("0.2"))
    limited = operators_key(embedded, "approver", "bob", accounts=["people"])
    problem_of(_approve(embedded, of, limited), "forbidden")
    assert json_of(_approve(embedded, of, _persons(embedded, "bob")[0]))["state"] == "committed"


def test_histories_and_past_balances_follow_changed_rules(client: Client) -> None:
    """They replay only what changes a balance, and so neither the rules nor the proposals of changes."""
    _account(client)
    bob, carol, eve = _persons(client, "bob", "carol", "eve")
    for headers in (None, bob, carol):
        _patch(client, {"at_least": 1, "of": ["eve"]}, headers)
    json_of(_approve(client, release(client, pure("0.2")), eve))
    change = {"budget": {"definition": "zcdp", "rho": "2"}}
    json_of(client.patch("/v1/accounts/people", json=change), 202)
    json_of(client.patch("/v1/accounts/people", json=change, headers=eve))
    head = json_of(client.get("/v1/accounts/people"))["head"]["seq"]
    assert json_of(client.get("/v1/accounts/people/history"))["points"][-1]["seq"] == head
    for seq in range(1, head + 1):
        json_of(client.get("/v1/accounts/people/balance", params={"as_of": seq}))
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


def _obstacle(client: Client, path: str, headers: dict[str, str]) -> Any:
    found = json_of(client.get(path, params={"with_obstacle": "true"}, headers=headers))
    waits = found["items"][0] if "items" in found else found
    return waits["obstacle"] if "state" not in waits or "budget" not in waits else waits["proposed_change"]["obstacle"]


@pytest.mark.parametrize("change", [False, True])
def test_an_answer_says_before_an_approval_why_it_would_be_refused(client: Client, change: bool) -> None:
    """Each reason is that of the refusal, and without one the approval counts."""
    _account(client)
    bob, carol, eve = _persons(client, "bob", "carol", "eve")
    alice = make_key(client, "steward", "alice")
    dan = bearer(json_of(client.post("/v1/keys", json={"name": "dan", "role": "approver"}, headers=alice), 201)["key"])
    pipeline = make_key(client, "pipeline", "pat")
    proposer = make_key(client, "steward", "second") if change else pipeline
    budget = {"budget": {"definition": "zcdp", "rho": "2"}}
    paths = ["/v1/accounts/people", "/v1/accounts?waiting=true"]
    if change:
        json_of(client.patch("/v1/accounts/people", json=budget, headers=proposer), 202)
    else:
        body = {"name": "large", "plan": pure("0.2")}
        of = json_of(client.post("/v1/accounts/people/releases", json=body, headers=proposer), 201)
        paths = [f"/v1/accounts/people/releases/{of['id']}", "/v1/accounts/people/releases", "/v1/proposals"]

    def approve(headers: dict[str, str]) -> Any:
        if change:
            return client.patch("/v1/accounts/people", json=budget, headers=headers)
        return _approve(client, of, headers)

    said = {"eve": (eve, "not_asked"), "dan": (dan, "known_key")} | ({} if change else {"pat": (pipeline, "role")})
    for headers, kind in said.values():
        for path in paths:
            obstacle = _obstacle(client, path, headers)
            assert obstacle["type"] == kind
        if kind != "role":  # of which a request is refused earlier
            assert problem_of(approve(headers), "forbidden")["detail"] == obstacle["detail"]
    assert _obstacle(client, paths[0], proposer)["type"] == ("own_proposal" if change else "role")
    assert [_obstacle(client, path, bob) for path in paths] == [None] * len(paths)
    assert approve(bob).status_code in (200, 202)
    assert {_obstacle(client, path, bob)["type"] for path in paths} == {"approved"}
    assert _obstacle(client, paths[0], carol) is None
    assert approve(carol).status_code == 200


def test_a_key_that_does_not_reach_an_account_that_asks_is_told_so(client: Client) -> None:
    open_account(client, "agency", approval_above="9")
    _account(client, parent="agency", approvers={"at_least": 1})
    of = release(client, pure("0.2"))
    path = f"/v1/accounts/people/releases/{of['id']}"
    limited = operators_key(client, "approver", "bob", ["people"])
    assert _obstacle(client, path, limited)["type"] == "reach"
    problem_of(_approve(client, of, limited), "forbidden")


def test_an_answer_says_who_of_those_who_are_asked_has_no_key_for_it(client: Client) -> None:
    asked = ["bob", "carol", "dan", "oidc:eve", "fay", "gus"]
    _account(client, approvers={"at_least": 2, "of": asked})
    _persons(client, "bob")
    make_key(client, "approver", "carol")  # the first key counts as the operator's
    make_key(client, "pipeline", "dan")
    alice = make_key(client, "steward", "alice")
    json_of(client.post("/v1/keys", json={"name": "gus", "role": "approver"}, headers=alice), 201)
    of = release(client, pure("0.2"))
    shown = json_of(client.get(f"/v1/accounts/people/releases/{of['id']}", params={"with_obstacle": "true"}))
    assert shown["approval"]["unable"] == ["dan", "fay", "gus"]
    assert json_of(client.get("/v1/accounts/people", params={"with_obstacle": "true"}))["unable_approvers"] == [
        {"principal": "dan", "reason": "dan has the role pipeline, which does not approve"},
        {"principal": "fay", "reason": "no key has the name fay"},
        {"principal": "gus", "reason": "alice made or rotated the key of gus, and is not on the list"},
    ]
    limited = operators_key(client, "auditor", "hal", ["people"])
    told = json_of(client.get("/v1/accounts/people", params={"with_obstacle": "true"}, headers=limited))
    assert told["unable_approvers"] == [
        {"principal": name, "reason": f"{name} has no key that can approve"} for name in ("dan", "fay", "gus")
    ], "a limited key reads neither others' roles nor who made their keys"
    assert "unable_approvers" not in json_of(client.get("/v1/accounts/people"))


@pytest.mark.parametrize("opens", [True, False])
def test_approvers_who_cannot_approve_are_refused_where_that_is_asked_for(client: Client, opens: bool) -> None:
    operators_key(client, "approver", "bob")
    made = json_of(client.post("/v1/keys", json={"name": "carol", "role": "approver"}), 201)
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    if not opens:
        open_account(client, approval_above="1")

    def state(*names: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        body: dict[str, Any] = {"approvers": {"at_least": 1, "of": names}} | fields
        if not opens:
            return client.patch("/v1/accounts/people", json=body, headers=headers)
        unlike = {"name": "people", "unit": "person", "neighbouring": "add_remove", "approval_above": "1"}
        asked = unlike | {"budget": {"definition": "zcdp", "rho": 1}} | body
        return client.post("/v1/accounts", json=asked, headers=headers)

    refused = state("zoe", "bob", "carol", approvers_must_be_able=True)
    assert problem_of(refused, "validation")["errors"] == [
        {"pointer": "/approvers/of/0", "detail": "expected a principal that can approve: no key has the name zoe"},
        {
            "pointer": "/approvers/of/2",
            "detail": "expected a principal that can approve: the keys of carol are revoked or expired",
        },
    ]
    limited = operators_key(client, "steward", "hal", ["people"])
    told = problem_of(state("zoe", "bob", "carol", approvers_must_be_able=True, headers=limited), "validation")[
        "errors"
    ]
    assert [one["detail"] for one in told] == [
        f"expected a principal that can approve: {name} has no key that can approve" for name in ("zoe", "carol")
    ], "a limited key reads nothing of others' keys"
    assert pointers_of(state("bo  b", "carol ")) == ["/approvers/of/0", "/approvers/of/1"], "no key can have these"
    assert state("bob", "oidc:zoe", approvers_must_be_able=True).status_code == (201 if opens else 200)


def test_who_may_not_propose_approvers_is_told_of_no_keys(client: Client) -> None:
    open_account(client, approval_above="1", approvers={"at_least": 1, "of": ["bob", "first-steward"]})
    bob = operators_key(client, "approver", "bob", ["people"])
    change = {"approvers": {"at_least": 1, "of": ["bob", "zoe"]}, "approvers_must_be_able": True}
    problem_of(client.patch("/v1/accounts/people", json=change, headers=bob), "forbidden")
    proposed = {"approvers": change["approvers"]}
    assert client.patch("/v1/accounts/people", json=proposed).status_code == 202
    assert pointers_of(client.patch("/v1/accounts/people", json=change, headers=bob)) == ["/approvers/of/1"]
    json_of(client.patch("/v1/accounts/people", json=proposed, headers=bob))
