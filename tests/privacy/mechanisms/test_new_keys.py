"""Thresholds against an enumeration of what is published: all neighbours of small data, in both directions."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.privacy.accounting.pricing import estimate_price, price
from service.privacy.accounting.privacy_filter import ORDERS
from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.fields import THRESHOLD
from service.privacy.mechanisms import (
    MECHANISMS as MECHANISM_KINDS,
    DiscreteGaussian,
    DiscreteOsgt,
    Geometric,
    NewKeys,
    without_threshold,
)
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence as InSequence
from service.privacy.plans.walking import Neighbouring, condense, leaves
from service.privacy.tight import TightProfile
from tests.privacy.mechanisms.examples import contract_of, examples
from tests.privacy.reference import exactly, mp, oracle, plan_tau

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
Noise = Geometric | DiscreteGaussian | DiscreteOsgt
Data = Mapping[str, int]
"""The true counts of the keys that the data contain."""
MECHANISMS: list[Noise] = [
    Geometric(scale=Fraction(1), threshold=4),
    Geometric(scale=Fraction(1), threshold=1),
    Geometric(scale=Fraction(3), sensitivity=2, threshold=9),
    DiscreteGaussian(sigma_squared=Fraction(2), threshold=5),
    DiscreteGaussian(sigma_squared=Fraction("0.7"), sensitivity=2, threshold=3),
    DiscreteOsgt(sigma_squared=Fraction(4), m=Fraction(1), threshold=5),
]
EPSILONS = [Fraction(text) for text in ("0", "0.01", "0.3", "1", "2.5", "8")]
ROUNDING = 1e-12  # of sums of doubles
_ABOVE = 60  # noisy counts from the threshold on that are told apart; those beyond are one outcome


def log_mass(mechanism: Noise) -> Any:
    match mechanism:
        case Geometric(scale=scale):
            return oracle.geometric(scale)
        case DiscreteOsgt(sigma_squared=v, m=m):
            return oracle.discrete_osgt(v, m)
    return oracle.discrete_gaussian(mechanism.sigma_squared)


@cache
def mass(mechanism: Noise) -> dict[int, Any]:
    found: dict[int, Any] = oracle.pmf(log_mass(mechanism))
    return found


def chance(mechanism: Noise, count: int) -> Any:
    """The probability that a key with this count is published, by a sum; the threshold itself is published."""
    assert mechanism.threshold is not None
    return mp.fsum(p for x, p in mass(mechanism).items() if count + x >= mechanism.threshold)


@cache
def published(mechanism: Noise, count: int | None) -> NDArray[np.float64]:
    """The law of one key's outcome: suppressed, the counts from the threshold on, and all beyond together."""
    law = np.zeros(_ABOVE + 2)
    if count is None:  # a key that the data do not contain
        law[0] = 1
        return law
    assert mechanism.threshold is not None
    for x, p in mass(mechanism).items():
        law[min(max(count + x - mechanism.threshold + 1, 0), _ABOVE + 1)] += float(p)
    return law


def output(mechanism: Noise, data: Data, keys: Sequence[str]) -> NDArray[np.float64]:
    """The law of what is published: of all keys together."""
    law = np.ones(1)
    for key in keys:
        law = np.multiply.outer(law, published(mechanism, data.get(key))).ravel()
    return law


def delta(mechanism: Noise, one: Data, other: Data, epsilon: Fraction) -> float:
    """The least delta with which ``one`` is as likely as e^epsilon times ``other``, for any set of outcomes."""
    keys = sorted({*one, *other})
    p, q = (output(mechanism, data, keys) for data in (one, other))
    return float(np.maximum(p - np.exp(float(epsilon)) * q, 0).sum())


def with_records(data: Data, records: Iterable[Mapping[str, int]]) -> Data:
    found = dict(data)
    for record in records:
        for key, count in record.items():
            found[key] = found.get(key, 0) + count
    return found


def charged(plan: Plan, relation: Neighbouring, epsilon: Fraction) -> float:
    profile = TightProfile.of(plan, relation)
    bound = None if profile is None else profile.delta(epsilon)
    assert bound is not None
    assert bound.loss.nats is not None
    return float(bound.loss.nats)


def others(mechanism: Noise, keys: Sequence[str]) -> list[Data]:
    """Counts that other records have: none, some below the threshold, some about it, many."""
    assert mechanism.threshold is not None
    counts = [None, 1, mechanism.threshold, mechanism.threshold + 30]
    found = itertools.combinations_with_replacement(counts, len(keys))
    return [{key: n for key, n in zip(keys, chosen, strict=True) if n is not None} for chosen in found]


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_one_record_more_or_less_is_covered_in_both_directions(mechanism: Noise, cells: int) -> None:
    keys = ["a", "b"][:cells]
    every_move = list(itertools.combinations_with_replacement(range(1, mechanism.sensitivity + 1), cells))
    pairs: list[tuple[Data, Data]] = [
        (data, with_records(data, [dict(zip(keys, moved, strict=True))]))
        for data in others(mechanism, keys)
        for moved in every_move
    ]
    for epsilon in EPSILONS:
        worst = max(max(delta(mechanism, *pair, epsilon), delta(mechanism, *pair[::-1], epsilon)) for pair in pairs)
        bound = charged(replace(mechanism, cells=cells), ADD, epsilon)
        assert worst <= bound * (1 + ROUNDING) + ROUNDING
        assert bound <= 2 * worst + ROUNDING  # the keys are either new or not: at most both are charged


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_replaced_record_is_covered(mechanism: Noise) -> None:
    """One record in one cell: its key may vanish and another one appear."""
    worst = dict.fromkeys(EPSILONS, 0.0)
    for data in others(mechanism, ["a", "b"]):
        for left, entered in itertools.product(range(1, mechanism.sensitivity + 1), repeat=2):
            for key in ("a", "b"):
                one, other = with_records(data, [{"a": left}]), with_records(data, [{key: entered}])
                for epsilon in EPSILONS:
                    worst[epsilon] = max(worst[epsilon], delta(mechanism, one, other, epsilon))
    for epsilon, truth in worst.items():
        bound = charged(mechanism, REPLACE, epsilon)
        assert truth <= bound * (1 + ROUNDING) + ROUNDING
        assert bound <= 2 * truth + ROUNDING


@pytest.mark.parametrize(
    ("cells", "added", "keys"), [(None, None, 1), (3, None, 3), (4, 2, 2), (2, 2, 2), (None, 3, 3)]
)
def test_a_replaced_record_can_make_as_many_keys_appear_as_an_added_one(
    cells: int | None, added: int | None, keys: int
) -> None:
    """As many may vanish, and no outcome shows both: 1 - (1-p)^k, at a loss that the noise does not reach."""
    mechanism = Geometric(scale=Fraction(1), threshold=3, cells=cells, cells_added=added)
    beyond = (plan_epsilon(mechanism, REPLACE).nats or Fraction(0)) + 1
    one: Data = {f"left {number}": 1 for number in range(keys)}
    other: Data = {f"entered {number}": 1 for number in range(keys)}
    p = chance(mechanism, 1)
    assert charged(mechanism, REPLACE, beyond) == pytest.approx(float(1 - (1 - p) ** keys), rel=1e-12)
    if keys == 1:
        assert delta(mechanism, one, other, beyond) == pytest.approx(float(p), rel=1e-12)
        assert delta(mechanism, other, one, beyond) == pytest.approx(float(p), rel=1e-12)
    assert plan_delta(mechanism, REPLACE) == keys * plan_delta(replace(mechanism, cells=1, cells_added=None), ADD)


@pytest.mark.parametrize("mechanism", MECHANISMS[:4], ids=str)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_two_records_that_change_together_are_covered(mechanism: Noise, relation: Neighbouring) -> None:
    """In one cell each: on one new key, on two, or on keys that the data contain."""
    s, plan = mechanism.sensitivity, Group(part=mechanism, size=2)
    for data in others(mechanism, ["a", "b"]):
        for (one, two), (left, gone) in itertools.product([("a", "a"), ("a", "b")], [("c", "c"), ("c", "d")]):
            after = with_records(data, [{one: s}, {two: s}])
            before = data if relation is ADD else with_records(data, [{left: s}, {gone: s}])
            if relation is REPLACE and len({*before, *after}) > 3:
                continue  # two keys vanish and two appear: more outcomes than can be listed, and the same law
            for epsilon in EPSILONS:
                bound = charged(plan, relation, epsilon)
                assert delta(mechanism, before, after, epsilon) <= bound * (1 + ROUNDING) + ROUNDING
                assert delta(mechanism, after, before, epsilon) <= bound * (1 + ROUNDING) + ROUNDING


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("size", range(1, 8))
def test_a_group_is_charged_the_worst_way_of_sharing_new_keys(mechanism: Noise, size: int) -> None:
    """Every partition of its records into keys; beyond the threshold, where one is certain enough, it is charged 1."""
    assert mechanism.threshold is not None
    found = plan_delta(Group(part=mechanism, size=size), ADD)
    shared: set[tuple[int, ...]] = {()}
    for _ in range(size):
        shared = {
            tuple(sorted(more))
            for one in shared
            for more in [(*one, 1), *((*one[:k], one[k] + 1, *one[k + 1 :]) for k in range(len(one)))]
        }
    worst = max(mp.fsum(chance(mechanism, n * mechanism.sensitivity) for n in one) for one in shared)
    assert found >= min(exactly(worst), Fraction(1)) * (1 - Fraction(1, 10**30))
    if size == 1 or size * mechanism.sensitivity <= mechanism.threshold:
        assert found <= min(exactly(worst), Fraction(1)) * (1 + Fraction(1, 10**25))
    else:
        assert found == 1
        assert 1 - mp.fprod(1 - chance(mechanism, n) for n in [size * mechanism.sensitivity]) >= mp.mpf(1) / 2


def test_one_key_for_all_records_of_a_group_is_not_always_the_worst() -> None:
    wide = Geometric(scale=Fraction(20), threshold=100)
    alone, together = chance(wide, 1), chance(wide, 3)
    assert 3 * alone > together
    assert plan_delta(Group(part=wide, size=3), ADD) == 3 * plan_delta(wide, ADD)
    narrow = replace(wide, scale=Fraction(1))
    assert 3 * chance(narrow, 1) < chance(narrow, 3)
    assert plan_delta(Group(part=narrow, size=3), ADD) > 3 * plan_delta(narrow, ADD)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("cells", [1, 3])
def test_the_charge_is_the_tail_with_the_threshold_itself(mechanism: Noise, cells: int) -> None:
    exact = exactly(cells * chance(mechanism, mechanism.sensitivity))
    found = plan_delta(replace(mechanism, cells=cells), ADD)
    assert exact * (1 - Fraction(1, 10**30)) <= found <= exact * (1 + Fraction(1, 10**25))


@pytest.mark.parametrize(("scale", "cells"), [("0.5", 1), ("1", 2), ("2", 3)])
def test_every_broken_variant_differs_from_what_is_published(scale: str, cells: int) -> None:
    """At a loss that the noise does not reach, delta is the probability that a new key is published."""
    mechanism = Geometric(scale=Fraction(scale), threshold=4, cells=cells)
    beyond = cells / Fraction(scale) + 1
    record: Data = dict.fromkeys("abc"[:cells], 1)
    p = chance(mechanism, 1)
    if cells < 3:
        removed, added = delta(mechanism, record, {}, beyond), delta(mechanism, {}, record, beyond)
        assert removed == pytest.approx(float(1 - (1 - p) ** cells), rel=1e-9)
        assert added == 0  # so one direction alone is not enough
        assert delta(mechanism, {}, record, Fraction(0)) == pytest.approx(removed, rel=1e-9)
    truth = float(1 - (1 - p) ** cells)
    found = charged(mechanism, ADD, beyond)
    assert found == pytest.approx(truth, rel=1e-12)
    without_itself = p - mass(mechanism)[3]
    two_sided = p + mp.fsum(q for x, q in mass(mechanism).items() if x <= -3)
    of_nobody = chance(mechanism, 0)
    for broken in (without_itself, of_nobody):
        assert 1 - (1 - broken) ** cells < truth * (1 - 1e-6)
    assert cells == 1 or p < truth * (1 - 1e-6)  # one key only
    assert 1 - (1 - two_sided) ** cells > truth * (1 + 1e-6)


def test_a_threshold_costs_nothing_but_delta() -> None:
    """The losses are those of the noise alone, which a threshold only processes."""
    for mechanism in MECHANISMS:
        for relation in (ADD, REPLACE):
            bare = replace(mechanism, threshold=None)
            assert plan_epsilon(mechanism, relation) == plan_epsilon(bare, relation)
            assert plan_rho(mechanism, relation).nats == plan_rho(bare, relation).nats
            assert plan_tau(mechanism, relation, Fraction(3)).nats == plan_tau(bare, relation, Fraction(3)).nats
            assert plan_delta(bare, relation) == 0 < plan_delta(mechanism, relation)


def test_deltas_compose_as_losses_do() -> None:
    deltas = [plan_delta(mechanism, ADD) for mechanism in MECHANISMS]
    largest = sorted(deltas, reverse=True)
    parts = tuple(MECHANISMS)
    assert plan_delta(InSequence(parts=parts), ADD) == sum(deltas)
    assert plan_delta(Choice(parts=parts), ADD) == largest[0]
    assert plan_delta(Parallel(parts=parts, max_degree=2), ADD) == largest[0] + largest[1]
    assert plan_delta(Repeat(part=parts[0], count=7), ADD) == 7 * deltas[0]
    # A replaced record can leave one part and enter another, with a key in each.
    assert plan_delta(Choice(parts=parts), REPLACE) == 2 * largest[0]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_prices_and_their_estimates_have_the_delta(relation: Neighbouring) -> None:
    plan = InSequence(parts=(*MECHANISMS, Geometric(scale=Fraction(9))))
    orders = ORDERS[::50]
    exact, estimate = price(plan, relation, orders), estimate_price(plan, relation, orders)
    assert exact.delta == estimate.delta == plan_delta(plan, relation) > 0


def test_all_notions_see_the_noise_and_the_keys_apart() -> None:
    """No noise in a condensed plan has a threshold, so that equal noise is counted together."""
    plan = InSequence(parts=(*MECHANISMS, *(replace(one, threshold=None) for one in MECHANISMS)))
    found = [*leaves(condense(plan))]
    assert sum(isinstance(one, NewKeys) for one in found) == len(MECHANISMS)
    assert all(one.threshold is None for one in found if not isinstance(one, NewKeys))
    assert len(found) == 2 * len(MECHANISMS) - 1  # two have the same noise
    assert without_threshold(replace(MECHANISMS[0], threshold=None), 1) == (
        replace(MECHANISMS[0], threshold=None),
        None,
    )


def test_only_noise_that_is_symmetric_and_falls_from_0_takes_a_threshold() -> None:
    kinds = [kind for kind in MECHANISM_KINDS.values() if THRESHOLD in kind.AFTER]
    assert {Geometric, DiscreteGaussian, DiscreteOsgt} <= set(kinds)
    for kind in kinds:
        for example in examples(kind):
            masses = contract_of(kind)().masses(example)
            assert all(masses[x] == masses[-x] and masses[x] <= masses[x - 1] for x in masses if x > 0)


def test_a_lattice_of_another_unit_costs_the_same() -> None:
    for mechanism in MECHANISMS:
        assert condense(replace(mechanism, granularity=Fraction(5, 3))) == condense(mechanism)


@pytest.mark.parametrize("threshold", [10**6, 2**53])
def test_a_tiny_delta_is_not_0_and_is_added_exactly(threshold: int) -> None:
    tiny = (
        Geometric(scale=Fraction(1), threshold=threshold),
        DiscreteGaussian(sigma_squared=Fraction(1), threshold=threshold),
    )
    for mechanism in tiny:
        assert plan_delta(replace(mechanism, cells=3), ADD) == Fraction(3, 10**50)
