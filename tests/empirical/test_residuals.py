"""Samples as weighted positions: what is computed from them is what numpy computes from the values."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from service.empirical.noise import two_sided_geometric, two_sided_geometric_counts
from service.empirical.residuals import resample, residuals_of, round_positions

_WHOLE = st.lists(st.integers(-50, 50), min_size=2, max_size=60).map(np.array)
_REAL = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=60).map(np.array)
_FAR = st.lists(st.sampled_from([-(2**53), -1, 0, 2**53]), min_size=2, max_size=9).map(np.array)


@given(st.one_of(_WHOLE, _REAL, _FAR), st.floats(0, 100))
def test_figures_are_numpys(values: NDArray[np.float64], percent: float) -> None:
    sample = residuals_of(values)
    assert sample.size == len(values)
    assert np.repeat(sample.positions, sample.counts).tolist() == np.sort(values.astype(float)).tolist()
    scale = float(np.abs(values).max()) + 1
    assert sample.deviation == pytest.approx(np.std(values.astype(float), ddof=1), rel=1e-9, abs=1e-9 * scale)
    assert sample.percentile(percent) == pytest.approx(np.percentile(values, percent), rel=1e-12, abs=1e-12 * scale)
    edges = np.array([-10.0, 0.0, 0.5, 7.0])
    assert sample.below(edges).tolist() == [int((values < edge).sum()) for edge in edges]


def test_one_residual_has_no_deviation() -> None:
    assert np.isnan(residuals_of(np.array([3])).deviation)


def test_rounding_moves_by_half_a_step_and_loses_nobody() -> None:
    values = np.random.default_rng(1).normal(0, 3, 1000)
    coarse = round_positions(residuals_of(values), 4)
    assert (coarse.size, coarse.per_unit) == (1000, 4)
    assert np.abs(np.repeat(coarse.positions, coarse.counts) - np.sort(values)).max() <= 0.125
    assert np.all(np.diff(coarse.positions) > 0)


def test_resampling_keeps_the_size_and_the_shares() -> None:
    sample = residuals_of(np.repeat([1, 2, 5], [100, 300, 600]))
    generator = np.random.default_rng(2)
    drawn = [resample(sample, generator) for _ in range(400)]
    assert {one.size for one in drawn} == {1000}
    means = [one.positions @ one.counts / 1000 for one in drawn]
    true = 0.1 + 0.6 + 3.0
    assert np.mean(means) == pytest.approx(true, abs=4 * sample.deviation / np.sqrt(1000 * 400))


@pytest.mark.parametrize(("loss", "size"), [(0.7, 100_000), (0.01, 1000)])
def test_counted_noise_has_the_law_of_noise_drawn_one_by_one(loss: float, size: int) -> None:
    """Both against the mass itself, by chi-square with a fixed seed."""
    generator = np.random.default_rng(3)
    q = np.exp(-loss)
    for drawn in (
        two_sided_geometric_counts(loss, size, generator),
        residuals_of(two_sided_geometric(loss, size, generator)),
    ):
        assert drawn.size == size
        near = np.abs(drawn.positions) <= 3
        expected = size * (1 - q) / (1 + q) * q ** np.abs(drawn.positions[near])
        assert ((drawn.counts[near] - expected) ** 2 / expected).sum() < 25
        variance = 2 * q / (1 - q) ** 2
        assert drawn.deviation**2 == pytest.approx(variance, rel=10 / np.sqrt(size))
