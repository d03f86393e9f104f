"""Compositions of losses of bounded range against searches over what an adversary may do."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.mechanisms import Exponential, Gaussian, Geometric, Mechanism
from service.privacy.plans import Choice, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.privacy.reference import nats

Doubles = NDArray[np.float64]


def probability(e: float, t: Doubles) -> Doubles:
    """Of the loss t, the other being t - e."""
    return np.asarray((math.exp(e) - np.exp(t)) / math.expm1(e))


def of_one(e: float, x: Doubles) -> Doubles:
    """The largest delta of one loss: the best t is (e + x)/2."""
    t = np.clip((e + x) / 2, 0, e)
    return np.maximum(np.maximum(probability(e, t) * -np.expm1(x - t), -np.expm1(x)), 0.0)


def searched(e: float, count: int, x: Doubles, ts: int) -> Doubles:
    """A delta that is reached: the largest over ``ts`` values of t before each loss but the last."""
    if count == 1:
        return of_one(e, x)
    t = np.linspace(0, e, ts)
    p = probability(e, t)
    places = np.concatenate([x[:, None] - t, x[:, None] - t + e])
    after = np.concatenate([searched(e, count - 1, part, ts) for part in np.array_split(places.ravel(), 64)])
    up, down = after.reshape(2, len(x), ts)
    return np.asarray((p * up + (1 - p) * down).max(axis=1))


def unchanging(e: float, count: int, x: float) -> float:
    """The largest delta if every loss has the same t (Dong, Durfee and Rogers 2020)."""
    best = 0.0
    for kink in range(count):
        t = min(max((x + (kink + 1) * e) / (count + 1), 0.0), e)
        ones = np.arange(count + 1)
        loss = ones * t + (count - ones) * (t - e)
        above = loss > x
        mass = binom.pmf(ones[above], count, float(probability(e, np.array(t))))
        best = max(best, float((mass * -np.expm1(x - loss[above])).sum()))
    return best


def delta(plan: Plan, epsilon: float) -> float:
    profile = TightProfile.of(plan, Neighbouring.ADD_REMOVE)
    assert profile is not None
    found = profile.delta(Fraction(epsilon))
    assert found is not None
    return float(nats(found.loss))


def repeated(e: str, count: int) -> Plan:
    return Repeat(part=Exponential(name="a", epsilon=Fraction(e)), count=count)


@pytest.mark.parametrize("e", [0.01, 1.0, 6.0])
def test_one_step_is_that_of_the_best_t(e: float) -> None:
    t = np.linspace(0, e, 20001)
    for x in (0.0, 0.3 * e, 0.9 * e):
        reached = float((probability(e, t) * np.maximum(-np.expm1(x - t), 0)).max())
        assert float(of_one(e, np.array([x]))[0]) == pytest.approx(reached, rel=1e-6)


@pytest.mark.parametrize(("e", "count", "ts"), [("1", 2, 2001), ("0.1", 2, 2001), ("5", 2, 2001), ("1", 3, 501)])
def test_few_steps_are_those_of_the_best_adversary(e: str, count: int, ts: int) -> None:
    """The bound is about a millionth above what a search reaches, which misses the best t by 1/ts."""
    epsilons = np.array([0.05, 0.3, 0.55, 0.8]) * count * float(e)
    truth = searched(float(e), count, epsilons, ts)
    for epsilon, reached in zip(epsilons.tolist(), truth.tolist(), strict=True):
        found = delta(repeated(e, count), epsilon)
        assert reached * (1 - 1e-12) <= found <= reached * (1 + 2e-6 + 20 / ts**2)


@pytest.mark.parametrize(("e", "count", "m"), [("1", 10, 100), ("0.01", 10, 100), ("0.3", 40, 40)])
def test_several_steps_are_those_of_an_adversary_on_a_lattice(e: str, count: int, m: int) -> None:
    """It takes only multiples of e/m for t, so that all losses are such multiples, and it reaches what is found."""
    h = float(e) / m
    share = probability(float(e), h * np.arange(m + 1.0))
    places = h * np.arange(-2.0 * count * m, 2 * count * m + 1)
    reached = of_one(float(e), places)
    for _ in range(count - 1):  # every step loses m multiples on either side
        middle = slice(m, len(reached) - m)
        sums = [
            p * reached[m - j : len(reached) - m - j] + (1 - p) * reached[2 * m - j : len(reached) - j or None]
            for j, p in enumerate(share)
        ]
        reached, places = np.maximum.reduce(sums), places[middle]
    for epsilon in (0.1, 0.4, 0.7):
        place = int(np.argmin(np.abs(places - epsilon * count * float(e))))
        found = delta(repeated(e, count), float(places[place]))
        assert reached[place] * (1 - 1e-9) <= found <= reached[place] * (1 + 2e-2)


@pytest.mark.parametrize(
    ("e", "count", "share"), [("0.1", 100, 5e-3), ("0.1", 1000, 5e-3), ("0.001", 1000, 5e-3), ("2", 30, 2e-2)]
)
def test_many_steps_are_little_above_an_adversary_that_never_changes(e: str, count: int, share: float) -> None:
    profile = TightProfile.of(repeated(e, count), Neighbouring.ADD_REMOVE)
    assert profile is not None
    for target in (Fraction(1, 1000), Fraction(1, 10**8)):
        found = profile.epsilon(target)
        assert found is not None
        epsilon = float(nats(found.loss))
        assert unchanging(float(e), count, epsilon) <= target
        assert unchanging(float(e), count, epsilon * (1 - share)) > target


def test_no_adversary_that_looks_at_losses_reaches_more() -> None:
    """Strategies with a t for each number of steps and sum of losses, chosen at random."""
    chance, e, count = random.Random(2), 0.7, 4

    def reached(left: int, x: float) -> float:
        if left == 0:
            return max(-math.expm1(x), 0.0)
        t = np.array(chance.choice([chance.uniform(0, e), min(max((x + e * left) / (left + 1), 0), e)]))
        p = float(probability(e, t))
        return p * reached(left - 1, x - float(t)) + (1 - p) * reached(left - 1, x - float(t) + e)

    for epsilon in (0.2, 0.9, 1.7):
        bound = delta(repeated("0.7", count), epsilon)
        assert max(reached(count, epsilon) for _ in range(300)) <= bound


@pytest.mark.parametrize(
    ("sizes", "counts", "above"), [((40, 20), (1, 1), 1e-6), ((30, 20, 10), (2, 2, 2), 4e-2), ((41, 17), (2, 3), 2e-2)]
)
def test_unlike_steps_are_those_of_the_best_adversary_in_any_order(
    sizes: tuple[int, ...], counts: tuple[int, ...], above: float
) -> None:
    """It takes only multiples of a hundredth for t, and goes on with any range that is left."""
    h, most = 0.01, sum(size * count for size, count in zip(sizes, counts, strict=True))
    places = h * np.arange(-2.0 * most, 2 * most + 1)
    profiles: dict[tuple[int, ...], Doubles] = {}
    for state in itertools.product(*(range(count + 1) for count in counts)):
        reached = np.maximum(-np.expm1(places), 0.0) if not any(state) else np.zeros(len(places))
        for k, size in enumerate(sizes):
            if state[k]:
                after = profiles[(*state[:k], state[k] - 1, *state[k + 1 :])]
                around = np.concatenate([np.ones(size), after, np.zeros(size)])
                for j, p in enumerate(probability(h * size, h * np.arange(size + 1.0))):
                    up, down = around[size - j :][: len(places)], around[2 * size - j :][: len(places)]
                    reached = np.maximum(reached, p * up + (1 - p) * down)
        profiles[state] = reached
    kinds = zip(sizes, counts, strict=True)
    plan = Sequence(parts=tuple(repeated(f"{size}/100", count) for size, count in kinds))
    for share in (0.1, 0.4, 0.7):
        place = 2 * most + round(share * most)
        found = delta(plan, float(places[place]))
        assert reached[place] * (1 - 1e-9) <= found <= reached[place] * (1 + above)


def test_beyond_the_largest_loss_there_is_no_delta() -> None:
    assert delta(repeated("0.5", 7), 3.5 * (1 + 1e-9)) == 0
    assert delta(repeated("0.5", 7), 3.4) > 0


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("scale", [Fraction(2), Fraction(9)])
def test_beside_fixed_losses_the_adversary_moves_last(scale: Fraction, count: int) -> None:
    """The loss of two values of a randomised bit, known before any t is chosen."""
    bit, e = Geometric(name="b", scale=scale), 1 / float(scale)
    for epsilon in (0.1, 0.4, 0.9):
        found = delta(Sequence(parts=(repeated("0.5", count), bit)), epsilon)
        p = 1 / (1 + math.exp(-e))
        low = delta(repeated("0.5", count), epsilon - e) if epsilon > e else -math.expm1(epsilon - e)
        if epsilon < e:  # the profile of a symmetric pair
            low += math.exp(epsilon - e) * delta(repeated("0.5", count), e - epsilon)
        truth = p * low + (1 - p) * delta(repeated("0.5", count), epsilon + e)
        assert found == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(
    "other", [Gaussian(name="b", sigma_squared=Fraction(9)), Exponential(name="b", epsilon=Fraction(1, 3))]
)
def test_beside_other_losses_a_fixed_adversary_reaches_less(other: Mechanism) -> None:
    """One loss of a fixed t, by the profile of the other."""
    e, epsilon = 0.5, 0.6
    found, fixed = delta(Sequence(parts=(Exponential(name="a", epsilon=Fraction(1, 2)), other)), epsilon), []
    for t in np.linspace(0, e, 11):
        p = float(probability(e, t))
        low = delta(other, epsilon - t)
        fixed.append(p * low + (1 - p) * delta(other, epsilon - t + e))
    assert max(fixed) <= found <= 1.5 * max(fixed)


def test_a_choice_of_it_is_at_least_each_branch() -> None:
    one, two = Exponential(name="a", epsilon=Fraction(1)), Geometric(name="b", scale=Fraction(3, 2))
    for count in (1, 3):
        for epsilon in (0.1, 0.5, 0.9):
            choice = delta(Repeat(part=Choice(parts=(one, two)), count=count), epsilon)
            assert choice >= max(delta(Repeat(part=part, count=count), epsilon) for part in (one, two)) * (1 - 1e-9)
    wider = Exponential(name="b", epsilon=Fraction(2))
    assert delta(Choice(parts=(one, wider)), 0.5) == pytest.approx(delta(wider, 0.5), rel=1e-12)


def test_many_kinds_share_the_work() -> None:
    kinds = [Repeat(part=Exponential(name=str(k), epsilon=Fraction(k, 100)), count=33) for k in range(1, 31)]
    profile = TightProfile.of(Sequence(parts=tuple(kinds)), Neighbouring.ADD_REMOVE)
    assert profile is not None
    found = profile.epsilon(Fraction(1, 10**5))
    assert found is not None
    rho = math.fsum(33 * (k / 100) ** 2 / 8 for k in range(1, 31))
    assert float(nats(found.loss)) < rho + 2 * math.sqrt(rho * math.log(10**5))
