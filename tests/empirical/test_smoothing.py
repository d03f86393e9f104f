"""Kernel densities against scipy's, on the same points, along every way in which they are computed."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import gaussian_kde  # type: ignore[import-untyped]  # it publishes no types

from service.empirical import smoothing
from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import residuals_of
from service.empirical.smoothing import densities


def _generator() -> np.random.Generator:
    return np.random.default_rng(20)


_SAMPLES = {
    "whole, narrow": two_sided_geometric(0.125, 2663, _generator()),
    "whole, wide": two_sided_geometric(0.002, 5000, _generator()),
    "quarters": two_sided_geometric(0.02, 20_000, _generator()) / 4,
    "normal": _generator().normal(0.3, 11, 5000),
    "normal, wide": _generator().normal(0, 1500, 3000),
    "heavy tails": _generator().standard_t(2, 10_000) * 10,
    "one-sided": _generator().exponential(30, 10_000),
    "an outlier": np.append(two_sided_geometric(0.125, 2663, _generator()), 30_000),
}


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 0.15, 1.0])
@pytest.mark.parametrize("name", _SAMPLES)
def test_the_density_agrees_with_scipy(name: str, bandwidth: float) -> None:
    _compare(_SAMPLES[name], bandwidth)


@pytest.mark.parametrize("name", _SAMPLES)
def test_the_density_is_scipys_where_sums_are_too_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "_SHORT_SUM", 0)
    monkeypatch.setattr(smoothing, "_SHORT_CONVOLUTION", 0)
    _compare(_SAMPLES[name], 0.1)


def _compare(values: Any, bandwidth: float) -> None:
    sample = residuals_of(values)
    reach = float(np.percentile(np.abs(values), 99))
    number = int(2 * reach) - 1
    ours = densities(sample, bandwidth * sample.deviation, 0.5 - reach, number)
    theirs = gaussian_kde(values, bw_method=bandwidth)(0.5 - reach + np.arange(number))
    seen = theirs > 1e-290  # below, doubles have fewer and fewer digits
    assert seen.any()
    np.testing.assert_allclose(ours[seen], theirs[seen], rtol=1e-6)
    assert ours[~seen].max(initial=0.0) < 1e-289


def test_the_density_is_0_far_from_all_residuals() -> None:
    sample = residuals_of(np.array([0, 0, 1, 1]))
    assert densities(sample, 0.1, 1000.0, 3).tolist() == [0, 0, 0]


def test_places_that_only_a_sum_could_tell_are_zero_where_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.concatenate([_generator().normal(0, 1, 1000), _generator().normal(60, 1, 1000)])
    places = (residuals_of(values), 1.0, 0.0, 61)
    whole = densities(*places)
    monkeypatch.setattr(smoothing, "_SHORT_SUM", 0)
    monkeypatch.setattr(smoothing, "_SHORT_CONVOLUTION", 0)
    np.testing.assert_allclose(densities(*places), whole, rtol=1e-6)
    monkeypatch.setattr(smoothing, "_LONG_SUM", 0)
    left = densities(*places)
    assert left[30] == 0 < whole[30]
    np.testing.assert_allclose(left[left > 0], whole[left > 0], rtol=1e-6)


def test_residuals_too_far_apart_for_a_lattice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "_SHORT_SUM", 0)
    values = np.array([0.25, 1.0, 1e9])
    with pytest.raises(ValueError, match="span at most"):
        densities(residuals_of(values), 0.1 * float(np.std(values, ddof=1)), -10.0, 20)
