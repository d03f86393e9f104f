"""Empirical privacy loss: the published definition, word by word, and what is known of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import gaussian_kde  # type: ignore[import-untyped]  # it publishes no types

from service.empirical.loss import LARGEST_RANGE, SmoothingSetting, estimate_loss
from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import residuals_of


def _published(values: Any, setting: SmoothingSetting) -> tuple[float, float, Any]:
    """EPL as the authors' analysis has it, with scipy's kernel and numpy's percentiles and histogram."""
    ends = np.percentile(values, [100 - setting.percentile, setting.percentile])
    reach = setting.multiplier * np.abs(ends).max()
    density, edges = np.histogram(values, bins=np.arange(-reach, reach, 1))
    x = (edges[:-1] + edges[1:]) / 2
    logs = np.log(gaussian_kde(values, bw_method=setting.bandwidth)(x))
    ratios = logs[:-1] - logs[1:]
    at = int(np.abs(ratios).argmax())
    return float(np.abs(ratios[at])), float(x[at]), density / len(values)


@pytest.mark.parametrize(
    "setting",
    [
        SmoothingSetting(),
        SmoothingSetting(0.15, 99.0),
        SmoothingSetting(0.05, 75.0),
        SmoothingSetting(1.0, 95.0, 1.5),
        SmoothingSetting(5.0),
    ],
)
@pytest.mark.parametrize("loss", [0.001, 0.0127, 0.125, 0.3])
def test_it_is_the_published_one(loss: float, setting: SmoothingSetting) -> None:
    generator = np.random.default_rng(7)
    whole = two_sided_geometric(loss, 2663, generator)
    for values in (whole, whole + generator.uniform(-0.5, 0.5, whole.size)):
        epl, at, density = _published(values, setting)
        found = estimate_loss(residuals_of(values), setting)
        assert found.epl == pytest.approx(epl, rel=1e-6)
        assert found.at == pytest.approx(at)
        # numpy counts what lies on the last edge too
        assert found.density[:-1].tolist() == pytest.approx(density[:-1].tolist())
        assert np.nanmax(np.abs(found.ratios)) == found.epl
        assert np.isnan(found.ratios[-1])


def test_of_much_noise_it_is_the_true_loss() -> None:
    values = two_sided_geometric(0.1, 2_000_000, np.random.default_rng(8))
    assert estimate_loss(residuals_of(values), SmoothingSetting()).epl == pytest.approx(0.1, rel=0.04)


def test_places_without_density_are_left_out() -> None:
    """All residuals on one side: the other half of the range has no density to compare."""
    values = 200 + two_sided_geometric(1.0, 1000, np.random.default_rng(9))
    found = estimate_loss(residuals_of(values), SmoothingSetting())
    assert np.isnan(found.ratios[:100]).all()
    assert np.isfinite(found.epl)


@pytest.mark.parametrize(
    ("values", "setting", "expected"),
    [
        ([], SmoothingSetting(), "at least two residuals"),
        ([4], SmoothingSetting(), "at least two residuals"),
        ([4, 4, 4], SmoothingSetting(), "at least two residuals"),
        ([0] * 99 + [1], SmoothingSetting(), "at least two unit bins"),
        ([-1, 0, 1], SmoothingSetting(), "at least two unit bins"),
        ([-LARGEST_RANGE, LARGEST_RANGE], SmoothingSetting(), "at most 100000 unit bins"),
        ([-50, 0, 50], SmoothingSetting(multiplier=1e300), "at most 100000 unit bins"),
        ([-5, -4, 0, 1, 6], SmoothingSetting(bandwidth=1e-4), "raise bandwidth"),
    ],
)
def test_samples_without_an_estimate_are_refused(
    values: Sequence[int], setting: SmoothingSetting, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        estimate_loss(residuals_of(np.array(values, float)), setting)
