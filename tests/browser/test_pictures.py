"""The main pages look as they did when a person last looked at them."""

from collections.abc import Iterator

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, Playwright

from tests.browser import pictures
from tests.browser.pictures import MOST_UNLIKE, PICTURED, WAYS, Pictured, file_of, taken, unlike_cells
from tests.browser.steps import screenshot
from tests.processes import Served

_BY_NAME = {one.name: one for one in PICTURED}


@pytest.fixture(scope="module")
def same_fonts(playwright: Playwright) -> Iterator[Browser]:
    with pictures.launched(playwright) as browser:
        yield browser


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def opened(same_fonts: Browser, served: Served, way: str) -> Iterator[Page]:
    with pictures.window(same_fonts, served, way) as page:
        yield page


def test_every_picture_is_of_a_page_in_one_of_the_ways() -> None:
    expected = {file_of(pictured, way).name for pictured in PICTURED for way in WAYS}
    assert {path.name for path in pictures.FOLDER.iterdir()} == expected


@pytest.mark.parametrize("pictured", PICTURED, ids=lambda pictured: pictured.name)
def test_a_page_looks_as_it_did(opened: Page, served: Served, way: str, pictured: Pictured) -> None:
    """If it fails and the change is meant: run `make pictures`, and look at what has changed."""
    pictured.reach(opened, served)
    shown = taken(opened, way, pictured.part)
    screenshot(opened, f"{pictured.name}-{way}")
    with Image.open(file_of(pictured, way)) as kept:
        assert unlike_cells(shown, kept) <= MOST_UNLIKE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("account", "document.querySelector('.bar').remove()"),
        ("releases", "document.querySelector('form .row button').style.visibility = 'hidden'"),
        ("release", "document.querySelector('.in-words').style.marginTop = '40px'"),
        ("planner", "document.querySelector('[aria-label=Costs] tbody tr').remove()"),
        ("composition", "document.querySelectorAll('.math.inline').forEach(one => one.style.display = 'block')"),
        ("board", "document.querySelectorAll('h2').forEach(one => one.style.textIndent = '3rem')"),
    ],
)
def test_a_page_that_is_changed_looks_different(opened: Page, served: Served, way: str, name: str, change: str) -> None:
    pictured = _BY_NAME[name]
    pictured.reach(opened, served)
    opened.evaluate(change)
    with Image.open(file_of(pictured, way)) as kept:
        assert unlike_cells(taken(opened, way, pictured.part), kept) > MOST_UNLIKE


def test_pictures_differ_where_they_differ_and_where_one_ends() -> None:
    white = Image.new("RGB", (160, 80), "white")
    assert unlike_cells(white, Image.new("RGB", (160, 80), (240, 240, 240))) == 0
    assert unlike_cells(white, Image.new("RGB", (160, 96), "white")) == 40
    marked = white.copy()
    ImageDraw.Draw(marked).rectangle((16, 16, 31, 23), fill="navy")
    assert unlike_cells(white, marked) == unlike_cells(marked, white) == 2
