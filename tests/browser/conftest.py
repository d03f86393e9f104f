"""A real browser before a real server: Debian's Chromium, driven by Playwright, without a window.

Each test fails where a page logs an error or asks another host for anything. ``CHROMIUM`` names another browser,
``SCREENSHOTS`` a directory for pictures to look at.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, sync_playwright

from tests.browser.ledger import fill
from tests.browser.steps import FLAGS, sign_in
from tests.processes import Served, service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this directory are for `make test-browser`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
    yield launched
    launched.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that a module's tests share, with the accounts and releases that ``ledger.fill`` makes."""
    with service(tmp_path_factory.mktemp("served"), session_hours="2", helper_processes="2") as running:
        fill(running.client)
        yield running


@pytest.fixture
def other_hosts() -> frozenset[str]:
    """The hosts, with their ports, that pages lead to beside the server's."""
    return frozenset()


@pytest.fixture
def new_context(
    browser: Browser, served: Served, other_hosts: frozenset[str]
) -> Iterator[Callable[..., BrowserContext]]:
    """Makes browsers' profiles, watched until the test ends; options are those of Playwright's ``new_context``."""
    faults: list[str] = []
    contexts: list[BrowserContext] = []
    hosts = {urlsplit(served.address).netloc, "", *other_hosts}

    def logged(message: ConsoleMessage) -> None:
        # A page that is refused is an error to the browser's console, and none of the page.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            faults.append(message.text)

    def asked(request: Request) -> None:
        if urlsplit(request.url).netloc not in hosts or request.url.startswith("blob:"):
            faults.append(f"a request to {request.url}")

    def make(**options: object) -> BrowserContext:
        context = browser.new_context(base_url=served.address, **options)  # type: ignore[arg-type]
        context.set_default_timeout(20_000)
        context.on("console", logged)
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on("request", asked)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def page(new_context: Callable[..., BrowserContext]) -> Page:
    """A window of somebody who is not signed in."""
    return new_context().new_page()


@pytest.fixture
def steward(page: Page) -> Page:
    """A window in which the first steward is signed in."""
    sign_in(page)
    return page
