"""Lower bounds: their proportions against exact binomial sums, their coverage, what they find and what they refuse."""

from collections.abc import Callable
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, strategies as st
from mpmath import mp, mpf  # type: ignore[import-untyped]  # it publishes no types
from scipy.stats import binom  # type: ignore[import-untyped]

from service.empirical.bounds import (
    LowerBound,
    bound_from_outputs,
    bound_from_residuals,
    delta_at_least,
    epsilon_at_least,
    proportion_above,
    proportion_below,
    pure_epsilon_of_shift,
)
from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import Floats


def _noise(loss: float, size: int, generator: np.random.Generator) -> Floats:
    return two_sided_geometric(loss, size, generator).astype(np.float64)


def _binomial_tail(successes: range, trials: int, share: float) -> mpf:
    exact = mpf(share)
    return mp.fsum(mp.binomial(trials, k) * exact**k * (1 - exact) ** (trials - k) for k in successes)


@given(st.integers(1, 60), st.data(), st.sampled_from([0.5, 0.05, 1e-6, 1e-12]))
def test_proportions_are_those_that_the_binomial_law_allows(trials: int, data: st.DataObject, risk: float) -> None:
    """Clopper and Pearson: at the bound so few, or so many, successes have exactly the risk for a probability."""
    successes = data.draw(st.integers(0, trials))
    with mp.workdps(50):
        above = float(proportion_above(np.array(successes), np.array(trials), risk))
        if successes == trials:
            assert above == 1
        else:
            tail = _binomial_tail(range(successes + 1), trials, above)
            assert risk * 0.999 - 1e-5 < tail <= risk
        below = float(proportion_below(np.array(successes), np.array(trials), risk))
        if successes == 0:
            assert below == 0
        else:
            tail = _binomial_tail(range(successes, trials + 1), trials, below)
            assert risk * 0.999 - 1e-5 < tail <= risk


def test_proportions_of_many_trials_and_of_none() -> None:
    counts, trials = np.array([0, 10, 5 * 10**5, 10**6]), np.array(10**6)
    assert np.all(binom.cdf(counts[:-1], 10**6, proportion_above(counts, trials, 0.01)[:-1]) <= 0.01)
    assert np.all(binom.sf(counts[1:] - 1, 10**6, proportion_below(counts, trials, 0.01)[1:]) <= 0.01)
    assert proportion_above(np.array([0]), np.array([0]), 0.05).tolist() == [1]
    assert proportion_below(np.array([0]), np.array([0]), 0.05).tolist() == [0]


_SETS = 1000
_ALLOWED = int(binom.ppf(0.999, _SETS, 0.05))  # of the sets, at confidence 0.95


def _hockey_stick(loss: float, epsilon: float) -> float:
    """delta(epsilon) of geometric noise against a shift by one, from its mass."""
    x = np.arange(-400, 401)
    mass = exp(-loss) ** np.abs(x)
    mass /= mass.sum()
    return float(np.maximum(mass[1:] - exp(epsilon) * mass[:-1], 0).sum())


_Draw = Callable[[np.random.Generator], LowerBound]
_COVERED: dict[str, tuple[_Draw, float]] = {
    "epsilon": (lambda g: bound_from_residuals(_noise(0.5, 2000, g), 1, pure_epsilon_of_shift, 0.05, g), 0.5),
    "epsilon, shift 3": (lambda g: bound_from_residuals(_noise(0.5, 2000, g), 3, pure_epsilon_of_shift, 0.05, g), 1.5),
    "epsilon, large": (lambda g: bound_from_residuals(_noise(4.0, 500, g), 1, pure_epsilon_of_shift, 0.05, g), 4.0),
    "epsilon, few": (lambda g: bound_from_residuals(_noise(1.0, 20, g), 1, pure_epsilon_of_shift, 0.05, g), 1.0),
    "delta": (
        lambda g: bound_from_residuals(_noise(0.5, 2000, g), 1, delta_at_least(0.3), 0.05, g),
        _hockey_stick(0.5, 0.3),
    ),
    "epsilon at a delta": (
        lambda g: bound_from_residuals(_noise(0.5, 2000, g), 1, epsilon_at_least(_hockey_stick(0.5, 0.3)), 0.05, g),
        0.3,
    ),
    "epsilon of outputs": (
        lambda g: bound_from_outputs(_noise(0.5, 1000, g), 1 + _noise(0.5, 1500, g), epsilon_at_least(), 0.05, g),
        0.5,
    ),
    "delta of outputs": (
        lambda g: bound_from_outputs(_noise(0.5, 1000, g), 1 + _noise(0.5, 1500, g), delta_at_least(0.3), 0.05, g),
        _hockey_stick(0.5, 0.3),
    ),
    "epsilon of quarters": (
        lambda g: bound_from_residuals(_noise(0.5, 2000, g) / 4, 1, pure_epsilon_of_shift, 0.05, g),
        2.0,
    ),
    "epsilon of thirds": (
        lambda g: bound_from_residuals((_noise(0.5, 2000, g) + 0.1) / 3, 1, pure_epsilon_of_shift, 0.05, g),
        1.5,
    ),
}


@pytest.mark.parametrize("name", _COVERED)
def test_it_exceeds_the_truth_at_most_as_often_as_the_confidence_allows(name: str) -> None:
    draw, true = _COVERED[name]
    generator = np.random.default_rng(30)
    found = np.array([draw(generator).value for _ in range(_SETS)])
    assert (found > true).sum() <= _ALLOWED
    assert found.max() > 0


@pytest.mark.parametrize(
    ("loss", "size", "least"),
    [(0.05, 1_000_000, 0.045), (0.5, 3_000, 0.4), (0.5, 1_000_000, 0.49), (3.0, 100_000, 2.9)],
)
def test_it_comes_near_the_truth(loss: float, size: int, least: float) -> None:
    generator = np.random.default_rng(31)
    bound = bound_from_residuals(_noise(loss, size, generator), 1, pure_epsilon_of_shift, 0.05, generator)
    assert least < bound.value < loss * 1.01
    assert bound.event is not None
    assert bound.event.likely > bound.event.unlikely
    assert bound.tested == size - size // 3


def test_two_sets_of_outputs_show_the_loss_whichever_is_the_likelier() -> None:
    generator = np.random.default_rng(32)
    low, high = _noise(0.5, 100_000, generator), 1 + _noise(0.5, 100_000, generator)
    for first, second in ((low, high), (high, low)):
        assert 0.45 < bound_from_outputs(first, second, epsilon_at_least(), 0.05, generator).value < 0.51
        assert 0.13 < bound_from_outputs(first, second, delta_at_least(0.2), 0.05, generator).value < 0.17


def test_an_event_is_told_in_the_values_that_came_in() -> None:
    """A sample that only one sort of event tells from its shift."""
    generator = np.random.default_rng(33)
    spike = np.append(_noise(0.5, 3000, generator), np.zeros(3000))
    event = bound_from_residuals(spike, 1, pure_epsilon_of_shift, 0.05, generator).event
    assert event is not None
    assert (event.kind, event.start, event.compared) in [("between", 0.0, 1.0), ("between", 0.0, -1.0)]
    assert event.stop == event.compared
    inner = np.repeat([0.0, 1.0, 2.0], [450, 100, 450])
    neighbour = np.repeat([0.0, 1.0, 2.0], [350, 300, 350])
    event = bound_from_outputs(inner, neighbour, epsilon_at_least(), 0.05, generator).event
    assert event is not None
    assert (event.kind, event.start, event.stop, event.on_neighbour) == ("between", 1.0, 2.0, True)


def test_outputs_of_only_one_input_are_found() -> None:
    generator = np.random.default_rng(34)
    bounded = generator.integers(-5, 6, 10_000).astype(float)  # uniform noise: at its end nothing is private
    bound = bound_from_residuals(bounded, 1, pure_epsilon_of_shift, 0.05, generator)
    assert bound.value > 4
    delta = bound_from_residuals(bounded, 1, delta_at_least(3.0), 0.05, generator).value
    assert 0.06 < delta < 1 / 11


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [0.0] * 100])
def test_a_sample_that_says_nothing_bounds_nothing(values: list[float]) -> None:
    generator = np.random.default_rng(35)
    sample = np.array(values)
    if len(values) < 50:
        assert bound_from_residuals(sample, 1, pure_epsilon_of_shift, 0.05, generator).value == 0
    assert bound_from_outputs(sample, sample, epsilon_at_least(), 0.05, generator).value == 0
    assert bound_from_outputs(sample, sample, delta_at_least(0.0), 0.05, generator).event is None


def test_constant_residuals_give_the_largest_bound_of_their_number() -> None:
    generator = np.random.default_rng(36)
    bound = bound_from_residuals(np.zeros(3000), 1, pure_epsilon_of_shift, 0.05, generator)
    assert bound.value == pytest.approx(log(1 / (1 - 0.05 ** (1 / 2000))), rel=1e-6)  # none of 2,000 was shifted


def test_two_intervals_share_the_risk() -> None:
    """Samples without a case in common, of which 200 and 400 test: both ends of Clopper and Pearson's are closed."""
    generator = np.random.default_rng(38)
    first, second, risk = np.zeros(300), np.ones(600), 0.05
    # Either sample can be the likelier one; the event that promises more is in the larger sample.
    low, high = (risk / 2) ** (1 / 400), 1 - (risk / 2) ** (1 / 200)
    found = bound_from_outputs(first, second, epsilon_at_least(0.01), risk, generator)
    assert found.event is not None
    sizes = (found.event.likely, found.event.unlikely)
    assert sizes in ((400, 0), (200, 0))
    if sizes == (200, 0):
        low, high = (risk / 2) ** (1 / 200), 1 - (risk / 2) ** (1 / 400)
    assert found.value == pytest.approx(log((low - 0.01) / high), rel=1e-5)
    delta = bound_from_outputs(first, second, delta_at_least(1.5), risk, generator)
    ways = [(risk / 2) ** (1 / n) - exp(1.5) * (1 - (risk / 2) ** (1 / m)) for n, m in ((400, 200), (200, 400))]
    assert min(abs(delta.value / way - 1) for way in ways) < 1e-5
    residuals = bound_from_residuals(np.zeros(600), 1, epsilon_at_least(0.2), risk, generator)
    share = (risk / 2) ** (1 / 400)
    assert residuals.value == pytest.approx(log((share - 0.2) / (1 - share)), rel=1e-5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_ends_are_looked_at(sign: float) -> None:
    """Noise that is never negative, or never positive, betrays its end and nothing else."""
    generator = np.random.default_rng(39)
    one_sided = sign * np.abs(_noise(0.5, 3000, generator))
    bound = bound_from_residuals(one_sided, 1, pure_epsilon_of_shift, 0.05, generator)
    assert bound.value > 4
    assert bound.event is not None
    assert (bound.event.compared - bound.event.start) * sign < 0
    assert bound.event.unlikely == 0
    pair = bound_from_outputs(one_sided, one_sided - sign, epsilon_at_least(), 0.05, generator)
    assert pair.value > 4


def test_far_residuals_are_compared_at_their_own_precision() -> None:
    generator = np.random.default_rng(37)
    far = 2.0**53 - np.abs(_noise(0.5, 3000, generator))
    assert np.isfinite(bound_from_residuals(far, 1, pure_epsilon_of_shift, 0.05, generator).value)
