"""Groups of records: against every way in which they can lie in the cells and the subsets of a plan."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.zcdp import mechanism_rho, plan_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.numerics.loss import Loss
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring, condense
from tests.privacy.reference import mp, nats, oracle, plan_tau
from tests.privacy.strategies import plans, responses

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
NOISES: list[Mechanism] = [
    Geometric(scale=Fraction("2.5")),
    DiscreteGaussian(sigma_squared=Fraction("0.7")),
    DiscreteOsgt(sigma_squared=Fraction(6), m=Fraction(1)),
    Laplace(scale=Fraction(3), sensitivity=Fraction("1.5")),
    Gaussian(sigma_squared=Fraction(5), sensitivity=Fraction("0.3")),
    Osgt(sigma_squared=Fraction(6), m=Fraction(1)),
]
NOTIONS: list[tuple[Callable[[Mechanism], Loss], Callable[[Plan, Neighbouring], Loss]]] = [
    (methodcaller("pure_epsilon"), plan_epsilon),
    (mechanism_rho, plan_rho),
    (lambda m: mechanism_tau(m, Fraction("1.3")), lambda plan, relation: plan_tau(plan, relation, Fraction("1.3"))),
    (lambda m: mechanism_tau(m, Fraction(9)), lambda plan, relation: plan_tau(plan, relation, Fraction(9))),
]
SLACK = 1 + Fraction(1, 2**80)


@settings(max_examples=60)
@given(st.one_of(plans(REPLACE), responses()))
def test_a_group_of_one_is_the_identity(plan: Plan) -> None:
    assert condense(Group(part=plan, size=1)) == condense(plan)


@settings(max_examples=60)
@given(st.one_of(plans(REPLACE), responses()), st.integers(1, 4), st.integers(1, 4))
def test_nested_groups_multiply_and_groups_distribute_over_nodes(plan: Plan, one: int, other: int) -> None:
    whole = condense(Group(part=plan, size=one * other))
    assert condense(Group(part=Group(part=plan, size=one), size=other)) == whole
    again = Group(part=Sequence(parts=(plan, plan)), size=one * other)
    assert condense(again) == condense(Sequence(parts=(Group(part=plan, size=one * other),) * 2))


@pytest.mark.parametrize("mechanism", NOISES, ids=lambda m: type(m).__name__)
def test_the_cost_is_convex_in_how_far_a_cell_moves(mechanism: Any) -> None:
    """Pushing groups down rests on this: neither C(n s)/n nor C((n+1) s) - C(n s) falls with n."""
    for cost, _ in NOTIONS:
        moved = [replace(mechanism, sensitivity=mechanism.sensitivity * n) for n in range(1, 8)]
        costs = [Fraction(0)] + [cost(one).nats or Fraction(0) for one in moved]
        steps = [after - before for before, after in itertools.pairwise(costs)]
        # A discrete Gaussian is bounded by its slope, from variance 2 on: exact up to 2e-15 below.
        assert all(after * SLACK >= before for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize("mechanism", NOISES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_records_on_the_same_and_on_other_cells_cost_at_most_the_group(mechanism: Any, cells: int) -> None:
    """Every way in which 3 records, each moving ``cells`` of 5 cells by s, add up; signs only make less of it."""
    size = 3
    for cost, fold in NOTIONS:
        bound = fold(Group(part=replace(mechanism, cells=cells), size=size), ADD).nats
        known = [cost(replace(mechanism, sensitivity=mechanism.sensitivity * n)).nats for n in range(1, size + 1)]
        places = itertools.combinations(range(5), cells)
        moved = {
            tuple(sum(cell in record for record in records) for cell in range(5))
            for records in itertools.combinations_with_replacement(list(places), size)
        }
        if bound is None:
            assert known[0] is None
            continue
        per_cell = [Fraction(0), *(c for c in known if c is not None)]
        worst = max(sum((per_cell[n] for n in counts), Fraction(0)) for counts in moved)
        assert worst <= bound * SLACK
        assert bound <= worst * SLACK  # all on the same cells


def memberships(parts: int, degree: int, relation: Neighbouring) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For one record: in which parts it is changed, and in which it comes or goes."""
    places = [frozenset(chosen) for size in range(degree + 1) for chosen in itertools.combinations(range(parts), size)]
    for before in places:
        for after in places if relation is REPLACE else [frozenset()]:
            yield tuple(sorted(before & after)), tuple(sorted(before ^ after))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("choice", [False, True])
def test_the_fold_covers_every_place_of_two_records(relation: Neighbouring, degree: int, choice: bool) -> None:
    """Two records in up to 2z parts: in each they change, come or go, on the same cells or on others."""
    size = 2
    noises: list[Any] = [
        Gaussian(sigma_squared=Fraction(3), cells=3, cells_added=2),
        Laplace(scale=Fraction(2), cells=2, cells_added=2),
        DiscreteOsgt(sigma_squared=Fraction(6), m=Fraction(1), cells=4, cells_added=1),
    ]
    inner = (*noises[:2], Choice(parts=(noises[2],))) if choice else tuple(noises)
    plan = Group(part=Parallel(parts=inner, max_degree=degree), size=size)
    if relation is ADD:
        noises = [replace(noise, cells=noise.cells_added, cells_added=None) for noise in noises]
        plan = Group(part=Parallel(parts=tuple(noises), max_degree=degree), size=size)
    for cost, fold in NOTIONS[1:]:
        bound = nats(fold(plan, relation))

        def worst_of(noise: Any, changed: int, one_sided: int, cost: Callable[[Mechanism], Loss] = cost) -> Fraction:
            """Both records on the same cells as far as the one that moves fewer reaches, the rest each on its own."""
            cells = [noise.cells] * changed + [noise.cells_added or noise.cells] * one_sided
            shared: int = min(cells) if len(cells) == size else 0
            single, double = nats(cost(noise)), nats(cost(replace(noise, sensitivity=2 * noise.sensitivity)))
            alone: int = sum(cells) - 2 * shared
            return shared * double + alone * single

        kinds = list(memberships(len(noises), degree, relation))
        worst = Fraction(0)
        for pair in itertools.combinations_with_replacement(kinds, size):
            total = Fraction(0)
            for k, noise in enumerate(noises):
                changed = sum(k in stayed for stayed, _ in pair)
                one_sided = sum(k in moved for _, moved in pair)
                total += worst_of(noise, changed, one_sided)
            worst = max(worst, total)
        assert worst <= bound * SLACK
        assert bound <= 2 * worst


def test_twice_the_parts_do_not_cost_more_than_twice_the_shift() -> None:
    """Two records in 2z parts, moved by s each, against z parts moved by 2s: why the degree stays as it is."""
    noise = Gaussian(sigma_squared=Fraction(1))
    plan = Parallel(parts=(noise,) * 1 + (replace(noise, cells=1),), max_degree=1)
    apart = 2 * nats(plan_rho(plan, ADD))
    assert apart < nats(plan_rho(Group(part=plan, size=2), ADD)) == 4 * nats(plan_rho(plan, ADD))


def test_a_group_changes_as_many_randomised_answers() -> None:
    """Against the product of the distributions of the answers, enumerated."""
    response = RandomizedResponse(epsilon=Fraction("0.7"), values=3)
    plan = Group(part=response, size=3)
    assert condense(plan) == condense(Repeat(part=response, count=3))
    odds = [[mp.exp(oracle.number("0.7")) if value == truth else mp.mpf(1) for value in range(3)] for truth in (0, 1)]
    p, q = ([one / mp.fsum(row) for one in row] for row in odds)
    alpha = mp.mpf(5) / 2
    moment = mp.fsum(
        mp.fprod(p[v] ** alpha * q[v] ** (1 - alpha) for v in answers)
        for answers in itertools.product(range(3), repeat=3)
    )
    assert float(nats(plan_tau(plan, REPLACE, Fraction(5, 2)))) == pytest.approx(
        float(mp.log(moment) / (alpha - 1)), rel=1e-12
    )
    assert nats(plan_epsilon(plan, REPLACE)) == Fraction("2.1")


def of(plan: Declared, size: int) -> Declaration:
    mechanism, times = plan.grouped(size)
    assert times == 1
    assert isinstance(mechanism, Declared)
    return mechanism.guarantee


def declared(**figures: Any) -> Declared:
    return Declared(guarantee=Declaration(**figures), reference="a proof")


@pytest.mark.parametrize(("epsilon", "delta"), [("0.3", "1e-9"), ("2", "1e-30"), ("0", "1e-3"), ("1e-300", "1e-3")])
def test_a_declared_delta_grows_along_a_chain_of_neighbours(epsilon: str, delta: str) -> None:
    """P_0(S) <= e^eps P_1(S) + delta <= ... : the sum of e^(i eps) delta, here term by term."""
    for size in (2, 3, 7):
        found = of(declared(epsilon=Fraction(epsilon), delta=Fraction(delta)), size)
        assert found.epsilon == size * Fraction(epsilon)
        with mp.workdps(60):
            truth = oracle.number(delta) * mp.fsum(mp.exp(i * oracle.number(epsilon)) for i in range(size))
            chained = oracle.number(found.delta)
            assert truth * (1 - mp.mpf(10) ** -55) <= chained <= truth * (1 + mp.mpf(10) ** -25)


def test_a_delta_never_passes_1_whatever_the_loss() -> None:
    huge = declared(epsilon=Fraction(10**6), delta=Fraction(1, 10**300))
    assert of(huge, 10**9) == Declaration(epsilon=Fraction(10**15), delta=Fraction(1))
    assert of(declared(epsilon=Fraction(0), delta=Fraction(1, 3)), 10).delta == 1


def test_an_unknown_loss_of_a_group_is_infinite() -> None:
    order = ((Fraction(2), Fraction(1)),)
    assert of(declared(rho=Fraction(1, 3)), 3) == Declaration(rho=Fraction(3))
    assert of(declared(epsilon=Fraction(1), rho=Fraction(1), rdp=order), 2) == Declaration(
        epsilon=Fraction(2), rho=Fraction(4)
    )
    assert of(declared(rdp=order), 2) == Declaration()
    assert of(declared(rho=Fraction(1), delta=Fraction(1, 10**9)), 2) == Declaration(delta=Fraction(1))
    plan = Group(part=declared(rdp=order), size=2)
    assert plan_rho(plan, ADD).nats is None
    assert plan_tau(plan, ADD, Fraction(2)).nats is None
    assert plan_delta(Group(part=declared(rho=Fraction(1), delta=Fraction(1, 9)), size=2), ADD) == 1


def test_both_sides_of_a_declared_mechanism_are_grouped() -> None:
    one = Declared(
        guarantee=Declaration(rho=Fraction(3)), reference="a proof", add_remove=Declaration(epsilon=Fraction(1))
    )
    mechanism, _ = one.grouped(2)
    assert mechanism == replace(
        one, guarantee=Declaration(rho=Fraction(12)), add_remove=Declaration(epsilon=Fraction(2))
    )


@settings(max_examples=40)
@given(plans(REPLACE, 4), st.integers(1, 4))
def test_more_records_never_cost_less(plan: Plan, size: int) -> None:
    for _, fold in NOTIONS:
        fewer, more = (fold(Group(part=plan, size=k), REPLACE).nats for k in (size, size + 1))
        assert more is None or (fewer is not None and fewer <= more * SLACK)
