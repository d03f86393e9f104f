"""The planner: from margins of error to a registered release, and what can go wrong on the way."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from service.pages.planner.form import KINDS
from tests.api.calls import charge, json_of, make_key, pure
from tests.browser.steps import (
    assert_accessible,
    assert_fits,
    fill_row,
    release_id,
    screenshot,
    sign_in,
    state_targets,
    work_out,
)
from tests.processes import Served


def test_from_margins_to_a_release(steward: Page, served: Served) -> None:
    page = steward
    page.get_by_role("link", name="Planner").click()
    assert_accessible(page)
    screenshot(page, "plan-empty")
    state_targets(page)
    expect(page.locator("#chosen")).to_contain_text("zero-concentrated")
    work_out(page)
    assert_accessible(page)
    screenshot(page, "plan-tables")
    expect(page.get_by_text("cheapest")).to_have_count(1)
    page.get_by_text("The discrete Gaussian plan as JSON").click()
    shown = json.loads(page.get_by_label("The discrete Gaussian plan as JSON").inner_text())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == shown
    page.get_by_label("Name of the release").fill("state and county")
    page.get_by_label("Tags").fill("pl94, first look")
    page.get_by_role("button", name="Register the discrete Gaussian plan").click()
    page.wait_for_url("**/accounts/nation/releases/*")
    found = json_of(served.client.get(f"/v1/accounts/nation/releases/{release_id(page)}"))
    assert (found["name"], found["tags"], found["state"]) == ("state and county", ["pl94", "first look"], "committed")
    assert found["plan"] == shown
    assert [part["name"] for part in shown["parts"]] == ["State/Total", "County/Total", "County/Sex by age"]
    assert [part["tags"] for part in shown["parts"]] == [["State"], ["County"], ["County"]]


def test_only_holding_it(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=nation")
    fill_row(page, 1, Table="Held", **{"Margin of error": "40"})
    work_out(page)
    page.get_by_label("Name of the release").fill("held")
    page.get_by_label("Only hold it for").fill("P7D")
    page.get_by_role("button", name="Register the geometric plan").click()
    page.wait_for_url("**/accounts/nation/releases/*")
    found = json_of(served.client.get(f"/v1/accounts/nation/releases/{release_id(page)}"))
    assert found["state"] == "reserved"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [360, 860])
def test_no_field_of_a_row_is_narrower_than_its_figures(
    new_context: Callable[..., BrowserContext], kind: str, width: int
) -> None:
    page = new_context(viewport={"width": width, "height": 800}).new_page()
    sign_in(page)
    page.goto(f"/plan?kind={kind}")
    assert_fits(page)
    widths = page.locator("#rows input").evaluate_all("fields => fields.map(field => field.clientWidth)")
    assert widths
    assert min(widths) > 100
    screenshot(page, f"plan-{kind}-{width}")


def test_the_result_is_printed_without_the_form(steward: Page) -> None:
    page = steward
    page.goto("/plan?account=nation")
    state_targets(page)
    work_out(page)
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", name="Plan and cost")).to_be_visible()
    expect(page.get_by_role("rowheader", name="Sex by age")).to_be_visible()
    expect(page.get_by_text("For the account nation.")).to_be_visible()
    expect(page.locator("input:visible, button:visible, select:visible")).to_have_count(0)
    screenshot(page, "plan-print")


def test_a_double_click_registers_once(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=nation")
    fill_row(page, 1, Table="Twice", **{"Margin of error": "60"})
    work_out(page)
    page.get_by_label("Name of the release").fill("twice")
    # Two presses at once, as by somebody without the script that holds the second one back.
    reached = page.evaluate(
        """async () => {
            const sent = new URLSearchParams(new FormData(document.getElementById("planner")));
            sent.append("do", "register-geometric");
            const press = () => fetch("/plan", { method: "POST", body: sent });
            return (await Promise.all([press(), press()])).map((answer) => answer.url);
        }"""
    )
    page.get_by_role("button", name="Register the geometric plan").dblclick()
    page.wait_for_url("**/accounts/nation/releases/*")
    assert set(reached) == {page.url}
    found = json_of(served.client.get("/v1/accounts/nation/releases"))["items"]
    assert [one["id"] for one in found if one["name"] == "twice"] == [release_id(page)]


def test_more_than_is_left(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=empty")
    fill_row(page, 1, Table="Sharp", **{"Margin of error": "2"})
    fill_row(page, 2, Table="Sharper", Geography="State", **{"Margin of error": "3"})
    work_out(page)
    expect(page.get_by_text("empty has 1 of its ε budget left")).to_have_count(3)
    expect(page.get_by_role("button", name="Register")).to_have_count(0)
    assert_accessible(page)
    screenshot(page, "plan-over")
    page.get_by_role("button", name="Widen the margins until the geometric plan fits").click()
    page.get_by_role("button", name="Register the geometric plan").wait_for()
    expect(page.get_by_role("button", name="Register the discrete Gaussian plan")).to_have_count(0)
    screenshot(page, "plan-widened")


def test_a_budget_that_was_spent_meanwhile(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=households")
    fill_row(page, 1, Table="Late", **{"Margin of error": "12"})
    work_out(page)
    json_of(charge(served.client, pure("3.4"), "households"), 201)
    page.get_by_label("Name of the release").fill("late")
    page.get_by_role("button", name="Register the discrete Gaussian plan").click()
    expect(page.get_by_role("alert")).to_contain_text("The release exceeds the budget")
    expect(page.locator("input[name=release]")).to_have_value("late")  # kept for when it fits
    assert_accessible(page)
    screenshot(page, "plan-refused")


def test_what_has_no_meaning_is_said_at_its_field(steward: Page) -> None:
    page = steward
    page.goto("/plan")
    fill_row(page, 1, Table="Total", **{"Margin of error": "six"})
    page.get_by_role("button", name="Work out the plan").last.click()
    expect(page.get_by_label("Budget", exact=True)).to_have_attribute("aria-invalid", "true")
    state_targets(page)
    fill_row(page, 1, Table="Total", **{"Margin of error": "six", "Cells per record": "0"})
    fill_row(page, 2, Sensitivity="0.5")
    page.get_by_role("button", name="Work out the plan").last.click()
    wrong = page.locator("[aria-invalid=true]")
    expect(wrong).to_have_count(3)
    expect(wrong.first).to_have_value("six")
    expect(wrong.first).to_have_accessible_description(re.compile("expected a number"))
    expect(page.get_by_label("Table", exact=True).first).to_have_value("Total")
    assert_accessible(page)
    screenshot(page, "plan-wrong")
    page.get_by_role("alert").get_by_role("link").first.click()
    expect(wrong.first).to_be_focused()


def test_safetab(steward: Page, served: Served) -> None:
    page = steward
    page.goto("/plan?account=nation")
    page.get_by_role("button", name="SafeTab").click()
    for number, (level, moe) in enumerate({"Nation": "6", "State": "11", "County": "50"}.items(), 1):
        fill_row(page, number, **{"Level of population groups": level, "Margin of error": moe})
    work_out(page)
    page.get_by_text("All analyses", exact=True).click()
    expect(page.get_by_role("row", name="rdp, printed formula")).to_contain_text("no")
    expect(page.get_by_role("row", name="tight").first).to_contain_text("yes")
    assert_accessible(page)
    screenshot(page, "plan-safetab")
    page.get_by_label("Name of the release").fill("safetab")
    page.get_by_role("button", name="Register the discrete Gaussian plan").click()
    page.wait_for_url("**/accounts/nation/releases/*")
    found = json_of(served.client.get(f"/v1/accounts/nation/releases/{release_id(page)}"))
    assert [part["tags"] for part in found["plan"]["parts"]] == [["Nation"], ["State"], ["County"]]


def test_rows_with_the_keyboard_alone(steward: Page) -> None:
    page = steward
    page.goto("/plan?account=nation")
    page.get_by_role("button", name="Add a row").focus()
    page.keyboard.press("Enter")
    rows = page.locator("#rows > li")
    expect(rows).to_have_count(4)
    expect(rows.nth(3).get_by_label("Table")).to_be_focused()
    page.keyboard.type("Total")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("30")
    page.get_by_role("button", name="Remove row 2").focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(3)
    expect(rows.nth(1).get_by_label("Table")).to_be_focused()
    rows.nth(2).get_by_label("Margin of error").focus()
    page.keyboard.press("Enter")  # as in any form: it works the plan out
    expect(page.get_by_role("heading", name="Plan and cost")).to_be_visible()
    expect(page.get_by_role("rowheader", name="Total")).to_be_visible()


def test_the_whole_path_without_javascript_on_a_small_dark_screen(
    new_context: Callable[..., BrowserContext], served: Served
) -> None:
    context = new_context(
        java_script_enabled=False, color_scheme="dark", viewport={"width": 400, "height": 800}, device_scale_factor=2
    )
    page = context.new_page()
    sign_in(page)
    page.get_by_role("link", name="Planner").click()
    page.get_by_label("Charge to").select_option("nation")
    page.get_by_role("button", name="Show what is left").click()
    expect(page.locator("#chosen")).to_contain_text("zero-concentrated")
    page.get_by_role("button", name="Add a row").click()
    rows = page.locator("#rows > li")
    expect(rows).to_have_count(4)
    fill_row(page, 4, Table="Small", **{"Margin of error": "45"})
    page.get_by_role("button", name="Remove row 1").click()
    expect(rows).to_have_count(3)
    expect(rows.nth(2).get_by_label("Table")).to_have_value("Small")
    work_out(page)
    assert_fits(page)
    screenshot(page, "plan-dark-400")
    page.get_by_label("Name of the release").fill("small")
    page.get_by_role("button", name="Register the geometric plan").click()
    page.wait_for_url("**/accounts/nation/releases/*")
    found = json_of(served.client.get(f"/v1/accounts/nation/releases/{release_id(page)}"))
    assert found["name"] == "small"
    page.goto("/plan?kind=safetab")
    assert_fits(page)
    screenshot(page, "plan-safetab-dark-400")


def test_in_the_dark(new_context: Callable[..., BrowserContext]) -> None:
    page = new_context(color_scheme="dark", viewport={"width": 400, "height": 800}).new_page()
    sign_in(page)
    page.goto("/plan?account=empty")
    fill_row(page, 1, Table="Sharp", **{"Margin of error": "2"})
    work_out(page)
    assert_accessible(page)
    page.get_by_label("Margin of error").first.fill("two")
    page.get_by_role("button", name="Work out the plan").last.click()
    page.get_by_role("alert").wait_for()
    assert_fits(page)
    assert_accessible(page)
    screenshot(page, "plan-wrong-dark-400")


def test_an_auditor_plans_and_cannot_register(page: Page, served: Served) -> None:
    key = make_key(served.client, "auditor", "reader")["Authorization"].removeprefix("Bearer ")
    sign_in(page, key)
    page.goto("/plan?account=nation")
    fill_row(page, 1, Table="Total", **{"Margin of error": "6"})
    work_out(page)
    expect(page.get_by_text("Registering takes a key with the role pipeline or steward.")).to_be_visible()
    expect(page.get_by_role("button", name="Register")).to_have_count(0)
    expect(page.get_by_role("link", name="Empirical loss")).to_have_count(0)


def test_the_way_back_shows_the_result_again(steward: Page) -> None:
    page = steward
    page.goto("/plan")
    state_targets(page)
    work_out(page)
    page.get_by_role("link", name="Saved scenarios").click()
    page.get_by_role("heading", name="Scenarios").wait_for()
    page.go_back()
    expect(page.get_by_role("heading", name="Plan and cost")).to_be_visible()
    expect(page.get_by_label("Margin of error").nth(1)).to_have_value("11")
