"""Drawing noisy counts from a page, and the report of a period, in a browser."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import json_of
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot, sign_in
from tests.processes import Served

_WIDE: dict[str, Any] = {"viewport": {"width": 1400, "height": 900}}
_NARROW: dict[str, Any] = {"viewport": {"width": 400, "height": 900}, "color_scheme": "dark"}


def _preview(page: Page) -> None:
    page.goto("/accounts/empty")
    page.get_by_role("link", name="Draw noisy counts").click()
    page.get_by_label("Margin of error, or the parameter").fill("20")
    page.get_by_label("Name of the release").fill("county totals")
    page.get_by_label("Purpose").fill("Planning of schools")
    page.get_by_role("button", name="Preview the charge").click()
    expect(page.get_by_role("heading", name="The charge")).to_be_visible()


@pytest.mark.parametrize("javascript", [True, False])
def test_a_table_is_drawn_and_saved(
    new_context: Callable[..., BrowserContext], served: Served, tmp_path: Path, javascript: bool
) -> None:
    page = new_context(**_WIDE, java_script_enabled=javascript).new_page()
    sign_in(page)
    table = tmp_path / "counts.csv"
    table.write_text("\ufeffcounty,count\r\n001,54571\r\n003,182265\r\n", encoding="utf-8", newline="")
    _preview(page)
    before = len(json_of(served.client.get("/v1/accounts/empty/releases"))["items"])
    page.get_by_label("The file of true counts").set_input_files(table)
    button = page.get_by_role("button", name="Charge the account and draw")
    saved = list[list[list[str]]]()
    for _ in range(2):  # the second press is answered alike, and charges nothing
        with page.expect_download() as download:
            button.click()
        with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
            saved.append(list(csv.reader(file)))
    assert saved[0] == saved[1]
    assert saved[0][0] == ["county", "noisy", "moe", "confidence"]
    assert [row[0] for row in saved[0][1:]] == ["001", "003"]
    assert len(json_of(served.client.get("/v1/accounts/empty/releases"))["items"]) == before + 1


def test_fields_of_other_noise_are_hidden(steward: Page) -> None:
    steward.goto("/accounts/empty/draw")
    expect(steward.get_by_label("Confidence of the margin")).to_be_visible()
    expect(steward.get_by_label("m", exact=True)).to_be_hidden()
    steward.get_by_label("Noise").select_option("discrete_osgt sigma_squared")
    expect(steward.get_by_label("Confidence of the margin")).to_be_hidden()
    expect(steward.get_by_label("m", exact=True)).to_be_visible()


@pytest.mark.parametrize(("name", "options"), [("light-1400", _WIDE), ("dark-400", _NARROW)])
def test_the_pages_are_accessible_and_fit(
    new_context: Callable[..., BrowserContext], served: Served, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    page = new_context(**options).new_page()
    sign_in(page)
    _preview(page)
    assert_accessible(page)
    assert_fits(page)
    screenshot(page, f"draw-{name}")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("county,count\n001,x\n")
    page.get_by_label("The file of true counts").set_input_files(wrong)
    page.get_by_role("button", name="Charge the account and draw").click()
    expect(page.get_by_text("line 2, column 2")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    screenshot(page, f"draw-refused-{name}")
    page.goto("/accounts/persons/report")
    assert_accessible(page)
    assert_fits(page)
    assert_tables_fit(page)


def test_the_report_prints_without_forms(steward: Page) -> None:
    steward.goto("/accounts/nation")
    steward.get_by_role("link", name="Report for a board").click()
    steward.emulate_media(media="print")
    expect(steward.get_by_role("button", name="Show")).to_be_hidden()
    expect(steward.get_by_role("heading", name="Spent, held and left")).to_be_visible()
    expect(steward.get_by_role("link", name="CSV")).to_have_count(0)
    assert_fits(steward)
