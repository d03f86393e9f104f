"""Empirical privacy loss: the published definition, word by word, and what is known of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import gaussian_kde  # type: ignore[import-untyped]  # it publishes no types

from service.empirical.loss import LARGEST_RANGE, Setting, bias, bootstrap, estimate
from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import residuals_of


def _published(values: Any, setting: Setting) -> tuple[float, float, Any]:
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
    "setting", [Setting(), Setting(0.15, 99.0), Setting(0.05, 75.0), Setting(1.0, 95.0, 1.5), Setting(5.0)]
)
@pytest.mark.parametrize("loss", [0.001, 0.0127, 0.125, 0.3])
def test_it_is_the_published_one(loss: float, setting: Setting) -> None:
    generator = np.random.default_rng(7)
    whole = two_sided_geometric(loss, 2663, generator)
    for values in (whole, whole + generator.uniform(-0.5, 0.5, whole.size)):
        epl, at, density = _published(values, setting)
        found = estimate(residuals_of(values), setting)
        assert found.epl == pytest.approx(epl, rel=1e-6)
        assert found.at == pytest.approx(at)
        # numpy counts what lies on the last edge too
        assert found.density[:-1].tolist() == pytest.approx(density[:-1].tolist())
        assert np.nanmax(np.abs(found.ratios)) == found.epl
        assert np.isnan(found.ratios[-1])


def test_of_much_noise_it_is_the_true_loss() -> None:
    values = two_sided_geometric(0.1, 2_000_000, np.random.default_rng(8))
    assert estimate(residuals_of(values), Setting()).epl == pytest.approx(0.1, rel=0.04)


def test_places_without_density_are_left_out() -> None:
    """All residuals on one side: the other half of the range has no density to compare."""
    values = 200 + two_sided_geometric(1.0, 1000, np.random.default_rng(9))
    found = estimate(residuals_of(values), Setting())
    assert np.isnan(found.ratios[:100]).all()
    assert np.isfinite(found.epl)


@pytest.mark.parametrize(
    ("values", "setting", "expected"),
    [
        ([], Setting(), "at least two residuals"),
        ([4], Setting(), "at least two residuals"),
        ([4, 4, 4], Setting(), "at least two residuals"),
        ([0] * 99 + [1], Setting(), "at least two unit bins"),
        ([-1, 0, 1], Setting(), "at least two unit bins"),
        ([-LARGEST_RANGE, LARGEST_RANGE], Setting(), "at most 100000 unit bins"),
        ([-50, 0, 50], Setting(multiplier=1e300), "at most 100000 unit bins"),
        ([-5, -4, 0, 1, 6], Setting(bandwidth=1e-4), "raise bandwidth"),
    ],
)
def test_what_has_no_estimate_is_refused(values: Sequence[int], setting: Setting, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        estimate(residuals_of(np.array(values, float)), setting)


def test_the_bootstrap_interval_mostly_holds_the_true_loss_and_shrinks() -> None:
    generator = np.random.default_rng(10)
    widths = []
    for size in (2_663, 200_000):
        found = [
            bootstrap(residuals_of(two_sided_geometric(0.125, size, generator)), Setting(), 100, generator)
            for _ in range(40)
        ]
        intervals = np.array(found, float)
        assert ((intervals[:, 0] <= 0.125) & (intervals[:, 1] >= 0.125)).sum() >= 24
        assert np.all(intervals >= 0)
        widths.append(np.median(intervals[:, 1] - intervals[:, 0]))
    assert widths[1] < widths[0] / 3


def test_residuals_that_all_differ_are_rounded_for_the_bootstrap_without_a_trace() -> None:
    values = np.random.default_rng(11).normal(0, 11, 20_000)
    fine = residuals_of(values)
    tenths = residuals_of(np.rint(values * 50) / 50)  # few enough distinct values to be left as they are
    assert tenths.positions.size < 5_000 < fine.positions.size
    first, second = (bootstrap(sample, Setting(), 100, np.random.default_rng(12)) for sample in (fine, tenths))
    assert first == pytest.approx(second, rel=0.1)


def test_the_bias_is_that_of_noise_of_known_loss() -> None:
    generator = np.random.default_rng(13)
    sample = residuals_of(two_sided_geometric(0.125, 2663, generator))
    known = bias(sample, Setting(), 200, generator)
    assert known is not None
    assert known.epsilon == pytest.approx(0.125, rel=0.05)
    # At this size EPL comes out at nearly twice the truth (table SA1: 0.2429 where a shift by one costs 0.1335).
    assert 1.5 < known.mean / known.epsilon < 2.1
    assert known.bias == known.mean - known.epsilon
    assert known.interval[0] < known.mean < known.interval[1]


def test_the_bias_fades_with_the_sample() -> None:
    generator = np.random.default_rng(14)
    found = []
    for size in (1_000, 1_000_000):
        known = bias(residuals_of(two_sided_geometric(0.125, size, generator)), Setting(), 50, generator)
        assert known is not None
        found.append(known.bias / known.epsilon)
    assert found[0] > 0.8
    assert abs(found[1]) < 0.08


def test_where_noise_as_wide_has_no_estimate_there_is_no_bias() -> None:
    values = np.array([2] * 60 + [0] * 940)  # its range has bins, that of geometric noise of this width has not
    sample = residuals_of(values)
    assert estimate(sample, Setting()).epl > 0
    assert bias(sample, Setting(), 50, np.random.default_rng(15)) is None
    assert bootstrap(residuals_of(np.array([0, 5])), Setting(percentile=100), 50, np.random.default_rng(1)) is None
