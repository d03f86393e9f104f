"""Opening accounts and changing their caps by forms: each fault of the contract is shown at its field."""

from typing import Any

import pytest

from service.pages.budget_form import budget_of, field_of, fields_of, unused_figures
from tests.api.calls import Answer, Client, json_of, make_key, open_account, pure, release
from tests.pages.forms import Form, form_of, signed_in
from tests.pages.visits import hidden, submit

_BUDGETS = [
    {"definition": "zcdp", "rho": "1/3"},
    {"definition": "zcdp", "rho": "2", "delta": "0.001"},
    {"definition": "pure", "epsilon": "1"},
    {"definition": "rdp", "alpha": "8", "epsilon": "2"},
    {"definition": "approximate", "epsilon": "4", "delta": "0.000001"},
    {"definition": "approximate", "epsilon": "4", "delta": "0.000001", "declared_delta": "1e-9"},
]


def _opened(client: Client, **typed: str) -> Answer:
    form = form_of(client.get("/new-account"), "/new-account")
    return client.post("/new-account", data=form.with_texts({"name": "fresh", "cap": "1"} | typed))


@pytest.mark.parametrize("budget", _BUDGETS)
def test_a_budget_goes_through_the_form_and_back(steward: Client, api: Client, budget: dict[str, str]) -> None:
    typed = fields_of(budget)
    assert (budget_of(typed), unused_figures(typed)) == (budget, {})
    answer = _opened(steward, **typed)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/accounts/fresh?done=opened")
    stored = json_of(api.get("/v1/accounts/fresh"))["budget"]
    assert {name: stored[name] for name in budget} == budget
    assert fields_of(stored) == typed
    assert "The account was opened." in steward.get(answer.headers["Location"]).text
    same = form_of(steward.get("/accounts/fresh"), "/accounts/fresh/budget")
    assert steward.post("/accounts/fresh/budget", data=same.fields).status_code == 303
    assert json_of(api.get("/v1/accounts/fresh"))["budget"] == stored


def test_an_account_is_opened_under_another_and_found_there(steward: Client, api: Client) -> None:
    form = form_of(steward.get("/new-account?parent=nation"), "/new-account")
    typed = {"name": "region", "cap": "0.1", "description": "One\r\nregion", "approval_above": "0.05"}
    first, again = (steward.post("/new-account", data=form.with_texts(typed)) for _ in range(2))
    assert [answer.headers["Location"] for answer in (first, again)] == ["/accounts/region?done=opened"] * 2
    made = json_of(api.get("/v1/accounts/region"))
    assert (made["parent"], made["approval_above"], made["unit"]) == ("nation", "0.05", "person")
    shown = steward.get("/accounts/nation").text.partition("Accounts under it")[2]
    assert '<a href="/accounts/persons">' in shown
    assert '<a href="/accounts/region">' in shown
    under = steward.get("/?parent=nation").text
    assert ('href="/accounts/region"' in under, 'href="/accounts/empty"' in under) == (True, False)


@pytest.mark.parametrize(
    ("typed", "fault"),
    [
        ({"name": "Not A Name"}, "name"),
        ({"name": ""}, "name"),
        ({"unit": ""}, "unit"),
        ({"unit": "x" * 201}, "unit"),
        ({"neighbouring": "none"}, "neighbouring"),
        ({"definition": "gdp"}, "definition"),
        ({"cap": ""}, "cap"),
        ({"cap": "-1"}, "cap"),
        ({"cap": "0"}, "cap"),
        ({"cap": "nan"}, "cap"),
        ({"cap": "1e999"}, "cap"),
        ({"definition": "approximate", "delta": ""}, "delta"),
        ({"definition": "approximate", "delta": "2"}, "delta"),
        ({"definition": "rdp", "alpha": "1"}, "alpha"),
        ({"definition": "pure", "delta": "0.000001"}, "delta"),
        ({"definition": "zcdp", "alpha": "2"}, "alpha"),
        ({"declared": "-1"}, "declared"),
        ({"parent": "nobody"}, "parent"),
        ({"parent": "households"}, "parent"),
        ({"approval_above": "-1"}, "approval_above"),
        ({"description": "x" * 4001}, "description"),
    ],
)
def test_what_cannot_be_opened_says_where_and_keeps_what_was_typed(
    steward: Client, api: Client, typed: dict[str, str], fault: str
) -> None:
    answer = _opened(steward, **({"description": "kept <b>"} | typed))
    assert (answer.status_code, f'id="{fault}-fault"' in answer.text) == (422, True), answer.text
    assert "description" in typed or "kept &lt;b&gt;" in answer.text
    assert api.get("/v1/accounts/fresh").status_code == 404


def test_a_name_that_is_taken_and_a_closed_parent(steward: Client, api: Client) -> None:
    assert _opened(steward, name="persons").status_code == 409
    json_of(api.patch("/v1/accounts/nation", json={"state": "closed"}))
    assert _opened(steward, parent="nation").status_code == 409


def test_caps_change_within_what_is_spent(steward: Client, api: Client) -> None:
    page = "/accounts/nation"
    asked = submit(steward, page, f"{page}/budget", cap="2.5", declared="")
    assert (asked.status_code, json_of(api.get(f"/v1{page}"))["budget"]["rho"]) == (422, "2")
    growth = "ρ from 2 to 2.5, 1.25 times as large"
    assert f"Nothing was changed yet. The budget would be greater: {growth}." in asked.text
    assert hidden(asked.text, "greater") == growth
    for other in ({"cap": "25"}, {"greater": ""}, {"reason": ""}):  # what was not ticked, or has no reason
        fields = {"cap": "2.5", "declared": "", "greater": growth, "reason": "a new survey"} | other
        refused = submit(steward, page, f"{page}/budget", **fields)
        assert (refused.status_code, 'id="budget-reason-fault"' in refused.text) == (422, "reason" in other)
        assert json_of(api.get(f"/v1{page}"))["budget"]["rho"] == "2"
    answer = submit(steward, page, f"{page}/budget", cap="2.5", declared="", greater=growth, reason="a new survey")
    assert answer.headers["Location"] == f"{page}?done=changed"
    assert "is an entry of the journal" in steward.get(answer.headers["Location"]).text
    assert json_of(api.get(f"/v1{page}"))["budget"]["rho"] == "2.5"
    low = submit(steward, page, f"{page}/budget", cap="0.000001", declared="")
    assert (low.status_code, 'value="0.000001"' in low.text) == (409, True)
    assert "The new budget is below what is spent" in low.text
    assert '<a href="#cap">Budget, ρ</a>: The new ρ budget of nation is below what is spent and held, ' in low.text
    assert low.text.count("is below what is spent and held") == 2  # in the summary, and at the field
    wrong = submit(steward, page, f"{page}/budget", cap="much", declared="")
    assert (wrong.status_code, 'id="cap-fault"' in wrong.text) == (422, True)
    assert json_of(api.get(f"/v1{page}"))["budget"]["rho"] == "2.5"


def test_approval_is_asked_for_sooner_and_not_later(steward: Client, api: Client) -> None:
    page = "/accounts/persons"
    assert submit(steward, page, f"{page}/approval", approval_above="0.1").status_code == 303
    assert json_of(api.get(f"/v1{page}"))["approval_above"] == "0.1"
    later = submit(steward, page, f"{page}/approval", approval_above="0.15")
    assert (later.status_code, "can only be lowered" in later.text) == (409, True)
    empty = submit(steward, page, f"{page}/approval", approval_above="")
    assert (empty.status_code, 'id="approval_above-fault"' in empty.text) == (422, True)


@pytest.mark.parametrize("role", ["auditor", "pipeline"])
def test_only_stewards_open_accounts_and_change_caps(api: Client, role: str) -> None:
    somebody = signed_in(api, make_key(api, role, role)["Authorization"].removeprefix("Bearer "))  # type: ignore[arg-type]
    assert "/new-account" not in somebody.get("/").text
    shown = somebody.get("/new-account")
    assert ("takes a key with the role steward" in shown.text, "<fieldset>" in shown.text) == (True, False)
    assert "/accounts/persons/budget" not in somebody.get("/accounts/persons").text
    sent = {"csrf": Form(shown.text, "/sign-out").fields["csrf"], "once": "o"}
    typed: dict[str, Any] = {"name": "fresh", "unit": "person", "neighbouring": "add_remove", "definition": "zcdp"}
    assert somebody.post("/new-account", data=sent | typed | {"cap": "1"}).status_code == 403
    assert somebody.post("/accounts/persons/budget", data=sent | {"cap": "9"}).status_code == 403
    assert somebody.post("/accounts/persons/approval", data=sent | {"approval_above": "0.01"}).status_code == 403


@pytest.mark.parametrize("unit", ["😀" * 200, "شخص", "<script>alert(1)</script>", '{"a": [1]}', "x" * 200])
def test_words_of_any_kind_are_words(steward: Client, api: Client, unit: str) -> None:
    assert _opened(steward, unit=unit, cap="1e-300").status_code == 303
    made = release(api, pure("0.1"), "empty", name=unit, tags=[unit])
    shown = steward.get("/accounts/fresh")
    assert (shown.status_code, "<script>alert" in shown.text) == (200, False)
    assert "<strong>0 %</strong> spent" in shown.text
    assert json_of(api.get("/v1/accounts/fresh"))["unit"] == unit
    for page in ("", "/releases", "/tags", "/journal", f"/releases/{made['id']}"):
        shown = steward.get(f"/accounts/empty{page}")
        assert (shown.status_code, "<script>alert" in shown.text) == (200, False)


@pytest.mark.parametrize(
    ("definition", "pointer", "field"),
    [
        ("zcdp", "/budget/rho", "cap"),
        ("zcdp", "/budget/delta", "declared"),
        ("approximate", "/budget/delta", "delta"),
        ("approximate", "/budget/declared_delta", "declared"),
        ("x", "/budget/definition", "definition"),
        ("pure", "/name", "name"),
        ("pure", "", ""),
    ],
)
def test_where_a_fault_is_shown(definition: str, pointer: str, field: str) -> None:
    assert field_of(definition, pointer) == field


def test_accounts_of_one_parent_are_listed(api: Client) -> None:
    open_account(api, "zz", parent="persons")
    listed = json_of(api.get("/v1/accounts?parent=nation"))["items"]
    assert [account["name"] for account in listed] == ["persons"]
    assert [one["name"] for one in json_of(api.get("/v1/accounts?parent=persons&limit=1"))["items"]] == ["zz"]
    assert json_of(api.get("/v1/accounts?parent=nobody")) == {"items": [], "next_cursor": None}
    limited = make_key(api, "auditor", "limited", accounts=["nation"])
    assert json_of(api.get("/v1/accounts?parent=nation", headers=limited))["items"] == []
    assert api.get("/v1/accounts?parent=NO").status_code == 422
