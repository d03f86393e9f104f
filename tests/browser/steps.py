"""Steps that the tests of the pages have in common."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

from tests.api.calls import STEWARD

FLAGS = [
    "--no-sandbox",  # Chromium has none for root, as which containers run tests
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


def sign_in(page: Page, key: str = STEWARD) -> None:
    """From wherever, to the accounts."""
    page.goto("/")
    page.get_by_label("Your key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Accounts", exact=True).wait_for()


def fill_row(page: Page, number: int, **texts: str) -> None:
    """Type into a row of the planner, by the labels of its fields."""
    for name, text in texts.items():
        page.locator(f"#rows > li:nth-child({number})").get_by_label(name, exact=True).fill(text)


def state_targets(page: Page, account: str = "nation") -> None:
    """Choose an account in the planner, and type three targets."""
    page.get_by_label("Charge to").select_option(account)
    fill_row(page, 1, Table="Total", Geography="State", **{"Margin of error": "6"})
    fill_row(page, 2, Table="Total", Geography="County", **{"Margin of error": "11"})
    fill_row(page, 3, Table="Sex by age", Geography="County", **{"Margin of error": "50", "Confidence": "0.9"})


def work_out(page: Page) -> None:
    """Have the planner work out the plan."""
    page.get_by_role("button", name="Work out the plan").last.click()
    page.get_by_role("heading", name="Plan and cost").wait_for()
    page.wait_for_load_state()  # the heading is there before the rest of the form


def release_id(page: Page) -> str:
    """Return the id of the release whose page is open."""
    return urlsplit(page.url).path.rpartition("/")[2]


def assert_accessible(page: Page) -> None:
    """axe-core finds nothing, and the page has the landmarks that readers jump to. It needs JavaScript."""
    page.wait_for_load_state("load")  # before it, the colours may be those of a page without its style sheets
    violations = Axe().run(page).response["violations"]
    described = [f"{found['id']}: {[node['html'] for node in found['nodes']]}" for found in violations]
    assert described == [], (page.url, described)
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
