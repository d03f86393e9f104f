"""Whole plans in intervals: never below the same in balls, within 1e-11 of it, over the whole range."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from service.privacy.accounting import batch_costs
from service.privacy.accounting.batch_costs import LinearCosts
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.renyi import RenyiCurve
from service.privacy.accounting.zcdp import certified_rho, mechanism_rho, plan_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    RandomizedResponse,
)
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.composition_program import build_program
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import exactly, mp, nats, oracle, plan_tau
from tests.privacy.strategies import plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
CLOSE = 1 + Fraction(1, 10**11)


@pytest.fixture(autouse=True)
def in_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few mechanisms there are."""
    monkeypatch.setattr(batch_costs, "_FEW_COSTS", 0)


def spread(draw: random.Random, low: float, high: float) -> Fraction:
    return Fraction(f"{10 ** draw.uniform(low, high):.6g}")


def some(draw: random.Random) -> Mechanism:
    """Any mechanism with a formula; epsilon from 1e-12 to 1e4, sigma from 1e-3 on."""
    s = draw.choice([1, 1, 2, 3, 7, 1000, 2**40])
    match draw.randrange(4):
        case 0:
            return Geometric(scale=spread(draw, -4, 12), sensitivity=s)
        case 1:
            return Laplace(scale=spread(draw, -4, 12), sensitivity=spread(draw, -1, 1))
        case 2:
            return DiscreteGaussian(sigma_squared=spread(draw, -6, 0.3), sensitivity=s)
        case _:
            return RandomizedResponse(epsilon=spread(draw, -12, 4), values=draw.choice([2, 3, 60, 10**9]))


ORDERS = [Fraction(order) for order in ("1.001", "1.0371", "1.5", "2", "7", "33.3", "1024", "98765.4", "1e6")]


def test_every_mechanism_is_bounded_from_above_within_1e_11() -> None:
    draw = random.Random(3)
    for _ in range(400):
        mechanism = some(draw)
        plan = build_program(mechanism, REPLACE)
        (cells,) = plan.steps[0].counts
        for order, tau in zip(ORDERS, RenyiCurve(plan).taus(ORDERS), strict=True):
            truth = cells * nats(mechanism_tau(plan.mechanisms[0], order))
            assert truth * (1 - Fraction(1, 2**90)) <= nats(tau) <= truth * CLOSE
        truth = cells * nats(mechanism_rho(plan.mechanisms[0]))
        rho = nats(certified_rho(RenyiCurve(plan).linear_at_integers))
        assert truth * (1 - Fraction(1, 2**90)) <= rho <= truth * CLOSE


def test_hardly_any_mechanism_of_usual_size_needs_a_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mechanism] = []
    monkeypatch.setattr("service.privacy.accounting.renyi.mechanism_tau", lambda one, order: asked.append(one))
    draw = random.Random(5)
    noise = [spread(draw, -1, 5) for _ in range(300)]
    kinds: list[Any] = [
        lambda one: Geometric(scale=one, sensitivity=draw.choice([1, 2, 10])),
        lambda one: Laplace(scale=one),
        lambda one: DiscreteGaussian(sigma_squared=min(one, Fraction(3, 2))),
        lambda one: RandomizedResponse(epsilon=1 / one, values=5),
    ]
    plan = build_program(Sequence(parts=tuple(kinds[k % 4](one) for k, one in enumerate(noise))), REPLACE)
    RenyiCurve(plan).taus([order for order in ORDERS if Fraction("1.01") < order <= 1024])
    assert asked == []


LEAST = Fraction(1, 2**1000)
"""What rounding up makes of 0."""


@settings(max_examples=60)
@given(plans(REPLACE, 6))
def test_every_node_is_bounded_as_its_exact_fold(plan: Plan) -> None:
    line = build_program(plan, REPLACE)
    curve = RenyiCurve(line)
    orders = [Fraction(order) for order in ("1.1", "2", "2.5", "40")]
    rough = curve.rough(np.array([float(order) for order in orders]))
    for order, tau, near in zip(orders, curve.taus(orders), rough.tolist(), strict=True):
        truth = nats(plan_tau(plan, REPLACE, order))
        assert truth * (1 - Fraction(1, 2**90)) <= nats(tau) <= truth * CLOSE + LEAST
        assert near == pytest.approx(float(truth), rel=1e-9)
    truth = nats(plan_rho(plan, REPLACE))
    assert truth * (1 - Fraction(1, 2**90)) <= nats(certified_rho(curve.linear_at_integers)) <= truth * CLOSE + LEAST


@pytest.mark.parametrize("count", [1, 3, 10**9, 2**53 + 1, 10**40])
def test_certified_curves_hold_for_counts_of_any_size(count: int) -> None:
    parts = (Geometric(scale=Fraction(3)), Laplace(scale=Fraction(2)), Gaussian(sigma_squared=Fraction(5)))
    noisy = tuple(Repeat(part=part, count=count) for part in parts)
    for plan in (Sequence(parts=noisy), Parallel(parts=parts * 3, max_degree=count), Choice(parts=noisy)):
        (tau,) = RenyiCurve(build_program(plan, ADD)).taus([Fraction(5, 2)])
        truth = nats(plan_tau(plan, ADD, Fraction(5, 2)))
        assert truth * (1 - Fraction(1, 2**90)) <= nats(tau) <= truth * CLOSE


@pytest.mark.parametrize("noise", ["1e-400", "1e-320", "1e-300", "1e300", "1e400"])
def test_costs_beyond_doubles_are_added_up_in_rationals(noise: str) -> None:
    scale = Fraction(noise)
    plan = Sequence(
        parts=(Geometric(scale=scale), Laplace(scale=2 * scale), RandomizedResponse(epsilon=1 / scale, values=7))
    )
    (tau,) = RenyiCurve(build_program(plan, REPLACE)).taus([Fraction(3)])
    assert tau == plan_tau(plan, REPLACE, Fraction(3))
    rho = nats(certified_rho(LinearCosts(build_program(plan, REPLACE), [None] * 3)))
    assert nats(plan_rho(plan, REPLACE)) * (1 - Fraction(1, 2**90)) <= rho <= nats(plan_rho(plan, REPLACE)) * CLOSE


def test_an_infinite_cost_is_infinite_only_at_its_orders() -> None:
    points = ((Fraction(2), Fraction(1, 10)),)
    other = Declared(guarantee=Declaration(rdp=points), reference="a proof")
    plan = Sequence(parts=(Geometric(scale=Fraction(1)), other))
    below, above = RenyiCurve(build_program(plan, ADD)).taus([Fraction(2), Fraction(5, 2)])
    assert nats(below) <= (nats(mechanism_tau(Geometric(scale=Fraction(1)), Fraction(2))) + Fraction(1, 10)) * CLOSE
    assert above.nats is None


def test_rational_figures_stay_exact() -> None:
    parts = tuple(Gaussian(sigma_squared=Fraction(k)) for k in range(1, 200))
    small = tuple(DiscreteGaussian(sigma_squared=Fraction(k, 200)) for k in range(1, 200))
    truth = sum(Fraction(1, 2 * k) for k in range(1, 200)) + sum(Fraction(100, k) for k in range(1, 200))
    curve = RenyiCurve(build_program(Sequence(parts=parts + small), ADD))
    whole, between = curve.taus([Fraction(3), Fraction(7, 2)])
    assert whole.rational
    assert whole.nats == 3 * truth
    assert not between.rational
    assert nats(between) < Fraction(7, 2) * truth
    assert nats(certified_rho(curve.linear_at_integers)) == truth


@pytest.mark.parametrize("delta", ["1e-300", "1e-10", "0.5"])
@pytest.mark.parametrize(
    ("epsilon", "count"), [("1e-12", 10**9), ("1e-6", 10**9), ("0.01", 10**5), ("3", 40), ("1e4", 1)]
)
def test_an_epsilon_of_many_geometrics_is_the_least_over_all_orders(epsilon: str, count: int, delta: str) -> None:
    """At 60 digits, minimised by the oracle."""
    plan = Repeat(part=Geometric(scale=1 / Fraction(epsilon)), count=count)
    with mp.workdps(60):
        e = oracle.number(epsilon)

        def tau(a: Any) -> Any:
            z = a - 1
            moment = mp.log1p(mp.expm1(z * e) * -mp.expm1(-a * e) / (1 + mp.exp(-e)))
            return count * moment / z

        truth = exactly(min(oracle.epsilon_from_curve(tau, Fraction(delta)), count * e))
    (found,) = (s for s in guarantee(plan, ADD, deltas=(Fraction(delta),)).approximate if s.via == "rdp")
    assert truth * (1 - Fraction(1, 10**15)) <= nats(found.epsilon) <= truth * (1 + Fraction(1, 10**9))
