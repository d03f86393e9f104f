"""Equal releases to periods of which a unit can be in any: their number against sums of every set (C-9, C-10)."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

from hypothesis import given, settings, strategies as st

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.journal import Head
from service.ledger.releases.several_capacity import SeveralPeriods
from service.ledger.spending.window_rows import Window
from service.ledger.spending.window_state import WindowState
from service.privacy.accounting.capacity import MOST_COUNTED, most_admitted
from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.privacy_filter import Definition, Weights, shortfalls
from service.privacy.accounting.totals import LossSum, Totals, add_price, add_prices, add_totals
from service.privacy.accounting.windows import price_as_charged_to_windows
from service.privacy.periods import AnyPeriods, Calendar, Periods, set_of
from service.privacy.plans.walking import Neighbouring
from tests.privacy.accounting.test_windows import amount, budget_of, weights_of

_MOST = 30
_ODD = (10**19 + 51, 10**23 + 117, 10**29 + 319, 10**31 + 33)


def _price(random: Random, number_of_orders: int, *, odd: bool) -> Price:
    one = amount(random, number_of_orders)
    if not odd:
        return one
    by = Fraction(10**19, random.choice(_ODD) * random.choice(_ODD))
    epsilon, rho = (None if of is None else of * by for of in (one.epsilon, one.rho))
    return replace(one, epsilon=epsilon, rho=rho, linear=one.linear * by)


def _state(seed: int, definition: Definition, number: int, *, odd: bool) -> tuple[SeveralPeriods, Price]:
    """Releases to one to four of six periods, some of which have totals, and the price that is asked for."""
    random = Random(seed)
    budget = budget_of(definition, Fraction(random.randrange(5, 60)), Fraction(random.randrange(1, 40), 10_000))
    weights, orders = weights_of(budget), len(weights_of(budget).orders)
    prices = [_price(random, orders, odd=odd) for _ in range(3)]
    present = {
        place: Window(committed=add_prices(Totals(), [(random.choice(prices), random.randrange(3))]))
        for place in random.sample(range(6), random.randrange(6))
    }
    common = Window(committed=add_prices(Totals(), [(prices[0], random.randrange(2))]))
    periods = Periods(Calendar.INDEX, AnyPeriods(number))
    windows = WindowState.of(weights, periods, common, present)
    record = AccountRecord(
        1, "people", "person", Neighbouring.ADD_REMOVE, "", budget, "", weights, windows.bound, "open", "", Head(0, ""),
        periods=periods, windows=windows,
    )  # fmt: skip
    places = set_of((one, one) for one in random.sample(range(7), random.randrange(1, 5)))
    asked = replace(_price(random, orders, odd=odd), epsilon=Fraction(random.randrange(1, 9), 8))
    charged = price_as_charged_to_windows(windows.totals_at(places).values(), asked, held=False)
    return SeveralPeriods(record, periods, windows, places, charged, charged == asked), asked


def _largest(weights: Weights, windows: Mapping[int, Totals], number: int, place: int) -> Totals:
    """The largest of each figure over all sets of a period and so many others, in the forms of P-8."""
    some = any(one.quanta for one in windows.values())
    single = len(weights.orders) == 1

    def curve(one: Totals) -> tuple[Fraction, list[Fraction]]:
        quanta = [Fraction(quanta) for quanta in one.quanta or (0,) * len(weights.orders)]
        if single:
            return one.linear + sum(quanta, Fraction(0)) / QUANTA / weights.orders[0], []
        if not some:
            return one.linear, []
        return Fraction(0), [
            quantum - (-one.linear * order * QUANTA) // 1 for quantum, order in zip(quanta, weights.orders, strict=True)
        ]

    def infinite(one: Totals) -> list[int]:
        return list(one.infinite or (0,) * len(weights.orders))

    others = [one for one in windows if one != place]
    sets = [[windows[one] for one in (place, *chosen)] for chosen in combinations(others, min(number - 1, len(others)))]

    def columns(rows: list[list[list[Fraction]]] | list[list[list[int]]]) -> tuple[int, ...]:
        summed = [[sum(column) for column in zip(*rows_of, strict=True)] for rows_of in rows]
        return tuple(int(max(column)) for column in zip(*summed, strict=True))

    return Totals(
        epsilon=LossSum(
            max(sum((one.epsilon.finite for one in some_set), Fraction(0)) for some_set in sets),
            max(sum(one.epsilon.infinite for one in some_set) for some_set in sets),
        ),
        rho=LossSum(
            max(sum((one.rho.finite for one in some_set), Fraction(0)) for some_set in sets),
            max(sum(one.rho.infinite for one in some_set) for some_set in sets),
        ),
        delta=max(sum((one.delta for one in some_set), Fraction(0)) for some_set in sets),
        linear=max(sum((curve(one)[0] for one in some_set), Fraction(0)) for some_set in sets),
        quanta=columns([[curve(one)[1] for one in some_set] for some_set in sets]),
        infinite=columns([[infinite(one) for one in some_set] for some_set in sets]),
    )


def _after(several: SeveralPeriods, number: int) -> dict[int, Totals]:
    before = {place: several.windows.present.get(place, Window()).totals for place in range(7)}
    return {
        place: add_prices(one, [(several.amount, number)]) if place in several.places else one
        for place, one in before.items()
    }


def _admitted(several: SeveralPeriods, number: int) -> bool:
    """Tell whether each period that is read, with the worst others in each figure by itself, fits."""
    account, windows = several.account, _after(several, number)
    most = several.periods.several or 1
    return not any(
        shortfalls(
            account.budget,
            account.weights,
            Totals(),
            add_totals(several.windows.common.totals, _largest(account.weights, windows, most, place)),
        )
        for place in several.places.members
    )


_seeds, _numbers = st.integers(0, 2**40), st.integers(1, 4)
_definitions = st.sampled_from(list(Definition))


@settings(max_examples=80, deadline=None)
@given(_seeds, _definitions, _numbers)
def test_the_number_is_that_of_all_sets_of_periods(seed: int, definition: Definition, number: int) -> None:
    """Statement C-9: as many as fit one by one, and no set of periods of one unit has more than its budget."""
    several, _ = _state(seed, definition, number, odd=False)
    expected = next((one for one in range(_MOST) if not _admitted(several, one + 1)), _MOST)
    counted = several.count(MOST_COUNTED + 1)
    assert min(counted, _MOST) == expected
    for most in range(3):
        assert several.count(most) == min(most, expected)
    if counted <= MOST_COUNTED:
        assert several.limit_after(counted).shortfalls
    if 0 < expected < _MOST:
        _no_set_has_more_than_its_budget(several, expected)


def _no_set_has_more_than_its_budget(several: SeveralPeriods, number: int) -> None:
    """Against the true totals of each set of periods, to which each further release counts once."""
    account, before = several.account, _after(several, 0)
    for unit in combinations(range(7), several.periods.several or 1):
        if any(place in several.places for place in unit):
            held = several.windows.common.totals
            for place in unit:
                held = add_totals(held, before[place])
            held = add_prices(held, [(several.amount, number)])
            assert not shortfalls(account.budget, account.weights, Totals(), held)


@settings(max_examples=80, deadline=None)
@given(_seeds, _definitions, st.integers(2, 4))
def test_releases_are_admitted_one_by_one_where_sums_are_rounded(
    seed: int, definition: Definition, number: int
) -> None:
    """Statement C-9 with P-12: every release that is counted is admitted, at the amount that it is charged then."""
    several, asked = _state(seed, definition, number, odd=True)
    counted = several.count(_MOST)
    windows, account = several.windows, several.account
    for _ in range(counted):
        charged = price_as_charged_to_windows(windows.totals_at(several.places).values(), asked, held=False)
        one = replace(several, windows=windows, amount=charged)
        assert one._admits(1)
        windows = windows.charged(account.weights, several.places, 1, committed=[(charged, 1)])
    if several.exact and counted < _MOST:
        assert replace(several, windows=windows).count(1) == 0
    if counted < _MOST:
        assert several.limit_after(counted).shortfalls


@settings(max_examples=80, deadline=None)
@given(_seeds, _definitions, _numbers)
def test_the_parts_are_those_of_the_worst_period(seed: int, definition: Definition, number: int) -> None:
    """Statement C-10."""
    several, _ = _state(seed, definition, number, odd=False)
    account, common = several.account, several.windows.common.totals
    for count in (0, 1, 5):
        totals = several.totals_after(count)
        admitted = not any(shortfalls(account.budget, account.weights, Totals(), one) for one in totals)
        assert admitted == _admitted(several, count)
    unused = replace(several, windows=WindowState(several=number))
    each = {place: add_price(Totals(), several.amount) for place in several.places.members}
    alone = _largest(account.weights, each, number, next(iter(each)))
    assert add_totals(common, several.sum_alone()) == add_totals(common, alone)
    assert [one.epsilon for one in unused.totals_after(1)] == [several.sum_alone().epsilon]


@given(st.integers(0, 60), st.integers(0, 60), st.lists(st.integers(0, 80), max_size=4))
def test_the_last_number_is_found_whatever_is_guessed(last: int, upto: int, guesses: list[int]) -> None:
    asked: list[int] = []

    def admits(number: int) -> bool:
        asked.append(number)
        return number <= last

    assert most_admitted(admits, guesses, upto) == min(last, upto)
    assert all(1 <= number <= upto for number in asked)
    assert len(asked) == len(set(asked)) <= len(guesses) + 6
