"""Uploading residuals: known noise, wrong files, and nothing of what was sent in what comes back."""

import numpy as np
import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.steps import assert_accessible, screenshot

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
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("heading", name="What the residuals show").wait_for()
    published, certified = (float(text.split()[-1]) for text in page.locator("p.figure").all_inner_texts())
    assert EPSILON - 0.05 < certified <= EPSILON
    assert abs(published - EPSILON) < 0.1
    picture = page.get_by_role("img")
    assert picture.evaluate("image => image.complete && image.naturalWidth > 400")
    assert_accessible(page)
    screenshot(page, "empirical-found")
