"""An (epsilon, delta) account against an adversary that picks each mechanism after the last output.

Trees of two stages are enumerated outcome by outcome. The first stage is binary randomised response,
several times; after each outcome of it the adversary looks for the second mechanism that the admission
rule under test lets through and that adds most to the true delta: k-ary response, whose loss is
epsilon with a small probability and nearly always 0, or a declared delta. The search is in doubles;
what it finds is then admitted, or not, by the ledger's own functions, and its true delta summed in mpmath.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.privacy.accounting.conversion import conversion
from service.privacy.accounting.guarantee import guarantee
from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import ORDERS, Budget, Definition, Weights, open_weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, price_as_charged
from service.privacy.mechanisms import Declaration, Declared, Mechanism, RandomizedResponse
from service.privacy.plans import Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import exactly, mp, nats, oracle, plan_tau

REPLACE = Neighbouring.REPLACE_ONE
Doubles = NDArray[np.float64]
ALPHA = np.array([float(order) for order in ORDERS])
Z = np.array([float(order - 1) for order in ORDERS])
Rule = Callable[[Doubles], NDArray[np.bool_]]
"""Whether a total tau at the orders (last axis) is admitted."""


@dataclass(frozen=True)
class Stage:
    """The first stage: so many binary responses."""

    epsilon: Fraction
    count: int

    @property
    def plan(self) -> Plan:
        return Repeat(part=RandomizedResponse(epsilon=self.epsilon), count=self.count)

    @property
    def outcomes(self) -> list[tuple[Any, Any]]:
        """Probability and loss of each number of truthful answers."""
        e, n = oracle.number(self.epsilon), self.count
        p = 1 / (1 + mp.exp(-e))
        return [(mp.binomial(n, k) * p**k * (1 - p) ** (n - k), (2 * k - n) * e) for k in range(n + 1)]


def response_curve(epsilon: Doubles, log_values: Doubles) -> Doubles:
    """tau of k-ary response at the orders, k real: the search's own, from its definition."""
    e, k = epsilon[..., None], np.exp(log_values)[..., None]
    moment = np.log(np.exp(-(2 * ALPHA - 1) * e) + (k - 2) * np.exp(-ALPHA * e) + 1)
    return np.asarray(e + (moment - np.log1p((k - 1) * np.exp(-e))) / Z)


def needed(delta: Doubles) -> Doubles:
    """Return what the conversion adds at each order, at its delta."""
    return np.asarray((-np.log(delta) + Z * np.log1p(-1 / ALPHA) - np.log(ALPHA)) / Z)


def best_response(rule: Rule, spent: Doubles, cap: float, loss: float) -> tuple[float, RandomizedResponse | None]:
    """The admitted response that adds most to delta after an outcome with this loss, and how much it adds."""
    epsilon = np.linspace(max(0.02, cap - loss + 0.001), cap - loss + 1.5, 60)
    low, high = np.full_like(epsilon, np.log(2)), np.full_like(epsilon, 60.0)
    for _ in range(40):
        middle = (low + high) / 2
        fits = rule(spent + response_curve(epsilon, middle))
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    values = np.ceil(np.exp(high) * (1 + 1e-9))
    fits = rule(spent + response_curve(epsilon, np.log(values)))
    hit = np.exp(epsilon) / (np.exp(epsilon) + values - 1)
    gain = np.where(fits, hit * -np.expm1(cap - loss - epsilon), 0.0)
    best = int(gain.argmax())
    if gain[best] <= 0:
        return 0.0, None
    return float(gain[best]), RandomizedResponse(
        epsilon=Fraction(float(epsilon[best])), values=int(values[best]), name="second"
    )


Tree = list[Mechanism | None]


def search(rule: Rule, first: Stage, cap: Fraction) -> Tree:
    """The worst second mechanism after each outcome of the first stage."""
    spent = first.count * response_curve(np.array(float(first.epsilon)), np.log(np.array(2.0)))
    assert rule(spent)
    return [best_response(rule, spent, float(cap), float(loss))[1] for _, loss in first.outcomes]


def true_delta(first: Stage, tree: Tree, cap: Fraction) -> Fraction:
    """The divergence of the whole tree at the cap, in the worse direction, summed over all outcomes."""
    forth, back = mp.mpf(0), mp.mpf(0)
    limit = mp.exp(oracle.number(cap))
    for (p, loss), second in zip(first.outcomes, tree, strict=True):
        for a, b in second_outcomes(second):
            one, other = p * a, p * mp.exp(-loss) * b
            forth += max(one - limit * other, 0)
            back += max(other - limit * one, 0)
    return exactly(max(forth, back))


def second_outcomes(second: Mechanism | None) -> list[tuple[Any, Any]]:
    """Probabilities under the two neighbours of everything that the second mechanism can say."""
    match second:
        case RandomizedResponse(epsilon=epsilon, values=values):
            e = mp.exp(oracle.number(epsilon))
            rest = e + values - 1
            return [(e / rest, 1 / rest), (1 / rest, e / rest), ((values - 2) / rest, (values - 2) / rest)]
        case Declared(guarantee=promise):
            told = oracle.number(promise.delta)  # the record is published, else nothing is
            return [(told, mp.mpf(0)), (mp.mpf(0), told), (1 - told, 1 - told)]
        case _:
            return [(mp.mpf(1), mp.mpf(1))]


def approximate(epsilon: str, delta: str, declared_delta: str = "0") -> Budget:
    return Budget(
        definition=Definition.APPROXIMATE,
        cap=Fraction(epsilon),
        delta=Fraction(delta),
        declared_delta=Fraction(declared_delta),
    )


def admitted(budget: Budget, weights: Weights, plans: list[Plan]) -> bool:
    """Tell whether the ledger's filter lets these releases through, one after the other."""
    totals = Totals()
    for plan in plans:
        after = add_price(totals, price_as_charged(totals, price(plan, REPLACE, weights.orders)))
        if shortfalls(budget, weights, totals, after):
            return False
        totals = after
    return True


def paths(first: Stage, tree: Tree) -> list[list[Plan]]:
    return [[first.plan] if second is None else [first.plan, second] for second in tree]


def test_some_order_that_fits_on_each_path_is_no_filter() -> None:
    """At (2, 1e-6) every path of this tree converts to at most epsilon 2, and the true delta is above 2.1e-6."""
    cap, delta, first = Fraction(2), Fraction(1, 10**6), Stage(Fraction(1, 20), 8)
    tree = search(lambda tau: (tau + needed(np.full(250, 1e-6))).min(axis=-1) <= 2, first, cap)
    for path in paths(first, tree):
        found = guarantee(Sequence(parts=tuple(path)), REPLACE, deltas=(delta,), orders=())
        (by_rdp,) = (statement for statement in found.approximate if statement.via == "rdp")
        assert nats(by_rdp.epsilon) <= cap
    assert true_delta(first, tree, cap) > Fraction("2.1e-6")
    budget = approximate("2", "1e-6")
    weights = open_weights(budget)
    assert not all(admitted(budget, weights, path) for path in paths(first, tree))


BUDGETS = [("2", "1e-6"), ("0.5", "1e-3"), ("1", "0.05"), ("6", "1e-12")]
STAGES = [Stage(Fraction(1, 20), 8), Stage(Fraction(1, 10), 2), Stage(Fraction(1, 40), 16)]


@pytest.mark.parametrize("stage", range(len(STAGES)))
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_no_tree_that_the_filter_admits_exceeds_its_delta(epsilon: str, delta: str, stage: int) -> None:
    budget, first = approximate(epsilon, delta), STAGES[stage]
    weights = open_weights(budget)
    at_orders = needed(np.array([float(share * budget.delta) for share in weights.shares]))
    tree = search(lambda tau: (tau + at_orders).min(axis=-1) <= float(budget.cap) * (1 - 1e-9), first, budget.cap)
    assert all(admitted(budget, weights, path) for path in paths(first, tree))
    reached = true_delta(first, tree, budget.cap)
    assert reached <= budget.delta
    assert reached >= budget.delta * Fraction("0.6")  # the adversary is not a weak one


@pytest.mark.parametrize("seed", range(6))
def test_nor_does_a_random_tree(seed: int) -> None:
    """Second mechanisms not sought but drawn, most of them at the edge of what is admitted."""
    chance = np.random.default_rng(seed)
    budget = approximate("1", "1e-4")
    weights = open_weights(budget)
    first = Stage(Fraction(int(chance.integers(1, 12)), 100), int(chance.integers(1, 9)))
    tree: Tree = []
    for _ in first.outcomes:
        options = [
            RandomizedResponse(epsilon=Fraction(int(e), 100), values=int(k))
            for e, k in zip(chance.integers(1, 300, 12), np.exp(chance.uniform(1, 16, 12)), strict=True)
        ]
        fitting = [option for option in options if admitted(budget, weights, [first.plan, option])]
        tree.append(max(fitting, key=lambda option: option.epsilon - Fraction(np.log(option.values)) / 3, default=None))
    assert any(second is not None for second in tree)
    assert true_delta(first, tree, budget.cap) <= budget.delta


def with_declared(first: Stage, tree: Tree, cap: Fraction, delta: Fraction) -> Tree:
    """After each outcome the response, or a declared delta where that adds more."""
    declared = Declared(guarantee=Declaration(epsilon=Fraction(0), delta=delta), reference="all is told, or nothing")
    chosen: Tree = []
    for (_, loss), second in zip(first.outcomes, tree, strict=True):
        limit = mp.exp(oracle.number(cap) - loss)
        gains = [sum(max(a - limit * b, 0) for a, b in second_outcomes(option)) for option in (second, declared)]
        chosen.append(second if gains[0] > gains[1] else declared)
    return chosen


def test_taking_off_the_deltas_that_were_declared_so_far_is_no_filter() -> None:
    """The rule with fixed weights, but at delta less the *realised* declared deltas, lets 1.7e-6 through at 1e-6."""
    budget, first = approximate("2", "1e-6"), Stage(Fraction(7, 50), 8)
    weights = open_weights(budget)
    at_orders = needed(np.array([float(share * budget.delta) for share in weights.shares]))
    sought = search(lambda tau: (tau + at_orders).min(axis=-1) <= 2 - 1e-9, first, budget.cap)
    declared = budget.delta * (1 - Fraction(1, 10**6))
    tree = with_declared(first, sought, budget.cap, declared)
    for second in tree:
        path: Plan = Sequence(parts=(first.plan,) if second is None else (first.plan, second))
        left = budget.delta - (declared if isinstance(second, Declared) else 0)
        assert any(
            nats(plan_tau(path, REPLACE, order)) + conversion(order, share * left) <= budget.cap
            for order, share in zip(weights.orders, weights.shares, strict=True)
        )
    assert true_delta(first, tree, budget.cap) > Fraction("1.7e-6")


@pytest.mark.parametrize("reserve", ["1e-7", "5e-7", "9e-7"])
def test_a_part_of_delta_set_aside_at_opening_is(reserve: str) -> None:
    budget, first = approximate("2", "1e-6", reserve), Stage(Fraction(1, 10), 8)
    weights = open_weights(budget)
    left = budget.delta - budget.declared_delta
    at_orders = needed(np.array([float(share * left) for share in weights.shares]))
    sought = search(lambda tau: (tau + at_orders).min(axis=-1) <= 2 - 1e-9, first, budget.cap)
    tree = with_declared(first, sought, budget.cap, budget.declared_delta)
    assert all(admitted(budget, weights, path) for path in paths(first, tree))
    assert any(isinstance(second, Declared) for second in tree)
    reached = true_delta(first, tree, budget.cap)
    assert budget.declared_delta / 2 < reached <= budget.delta
    more = Declared(
        guarantee=Declaration(epsilon=Fraction(0), delta=budget.declared_delta + Fraction(1, 10**30)), reference="more"
    )
    assert not admitted(budget, weights, [more])
