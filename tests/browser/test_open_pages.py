"""Pages that are open without a key."""

from playwright.sync_api import Page, expect

from tests.browser.steps import assert_accessible, screenshot


def test_a_page_that_is_not_there(page: Page) -> None:
    answer = page.goto("/nothing")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert_accessible(page)
    screenshot(page, "not-found")
    page.get_by_role("link", name="What this means").click()
    expect(page.get_by_text("not_found, status 404")).to_be_visible()
