"""Laws of listed losses, against pairs of laws of outcomes whose losses were moved up to a lattice."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from service.privacy.accounting.gdp import least_mu
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.laws.listed_losses import Direction, dominating, listed_rho, listed_tau
from service.privacy.laws.loss_laws import ListedLoss, LossMasses
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Geometric
from service.privacy.numerics.arithmetic import BALLS, DOUBLES
from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import ball, ceiling
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.privacy.reference import exactly, mp, nats, oracle

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
Pair = list[tuple[Fraction, Fraction]]
"""The probabilities of each outcome under two neighbours."""


def pair(seed: int, *, infinite: bool = False, outcomes: int = 6) -> Pair:
    """Two laws, some of whose outcomes only one of them has."""
    random = Random(seed)
    one, two = ([random.randint(1, 20) for _ in range(outcomes)] for _ in range(2))
    if infinite:
        one[0], two[1] = 0, 0
    return [(Fraction(p, sum(one)), Fraction(q, sum(two))) for p, q in zip(one, two, strict=True)]


def moved_up(laws: Pair, spacing: Fraction) -> LossMasses:
    """The distribution of the loss under the first law, each loss moved up to a multiple of the spacing."""
    found: dict[int, Fraction] = {}
    for p, q in laws:
        if p and q:
            key = math.ceil(mp.log(oracle.number(p) / oracle.number(q)) / oracle.number(spacing) - mp.mpf(10) ** -30)
            found[key] = found.get(key, Fraction(0)) + p
    first = min(found)
    return LossMasses(first, tuple(found.get(key, Fraction(0)) for key in range(first, max(found) + 1)))


def swapped(laws: Pair) -> Pair:
    return [(q, p) for p, q in laws]


def listed(laws: Pair, spacing: Fraction) -> ListedLoss:
    return ListedLoss(spacing, moved_up(laws, spacing), moved_up(swapped(laws), spacing))


def declared(law: ListedLoss) -> Declared:
    return Declared(guarantee=Declaration(pld=law), reference="a test")


def delta(laws: Pair, epsilon: Any) -> Any:
    factor = mp.exp(epsilon)
    return mp.fsum(max(oracle.number(p) - factor * oracle.number(q), mp.mpf(0)) for p, q in laws)


def moment(laws: Pair, alpha: Any) -> Any:
    """E of exp((alpha - 1) L) between the two laws, each given that the loss is finite."""
    finite = [(oracle.number(p), oracle.number(q)) for p, q in laws if p and q]
    of_p, of_q = mp.fsum(p for p, _ in finite), mp.fsum(q for _, q in finite)
    return mp.fsum(p / of_p * (p / of_p / (q / of_q)) ** (alpha - 1) for p, q in finite)


def least_moment(laws: Pair, alpha: Any) -> Any:
    """The least E of exp((alpha - 1) L) over all laws that are left of the second one, where an event as likely as the
    infinite loss is taken away from it; 0 if the first law leaves more than that.

    They are at most q/(1 - delta), and the best one is proportional to p as far as this bound allows.
    """
    delta = max(sum(p for p, q in one if not q) for one in (laws, swapped(laws)))
    if sum(p for p, q in laws if not q) < delta:
        return mp.mpf(0)
    kept = 1 - oracle.number(delta)
    finite = [(oracle.number(p) / kept, oracle.number(q) / kept) for p, q in laws if p and q]
    low, high = mp.mpf(0), mp.mpf(10) ** 12
    for _ in range(160):
        middle = (low + high) / 2
        low, high = (middle, high) if mp.fsum(min(q, middle * p) for p, q in finite) < 1 else (low, middle)
    return mp.fsum(p * (p / min(q, high * p)) ** (alpha - 1) for p, q in finite)


def of_law(law: Any, epsilon: Any) -> Any:
    d = oracle.number(law.spacing)
    masses = zip(law.keys, law.masses, strict=True)
    return oracle.number(law.infinite) + mp.fsum(
        oracle.number(p) * (1 - mp.exp(epsilon - k * d)) for k, p in masses if k * d > epsilon
    )


CASES = [(seed, infinite, spacing) for seed in range(6) for infinite in (False, True) for spacing in ("1/3", "1/40")]


@pytest.mark.parametrize(("seed", "infinite", "spacing"), CASES)
def test_a_dominating_law_is_at_or_above_the_mechanism_everywhere(seed: int, infinite: bool, spacing: str) -> None:
    laws = pair(seed, infinite=infinite)
    law = listed(laws, Fraction(spacing))
    directions = {Direction.REMOVE: [laws], Direction.ADD: [swapped(laws)], Direction.EITHER: [laws, swapped(laws)]}
    with mp.workdps(40):
        for direction, both in directions.items():
            found = dominating(law, direction)
            assert sum(found.masses) + found.infinite == 1
            assert all(mass > 0 for mass in found.masses)
            for step in range(-45, 46):
                epsilon = mp.mpf(step) / 15
                truth = max(delta(one, epsilon) for one in both)
                assert of_law(found, epsilon) >= truth * (1 - mp.mpf(10) ** -25)
                assert of_law(found, epsilon) <= truth + oracle.number(spacing) * 1.01


@pytest.mark.parametrize(("seed", "infinite", "spacing"), CASES)
def test_divergences_are_at_or_above_the_mechanisms(seed: int, infinite: bool, spacing: str) -> None:
    laws = pair(seed, infinite=infinite)
    law = listed(laws, Fraction(spacing))
    rho = listed_rho(law)
    with mp.workdps(40):
        for alpha in (Fraction("1.001"), Fraction("1.5"), Fraction(2), Fraction(7), Fraction(100)):
            truth, largest = (
                max(mp.log(max(of(one, oracle.number(alpha)), 1)) for one in (laws, swapped(laws)))
                / oracle.number(alpha - 1)
                for of in (least_moment, moment)
            )
            found = ceiling(lambda z=alpha - 1: listed_tau(law, ball(z), BALLS))  # type: ignore[misc]
            assert found is not None
            assert exactly(truth) * (1 - Fraction(1, 10**20)) <= found <= exactly(largest) + Fraction(spacing) * 3
            assert rho * alpha >= found
            rough = listed_tau(law, np.array([float(alpha - 1)]), DOUBLES)
            assert rough[0] == pytest.approx(float(found), rel=1e-9)


def test_rho_is_the_largest_quotient() -> None:
    law = listed(pair(3), Fraction(1, 40))
    with mp.workdps(30):
        orders = [Fraction(1) + Fraction(k, 200) ** 3 for k in range(1, 1000)]
        truth = max(nats(mechanism_tau(declared(law), alpha)) / alpha for alpha in orders)
    assert truth <= listed_rho(law) <= truth * (1 + Fraction(1, 10**5))


def composed(laws: Pair, times: int) -> Pair:
    return [
        (Fraction(math.prod(p for p, _ in chosen)), Fraction(math.prod(q for _, q in chosen)))
        for chosen in product(laws, repeat=times)
    ]


@pytest.mark.parametrize(("seed", "infinite", "spacing"), CASES)
def test_compositions_are_above_the_truth_and_that_of_the_dominating_laws(
    seed: int, infinite: bool, spacing: str
) -> None:
    """Removals are composed with removals: the figure is the larger of both directions at the end."""
    laws = pair(seed, infinite=infinite, outcomes=4)
    law = listed(laws, Fraction(spacing))
    plan = Repeat(part=declared(law), count=4)
    profile = TightProfile.of(plan, ADD)
    assert profile is not None
    with mp.workdps(30):
        whole = composed(laws, 4)
        for epsilon in (Fraction(0), Fraction(1, 2), Fraction(2)):
            found = profile.delta(epsilon)
            assert found is not None
            assert found.loss.nats is not None
            e = oracle.number(epsilon)
            assert found.loss.nats >= exactly(max(delta(whole, e), delta(swapped(whole), e)))
            dominated = max(_power_delta(dominating(law, one), 4, e) for one in (Direction.REMOVE, Direction.ADD))
            assert exactly(dominated) * (1 - Fraction(1, 10**12)) <= found.loss.nats
            assert found.loss.nats <= exactly(dominated) * (1 + Fraction(1, 10**6))


def _power_delta(law: Any, times: int, epsilon: Any) -> Any:
    """delta of a law composed with itself, by convolution."""
    whole = {0: mp.mpf(1)}
    for _ in range(times):
        step: dict[int, Any] = {}
        for key, p in whole.items():
            for more, q in zip(law.keys, law.masses, strict=True):
                step[key + more] = step.get(key + more, mp.mpf(0)) + p * oracle.number(q)
        whole = step
    d = oracle.number(law.spacing)
    finite = mp.fsum(p * (1 - mp.exp(epsilon - k * d)) for k, p in whole.items() if k * d > epsilon)
    return finite + 1 - (1 - oracle.number(law.infinite)) ** times


@pytest.mark.parametrize("seed", range(6))
def test_below_a_choice_and_with_others_the_figure_is_above_every_branch(seed: int) -> None:
    """The adversary's fixed choices, in either direction, by enumeration."""
    laws, rungs = pair(seed, outcomes=4), [(Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4))]
    part = declared(listed(laws, Fraction(1, 40)))
    rung = Declared(guarantee=Declaration(epsilon=Fraction("1.0986122886681099")), reference="log 3")
    plans: list[tuple[Plan, list[Pair]]] = [
        (Repeat(part=Choice(parts=(part, rung)), count=2), [_both(a, b) for a in (laws, rungs) for b in (laws, rungs)]),
        (Parallel(parts=(part, part, rung), max_degree=2), [_both(laws, laws), _both(laws, rungs)]),
        (Sequence(parts=(part, rung)), [_both(laws, rungs)]),
    ]
    with mp.workdps(30):
        for plan, truths in plans:
            profile = TightProfile.of(plan, ADD)
            assert profile is not None
            for epsilon in (Fraction(0), Fraction(1), Fraction(2)):
                found = profile.delta(epsilon)
                assert found is not None
                assert found.loss.nats is not None
                e = oracle.number(epsilon)
                assert found.loss.nats >= exactly(max(max(delta(one, e), delta(swapped(one), e)) for one in truths))


def _both(one: Pair, two: Pair) -> Pair:
    return [(p * r, q * s) for (p, q), (r, s) in product(one, two)]


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_record_leaves_one_part_and_enters_another(seed: int) -> None:
    """Under replace_one a removal and an addition are composed, whatever the directions."""
    laws = pair(seed, outcomes=4)
    whole, side = listed(_both(laws, swapped(laws)), Fraction(1, 40)), listed(laws, Fraction(1, 40))
    assert side.remove != side.add
    part = replace(declared(ListedLoss(whole.spacing, whole.remove, whole.remove)), add_remove=Declaration(pld=side))
    profile = TightProfile.of(Parallel(parts=(part, part), max_degree=1), REPLACE)
    assert profile is not None
    with mp.workdps(30):
        for epsilon in (Fraction(0), Fraction(1), Fraction(2)):
            found = profile.delta(epsilon)
            assert found is not None
            assert found.loss.nats is not None
            assert found.loss.nats >= exactly(delta(_both(laws, swapped(laws)), oracle.number(epsilon)))


def test_unlike_directions_are_not_mixed_under_add_remove() -> None:
    """Ten times the worse direction is what ten removals lose; the law of either is above it."""
    law = ListedLoss(
        Fraction(1, 4),
        LossMasses(-1, (Fraction(9, 10), Fraction(0), Fraction(0), Fraction(1, 10))),
        LossMasses(-2, (Fraction(1, 20), Fraction(0), Fraction(0), Fraction(19, 20))),
    )
    assert dominating(law, Direction.REMOVE) != dominating(law, Direction.ADD)
    profile = TightProfile.of(Repeat(part=declared(law), count=10), ADD)
    chosen = TightProfile.of(Repeat(part=Choice(parts=(declared(law), Geometric(scale=Fraction(100)))), count=10), ADD)
    assert profile is not None
    assert chosen is not None
    one, two = profile.epsilon(Fraction(1, 10**6)), chosen.epsilon(Fraction(1, 10**6))
    assert one is not None
    assert two is not None
    assert one.loss < two.loss
    with mp.workdps(30):
        e = oracle.number(one.loss.nats)
        deltas = [_power_delta(dominating(law, direction), 10, e) for direction in (Direction.REMOVE, Direction.ADD)]
        assert max(deltas) <= mp.mpf(10) ** -6
        assert max(deltas) >= mp.mpf(10) ** -6 * (1 - mp.mpf(10) ** -5)


def test_a_symmetric_law_of_response_is_that_of_response() -> None:
    """The losses are on the lattice, so the figures are those of the pure guarantee."""
    epsilon = Fraction(1)
    p = Fraction(math.e / (1 + math.e)) + Fraction(1, 10**16)
    masses = LossMasses(-1, (1 - p, Fraction(0), p))
    part, pure = (
        declared(ListedLoss(epsilon, masses, masses)),
        Declared(guarantee=Declaration(epsilon=epsilon), reference="-"),
    )
    assert part.pure_epsilon() == pure.pure_epsilon()
    for alpha in (Fraction("1.1"), Fraction(2), Fraction(30)):
        one, two = mechanism_tau(part, alpha).nats, mechanism_tau(pure, alpha).nats
        assert float(one or 0) == pytest.approx(float(two or 0), rel=1e-12)
    assert float(part.rho().nats or 0) == pytest.approx(float(pure.rho().nats or 0), rel=1e-8)
    for plan in (part, Repeat(part=part, count=9)):
        of_pure = pure if plan is part else Repeat(part=pure, count=9)
        for neighbouring in (ADD, REPLACE):
            assert float(least_mu(plan, neighbouring) or 0) == pytest.approx(
                float(least_mu(of_pure, neighbouring) or 1), rel=1e-6
            )


def test_a_group_has_what_the_largest_loss_implies() -> None:
    law = listed(pair(1, infinite=True), Fraction(1, 4))
    grouped, times = declared(law).grouped(3)
    assert times == 1
    assert grouped.pure_epsilon().nats == 3 * law.largest
    assert Loss(min(3 * law.infinite, Fraction(99, 100))) < grouped.delta()
    assert declared(law).grouped(1) == (declared(law), 1)


def test_with_discrete_noise_of_another_lattice() -> None:
    law = listed(pair(2), Fraction(1, 40))
    plan = Sequence(parts=(declared(law), DiscreteGaussian(sigma_squared=Fraction(20))))
    profile = TightProfile.of(plan, ADD)
    assert profile is not None
    found = profile.epsilon(Fraction(1, 10**6))
    assert found is not None
    assert found.method == "lattice"
