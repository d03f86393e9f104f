"""Sums of the largest totals against all sets of so many windows, one by one."""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import combinations
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.leading_windows import Leading, leading, worst_places
from service.privacy.accounting.pricing import QUANTA
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    deciding_order,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import LossSum, Totals, add_price, add_prices, add_totals
from service.privacy.accounting.windows import WindowTotals, maximum
from service.privacy.periods import AnyPeriods
from tests.oracles.windows import reads
from tests.privacy.accounting.test_windows import (
    account,
    amount,
    definitions,
    drawn_releases,
    figure,
    of_unit,
    places_of,
    seeds,
    stated,
)
from tests.privacy.accounting.window_charges import add_to_windows, shortfalls_of_several

CALENDAR = range(6)
numbers = st.integers(1, 4)


def totals_of(random: Random, weights: Weights) -> dict[int, Totals]:
    """Totals of some windows, many of them equal, some of them nothing."""
    prices = [amount(random, len(weights.orders)) for _ in range(3)]
    return {
        place: add_prices(Totals(), [(one, random.randrange(3)) for one in prices])
        for place in random.sample(range(-5, 9), random.randrange(8))
    }


Figure = Callable[[Totals], Fraction]


def figures(weights: Weights, *, in_quanta: bool) -> dict[str, Figure]:
    """Every figure by itself; of a curve at each order, in whole quanta where any window has some."""
    found: dict[str, Figure] = {
        "epsilon": lambda one: one.epsilon.finite,
        "rho": lambda one: one.rho.finite,
        "delta": lambda one: one.delta,
        "infinite epsilon": lambda one: Fraction(one.epsilon.infinite),
        "infinite rho": lambda one: Fraction(one.rho.infinite),
    }
    for k, order in enumerate(weights.orders):
        found[f"infinite at {order}"] = lambda one, k=k: Fraction(one.infinite[k] if one.infinite else 0)  # type: ignore[misc]

        def loss(one: Totals, k: int = k, order: Fraction = order) -> Fraction:
            quanta = one.quanta[k] if one.quanta else 0
            if in_quanta and len(weights.orders) > 1:
                return Fraction(ceil(one.linear * order * QUANTA) + quanta, QUANTA)
            return one.linear * order + Fraction(quanta, QUANTA)

        found[f"loss at {order}"] = loss
    return found


def sums(windows: Mapping[int, Totals], number: int, one: Figure, *including: int) -> list[Fraction]:
    """The figure of every set of windows."""
    others = [place for place in windows if place not in including]
    taken = min(number - len(including), len(others))
    own = [one(windows.get(place, Totals())) for place in including]
    return [sum([*own, *(one(windows[place]) for place in some)], Fraction(0)) for some in combinations(others, taken)]


@settings(max_examples=100)
@given(seeds, definitions, numbers)
def test_each_figure_is_that_of_the_largest_set(seed: int, definition: Definition, number: int) -> None:
    """P-9, and P-11 for each window."""
    random, _, weights = stated(seed, definition)
    windows = totals_of(random, weights)
    found = leading(weights, windows, number)
    in_quanta = any(one.quanta for one in windows.values())
    for one in figures(weights, in_quanta=in_quanta).values():
        assert one(found.together) == max(sums(windows, number, one))
        for place, own in windows.items():
            assert one(found.beside(weights, own)) == max(sums(windows, number, one, place))
        assert one(found.beside(weights, Totals())) == max(sums(windows, number - 1, one))


@given(seeds, definitions, numbers)
def test_the_bound_is_above_the_figure_of_every_set(seed: int, definition: Definition, number: int) -> None:
    random, budget, weights = stated(seed, definition)
    windows, common = totals_of(random, weights), add_price(Totals(), amount(random, len(weights.orders)))
    found = leading(weights, windows, number)
    for some in combinations(windows, min(number, len(windows))):
        held = common
        for place in some:
            held = add_totals(held, windows[place])
        assert figure(budget, weights, held) <= figure(budget, weights, add_totals(common, found.together))
        for place in some:
            beside = add_totals(common, found.beside(weights, windows[place]))
            assert figure(budget, weights, held) <= figure(budget, weights, beside)


@given(seeds, definitions)
def test_of_one_period_the_largest_is_the_maximum(seed: int, definition: Definition) -> None:
    random, _, weights = stated(seed, definition)
    windows = totals_of(random, weights)
    found = leading(weights, windows, 1)
    assert found.together == maximum(weights, list(windows.values()))
    assert all(found.beside(weights, own) == own for own in windows.values())


@settings(max_examples=100)
@given(seeds, definitions, numbers)
def test_the_leading_windows_and_the_charged_ones_decide(seed: int, definition: Definition, number: int) -> None:
    """P-10: windows are charged one after the other, and only those are looked at."""
    random, _, weights = stated(seed, definition)
    windows, found = dict[int, Totals](), leading(weights, {}, number)
    prices = [amount(random, len(weights.orders)) for _ in range(3)]
    for _ in range(12):
        charged = random.sample(range(9), random.randrange(1, 4))
        one = random.choice(prices)
        for place in charged:
            windows[place] = add_price(windows.get(place, Totals()), one)
        found = leading(weights, {place: windows[place] for place in {*found.places, *charged}}, number)
        assert found == leading(weights, windows, number)
        if not weights.orders:  # one of these can lead in each of five figures
            assert len(found.places) <= 5 * number


def test_of_equal_windows_the_first_lead() -> None:
    """So that what is voided, mostly a late period, seldom touches one."""
    same = Totals(rho=LossSum(Fraction(1)))
    assert leading(Weights(), dict.fromkeys(range(20), same), 3).places == (0, 1, 2)
    assert leading(Weights(), {3: same, 1: same, 2: Totals()}, 3).places == (1, 3)


def test_sums_are_rounded_up_where_their_denominators_would_be_too_large() -> None:
    random, windows = Random(5), dict[int, Totals]()
    for place in range(9):
        bottom = 10**59 + random.randrange(10**58)
        windows[place] = Totals(epsilon=LossSum(Fraction(random.randrange(bottom), bottom)), delta=Fraction(1, bottom))
    for number in range(1, 10):
        found = leading(Weights(), windows, number).together
        for one, unit in (("epsilon", 10**18), ("delta", 10**40)):
            values = [each.delta if one == "delta" else each.epsilon.finite for each in windows.values()]
            exact = sum(sorted(values)[-number:])
            shown = found.delta if one == "delta" else found.epsilon.finite
            assert 0 <= shown - exact <= Fraction(number - 1, unit)
            assert shown.denominator < 10**121
            assert number > 2 or shown == exact or number == 2


@settings(max_examples=100)
@given(seeds, definitions, numbers)
def test_a_release_is_admitted_only_if_every_unit_that_it_reads_has_room(
    seed: int, definition: Definition, number: int
) -> None:
    """With one figure it is admitted if so many periods, each with all its releases, have room."""
    random, budget, weights = stated(seed, definition)
    participation = AnyPeriods(number)
    releases = drawn_releases(random, len(weights.orders))
    totals = account(participation, releases)
    periods, asked = random.choice(
        drawn_releases(random, len(weights.orders), 9) or [(None, amount(random, len(weights.orders)))]
    )
    charge = (places_of(participation, periods), asked, 1)
    refused = shortfalls_of_several(budget, weights, number, totals, charge)
    after = add_to_windows(totals, [charge])
    failing = counted_failing = False
    for unit in map(frozenset, combinations(range(-1, 7), number)):  # periods of no release too
        if reads(periods, unit):
            held = of_unit([*releases, (periods, asked)], unit)
            failing |= bool(shortfalls(budget, weights, Totals(), held))
            counted_failing |= bool(shortfalls(budget, weights, Totals(), _counted(after, unit)))
    assert refused or not failing
    assert refused or not counted_failing
    if definition is not Definition.APPROXIMATE:
        assert bool(refused) == counted_failing or refused  # a bound can mix a loss and declared deltas of two sets
        loss_alone = Budget(definition=definition, cap=budget.cap, declared_delta=Fraction(10), alpha=budget.alpha)
        assert bool(shortfalls_of_several(loss_alone, weights, number, totals, charge)) == any(
            shortfalls(loss_alone, weights, Totals(), _counted(after, unit))
            for unit in map(frozenset, combinations(range(-1, 7), number))
            if reads(periods, unit)
        )


def _counted(totals: WindowTotals, unit: Iterable[int]) -> Totals:
    """The totals of the periods of a unit, added up: a release counts once for each."""
    held = totals.common
    for period in unit:
        held = add_totals(held, totals.windows.get(period, Totals()))
    return held


@given(seeds, definitions, numbers)
def test_the_worst_set_has_the_largest_figure_of_all(seed: int, definition: Definition, number: int) -> None:
    random, budget, weights = stated(seed, definition)
    windows, common = totals_of(random, weights), add_price(Totals(), amount(random, len(weights.orders)))
    found = leading(weights, windows, number)
    places = worst_places(budget, weights, common, found, windows)
    assert len(places) <= number
    bound = add_totals(common, found.together)
    used = spent_of_cap(budget, weights, bound)
    if definition is Definition.APPROXIMATE or (
        bound.delta > budget.declared_delta and used is not None and used <= budget.cap
    ):
        return
    assert figure(budget, weights, _counted(WindowTotals(common, windows), places)) == figure(budget, weights, bound)


@given(seeds)
def test_the_order_that_decides_gives_the_figure(seed: int) -> None:
    random, budget, weights = stated(seed, Definition.APPROXIMATE)
    totals = add_prices(Totals(), [(amount(random, len(weights.orders)), 1) for _ in range(2)])
    order, used = deciding_order(budget, weights, totals), spent_of_cap(budget, weights, totals)
    if order is None:
        assert used == totals.epsilon.value
        return
    assert used is not None
    only = Weights((weights.orders[order],), (weights.shares[order],))
    quanta, infinite = ((one[order],) if one else () for one in (totals.quanta, totals.infinite))
    alone = Totals(
        epsilon=LossSum(infinite=1), linear=totals.linear, quanta=quanta, infinite=infinite if any(infinite) else ()
    )
    assert spent_of_cap(budget, only, alone) == used


@pytest.mark.parametrize("number", [1, 2, 9])
def test_nothing_leads_where_nothing_was_released(number: int) -> None:
    assert (
        leading(Weights(), {}, number)
        == leading(Weights(), {4: Totals()}, number)
        == Leading(number, Totals(), Totals(), ())
    )
