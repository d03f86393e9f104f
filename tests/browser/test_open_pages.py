"""Pages that are open without a key."""

from playwright.sync_api import Page, expect

from tests.browser.steps import assert_accessible, assert_fits, screenshot


def test_swagger_ui_works_under_its_policy(page: Page) -> None:
    page.set_default_timeout(60_000)  # it takes the contract apart, for seconds where the machine is busy
    page.goto("/docs")
    page.get_by_role("heading", name="accounts").wait_for()


def test_an_operation_shows_a_true_answer_on_a_small_screen(page: Page) -> None:
    page.set_default_timeout(60_000)
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto("/docs")
    operation = page.locator("#operations-accounts-list_accounts")
    operation.locator(".opblock-summary-control").click()
    operation.locator(".response", has_text="200").get_by_text("pl94-2020-us-persons").first.wait_for()
    assert_fits(page)


def test_a_page_that_is_not_there(page: Page) -> None:
    answer = page.goto("/nothing")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert_accessible(page)
    screenshot(page, "not-found")
    page.get_by_role("link", name="What this means").click()
    expect(page.get_by_text("not_found, status 404")).to_be_visible()
