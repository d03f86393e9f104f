"""The privacy filter: totals that stay exact, caps that are compared exactly, orders and weights."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, reject, settings, strategies as st

from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.capacity import count_fitting
from service.privacy.accounting.conversion import conversion, epsilon_to_rho_at
from service.privacy.accounting.pricing import QUANTA, Price, estimate_price, price
from service.privacy.accounting.privacy_filter import (
    ORDERS,
    Budget,
    Definition,
    Shortfall,
    Weights,
    open_weights,
    remaining,
    shortfalls,
    spent_alone,
    spent_of_cap,
)
from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.totals import (
    COARSE,
    COARSE_DELTA,
    COMMON,
    FINE_DENOMINATOR,
    LossSum,
    Totals,
    add_price,
    add_prices,
    mean_price,
    price_as_charged,
)
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
)
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import nats, pl94, plan_tau
from tests.privacy.strategies import plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE


def pure(epsilon: str, delta: str = "0") -> Budget:
    return Budget(definition=Definition.PURE, cap=Fraction(epsilon), declared_delta=Fraction(delta))


def zcdp(rho: str) -> Budget:
    return Budget(definition=Definition.ZCDP, cap=Fraction(rho))


def rdp(alpha: str, epsilon: str) -> Budget:
    return Budget(definition=Definition.RDP, cap=Fraction(epsilon), alpha=Fraction(alpha))


def approximate(epsilon: str, delta: str, declared_delta: str = "0") -> Budget:
    cap, declared = Fraction(epsilon), Fraction(declared_delta)
    return Budget(definition=Definition.APPROXIMATE, cap=cap, delta=Fraction(delta), declared_delta=declared)


class Account:
    """A budget and what was charged to it, as the ledger does it."""

    def __init__(self, budget: Budget, neighbouring: Neighbouring = ADD) -> None:
        self.budget, self.neighbouring = budget, neighbouring
        self.weights, self.totals = open_weights(budget), Totals()

    def charge(self, plan: Plan) -> Shortfall | None:
        after = add_price(
            self.totals, price_as_charged(self.totals, price(plan, self.neighbouring, self.weights.orders))
        )
        gap = next(iter(shortfalls(self.budget, self.weights, self.totals, after)), None)
        if gap is None:
            self.totals = after
        return gap

    @property
    def left(self) -> Fraction:
        return remaining(self.budget, self.weights, self.totals)


def of_epsilon(epsilon: str) -> Plan:
    return Laplace(scale=1 / Fraction(epsilon))


def of_rho(rho: str) -> Plan:
    return DiscreteGaussian(sigma_squared=1 / (2 * Fraction(rho)))


def declared(**figures: object) -> Mechanism:
    return Declared(guarantee=Declaration(**figures), reference="a proof")  # type: ignore[arg-type]  # by keyword


def at_order_2(epsilon: str) -> Plan:
    return declared(rdp=((Fraction(2), Fraction(epsilon)),))


KINDS: list[tuple[Callable[[str], Budget], Callable[[str], Plan]]] = [
    (pure, of_epsilon),
    (zcdp, of_rho),
    (lambda cap: rdp("2", cap), lambda cost: of_rho(str(Fraction(cost) / 2))),
    (lambda cap: rdp("2", cap), at_order_2),
    (lambda cap: approximate(cap, "1e-300"), of_epsilon),
]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=["pure", "zcdp", "rdp", "rdp declared", "approximate by pure"])
def test_figures_that_are_stated_add_up_exactly(kind: int) -> None:
    budget, plan = KINDS[kind]
    tenths = Account(budget("1"))
    assert [tenths.charge(plan("0.1")) for _ in range(10)] == [None] * 10
    assert tenths.left == 0
    gap = tenths.charge(plan("1e-15"))
    assert gap is not None
    assert (gap.requested, gap.remaining) == (Fraction(1, 10**15), Fraction(0))
    for cap, costs in [("0.3", ["0.1", "0.2"]), ("1", ["1/3"] * 3), ("293764/114921", ["293764/114921"])]:
        account = Account(budget(cap))
        assert [account.charge(plan(cost)) for cost in costs] == [None] * len(costs)
        assert account.left == 0
    assert Account(budget("1/3")).charge(plan("0.33333333333333334")) is not None


def test_the_redistricting_release_fills_a_budget_of_its_own_rho() -> None:
    account = Account(zcdp("293764/114921"), REPLACE)
    assert account.charge(pl94()) is None
    assert account.left == 0
    # Beside it the denominator would pass 10^60, so that this is charged as 1e-18.
    assert account.charge(of_rho("1e-300")) == Shortfall("rho", Fraction(1, 10**18), Fraction(0))
    smaller = Account(Budget(definition=Definition.ZCDP, cap=Fraction(293764, 114921) - Fraction(1, 10**300)), REPLACE)
    assert smaller.charge(pl94()) is not None


def test_irrational_costs_are_whole_quanta_rounded_up() -> None:
    plan = Geometric(scale=Fraction(3))
    asked = price(plan, ADD, (Fraction(2), Fraction(5)))
    assert asked.rho is not None
    assert asked.rho.denominator <= QUANTA
    assert nats(plan_rho(plan, ADD)) <= asked.rho < nats(plan_rho(plan, ADD)) + Fraction(1, QUANTA)
    for order, quanta in zip((Fraction(2), Fraction(5)), asked.quanta, strict=True):
        assert quanta is not None
        assert quanta == math.ceil(nats(plan_tau(plan, ADD, order)) * QUANTA)


@settings(max_examples=50)
@given(plans(REPLACE))
def test_prices_are_the_plans_costs_rounded_up_to_a_quantum(plan: Plan) -> None:
    orders = (Fraction("1.5"), Fraction(3), Fraction(40), Fraction(500))
    asked = price(plan, REPLACE, orders)
    assert asked.delta == plan_delta(plan, REPLACE)
    for charged, cost in ((asked.epsilon, plan_epsilon(plan, REPLACE)), (asked.rho, plan_rho(plan, REPLACE))):
        assert (charged is None) == (cost.nats is None)
        if charged is not None and cost.nats is not None:
            assert charged == cost.nats if cost.rational else cost.nats <= charged < cost.nats + Fraction(1, QUANTA)
    for order, quanta in zip(orders, asked.quanta or (0,) * 4, strict=True):
        tau = plan_tau(plan, REPLACE, order).nats
        assert (tau is None) == (quanta is None)
        if tau is not None and quanta is not None:
            # Where a discrete Gaussian's own curve is below its slope, the ledger adds the slope.
            assert tau <= asked.linear * order + Fraction(quanta, QUANTA)


@settings(max_examples=50)
@given(plans(ADD), st.integers(1, 3))
def test_at_one_order_prices_are_within_a_quantum_of_the_curve(plan: Plan, order: int) -> None:
    """At a whole order, where also the discrete Gaussian attains its slope."""
    alpha = Fraction(order + 1)
    asked = price(plan, ADD, (alpha,))
    tau = nats(plan_tau(plan, ADD, alpha))
    (quanta,) = asked.quanta or (0,)
    assert quanta is not None
    assert tau <= asked.linear * alpha + Fraction(quanta, QUANTA) < tau + Fraction(2, QUANTA)


@settings(max_examples=50)
@given(plans(ADD), st.fractions(1, 9))
def test_names_tags_and_order_change_no_price(plan: Plan, order: Fraction) -> None:
    orders = (1 + order,)
    assert price(Sequence(parts=(plan, of_rho("1"))), ADD, orders) == price(
        Sequence(parts=(of_rho("1"), replace(plan, tags=("other",)))), ADD, orders
    )


def test_a_plan_too_large_to_keep_has_the_same_price() -> None:
    parts = tuple(Geometric(scale=Fraction(1000 + k)) for k in range(1100))
    whole = price(Sequence(parts=parts), ADD, (Fraction(2),))
    halves = [price(Sequence(parts=half), ADD, (Fraction(2),)) for half in (parts[:550], parts[550:])]
    assert whole.epsilon == sum((half.epsilon or Fraction(0) for half in halves), Fraction(0))
    assert 0 <= sum(half.quanta[0] or 0 for half in halves) - (whole.quanta[0] or 0) <= 1


awkward = st.fractions(Fraction(1, 10**6), 1, max_denominator=10**9)


FIELDS: dict[str, Callable[[Fraction], Price]] = {
    "epsilon": lambda cost: Price(cost, Fraction(0), Fraction(0), Fraction(0), ()),
    "rho": lambda cost: Price(Fraction(0), cost, Fraction(0), Fraction(0), ()),
    "delta": lambda cost: Price(Fraction(0), Fraction(0), cost, Fraction(0), ()),
    "linear": lambda cost: Price(Fraction(0), Fraction(0), Fraction(0), cost, ()),
}


@settings(max_examples=20)
@given(st.lists(awkward, min_size=30, max_size=60), st.sampled_from(sorted(FIELDS)))
def test_denominators_stay_bounded_and_totals_are_never_below_the_sum(costs: list[Fraction], field: str) -> None:
    totals, truth, entered = Totals(), Fraction(0), Fraction(0)
    steps, limit = (COARSE_DELTA, 10**100) if field == "delta" else (COARSE, 10**78)
    for cost in costs * 20:
        amount = price_as_charged(totals, FIELDS[field](cost))
        entry, before = getattr(amount, field), _finite(getattr(totals, field))
        assert cost <= entry < cost + Fraction(1, steps)
        if math.lcm(before.denominator, cost.denominator) < FINE_DENOMINATOR:
            assert entry == cost
        totals, truth, entered = add_price(totals, amount), truth + cost, entered + entry
        assert _finite(getattr(totals, field)).denominator < limit
    total = _finite(getattr(totals, field))
    assert total == entered
    assert truth <= total <= truth + Fraction(len(costs) * 20, steps)


def _finite(total: LossSum | Fraction) -> Fraction:
    return total.finite if isinstance(total, LossSum) else total


def test_after_rounding_a_stated_tenth_is_still_a_tenth() -> None:
    totals = Totals(rho=LossSum(Fraction(1, 7 * 10**59 + 1)))
    third = Price(None, Fraction(1, 3), Fraction(0), Fraction(0), ())
    assert price_as_charged(totals, third).rho == Fraction(333333333333333334, 10**18)
    assert price_as_charged(totals, replace(third, rho=Fraction(1, 10))).rho == Fraction(1, 10)
    assert price_as_charged(Totals(rho=LossSum(Fraction(1, 10))), third) == third


def test_an_expired_charge_leaves_a_readable_total_however_it_cancelled_before() -> None:
    """Pairs that add up to a short number, of which one each is taken away: 200 unlike primes would be left."""
    totals, firsts = Totals(), []
    for k in range(200):
        prime = 10**45 + 2 * k + 1
        for part in (Fraction(10**44 + k, prime * 10**6), Fraction(1, 10**6) - Fraction(10**44 + k, prime * 10**6)):
            asked = Price(part, part, Fraction(0), part, ())
            amount = price_as_charged(totals, asked, held=True)
            assert asked.epsilon is not None
            assert amount.epsilon is not None
            assert asked.epsilon <= amount.epsilon <= asked.epsilon + Fraction(1, COARSE)
            totals = add_price(totals, amount)
            firsts += [amount] if part < Fraction(1, 2 * 10**6) else []
    for amount in firsts:
        totals = add_prices(totals, [(amount, -1)])
    assert len(str(totals.epsilon.finite)) < 4300
    assert COMMON % totals.epsilon.finite.denominator == 0


@given(st.fractions(0, 1, max_denominator=2**13 - 1), st.integers(0, 40))
def test_a_held_charge_is_exact_if_its_denominator_is_usual(value: Fraction, digits: int) -> None:
    asked = Price(value / 10**digits, None, Fraction(0), Fraction(0), ())
    assert price_as_charged(Totals(), asked, held=True) == asked


def test_removable_charges_leave_figures_that_python_reads() -> None:
    assert len(str(COMMON * FINE_DENOMINATOR)) + 400 < sys.get_int_max_str_digits()


def test_infinite_losses_are_counted_and_not_added() -> None:
    total = LossSum(Fraction(1)).plus(None).plus(Fraction(2)).plus(None)
    assert total == LossSum(Fraction(3), 2)
    assert total.value is None
    assert LossSum(Fraction(3)).value == 3
    orders = (Fraction(2), Fraction(9))
    once = add_price(Totals(), price(at_order_2("1/4"), ADD, orders))
    again = add_price(
        add_price(once, price(Geometric(scale=Fraction(1)), ADD, orders)), price(at_order_2("1/4"), ADD, orders)
    )
    assert (once.infinite, again.infinite) == ((0, 1), (0, 2))
    assert again.epsilon.infinite == 2
    assert again.quanta[0] == 2 * QUANTA // 4 + math.ceil(
        nats(plan_tau(Geometric(scale=Fraction(1)), ADD, orders[0])) * QUANTA
    )


def test_an_infinite_loss_is_refused_as_such() -> None:
    for budget in (pure("5"), zcdp("5"), rdp("3", "5")):
        gap = Account(budget).charge(at_order_2("0.1"))
        if budget.definition is Definition.PURE:
            assert Account(budget).charge(Gaussian(sigma_squared=Fraction(10**9))) == Shortfall(
                "epsilon", None, Fraction(5)
            )
        assert gap == Shortfall(budget.cap_on, None, Fraction(5))


def test_declared_deltas_have_a_cap_of_their_own() -> None:
    part = declared(epsilon=Fraction(1, 100), delta=Fraction(1, 3 * 10**7))
    for budget, name in [(pure("9", "1e-7"), "delta"), (approximate("9", "1e-6", "1e-7"), "declared_delta")]:
        account = Account(budget)
        assert [account.charge(part) for _ in range(3)] == [None] * 3
        assert account.totals.delta == Fraction(1, 10**7)
        assert account.charge(part) == Shortfall(name, Fraction(1, 3 * 10**7), Fraction(0))
    refused = Account(zcdp("1")).charge(part)
    assert refused == Shortfall("delta", Fraction(1, 3 * 10**7), Fraction(0))


def test_the_loss_is_refused_before_the_delta() -> None:
    both = declared(epsilon=Fraction(3), delta=Fraction(1, 10))
    assert Account(pure("2")).charge(both) == Shortfall("epsilon", Fraction(3), Fraction(2))


def test_orders_are_dense_and_wide() -> None:
    assert len(ORDERS) == 250
    assert ORDERS[0] == Fraction("1.001")
    assert ORDERS[-1] == 1 + 10**6
    ratios = [(b - 1) / (a - 1) for a, b in pairwise(ORDERS)]
    assert max(ratios) / min(ratios) < Fraction("1.0001")


@pytest.mark.parametrize(
    ("epsilon", "delta", "reserve"), [("2", "1e-6", "0"), ("0.1", "1e-9", "5e-10"), ("17", "1e-10", "0")]
)
def test_weights_share_the_whole_delta_once(epsilon: str, delta: str, reserve: str) -> None:
    budget = approximate(epsilon, delta, reserve)
    weights = open_weights(budget)
    assert weights.orders == ORDERS
    assert sum(weights.shares) == 1
    assert sorted(set(weights.shares)) == [Fraction(1, 2500), Fraction(1, 2500) + Fraction(9, 10)]


@pytest.mark.parametrize(("epsilon", "delta"), [("2", "1e-6"), ("0.1", "1e-9"), ("17.15", "1e-10")])
def test_a_gaussian_ledger_loses_little_to_the_filter(epsilon: str, delta: str) -> None:
    """The amount that may be spent is nearly all that one release might cost."""
    budget = approximate(epsilon, delta)
    largest = epsilon_to_rho_at(budget.cap, budget.delta)
    account = Account(budget)
    assert account.charge(of_rho(str(largest * Fraction(985, 1000)))) is None
    assert account.charge(of_rho(str(largest * Fraction(15, 1000)))) is not None


def test_other_definitions_need_no_weights() -> None:
    assert open_weights(pure("1")) == open_weights(zcdp("1")) == Weights()
    assert open_weights(rdp("2.5", "1")) == Weights((Fraction("2.5"),))


def spent_by_definition(budget: Budget, weights: Weights, totals: Totals) -> Fraction:
    """In fractions: the pure sum, or tau + conversion at some order's share of delta."""
    left = budget.delta - budget.declared_delta
    found = [totals.epsilon.finite] if not totals.epsilon.infinite else []
    for k, (order, share) in enumerate(zip(weights.orders, weights.shares, strict=True)):
        if not (totals.infinite and totals.infinite[k]):
            tau = totals.linear * order + (Fraction(totals.quanta[k], QUANTA) if totals.quanta else 0)
            found.append(max(tau + conversion(order, share * left), Fraction(0)))
    return min(found)


@settings(max_examples=15)
@given(
    st.lists(plans(ADD, 3), max_size=4),
    st.sampled_from([("2", "1e-6", "0"), ("50", "1e-6", "1e-7"), ("9", "0.5", "0")]),
)
def test_spent_is_what_section_4_compares_with_the_cap(releases: list[Plan], figures: tuple[str, str, str]) -> None:
    budget = approximate(*figures)
    weights, totals = open_weights(budget), Totals()
    for release in releases:
        totals = add_price(totals, price_as_charged(totals, price(release, ADD, ORDERS)))
    used, truth = spent_of_cap(budget, weights, totals), spent_by_definition(budget, weights, totals)
    assert used is not None
    assert truth <= used <= truth + Fraction(3, QUANTA)
    assert remaining(budget, weights, totals) == max(budget.cap - used, Fraction(0))


def test_an_untouched_account_has_its_whole_cap_and_no_more() -> None:
    for budget in (pure("1"), zcdp("1"), rdp("2", "1"), approximate("1", "1e-6"), approximate("1", "0.999")):
        account = Account(budget)
        assert spent_of_cap(budget, account.weights, account.totals) == 0
        assert account.left == 1
    nearly_nothing = Account(approximate("1", "0.999"))
    assert nearly_nothing.charge(of_rho("1e-9")) is None
    assert nearly_nothing.left == 1


def test_nothing_remains_beside_an_infinite_loss() -> None:
    totals = Totals(epsilon=LossSum(Fraction(0), 1))
    assert spent_of_cap(pure("1"), Weights(), totals) is None
    assert remaining(pure("1"), Weights(), totals) == 0


def test_a_refusal_says_by_how_much_the_filter_would_have_grown() -> None:
    account = Account(approximate("1", "1e-6"))
    assert account.charge(of_rho("0.001")) is None
    before = account.left
    gap = account.charge(of_rho("0.1"))
    assert gap is not None
    assert gap.cap == "epsilon"
    assert gap.remaining == before
    assert gap.requested is not None
    assert gap.requested > before
    assert account.left == before


costs = st.sampled_from(["0.1", "0.2", "1/3", "1/7", "0.05", "2/9", "1e-15"])


@given(st.lists(costs, max_size=30), st.sampled_from(["1", "0.3", "2/3", "5/7"]), st.integers(0, 2))
def test_admission_is_that_of_plain_fractions(asked: list[str], cap: str, kind: int) -> None:
    budget, plan = KINDS[kind]
    account, total = Account(budget(cap)), Fraction(0)
    for cost in asked:
        fits = total + Fraction(cost) <= Fraction(cap)
        assert (account.charge(plan(cost)) is None) == fits
        total += Fraction(cost) if fits else 0
        assert account.left == Fraction(cap) - total


def test_mixed_plans_add_their_lines_as_lines_and_the_rest_by_orders() -> None:
    gaussian, geometric = Gaussian(sigma_squared=Fraction(2)), Geometric(scale=Fraction(2))
    lines = price(Parallel(parts=(gaussian, gaussian, of_rho("1/9")), max_degree=2), ADD, ORDERS)
    assert (lines.linear, lines.quanta) == (Fraction(1, 2), ())
    mixed = price(Sequence(parts=(gaussian, geometric)), ADD, ORDERS)
    assert mixed.linear == Fraction(1, 4)
    assert mixed.quanta == price(geometric, ADD, ORDERS).quanta
    chosen = price(Choice(parts=(gaussian, geometric)), ADD, ORDERS)
    assert chosen.linear == 0
    worst = [max(order / 4, nats(plan_tau(geometric, ADD, order))) for order in ORDERS]
    assert list(chosen.quanta) == [math.ceil(tau * QUANTA) for tau in worst]
    many = price(Repeat(part=Sequence(parts=(geometric,)), count=10**12), ADD, (Fraction(2),))
    assert many.quanta == (math.ceil(nats(plan_tau(geometric, ADD, Fraction(2))) * 10**12 * QUANTA),)


@settings(max_examples=30)
@given(plans(REPLACE, 6))
def test_an_estimate_is_a_price_or_hardly_above(plan: Plan) -> None:
    orders = (Fraction("1.01"), Fraction(2), Fraction("7.3"), Fraction(500))
    try:
        found = estimate_price(plan, REPLACE, orders)
    except BeyondDoubles:
        reject()
    asked = price(plan, REPLACE, orders)
    assert (found.epsilon, found.rho, found.delta) == (asked.epsilon, asked.rho, asked.delta)
    for k, order in enumerate(orders):
        near, exact = (
            one.linear * order + Fraction((one.quanta[k] or 0) if one.quanta else 0, QUANTA) for one in (found, asked)
        )
        assert exact <= near <= exact * (1 + Fraction(1, 10**11)) + Fraction(2, QUANTA)


def test_an_estimate_is_the_price_where_there_are_no_orders_to_speak_of() -> None:
    plan = Sequence(parts=(Geometric(scale=Fraction(3)), Gaussian(sigma_squared=Fraction(2))))
    for orders in ((), (Fraction(2),)):
        assert estimate_price(plan, ADD, orders) == price(plan, ADD, orders)


def test_there_is_no_estimate_where_doubles_do_not_reach() -> None:
    beyond = Sequence(parts=(Geometric(scale=Fraction(1, 10**400)), Laplace(scale=Fraction(1, 10**399))))
    endless = Declared(guarantee=Declaration(epsilon=None, rho=None, rdp=((Fraction(2), Fraction(1)),)), reference="r")
    for plan in (beyond, Sequence(parts=(beyond, endless))):
        with pytest.raises(BeyondDoubles):
            estimate_price(plan, ADD, (Fraction(2), Fraction(5, 2)))


_rationals = st.fractions(Fraction(0), Fraction(10), max_denominator=10**6)
_or_infinite = st.none() | _rationals
_prices = st.builds(
    Price,
    epsilon=_or_infinite,
    rho=_or_infinite,
    delta=_rationals,
    linear=_rationals,
    quanta=st.just(()) | st.tuples(*[st.none() | st.sampled_from([0, 0, 1, 10**15, 10**30])] * 3),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(_prices, st.booleans()), max_size=8), st.randoms(use_true_random=False))
def test_removing_charges_leaves_the_totals_of_the_others_alone(
    charges: list[tuple[Price, bool]], random: Random
) -> None:
    """This holds whatever stays and in whatever order the rest goes: infinities are counted and zeros have one form."""
    totals = Totals()
    for amount, _ in charges:
        totals = add_price(totals, amount)
    gone = [amount for amount, goes in charges if goes]
    random.shuffle(gone)
    for amount in gone:
        totals = add_prices(totals, [(amount, -1)])
    expected = Totals()
    for amount, goes in charges:
        expected = expected if goes else add_price(expected, amount)
    assert totals == expected


def test_a_release_alone_is_as_large_as_admission_counts_it() -> None:
    order_2 = Budget(definition=Definition.RDP, cap=Fraction(9), alpha=Fraction(2))
    approximate = Budget(definition=Definition.APPROXIMATE, cap=Fraction(9), delta=Fraction(1, 10**6))
    gaussian = price(of_rho("1/8"), ADD, ())
    assert spent_alone(zcdp("9"), open_weights(zcdp("9")), gaussian) == Fraction(1, 8)
    assert spent_alone(pure("9"), open_weights(pure("9")), gaussian) is None
    weights = open_weights(order_2)
    assert spent_alone(order_2, weights, price(of_rho("1/8"), ADD, weights.orders)) == Fraction(1, 4)
    weights = open_weights(approximate)
    alone = spent_alone(approximate, weights, price(of_rho("1/8"), ADD, weights.orders))
    account = Account(approximate)
    account.charge(of_rho("1/8"))
    assert alone == 9 - account.left


def _fitting_one_by_one(budget: Budget, weights: Weights, totals: Totals, amount: Price) -> int:
    number = 0
    while True:
        after = add_price(totals, price_as_charged(totals, amount))
        if shortfalls(budget, weights, totals, after):
            return number
        totals, number = after, number + 1


@pytest.mark.parametrize(
    "plans",
    [
        [Gaussian(sigma_squared=Fraction(50))],
        [Geometric(scale=Fraction(3))],
        [Gaussian(sigma_squared=Fraction(50)), Geometric(scale=Fraction(7)), Laplace(scale=Fraction(5))],
        [Gaussian(sigma_squared=Fraction(3)), *(Geometric(scale=Fraction(10**25 + k)) for k in range(3))],
        [declared(epsilon=Fraction("0.01"), delta=Fraction("1e-9"))],
        [declared(rho=Fraction("0.01")), at_order_2("0.1")],
    ],
)  # fmt: skip
@pytest.mark.parametrize(("cap", "delta"), [("1", "1e-6"), ("4", "1e-10")])
def test_room_for_releases_of_the_mean_loss_is_counted_exactly(plans: list[Plan], cap: str, delta: str) -> None:
    budget = approximate(cap, delta, "1e-8") if delta == "1e-6" else approximate(cap, delta, "0.9e-10")
    weights, totals = open_weights(budget), Totals()
    for plan in plans:
        totals = add_price(totals, price_as_charged(totals, price(plan, ADD, weights.orders)))
    amount = mean_price(totals, len(plans))
    if len(plans) == 1:
        assert amount == price(plans[0], ADD, weights.orders)
    assert count_fitting(budget, weights, totals, amount) == _fitting_one_by_one(budget, weights, totals, amount)
