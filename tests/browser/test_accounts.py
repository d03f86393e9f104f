"""The pages of accounts and releases, as somebody with a browser uses them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.api.calls import Client, concentrated, json_of, pure, release
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot, sign_in
from tests.processes import Served, run

_WIDE: dict[str, Any] = {"viewport": {"width": 1200, "height": 800}}
_NARROW: dict[str, Any] = {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}


def _pages(client: Client) -> dict[str, str]:
    """Every page of this part, by the name of its picture."""
    listed = json_of(client.get("/v1/accounts/persons/releases"))["items"]
    found = {one["name"]: f"/accounts/persons/releases/{one['id']}" for one in listed}
    return {
        "accounts": "/",
        "accounts-found": "/?name=pers&sort=used",
        "account": "/accounts/persons",
        "account-empty": "/accounts/empty",
        "account-approximate": "/accounts/households",
        "releases": "/accounts/persons/releases",
        "shares": "/accounts/nation/shares",
        "shares-approximate": "/accounts/households/shares",
        "tags": "/accounts/persons/tags",
        "journal": "/accounts/persons/journal?verify=1",
        "report": "/accounts/persons/report",
        "report-nation": "/accounts/nation/report",
        "release": found["redistricting"],
        "release-held": found["held"],
        "release-drawn": found["county totals"],
        "accuracy": f"{found['county totals']}/accuracy",
        "accuracy-family": "/accounts/persons/accuracy?since=2000-01-01",
        "description": "/accounts/persons/description",
        "description-release": f"{found['redistricting']}/description",
        "new-account": "/new-account?parent=nation",
        "keys": "/keys",
        "webhooks": "/webhooks",
        "webhook": f"/webhooks/{_webhook(client)}",
        "refused": "/accounts/persons/releases/none",
    }


def _webhook(client: Client) -> str:
    """Return the id of a webhook with a message."""
    listed = json_of(client.get("/v1/webhooks"))["items"]
    if listed:
        return str(listed[0]["id"])
    body = {"name": "approvals", "url": "https://hooks.agency.example/ledger", "events": ["release.proposed"]}
    made = json_of(client.post("/v1/webhooks", json=body), 201)
    json_of(client.post(f"/v1/webhooks/{made['id']}/test"), 202)
    return str(made["id"])


@pytest.mark.parametrize(("name", "options"), [("light", _WIDE), ("dark-400", _NARROW)])
def test_every_page_is_accessible_and_fits(
    new_context: Callable[..., BrowserContext], served: Served, name: str, options: dict[str, Any]
) -> None:
    page = new_context(**options).new_page()
    sign_in(page)
    for title, path in _pages(served.client).items():
        page.goto(path)
        assert_accessible(page)
        assert_fits(page)
        assert_tables_fit(page)
        screenshot(page, f"{title}-{name}")


def test_every_page_works_without_javascript(new_context: Callable[..., BrowserContext], served: Served) -> None:
    page = new_context(**_NARROW, java_script_enabled=False).new_page()
    sign_in(page)
    for path in _pages(served.client).values():
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert_fits(page)


def test_the_account_s_pictures_are_drawn(steward: Page) -> None:
    steward.goto("/accounts/persons")
    drawn = steward.locator("figure svg")
    expect(drawn.locator("rect[pointer-events] title").first).to_contain_text("entry 1, account opened")
    drawn.locator("rect[pointer-events]").first.hover()
    box = drawn.bounding_box()
    assert box is not None
    assert box["height"] > 200
    steward.get_by_text("The loss in every notion").click()
    pictures = steward.locator("main img")
    expect(pictures).to_have_count(2)
    for number in range(2):
        pictures.nth(number).scroll_into_view_if_needed()
        expect(pictures.nth(number)).to_have_js_property("complete", value=True)
        assert pictures.nth(number).evaluate("image => image.naturalWidth") > 0
    steward.get_by_text("The same as a table").click()
    expect(steward.get_by_role("cell", name="account opened")).to_be_visible()


def test_from_the_accounts_to_a_release(steward: Page) -> None:
    steward.get_by_role("link", name="persons").click()
    tabs = steward.get_by_role("navigation", name="Account")  # the account's facts link the same word to the glossary
    tabs.get_by_role("link", name="Releases").click()
    steward.get_by_text("By tag, principal or day").click()
    steward.get_by_label("Tag").fill("pl94")
    steward.get_by_role("button", name="Show").click()
    expect(steward.get_by_role("link", name="held")).to_have_count(0)
    steward.get_by_role("link", name="redistricting").click()
    expect(steward.get_by_role("heading", name="redistricting committed")).to_be_visible()
    expect(steward.get_by_text("Parallel: each record is in at most 2 of the parts")).to_be_visible()


def test_the_tree_folds_with_the_keyboard(steward: Page, served: Served) -> None:
    steward.goto(_pages(served.client)["release"])
    leaf = steward.get_by_text("county/age")
    expect(leaf).to_be_visible()
    steward.locator("summary", has_text="Parallel").focus()
    steward.keyboard.press("Enter")
    expect(leaf).to_be_hidden()


def test_a_whole_tree_folds_with_javascript(steward: Page, served: Served) -> None:
    steward.goto(_pages(served.client)["release"])
    steward.get_by_role("button", name="Fold all", exact=True).click()
    expect(steward.get_by_text("state/total")).to_be_hidden()
    steward.get_by_role("button", name="Unfold all").click()
    expect(steward.get_by_text("tract")).to_be_visible()


def test_committing_with_the_keyboard_alone(steward: Page, served: Served) -> None:
    held = release(served.client, pure("1e-6"), "households", name="by keyboard", reserve_for="P1D")
    steward.goto(f"/accounts/households/releases/{held['id']}")
    button = steward.get_by_role("button", name="Commit")
    for _ in range(40):
        steward.keyboard.press("Tab")
        if button.evaluate("button => button === document.activeElement"):
            break
    steward.keyboard.press("Enter")
    expect(steward.get_by_role("status")).to_have_text("The release was committed.")
    expect(button).to_have_count(0)


def test_voiding_says_at_its_field_what_is_missing(steward: Page, served: Served) -> None:
    held = release(served.client, concentrated("1e-6"), "households", name="to void", reserve_for="P1D")
    steward.goto(f"/accounts/households/releases/{held['id']}")
    steward.get_by_label("Reason").fill("withdrawn")
    steward.get_by_role("button", name="Void").click()
    expect(steward.get_by_role("button", name="Void")).to_be_visible()  # nothing was sent: the box is not ticked
    steward.get_by_label("Nothing of this release was or will be published").check()
    steward.get_by_role("button", name="Void").click()
    expect(steward.get_by_label("Attestation")).to_have_attribute("aria-invalid", "true")
    assert_accessible(steward)
    screenshot(steward, "void-refused")
    steward.get_by_label("Reason").fill("withdrawn")
    steward.get_by_label("Attestation").fill("nothing was published")
    steward.get_by_label("Nothing of this release was or will be published").check()
    steward.get_by_role("button", name="Void").click()
    expect(steward.get_by_role("heading", name="to void voided")).to_be_visible()


def test_a_second_steward_approves(steward: Page, new_context: Callable[..., BrowserContext], served: Served) -> None:
    proposed = release(served.client, concentrated("0.25"), "persons", name="proposed")
    at = f"/accounts/persons/releases/{proposed['id']}"
    steward.goto(at)
    expect(steward.get_by_text("You proposed it: another person must approve it.")).to_be_visible()
    expect(steward.get_by_role("button", name="Approve")).to_have_count(0)
    second = new_context(java_script_enabled=False).new_page()
    made = run(served.home, "keys", "create", "--role", "steward", "--name", "second")
    sign_in(second, made.stdout.split()[1])
    expect(second.get_by_role("heading", name="Waiting for you")).to_be_visible()
    assert_fits(second)
    screenshot(second, "waiting-for-you")
    second.goto("/accounts/persons")
    second.get_by_role("button", name="Approve proposed").click()
    expect(second.get_by_role("status")).to_have_text("The release was approved.")


@pytest.mark.parametrize("what", ["receipt", "package"])
def test_what_is_signed_is_downloaded_and_verified(steward: Page, served: Served, tmp_path: Path, what: str) -> None:
    steward.goto(_pages(served.client)["release"])
    verify = f"verify-{what}"
    command = steward.locator("pre", has_text=verify).inner_text()
    with steward.expect_download() as downloading:
        steward.get_by_role("link", name=f"Download the {what}").click()
    name, key = re.search(rf"{verify} (\S+) \\\s+--public-key (\S+)", command).groups()  # type: ignore[union-attr]
    assert downloading.value.suggested_filename == name
    downloading.value.save_as(tmp_path / name)
    verified = run(tmp_path, verify, str(tmp_path / name), "--public-key", key)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_chain_is_verified_on_demand(steward: Page) -> None:
    steward.goto("/accounts/persons")
    steward.get_by_role("link", name="Journal").click()
    steward.get_by_role("button", name="Verify the whole chain").click()
    expect(steward.get_by_role("status")).to_contain_text("The chain is valid.")


def test_closing_an_account_and_opening_it_again(steward: Page) -> None:
    steward.goto("/accounts/empty")
    steward.get_by_label("Refuse all further releases of this account").check()
    steward.get_by_role("button", name="Close the account").click()
    expect(steward.get_by_role("status")).to_have_text("The account is closed now.")
    steward.get_by_role("button", name="Open the account again").click()
    expect(steward.get_by_role("status")).to_have_text("The account is open now.")


def test_an_account_is_opened_described_and_handed_in(steward: Page) -> None:
    steward.get_by_role("link", name="Open an account").click()
    steward.get_by_label("Name").fill("opened here")
    steward.get_by_label("Budget", exact=True).fill("1/3")
    steward.get_by_role("button", name="Open the account").click()
    expect(steward.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    assert_accessible(steward)
    steward.get_by_label("Name").fill("opened-here")
    steward.get_by_role("button", name="Open the account").click()
    expect(steward.get_by_role("status")).to_have_text("The account was opened.")
    expect(steward.get_by_text("0 % spent")).to_be_visible()
    steward.get_by_role("link", name="Description", exact=True).click()
    steward.get_by_role("link", name="Intended use").click()
    steward.get_by_label("Intended use").fill("Planning\nof schools")
    steward.get_by_label("Data curators").fill("The office")
    steward.get_by_label("Data product type").select_option("Dataset")
    steward.get_by_label("Data product region").fill("The country")
    steward.get_by_label("Publication date").fill("2026-01-31")
    steward.get_by_label("Description", exact=True).fill("Counts")
    steward.get_by_role("button", name="Save the description").click()
    expect(steward.get_by_role("status")).to_have_text("The description is saved.")
    expect(steward.get_by_role("region", name="The entry in YAML")).to_contain_text("of schools")
    assert_accessible(steward)
    screenshot(steward, "description-entry")
    with steward.expect_download() as downloading:
        steward.get_by_role("link", name="Download the entry").click()
    assert downloading.value.suggested_filename == "opened-here.yaml"


def test_only_the_figures_of_the_chosen_definition_are_asked_for(steward: Page) -> None:
    steward.goto("/new-account")
    delta, order = steward.get_by_label("δ", exact=True), steward.get_by_label("Order α")
    for definition, shown in (("zcdp", (False, False)), ("approximate", (True, False)), ("rdp", (False, True))):
        steward.get_by_label("Definition").select_option(definition)
        assert (delta.is_visible(), order.is_visible()) == shown
        screenshot(steward, f"new-account-{definition}")
    order.fill("8")
    steward.get_by_label("Name").fill("with an order")
    steward.get_by_label("Budget", exact=True).fill("1")
    steward.get_by_label("Definition").select_option("zcdp")
    steward.get_by_role("button", name="Open the account").click()
    expect(order).to_be_visible()  # with the reason why it does not belong there


def test_what_was_typed_outlives_the_session(steward: Page) -> None:
    """As people do it: sign in in another window, come back, reload."""
    steward.goto("/accounts/empty/description")
    steward.get_by_label("Notes").fill("typed for an hour")
    steward.context.clear_cookies()
    steward.get_by_role("button", name="Save the description").click()
    expect(steward.get_by_role("heading", name="Your session has ended")).to_be_visible()
    assert_accessible(steward)
    sign_in(steward.context.new_page())
    steward.reload()
    expect(steward.get_by_role("status")).to_have_text("The description is saved.")
    expect(steward.get_by_label("Notes")).to_have_value("typed for an hour")


def test_a_key_is_made_shown_once_and_revoked(
    steward: Page, new_context: Callable[..., BrowserContext], served: Served
) -> None:
    steward.get_by_role("link", name="Keys").click()
    steward.get_by_label("Principal").fill("temporary")
    steward.get_by_label("Role").select_option("auditor")
    steward.get_by_role("button", name="Make the key").click()
    key = steward.locator("pre code").inner_text()
    screenshot(steward, "key-made")
    somebody = new_context().new_page()
    sign_in(somebody, key)
    expect(somebody.get_by_role("link", name="Keys")).to_have_count(0)
    steward.goto("/keys")
    expect(steward.get_by_text(key)).to_have_count(0)
    row = steward.get_by_role("row", name="temporary")
    row.get_by_text("Rotate or revoke").click()
    row.get_by_label("Stop it for ever").check()
    row.get_by_role("button", name="Revoke the key of temporary").click()
    expect(steward.get_by_role("status")).to_contain_text("The key was revoked.")
    somebody.reload()
    expect(somebody.get_by_text("Your session has ended")).to_be_visible()
