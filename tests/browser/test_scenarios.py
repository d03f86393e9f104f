"""Scenarios: planned without an account, pasted, saved, compared, exported and registered."""

import csv
import io
from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import json_of, make_key
from tests.browser.steps import (
    assert_accessible,
    assert_fits,
    assert_tables_fit,
    fill_row,
    release_id,
    screenshot,
    sign_in,
    state_targets,
    work_out,
)
from tests.processes import Served

_PASTED = "Table\tGeography\tMargin of error\nTotal\tState\t6\nTotal\tCounty\t11,5\n"


def _save(page: Page, name: str, noise: str) -> str:
    """Save the worked-out plan as a scenario, and return its address."""
    page.get_by_label("Name of the scenario").fill(name)
    page.get_by_role("button", name=f"Save with {noise} noise").click()
    page.get_by_role("heading", name=name, level=1).wait_for()
    return page.url.partition("?")[0]


def test_from_pasted_rows_without_an_account_to_a_colleague(
    steward: Page, served: Served, new_context: Callable[..., BrowserContext]
) -> None:
    page = steward
    page.get_by_role("link", name="Planner").click()
    page.get_by_text("From a spreadsheet or a CSV file").click()
    page.get_by_label("Pasted rows").fill(_PASTED)
    page.get_by_role("button", name="Read the rows").click()
    expect(page.locator("#rows > li")).to_have_count(2)
    expect(page.locator("#rows > li").nth(1).get_by_label("Margin of error")).to_have_value("11.5")
    page.get_by_label("Budget", exact=True).fill("0.5")
    work_out(page)
    assert_accessible(page)
    assert_tables_fit(page)
    screenshot(page, "plan-supposed")
    address = _save(page, "a supposed budget", "discrete OSGT")
    assert_accessible(page)
    screenshot(page, "scenario")
    colleague = new_context().new_page()
    sign_in(colleague, make_key(served.client, "auditor", "reader")["Authorization"].removeprefix("Bearer "))
    colleague.goto(address)
    expect(colleague.get_by_role("heading", name="a supposed budget", level=1)).to_be_visible()
    expect(colleague.get_by_role("cell", name="discrete OSGT")).to_be_visible()
    expect(colleague.get_by_role("button", name="Delete")).to_have_count(0)


def test_compared_exported_registered_and_deleted(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=nation")
    state_targets(page)
    expect(page.get_by_label("Unit")).to_be_hidden()
    work_out(page)
    _save(page, "sharp, geometric", "geometric")
    page.get_by_role("link", name="Open in the planner").click()
    work_out(page)
    registered = _save(page, "sharp, Gaussian", "discrete Gaussian")
    page.goto("/plan?kind=relative_errors&account=households")
    fill_row(page, 1, Table="Tenure", **{"Relative error": "0.05", "Typical count": "1200"})
    work_out(page)
    _save(page, "tenure", "geometric")
    page.goto("/plan?kind=weights&account=nation")
    fill_row(page, 1, Table="Total", Weight="1")
    fill_row(page, 2, Table="Age", Weight="3")
    page.get_by_role("textbox", name="Budget to divide").fill("0.1")
    work_out(page)
    assert_accessible(page)
    assert_tables_fit(page)
    screenshot(page, "plan-weights")
    page.goto("/scenarios")
    assert_accessible(page)
    screenshot(page, "scenarios")
    for name in ("sharp, geometric", "sharp, Gaussian", "tenure"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare the ticked ones").click()
    page.get_by_role("heading", name="Scenarios side by side").wait_for()
    assert_accessible(page)
    assert_tables_fit(page)
    screenshot(page, "scenarios-compared")
    page.set_viewport_size({"width": 400, "height": 800})
    assert_fits(page)
    screenshot(page, "scenarios-compared-400")
    page.set_viewport_size({"width": 1280, "height": 800})
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(started.value.path().read_text("utf-8"), newline="")))
    assert {row["scenario"] for row in rows} == {"sharp, geometric", "sharp, Gaussian", "tenure"}
    page.goto(registered)
    page.get_by_label("Tags").fill("pl94")
    page.get_by_role("button", name="Register this plan").click()
    page.wait_for_url("**/accounts/nation/releases/*")
    found = json_of(served.client.get(f"/v1/accounts/nation/releases/{release_id(page)}"))
    assert (found["name"], found["tags"]) == ("sharp, Gaussian", ["pl94"])
    page.goto(registered)
    page.get_by_label("Delete the scenario for everybody").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status")).to_contain_text("The scenario was deleted")
    expect(page.get_by_role("link", name="sharp, Gaussian")).to_have_count(0)
