"""Capacity in accounts with periods: releases are registered until one is refused, and the answer foretold both."""

from random import Random
from typing import Any

import pytest

from service.ledger.releases import capacity as counting
from service.ledger.spending import window_state
from service.privacy.accounting import effort
from tests.api.calls import (
    Client,
    concentrated,
    head_of,
    json_of,
    make_key,
    open_account,
    pointers_of,
    problem_of,
    pure,
)
from tests.api.capacity_calls import ask_capacity, charge_over, foretells, month_of, on_either_database

_PANEL = {"calendar": "month", "participation": {"offsets": [0, 2, 3]}}
_APPROXIMATE = {"definition": "approximate", "epsilon": "2", "delta": "1e-6"}
_BUDGETS: list[dict[str, str]] = [
    {"definition": "pure", "epsilon": "1"},
    {"definition": "zcdp", "rho": "0.2"},
    {"definition": "rdp", "alpha": "8", "epsilon": "1"},
    _APPROXIMATE | {"declared_delta": "1e-8"},
]
_DECLARED = {"type": "declared", "epsilon": "0.01", "delta": "3e-9", "reference": "a paper"}


def _gauge(client: Client, account: str = "people") -> Any:
    return json_of(client.get(f"/v1/accounts/{account}?with_gauge=true"))["gauge"]


def _fill(client: Client, random: Random, account: str = "people") -> None:
    """Random releases of some periods and of all, some of them held, each of a little."""
    for _ in range(12):
        months = sorted(random.sample(range(12), random.randrange(1, 4)))
        periods = "all" if random.random() < 0.15 else {"list": [month_of(one) for one in months]}
        plan = random.choice([concentrated("0.003"), pure("0.02"), pure("0.05"), concentrated("1/900")])
        if random.random() < 0.5 and account == "people":
            plan = pure("0.03")
        held = {"reserve_for": "PT1H"} if random.random() < 0.3 else {}
        charge_over(client, plan, periods, account, **held)


@on_either_database(_BUDGETS)
def test_so_many_register_over_the_same_periods_and_no_more(client: Client, budget: Any) -> None:
    """Statement C-7, for every definition, with unlike releases before."""
    open_account(client, budget=budget, periods=_PANEL)
    _fill(client, Random(1))
    plan = pure("0.04") if budget["definition"] == "pure" else concentrated("0.01")
    fits = [
        foretells(client, plan, {"from": month_of(3), "to": month_of(5)}),
        foretells(client, plan, {"list": [month_of(40), month_of(9)]}),
        foretells(client, plan, {"list": [month_of(90)]}),
        foretells(client, plan, "all"),
    ]
    assert fits[2] >= max(fits), "windows that nothing else touches have most room"


def test_declared_deltas_stop_in_their_window(client: Client) -> None:
    open_account(client, budget=_BUDGETS[3], periods=_PANEL)
    json_of(charge_over(client, _DECLARED, {"list": [month_of(2)]}), 201)
    assert foretells(client, _DECLARED, {"list": [month_of(0), month_of(2)]}) == 2
    assert foretells(client, _DECLARED, {"list": [month_of(20)]}) == 3


@pytest.mark.parametrize("participation", [_PANEL["participation"], {"any": 2}], ids=str)
@on_either_database(_BUDGETS)
def test_a_cap_on_a_tag_stops_releases_of_all_periods(client: Client, budget: Any, participation: Any) -> None:
    """A cap counts releases of all windows; whichever of it and the windows is full first stops the next one."""
    periods = {"calendar": "month", "participation": participation}
    open_account(client, budget=_BUDGETS[1], periods=periods, caps=[{"tag": "race", "budget": budget}])
    tagged: dict[str, Any] = {"tags": ["race"]}
    untagged: dict[str, Any] = {"reads": "nothing capped"}
    random = Random(2)
    for _ in range(8):
        months = {"list": [month_of(random.randrange(12))]}
        tags: dict[str, Any] = random.choice([tagged | {"cells_replaced": 1}, untagged])
        held = {"reserve_for": "PT1H"} if random.random() < 0.3 else {}
        json_of(charge_over(client, pure("0.02") | tags, months, **held), 201)
    early = json_of(ask_capacity(client, pure("0.08") | tagged, {"list": [month_of(3)]}))
    late = json_of(ask_capacity(client, pure("0.08") | tagged, {"list": [month_of(90)]}))
    everywhere = json_of(ask_capacity(client, pure("0.08") | tagged, "all"))
    assert {one["stopped_by"].get("tag") for one in (early, late, everywhere)} == {"race"}
    assert early["fits"] == late["fits"] == everywhere["fits"] > 0
    assert foretells(client, pure("0.08") | tagged, {"list": [month_of(3), month_of(90)]}) == early["fits"]
    assert foretells(client, concentrated("0.03") | untagged, {"list": [month_of(90)]}) > 0


def test_what_fits_in_one_window_is_not_what_fits_the_bound(client: Client) -> None:
    """Under (epsilon, delta) windows are nearest to their caps on different routes; the bound of both admits less."""
    open_account(client, budget={"definition": "approximate", "epsilon": "1", "delta": "1e-6"}, periods=_PANEL)
    for _ in range(4):
        json_of(charge_over(client, pure("0.2"), {"list": [month_of(0)]}), 201)
    fitted = 0
    while charge_over(client, concentrated("0.003"), {"list": [month_of(30)]}).status_code == 201:
        fitted += 1
    assert fitted > 0
    listed = json_of(client.get("/v1/accounts?with_gauge=true"))["items"][0]["gauge"]
    own = _gauge(client)
    assert listed["used"] > own["used"]
    assert "window" not in listed
    assert own["used"] <= 1
    foretells(client, pure("0.05"), "all")


def test_each_account_of_a_line_counts_in_its_own_calendar(client: Client) -> None:
    open_account(client, "agency", {"definition": "zcdp", "rho": "0.5"}, periods=_PANEL)
    days = {"calendar": "day", "participation": {"offsets": [0]}}
    open_account(client, budget={"definition": "zcdp", "rho": "0.3"}, periods=days, parent="agency")
    one_day = {"list": ["2026-03-05"]}
    asked = json_of(ask_capacity(client, concentrated("0.1"), one_day))
    assert asked["stopped_by"] == {"account": "people", "definition": "zcdp", "cap": "rho", "window": "2026-03-05"}
    assert foretells(client, concentrated("0.1"), one_day) == 3
    # The month has 0.3 of 0.5 then, and the next day none.
    asked = json_of(ask_capacity(client, concentrated("0.1"), {"list": ["2026-03-06"]}))
    assert (asked["fits"], asked["used"], asked["stopped_by"]["account"]) == (2, 0, "agency")
    assert asked["stopped_by"]["window"] == "2025-12"
    assert foretells(client, concentrated("0.1"), {"list": ["2026-03-06"]}) == 2
    assert foretells(client, concentrated("0.1"), {"from": "2026-07-30", "to": "2026-10-01"}) == 3


def test_an_account_without_periods_names_the_window_above_it(client: Client) -> None:
    open_account(client, periods=_PANEL)
    open_account(client, "programme", parent="people")
    for month in (5, 6):
        json_of(charge_over(client, concentrated("0.1"), {"list": [month_of(month)]}), 201)
    assert pointers_of(ask_capacity(client, concentrated("0.1"), "all", "programme")) == ["/periods"]
    asked = json_of(ask_capacity(client, concentrated("0.1"), None, "programme"))
    assert (asked["fits"], asked["stopped_by"]["account"], asked["stopped_by"]["window"]) == (8, "people", month_of(3))


@pytest.mark.parametrize(
    ("periods", "pointer"),
    [
        (None, "/periods"),
        (7, "/periods"),
        ("some", "/periods"),
        ({"from": "2026-02"}, "/periods"),
        ({"from": "2026-02", "to": "2026-01"}, "/periods/to"),
        ({"from": "26-02", "to": "2026-02"}, "/periods/from"),
        ({"list": []}, "/periods"),
        ({"list": ["2026-02", "secret input"]}, "/periods/list/1"),
        ({"from": "1000-01", "to": "9999-12"}, "/periods"),
    ],
)
def test_faults_are_those_of_releases(embedded: Client, periods: Any, pointer: str) -> None:
    open_account(embedded, periods=_PANEL)
    asked = ask_capacity(embedded, pure("0.1"), periods)
    assert pointers_of(asked) == [pointer]
    registered = charge_over(embedded, pure("0.1"), periods)
    assert asked.json()["errors"] == registered.json()["errors"]
    assert "secret" not in asked.text


def test_asking_writes_nothing(client: Client) -> None:
    open_account(client, periods=_PANEL)
    before = head_of(client)
    asked = json_of(ask_capacity(client, concentrated("2"), {"list": [month_of(1)]}))
    assert (asked["fits"], asked["share"], asked["head"]) == (0, 2, before)
    assert json_of(ask_capacity(client, concentrated("0.1"), "all"))["fits"] == 10
    assert head_of(client) == before
    assert json_of(client.get("/v1/accounts/people/periods"))["items"] == []


def test_nobody_learns_a_window_of_an_account_that_the_key_does_not_reach(client: Client) -> None:
    open_account(client, "agency", {"definition": "zcdp", "rho": "0.05"}, periods=_PANEL)
    open_account(client, parent="agency", periods=_PANEL)
    limited = make_key(client, "pipeline", "limited", accounts=["people"])
    asked = json_of(ask_capacity(client, concentrated("0.02"), "all", headers=limited))
    assert (asked["fits"], asked["stopped_by"]) == (2, {"account": None, "definition": None, "cap": None})
    auditor = make_key(client, "auditor", "auditor", accounts=["people"])
    problem_of(ask_capacity(client, concentrated("0.02"), "all", headers=auditor), "forbidden")


def test_estimates_and_exact_prices_give_one_answer(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    open_account(embedded, budget=_APPROXIMATE, periods=_PANEL)
    _fill(embedded, Random(5))
    unlike = {"type": "sequence", "parts": [pure(f"0.0{100 + part}") for part in range(20)]}
    estimated: list[bool] = []
    count = counting.capacity

    def seen(*of: Any, **named: Any) -> Any:
        estimated.append(named.get("estimated", False))
        return count(*of, **named)

    monkeypatch.setattr(counting, "capacity", seen)
    periods = {"from": month_of(2), "to": month_of(7)}
    quick = json_of(ask_capacity(embedded, unlike, periods))
    monkeypatch.setattr(effort, "LIGHT", 1e9)
    exact = json_of(ask_capacity(embedded, unlike, periods))
    assert estimated == [True, False]
    assert (quick["fits"], quick["stopped_by"]) == (exact["fits"], exact["stopped_by"])
    assert "window" in exact["stopped_by"]


def test_many_windows_are_counted_by_their_bound(embedded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As releases to all periods are registered there: never more than fit, and no window is named."""
    open_account(embedded, budget={"definition": "zcdp", "rho": "1"}, periods=_PANEL)
    json_of(charge_over(embedded, concentrated("0.25"), {"list": [month_of(1)]}), 201)
    assert json_of(ask_capacity(embedded, concentrated("0.1"), "all"))["stopped_by"]["window"] == "2025-11"
    assert _gauge(embedded)["window"]["start"] == "2025-11"
    monkeypatch.setattr(window_state, "_LONGEST_READ", 0)
    asked = json_of(ask_capacity(embedded, concentrated("0.1"), "all"))
    assert (asked["fits"], asked["used"]) == (7, 0.25)
    assert "window" not in asked["stopped_by"]
    assert _gauge(embedded).items() >= {"used": 0.25, "window": None}.items()
    assert foretells(embedded, concentrated("0.1"), "all") == 7


@pytest.mark.parametrize("budget", _BUDGETS, ids=lambda budget: budget["definition"])
def test_the_gauge_is_that_of_the_fullest_window(client: Client, budget: Any) -> None:
    """Against capacities for each window by itself: the releases that it counts, and what they use."""
    offsets = {"calendar": "month", "participation": {"offsets": [0]}}
    open_account(client, budget=budget, periods=offsets)
    assert _gauge(client).items() >= {"used": 0, "releases": 0, "window": None, "equal_more": None}.items()
    _fill(client, Random(3))
    tiny = pure("1e-9") if budget["definition"] == "pure" else concentrated("1e-12")
    used = {month: json_of(ask_capacity(client, tiny, {"list": [month]}))["used"] for month in map(month_of, range(12))}
    gauge = _gauge(client)
    fullest = max(used, key=lambda month: used[month])
    assert gauge["used"] == used[fullest]
    assert used[gauge["window"]["start"]] == used[fullest]
    listed = {item["period"]: item for item in json_of(client.get("/v1/accounts/people/periods"))["items"]}
    assert gauge["releases"] == listed[gauge["window"]["start"]]["releases"]
