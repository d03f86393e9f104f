"""The pages of accounts with periods: strips of one to hundreds of periods, reached with the keyboard."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import Client, concentrated, json_of, open_account
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot, sign_in
from tests.processes import Served

_SIZES: list[tuple[str, dict[str, Any]]] = [
    ("light-1400", {"viewport": {"width": 1400, "height": 900}}),
    ("dark-400", {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}),
]
_PANEL = {"calendar": "month", "participation": {"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}}
_COUNTS = (1, 12, 40, 400)


def _periods(number: int) -> dict[str, Any]:
    return {"calendar": "index", "participation": {"offsets": list(range(min(4, number)))}}


def _charge(client: Client, account: str, rho: str, periods: Any, **fields: Any) -> Any:
    body = {"name": "unemployment", "plan": concentrated(rho, name="status"), "periods": periods} | fields
    return json_of(client.post(f"/v1/accounts/{account}/releases", json=body), 201)


def _fill(client: Client) -> None:
    """Open accounts of one to 400 periods, a panel with all kinds of releases, and days."""
    for number in _COUNTS:
        name = f"waves-{number}"
        open_account(client, name, {"definition": "zcdp", "rho": "1"}, periods=_periods(number))
        releases = [
            {"name": str(wave), "plan": concentrated(f"0.{1 + wave * 7 % 24:02d}"), "periods": {"list": [wave]}}
            for wave in range(number)
        ]
        json_of(client.post(f"/v1/accounts/{name}/releases/batch", json={"releases": releases}), 201)
    open_account(client, "panel", {"definition": "zcdp", "rho": "1"}, periods=_PANEL, description="Labour force")
    for month in range(1, 13):
        _charge(client, "panel", f"0.{6 + month:02d}", {"list": [f"2026-{month:02d}"]})
    _charge(client, "panel", "0.2", {"from": "2026-11", "to": "2026-12"}, reserve_for="P30D")
    _charge(client, "panel", "0.02", "all")
    _charge(client, "panel", "0.01", {"list": [f"2026-{month:02d}" for month in range(1, 12, 2)]})
    body = {"name": "too much", "plan": concentrated("0.9"), "periods": {"list": ["2026-12"]}}
    assert client.post("/v1/accounts/panel/releases", json=body).status_code == 409
    days = {"calendar": "day", "participation": {"offsets": [0]}}
    budget = {"definition": "approximate", "epsilon": "1", "delta": "1e-7"}
    open_account(client, "days", budget, periods=days)
    march = [
        {"name": "views", "plan": concentrated(f"0.00{day % 9 + 1}"), "periods": {"list": [f"2026-03-{day:02d}"]}}
        for day in range(1, 32)
    ]
    json_of(client.post("/v1/accounts/days/releases/batch", json={"releases": march}), 201)


@pytest.fixture(scope="module", autouse=True)
def _filled(served: Served) -> None:
    _fill(served.client)


def _pages(client: Client) -> dict[str, str]:
    """Every page that shows periods, by the name of its picture."""
    listed = json_of(client.get("/v1/accounts/panel/releases"))["items"]
    return {
        "panel": "/accounts/panel",
        "panel-later": "/accounts/panel?from=2026-10#periods",
        "panel-refused": "/accounts/panel?from=2026-13#periods",
        "days": "/accounts/days",
        **{f"waves-{number}": f"/accounts/waves-{number}" for number in _COUNTS},
        "panel-releases": "/accounts/panel/releases",
        "panel-release": f"/accounts/panel/releases/{listed[-1]['id']}",
        "panel-journal": "/accounts/panel/journal",
        "panel-plan": "/plan?account=panel",
        "panel-new": "/new-account",
        "panel-accounts": "/",
    }


@pytest.mark.parametrize(("name", "options"), _SIZES)
def test_every_page_with_periods_is_accessible_and_fits(
    new_context: Callable[..., BrowserContext], served: Served, name: str, options: dict[str, Any]
) -> None:
    page = new_context(**options).new_page()
    sign_in(page)
    for title, path in _pages(served.client).items():
        page.goto(path)
        for table in page.get_by_text("These periods as a table").all():
            table.click()
        assert_accessible(page)
        assert_fits(page)
        assert_tables_fit(page)
        screenshot(page, f"{title}-{name}")


@pytest.mark.parametrize(("name", "options"), _SIZES)
def test_columns_are_wide_enough_to_see_and_none_is_cut(
    new_context: Callable[..., BrowserContext], name: str, options: dict[str, Any]
) -> None:
    page = new_context(**options).new_page()
    sign_in(page)
    for number in _COUNTS:
        page.goto(f"/accounts/waves-{number}")
        picture = page.locator(".strip svg")
        columns = picture.locator("rect.track")
        expect(columns).to_have_count(min(number, 60))
        outer = picture.bounding_box()
        boxes = [box for column in columns.all() if (box := column.bounding_box()) is not None]
        assert outer is not None
        assert min(box["width"] for box in boxes) > 3, name
        assert min(box["height"] for box in boxes) > 90
        assert boxes[-1]["x"] + boxes[-1]["width"] <= outer["x"] + outer["width"] + 1


def test_the_table_behind_the_strip_is_reached_with_the_keyboard(steward: Page) -> None:
    steward.goto("/accounts/panel")
    expect(steward.get_by_role("img", name="for each period from 2026-01 to 2026-12")).to_be_visible()
    table = steward.get_by_role("region", name="Periods")
    expect(table).to_be_hidden()
    for _ in range(60):
        steward.keyboard.press("Tab")
        if steward.evaluate("document.activeElement.innerText") == "These periods as a table":
            break
    steward.keyboard.press("Enter")
    expect(table).to_be_visible()
    expect(table.get_by_role("columnheader", name="Worst window")).to_be_visible()
    expect(table.get_by_role("rowheader", name="2026-07")).to_be_visible()
    steward.keyboard.press("Tab")
    assert table.evaluate("part => part === document.activeElement")


def test_hundreds_of_periods_are_paged(steward: Page) -> None:
    steward.goto("/accounts/waves-400")
    steward.get_by_role("link", name="Earlier periods").click()
    expect(steward.get_by_role("img", name="for each period from 280 to 339")).to_be_visible()
    steward.get_by_label("First period to show").fill("7")
    steward.get_by_role("button", name="Show", exact=True).click()
    expect(steward.get_by_role("img", name="for each period from 7 to 66")).to_be_visible()
    steward.get_by_role("link", name="Later periods").click()
    expect(steward.get_by_role("img", name="for each period from 67 to 126")).to_be_visible()


def test_a_panel_is_opened_and_planned_for(steward: Page) -> None:
    steward.goto("/new-account")
    steward.get_by_label("Name").fill("new-panel")
    steward.get_by_label("Budget", exact=True).fill("0.5")
    steward.get_by_label("Count by").select_option("month")
    steward.get_by_label("Periods of one unit").fill("1-3")
    steward.get_by_role("button", name="Open the account").click()
    expect(steward.get_by_label("Periods of one unit")).to_have_attribute("aria-invalid", "true")
    assert_accessible(steward)
    screenshot(steward, "panel-new-refused")
    steward.get_by_label("Periods of one unit").fill("0-3, 12-15")
    steward.get_by_role("button", name="Open the account").click()
    expect(steward.get_by_text("No release has read some periods alone.")).to_be_visible()
    steward.get_by_role("link", name="Plan a release").click()
    steward.get_by_label("Table", exact=True).first.fill("Status")
    steward.get_by_label("Margin of error").first.fill("6")
    steward.get_by_label("Periods").fill("2026-01 to 2026-03")
    steward.get_by_role("button", name="Work out the plan").click()
    expect(steward.get_by_text("in window 2024-10").first).to_be_visible()
    assert_accessible(steward)
    assert_fits(steward)
    screenshot(steward, "panel-planned")
    steward.get_by_label("Name of the release").fill("first quarter")
    steward.get_by_role("button", name="Register the discrete Gaussian plan").click()
    expect(steward.get_by_text("2026-01 to 2026-03")).to_be_visible()
