"""Pictures of the main pages, which a person has looked at: `make pictures` takes them, and a test compares them.

The fonts are those that matplotlib brings along, so that they are the same on every machine. Times, ids and hashes are
replaced, and drawn pictures are hidden, since they differ from one run to the next. The pictures are compared on a
coarse grid, because another version of the browser draws the edges of letters differently. Look at each picture that
`make pictures` has changed before you commit it.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests.browser.ledger import fill
from tests.browser.steps import FLAGS, sign_in, state_targets, work_out
from tests.processes import Served, service

FOLDER = Path(__file__).parent / "pictures"
WAYS = {"1400-light": (1400, "light", 2), "400-dark": (400, "dark", 1)}
"""The width of the window, the colour scheme, and by how much the picture is reduced."""
_HIGHEST = 1800  # pixels of a long page that are kept
_COLOURS = 16
_CELL = 8  # pixels of a reduced picture, in both directions
_UNLIKE = 40  # of 255: by more than this, the mean colours of two cells are different
MOST_UNLIKE = 4  # cells
_FONTS = """<?xml version="1.0"?>
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{cache}</cachedir>
  <alias binding="same"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias binding="same"><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <match target="font">
    <edit name="antialias" mode="assign"><bool>true</bool></edit>
    <edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="rgba" mode="assign"><const>none</const></edit>
  </match>
</fontconfig>
"""
_STEADY = r"""() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    node.data = node.data
      .replace(/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\sUTC/g, "2026-01-31 12:00:00\u00a0UTC")
      .replace(/^\d{4}-\d\d-\d\d$/, "2026-01-31")
      .replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, "01234567-89ab-cdef-0123-456789abcdef")
      .replace(/[0-9a-f]{64}/g, "0123456789abcdef".repeat(4))
      .replace(/Version [0-9.]+/g, "Version 1.0.0.");
  }
  for (const image of document.querySelectorAll("img, figure svg")) image.style.visibility = "hidden";
}"""


class Pictured(NamedTuple):
    """A page to picture: its name, the steps that lead to it, and the part to picture."""

    name: str
    reach: Callable[[Page, Served], object]
    part: str = "html"


def _open(path: str) -> Callable[[Page, Served], object]:
    return lambda page, _: page.goto(path)


def _open_release(page: Page, served: Served) -> None:
    listed = served.client.get("/v1/accounts/persons/releases").json()["items"]
    page.goto(next(f"/accounts/persons/releases/{one['id']}" for one in listed if one["name"] == "redistricting"))


def _open_formulas(page: Page, _: Served) -> None:
    """Open a page of the guide with many formulas, without its listings, which would fill the picture."""
    page.goto("/guide/composition")
    page.evaluate("document.querySelectorAll('pre').forEach((listing) => listing.remove())")


def _plan(page: Page, _: Served) -> None:
    page.goto("/plan")
    state_targets(page)
    work_out(page)


PICTURED = (
    Pictured("accounts", _open("/")),
    Pictured("account", _open("/accounts/persons")),
    Pictured("account-approximate", _open("/accounts/households")),
    Pictured("releases", _open("/accounts/persons/releases")),
    Pictured("tags", _open("/accounts/persons/tags")),
    Pictured("release", _open_release),
    Pictured("planner", _plan, "#result"),
    Pictured("board", _open("/guide/board")),
    Pictured("glossary", _open("/guide/glossary")),
    Pictured("composition", _open_formulas),
)


@contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    """Run a browser that has no fonts but those of matplotlib."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "fonts.conf"
        configuration.write_text(_FONTS.format(fonts=Path(mpl.get_data_path()) / "fonts" / "ttf", cache=folder))
        environment: dict[str, str | float | bool] = {**os.environ, "FONTCONFIG_FILE": str(configuration)}
        executable = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS, env=environment)
        yield browser
        browser.close()


@contextmanager
def window(browser: Browser, served: Served, way: str) -> Iterator[Page]:
    """Open a window of one of the ``WAYS``, in which the first steward is signed in."""
    width, scheme, _ = WAYS[way]
    with browser.new_context(
        base_url=served.address,
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 900},
        reduced_motion="reduce",
    ) as context:
        context.set_default_timeout(60_000)
        page = context.new_page()
        sign_in(page)
        yield page


def taken(page: Page, way: str, part: str) -> Image.Image:
    """Return the picture of a part of a page that is open, reduced."""
    page.wait_for_load_state("load")
    page.evaluate(_STEADY)
    shot = Image.open(io.BytesIO(page.locator(part).screenshot())).convert("RGB")
    return shot.crop((0, 0, shot.width, min(shot.height, _HIGHEST))).reduce(WAYS[way][2])


def file_of(pictured: Pictured, way: str) -> Path:
    """Return the file of a picture."""
    return FOLDER / f"{pictured.name}-{way}.png"


def unlike_cells(shown: Image.Image, kept: Image.Image) -> int:
    """Return the number of cells in which two pictures differ; where one is smaller, all of the rest does."""
    one, other = _means(shown), _means(kept)
    rows, columns = (max(ends) for ends in zip(one.shape[:2], other.shape[:2], strict=True))
    shared = tuple(slice(min(ends)) for ends in zip(one.shape[:2], other.shape[:2], strict=True))
    like = np.abs(one[shared] - other[shared]).max(axis=2) <= _UNLIKE
    return int(rows * columns - like.sum())


def _means(picture: Image.Image) -> np.ndarray:
    """Return the mean colour of each whole cell."""
    pixels = np.asarray(picture.convert("RGB"), dtype=float)
    rows, columns = pixels.shape[0] // _CELL, pixels.shape[1] // _CELL
    cells = pixels[: rows * _CELL, : columns * _CELL].reshape(rows, _CELL, columns, _CELL, 3)
    means: np.ndarray = cells.mean(axis=(1, 3))
    return means


def _write() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        service(Path(home), session_hours="2", helper_processes="2") as served,
        sync_playwright() as playwright,
        launched(playwright) as browser,
    ):
        fill(served.client)
        for way in WAYS:
            with window(browser, served, way) as page:
                for pictured in PICTURED:
                    pictured.reach(page, served)
                    picture = taken(page, way, pictured.part)
                    picture = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                    picture.save(file_of(pictured, way), optimize=True)


if __name__ == "__main__":
    _write()
