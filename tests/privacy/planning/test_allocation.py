"""Allocation: never above the budget, and as good as searches written out here find."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import Budget, Definition, shortfalls
from service.privacy.accounting.totals import Totals, add_price, price_as_charged
from service.privacy.accuracy.tails import margin_of_error
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, Geometric, Laplace
from service.privacy.planning.allocation import (
    EmptyAccount,
    NoAllocation,
    QueryNoise,
    QueryNoiseType,
    WeightedQuery,
    cost_in_own_unit,
    divide_budget,
    least_largest_error,
    least_weighted_error,
    proportional,
    sequence_plan,
    with_margin,
)
from service.privacy.plans.walking import Neighbouring

BUDGETS = [
    Budget(definition=Definition.PURE, cap=Fraction(2)),
    Budget(definition=Definition.ZCDP, cap=Fraction(1, 2)),
    Budget(definition=Definition.RDP, cap=Fraction(2), alpha=Fraction("4.5")),
    Budget(definition=Definition.APPROXIMATE, cap=Fraction(3), delta=Fraction(1, 10**6)),
]
QUERIES = [
    WeightedQuery("a", Fraction(1, 3)),
    WeightedQuery("b", Fraction(2, 3), Fraction(2), 3),
    WeightedQuery("c", Fraction(5)),
]
KINDS: list[QueryNoiseType] = [Geometric, Laplace, DiscreteGaussian, Gaussian]
CONFIDENCE = Fraction(95, 100)


def _admitted(budget: Budget, noise: list[QueryNoise]) -> bool:
    """As a ledger's empty account decides it, with the exact price."""
    account = EmptyAccount.of(budget)
    asked = price_as_charged(Totals(), price(sequence_plan(noise), Neighbouring.ADD_REMOVE, account.weights.orders))
    return not shortfalls(budget, account.weights, Totals(), add_price(Totals(), asked))


def _can(budget: Budget, kind: QueryNoiseType) -> bool:
    return kind in (Geometric, Laplace) or budget.definition is not Definition.PURE


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.definition.value)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", ["proportional", "weighted_error", "max_error"])
def test_an_allocation_is_admitted_and_leaves_little(budget: Budget, kind: QueryNoiseType, objective: str) -> None:
    account = EmptyAccount.of(budget)

    def allocate() -> list[QueryNoise]:
        if objective == "max_error":
            return least_largest_error(account, kind, QUERIES, CONFIDENCE)
        shares = proportional(QUERIES) if objective == "proportional" else least_weighted_error(account, kind, QUERIES)
        return divide_budget(account, kind, QUERIES, shares)

    if not _can(budget, kind):
        with pytest.raises(NoAllocation):
            allocate()
        return
    noise = allocate()
    assert _admitted(budget, noise)
    used = account.spent_by(sequence_plan(noise))
    assert used is not None
    if objective != "max_error" or kind in (Laplace, Gaussian):  # whole margins move in steps
        assert used >= budget.cap * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize(
    ("budget", "kind"), [(BUDGETS[0], Geometric), (BUDGETS[1], DiscreteGaussian), (BUDGETS[2], Gaussian)], ids=str
)
@given(weights=st.lists(st.fractions(min_value=Fraction(1, 1000), max_value=1000), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_proportional_shares_of_its_own_unit_are_exact_fractions(
    budget: Budget, kind: QueryNoiseType, weights: list[Fraction]
) -> None:
    queries = [WeightedQuery(str(n), weight, Fraction(1 + n), 1 + n) for n, weight in enumerate(weights)]
    noise = divide_budget(EmptyAccount.of(budget), kind, queries, proportional(queries))
    whole = budget.cap / (budget.alpha or 1)
    assert [cost_in_own_unit(one) for one in noise] == [whole * weight / sum(weights) for weight in weights]
    assert sum(cost_in_own_unit(one) for one in noise) == whole
    assert _admitted(budget, noise)


def test_shares_too_long_to_be_stated_cost_a_little_less() -> None:
    queries = [WeightedQuery(str(n), Fraction(10**300 + n, 10**300 - n - 7)) for n in range(4)]
    noise = divide_budget(EmptyAccount.of(BUDGETS[0]), Geometric, queries, proportional(queries))
    assert BUDGETS[0].cap * (1 - Fraction(1, 10**10)) < sum(cost_in_own_unit(one) for one in noise) <= BUDGETS[0].cap


@pytest.mark.parametrize("kind", [Geometric, DiscreteGaussian])
def test_targets_have_their_least_cost_each(kind: QueryNoiseType) -> None:
    for margin in (0, 1, 6, 50):
        noise = with_margin(kind, WeightedQuery("a"), Fraction(margin) + Fraction(1, 3), CONFIDENCE)
        assert margin_of_error(_law(noise), CONFIDENCE) == margin
        wider = (
            NoiseLaw(scale=noise.scale * (1 + Fraction(1, 10**10)))
            if isinstance(noise, Geometric)
            else NoiseLaw(sigma_squared=noise.sigma_squared * (1 + Fraction(1, 10**10)))  # type: ignore[union-attr]
        )
        assert margin_of_error(wider, CONFIDENCE) > margin


def _law(noise: QueryNoise) -> NoiseLaw:
    if isinstance(noise, Geometric):
        return NoiseLaw(scale=noise.scale)
    assert isinstance(noise, DiscreteGaussian)
    return NoiseLaw(sigma_squared=noise.sigma_squared)


@pytest.mark.parametrize(("budget", "kind"), [(BUDGETS[0], Geometric), (BUDGETS[1], DiscreteGaussian)], ids=str)
def test_no_whole_margins_within_the_budget_have_a_smaller_largest_error(budget: Budget, kind: QueryNoiseType) -> None:
    account = EmptyAccount.of(budget)
    found = least_largest_error(account, kind, QUERIES[:2], CONFIDENCE)
    weights = [query.weight for query in QUERIES[:2]]
    reached = max(w * margin_of_error(_law(one), CONFIDENCE) for w, one in zip(weights, found, strict=True))
    for margins in itertools.product(range(1, 30), repeat=2):
        error = max(w * m for w, m in zip(weights, margins, strict=True))
        if error < reached:
            noise = [with_margin(kind, q, Fraction(m), CONFIDENCE) for q, m in zip(QUERIES, margins, strict=False)]
            assert not account.admits(sequence_plan(noise))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", BUDGETS[:2], ids=lambda budget: budget.definition.value)
def test_moving_budget_between_queries_does_not_lessen_the_weighted_error(budget: Budget, kind: QueryNoiseType) -> None:
    if not _can(budget, kind):
        return
    account = EmptyAccount.of(budget)
    shares = least_weighted_error(account, kind, QUERIES)
    assert sum(shares) <= 1

    def error(divided_by: list[Fraction]) -> float:
        noise = divide_budget(account, kind, QUERIES, divided_by)
        return sum(float(q.weight) * _variance(one) for q, one in zip(QUERIES, noise, strict=True))

    least = error(shares)
    for one, other in itertools.permutations(range(3), 2):
        moved = list(shares)
        moved[one], moved[other] = moved[one] * Fraction(95, 100), moved[other] + moved[one] * Fraction(5, 100)
        assert least < error(moved) * (1 + 1e-9)


def _variance(noise: QueryNoise) -> float:
    match noise:
        case Laplace(scale=b):
            return float(2 * b * b)
        case Gaussian(sigma_squared=v):
            return float(v)
        case _:
            law = _law(noise)
            mass = [math.exp(-law.quadratic * x * x - law.linear * x) for x in range(400)]
            return 2 * sum(x * x * m for x, m in enumerate(mass)) / (2 * sum(mass) - 1)
