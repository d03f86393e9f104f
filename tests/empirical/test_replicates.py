"""Bootstrap intervals and the bias of EPL, against what is known of the noise."""

import numpy as np
import pytest

from service.empirical import replicates
from service.empirical.loss import SmoothingSetting, estimate_loss
from service.empirical.noise import two_sided_geometric
from service.empirical.replicates import bootstrap, estimate_bias
from service.empirical.residuals import residuals_of


def test_the_bootstrap_interval_mostly_holds_the_true_loss_and_shrinks() -> None:
    generator = np.random.default_rng(10)
    widths = []
    for size in (2_663, 200_000):
        found = [
            bootstrap(residuals_of(two_sided_geometric(0.125, size, generator)), SmoothingSetting(), 100, generator)
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
    first, second = (bootstrap(sample, SmoothingSetting(), 100, np.random.default_rng(12)) for sample in (fine, tenths))
    assert first == pytest.approx(second, rel=0.1)


def test_the_bias_is_that_of_noise_of_known_loss() -> None:
    generator = np.random.default_rng(13)
    sample = residuals_of(two_sided_geometric(0.125, 2663, generator))
    known = estimate_bias(sample, SmoothingSetting(), 200, generator)
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
        known = estimate_bias(
            residuals_of(two_sided_geometric(0.125, size, generator)), SmoothingSetting(), 50, generator
        )
        assert known is not None
        found.append(known.bias / known.epsilon)
    assert found[0] > 0.8
    assert abs(found[1]) < 0.08


def test_noise_without_an_estimate_has_no_bias() -> None:
    values = np.array([2] * 60 + [0] * 940)  # its range has bins, that of geometric noise of this width has not
    sample = residuals_of(values)
    assert estimate_loss(sample, SmoothingSetting()).epl > 0
    assert estimate_bias(sample, SmoothingSetting(), 50, np.random.default_rng(15)) is None
    assert (
        bootstrap(residuals_of(np.array([0, 5])), SmoothingSetting(percentile=100), 50, np.random.default_rng(1))
        is None
    )


@pytest.mark.parametrize("whole", [True, False])
def test_wide_residuals_are_replicated_in_larger_units_without_a_trace(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = two_sided_geometric(0.002, 20_000, np.random.default_rng(16)).astype(float)
    sample = residuals_of(values if whole else values + np.random.default_rng(17).uniform(-0.5, 0.5, values.size))
    found = []
    for fineness in (20, 80):  # in units of three counts, and as they are
        monkeypatch.setattr(replicates, "_FINENESS", fineness)
        monkeypatch.setattr(replicates, "_FEW", 10**9)
        known = estimate_bias(sample, SmoothingSetting(), 100, np.random.default_rng(18))
        interval = bootstrap(sample, SmoothingSetting(), 100, np.random.default_rng(18))
        assert known is not None
        assert interval is not None
        found.append((known.mean, *known.interval, *interval))
    assert found[0] == pytest.approx(found[1], rel=0.1)
    assert found[0][0] == pytest.approx(found[1][0], rel=0.02)


def test_replicates_that_would_take_too_long_are_left_out() -> None:
    """A kernel so narrow that the lattice has a million nodes."""
    sample = residuals_of(np.random.default_rng(19).normal(0, 14, 20_000))
    setting = SmoothingSetting(bandwidth=0.0001)
    assert estimate_loss(sample, setting).epl > 0
    assert bootstrap(sample, setting, 1000, np.random.default_rng(20)) is None


def test_few_replicates_are_as_many_as_were_asked_for() -> None:
    sample = residuals_of(two_sided_geometric(0.1, 2000, np.random.default_rng(21)))
    known = estimate_bias(sample, SmoothingSetting(), 3, np.random.default_rng(22))
    assert known is not None
    assert known.replicates == 3
