"""Composition of costs: against the enumeration of where a changed record can be, and by invariants."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import chain, combinations
from operator import methodcaller

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.renyi import RenyiCurve
from service.privacy.accounting.zcdp import mechanism_rho, plan_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Mechanism,
    NewKeys,
    RandomizedResponse,
    without_threshold,
)
from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import double_up, exact_text, parse_exact
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.composition_program import build_program
from service.privacy.plans.walking import (
    Neighbouring,
    Priced,
    condense,
    leaves,
    mechanisms_of,
    parts_of,
    restrict,
    with_parts,
)
from tests.privacy.reference import nats, plan_tau
from tests.privacy.strategies import mechanisms, plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
ORDERS = (Fraction("1.1"), Fraction("2.5"), Fraction(40))

Cost = Callable[[Mechanism], Loss]
Fold = Callable[[Priced, Neighbouring], Loss]
NOTIONS: dict[str, tuple[Cost, Fold]] = {
    "pure": (methodcaller("pure_epsilon"), plan_epsilon),
    "zcdp": (mechanism_rho, plan_rho),
    "delta": (methodcaller("delta"), lambda plan, neighbouring: Loss(plan_delta(plan, neighbouring))),
}
for _order in ORDERS:
    NOTIONS[f"rdp at {_order}"] = (
        lambda mechanism, order=_order: mechanism_tau(mechanism, order),  # type: ignore[misc]  # bound as a default
        lambda plan, neighbouring, order=_order: plan_tau(plan, neighbouring, order),  # type: ignore[misc]  # likewise
    )


def subsets(numbers: range, largest: int) -> Iterator[frozenset[int]]:
    """Every set of at most so many of the numbers."""
    sizes = range(min(largest, len(numbers)) + 1)
    return map(frozenset, chain.from_iterable(combinations(numbers, size) for size in sizes))


def widened(plan: Plan, size: int) -> Plan:
    """The plan when so many records change together; what a mechanism then costs is tested on its own."""
    if isinstance(plan, Mechanism):
        mechanism, times = plan.grouped(size)
        return Repeat(part=mechanism, count=times)
    return with_parts(plan, [widened(part, size) for part in parts_of(plan)])


def without_thresholds(plan: Plan) -> Plan:
    """The plan with what each threshold costs as a part beside its noise; the parts have tests of their own."""
    if not isinstance(plan, Mechanism):
        return with_parts(plan, [without_thresholds(part) for part in parts_of(plan)])
    noise, keys = without_threshold(plan, 1)
    return noise if keys is None else Sequence(parts=(noise, keys))


class Enumeration:
    """The worst over every possible place of a record before and after a change.

    A record that is changed lies before in some of a ``parallel``'s subsets and after in some, at most
    ``max_degree`` each time; in a ``choice`` it lies before in one partition and after in the same or
    another, and each partition has taken some branch. What a part then sees is that the record was
    changed, or that it left, or came: the last two cost the same.
    """

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.changed = cache(self._changed)
        self.left = cache(self._left)

    def _per_cell(self, mechanism: Mechanism) -> Fraction:
        found = self.cost(replace(mechanism, name=None, tags=(), cells=None, cells_added=None).simplest())
        return Fraction(10**9) if found.nats is None else found.nats

    def _left(self, plan: Plan) -> Fraction:
        match plan:
            case Sequence(parts=parts):
                return sum(map(self.left, parts), Fraction(0))
            case Repeat(part=part, count=count):
                return self.left(part) * count
            case Parallel(parts=parts, max_degree=degree):
                places = subsets(range(len(parts)), degree)
                return max(sum((self.left(parts[k]) for k in place), Fraction(0)) for place in places)
            case Choice(parts=parts):
                return max(map(self.left, parts))
            case Group(part=part, size=size):
                return self.left(widened(part, size))
            case Declared(add_remove=Declaration() as one_sided):
                return self._per_cell(replace(plan, guarantee=one_sided))
            case Mechanism():
                replaced = plan.cells or (2 if plan.ADDITIVE else 1)
                return self._per_cell(plan) * (plan.cells_added or -(-replaced // 2))
        raise TypeError(plan)

    def _changed(self, plan: Plan) -> Fraction:
        match plan:
            case Sequence(parts=parts):
                return sum(map(self.changed, parts), Fraction(0))
            case Repeat(part=part, count=count):
                return self.changed(part) * count
            case Parallel(parts=parts, max_degree=degree):
                places = list(subsets(range(len(parts)), degree))
                return max(self._moved(parts, before, after) for before in places for after in places)
            case Choice(parts=parts):
                stayed = max(map(self.changed, parts))
                return max(stayed, *(self.left(one) + self.left(other) for one in parts for other in parts))
            case Group(part=part, size=size):
                return self.changed(widened(part, size))
            case Declared():
                return self._per_cell(plan)
            case NewKeys():  # some appear and some vanish, and no outcome shows both
                return self.left(plan)
            case Mechanism():
                return self._per_cell(plan) * (plan.cells or (2 if plan.ADDITIVE else 1))
        raise TypeError(plan)

    def _moved(self, parts: tuple[Plan, ...], before: frozenset[int], after: frozenset[int]) -> Fraction:
        stayed = sum((self.changed(parts[k]) for k in before & after), Fraction(0))
        return stayed + sum((self.left(parts[k]) for k in before ^ after), Fraction(0))


def finite(loss: Loss) -> Fraction:
    """The enumeration's stand-in for an infinite loss is 10^9."""
    return Fraction(10**15) if loss.nats is None else loss.nats


@pytest.mark.parametrize("notion", NOTIONS)
@settings(max_examples=50)
@given(plans(REPLACE))
def test_the_fold_is_never_below_the_enumeration_of_memberships(notion: str, plan: Plan) -> None:
    cost, fold = NOTIONS[notion]
    truth, bound = Enumeration(cost).changed(without_thresholds(plan)), finite(fold(plan, REPLACE))
    assert bound >= truth * (1 - Fraction(1, 10**25))  # a group in a group is rounded up once here, and there twice
    assert bound >= 10**9 or bound <= 2 * truth  # and it is no idle bound


@settings(max_examples=50)
@given(plans(ADD))
def test_under_add_remove_the_fold_is_the_enumeration(plan: Plan) -> None:
    class Added(Enumeration):
        def _left(self, plan: Plan) -> Fraction:
            if isinstance(plan, Declared):
                return self._per_cell(plan)
            return self._per_cell(plan) * (plan.cells or 1) if isinstance(plan, Mechanism) else super()._left(plan)

    for cost, fold in NOTIONS.values():
        bound = fold(plan, ADD)
        assert bound.nats is None or bound.nats == Added(cost).left(without_thresholds(plan))


def test_a_changed_record_can_cost_twice_what_a_removed_one_does() -> None:
    """Without the factor 2 for leaving and entering, the fold would be below the enumeration."""
    noise = Geometric(scale=Fraction(1), cells=1, cells_added=1)
    for node in (Parallel(parts=(noise, replace(noise, scale=Fraction(1))), max_degree=1), Choice(parts=(noise,))):
        assert Enumeration(methodcaller("pure_epsilon")).changed(node) == 2
        assert nats(plan_epsilon(node, REPLACE)) == 2
        assert nats(plan_epsilon(node, ADD)) == 1


def test_seeded_plans_of_many_parts_and_degrees() -> None:
    """Wider than hypothesis draws: seven unequal parts, every degree, under an outer parallel."""
    chance = random.Random(20200401)
    for _ in range(12):
        parts = tuple(
            Geometric(
                scale=Fraction(chance.randint(1, 9), chance.randint(1, 9)),
                cells=chance.randint(1, 3),
                cells_added=chance.randint(1, 3),
            )
            for _ in range(5)
        )
        for degree in range(1, 6):
            inner = Parallel(parts=parts, max_degree=degree)
            plan = Parallel(parts=(inner, Choice(parts=parts[:2]), parts[0]), max_degree=2)
            truth = Enumeration(methodcaller("pure_epsilon")).changed(plan)
            assert truth <= nats(plan_epsilon(plan, REPLACE)) <= 2 * truth


@settings(max_examples=40)
@given(st.lists(plans(REPLACE, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_composition_is_additive_and_does_not_depend_on_the_order(parts: list[Plan], chance: random.Random) -> None:
    shuffled = parts.copy()
    chance.shuffle(shuffled)
    for _, fold in NOTIONS.values():
        one_by_one = [fold(part, REPLACE) for part in parts]
        together = fold(Sequence(parts=tuple(parts)), REPLACE)
        assert together == fold(Sequence(parts=tuple(shuffled)), REPLACE)
        if together.nats is None:
            assert any(loss.nats is None for loss in one_by_one)
        else:
            assert together.nats == sum(map(nats, one_by_one))
        for node in (Parallel(parts=tuple(parts), max_degree=2), Choice(parts=tuple(parts))):
            assert fold(node, REPLACE).nats == fold(replace(node, parts=tuple(shuffled)), REPLACE).nats


@settings(max_examples=40)
@given(plans(ADD, 4), st.integers(1, 6))
def test_repeating_is_composing_with_oneself(plan: Plan, count: int) -> None:
    for _, fold in NOTIONS.values():
        assert fold(Repeat(part=plan, count=count), ADD) == fold(Sequence(parts=(plan,) * count), ADD)


@given(st.lists(mechanisms(ADD), min_size=1, max_size=4), st.integers(1, 5))
def test_parallel_sums_the_largest_and_choice_takes_the_largest(parts: list[Mechanism], degree: int) -> None:
    for _, fold in NOTIONS.values():
        costs = [fold(part, ADD).nats for part in parts]
        known = sorted((cost for cost in costs if cost is not None), reverse=True)
        expected = sum(known[:degree], Fraction(0)) if None not in costs else None
        assert fold(Parallel(parts=tuple(parts), max_degree=degree), ADD).nats == expected
        assert fold(Choice(parts=tuple(parts)), ADD).nats == (known[0] if None not in costs else None)


def test_a_choice_takes_the_worst_branch_at_each_order_by_itself() -> None:
    steep, flat = Gaussian(sigma_squared=Fraction(1)), Geometric(scale=Fraction(1, 2))
    plan = Choice(parts=(steep, flat))
    low, high = Fraction("1.01"), Fraction(100)
    assert nats(mechanism_tau(flat, low)) > nats(mechanism_tau(steep, low))
    assert nats(mechanism_tau(flat, high)) < nats(mechanism_tau(steep, high))
    assert plan_tau(plan, ADD, low) == mechanism_tau(flat, low)
    assert plan_tau(plan, ADD, high) == mechanism_tau(steep, high)


def test_cells_multiply_and_have_defaults_by_relation() -> None:
    one = Geometric(scale=Fraction(4))
    cases: list[tuple[Plan, int, int]] = [
        (one, 1, 2),
        (replace(one, cells=3), 3, 3),
        (Choice(parts=(one,)), 1, 2),
        (Choice(parts=(replace(one, cells=3),)), 3, 4),  # cells_added defaults to 2
        (Choice(parts=(replace(one, cells=3, cells_added=1),)), 3, 3),
    ]
    for plan, added, replaced in cases:
        assert nats(plan_epsilon(plan, ADD)) == Fraction(added, 4)
        assert nats(plan_epsilon(plan, REPLACE)) == Fraction(replaced, 4)


def test_declared_figures_are_taken_as_they_are_and_twice_one_sided_below_parallel() -> None:
    whole, one_sided = (
        Declaration(rho=Fraction(3), delta=Fraction(1, 10)),
        Declaration(rho=Fraction(2), delta=Fraction(1, 5)),
    )
    plan = Declared(guarantee=whole, reference="a proof", add_remove=one_sided)
    assert (nats(plan_rho(plan, REPLACE)), plan_delta(plan, REPLACE)) == (Fraction(3), Fraction(1, 10))
    below = Parallel(parts=(plan,), max_degree=1)
    assert (nats(plan_rho(below, REPLACE)), plan_delta(below, REPLACE)) == (Fraction(4), Fraction(2, 5))


def test_a_plan_that_is_invalid_under_a_relation_is_not_priced() -> None:
    response = RandomizedResponse(epsilon=Fraction(1))
    declared = Declared(guarantee=Declaration(epsilon=Fraction(1)), reference="a proof")
    cases: list[tuple[Plan, Neighbouring]] = [
        (response, ADD),
        (Choice(parts=(response,)), REPLACE),
        (Parallel(parts=(Sequence(parts=(declared,)),), max_degree=1), REPLACE),
    ]
    for plan, relation in cases:
        with pytest.raises(ValueError, match="expected"):
            plan_epsilon(plan, relation)
    assert nats(plan_epsilon(response, REPLACE)) == 1
    assert nats(plan_epsilon(Choice(parts=(declared,)), ADD)) == 1


@settings(max_examples=40)
@given(plans(REPLACE))
def test_the_search_curve_in_doubles_is_the_certified_one(plan: Plan) -> None:
    rough = np.broadcast_to(
        RenyiCurve(build_program(plan, REPLACE)).rough(np.array([float(order) for order in ORDERS])), (3,)
    )
    for order, value in zip(ORDERS, rough, strict=True):
        exact = plan_tau(plan, REPLACE, Fraction(float(order))).nats
        assert float(value) == (pytest.approx(float(exact), rel=1e-9) if exact is not None else float("inf"))


@pytest.mark.parametrize(("cells", "cells_added", "worst"), [(2, 1, 2), (3, 1, 3), (2, 2, 4), (4, 3, 6)])
def test_a_part_is_compared_with_twice_its_one_sided_change_only_where_neither_is_all_of_the_other(
    cells: int, cells_added: int, worst: int
) -> None:
    parts = [Geometric(scale=Fraction(k), cells=cells, cells_added=cells_added) for k in (1, 2, 3)]
    outlined = build_program(Parallel(parts=tuple(parts), max_degree=2), Neighbouring.REPLACE_ONE)
    assert [step.how_many for step in outlined.steps if step.how_many is not None] == [2]
    assert nats(plan_epsilon(outlined, Neighbouring.REPLACE_ONE)) == worst * (1 + Fraction(1, 2))


def test_unlike_changes_of_a_part_are_compared() -> None:
    first, second = (Geometric(scale=Fraction(1), sensitivity=s, cells=c, cells_added=1) for s, c in ((1, 1), (5, 9)))
    outlined = build_program(Choice(parts=(Sequence(parts=(first, second)),)), Neighbouring.REPLACE_ONE)
    assert [step.how_many for step in outlined.steps].count(1) == 2
    assert nats(plan_epsilon(outlined, Neighbouring.REPLACE_ONE)) == 1 + 9 * 5  # once; twice one-sided is 2 + 2 * 5


def test_names_and_tags_cost_nothing_and_equal_parts_are_priced_once() -> None:
    parts = tuple(Geometric(name=f"query {k}", tags=(str(k),), scale=Fraction(k % 3 + 1)) for k in range(3000))
    plan = Sequence(parts=(Parallel(parts=parts, max_degree=1000), Repeat(part=Sequence(parts=parts), count=2), *parts))
    condensed = condense(plan)
    assert len(list(leaves(condensed))) == 6
    assert condensed == condense(Sequence(parts=(plan,)))
    assert hash(condensed) == hash(condense(Sequence(parts=(plan,))))
    assert condensed != condense(Sequence(parts=(plan, parts[0])))
    assert condense(condensed) is condensed
    # 1000 parts at scale 1 are the dearest, then each thousand three times more
    assert nats(plan_epsilon(plan, ADD)) == 1000 + 3 * 1000 * (1 + Fraction(1, 2) + Fraction(1, 3))


@settings(max_examples=40)
@given(plans(REPLACE))
def test_condensing_first_changes_no_figure(plan: Plan) -> None:
    for _, fold in NOTIONS.values():
        assert fold(condense(plan), REPLACE) == fold(plan, REPLACE)


def test_the_sum_of_thousands_of_unlike_fractions_is_rounded_up_and_stays_short() -> None:
    """Exact, its denominator would have the digits of all of them."""
    costs = [Fraction(k, 10**12 + k * k + 1) for k in range(1, 1500)]
    plan = Sequence(parts=tuple(Geometric(scale=1 / cost) for cost in costs))
    found, truth = plan_epsilon(plan, ADD), sum(costs, Fraction(0))
    assert truth.denominator.bit_length() > 30_000
    assert not found.rational
    assert truth < nats(found) < truth * (1 + Fraction(1, 2**80))
    assert nats(found).denominator.bit_length() < 5000
    assert parse_exact(exact_text(Fraction(double_up(nats(found))))) >= truth
    few = plan_epsilon(Sequence(parts=plan.parts[:80]), ADD)
    assert few.rational
    assert nats(few) == sum(costs[:80], Fraction(0))


def test_no_repetition_is_too_many() -> None:
    plan = Repeat(part=Repeat(part=DiscreteGaussian(sigma_squared=Fraction(10**30)), count=10**6), count=10**6)
    assert nats(plan_rho(plan, ADD)) == Fraction(10**12, 2 * 10**30)
    assert plan_epsilon(plan, ADD).nats is None


def test_a_restriction_keeps_what_carries_the_tag_and_its_surroundings() -> None:
    a, b = (Geometric(scale=Fraction(1), tags=(tag,)) for tag in ("a", "b"))
    plan = Parallel(
        parts=(Sequence(parts=(a, b)), Repeat(part=b, count=3), Choice(parts=(a,), tags=("b",))), max_degree=2
    )
    assert restrict(plan, "a") == Parallel(parts=(Sequence(parts=(a,)), Choice(parts=(a,), tags=("b",))), max_degree=2)
    kept = restrict(plan, "b")
    assert kept is not None
    assert list(mechanisms_of(kept)) == [b, b, a]
    assert restrict(plan, "c") is None
    assert restrict(replace(plan, tags=("c",)), "c") == replace(plan, tags=("c",))
    assert parts_of(a) == ()
