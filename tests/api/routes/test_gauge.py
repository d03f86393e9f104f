"""The gauge of an account's answer: only where it is asked for, and equal releases take equal parts of it."""

from fractions import Fraction
from typing import Any

import pytest

from tests.api.calls import (
    Client,
    charge,
    concentrated,
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


def _account(client: Client, name: str = "people") -> Any:
    return json_of(client.get(f"/v1/accounts/{name}", params={"with_gauge": True}))


@pytest.mark.parametrize(
    ("budget", "plan", "part", "cap"),
    [
        ({"definition": "pure", "epsilon": "1"}, pure("1/7"), Fraction(1, 7), "epsilon"),
        ({"definition": "zcdp", "rho": "0.3"}, concentrated("0.1"), Fraction(1, 3), "rho"),
        ({"definition": "rdp", "alpha": "8", "epsilon": "1"}, concentrated("1/56"), Fraction(1, 7), "epsilon"),
        ({"definition": "pure", "epsilon": "9", "delta": "1e-8"}, _DECLARED, Fraction(3, 10), "delta"),
        (_APPROXIMATE | {"declared_delta": "1e-8"}, _DECLARED, Fraction(3, 10), "declared_delta"),
        (_APPROXIMATE | {"epsilon": "1"}, pure("0.25"), Fraction(1, 4), "epsilon"),
    ],
)
def test_equal_releases_take_equal_parts_until_none_fits(
    client: Client, budget: Any, plan: Any, part: Fraction, cap: str
) -> None:
    open_account(client, budget=budget)
    fit = int(1 / part)
    for number in range(fit + 1):
        found = _account(client)["gauge"]
        assert (Fraction(found["used_exact"]), found["releases"]) == (number * part, number)
        assert found["used"] >= number * part
        assert found["cap"] == cap or number == 0
        assert found["equal_more"] == (fit - number if number else None)
        answer = charge(client, plan)
        assert answer.status_code == (201 if number < fit else 409)


def test_the_gauge_of_unlike_releases_is_full_only_where_admission_ends(client: Client) -> None:
    open_account(client, budget=_APPROXIMATE)
    last = 0.0
    for number in range(1000):
        if charge(client, pure("0.4") if number % 3 else concentrated("0.03")).status_code == 409:
            break
        gauge = _account(client)["gauge"]
        assert last < gauge["used"] <= 1
        last = gauge["used"]
    assert last > 0.8
    assert _account(client)["counted"] <= 4


def test_answers_without_the_query_are_as_before(client: Client) -> None:
    opened = open_account(client)
    release(client, concentrated("0.25"))
    read = json_of(client.get("/v1/accounts/people"))
    assert "gauge" not in read
    assert read.keys() == opened.keys()
    asked = _account(client)
    gauge = {"used": 0.25, "used_exact": "0.25", "cap": "rho", "releases": 1, "equal_more": 3}
    assert asked == read | {"gauge": gauge}
    for query, expected in (("true", asked), ("false", read)):
        (listed,) = json_of(client.get(f"/v1/accounts?with_gauge={query}"))["items"]
        assert listed == expected | {"changed_at": listed["changed_at"]}
    assert pointers_of(client.get("/v1/accounts/people?with_gauge=maybe")) == ["/query/with_gauge"]


def test_what_is_held_is_used_until_it_is_voided(client: Client) -> None:
    open_account(client)
    held = release(client, concentrated("0.5"), reserve_for="PT1H")
    gauge = _account(client)["gauge"]
    assert (gauge["used"], gauge["spent"], gauge["held"]) == (
        0.5,
        {"used": 0.0, "counted": 0.0, "counted_exact": "0"},
        {"used": 0.5, "counted": 0.5, "counted_exact": "0.5"},
    )
    void = {"reason": "withdrawn", "attestation": "nothing was published"}
    json_of(client.post(f"/v1/accounts/people/releases/{held['id']}/void", json=void))
    assert _account(client)["gauge"] | {"releases": 0} == {
        "used": 0, "used_exact": "0", "cap": "rho", "releases": 0, "equal_more": None,
    }  # fmt: skip


@pytest.mark.parametrize("budget", [{"definition": "zcdp", "rho": "1/3"}, _APPROXIMATE])
def test_the_held_part_is_what_would_be_free_without_it(client: Client, budget: Any) -> None:
    open_account(client, budget=budget)
    release(client, concentrated("0.07"))
    before = _account(client)
    release(client, concentrated("0.05"), reserve_for="PT1H")
    release(client, concentrated("0.01"), reserve_for="PT1H")
    after = _account(client)
    spent, held = after["gauge"]["spent"], after["gauge"]["held"]
    assert (spent["used"], spent["counted"]) == (before["gauge"]["used"], before["counted"])
    assert held["used"] == pytest.approx(after["gauge"]["used"] - spent["used"])
    assert held["counted"] == pytest.approx(after["counted"] - spent["counted"])
    assert Fraction(held["used"]) + Fraction(spent["used"]) >= Fraction(after["gauge"]["used_exact"] or 0)
    (listed,) = json_of(client.get("/v1/accounts?with_gauge=true"))["items"]
    assert listed["gauge"] == after["gauge"]


def test_the_held_part_of_an_account_with_periods(client: Client) -> None:
    open_account(client, periods={"calendar": "month", "participation": {"offsets": [0]}})
    release(client, concentrated("0.25"), periods={"list": ["2026-01"]})
    release(client, concentrated("0.125"), periods={"list": ["2026-01"]}, reserve_for="PT1H")
    release(client, concentrated("0.125"), periods="all", reserve_for="PT1H")
    gauge = _account(client)["gauge"]
    assert (gauge["used"], gauge["spent"]["counted_exact"], gauge["held"]["counted_exact"]) == (0.5, "0.25", "0.25")
    (listed,) = json_of(client.get("/v1/accounts?with_gauge=true"))["items"]
    assert (listed["gauge"]["used"], listed["gauge"]["spent"], listed["gauge"]["held"]) == (0.5, None, None)


def test_an_account_above_counts_what_is_below_it_and_keeps_its_gauge_from_limited_keys(embedded: Client) -> None:
    open_account(embedded, "agency", {"definition": "zcdp", "rho": "0.5"})
    open_account(embedded, "product", parent="agency")
    release(embedded, concentrated("0.1"), "product")
    assert [_account(embedded, name)["gauge"]["used_exact"] for name in ("agency", "product")] == ["0.2", "0.1"]
    limited = make_key(embedded, "auditor", "limited", accounts=["product"])
    (only,) = json_of(embedded.get("/v1/accounts?with_gauge=true", headers=limited))["items"]
    assert (only["name"], only["gauge"]["equal_more"]) == ("product", 9), "by its own budget"
    problem_of(embedded.get("/v1/accounts/agency?with_gauge=true", headers=limited), "forbidden")
