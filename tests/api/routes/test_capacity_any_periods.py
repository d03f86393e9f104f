"""Capacity where a unit can be in any periods: releases are registered until one is refused (C-9, C-10)."""

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from service.ledger.spending import window_state
from service.privacy.accounting import effort
from tests.api.calls import Client, concentrated, head_of, json_of, make_key, open_account, problem_of, pure
from tests.api.capacity_calls import ask_capacity, charge_over, foretells, month_of, on_either_database

_BUDGETS: list[dict[str, str]] = [
    {"definition": "pure", "epsilon": "1"},
    {"definition": "zcdp", "rho": "0.2"},
    {"definition": "rdp", "alpha": "8", "epsilon": "1"},
    {"definition": "approximate", "epsilon": "2", "delta": "1e-6", "declared_delta": "1e-8"},
]
_DECLARED = {"type": "declared", "epsilon": "0.01", "delta": "3e-9", "reference": "a paper"}


def _any(number: int, calendar: str = "month") -> dict[str, Any]:
    return {"calendar": calendar, "participation": {"any": number}}


def _fill(client: Client, random: Random, account: str = "people") -> None:
    """Random releases of some periods and of all, some of them held, each of a little."""
    for _ in range(12):
        months = sorted(random.sample(range(12), random.randrange(1, 4)))
        periods = "all" if random.random() < 0.15 else {"list": [month_of(one) for one in months]}
        plan = random.choice([concentrated("0.003"), pure("0.02"), pure("0.05"), concentrated("1/900"), pure("1/41")])
        held = {"reserve_for": "PT1H"} if random.random() < 0.3 else {}
        charge_over(client, plan, periods, account, **held)


@pytest.mark.parametrize("number", [1, 2, 5])
@on_either_database(_BUDGETS)
def test_so_many_register_over_the_same_periods_and_no_more(client: Client, budget: Any, number: int) -> None:
    """Statement C-9, for every definition, with unlike releases before."""
    open_account(client, budget=budget, periods=_any(number))
    _fill(client, Random(number))
    plan = pure("1/20") if budget["definition"] == "pure" else concentrated("0.01")
    fits = [
        foretells(client, plan, {"list": [month_of(90)]}),
        foretells(client, plan, {"list": [month_of(40), month_of(9)]}),
        foretells(client, plan, {"from": month_of(3), "to": month_of(5)}),
        foretells(client, plan, "all"),
    ]
    assert sum(fits) > 0
    assert json_of(client.get("/v1/accounts/people/verify"))["valid"]


@pytest.mark.parametrize("budget", _BUDGETS, ids=lambda budget: budget["definition"])
def test_all_periods_are_counted_with_each_period_and_its_worst_others(client: Client, budget: Any) -> None:
    open_account(client, budget=budget, periods=_any(2))
    _fill(client, Random(11))
    assert foretells(client, pure("1/40") if budget["definition"] == "pure" else concentrated("0.01"), "all") > 0


def test_what_fits_each_period_is_not_what_fits_the_sum_of_the_largest(client: Client) -> None:
    """Under (epsilon, delta) a period can be nearest to its cap on another route than the largest ones."""
    open_account(client, budget={"definition": "approximate", "epsilon": "1", "delta": "1e-6"}, periods=_any(2))
    for _ in range(2):
        json_of(charge_over(client, pure("0.15"), {"list": [month_of(0)]}), 201)
    while charge_over(client, concentrated("0.0015"), {"list": [month_of(30)]}).status_code == 201:
        pass
    for periods in ({"list": [month_of(50)]}, {"list": [month_of(0), month_of(51)]}, "all"):
        foretells(client, pure("0.03"), periods)


def test_declared_deltas_stop_with_the_worst_other(client: Client) -> None:
    open_account(client, budget=_BUDGETS[3], periods=_any(2))
    json_of(charge_over(client, _DECLARED, {"list": [month_of(2)]}), 201)
    assert foretells(client, _DECLARED, {"list": [month_of(0), month_of(7)]}) == 1
    assert foretells(client, _DECLARED, {"list": [month_of(2)]}) == 1


def test_an_empty_account_takes_a_release_once_for_each_period_of_a_unit(client: Client) -> None:
    """Statement C-10: the share is that of an unused account."""
    open_account(client, budget={"definition": "zcdp", "rho": "1"}, periods=_any(3))
    before = head_of(client)
    for periods, counted in (({"from": month_of(0), "to": month_of(9)}, 3), ({"list": [month_of(1)]}, 1), ("all", 1)):
        asked = json_of(ask_capacity(client, concentrated("0.01"), periods))
        assert (asked["fits"], asked["used"]) == (100 // counted, 0)
        assert asked["share"] == asked["used_after_one"] == pytest.approx(counted / 100)
    asked = json_of(ask_capacity(client, concentrated("0.4"), {"from": month_of(0), "to": month_of(2)}))
    assert (asked["fits"], asked["share"]) == (0, pytest.approx(1.2))
    asked = json_of(ask_capacity(client, concentrated("1e-9"), {"from": month_of(0), "to": month_of(2)}))
    assert (asked["fits"], asked["at_least"], asked["stopped_by"]) == (10**6, True, None)
    assert head_of(client) == before


def test_lines_count_in_each_account_by_its_own_participation(client: Client) -> None:
    open_account(client, "programme", {"definition": "zcdp", "rho": "0.9"}, periods=_any(2, "quarter"))
    open_account(client, "branch", {"definition": "zcdp", "rho": "2"}, parent="programme")
    panel = {"calendar": "month", "participation": {"offsets": [0, 1]}}
    open_account(client, "panel", {"definition": "zcdp", "rho": "0.5"}, parent="programme", periods=panel)
    open_account(client, budget={"definition": "zcdp", "rho": "0.7"}, parent="programme", periods=_any(3))
    json_of(charge_over(client, concentrated("0.2"), {"list": [month_of(1)]}), 201)
    two = {"list": [month_of(3), month_of(4)]}
    asked = json_of(ask_capacity(client, concentrated("0.1"), two))
    assert (asked["fits"], asked["stopped_by"]["account"]) == (2, "people")
    # One quarter of the programme has each release once: 0.2 of before, and then 0.1 for each.
    asked = json_of(ask_capacity(client, concentrated("0.1"), two, "panel"))
    assert (asked["fits"], asked["stopped_by"]["account"]) == (5, "panel")
    assert foretells(client, concentrated("0.1"), two) == 2
    assert foretells(client, concentrated("0.15"), two, "panel") == 3
    asked = json_of(ask_capacity(client, concentrated("0.01"), None, "branch"))
    assert (asked["fits"], asked["stopped_by"]["account"]) == (5, "programme")
    assert asked["stopped_by"]["window"] == "2026-Q1 to 2026-Q2"


def test_the_account_itself_is_named_where_two_stop_at_once(client: Client) -> None:
    one = {"definition": "zcdp", "rho": "0.6"}
    open_account(client, "programme", one, periods={"calendar": "month", "participation": {"offsets": [0]}})
    open_account(client, budget=one | {"rho": "1.2"}, parent="programme", periods=_any(2))
    two = {"list": [month_of(3), month_of(4)]}
    asked = json_of(ask_capacity(client, concentrated("0.1"), two))
    assert (asked["fits"], asked["stopped_by"]["account"]) == (6, "people")
    limited = make_key(client, "pipeline", "limited", accounts=["people"])
    asked = json_of(ask_capacity(client, concentrated("0.1"), two, headers=limited))
    assert (asked["fits"], asked["stopped_by"]["window"]) == (6, f"{month_of(3)} to {month_of(4)}")
    assert foretells(client, concentrated("0.1"), two) == 6


def test_sums_of_awkward_fractions_are_not_counted_beyond_what_fits(client: Client) -> None:
    """The count is that of the releases also if statement P-12 rounds sums, where trials round everything up first."""
    open_account(client, budget={"definition": "zcdp", "rho": "1"}, periods=_any(4))
    for month, prime in enumerate((10**19 + 51, 10**19 + 87, 10**19 + 91, 10**19 + 99)):
        json_of(charge_over(client, concentrated(f"{10**18}/{prime}"), {"list": [month_of(month)]}), 201)
    assert foretells(client, concentrated("1/30"), {"from": month_of(2), "to": month_of(9)}) == 6


def test_many_periods_are_counted_by_their_bound(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(embedded, "programme", {"definition": "zcdp", "rho": "1"}, periods=_any(2))
    open_account(embedded, budget={"definition": "zcdp", "rho": "1"}, parent="programme", periods=_any(2))
    for month in range(3):
        json_of(charge_over(embedded, concentrated("0.2"), {"list": [month_of(month)]}), 201)
    monkeypatch.setattr(window_state, "looked_at", lambda _: 5)  # of 6 in the line
    asked = json_of(ask_capacity(embedded, concentrated("0.1"), "all"))
    assert (asked["fits"], asked["used"]) == (6, 0.4)
    assert "window" not in asked["stopped_by"]
    assert foretells(embedded, concentrated("0.1"), "all") == 6


def test_a_release_of_too_many_periods_conflicts(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_state, "looked_at", lambda _: 5)
    open_account(embedded, periods=_any(2))
    wide = {"from": month_of(0), "to": month_of(5)}
    assert "windows" in problem_of(ask_capacity(embedded, concentrated("0.1"), wide), "conflict")["detail"]


def test_exact_prices_are_counted_where_periods_are_added_up(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(embedded, budget=_BUDGETS[3], periods=_any(3))
    _fill(embedded, Random(5))
    unlike = {"type": "sequence", "parts": [pure(f"0.0{100 + part}") for part in range(20)]}
    periods = {"from": month_of(2), "to": month_of(7)}
    asked = json_of(ask_capacity(embedded, unlike, periods))
    monkeypatch.setattr(effort, "LIGHT", 1e9)
    assert json_of(ask_capacity(embedded, unlike, periods)) == asked
    assert foretells(embedded, unlike, periods) == asked["fits"]


def test_one_period_at_most_is_counted_as_offsets_are(client: Client) -> None:
    each = {"calendar": "month", "participation": {"offsets": [0]}}
    for budget in _BUDGETS:
        name = budget["definition"]
        open_account(client, name, budget, periods=each)
        open_account(client, f"any-{name}", budget, periods=_any(1))
        for account in (name, f"any-{name}"):
            _fill(client, Random(4), account)
        for periods in ({"from": month_of(2), "to": month_of(7)}, {"list": [month_of(50)]}, "all"):
            plan = pure(str(Fraction(1, 70)))
            one, other = (json_of(ask_capacity(client, plan, periods, account)) for account in (name, f"any-{name}"))
            for answer in (one, other):
                del answer["account"], answer["head"], answer["stopped_by"]["account"]
            assert one == other
