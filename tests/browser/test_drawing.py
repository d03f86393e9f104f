"""Drawing noisy counts from a page, and the report of a period, in a browser."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import json_of, open_account, pure, release
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


def _draw(page: Page, button: str = "Draw") -> None:
    """Confirm what is drawn, and draw it."""
    page.get_by_label("cannot be").check()
    page.get_by_role("button", name=button, exact=True).click()


def _saved(page: Page) -> list[list[str]]:
    """Press the link of the page after a draw, and return the rows of the file."""
    with page.expect_download() as download:
        page.get_by_role("link", name="Save the noisy counts").click()
    assert download.value.suggested_filename.startswith("noisy-")
    with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


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
    _draw(page, "Charge the account and draw")
    saved = list[list[list[str]]]()
    for _ in range(2):  # the browser sends the form again, which is answered alike and charges nothing
        expect(page.get_by_role("heading", name="Drawn and charged")).to_be_visible()
        saved.append(_saved(page))
        page.reload()
    assert saved[0] == saved[1]
    assert saved[0][0] == ["county", "noisy", "moe", "confidence"]
    assert [row[0] for row in saved[0][1:]] == ["001", "003"]
    assert len(json_of(served.client.get("/v1/accounts/empty/releases"))["items"]) == before + 1


@pytest.mark.parametrize("javascript", [True, False])
def test_a_registered_release_is_drawn_from_its_page(
    new_context: Callable[..., BrowserContext], served: Served, tmp_path: Path, javascript: bool
) -> None:
    parts = [pure("0.001", name="county"), {"type": "repeat", "count": 2, "part": pure("0.001", name="tract")}]
    plan = {"type": "sequence", "parts": parts, "partitions": ["north", "south"]}
    at = f"/accounts/empty/releases/{release(served.client, plan, 'empty', name='planned')['id']}"
    page = new_context(**_WIDE, java_script_enabled=javascript).new_page()
    sign_in(page)
    table = tmp_path / "counts.csv"
    table.write_text("county,count\n001,54571\n003,182265\n")
    page.goto(at)
    page.get_by_role("link", name="Draw noisy counts").click()
    page.get_by_label("Mechanism").select_option("tract")
    page.get_by_role("button", name="Choose").click()
    page.get_by_label("Partition").select_option("north")
    page.get_by_label("Repetition").fill("1")
    page.get_by_label("The file of true counts").set_input_files(table)
    _draw(page)
    expect(page.get_by_role("heading", name="Drawn", exact=True)).to_be_visible()
    assert [row[0] for row in _saved(page)] == ["county", "001", "003"]
    page.get_by_role("link", name="The release, with its draws").click()
    expect(page.get_by_role("region", name="Draws").get_by_role("row", name="tract")).to_contain_text("north")
    (drawn,) = json_of(served.client.get(f"/v1{at}/draws"))["items"]
    assert (drawn["mechanism"]["name"], drawn["partition"], drawn["repetition"]) == ("tract", "north", 1)


def test_noisy_counts_of_megabytes_are_saved(steward: Page, tmp_path: Path) -> None:
    """Browsers bound the addresses of links, and so the file that a page may have within."""
    table = tmp_path / "counts.csv"
    rows = 150_000
    table.write_text("place,count\n" + "".join(f"{row:07},{row}\n" for row in range(rows)))
    _preview(steward)
    steward.get_by_label("The file of true counts").set_input_files(table)
    _draw(steward, "Charge the account and draw")
    expect(steward.get_by_role("heading", name="Drawn and charged")).to_be_visible()
    assert len(_saved(steward)) == rows + 1


def test_a_file_is_looked_at_before_it_is_drawn(steward: Page, served: Served, tmp_path: Path) -> None:
    """Its labels are shown and none of its counts; the tick is for one file."""
    at = f"/accounts/empty/releases/{release(served.client, pure('0.001'), 'empty', name='looked at')['id']}"
    steward.goto(f"{at}/draw")
    table, other, binary = tmp_path / "counts.csv", tmp_path / "other.csv", tmp_path / "binary.csv"
    rows = "".join(f'"place; {row}",f,{row + 54571}\r\n' for row in range(1800))
    table.write_text(f"place,sex,count\r\n{rows}", encoding="utf-8", newline="")
    other.write_text("\ufeffage;count\n0 to 4;54571\n", encoding="utf-8")
    binary.write_bytes(b"PK\xff\xfe")
    chosen, look, tick = (
        steward.get_by_label("The file of true counts"),
        steward.locator("#counts-look"),
        steward.get_by_label("cannot be drawn again"),
    )
    chosen.set_input_files(table)
    expect(steward.get_by_text("Draw 1,800 counts by place and sex as “looked at”.")).to_be_visible()
    expect(look).to_contain_text("place; 0, fplace; 1, fplace; 2, f")
    expect(look).not_to_contain_text("5457")
    tick.check()
    chosen.set_input_files(other)
    expect(steward.get_by_text("Draw 1 count by age as")).to_be_visible()
    expect(look).to_contain_text("0 to 4")
    expect(tick).not_to_be_checked()
    chosen.set_input_files(binary)
    expect(look).to_contain_text("is no text in UTF-8")


def test_what_may_be_a_mistake_in_a_file_is_said(steward: Page, served: Served, tmp_path: Path) -> None:
    at = f"/accounts/empty/releases/{release(served.client, pure('0.001'), 'empty', name='warned of')['id']}"
    steward.goto(f"{at}/draw")
    chosen, look = steward.get_by_label("The file of true counts"), steward.locator("#counts-look")
    table = tmp_path / "counts.csv"
    rows = "".join(f'"a ""b"" {row}",0{row},"{row + 1},5",{-row % 3 - 1}\r\n' for row in range(9000))
    table.write_text(f"county,code,population,count\r\n{rows}\r\n", encoding="utf-8", newline="")
    chosen.set_input_files(table)
    expect(look).to_contain_text("population looks like numbers: it gets no noise, and is published as it is")
    expect(look).to_contain_text("3,000 counts are below 0")
    expect(look).not_to_contain_text("code looks like")
    expect(steward.get_by_text("Draw 9,000 counts by county, code and population as")).to_be_visible()
    screenshot(steward, "draw-warned")
    table.write_text("place\tcount\nx\t-0\ny\t-4", encoding="utf-8")
    chosen.set_input_files([])
    chosen.set_input_files(table)
    expect(look).to_contain_text("1 count is below 0")
    expect(look).not_to_contain_text("looks like")


def test_a_changed_form_is_previewed_again_before_it_is_drawn(steward: Page, served: Served) -> None:
    _preview(steward)
    draw, figure = (
        steward.get_by_role("button", name="Charge the account and draw"),
        steward.get_by_label("Margin of error, or the parameter"),
    )
    expect(draw).to_be_enabled()
    figure.fill("5")
    expect(draw).to_be_disabled()
    expect(steward.get_by_text("The form above says something else now: preview it again.")).to_be_visible()
    screenshot(steward, "draw-changed")
    figure.fill("20")
    expect(draw).to_be_enabled()
    steward.get_by_label("Noise", exact=True).select_option("geometric epsilon")
    expect(draw).to_be_disabled()
    steward.get_by_label("Noise", exact=True).select_option("geometric moe")
    figure.fill("30")
    steward.get_by_role("button", name="Preview it again").click()
    expect(steward.get_by_text("each noisy count is within 30 of the true count")).to_be_visible()
    expect(draw).to_be_enabled()
    open_account(served.client, "careful", {"definition": "pure", "epsilon": "1"}, approval_above="0.001")
    steward.goto("/accounts/careful/draw")
    figure.fill("20")
    steward.get_by_label("Name of the release").fill("county totals")
    steward.get_by_role("button", name="Preview the charge").click()
    propose = steward.get_by_role("button", name="Propose the release")
    expect(propose).to_be_enabled()
    figure.fill("21")
    expect(propose).to_be_disabled()


def test_fields_of_other_noise_are_hidden(steward: Page) -> None:
    steward.goto("/accounts/empty/draw")
    expect(steward.get_by_label("Confidence of the margin")).to_be_visible()
    expect(steward.get_by_label("m", exact=True)).to_be_hidden()
    steward.get_by_label("Noise").select_option("discrete_osgt sigma_squared")
    expect(steward.get_by_label("Confidence of the margin")).to_be_hidden()
    expect(steward.get_by_label("m", exact=True)).to_be_visible()


def _assert_shown(page: Page, name: str) -> None:
    assert_accessible(page)
    assert_fits(page)
    screenshot(page, name)


@pytest.mark.parametrize(("name", "options"), [("light-1400", _WIDE), ("dark-400", _NARROW)])
def test_the_pages_are_accessible_and_fit(
    new_context: Callable[..., BrowserContext], served: Served, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    page = new_context(**options).new_page()
    sign_in(page)
    _preview(page)
    _assert_shown(page, f"draw-{name}")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("county,count\n001,x\n")
    page.get_by_label("The file of true counts").set_input_files(wrong)
    _draw(page, "Charge the account and draw")
    expect(page.locator("#counts-fault")).to_be_visible()
    _assert_shown(page, f"draw-refused-{name}")
    right = tmp_path / "right.csv"
    right.write_text("county,count\n001,54571\n")
    page.get_by_label("The file of true counts").set_input_files(right)
    _draw(page, "Charge the account and draw")
    expect(page.get_by_role("heading", name="Drawn and charged")).to_be_visible()
    _assert_shown(page, f"drawn-{name}")
    page.get_by_role("link", name="The release, with its draws").click()
    _assert_shown(page, f"release-drawn-{name}")
    page.goto("/accounts/persons/releases")
    page.get_by_role("link", name="redistricting").click()
    page.get_by_role("link", name="Draw noisy counts").click()
    _assert_shown(page, f"release-draw-choice-{name}")
    page.get_by_label("Mechanism").select_option("county/total")
    page.get_by_role("button", name="Choose").click()
    _assert_shown(page, f"release-draw-{name}")
    page.get_by_label("The file of true counts").set_input_files(wrong)
    _draw(page)
    expect(page.locator("#counts-fault")).to_be_visible()
    _assert_shown(page, f"release-draw-refused-{name}")
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
