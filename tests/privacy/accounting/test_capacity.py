"""Capacity: the number of charges that fit and the used part of a budget, against the admission itself."""

import math
from collections.abc import Sequence as Listed
from fractions import Fraction

import pytest
from hypothesis import given, reject, settings, strategies as st

from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.capacity import (
    MOST_COUNTED,
    BudgetCharge,
    Fit,
    around_estimate,
    count_fitting,
    fitting,
    gauge as gauge_of,
    share_alone,
)
from service.privacy.accounting.conversion import conversion
from service.privacy.accounting.pricing import QUANTA, Price, estimate_price, price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, open_weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_prices, price_as_charged
from service.privacy.mechanisms import Gaussian, Geometric
from service.privacy.plans import Plan, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.strategies import plans

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
_ORDERS = Weights(tuple(map(Fraction, ("5/4", "3", "40"))), tuple(map(Fraction, ("1/20", "9/10", "1/20"))))
_SOME = 60  # charges that are admitted one by one


def _budget(definition: Definition, cap: Fraction, declared: Fraction) -> tuple[Budget, Weights]:
    match definition:
        case Definition.RDP:
            return Budget(definition=definition, cap=cap, declared_delta=declared, alpha=Fraction(3)), Weights(
                (Fraction(3),)
            )
        case Definition.APPROXIMATE:
            delta = declared + Fraction(1, 10**6)
            return Budget(definition=definition, cap=cap, delta=delta, declared_delta=declared), _ORDERS
    return Budget(definition=definition, cap=cap, declared_delta=declared), Weights()


_budgets = st.builds(
    _budget,
    st.sampled_from(Definition),
    st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(21, 2), Fraction(20), Fraction(1, 3)]),
    st.sampled_from([Fraction(0), Fraction(1, 10**9), Fraction(1, 10**7)]),
)
_losses = st.none() | st.sampled_from([Fraction(0), Fraction(1, 10), Fraction(1, 21), Fraction(3, 7), Fraction(2)])
_quanta = st.none() | st.integers(0, QUANTA) | st.sampled_from([0, 1, QUANTA // 10, QUANTA // 3, 9 * QUANTA])


@st.composite
def _prices(draw: st.DrawFn, weights: Weights) -> Price:
    curve = tuple(draw(_quanta) for _ in weights.orders)
    return Price(
        epsilon=draw(_losses),
        rho=draw(_losses),
        delta=draw(st.sampled_from([Fraction(0), Fraction(0), Fraction(1, 10**9), Fraction(1, 3 * 10**9)])),
        linear=draw(st.sampled_from([Fraction(0), Fraction(1, 10), Fraction(1, 21), Fraction(7, 10**15)])),
        quanta=curve if any(one != 0 for one in curve) else (),
    )


@st.composite
def _histories(draw: st.DrawFn) -> tuple[Budget, Weights, list[Price]]:
    budget, weights = draw(_budgets)
    return budget, weights, draw(st.lists(_prices(weights), min_size=1, max_size=4))


def gauge(budget: Budget, weights: Weights, totals: Totals) -> Fraction | None:
    used, cap = gauge_of(budget, weights, totals)
    assert cap in (budget.cap_on, budget.delta_cap)
    return used


def _admits(budget: Budget, weights: Weights, totals: Totals) -> bool:
    return not shortfalls(budget, weights, Totals(), totals)


def _one_by_one(
    limits: Listed[BudgetCharge], asked: Listed[Price], most: int = _SOME
) -> tuple[int, tuple[int, str] | None]:
    """Admit charges one after the other, as the ledger does, up to ``most``."""
    before = [limit.before for limit in limits]
    for number in range(most):
        after = [
            add_price(totals, price_as_charged(totals, price)) for totals, price in zip(before, asked, strict=True)
        ]
        for place, limit in enumerate(limits):
            found = shortfalls(limit.budget, limit.weights, before[place], after[place])
            if found:
                return number, (place, found[0].cap)
        before = after
    return most, None


@settings(max_examples=150)
@given(_histories())
def test_the_gauge_is_at_most_1_exactly_where_the_filter_admits(history: tuple[Budget, Weights, list[Price]]) -> None:
    budget, weights, charges = history
    totals = Totals()
    for amount in charges:
        totals = add_price(totals, amount)
        used = gauge(budget, weights, totals)
        assert (used is not None and used <= 1) == _admits(budget, weights, totals)


@settings(max_examples=80)
@given(st.sampled_from(["10", "21/2", "20", "61/3"]), st.integers(0, 2), st.integers(-2, 2), st.booleans())
def test_the_gauge_agrees_with_the_filter_at_the_last_quantum(cap: str, place: int, off: int, straight: bool) -> None:
    """Totals for which only one order's route is left, some quanta from the room of that route."""
    budget, weights = _budget(Definition.APPROXIMATE, Fraction(cap), Fraction(0))
    excess = conversion(weights.orders[place], weights.shares[place] * budget.delta)
    room = math.floor(budget.cap * QUANTA) - math.ceil(excess * QUANTA) + off
    if room < 1:  # at the lowest order no budget of this size has any
        assert place == 0
        return
    linear = Fraction(room, QUANTA) / weights.orders[place] if straight else Fraction(0)
    quanta = tuple((0 if straight else room) if k == place else None for k in range(3))
    totals = add_price(Totals(), Price(None, None, Fraction(0), linear, quanta))
    used = gauge(budget, weights, totals)
    assert used is not None
    assert (used <= 1) == _admits(budget, weights, totals) == (off <= 0)


def test_an_order_whose_conversion_is_the_whole_cap_admits_no_loss_at_that_order_and_nothing_else() -> None:
    order = _ORDERS.orders[1]
    excess = math.ceil(conversion(order, _ORDERS.shares[1] * Fraction(1, 10**6)) * QUANTA)
    budget, weights = _budget(Definition.APPROXIMATE, Fraction(excess, QUANTA), Fraction(0))
    for tau, used in ((0, 0), (1, None)):
        totals = add_price(Totals(), Price(None, None, Fraction(0), Fraction(0), (None, tau, None)))
        assert gauge(budget, weights, totals) == used
        assert _admits(budget, weights, totals) == (used is not None)


@settings(max_examples=150)
@given(_histories())
def test_as_many_charges_fit_as_the_filter_admits_one_by_one(history: tuple[Budget, Weights, list[Price]]) -> None:
    budget, weights, (asked, *earlier) = history
    before = Totals()
    for amount in earlier:
        before = add_price(before, amount)
    limits = [BudgetCharge(budget, weights, before, price_as_charged(before, asked))]
    number, stop = fitting(limits)
    if number >= _SOME:
        assert _one_by_one(limits, [asked]) == (_SOME, None)
    else:
        assert _one_by_one(limits, [asked]) == (number, stop)


@settings(max_examples=100)
@given(st.data())
def test_several_limits_stop_where_the_first_of_them_does(data: st.DataObject) -> None:
    limits, asked = [], []
    for budget, weights in data.draw(st.lists(_budgets, min_size=2, max_size=4)):
        before, amount = add_price(Totals(), data.draw(_prices(weights))), data.draw(_prices(weights))
        limits.append(BudgetCharge(budget, weights, before, price_as_charged(before, amount)))
        asked.append(amount)
    number, stop = fitting(limits)
    assert number == min(fitting([limit]).number for limit in limits)
    if number < _SOME:
        assert _one_by_one(limits, asked) == (number, stop)


@settings(max_examples=80)
@given(_histories(), st.integers(1, 10**6))
def test_equal_charges_take_equal_shares(history: tuple[Budget, Weights, list[Price]], number: int) -> None:
    budget, weights, (amount, *_) = history
    one = share_alone(budget, weights, amount)
    many = gauge(budget, weights, add_prices(Totals(), [(amount, number)]))
    assert many == (None if one is None else number * one)


@settings(max_examples=80)
@given(_histories())
def test_more_charges_use_more_and_at_least_their_shares(history: tuple[Budget, Weights, list[Price]]) -> None:
    budget, weights, charges = history
    totals = Totals()
    last: Fraction | None = Fraction(0)
    for amount in charges:
        totals = add_price(totals, amount)
        used, alone = gauge(budget, weights, totals), share_alone(budget, weights, amount)
        if used is not None and budget.declared_delta == 0:
            assert last is not None
            assert alone is not None
            assert used >= last + alone
        assert used is None or (last is not None and used >= last)
        last = used


@pytest.mark.parametrize(
    ("cap", "one", "number"), [("1", "0.1", 10), ("1", "1/21", 21), ("1", "3/7", 2), ("0.3", "0.1", 3)]
)
@pytest.mark.parametrize("definition", [Definition.PURE, Definition.ZCDP, Definition.RDP])
def test_the_last_charge_fills_the_cap_to_the_last_digit(
    definition: Definition, cap: str, one: str, number: int
) -> None:
    budget, weights = _budget(definition, Fraction(cap), Fraction(0))
    loss = Fraction(one)
    amount = Price(loss, loss, Fraction(0), loss / 3 if weights.orders else Fraction(0), ())
    assert count_fitting(budget, weights, Totals(), amount) == number
    full = add_prices(Totals(), [(amount, number)])
    assert gauge(budget, weights, full) == number * loss / Fraction(cap)
    assert count_fitting(budget, weights, full, amount) == 0
    exact = add_prices(Totals(), [(amount, number - 1)])
    assert count_fitting(budget, weights, exact, amount) == 1


def test_an_account_can_be_full_by_the_pure_route_where_the_heaviest_order_would_be_far_over() -> None:
    """Four releases of epsilon 1/4 fill (1, 1e-6) exactly; the order that has nine tenths of delta shows 163 %."""
    budget = Budget(definition=Definition.APPROXIMATE, cap=Fraction(1), delta=Fraction(1, 10**6))
    weights = open_weights(budget)
    one = price(Geometric(scale=Fraction(4)), ADD, weights.orders)
    totals = add_prices(Totals(), [(one, 4)])
    assert gauge(budget, weights, totals) == 1
    assert share_alone(budget, weights, one) == Fraction(1, 4)
    assert count_fitting(budget, weights, Totals(), one) == 4
    heaviest = weights.shares.index(max(weights.shares))
    room = 1 - conversion(weights.orders[heaviest], weights.shares[heaviest] * budget.delta)
    assert Fraction(totals.quanta[heaviest], QUANTA) / room > Fraction("1.6")


def test_equal_releases_fill_an_approximate_budget_evenly() -> None:
    """The figure that is compared with the cap takes 0.39 of it for the first release; the gauge takes 1/n each."""
    budget = Budget(definition=Definition.APPROXIMATE, cap=Fraction(4), delta=Fraction(1, 10**6))
    weights = open_weights(budget)
    one = price(Gaussian(sigma_squared=Fraction(50)), ADD, weights.orders)
    share = share_alone(budget, weights, one)
    assert share is not None
    number = count_fitting(budget, weights, Totals(), one)
    assert number == 1 // share
    assert number > 20
    totals = add_prices(Totals(), [(one, number)])
    assert gauge(budget, weights, totals) == number * share
    assert not _admits(budget, weights, add_price(totals, one))


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (MOST_COUNTED - 1, Fit(MOST_COUNTED - 1, (0, "rho"))),
        (MOST_COUNTED, Fit(MOST_COUNTED, (0, "rho"))),
        (MOST_COUNTED + 1, Fit(MOST_COUNTED, None)),
        (10**40, Fit(MOST_COUNTED, None)),
    ],
)
def test_charges_are_counted_to_a_million(cap: int, expected: Fit) -> None:
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(cap))
    amount = Price(Fraction(1), Fraction(1), Fraction(0), Fraction(0), ())
    assert fitting([BudgetCharge(budget, Weights(), Totals(), amount)]) == expected


def test_a_plan_without_a_loss_fits_without_end() -> None:
    nothing = price(Sequence(parts=()), ADD, _ORDERS.orders)
    for definition in Definition:
        budget, weights = _budget(definition, Fraction(1), Fraction(0))
        assert fitting([BudgetCharge(budget, weights, Totals(), nothing)]) == Fit(MOST_COUNTED, None)
        assert share_alone(budget, weights, nothing) == 0


def test_an_infinite_loss_never_fits_and_has_no_share() -> None:
    endless = Price(None, None, Fraction(0), Fraction(0), (None, None, None))
    for definition in Definition:
        budget, weights = _budget(definition, Fraction(1), Fraction(0))
        amount = endless if weights.orders == _ORDERS.orders else Price(None, None, Fraction(0), Fraction(0), (None,))
        assert fitting([BudgetCharge(budget, weights, Totals(), amount)]) == Fit(0, (0, budget.cap_on))
        assert share_alone(budget, weights, amount) is None


def test_declared_deltas_stop_an_account_whose_loss_has_room() -> None:
    for definition in Definition:
        budget, weights = _budget(definition, Fraction(20), Fraction(1, 10**7))
        amount = Price(Fraction(1, 21), Fraction(1, 21), Fraction(3, 10**8), Fraction(0), ())
        cap = "declared_delta" if definition is Definition.APPROXIMATE else "delta"
        assert fitting([BudgetCharge(budget, weights, Totals(), amount)]) == Fit(3, (0, cap))
        assert gauge_of(budget, weights, add_price(Totals(), amount)) == (Fraction(3, 10), cap)


def test_a_budget_that_was_passed_admits_nothing_and_its_gauge_says_so() -> None:
    """Totals can pass a cap where an operator prices releases again by a newer accountant."""
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(1))
    over = Totals(rho=Totals().rho.plus(Fraction(3, 2)))
    assert gauge(budget, Weights(), over) == Fraction(3, 2)
    assert count_fitting(budget, Weights(), over, Price(None, Fraction(1), Fraction(0), Fraction(0), ())) == 0


def test_charges_after_a_rounded_one_are_never_larger() -> None:
    """After a first amount that is rounded up, later ones can be exact; the counted charges fit in any case (C-2)."""
    least = Fraction(1, 10**18)
    before = Totals(rho=Totals().rho.plus(Fraction(1, 7**10) - least))
    asked = Price(Fraction(0), Fraction(1, 11**33), Fraction(0), Fraction(0), ())
    first = price_as_charged(before, asked)
    assert first.rho == least
    assert price_as_charged(add_price(before, first), asked) == asked
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(1, 7**10) + 2 * least)
    limit = BudgetCharge(budget, Weights(), before, first)
    assert fitting([limit]).number == 3
    assert _one_by_one([limit], [asked]) == (_SOME, None)


@settings(max_examples=60)
@given(plans(REPLACE, 6), st.sampled_from(["1", "4"]), st.booleans())
def test_two_amounts_around_an_estimate_have_the_charge_and_its_count_between_them(
    plan: Plan, cap: str, rounded: bool
) -> None:
    orders = tuple(map(Fraction, ("1.01", "2", "7.3", "500")))
    before = add_price(Totals(), Price(None, None, Fraction(0), Fraction(rounded, 11**57), ()))
    try:
        estimate = price_as_charged(before, estimate_price(plan, REPLACE, orders))
    except BeyondDoubles:
        reject()
    below, above = around_estimate(estimate)
    exact = price_as_charged(before, price(plan, REPLACE, orders))
    for k, order in enumerate(orders):
        figures = [
            None
            if one.quanta and one.quanta[k] is None
            else one.linear * order + Fraction((one.quanta or (0,) * 4)[k] or 0, QUANTA)
            for one in (below, exact, above)
        ]
        assert None in figures or sorted(figures, key=lambda one: one or 0) == figures
        assert len({one is None for one in figures}) == 1
    weights = Weights(orders, (Fraction(1, 4),) * 4)
    budget = Budget(
        definition=Definition.APPROXIMATE,
        cap=Fraction(cap),
        delta=Fraction(1, 10**6),
        declared_delta=Fraction(1, 10**7),
    )
    low, number, high = (count_fitting(budget, weights, before, one) for one in (above, exact, below))
    assert low <= number <= high
