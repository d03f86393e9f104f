"""Totals by window: admission, the worst window and subtraction against sets of periods and plain sums."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from service.privacy.accounting.pricing import QUANTA, Price, price
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Shortfall,
    Weights,
    open_weights,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import (
    LossSum,
    Totals,
    add_price,
    add_prices,
    add_totals,
    is_charge_of,
    price_as_charged,
)
from service.privacy.accounting.windows import (
    WindowTotals,
    Worst,
    maximum,
    price_as_charged_to_windows,
    reaches,
    worst,
)
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.periods import ALL, Calendar, Offsets, Participation, Periods, PeriodSet, set_of, touched
from service.privacy.plans.walking import Neighbouring
from tests.oracles.windows import Periods as Months, reads
from tests.privacy.accounting.window_charges import WindowShortfall, add_to_windows, shortfalls_by_window

CALENDAR = range(6)
ORDERS = (Fraction(3, 2), Fraction(4), Fraction(30))
"""Few orders: everything is compared at each of them."""


def budget_of(definition: Definition, cap: Fraction, declared: Fraction = Fraction(1, 1000)) -> Budget:
    approximate = definition is Definition.APPROXIMATE
    return Budget(
        definition=definition,
        cap=cap,
        delta=Fraction(approximate, 100),
        declared_delta=declared,
        alpha=Fraction(4) if definition is Definition.RDP else None,
    )


def weights_of(budget: Budget) -> Weights:
    match budget.definition:
        case Definition.APPROXIMATE:
            return Weights(ORDERS, (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)))
        case _:
            return open_weights(budget)


def amount(random: Random, number_of_orders: int) -> Price:
    """With and without a linear part, a rest, an infinite figure and a declared delta."""

    def some() -> Fraction:
        return Fraction(random.randrange(10), random.choice((1, 3, 7)))

    curve = tuple(random.choice((0, random.randrange(3 * QUANTA), None)) for _ in range(number_of_orders))
    return Price(
        epsilon=random.choice((some(), some(), None)),
        rho=random.choice((some(), some(), some(), None)),
        delta=random.choice((Fraction(0), Fraction(random.randrange(5), 10_000))),
        linear=some() if number_of_orders else Fraction(0),
        quanta=random.choice(((), curve)),
    )


Release = tuple[Months, Price]


def places_of(participation: Participation, periods: Months) -> PeriodSet:
    return touched(participation, ALL if periods is None else set_of((one, one) for one in periods))


def drawn_releases(random: Random, number_of_orders: int, most: int = 8) -> list[Release]:
    chosen: list[Release] = []
    for _ in range(random.randrange(most)):
        some = frozenset(random.sample(CALENDAR, random.randrange(1, 4)))
        chosen.append((random.choice((None, some, some)), amount(random, number_of_orders)))
    return chosen


def by_month(participation: Offsets) -> Periods:
    return Periods(Calendar.MONTH, participation)


def account(participation: Participation, releases: Iterable[Release]) -> WindowTotals:
    return add_to_windows(
        WindowTotals(), [(places_of(participation, periods), amount, 1) for periods, amount in releases]
    )


def of_unit(releases: Iterable[Release], unit: frozenset[int]) -> Totals:
    """The releases that read the unit, each once."""
    return add_prices(Totals(), [(amount, 1) for periods, amount in releases if reads(periods, unit)])


OFFSETS = [Offsets((0,)), Offsets((0, 1)), Offsets((0, 2, 3)), Offsets((0, 5))]
seeds = st.integers(0, 10**6)
definitions = st.sampled_from(Definition)


def stated(seed: int, definition: Definition) -> tuple[Random, Budget, Weights]:
    random = Random(seed)
    budget = budget_of(definition, Fraction(random.randrange(1, 40), 3), Fraction(random.randrange(20), 10_000))
    return random, budget, weights_of(budget)


@given(seeds, st.sampled_from(OFFSETS), definitions)
def test_a_window_has_the_releases_that_read_a_unit_in_it(
    seed: int, participation: Offsets, definition: Definition
) -> None:
    """Every window is tried, far before the first period and after the last too, touched or not."""
    random, _, weights = stated(seed, definition)
    releases = drawn_releases(random, len(weights.orders))
    totals = account(participation, releases)
    for place in range(-10, 12):
        unit = frozenset(place + offset for offset in participation.offsets)
        held = add_totals(totals.common, totals.windows.get(place, Totals()))
        assert held == of_unit(releases, unit)


@settings(max_examples=100)
@given(seeds, st.sampled_from(OFFSETS), definitions)
def test_a_release_is_admitted_if_every_unit_that_it_reads_has_room(
    seed: int, participation: Offsets, definition: Definition
) -> None:
    """A refusal names the window of a unit for which a cap is exceeded most."""
    random, budget, weights = stated(seed, definition)
    releases = drawn_releases(random, len(weights.orders))
    periods, asked = random.choice(
        drawn_releases(random, len(weights.orders), 9) or [(None, amount(random, len(weights.orders)))]
    )
    failing: dict[str, list[Shortfall]] = {}
    windows = {place: frozenset(place + offset for offset in participation.offsets) for place in range(-10, 12)}
    for unit in windows.values():
        if reads(periods, unit):
            before = of_unit(releases, unit)
            for shortfall in shortfalls(budget, weights, before, add_price(before, asked)):
                failing.setdefault(shortfall.cap, []).append(shortfall)
    charge = (places_of(participation, periods), asked, 1)
    found = shortfalls_by_window(budget, weights, account(participation, releases), charge)
    assert bool(found) == bool(failing)
    for one in found:
        unit = frozenset({-100}) if one.place is None else windows[one.place]  # no place: nothing else touches it
        assert one.shortfall in failing[one.shortfall.cap]
        before = of_unit(releases, unit)
        assert one.shortfall in shortfalls(budget, weights, before, add_price(before, asked))


def figure(budget: Budget, weights: Weights, totals: Totals) -> tuple[bool, Fraction]:
    spent = spent_of_cap(budget, weights, totals)
    return spent is None, spent or Fraction(0)


@given(seeds, st.sampled_from(OFFSETS), definitions)
def test_the_worst_window_is_that_of_the_unit_with_the_largest_loss(
    seed: int, participation: Offsets, definition: Definition
) -> None:
    random, budget, weights = stated(seed, definition)
    releases = drawn_releases(random, len(weights.orders))
    totals = account(participation, releases)
    units = {place: frozenset(place + offset for offset in participation.offsets) for place in range(-10, 12)}
    figures = {place: figure(budget, weights, of_unit(releases, unit)) for place, unit in units.items()}
    found = worst(budget, weights, by_month(participation), totals)
    assert figure(budget, weights, found.totals) == max(figures.values())
    assert found.place is None or figures[found.place] == max(figures.values())
    for period in CALENDAR:
        inside = worst(budget, weights, by_month(participation), totals, period)
        place = inside.place
        assert place is not None
        assert period in units[place]
        assert figures[place] == max(figures[at] for at, unit in units.items() if period in unit)
        assert inside.totals == of_unit(releases, units[place])


@given(seeds, definitions)
def test_a_maximum_decides_for_all_of_which_it_is_made(seed: int, definition: Definition) -> None:
    random, budget, weights = stated(seed, definition)
    several = [
        add_prices(Totals(), [(amount(random, len(weights.orders)), random.randrange(3)) for _ in range(2)])
        for _ in range(random.randrange(1, 5))
    ]
    most = maximum(weights, several)
    assert maximum(weights, [most, *several]) == most == maximum(weights, several[::-1])
    for one in several:  # what does not reach the maximum can be left out of it
        others = [other for other in several if other is not one]
        without = maximum(weights, [*others, Totals()])
        if most.quanta and not without.quanta:  # exact sums are rounded up to quanta where others have quanta
            without = maximum(weights, [without, replace(Totals(), quanta=(1,) * len(most.quanta))])
        assert reaches(weights, most, one) or without == most
    assert most.delta == max(one.delta for one in several)
    figures = [figure(budget, weights, one) for one in several]
    if definition is Definition.APPROXIMATE:
        assert figure(budget, weights, most) >= max(figures)
    else:
        assert figure(budget, weights, most) == max(figures)


def test_without_windows_there_is_nothing_to_take_the_largest_of() -> None:
    assert maximum(Weights(), []) == Totals()


@given(seeds, st.sampled_from(OFFSETS))
def test_what_is_taken_away_leaves_nothing(seed: int, participation: Offsets) -> None:
    random = Random(seed)
    first, later = drawn_releases(random, 3), drawn_releases(random, 3)
    before = account(participation, first)
    after = add_to_windows(before, charges(participation, later, 1))
    random.shuffle(later)
    returned = add_to_windows(after, charges(participation, later, -1))
    assert returned.common == before.common
    assert {place: one for place, one in returned.windows.items() if one != Totals()} == {
        place: one for place, one in before.windows.items() if one != Totals()
    }
    for periods, _ in later:
        assert periods is None or set(places_of(participation, periods).members) <= set(returned.windows)


def charges(participation: Offsets, releases: list[Release], count: int) -> list[tuple[PeriodSet, Price, int]]:
    return [(places_of(participation, periods), one, count) for periods, one in releases]


@pytest.mark.parametrize("held", [False, True])
@given(seed=seeds)
def test_one_amount_is_charged_to_all_windows(held: bool, seed: int) -> None:
    """Exact where each window allows it, else rounded up once, whatever the order of the windows."""
    random = Random(seed)
    several = []
    for _ in range(3):
        bottom = random.choice((1, 10**18, 3**20, 7**60, 2**190))
        several.append(Totals(epsilon=LossSum(Fraction(1, bottom)), delta=Fraction(1, bottom)))
    bottom = random.choice((1, 3, 10**30, 5**70, 8191**9))
    asked = Price(Fraction(1, bottom), None, Fraction(1, bottom), Fraction(0), ())
    found = price_as_charged_to_windows(several, asked, held=held)
    assert found == price_as_charged_to_windows(several[::-1], asked, held=held)
    assert is_charge_of(found, asked)
    alone = [price_as_charged(one, asked, held=held) for one in several]
    assert found.epsilon == max(one.epsilon for one in alone if one.epsilon is not None)
    assert found.delta == max(one.delta for one in alone)


@pytest.mark.parametrize("seed", range(4))
def test_the_worst_of_many_windows_is_the_first_with_the_largest_figure_over_all_orders(seed: int) -> None:
    random, budget = Random(seed), budget_of(Definition.APPROXIMATE, Fraction(1))
    weights = open_weights(budget)
    several = [
        price(mechanism, Neighbouring.ADD_REMOVE, weights.orders)
        for mechanism in (DiscreteGaussian(sigma_squared=Fraction(50)), Geometric(scale=Fraction(10)))
    ]
    several.append(Price(None, Fraction(1), Fraction(0), Fraction(0), (*(None,) * 200, *(QUANTA // 20,) * 50)))
    windows = {place: add_prices(Totals(), [(one, random.choice((0, 1, 3))) for one in several]) for place in range(60)}
    for common in (Totals(), add_price(Totals(), several[seed % 3])):
        whole = {place: add_totals(common, totals) for place, totals in windows.items()}
        largest = max(figure(budget, weights, totals) for totals in whole.values())
        first = min(place for place, totals in whole.items() if figure(budget, weights, totals) == largest)
        found = worst(budget, weights, by_month(Offsets((0,))), WindowTotals(common, windows))
        assert figure(budget, weights, common) < largest
        assert found == Worst(first, whole[first])


PANEL = Offsets((0, 1, 2, 3, 12, 13, 14, 15))


@pytest.mark.parametrize("seed", range(3))
def test_the_worst_window_of_a_panel_is_the_largest_of_all_sixteen_month_patterns(seed: int) -> None:
    """Four months in the sample, eight out, four in: random monthly releases, quarterly ones and yearly ones."""
    random, budget = Random(seed), budget_of(Definition.ZCDP, Fraction(1))
    releases: list[tuple[frozenset[int], Fraction]] = []
    for _ in range(60):
        first, length = random.randrange(48), random.choice((1, 1, 1, 3, 12))
        releases.append((frozenset(range(first, first + length)), Fraction(random.randrange(1, 100), 1000)))
    charged = [
        (places_of(PANEL, months), Price(None, rho, Fraction(0), Fraction(0), ()), 1) for months, rho in releases
    ]
    found = worst(budget, Weights(), by_month(PANEL), add_to_windows(WindowTotals(), charged))
    by_start = {}
    for start in range(-16, 64):
        pattern = {start + month for month in range(16) if not 4 <= month < 12}
        by_start[start] = sum((rho for months, rho in releases if months & pattern), Fraction(0))
    assert found.totals.rho.value == max(by_start.values())
    assert by_start[found.place or 0] == max(by_start.values())


def of_rho(rho: str) -> Price:
    return price(DiscreteGaussian(sigma_squared=1 / (2 * Fraction(rho))), Neighbouring.ADD_REMOVE, ())


def test_a_window_is_filled_exactly_and_the_others_keep_their_room() -> None:
    budget, sliding = Budget(definition=Definition.ZCDP, cap=Fraction(1)), Offsets((0, 1))
    totals = WindowTotals()
    for _ in range(10):
        charge = (places_of(sliding, frozenset({5})), of_rho("0.1"), 1)
        assert shortfalls_by_window(budget, Weights(), totals, charge) == []
        totals = add_to_windows(totals, [charge])

    def refusal(periods: Months, rho: str) -> list[WindowShortfall]:
        return shortfalls_by_window(budget, Weights(), totals, (places_of(sliding, periods), of_rho(rho), 1))

    tiny = Shortfall("rho", Fraction(1, 10**9), Fraction(0))
    assert refusal(frozenset({5}), "1e-9") == [WindowShortfall(4, tiny)]
    assert refusal(frozenset({6}), "1e-9") == [WindowShortfall(5, tiny)]  # a unit in 5 and 6
    assert refusal(None, "1e-9") == [WindowShortfall(4, tiny)]
    assert refusal(frozenset({7}), "1") == refusal(frozenset({3}), "1") == []
    assert refusal(frozenset({7}), "1.5") == [WindowShortfall(6, Shortfall("rho", Fraction(3, 2), Fraction(1)))]


def test_a_release_to_all_periods_is_in_windows_that_nothing_else_touched() -> None:
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(1))
    sliding = Offsets((0, 1))
    totals = add_to_windows(WindowTotals(), [(ALL, of_rho("0.75"), 1)])
    assert worst(budget, Weights(), by_month(sliding), totals) == Worst(None, totals.common)
    charge = places_of(sliding, frozenset({9})), of_rho("0.5"), 1
    gap = Shortfall("rho", Fraction(1, 2), Fraction(1, 4))
    assert shortfalls_by_window(budget, Weights(), totals, charge) == [WindowShortfall(8, gap)]
    assert shortfalls_by_window(budget, Weights(), totals, (ALL, of_rho("0.5"), 1)) == [WindowShortfall(None, gap)]


def test_another_window_can_be_worse_in_a_figure_that_the_budget_does_not_cap() -> None:
    """One geometric release of epsilon 1.5 costs more rho than a hundred of 0.03, and half their epsilon."""
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(5))
    once, often = (price(Geometric(scale=1 / Fraction(e)), Neighbouring.ADD_REMOVE, ()) for e in ("1.5", "0.03"))
    totals = add_to_windows(WindowTotals(), [(PeriodSet(((1, 1),)), once, 1), (PeriodSet(((2, 2),)), often, 100)])
    assert worst(budget, Weights(), by_month(Offsets((0,))), totals).place == 1
    assert totals.windows[1].epsilon.finite * 2 == totals.windows[2].epsilon.finite


def test_windows_can_pass_at_orders_of_their_own_where_their_maximum_does_not() -> None:
    budget, weights = (
        budget_of(Definition.APPROXIMATE, Fraction(12)),
        weights_of(budget_of(Definition.APPROXIMATE, Fraction(12))),
    )
    low, high = (
        Price(None, None, Fraction(0), Fraction(0), tuple(QUANTA * nats for nats in curve))
        for curve in ((0, 0, 40), (40, 0, 0))
    )
    totals = add_to_windows(WindowTotals(), [(PeriodSet(((1, 1),)), low, 1), (PeriodSet(((2, 2),)), high, 1)])
    middle = Price(None, None, Fraction(0), Fraction(0), (0, 40 * QUANTA, 0))
    assert shortfalls(budget, weights, Totals(), add_price(maximum(weights, list(totals.windows.values())), middle))
    assert shortfalls_by_window(budget, weights, totals, (ALL, middle, 1)) == []
