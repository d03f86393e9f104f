"""Allotted accounts over HTTP: opening, changing, refusals, and every answer that shows them."""

from typing import Any

import pytest

from tests.api.calls import Client, json_of, make_key, open_account, pointers_of, problem_of, release

ZCDP = {"definition": "zcdp", "rho": "1"}
SHARE = {"name": "share", "parent": "people", "funding": "allotted"}
PATH = "/v1/accounts/share"


def noise(rho: str) -> dict[str, Any]:
    return {"type": "discrete_gaussian", "rho": rho}


def _share(client: Client, rho: str = "0.4", **stated: Any) -> Any:
    return open_account(client, budget=ZCDP | {"rho": rho}, **SHARE | stated)


def _change(client: Client, body: dict[str, Any], name: str = "share", status: int = 200) -> Any:
    changed = client.patch(f"/v1/accounts/{name}", json=body)
    assert changed.status_code == status, changed.text
    return json_of(changed)


def test_answers_show_the_funding_and_the_parts_of_the_budget(client: Client) -> None:
    open_account(client, budget=ZCDP)
    share = _share(client)
    assert (share["funding"], share["parent"]) == ("allotted", "people")
    release(client, noise("0.25"), account="share")
    release(client, noise("0.1"))
    release(client, noise("0.05"), reserve_for="PT1H")
    people = json_of(client.get("/v1/accounts/people"))
    assert "funding" not in people
    assert people["allotted"] == {"accounts": 1, "counted": 0.4, "counted_exact": "0.4"}
    assert people["counted_exact"] == "0.55"
    balance = json_of(client.get("/v1/accounts/people/balance"))
    assert balance["allotted"] == {
        "accounts": 1,
        "spent": 0.1,
        "held": 0.05,
        "allotted": 0.4,
        "free": 0.44999999999999996,
    }
    assert balance["spent"]["zcdp"]["rho_exact"] == "0.5"  # the loss below can be anything up to the allotment
    assert balance["releases"] == 2
    at_opening = json_of(client.get("/v1/accounts/people/balance?as_of=2"))
    assert at_opening["allotted"] == {"accounts": 1, "spent": 0.0, "held": 0.0, "allotted": 0.4, "free": 0.6}
    assert [one["kind"] for one in json_of(client.get("/v1/accounts/people/history"))["points"]][:2] == [
        "account_opened",
        "allotted",
    ]
    own = json_of(client.get(f"{PATH}/balance"))
    assert "allotted" not in own
    assert own["remaining"]["rho"] == 0.15
    listed = json_of(client.get("/v1/accounts"))["items"]
    assert [one.get("funding") for one in listed] == [None, "allotted"]


def test_answers_of_shared_accounts_have_no_new_members(client: Client) -> None:
    stated = open_account(client, budget=ZCDP, funding="shared")
    assert {"funding", "allotted"}.isdisjoint(stated)
    assert "allotted" not in json_of(client.get("/v1/accounts/people/balance"))
    (entry,) = json_of(client.get("/v1/accounts/people/journal"))["items"]
    assert "funding" not in entry["entry"]["content"]


@pytest.mark.parametrize(
    ("stated", "pointers"),
    [
        ({"funding": "given"}, ["/funding"]),
        ({"funding": None}, ["/funding"]),
        ({"funding": 1}, ["/funding"]),
        ({"parent": None}, ["/funding"]),
        ({"parent": "nobody"}, ["/parent"]),
        ({"unit": "household"}, ["/parent"]),
        ({"neighbouring": "replace_one"}, ["/parent"]),
        ({"budget": {"definition": "zcdp", "rho": "-1"}}, ["/budget/rho"]),
        ({"budget": {"definition": "zcdp", "rho": "0"}}, ["/budget/rho"]),
        ({"budget": {"definition": "zcdp", "rho": "NaN"}}, ["/budget/rho"]),
        ({"budget": {"definition": "zcdp", "rho": "Infinity"}}, ["/budget/rho"]),
        ({"budget": {"definition": "rdp", "alpha": "3", "epsilon": "0.1"}}, ["/budget/definition"]),
        ({"periods": {"calendar": "month", "participation": {"offsets": [0]}}}, ["/periods"]),
        ({"allotment": "1"}, ["/allotment"]),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(client: Client, stated: Any, pointers: list[str]) -> None:
    open_account(client, budget=ZCDP)
    base = {"unit": "person", "neighbouring": "add_remove", "budget": ZCDP | {"rho": "0.4"}}
    refused = client.post("/v1/accounts", json=base | SHARE | stated)
    assert pointers_of(refused) == pointers
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] == 1
    assert client.get(PATH).status_code == 404


@pytest.mark.parametrize("rho", ["1.0000000001", "1e300"])
def test_an_allotment_above_what_the_parent_has_is_a_problem(client: Client, rho: str) -> None:
    open_account(client, budget=ZCDP)
    base = {"unit": "person", "neighbouring": "add_remove", "budget": ZCDP | {"rho": rho}}
    problem = problem_of(client.post("/v1/accounts", json=base | SHARE), "budget_exceeded")
    assert (problem["pointer"], problem["account"], problem["cap"]) == ("/budget", "people", "rho")
    assert (problem["requested"], problem["remaining"]) == (float(rho), 1.0)
    assert problem["title"] == "The allotment exceeds the budget"
    assert problem["detail"].endswith(f"; the allotment needs {rho}")
    assert json_of(client.get("/v1/accounts/people/head"))["seq"] == 1
    assert client.get(PATH).status_code == 404


def test_a_budget_is_raised_lowered_closed_and_opened(client: Client) -> None:
    open_account(client, budget=ZCDP)
    _share(client)
    release(client, noise("0.25"), account="share")
    _change(client, {"budget": ZCDP | {"rho": "0.9"}})
    problem = problem_of(client.patch(PATH, json={"budget": ZCDP | {"rho": "1.1"}}), "budget_exceeded")
    assert (problem["account"], problem["requested"], problem["remaining"]) == ("people", 1.1, 1.0)
    problem_of(client.patch(PATH, json={"budget": ZCDP | {"rho": "0.2"}}), "budget_exceeded")
    _change(client, {"budget": ZCDP | {"rho": "0.3"}})
    _change(client, {"state": "closed"})
    assert json_of(client.get("/v1/accounts/people"))["allotted"]["counted_exact"] == "0.25"
    release(client, noise("0.75"))
    problem = problem_of(client.patch(PATH, json={"state": "open"}), "budget_exceeded")
    assert (problem["pointer"], problem["account"]) == ("/state", "people")
    assert problem["title"] == "The allotment exceeds the budget"
    _change(client, {"budget": ZCDP | {"rho": "0.25"}})
    assert _change(client, {"state": "open"})["state"] == "open"
    for name in ("people", "share"):
        assert json_of(client.get(f"/v1/accounts/{name}/verify"))["valid"]


def test_raising_an_allotment_takes_keys_that_reach_every_charged_account_that_asks_for_approval(
    client: Client,
) -> None:
    """Two stewards could otherwise charge an account above with more than either of them may approve there."""
    open_account(client, "agency", ZCDP, approval_above="0.1")
    open_account(client, "people", ZCDP, parent="agency")
    _share(client, "0.05")
    raised = {"budget": ZCDP | {"rho": "0.5"}}
    below = [make_key(client, "steward", who, accounts=["people", "share"]) for who in ("ann", "bob")]
    for key in below:
        problem = problem_of(client.patch(PATH, json=raised, headers=key), "forbidden")
        assert "agency" not in problem["detail"]
    lowered = client.patch(PATH, json={"budget": ZCDP | {"rho": "0.04"}}, headers=below[0])
    assert lowered.status_code == 200
    whole = [make_key(client, "steward", who, accounts=["agency", "people", "share"]) for who in ("eve", "dan")]
    assert client.patch(PATH, json=raised, headers=whole[0]).status_code == 202


def test_a_key_of_the_share_learns_nothing_of_the_room_above(client: Client) -> None:
    open_account(client, budget=ZCDP)
    _share(client)
    limited = make_key(client, "steward", accounts=["share"])
    bodies = [client.patch(PATH, json={"budget": ZCDP | {"rho": rho}}, headers=limited) for rho in ("0.5", "50")]
    assert len({problem_of(answer, "forbidden")["detail"] for answer in bodies}) == 1
    dry = client.post(f"{PATH}/releases?dry_run=true", json={"name": "r", "plan": noise("0.5")}, headers=limited)
    problem = problem_of(dry, "budget_exceeded")
    assert ([one["account"] for one in problem["failures"]], problem["title"]) == (
        ["share"],
        "The release exceeds the budget",
    )
    counted = json_of(client.post(f"{PATH}/capacity", json={"plan": noise("0.1")}, headers=limited))
    assert (counted["fits"], counted["stopped_by"]["account"]) == (4, "share")
    _change(client, {"budget": ZCDP | {"rho": "0.3"}})
    lowered = client.patch(PATH, json={"budget": ZCDP | {"rho": "0.2"}}, headers=limited)
    assert lowered.status_code == 200
