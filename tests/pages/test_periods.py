"""Pages of accounts with periods: the strip, the opening form, the planner, releases, the journal."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.shell.figures import fitting
from tests.api.calls import Answer, concentrated, json_of, open_account, pure
from tests.pages.forms import form_of, signed_in

_PANEL = {"calendar": "month", "participation": {"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}}
_WAVES = {"calendar": "index", "participation": {"offsets": [0]}}


def _charge(client: TestClient, plan: Any, periods: Any, account: str = "panel", **fields: Any) -> Any:
    body = {"name": "a release", "plan": plan, "periods": periods} | fields
    return json_of(client.post(f"/v1/accounts/{account}/releases", json=body), 201)


def _open(client: TestClient, name: str = "panel", **fields: Any) -> Any:
    return open_account(client, name, fields.pop("budget", {"definition": "zcdp", "rho": "1"}), **fields)


def _bars(page: Answer) -> list[dict[str, float]]:
    """Return the heights of what is spent and held in each column of the strip."""
    columns = re.findall(r'<g class="\w+">(.*?)</g>', page.text, re.DOTALL)
    found = []
    for column in columns:
        heights = dict(re.findall(r'class="(\w+)"[^>]*height="([\d.]+)"', column))
        found.append({name: float(height) for name, height in heights.items()})
    return found


def _cells(page: Answer) -> list[list[str]]:
    """Return the rows of the table of periods."""
    table = page.text.partition('aria-label="Periods"')[2].partition("</table>")[0]
    rows = re.findall(r'<tr role="row">\s*<th role="rowheader"(.*?)</tr>', table, re.DOTALL)
    return [re.findall(r">([^<>\n]+)</t[hd]>", row) for row in rows]


def test_a_strip_shows_each_period_with_its_worst_window(embedded: TestClient) -> None:
    _open(embedded, periods=_PANEL)
    _charge(embedded, concentrated("0.5"), {"list": ["2026-01"]})
    _charge(embedded, concentrated("0.25"), {"list": ["2026-03"]}, reserve_for="P1D")
    _charge(embedded, concentrated("0.1"), "all")
    page = signed_in(embedded).get("/accounts/panel")
    shown = [(bar["gone"], bar["held"], bar["track"]) for bar in _bars(page)]
    assert shown == [(60, 25, 100)] * 3
    listed = json_of(embedded.get("/v1/accounts/panel/periods"))["items"]
    assert [row[0] for row in _cells(page)] == [item["period"] for item in listed]
    window = "2024-12 to 2025-03, 2025-12 to 2026-03"
    assert _cells(page)[0] == ["2026-01", window, "0.6", "0.85", "0.15", "3"]
    assert "3 have a quarter of the budget left or less (amber)" in page.text
    assert "1 release to all periods counts in every window" in page.text
    assert (
        f"<strong>85 %</strong> spent or held in the window {window}: ρ = 0.85 (0.6 spent, 0.25 held) of 1; 0.15 left"
        in page.text
    )
    assert "in the data of the months t + 0 to t + 3, t + 12 to t + 15 alone" in page.text
    assert "<style" not in page.text
    assert " style=" not in page.text


def test_nothing_left_is_said_in_words(embedded: TestClient) -> None:
    _open(embedded, periods=_WAVES)
    _charge(embedded, concentrated("1"), {"list": [4]})
    page = signed_in(embedded).get("/accounts/panel")
    assert "Of these 1 periods, 1 has nothing left (red)." in page.text
    assert _cells(page) == [["4", "4", "1", "1", "0", "1"]]


def test_an_account_that_nothing_was_released_from_has_no_strip(embedded: TestClient) -> None:
    _open(embedded, periods=_PANEL)
    visit = signed_in(embedded)
    assert "No release has read some periods alone." in visit.get("/accounts/panel").text
    _charge(embedded, concentrated("0.25"), "all")
    page = visit.get("/accounts/panel")
    assert "<strong>25 %</strong> spent in any window" in page.text
    assert _bars(page) == []
    _open(embedded, "plain")
    assert 'id="periods"' not in visit.get("/accounts/plain").text


def test_many_periods_come_in_pages_of_sixty(embedded: TestClient) -> None:
    _open(embedded, periods=_WAVES)
    _charge(embedded, concentrated("0.5"), {"from": 1, "to": 150})
    visit = signed_in(embedded)
    last = visit.get("/accounts/panel")
    assert [row[0] for row in _cells(last)] == [str(one) for one in range(91, 151)]
    assert 'href="?from=31#periods">Earlier' in last.text
    assert "Later periods" not in last.text
    middle = visit.get("/accounts/panel?from=31")
    assert [row[0] for row in _cells(middle)] == [str(one) for one in range(31, 91)]
    assert 'href="?from=91#periods">Later' in middle.text
    assert 'href="?from=1#periods">Earlier' in middle.text
    assert "Earlier periods" not in visit.get("/accounts/panel?from=1").text
    assert _cells(visit.get("/accounts/panel?from=-5"))[0][0] == "-5"
    beyond = visit.get("/accounts/panel?from=400")
    assert {row[4] for row in _cells(beyond)} == {"1"}


@pytest.mark.parametrize("typed", ["2026", "x", "9" * 30, "999999999999", '"><script>', "1000000000"])
def test_a_first_period_that_is_none_is_said_at_its_field(embedded: TestClient, typed: str) -> None:
    _open(embedded, periods=_WAVES if typed[0] in '19"' else _PANEL)
    _charge(embedded, concentrated("0.5"), {"list": [1 if typed[0] in '19"' else "2026-01"]})
    page = signed_in(embedded).get("/accounts/panel", params={"from": typed})
    assert page.status_code == 200
    assert 'id="from-fault">expected a' in page.text
    assert len(_cells(page)) == 1
    assert "<script>" not in page.text.partition("<main")[2]


def test_an_approximate_account_shows_its_worst_windows(embedded: TestClient) -> None:
    budget = {"definition": "approximate", "epsilon": "1", "delta": "1e-6"}
    _open(embedded, budget=budget, periods=_WAVES)
    for _ in range(3):
        _charge(embedded, pure("0.2"), {"list": [1]})
    _charge(embedded, concentrated("0.003"), {"list": [5]})
    page = signed_in(embedded).get("/accounts/panel")
    balance = json_of(embedded.get("/v1/accounts/panel/balance"))
    gauge = json_of(embedded.get("/v1/accounts/panel?with_gauge=true"))["gauge"]
    assert gauge["window"]["start"] == 1
    assert " of 1 spent in the window 1; 60 % of the room for equal releases." in page.text
    assert f"ε = {1 - balance['remaining']['epsilon']:.6f}"[:6] in page.text
    assert f" with the budget of 1, in the window {balance['window']['start']}." in page.text


def test_an_account_with_periods_is_opened_by_the_form(embedded: TestClient) -> None:
    visit = signed_in(embedded)

    def sent(**typed: str) -> Answer:
        form = form_of(visit.get("/new-account"), "/new-account")
        return visit.post("/new-account", data=form.with_texts({"name": "fresh", "cap": "1"} | typed))

    for typed, field, expected in (
        ({"offsets": "0-3"}, "calendar", "expected a calendar"),
        ({"calendar": "month"}, "offsets", "expected the periods"),
        ({"calendar": "month", "offsets": "0;3"}, "offsets", "such as 0-3, 12-15"),
        ({"calendar": "month", "offsets": "0-5000"}, "offsets", "at most 1000"),
        ({"calendar": "month", "offsets": "1-3"}, "offsets", "expected 0 first"),
        ({"calendar": "decade", "offsets": "0"}, "calendar", "expected one of day"),
    ):
        refused = sent(**typed)
        assert refused.status_code == 422
        fault = re.search(rf'id="{field}-fault">([^<]+)<', refused.text)
        assert fault is not None, field
        assert expected in fault[1]
        assert "<code>/periods" not in refused.text
        assert form_of(refused, "/new-account").fields["offsets"] == [typed.get("offsets", "")]
    assert embedded.get("/v1/accounts/fresh").status_code == 404
    assert sent(calendar="month", offsets="12-15, 0-3").status_code == 303
    made = json_of(embedded.get("/v1/accounts/fresh"))["periods"]
    assert made.items() >= _PANEL.items()
    assert "periods" not in json_of(embedded.get("/v1/accounts/fresh")) or made["calendar"] == "month"
    nested = sent(name="below", parent="fresh", calendar="year", offsets="0")
    assert "expected a calendar that nests in month" in nested.text


_ROWS: dict[str, Any] = {
    "table": ["Total"], "geography": [""], "moe": ["6"], "confidence": ["0.95"], "cells": ["1"], "sensitivity": ["1"]
}  # fmt: skip


def _press(visit: TestClient, do: str, **texts: Any) -> Answer:
    form = form_of(visit.get("/plan", params={"account": "panel"}), "/plan")
    return visit.post("/plan", data=form.with_texts(_ROWS | {"do": do} | texts))


def test_the_planner_plans_and_registers_over_periods(embedded: TestClient) -> None:
    _open(embedded, periods=_PANEL, budget={"definition": "zcdp", "rho": "0.2"})
    _charge(embedded, concentrated("0.1"), {"list": ["2026-02"]})
    visit = signed_in(embedded)
    assert 'id="periods"' in visit.get("/plan?account=panel").text
    missing = _press(visit, "plan")
    assert missing.status_code == 422
    assert "expected the periods that the release reads" in missing.text
    wrong = _press(visit, "plan", periods="2026-01 to 2026-13")
    assert 'id="periods-fault">expected a month such as 2026-01' in wrong.text
    planned = _press(visit, "plan", periods="2026-01 to 2026-03")
    assert planned.status_code == 200
    assert "panel has no room in its ρ budget in window 2024-11" in planned.text
    form = form_of(planned, "/plan")
    assert form.fields["periods"] == ["2026-01 to 2026-03"]
    button = {"do": "register-discrete_gaussian", "release": "by the planner"}
    changed = visit.post("/plan", data=form.with_texts(button | {"periods": "all"}))
    assert "The form has changed since the plan was computed" in changed.text
    done = visit.post("/plan", data=form.with_texts(button))
    assert done.status_code == 303
    release = visit.get(done.headers["Location"])
    assert "Periods</a></dt><dd>2026-01 to 2026-03</dd>" in release.text
    listed = visit.get("/accounts/panel/releases")
    assert re.findall(r'data-label="Periods and tags" class="words">([^<]+)<', listed.text) == [
        "2026-01 to 2026-03",
        "2026-02",
    ]


def test_a_refused_plan_names_its_window(embedded: TestClient) -> None:
    _open(embedded, periods=_PANEL, budget={"definition": "zcdp", "rho": "0.0625"})
    _charge(embedded, concentrated("0.03125"), {"list": ["2026-05"]})
    planned = _press(signed_in(embedded), "plan", periods="2026-05")
    assert "panel has 0.03125 of its ρ budget left in window 2025-02; it would take" in planned.text


def test_the_planner_counts_where_units_are_in_any_periods(embedded: TestClient) -> None:
    periods = {"calendar": "month", "participation": {"any": 2}}
    _open(embedded, periods=periods, budget={"definition": "zcdp", "rho": "0.5"})
    _charge(embedded, concentrated("0.25"), {"list": ["2026-05"]})
    visit = signed_in(embedded)
    planned = _press(visit, "plan", periods="2026-01 to 2026-03")
    count = re.search(r"([\d,]+) times in all; then panel has no room in its ρ budget in", planned.text)
    assert count is not None
    assert "in window 2026-01 to 2026-02" in planned.text
    form = form_of(planned, "/plan")
    assert visit.post("/plan", data=form.with_texts({"do": "register-discrete_gaussian", "release": "n"})).is_redirect
    again = _press(visit, "plan", periods="2026-01 to 2026-03")
    assert f"{fitting(int(count[1].replace(',', '')) - 1)}; then panel has no room" in again.text


def test_an_account_without_periods_says_that_it_takes_none(embedded: TestClient) -> None:
    _open(embedded)
    visit = signed_in(embedded)
    assert 'id="periods"' not in visit.get("/plan?account=panel").text
    assert "has no periods" in _press(visit, "plan", periods="all").text
    assert "Periods and tags" not in visit.get("/accounts/panel/releases").text


def test_the_journal_shows_periods_and_the_window_of_a_refusal(embedded: TestClient) -> None:
    _open(embedded, "agency", periods=_PANEL)
    days = {"calendar": "day", "participation": {"offsets": [0]}}
    _open(embedded, periods=days, parent="agency", budget={"definition": "zcdp", "rho": "0.2"})
    _charge(embedded, concentrated("0.15"), {"list": ["2026-02-03", "2026-02-05"]})
    body = {"name": "too much", "plan": concentrated("0.15"), "periods": {"list": ["2026-02-05"]}}
    assert embedded.post("/v1/accounts/panel/releases", json=body).status_code == 409
    _charge(embedded, concentrated("0.01"), "all")
    visit = signed_in(embedded)
    own, above = visit.get("/accounts/panel/journal").text, visit.get("/accounts/agency/journal").text
    assert '<p class="quiet">2026-02-03, 2026-02-05</p>' in own
    assert '<p class="quiet">all periods</p>' in own
    assert "too much, which did not fit panel in window 2026-02-05" in own
    assert '<p class="quiet">2026-02</p>' in above


def test_a_cap_beside_periods_is_set_shown_and_planned_for(embedded: TestClient) -> None:
    _open(embedded, periods=_PANEL)
    visit = signed_in(embedded)
    form = form_of(visit.get("/accounts/panel"), "/accounts/panel/caps")
    set_cap = visit.post("/accounts/panel/caps", data=form.with_texts({"tag": "race", "tagged_cap": "1"}))
    assert set_cap.status_code == 303
    for month in ("2026-02", "2046-02"):
        _charge(embedded, concentrated("0.1") | {"tags": ["race"], "cells_replaced": 2}, {"list": [month]})
    page = visit.get("/accounts/panel").text
    assert "A cap counts the releases of all periods together." in page
    assert "40 % of the cap is used: ρ = 0.4 of 1; 0.6 left" in page
    assert "<strong>10 %</strong> spent in the window" in page
    unstated = _press(visit, "plan", periods="2026-01")
    assert unstated.status_code == 422
    assert 'id="reads-fault"' in unstated.text
    planned = _press(visit, "plan", periods="2026-01", reads="race")
    assert planned.status_code == 200
    assert "then panel has no room in its cap on ρ for tag race" in planned.text
    button = {"do": "register-discrete_gaussian", "release": "by the planner"}
    done = visit.post("/plan", data=form_of(planned, "/plan").with_texts(button))
    assert done.status_code == 303
    assert json_of(embedded.get("/v1/accounts/panel"))["caps"][0]["counted"] > 0.4
