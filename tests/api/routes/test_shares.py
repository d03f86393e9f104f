"""The shares of a spent loss: each part is in one, and they add up wherever losses do."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import (
    Client,
    concentrated,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_ZCDP = {"definition": "zcdp", "rho": "10"}
_BUDGETS = [
    _ZCDP,
    {"definition": "pure", "epsilon": "10"},
    {"definition": "rdp", "alpha": "8", "epsilon": "40"},
    {"definition": "approximate", "epsilon": "10", "delta": "1e-6"},
]
_PLAN = {
    "type": "sequence",
    "parts": [
        pure("0.5", tags=["age"]),
        {"type": "parallel", "max_degree": 2, "parts": [pure("0.2", tags=["sex"]), concentrated("0.01")]},
        {"type": "repeat", "count": 3, "part": pure("0.1", tags=["age", "sex"])},
        pure("0.25"),
    ],
}


def _shares(client: Client, by: str, account: str = "people", **query: str) -> Any:
    return json_of(client.get(f"/v1/accounts/{account}/shares", params={"by": by} | query))


def _parts(body: Any) -> dict[tuple[str, ...], Any]:
    return {tuple(part["names"]): part["spent"] for part in body["parts"]}


def test_the_shares_by_tag_and_by_mechanism_are_those_of_the_plan(client: Client) -> None:
    """By hand: pure loss is epsilon, and a pure epsilon is rho = epsilon^2 / 2."""
    plan = {"type": "sequence", "parts": [part for part in _PLAN["parts"] if part["type"] != "parallel"]}  # type: ignore[index]
    open_account(client, budget=_BUDGETS[1])
    release(client, plan)
    release(client, pure("0.75", tags=["age"]), reserve_for="P1D")  # held, and not spent
    tags = _shares(client, "tag")
    assert _parts(tags) == pytest.approx({("age",): 0.5, ("age", "sex"): 0.3, (): 0.25})
    assert (tags["spent_exact"], tags["adds_up"], tags["rest"]) == ("1.05", True, None)
    assert [part["share"] for part in tags["parts"]] == pytest.approx([0.5 / 1.05, 0.3 / 1.05, 0.25 / 1.05])
    assert _parts(_shares(client, "mechanism")) == {("geometric",): 1.05}


@pytest.mark.parametrize("budget", _BUDGETS, ids=lambda budget: str(budget["definition"]))
@pytest.mark.parametrize("by", ["account", "tag", "mechanism"])
def test_the_shares_are_a_partition_of_what_the_history_says(client: Client, budget: Any, by: str) -> None:
    plan = _PLAN if budget["definition"] != "pure" else _PLAN["parts"][0]
    open_account(client, budget=budget)
    open_account(client, "child", budget, parent="people")
    open_account(client, "grandchild", _BUDGETS[0], parent="child")
    for account in ("people", "child", "grandchild"):
        release(client, plan, account)
    release(client, plan, "child", reserve_for="P1D")
    spent = json_of(client.get("/v1/accounts/people/history"))["points"][-1]["spent"]
    body = _shares(client, by)
    assert body["spent"] == pytest.approx(spent, rel=1e-12)
    assert body["adds_up"] == (budget["definition"] != "approximate")
    if body["adds_up"]:
        assert sum(part["spent"] for part in body["parts"]) == pytest.approx(spent, rel=1e-12)
        assert sum(part["share"] for part in body["parts"]) == pytest.approx(1)
    else:
        assert len(body["parts"]) == 1 or sum(part["spent"] for part in body["parts"]) > spent
        assert {part["share"] for part in body["parts"]} == {None}
    if by == "account":
        assert [part["names"] for part in body["parts"]] == [["child"], []]


def test_an_epsilon_of_a_part_is_that_of_an_account_with_this_part_alone(client: Client) -> None:
    budget = _BUDGETS[3]
    open_account(client, budget=budget)
    open_account(client, "child", budget, parent="people")
    open_account(client, "alone", budget)
    release(client, _PLAN, "people")
    release(client, concentrated("0.1"), "child")
    release(client, concentrated("0.1"), "alone")
    alone = json_of(client.get("/v1/accounts/alone/history"))["points"][-1]["spent"]
    assert _parts(_shares(client, "account"))["child",] == alone


def test_mechanisms_that_run_in_parallel_are_one_part(client: Client) -> None:
    open_account(client)
    release(client, _PLAN)
    parts = _parts(_shares(client, "mechanism"))
    assert parts.keys() == {("geometric",), ("gaussian", "geometric")}
    assert ("sex",) in _parts(_shares(client, "tag"))


def test_allotments_are_parts_of_their_own(client: Client) -> None:
    open_account(client, budget=_ZCDP)
    open_account(client, "unit", _ZCDP, parent="people")
    open_account(client, "allotted", {"definition": "zcdp", "rho": "2"}, parent="people", funding="allotted")
    open_account(client, "below", {"definition": "zcdp", "rho": "3"}, parent="unit", funding="allotted")
    release(client, concentrated("0.5"), "allotted")  # charges nothing above
    release(client, concentrated("0.5"), "unit")
    body = _shares(client, "account")
    assert [(part["names"], part["allotted"], part["spent"]) for part in body["parts"]] == [
        (["unit"], False, 3.5),
        (["allotted"], True, 2.0),
    ]
    assert body["spent"] == 5.5
    for by in ("tag", "mechanism"):
        parts = _shares(client, by)["parts"]
        assert (parts[0]["names"], parts[0]["allotted"], parts[0]["spent"]) == ([], True, 5.0)


def test_the_greatest_parts_are_stated_and_the_others_together(client: Client) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": "10"})
    plan = {"type": "sequence", "parts": [pure(f"0.0{number}", tags=[f"t{number}"]) for number in range(10, 40)]}
    release(client, plan)
    body = _shares(client, "tag")
    assert [part["names"] for part in body["parts"]] == [[f"t{number}"] for number in range(39, 19, -1)]
    assert body["rest"]["number"] == 10
    assert Fraction(body["rest"]["spent_exact"]) == sum(Fraction(f"0.0{number}") for number in range(10, 20))
    assert not body["rest"]["with_own"]


def test_of_many_accounts_those_with_the_most_releases_are_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.spending.shares.MOST_READ", 2)
    open_account(client, budget=_ZCDP)
    for number, name in enumerate(("a", "b", "c"), 1):
        open_account(client, name, _ZCDP, parent="people")
        for _ in range(number):
            release(client, concentrated("0.125"), name)
    release(client, concentrated("0.5"))
    body = _shares(client, "account")
    assert _parts(body) == {("c",): 0.375, ("b",): 0.25}
    assert body["rest"] == {"number": 1, "with_own": True, "spent": 0.625, "spent_exact": "0.625", "share": 0.5}
    assert body["spent"] == 1.25


def test_the_rows_that_are_read_are_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ledger.spending.shares._MOST_ROWS", 0)
    open_account(client, budget=_ZCDP)
    for name in ("a", "b"):
        open_account(client, name, _ZCDP, parent="people")
        release(client, concentrated("0.125"), name)
    body = _shares(client, "account")
    assert _parts(body) == {("a",): 0.125}
    assert (body["rest"]["number"], body["rest"]["spent"]) == (1, 0.125)


def test_an_empty_account_has_no_parts(client: Client) -> None:
    open_account(client)
    for by in ("account", "tag", "mechanism"):
        body = _shares(client, by, with_picture="true")
        assert (body["parts"], body["rest"], body["spent"]) == ([], None, 0)
        assert "Nothing is spent" in body["picture"]


def test_tables_and_pictures_say_the_same(client: Client) -> None:
    open_account(client, budget=_BUDGETS[1])
    release(client, pure("0.75", tags=["<age>"]))
    release(client, pure("0.25"))
    address = "/v1/accounts/people/shares?by=tag"
    table = client.get(address, headers={"Accept": "text/csv"}).text.splitlines()
    assert table == [
        "by,part,names,allotted,number,spent,spent_exact,share",
        "tag,part,<age>,false,,0.75,0.75,0.75",
        "tag,part,,false,,0.25,0.25,0.25",
        "tag,whole,,,,1.0,1,",
    ]
    drawn = client.get(address, headers={"Accept": "image/svg+xml"}).text
    assert "&lt;age&gt;: epsilon 0.75, 75 %" in drawn
    assert "What people has spent, by tag" in drawn
    assert client.get(address, headers={"Accept": "image/png"}).content.startswith(b"\x89PNG")
    assert _shares(client, "tag", with_picture="true")["picture"] == drawn


def test_a_picture_of_losses_that_do_not_add_up_says_so(client: Client) -> None:
    open_account(client, budget=_BUDGETS[3])
    release(client, _PLAN)
    drawn = client.get("/v1/accounts/people/shares?by=tag", headers={"Accept": "image/svg+xml"}).text
    assert "these losses do not add up" in drawn
    assert "each by itself" in drawn
    assert "%" not in drawn.partition("<desc>")[2].partition("</desc>")[0]


def test_the_shares_of_very_unlike_noise_can_be_stated(client: Client) -> None:
    """The exact sum of their losses has more digits than Python writes."""
    open_account(client)
    primes = [n for n in range(10_000, 30_000) if all(n % q for q in range(2, 174))][:1200]
    parts = [{"type": "discrete_gaussian", "sigma_squared": str(prime), "sensitivity": 1} for prime in primes]
    for start in range(0, 1200, 400):
        release(client, {"type": "sequence", "parts": parts[start : start + 400]})
    rho = sum(Fraction(1, 2 * prime) for prime in primes)
    for by in ("account", "tag", "mechanism"):
        found = json_of(client.get("/v1/accounts/people/shares", params={"by": by}))
        assert rho <= Fraction(repr(found["spent"])) <= rho * (1 + Fraction(1, 10**12))
        assert rho <= Fraction(found["spent_exact"]) <= rho * (1 + Fraction(1, 10**12))


def test_unknown_values_are_refused(client: Client) -> None:
    open_account(client)
    assert pointers_of(client.get("/v1/accounts/people/shares?by=colour")) == ["/query/by"]
    assert pointers_of(client.get("/v1/accounts/people/shares?colour=1")) == ["/query/colour"]
    problem_of(client.get("/v1/accounts/nobody/shares"), "not_found")
    headers = make_key(client, "auditor", accounts=["other"])
    problem_of(client.get("/v1/accounts/people/shares", headers=headers), "forbidden")


def test_accounts_with_periods_have_none(client: Client) -> None:
    open_account(client, periods={"calendar": "month", "participation": {"offsets": [0, 1]}})
    problem_of(client.get("/v1/accounts/people/shares"), "conflict")
