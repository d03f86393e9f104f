"""Capacity and gauge of windows, against charges that are admitted one after the other (C-7, C-8)."""

from fractions import Fraction

from hypothesis import given, settings, strategies as st

from service.privacy.accounting.capacity import BudgetCharge, fitting, fullest, gauge
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_prices, add_totals
from service.privacy.accounting.windows import decisive_window, maximum, price_as_charged_to_windows

_ORDERS = Weights(tuple(map(Fraction, ("5/4", "3", "40"))), tuple(map(Fraction, ("1/20", "9/10", "1/20"))))
_BUDGETS: list[tuple[Budget, Weights]] = [
    (Budget(definition=Definition.PURE, cap=Fraction(1), declared_delta=Fraction(1, 10**8)), Weights()),
    (Budget(definition=Definition.ZCDP, cap=Fraction(1)), Weights()),
    (Budget(definition=Definition.RDP, cap=Fraction(1), alpha=Fraction(3)), Weights((Fraction(3),))),
    (
        Budget(
            definition=Definition.APPROXIMATE,
            cap=Fraction(3),
            delta=Fraction(1, 10**6),
            declared_delta=Fraction(1, 10**8),
        ),
        _ORDERS,
    ),
]
_MOST = 40
_parts = st.sampled_from([Fraction(0), Fraction(1, 20), Fraction(1, 7), Fraction(1, 3)])


@st.composite
def _prices(draw: st.DrawFn, weights: Weights) -> Price:
    quanta = tuple(draw(st.sampled_from([0, 10**13, 3 * 10**14, None])) for _ in weights.orders)
    return Price(
        epsilon=draw(st.one_of(_parts, st.none())),
        rho=draw(_parts),
        delta=draw(st.sampled_from([Fraction(0), Fraction(0), Fraction(1, 10**9)])),
        linear=draw(_parts) / 10,
        quanta=quanta if any(one != 0 for one in quanta) else (),
    )


@st.composite
def _windows(draw: st.DrawFn) -> tuple[Budget, Weights, Totals, dict[int, Totals], Price]:
    budget, weights = draw(st.sampled_from(_BUDGETS))
    common = add_prices(Totals(), [(one, 1) for one in draw(st.lists(_prices(weights), max_size=1))])
    found = {
        place: add_prices(Totals(), [(one, 1) for one in draw(st.lists(_prices(weights), max_size=3))])
        for place in range(draw(st.integers(1, 4)))
    }
    return budget, weights, common, found, draw(_prices(weights))


@settings(max_examples=100, deadline=None)
@given(_windows())
def test_windows_admit_as_many_as_the_least_of_them(
    given_windows: tuple[Budget, Weights, Totals, dict[int, Totals], Price],
) -> None:
    """Admission names the window that refuses the next one, where the charges are added to what is common."""
    budget, weights, common, found, asked = given_windows
    amount = price_as_charged_to_windows([add_totals(common, one) for one in found.values()], asked, held=False)
    counted = fitting([BudgetCharge(budget, weights, add_totals(common, one), amount) for one in found.values()])
    now, number = dict(found), 0
    while number < _MOST:
        decisive = decisive_window(budget, weights, common, now, amount, None)
        refused = shortfalls(budget, weights, decisive.totals, add_price(decisive.totals, amount))
        if refused:
            after = add_prices(common, [(amount, number)]) if number else common
            named = decisive_window(budget, weights, after, found, amount, None)
            assert (named.place, named.totals) == (decisive.place, decisive.totals)
            break
        now = {place: add_price(one, amount) for place, one in now.items()}
        number += 1
    assert min(counted.number, _MOST) == number


@settings(max_examples=100, deadline=None)
@given(_windows())
def test_the_largest_gauge_is_at_most_1_exactly_where_every_window_admits(
    given_windows: tuple[Budget, Weights, Totals, dict[int, Totals], Price],
) -> None:
    budget, weights, common, found, amount = given_windows
    totals = [add_totals(common, one) for one in found.values()]
    used = fullest(gauge(budget, weights, one) for one in totals).used
    admitted = all(not shortfalls(budget, weights, Totals(), one) for one in totals)
    assert (used is not None and used <= 1) == admitted
    after = fullest(gauge(budget, weights, add_price(one, amount)) for one in totals).used
    assert after is None or (used is not None and used <= after)
    bound = gauge(budget, weights, add_totals(common, maximum(weights, list(found.values())))).used
    assert bound is None or (used is not None and used <= bound)
    if budget.definition is not Definition.APPROXIMATE:
        assert bound == used


def test_the_bound_of_an_approximate_budget_can_be_above_every_window() -> None:
    budget, weights = _BUDGETS[3]
    pure = add_price(
        Totals(), Price(epsilon=Fraction(2), rho=Fraction(2), delta=Fraction(0), linear=Fraction(9), quanta=())
    )
    smooth = add_price(
        Totals(), Price(epsilon=None, rho=Fraction(1, 20), delta=Fraction(0), linear=Fraction(1, 20), quanta=())
    )
    used = fullest(gauge(budget, weights, one) for one in (pure, smooth)).used
    bound = gauge(budget, weights, maximum(weights, [pure, smooth])).used
    assert used is not None
    assert used < 1
    assert bound is None or bound > 1
