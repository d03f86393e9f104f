"""Capacity: it is the number of releases that really register, whatever stops them, and asking writes nothing."""

import math
from typing import Any

import pytest

from service.ledger.releases import capacity as counting
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.privacy.accounting import effort
from tests.api.calls import (
    Client,
    application,
    charge,
    client_of,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
    release,
)

_APPROXIMATE = {"definition": "approximate", "epsilon": "4", "delta": "1e-6"}
_DECLARED = {"type": "declared", "epsilon": "0.25", "delta": "3e-9", "reference": "a paper"}


def _capacity(client: Client, plan: Any, account: str = "people", **fields: Any) -> Any:
    return json_of(client.post(f"/v1/accounts/{account}/capacity", json={"plan": plan} | fields))


def _stop(account: str, definition: str, cap: str) -> dict[str, str]:
    return {"account": account, "definition": definition, "cap": cap}


def _unlike(number: int = 65) -> dict[str, Any]:
    return {"type": "sequence", "parts": [pure(f"0.0{100 + part}") for part in range(number)]}


@pytest.mark.parametrize(
    ("budget", "plan", "fits", "cap"),
    [
        ({"definition": "pure", "epsilon": "1"}, pure("0.1"), 10, "epsilon"),
        ({"definition": "pure", "epsilon": "1"}, pure("1/21"), 21, "epsilon"),
        ({"definition": "zcdp", "rho": "0.3"}, concentrated("0.1"), 3, "rho"),
        ({"definition": "rdp", "alpha": "8", "epsilon": "1"}, concentrated("1/56"), 7, "epsilon"),
        ({"definition": "pure", "epsilon": "9", "delta": "1e-8"}, _DECLARED, 3, "delta"),
        (_APPROXIMATE | {"declared_delta": "1e-8"}, _DECLARED, 3, "declared_delta"),
        (_APPROXIMATE | {"epsilon": "1"}, pure("0.25"), 4, "epsilon"),
    ],
)
def test_so_many_register_and_no_more(client: Client, budget: Any, plan: Any, fits: int, cap: str) -> None:
    open_account(client, budget=budget)
    asked = _capacity(client, plan)
    assert (asked["account"], asked["fits"], asked["at_least"]) == ("people", fits, False)
    assert asked["stopped_by"] == _stop("people", budget["definition"], cap)
    assert asked["used"] == 0
    assert asked["used_after_one"] == asked["share"] <= math.nextafter(1 / fits, 1)
    for left in reversed(range(fits)):
        release(client, plan)
        after = _capacity(client, plan)
        assert after["fits"] == left
        assert after["used"] == pytest.approx((fits - left) * asked["share"], rel=1e-12)
        assert after["share"] == asked["share"]
    assert problem_of(charge(client, plan), "budget_exceeded")["cap"] == cap
    assert _capacity(client, plan)["stopped_by"] == _stop("people", budget["definition"], cap)


def test_unlike_releases_before_are_counted_as_admission_counts_them(client: Client) -> None:
    open_account(client, budget=_APPROXIMATE)
    release(client, pure("0.5"))
    release(client, concentrated("0.004"))
    plan = {"type": "sequence", "parts": [concentrated("0.02"), pure("0.05")]}
    fits = _capacity(client, plan)["fits"]
    assert fits > 5
    for _ in range(fits):
        release(client, plan)
    problem_of(charge(client, plan), "budget_exceeded")


def test_asking_writes_nothing_even_where_nothing_fits(client: Client) -> None:
    open_account(client)
    before = head_of(client)
    asked = _capacity(client, concentrated("2"))
    assert (asked["fits"], asked["share"], asked["head"]) == (0, 2, before)
    assert _capacity(client, concentrated("0.25"))["fits"] == 4
    assert head_of(client) == before


def test_an_infinite_loss_fits_never(client: Client) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": "1"})
    asked = _capacity(client, concentrated("0.1"))
    assert asked["fits"] == 0
    assert (asked["share"], asked["used"], asked["used_after_one"]) == (None, 0, None)


def test_more_than_a_million_are_not_counted(embedded: Client) -> None:
    open_account(embedded)
    assert _capacity(embedded, concentrated("1e-6"))["fits"] == 10**6
    assert _capacity(embedded, concentrated("1e-6"))["at_least"] is False
    many = _capacity(embedded, concentrated("1e-90"))
    assert (many["fits"], many["at_least"], many["stopped_by"]) == (10**6, True, None)


def test_what_is_held_counts_until_it_expires(client: Client) -> None:
    open_account(client)
    held = release(client, concentrated("0.5"), reserve_for="PT1H")
    assert _capacity(client, concentrated("0.25"))["fits"] == 2
    void = {"reason": "withdrawn", "attestation": "nothing was published"}
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/void", json=void))
    assert _capacity(client, concentrated("0.25"))["fits"] == 4


def test_proposals_are_counted_as_they_would_be_held(client: Client) -> None:
    open_account(client, approval_above="0.1")
    fits = _capacity(client, concentrated("1/7"))["fits"]
    assert fits == 7
    for _ in range(fits):
        assert release(client, concentrated("1/7"))["state"] == "proposed"
    problem_of(charge(client, concentrated("1/7")), "budget_exceeded")


def test_an_account_above_can_stop_first(client: Client) -> None:
    open_account(client, "agency", {"definition": "zcdp", "rho": "0.5"})
    open_account(client, "product", {"definition": "zcdp", "rho": "1"}, parent="agency")
    asked = _capacity(client, concentrated("0.1"), "product")
    assert (asked["fits"], asked["stopped_by"]) == (5, _stop("agency", "zcdp", "rho"))
    assert asked["share"] == 0.1, "of the account's own budget"
    json_of(client.patch("/v1/accounts/agency", json={"budget": {"definition": "zcdp", "rho": "1"}}))
    asked = _capacity(client, concentrated("0.1"), "product")
    assert (asked["fits"], asked["stopped_by"]) == (10, _stop("product", "zcdp", "rho")), "the account itself first"


def test_a_closed_line_takes_none(client: Client) -> None:
    open_account(client, "agency")
    open_account(client, "product", parent="agency")
    json_of(client.patch("/v1/accounts/agency", json={"state": "closed"}))
    asked = client.post("/v1/accounts/product/capacity", json={"plan": concentrated("0.1")})
    assert problem_of(asked, "account_closed")["account"] == "agency"


def test_auditors_ask_within_their_reach(embedded: Client) -> None:
    """A limited pipeline can try dry runs, so the answer tells it nothing new; an auditor cannot."""
    open_account(embedded, "agency", {"definition": "zcdp", "rho": "0.5"})
    open_account(embedded, "product", parent="agency")
    body = {"plan": concentrated("0.1")}

    def asked(account: str, key: dict[str, str]) -> Any:
        return embedded.post(f"/v1/accounts/{account}/capacity", json=body, headers=key)

    anywhere = make_key(embedded, "auditor", "auditor")
    assert json_of(asked("product", anywhere))["stopped_by"]["account"] == "agency"
    both = make_key(embedded, "auditor", "both", accounts=["agency", "product"])
    assert json_of(asked("product", both))["fits"] == 5
    limited = make_key(embedded, "auditor", "limited", accounts=["product"])
    assert "reaches the accounts above" in problem_of(asked("product", limited), "forbidden")["detail"]
    problem_of(asked("agency", limited), "forbidden")
    root = make_key(embedded, "auditor", "root", accounts=["agency"])
    assert json_of(asked("agency", root))["fits"] == 5
    pipeline = make_key(embedded, "pipeline", "pipeline", accounts=["product"])
    hidden = json_of(asked("product", pipeline))
    assert (hidden["fits"], hidden["stopped_by"]) == (5, {"account": None, "definition": None, "cap": None})
    problem_of(asked("product", {"Authorization": "Bearer nobody"}), "unauthenticated")
    problem_of(asked("nowhere", anywhere), "not_found")
    json_of(embedded.patch("/v1/accounts/agency", json={"state": "closed"}))
    assert problem_of(asked("product", anywhere), "account_closed")["account"] == "agency"
    assert "agency" not in asked("product", pipeline).text


@pytest.mark.parametrize(
    ("body", "pointer", "expected"),
    [
        ({}, "/plan", ""),
        ({"plan": None}, "/plan", ""),
        ({"plan": pure("0.1"), "periods": "all"}, "/periods", ""),
        ({"plan": pure("0.1"), "tags": [7]}, "/tags/0", ""),
        ({"plan": pure("0.1"), "name": "x"}, "/name", ""),
        ({"plan": pure("-1")}, "/plan/epsilon", "expected"),
        ({"plan": {"type": "gauss", "rho": 1}}, "/plan/type", "expected"),
        ({"plan": {"type": "sequence", "parts": [pure("0.1"), {"type": "gaussian"}]}}, "/plan/parts/1", "expected"),
        ({"plan": pure("0.1", partitions=0)}, "/plan/partitions", "expected"),
    ],
)
def test_wrong_questions_say_where(embedded: Client, body: Any, pointer: str, expected: str) -> None:
    open_account(embedded)
    answer = embedded.post("/v1/accounts/people/capacity", json=body)
    assert pointers_of(answer) == [pointer]
    assert expected in answer.json()["errors"][0]["detail"]


def test_a_plan_must_have_a_meaning_under_the_accounts_relation(embedded: Client) -> None:
    open_account(embedded, neighbouring="replace_one")
    plan = {"type": "group", "size": 2, "part": pure("0.1")}
    registered = charge(embedded, plan)
    asked = embedded.post("/v1/accounts/people/capacity", json={"plan": plan})
    assert asked.status_code == {201: 200}.get(registered.status_code, registered.status_code)


def _offset(m: int) -> dict[str, Any]:
    return {"type": "discrete_osgt", "sigma_squared": "1600", "m": str(m)}


def test_pricing_is_bounded(database: Database, secret: Secret) -> None:
    with client_of(application(database, secret, max_work=100)) as client:
        open_account(client, budget=_APPROXIMATE)
        asked = client.post("/v1/accounts/people/capacity", json={"plan": _offset(18)})
        assert pointers_of(asked) == ["/plan"]
        assert "expected work of at most 100 units" in asked.json()["errors"][0]["detail"]
        assert _capacity(client, concentrated("0.1"))["fits"] > 1


def test_the_proof_of_a_rho_is_counted_where_no_order_is(database: Database, secret: Secret) -> None:
    masses = [{"value": value, "mass": "1/40"} for value in range(40)]
    with client_of(application(database, secret, max_work=100)) as client:
        open_account(client)
        asked = client.post("/v1/accounts/people/capacity", json={"plan": {"type": "noise_table", "masses": masses}})
        assert pointers_of(asked) == ["/plan"]


def test_helpers_count_what_takes_long(database: Database, secret: Secret) -> None:
    """Offset tails are priced in balls; the count is the one that registers."""
    with client_of(application(database, secret, helper_processes=1)) as client:
        open_account(client, budget=_APPROXIMATE | {"epsilon": "0.3"})
        fits = _capacity(client, _offset(18))["fits"]
        assert 0 < fits < 20
        for _ in range(fits):
            release(client, _offset(18))
        problem_of(charge(client, _offset(18)), "budget_exceeded")


def test_estimates_decide_where_exact_prices_take_long(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is that of exact prices, which are computed only where the estimates leave it open."""
    open_account(embedded, budget=_APPROXIMATE)
    estimated: list[bool] = []
    count = counting.capacity

    def seen(*of: Any, **named: Any) -> Any:
        estimated.append(named.get("estimated", False))
        return count(*of, **named)

    monkeypatch.setattr(counting, "capacity", seen)
    quick = _capacity(embedded, _unlike(20))
    assert estimated == [True]
    monkeypatch.setattr(effort, "LIGHT", 1e9)
    exact = _capacity(embedded, _unlike(20))
    assert estimated == [True, False]
    for part in ("share", "used", "used_after_one"):
        assert exact[part] <= quick.pop(part) <= exact[part] * (1 + 1e-11)
        del exact[part]
    assert exact == quick


def test_exact_prices_decide_where_estimates_do_not(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(embedded, budget=_APPROXIMATE)
    expected = _capacity(embedded, _unlike(20))["fits"]
    monkeypatch.setattr(counting, "around_estimate", lambda amount: (type(amount)(*(0,) * 4, ()), amount))
    assert _capacity(embedded, _unlike(20))["fits"] == expected
