"""The guide and the problems' pages, as they are read: wide and narrow, light and dark, by keyboard."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from service.pages.guide import chapters
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot

_PAGES = [*chapters(), "/problems", "/problems/budget_exceeded"]


@pytest.mark.parametrize("path", _PAGES)
def test_a_page_is_accessible_and_formulas_have_a_size(page: Page, path: str) -> None:
    page.goto(path)
    assert_accessible(page)
    assert_fits(page)
    sizes = "[...document.querySelectorAll('math')].filter(math => math.getBoundingClientRect().width < 3).length"
    assert page.evaluate(sizes) == 0
    screenshot(page, path.strip("/").replace("/", "-"))


@pytest.mark.parametrize("path", _PAGES)
def test_a_page_fits_a_small_dark_screen(new_context: Callable[..., BrowserContext], path: str) -> None:
    page = new_context(color_scheme="dark", viewport={"width": 400, "height": 800}).new_page()
    page.goto(path)
    assert_fits(page)
    assert_tables_fit(page)
    assert_accessible(page)
    screenshot(page, path.strip("/").replace("/", "-") + "-dark-400")


def test_from_the_contents_to_a_section_and_on_to_a_problem(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Guide", exact=True).click()
    page.get_by_role("article").get_by_role("link", name="Recipes").click()
    page.get_by_role("navigation", name="Guide").get_by_role("link", name="Read a refusal").click()
    expect(page.get_by_role("heading", name="Read a refusal")).to_be_in_viewport()
    page.get_by_role("article").get_by_role("link", name="a page").click()
    expect(page.get_by_role("heading", name="The release does not fit the budget")).to_be_visible()
    page.get_by_role("link", name="All problems").click()
    expect(page.get_by_role("heading", name="Problems")).to_be_visible()


def test_wide_code_scrolls_by_the_keyboard(new_context: Callable[..., BrowserContext]) -> None:
    page = new_context(viewport={"width": 400, "height": 800}).new_page()
    page.goto("/guide/mechanisms")
    code = page.locator("pre").first
    code.evaluate("pre => { pre.scrolled = new Promise(done => pre.onscroll = () => done(pre.scrollLeft)) }")
    code.focus()
    page.keyboard.press("ArrowRight")
    assert code.evaluate("pre => pre.scrolled") > 0
