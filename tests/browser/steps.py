"""Steps that the tests of the pages have in common."""

import os
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

from tests.api.calls import STEWARD

_SERIOUS = {"serious", "critical"}


def sign_in(page: Page, key: str = STEWARD) -> None:
    """From wherever, to the accounts."""
    page.goto("/")
    page.get_by_label("Your key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Accounts", exact=True).wait_for()


def assert_accessible(page: Page) -> None:
    """axe-core finds nothing serious, and the page has the landmarks that readers jump to. It needs JavaScript."""
    violations = [found for found in Axe().run(page).response["violations"] if found["impact"] in _SERIOUS]
    described = [f"{found['id']}: {[node['html'] for node in found['nodes']]}" for found in violations]
    assert described == [], page.url
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1


def assert_fits(page: Page) -> None:
    """Nothing makes the page wider than its window: what is wide scrolls in a place of its own."""
    page.wait_for_load_state("load")  # before it, a measurement may find the page without its style sheets
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1], page.url


def assert_tables_fit(page: Page) -> None:
    """No table has to be scrolled sideways, but on a small screen one with a formula, which cannot be broken."""
    wide = (
        "[...document.querySelectorAll(innerWidth < 1000 ? '.scroll:not(:has(math))' : '.scroll')]"
        ".filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.innerText.slice(0, 80))"
    )
    page.wait_for_load_state("load")
    assert page.evaluate(wide) == [], page.url


def screenshot(page: Page, name: str) -> None:
    """A picture to look at, where ``SCREENSHOTS`` names a directory for them."""
    directory = os.environ.get("SCREENSHOTS")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(directory) / f"{name}.png", full_page=True)
