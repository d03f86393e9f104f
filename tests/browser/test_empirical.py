"""Uploading residuals: known noise, wrong files, and nothing of what was sent in what comes back."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, FilePayload, Page, expect

from tests.browser.steps import assert_accessible, assert_fits, screenshot, sign_in

EPSILON = 0.5


def _file(text: str | bytes, name: str = "residuals.csv") -> FilePayload:
    content = text if isinstance(text, bytes) else text.encode()
    return {"name": name, "mimeType": "text/csv", "buffer": content}


@pytest.fixture(scope="module")
def noise() -> list[int]:
    """Geometric noise of a known loss."""
    generator = np.random.default_rng(20260101)
    tails = generator.geometric(1 - np.exp(-EPSILON), (2, 20_000))
    return [int(value) for value in tails[0] - tails[1]]


def _column(numbers: list[int]) -> str:
    return "\n".join(["residual", *map(str, numbers)])


def test_known_noise_from_a_file(steward: Page, noise: list[int]) -> None:
    page = steward
    page.get_by_role("link", name="Empirical loss").click()
    expect(page.get_by_text("The answer is not protected.")).to_be_visible()
    assert_accessible(page)
    screenshot(page, "empirical-empty")
    counts = np.random.default_rng(1).integers(0, 5_000, len(noise)).tolist()
    page.get_by_label("A file of residuals").set_input_files(_file(_column(noise)))
    page.get_by_label("A file of true counts").set_input_files(_file(_column(counts), "counts.csv"))
    page.get_by_text("Parameters").click()
    # The split of the sample is random, and a test must not fail once in twenty times.
    page.get_by_label("Confidence").first.fill("0.999999999")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("heading", name="What the residuals show").wait_for()
    published, certified = (float(text.split()[-1]) for text in page.locator("p.figure").all_inner_texts())
    assert EPSILON - 0.15 < certified <= EPSILON
    assert abs(published - EPSILON) < 0.1
    picture = page.get_by_role("img")
    assert picture.evaluate("image => image.complete && image.naturalWidth > 400")
    assert_accessible(page)
    screenshot(page, "empirical-found")


def test_a_wrong_file(steward: Page) -> None:
    page = steward
    page.goto("/empirical")
    page.get_by_label("A file of residuals").set_input_files(_file(b"\x89PNG\r\n\x1a\n\x00", "picture.csv"))
    page.get_by_role("button", name="Measure").click()
    wrong = page.get_by_label("A file of residuals")
    expect(wrong).to_have_attribute("aria-invalid", "true")
    expect(wrong).to_have_accessible_description(re.compile("another kind of file"))
    assert_accessible(page)
    screenshot(page, "empirical-wrong")
    page.get_by_role("alert").get_by_role("link", name="residuals").click()
    expect(wrong).to_be_focused()


def test_runs_on_two_neighbouring_inputs(steward: Page, noise: list[int]) -> None:
    page = steward
    page.goto("/empirical")
    page.get_by_label("Outputs on the one").set_input_files(_file(_column(noise[:10_000])))
    page.get_by_label("Outputs on the other").set_input_files(_file(_column([value + 1 for value in noise[10_000:]])))
    page.get_by_role("button", name="Bound from below").click()
    expect(page.get_by_role("heading", name="What the runs prove")).to_be_visible()
    assert_accessible(page)
    screenshot(page, "empirical-runs")


def test_with_the_keyboard_alone(steward: Page, noise: list[int]) -> None:
    page = steward
    page.goto("/empirical")
    page.get_by_label("A file of residuals").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Or paste them")).to_be_focused()
    page.keyboard.insert_text(_column(noise[:500]))
    for _ in range(3):  # the counts, the parameters, the button
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Measure")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What the residuals show")).to_be_visible()


def test_without_javascript_on_a_small_dark_screen(
    new_context: Callable[..., BrowserContext], noise: list[int]
) -> None:
    context = new_context(
        java_script_enabled=False, color_scheme="dark", viewport={"width": 400, "height": 800}, device_scale_factor=2
    )
    page = context.new_page()
    sign_in(page)
    page.get_by_role("link", name="Empirical loss").click()
    page.get_by_label("A file of residuals").set_input_files(_file(_column(noise)))
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("heading", name="What the residuals show")).to_be_visible()
    assert_fits(page)
    screenshot(page, "empirical-dark-400")
