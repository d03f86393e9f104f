"""Accounts over HTTP: opening in all four definitions, reading, changing, closing, and their journals."""

import hashlib
import json
from fractions import Fraction
from itertools import chain
from typing import Any

import pytest

from tests.api.calls import (
    Client,
    bearer,
    charge,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    operators_key,
    pages_of,
    pointers_of,
    problem_of,
    pure,
    release,
)

_BUDGETS = [
    {"definition": "pure", "epsilon": "1.5"},
    {"definition": "pure", "epsilon": "1.5", "delta": "1e-9"},
    {"definition": "zcdp", "rho": "293764/114921"},
    {"definition": "zcdp", "rho": "2.56", "delta": "1e-12"},
    {"definition": "rdp", "alpha": "3.5", "epsilon": "3"},
    {"definition": "rdp", "alpha": "32", "epsilon": "3", "delta": "0.000001"},
    {"definition": "approximate", "epsilon": "2", "delta": "1e-10"},
    {"definition": "approximate", "epsilon": "2", "delta": "1e-10", "declared_delta": "1e-11"},
]


@pytest.mark.parametrize("budget", _BUDGETS, ids=str)
def test_an_account_opens_in_every_definition_and_reads_as_it_was_stated(client: Client, budget: Any) -> None:
    opened = open_account(client, budget=budget, description="everybody", parent=None, neighbouring="replace_one")
    assert opened["budget"] == budget
    assert opened["state"] == "open"
    assert opened["neighbouring"] == "replace_one"
    assert (opened["unit"], opened["description"], opened["parent"]) == ("person", "everybody", None)
    assert opened["head"]["seq"] == 1
    assert (opened["counted"], opened["counted_exact"]) == (0.0, "0")
    assert json_of(client.get("/v1/accounts/people")) == opened
    assert head_of(client) == opened["head"]


def test_a_key_that_may_open_no_account_is_told_so_before_the_faults_of_its_request(embedded: Client) -> None:
    pipeline = make_key(embedded, "pipeline", "weekly")
    problem_of(embedded.post("/v1/accounts", json={"unit": 1}, headers=pipeline), "forbidden")


def test_exact_numbers_mean_their_decimal_text(embedded: Client) -> None:
    body = '{"name": "a", "unit": "p", "neighbouring": "add_remove", "budget": {"definition": "pure", "epsilon": 0.10}}'
    answer = embedded.post("/v1/accounts", content=body, headers={"Content-Type": "application/json"})
    assert json_of(answer, 201)["budget"]["epsilon"] == "0.1"


def test_what_admission_counts_is_exact_where_it_is_short(embedded: Client) -> None:
    """The remainder is rounded down, so it cannot show a tiny spending; the exact figure can."""
    open_account(embedded, budget={"definition": "zcdp", "rho": "2.56"})
    assert json_of(embedded.get("/v1/accounts/people"))["remaining"]["rho"] < 2.56
    release(embedded, concentrated("0.1"))
    release(embedded, concentrated("1/3"), reserve_for="P1D")
    found = json_of(embedded.get("/v1/accounts/people"))
    assert Fraction(found["counted_exact"]) == Fraction("0.1") + Fraction(1, 3) <= Fraction(repr(found["counted"]))


def test_an_approximate_account_shows_its_orders_and_weights(embedded: Client) -> None:
    admission = open_account(embedded, budget={"definition": "approximate", "epsilon": 1, "delta": "1e-10"})[
        "admission"
    ]
    assert len(admission["orders"]) == len(admission["weights"]) > 100
    assert open_account(embedded, "other")["admission"] is None


def test_a_name_is_taken_once(client: Client) -> None:
    open_account(client)
    again = client.post(
        "/v1/accounts",
        json={
            "name": "people",
            "unit": "household",
            "neighbouring": "add_remove",
            "budget": {"definition": "pure", "epsilon": 1},
        },
    )
    assert "people" in problem_of(again, "conflict")["detail"]
    assert json_of(client.get("/v1/accounts/people"))["unit"] == "person"


@pytest.mark.parametrize("name", ["a", "x" * 100, "2020.p-l_94", "-", "_", "a..b", ".hidden"])
def test_names_of_the_allowed_characters(embedded: Client, name: str) -> None:
    open_account(embedded, name)
    assert json_of(embedded.get(f"/v1/accounts/{name}"))["name"] == name


@pytest.mark.parametrize("name", ["", "x" * 101, "A", "a b", "a/b", "é", "a\n", "..", ".", 7, None, "a\u0000"])
def test_other_names_are_refused(shared_client: Client, name: Any) -> None:
    body = {"name": name, "unit": "p", "neighbouring": "add_remove", "budget": {"definition": "pure", "epsilon": 1}}
    assert pointers_of(shared_client.post("/v1/accounts", json=body)) == ["/name"]


@pytest.mark.parametrize(
    ("budget", "pointer"),
    [
        ({"definition": "pure", "epsilon": 0}, "/budget/epsilon"),
        ({"definition": "pure", "epsilon": -1}, "/budget/epsilon"),
        ({"definition": "pure", "epsilon": "1e401"}, "/budget/epsilon"),
        ({"definition": "zcdp", "rho": "1e309"}, "/budget/rho"),
        ({"definition": "zcdp", "rho": "1.7976931348623158e308"}, "/budget/rho"),
        ({"definition": "pure", "epsilon": 2**1024}, "/budget/epsilon"),
        ({"definition": "pure", "epsilon": True}, "/budget/epsilon"),
        ({"definition": "pure", "epsilon": None}, "/budget/epsilon"),
        ({"definition": "pure", "epsilon": 1, "delta": 1}, "/budget/delta"),
        ({"definition": "pure", "epsilon": 1, "delta": "-1e-9"}, "/budget/delta"),
        ({"definition": "pure", "rho": 1}, "/budget/epsilon"),
        ({"definition": "zcdp", "rho": "0/1"}, "/budget/rho"),
        ({"definition": "zcdp", "rho": "1/0"}, "/budget/rho"),
        ({"definition": "rdp", "epsilon": 1}, "/budget/alpha"),
        ({"definition": "rdp", "epsilon": 1, "alpha": 1}, "/budget/alpha"),
        ({"definition": "approximate", "epsilon": 1}, "/budget/delta"),
        ({"definition": "approximate", "epsilon": 1, "delta": 0}, "/budget/delta"),
        ({"definition": "approximate", "epsilon": 1, "delta": "1e-6", "declared_delta": 1}, "/budget/declared_delta"),
        ({"definition": "approximate", "epsilon": 1, "delta": "1e-6", "declared_delta": -1}, "/budget/declared_delta"),
        ({"definition": "tight", "epsilon": 1}, "/budget/definition"),
        ({"epsilon": 1}, "/budget"),
        ({"definition": "zcdp", "rho": 1, "epsilon": 1}, "/budget/epsilon"),
        ([], "/budget"),
        (None, "/budget"),
    ],
)  # fmt: skip
def test_budgets_without_a_meaning_are_refused(shared_client: Client, budget: Any, pointer: str) -> None:
    body = {"name": "refused", "unit": "p", "neighbouring": "add_remove", "budget": budget}
    assert pointer in pointers_of(shared_client.post("/v1/accounts", json=body))
    problem_of(shared_client.get("/v1/accounts/refused"), "not_found")


def test_every_thing_that_is_wrong_is_named(shared_client: Client) -> None:
    body = {"unit": "", "neighbouring": "both", "budget": {"definition": "pure"}, "bugdet": 1, "description": 5}
    pointers = pointers_of(shared_client.post("/v1/accounts", json=body))
    assert sorted(pointers) == ["/budget/epsilon", "/bugdet", "/description", "/name", "/neighbouring", "/unit"]


def test_lists_page_by_name_without_gaps_or_repetitions(client: Client) -> None:
    names = sorted(f"account-{number}" for number in range(7))
    for name in reversed(names):
        open_account(client, name)
    pages = pages_of(client, "/v1/accounts", limit=3)
    assert [account["name"] for page in pages for account in page] == names
    assert json_of(client.get("/v1/accounts"))["next_cursor"] is None


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=%21", "cursor=AA", "limit=1&limit=2"])
def test_pages_that_make_no_sense_are_refused(shared_client: Client, query: str) -> None:
    assert pointers_of(shared_client.get(f"/v1/accounts?{query}")) == [f"/query/{query.partition('=')[0]}"]


def test_a_budget_is_raised_and_lowered_to_what_is_spent(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.6"))
    raised = json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": "3"}}))
    assert (raised["budget"]["rho"], raised["head"]["seq"]) == ("3", 3)
    release(client, concentrated(2))
    exactly = {"budget": {"definition": "zcdp", "rho": "2.6"}}
    assert json_of(client.patch("/v1/accounts/people", json=exactly))["budget"]["rho"] == "2.6"
    balance = json_of(client.get("/v1/accounts/people/balance"))
    assert balance["remaining"] == {"definition": "zcdp", "rho": 0.0}


def test_a_budget_below_what_is_spent_is_refused(client: Client) -> None:
    open_account(client)
    release(client, concentrated("0.6"))
    lower = {"budget": {"definition": "zcdp", "rho": "0.5999999999999999999"}}
    problem = problem_of(client.patch("/v1/accounts/people", json=lower), "budget_exceeded")
    assert (problem["account"], problem["definition"], problem["pointer"]) == ("people", "zcdp", "/budget")
    assert problem["title"] == "The new budget is below what is spent"
    assert problem["detail"] == (
        "the new zcdp cap of account 'people' on rho would be 0.5999999999999999999, below what is spent and held: 0.6"
    )
    assert json_of(client.get("/v1/accounts/people"))["budget"]["rho"] == "1"


def test_a_cap_on_deltas_below_what_is_declared_is_refused(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "pure", "epsilon": 1, "delta": "1e-6"})
    release(embedded, {"type": "declared", "epsilon": "0.1", "delta": "1e-7", "reference": "a proof"})
    lower = {"budget": {"definition": "pure", "epsilon": 1, "delta": "9e-8"}}
    problem = problem_of(embedded.patch("/v1/accounts/people", json=lower), "budget_exceeded")
    assert (problem["cap"], problem["requested"], problem["remaining"]) == (
        "delta",
        pytest.approx(1e-7),
        pytest.approx(9e-8),
    )
    exactly = {"budget": {"definition": "pure", "epsilon": 1, "delta": "1e-7"}}
    assert json_of(embedded.patch("/v1/accounts/people", json=exactly))["budget"]["delta"] == "0.0000001"


@pytest.mark.parametrize(
    ("opened", "changed", "pointer"),
    [
        (_BUDGETS[0], {"definition": "zcdp", "rho": 1}, "/budget/definition"),
        (_BUDGETS[4], {"definition": "rdp", "alpha": 4, "epsilon": 3}, "/budget/alpha"),
        (_BUDGETS[7], {"definition": "approximate", "epsilon": 2, "delta": "1e-10"}, "/budget/declared_delta"),
    ],
)
def test_only_figures_change(embedded: Client, opened: Any, changed: Any, pointer: str) -> None:
    open_account(embedded, budget=opened)
    assert pointers_of(embedded.patch("/v1/accounts/people", json={"budget": changed})) == [pointer]
    assert json_of(embedded.get("/v1/accounts/people"))["head"]["seq"] == 1


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, [""]),
        ({"state": "closed", "budget": {"definition": "zcdp", "rho": 1}}, [""]),
        ({"state": "shut"}, ["/state"]),
        ({"unit": "household"}, ["/unit"]),
    ],
)
def test_a_change_is_exactly_one_thing(embedded: Client, body: Any, pointers: list[str]) -> None:
    open_account(embedded)
    assert pointers_of(embedded.patch("/v1/accounts/people", json=body)) == pointers


def test_a_closed_account_takes_no_charge_until_it_is_opened(client: Client) -> None:
    open_account(client)
    assert json_of(client.patch("/v1/accounts/people", json={"state": "closed"}))["state"] == "closed"
    assert problem_of(charge(client, concentrated("0.1")), "account_closed")["account"] == "people"
    drawn = {"name": "x", "mechanism": pure("0.1"), "counts": [1]}
    problem_of(client.post("/v1/accounts/people/draws", json=drawn), "account_closed")
    json_of(client.patch("/v1/accounts/people", json={"state": "open"}))
    assert release(client, concentrated("0.25"))["remaining"]["rho"] == 0.75


def test_closing_twice_is_one_journal_entry(embedded: Client) -> None:
    open_account(embedded)
    once = json_of(embedded.patch("/v1/accounts/people", json={"state": "closed"}))
    assert json_of(embedded.patch("/v1/accounts/people", json={"state": "closed"})) == once
    assert once["head"]["seq"] == 2


@pytest.mark.parametrize(
    "query", ["after=-1", "after=1.5", "after=NaN", "after=", f"after={2**53 + 1}", "after=1&after=2"]
)
def test_a_place_in_the_journal_that_is_none_is_refused(client: Client, query: str) -> None:
    open_account(client)
    assert pointers_of(client.get(f"/v1/accounts/people/journal?{query}")) == ["/query/after"]


def test_a_page_of_the_journal_follows_a_cursor_or_a_number(client: Client) -> None:
    open_account(client)
    release(client, pure("1"))
    cursor = json_of(client.get("/v1/accounts/people/journal?limit=1"))["next_cursor"]
    assert pointers_of(client.get(f"/v1/accounts/people/journal?after=1&cursor={cursor}")) == ["/query/after"]


def test_a_number_that_the_journal_has_not_reached_is_refused(client: Client) -> None:
    """A reader who keeps only numbers would wait for ever for a restored ledger."""
    open_account(client)
    for after in (2, 2**53):
        refused = problem_of(client.get(f"/v1/accounts/people/journal?after={after}"), "ledger_rolled_back")
        assert refused["account"] == "people"
        assert refused["detail"].endswith(
            "does not contain the entry that the request goes on after: its last one is 1"
        )


def test_the_journal_can_be_verified_by_whoever_reads_it(client: Client) -> None:
    """The rule is SHA-256 of the previous hash and the entry in RFC 8785's form.

    All texts here are ASCII and all numbers whole; for these, sorted names and no spaces are that form.
    """
    open_account(client)
    release(client, {"type": "sequence", "parts": [concentrated("0.1", name="one"), pure("1/7", tags=["t"])]})
    json_of(client.patch("/v1/accounts/people", json={"budget": {"definition": "zcdp", "rho": 2}}))
    drawn = {"name": "x", "mechanism": pure("0.1"), "counts": [1, 2]}
    last = json_of(client.post("/v1/accounts/people/draws", json=drawn), 201)["head"]
    json_of(client.patch("/v1/accounts/people", json={"state": "closed"}))

    entries = list(chain.from_iterable(pages_of(client, "/v1/accounts/people/journal", limit=2)))

    previous = "00" * 32
    for number, item in enumerate(entries, 1):
        assert item["previous"] == previous
        text = json.dumps(item["entry"], sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256(bytes.fromhex(previous) + text.encode()).hexdigest()
        assert item["hash"] == previous
        assert (item["entry"]["seq"], item["entry"]["account"]) == (number, "people")
    assert json_of(client.get("/v1/accounts/people/journal?after=0&limit=3"))["items"] == entries[:3]
    assert json_of(client.get("/v1/accounts/people/journal?after=4")) == {"items": entries[4:], "next_cursor": None}
    assert json_of(client.get("/v1/accounts/people/journal?after=6"))["items"] == []
    kinds = [item["entry"]["kind"] for item in entries]
    assert kinds == ["account_opened", "committed", "budget_changed", "committed", "drawn", "account_closed"]
    assert last == {"seq": 5, "hash": entries[4]["hash"]}
    assert head_of(client) == {"seq": 6, "hash": previous}
    assert {item["entry"]["actor"] for item in entries} == {"first-steward"}


def test_an_account_that_is_not_there(client: Client) -> None:
    for path in ("", "/balance", "/head", "/journal", "/releases", "/releases/x", "/draws/x", "/releases/x/draws"):
        problem_of(client.get(f"/v1/accounts/nobody{path}"), "not_found")
    problem_of(client.patch("/v1/accounts/nobody", json={"state": "closed"}), "not_found")
    problem_of(charge(client, concentrated(1), "nobody"), "not_found")


def test_a_limited_key_sees_its_accounts_only(client: Client) -> None:
    for name in ("a", "b", "c"):
        open_account(client, name)
    headers = make_key(client, "auditor", accounts=["c", "a", "z"])
    page = json_of(client.get("/v1/accounts?limit=1", headers=headers))
    assert [account["name"] for account in page["items"]] == ["a"]
    page = json_of(client.get(f"/v1/accounts?cursor={page['next_cursor']}", headers=headers))
    assert [account["name"] for account in page["items"]] == ["c"]


def test_a_greater_budget_waits_for_a_second_steward(client: Client) -> None:
    opened = open_account(client, approval_above="0.1")
    assert opened["proposed_change"] is None
    greater = {"budget": {"definition": "zcdp", "rho": 2}}
    ann = operators_key(client, "steward", "ann")
    waits = json_of(client.patch("/v1/accounts/people", json=greater, headers=ann), 202)
    assert waits["budget"]["rho"] == "1"
    proposed = waits["proposed_change"]
    assert (proposed["budget"], proposed["state"]) == ({"definition": "zcdp", "rho": "2"}, None)
    assert (proposed["seq"], proposed["proposed_by"]) == (2, "ann")
    assert json_of(client.get("/v1/accounts/people"))["proposed_change"] == proposed
    assert json_of(client.get("/v1/accounts"))["items"][0]["proposed_change"] == proposed
    made = client.post("/v1/keys", json={"name": "puppet", "role": "steward"}, headers=ann)
    puppet = bearer(json_of(made, 201)["key"])
    problem_of(client.patch("/v1/accounts/people", json=greater, headers=puppet), "forbidden")
    second = operators_key(client, "steward", "second")
    done = json_of(client.patch("/v1/accounts/people", json=greater, headers=second))
    assert (done["budget"]["rho"], done["proposed_change"]) == ("2", None)
    entries = [item["entry"] for item in json_of(client.get("/v1/accounts/people/journal"))["items"]]
    assert [entry["kind"] for entry in entries] == ["account_opened", "change_proposed", "budget_changed"]
    assert entries[-1]["content"] == {"budget": {"definition": "zcdp", "rho": "2"}, "proposal": 2}


@pytest.mark.parametrize("rho", ["0.0001", "0.01", "1/7", "0.03349499865315419499"])
def test_a_refused_budget_comes_back_as_it_was_stated(embedded: Client, rho: str) -> None:
    open_account(embedded)
    release(embedded, {"type": "discrete_gaussian", "sigma_squared": "2.9"})
    lower = {"budget": {"definition": "zcdp", "rho": rho}}
    detail = problem_of(embedded.patch("/v1/accounts/people", json=lower), "budget_exceeded")["detail"]
    assert detail == (
        f"the new zcdp cap of account 'people' on rho would be {rho}, below what is spent and held: 0.1725"
    )


def test_a_refused_release_is_told_in_figures_that_people_write(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "zcdp", "rho": "0.1"})
    problem = problem_of(
        embedded.post("/v1/accounts/people/releases", json={"name": "r", "plan": concentrated("0.29241131")}),
        "budget_exceeded",
    )
    assert problem["detail"] == ("account 'people' has 0.1 left of its zcdp cap on rho; the release needs 0.29241131")
    assert (problem["remaining"], problem["requested"]) == (0.09999999999999999, 0.29241131000000004)
