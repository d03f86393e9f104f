"""The charge of a release in the definition of its account's budget, where an answer is asked for it."""

from typing import Any

import pytest

from tests.api.calls import Client, concentrated, json_of, open_account, pointers_of, pure, release

_BUDGETS: dict[str, dict[str, str]] = {
    "pure": {"definition": "pure", "epsilon": "2"},
    "zcdp": {"definition": "zcdp", "rho": "0.5"},
    "rdp": {"definition": "rdp", "alpha": "7/3", "epsilon": "2"},
    "approximate": {"definition": "approximate", "epsilon": "2", "delta": "1e-6"},
}


def _charge(client: Client, done: Any, account: str = "people") -> Any:
    return json_of(client.get(f"/v1/accounts/{account}/releases/{done['id']}?with_charge=true"))["charge"]


@pytest.mark.parametrize("definition", _BUDGETS)
def test_a_charge_is_in_its_budgets_definition_with_its_part(embedded: Client, definition: str) -> None:
    open_account(embedded, budget=_BUDGETS[definition])
    done = release(embedded, pure("0.25"))
    charge = _charge(embedded, done)
    assert charge["definition"] == definition
    capacity = json_of(embedded.post("/v1/accounts/people/capacity", json={"plan": pure("0.25")}))
    assert charge["share"] == capacity["share"]
    counted = json_of(embedded.get("/v1/accounts/people?with_gauge=true"))
    assert charge["share"] == counted["gauge"]["used"]
    match definition:
        case "pure":
            assert (charge["epsilon"], charge["epsilon_exact"]) == (0.25, "0.25")
        case "zcdp":
            assert charge["rho"] == counted["counted"] >= done["cost"]["zcdp"]["rho"]
        case "rdp":
            assert (charge["alpha"], charge["epsilon"]) == (2.333333333333333, counted["counted"])
        case _:
            assert (charge["epsilon"], charge["delta"]) == (done["cost"]["best"][0]["adaptive"]["epsilon"], 1e-6)


def test_a_release_with_a_delta_of_its_own_is_charged_at_that(embedded: Client) -> None:
    open_account(embedded, budget=_BUDGETS["approximate"])
    done = release(embedded, concentrated("0.001"), delta="1e-8")
    charge = _charge(embedded, done)
    assert (charge["delta"], charge["epsilon"]) == (1e-8, done["cost"]["best"][0]["adaptive"]["epsilon"])


def test_an_infinite_loss_is_null(embedded: Client) -> None:
    open_account(embedded, budget={"definition": "zcdp", "rho": "1", "delta": "1e-9"})
    declared = {"type": "declared", "rho": "0.1", "delta": "5e-10", "reference": "a proof"}
    done = release(embedded, declared)
    assert _charge(embedded, done) == {"definition": "zcdp", "rho": 0.1, "rho_exact": "0.1", "share": 0.5}


def test_lists_have_charges_where_they_are_asked_for(embedded: Client) -> None:
    open_account(embedded, budget=_BUDGETS["pure"])
    for epsilon in ("0.25", "0.5"):
        release(embedded, pure(epsilon))
    (plain, _), (first, second) = (
        json_of(embedded.get(f"/v1/accounts/people/releases{query}"))["items"] for query in ("", "?with_charge=true")
    )
    assert "charge" not in plain
    assert [one["charge"]["share"] for one in (first, second)] == [0.125, 0.25]
    assert {name: value for name, value in first.items() if name != "charge"} == plain


def test_a_list_leaves_out_the_charge_of_a_large_plan(embedded: Client) -> None:
    open_account(embedded, budget=_BUDGETS["pure"])
    parts = [pure(f"{number}e-9", name=f"p{number}") for number in range(1, 1002)]
    done = release(embedded, {"type": "sequence", "parts": parts})
    (listed,) = json_of(embedded.get("/v1/accounts/people/releases?with_charge=true"))["items"]
    assert "charge" not in listed
    assert _charge(embedded, done)["epsilon_exact"] == "0.000501501"


def test_what_is_no_truth_value_is_refused(shared_client: Client) -> None:
    assert pointers_of(shared_client.get("/v1/accounts/nobody/releases?with_charge=maybe")) == ["/query/with_charge"]
