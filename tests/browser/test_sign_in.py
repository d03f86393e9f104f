"""Signing in, what goes wrong with it, and signing out."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import STEWARD, json_of, make_key
from tests.browser.steps import assert_accessible, assert_fits, screenshot, sign_in
from tests.processes import Served


def test_signing_in_and_out(page: Page) -> None:
    page.goto("/")
    assert_accessible(page)
    screenshot(page, "sign-in")
    sign_in(page)
    expect(page.get_by_text("first-steward")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []
    page.go_back()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()  # nothing was kept


def test_a_wrong_key(page: Page) -> None:
    page.goto("/?next=%2Faccounts%2Fpersons")
    page.get_by_label("Your key").fill("nobody's key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#key-fault", has_text="unknown, expired or revoked")).to_be_visible()
    expect(page.get_by_label("Your key")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Your key")).to_have_value("")
    assert_accessible(page)
    screenshot(page, "sign-in-refused")
    assert page.context.cookies() == []


def test_a_key_that_is_revoked_in_mid_session(page: Page, served: Served) -> None:
    made = json_of(served.client.post("/v1/keys", json={"name": "brief", "role": "auditor"}), 201)
    sign_in(page, made["key"])
    assert served.client.delete(f"/v1/keys/{made['id']}").status_code == 204
    page.reload()
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    assert page.context.cookies() == []


def test_a_cookie_that_script_cannot_read(page: Page) -> None:
    sign_in(page)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert STEWARD not in cookie["value"]


def test_forged_and_stale_forms(page: Page) -> None:
    sign_in(page)
    page.evaluate("document.querySelector('input[name=csrf]').value = 'forged'")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()
    assert_accessible(page)
    page.goto("/")
    expect(page.get_by_text("first-steward")).to_be_visible()  # still signed in


def test_a_limited_key_sees_its_accounts_only(page: Page, served: Served) -> None:
    key = make_key(served.client, "auditor", "limited", accounts=["empty"])["Authorization"].removeprefix("Bearer ")
    sign_in(page, key)
    expect(page.get_by_role("link", name="empty")).to_be_visible()
    expect(page.get_by_role("link", name="persons")).to_have_count(0)


def test_with_the_keyboard_alone(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type(STEWARD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Accounts", exact=True)).to_be_visible()


def test_without_javascript_on_a_small_dark_screen(new_context: Callable[..., BrowserContext]) -> None:
    context = new_context(
        java_script_enabled=False, color_scheme="dark", viewport={"width": 400, "height": 800}, device_scale_factor=2
    )
    page = context.new_page()
    page.goto("/")
    screenshot(page, "sign-in-dark-400")
    sign_in(page)
    assert_fits(page)
    screenshot(page, "accounts-dark-400")
