"""The guide and the problems' pages, as they are read: wide and narrow, light and dark, by keyboard."""

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from service.api.http.problems import KINDS
from service.pages.guide import chapters
from tests.browser.steps import assert_accessible, assert_fits, assert_tables_fit, screenshot

_PAGES = [*chapters(), "/problems", "/problems/budget_exceeded"]
_ALL_PAGES = [*chapters(), "/problems", *(f"/problems/{code}" for code in KINDS)]

# Formulas in a text that do not stand in its lines. Where a formula, or the word after it, begins a line, there was no
# room for it at the end of the line before: any other break is one that the page has made.
_OUT_OF_LINE = """() => {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const block = node => {
    while (!getComputedStyle(node).display.match(/^(block|list-item|table-cell|flow-root)$/)) node = node.parentElement;
    return node;
  };
  const box = (node, from, to) => {
    const range = document.createRange();
    range.setStart(node, from);
    range.setEnd(node, to);
    return range.getClientRects()[0];
  };
  const words = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("math, pre")) continue;
    for (const { index, 0: word } of node.data.matchAll(/\\S+/g)) {
      words.push({ node, from: index, to: index + word.length });
    }
  }
  const shares = (one, other) => one.top < other.bottom && other.top < one.bottom;
  const wrong = [];
  for (const formula of document.querySelectorAll("main .math.inline")) {
    const around = block(formula.parentElement), at = formula.querySelector("math").getBoundingClientRect();
    const style = getComputedStyle(around), outer = around.getBoundingClientRect();
    const end = outer.right - parseFloat(style.paddingRight) - parseFloat(style.borderRightWidth);
    const beside = words.filter(word => block(word.node.parentElement) === around);
    const lies = (word, where) => formula.compareDocumentPosition(word.node) & where;
    const before = beside.filter(word => lies(word, Node.DOCUMENT_POSITION_PRECEDING)).pop();
    const after = beside.find(word => lies(word, Node.DOCUMENT_POSITION_FOLLOWING));
    const together = (formula.closest(".whole") ?? formula).getBoundingClientRect();
    if (before) {
      const last = box(before.node, before.to - 1, before.to);
      if (!shares(last, at) && last.right + together.width < end - 8) {
        wrong.push(`${formula.textContent} after a break`);
      }
    }
    if (after) {
      const first = box(after.node, after.from, after.from + 1), word = box(after.node, after.from, after.to);
      const close = /[-.,;:)\\]]/.test(after.node.data[after.from]) && after.from === 0;
      if (!shares(first, at) && (close || together.right + word.width < end - 8)) {
        wrong.push(`${formula.textContent} before a break`);
      }
    }
  }
  return wrong;
}"""
# Displayed formulas that share their lines with any text, or are cut off where a window has room for them.
_NOT_DISPLAYED = """() => [...document.querySelectorAll(".math.block")].filter(shown => {
  const own = shown.getBoundingClientRect();
  const beside = [shown.previousElementSibling, shown.nextElementSibling].filter(Boolean);
  const shared = beside.map(part => part.getBoundingClientRect())
    .some(part => part.top < own.bottom - 1 && own.top < part.bottom - 1);
  const cut = innerWidth > 1000 && shown.scrollWidth > shown.clientWidth;
  return shared || cut || own.width < shown.parentElement.clientWidth / 2;
}).map(shown => shown.textContent)"""


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


@pytest.mark.parametrize("path", _ALL_PAGES)
def test_formulas_stand_in_their_lines_and_nothing_is_cut_off(page: Page, path: str) -> None:
    page.goto(path)
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert_fits(page)
        assert_tables_fit(page)
        assert page.evaluate(_OUT_OF_LINE) == []
        assert page.evaluate(_NOT_DISPLAYED) == []


def test_from_the_contents_to_a_section_and_on_to_a_problem(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Guide", exact=True).click()
    page.get_by_role("article").get_by_role("link", name="Recipes").click()
    page.get_by_role("navigation", name="Guide").get_by_role("link", name="Read a refusal").click()
    expect(page.get_by_role("heading", name="Read a refusal")).to_be_in_viewport()
    page.get_by_role("article").get_by_role("link", name="a page").click()
    expect(page.get_by_role("heading", name="The release exceeds the budget")).to_be_visible()
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
