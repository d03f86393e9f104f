"""The interactive documentation: Swagger UI within a page of the service, in both colours and on a small screen."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.api.calls import STEWARD
from tests.browser.steps import assert_accessible, assert_fits, screenshot

_PATIENCE = 60_000  # milliseconds: it takes the contract apart, for seconds where the machine is busy


def _opened(page: Page, operation: str) -> Locator:
    """Open an operation."""
    place = page.locator(f"#operations-accounts-{operation}")
    place.locator(".opblock-summary-control").click()
    place.locator(".response").first.wait_for()
    return place


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 400)])
def test_it_is_accessible_and_fits(new_context: Callable[..., BrowserContext], scheme: str, width: int) -> None:
    page = new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
    page.set_default_timeout(_PATIENCE)
    page.goto("/docs")
    page.get_by_role("heading", name="accounts").wait_for()
    assert_accessible(page)
    assert_fits(page)
    listed = _opened(page, "list_accounts")
    listed.locator(".response", has_text="200").get_by_text("pl94-2020-us-persons").first.wait_for()
    assert_accessible(page)
    assert_fits(page)
    _opened(page, "open_account").get_by_role("button", name="Try it out").click()
    page.get_by_label("Request body").wait_for()
    assert_accessible(page)
    screenshot(page, f"interface-{scheme}-{width}")
    page.get_by_role("button", name="Authorize", exact=True).click()
    page.get_by_role("button", name="Close", exact=True).first.wait_for()
    assert_accessible(page)


def test_padlocks_mark_what_needs_a_key_and_no_command_shows_one(page: Page) -> None:
    page.set_default_timeout(_PATIENCE)
    page.goto("/docs")
    page.locator(".opblock").first.wait_for()
    for one in page.locator(".opblock").all():
        needs = one.locator(".opblock-summary-path").inner_text().startswith("/v1/")
        expect(one.locator(".authorization__btn")).to_have_count(1 if needs else 0)
    page.get_by_role("button", name="Authorize", exact=True).click()
    page.locator(".auth-container input").fill(STEWARD)
    page.get_by_role("button", name="Apply credentials").click()
    page.get_by_role("button", name="Close", exact=True).first.click()
    listed = _opened(page, "list_accounts")
    listed.get_by_role("button", name="Try it out").click()
    listed.get_by_role("button", name="Execute").click()
    expect(listed.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    expect(listed.locator(".curl-command")).to_contain_text("Authorization: Bearer YOUR_KEY")
    expect(page.locator("body")).not_to_contain_text(STEWARD)


def test_a_signed_in_user_needs_no_key(page: Page) -> None:
    page.set_default_timeout(_PATIENCE)
    page.goto("/docs")
    page.get_by_role("main").get_by_role("link", name="Sign in").click()
    page.get_by_label("Your key").fill(STEWARD)
    page.get_by_role("button", name="Sign in").click()
    listed = _opened(page, "list_accounts")
    listed.get_by_role("button", name="Try it out").click()
    listed.get_by_role("button", name="Execute").click()
    answer = listed.locator(".live-responses-table .response")
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    expect(answer).to_contain_text("next_cursor")
    expect(listed.locator(".curl-command")).to_contain_text("/v1/accounts?")
    expect(listed.locator(".curl-command")).not_to_contain_text("/docs/v1")
    expect(listed.locator(".curl-command")).to_contain_text("Authorization: Bearer YOUR_KEY")
    expect(listed.locator(".curl-command")).not_to_contain_text("CSRF")
    page.get_by_role("link", name="Privacy-budget ledger").click()
    expect(page.get_by_role("heading", name="Accounts", exact=True)).to_be_visible()
