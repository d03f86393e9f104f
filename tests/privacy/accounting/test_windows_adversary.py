"""Accounts with periods against the best adaptive adversary, for every set of periods that a unit may be in.

An adversary picks each release, and the periods that it reads, after seeing the earlier outputs. What the account
admits is decided by the service's own functions. The largest risk that the adversary can then reach is computed by
induction (``tests/oracles/windows.py``): the optimum over all adversaries with these mechanisms, not a sample of them.
It is compared with the guarantee that the budget promises. Filters with one fault each have to exceed it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.privacy.accounting.pricing import Price, price
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    open_weights,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import Totals, add_price, add_prices
from service.privacy.accounting.windows import WindowTotals, price_as_charged_to_windows
from service.privacy.mechanisms import Declaration, Declared, Geometric, RandomizedResponse
from service.privacy.periods import ALL, AnyPeriods, Offsets, Participation, PeriodSet, set_of, touched
from service.privacy.plans import Plan
from service.privacy.plans.walking import Neighbouring
from tests.oracles.windows import (
    Mechanism,
    Periods,
    largest_risk,
    response,
    sets_of_any,
    sets_of_offsets,
    told_or,
    twice,
)
from tests.privacy.accounting.window_charges import Charge, add_to_windows, shortfalls_by_window

Doubles = NDArray[Any]
ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
GRID = 16  # losses are multiples of 1/16, which doubles add exactly
CALENDAR = range(5)
_DECLARED_AT = [1 + 1.25**k for k in range(-10, 22)]
SLACK = 1e-9  # of doubles; a filter with a fault exceeds its bound by far more


@dataclass(frozen=True)
class Option:
    """A mechanism as the service prices it, and the law of its loss."""

    plan: Plan
    law: Mechanism


def geometric(loss: int, relation: Neighbouring) -> Option:
    """On one cell, which moves by 1; a replaced record moves two."""
    law = response(loss, 2, 1 / GRID)
    return Option(Geometric(scale=Fraction(GRID, loss)), law if relation is ADD else twice(law))


def rare(loss: int, relation: Neighbouring, values: int = 2) -> Option:
    """Response on so many values: the more there are, the rarer is the loss.

    Under add_remove, a mechanism with that law and a declared curve, which is never below the true one.
    """
    epsilon, law = Fraction(loss, GRID), response(loss, values, 1 / GRID)
    if relation is REPLACE:
        return Option(RandomizedResponse(epsilon=epsilon, values=values), law)
    curve = tuple(
        (Fraction(order), Fraction(law.divergence(order, 1 / GRID) * (1 + 1e-9) + 1e-12)) for order in _DECLARED_AT
    )
    promise = Declaration(epsilon=epsilon, rho=None, rdp=curve)
    return Option(Declared(guarantee=promise, reference="a proof"), law)


def declared(loss: int, delta: Fraction) -> Option:
    """The worst that a declared (epsilon, delta) can be."""
    promise = Declaration(epsilon=Fraction(loss, GRID), delta=delta)
    law = told_or(float(delta), response(loss, 2, 1 / GRID))
    return Option(Declared(guarantee=promise, reference="a proof"), law)


@dataclass(frozen=True)
class Design:
    """A budget, a participation, and what an adversary may choose from; ``voided`` are releases that never run."""

    budget: Budget
    relation: Neighbouring
    participation: Participation
    moves: tuple[tuple[Option, Periods], ...]
    voided: tuple[tuple[Option, Periods], ...] = ()
    depth: int = 4

    @property
    def units(self) -> list[frozenset[int]]:
        """The sets of periods that a unit may be in, as far as they are in the calendar."""
        if isinstance(self.participation, AnyPeriods):
            return sets_of_any(self.participation.most, CALENDAR)
        return sets_of_offsets(self.participation.offsets, CALENDAR)


History = tuple[int, ...]


@dataclass
class Filter:
    """The service's admission. The order of charges does not matter, so a state is the moves so far, in order."""

    design: Design
    weights: Weights = field(init=False)
    prices: list[Price] = field(init=False)
    states: dict[History, WindowTotals] = field(default_factory=dict)
    answers: dict[tuple[History, int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = open_weights(self.design.budget)
        options = [*self.design.moves, *self.design.voided]
        self.prices = [price(option.plan, self.design.relation, self.weights.orders) for option, _ in options]

    def places(self, periods: Periods) -> PeriodSet:
        read = ALL if periods is None else set_of((one, one) for one in periods)
        return touched(self.design.participation, read)

    def charge(self, number: int) -> Charge:
        _, periods = [*self.design.moves, *self.design.voided][number]
        return self.places(periods), self.prices[number], 1

    def added(self, before: WindowTotals, number: int) -> WindowTotals:
        places, asked, count = self.charge(number)
        amount = price_as_charged_to_windows([before.common, *before.windows.values()], asked, held=False)
        assert amount == asked  # all figures are short here, so that the order of charges does not matter
        return add_to_windows(before, [(places, amount, count)])

    def void(self, before: WindowTotals, after: WindowTotals, number: int) -> WindowTotals:
        places, amount, count = self.charge(number)
        return add_to_windows(after, [(places, amount, -count)])

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        design = self.design
        return not shortfalls_by_window(design.budget, self.weights, before, self.charge(number))

    def totals(self, history: History) -> WindowTotals:
        if history not in self.states:
            before, number = self.totals(history[:-1]) if history else WindowTotals(), history[-1] if history else None
            after = before if number is None else self.added(before, number)
            if number is not None and number >= len(self.design.moves):
                after = self.void(before, after, number)
            self.states[history] = after
        return self.states[history]

    def follow(self, history: History, number: int) -> History | None:
        """Return the state after a move, or None where it is refused."""
        if (history, number) not in self.answers:
            self.answers[history, number] = self.is_admitted(self.totals(history), number)
        if not self.answers[history, number]:
            return None
        return tuple(sorted((*history, number)))


def risk(filtered: Filter, value: Callable[[Doubles], Doubles], *, told: float, given_nothing_told: bool) -> float:
    """The largest over all units of the best adversary's expected value."""
    design = filtered.design
    moves: list[tuple[Mechanism | None, Periods]] = [
        (option.law.given_that_nothing_is_told() if given_nothing_told else option.law, periods)
        for option, periods in design.moves
    ]
    moves += [(None, periods) for _, periods in design.voided]
    start: History = ()
    return max(
        largest_risk(start, filtered.follow, moves, unit, design.depth, value, 1 / GRID, told) for unit in design.units
    )


def used(filtered: Filter) -> list[float]:
    """The risk as a part of what each promise of the budget allows; above 1 a promise is broken.

    Pure and (epsilon, delta): delta at the cap, under pure that of the declared deltas alone. zCDP and RDP: the
    probability that anything is told. All but (epsilon, delta): the Rényi divergence where nothing is told.
    """
    budget = filtered.design.budget
    cap = float(budget.cap)
    allowed = float(budget.delta if budget.definition is Definition.APPROXIMATE else budget.declared_delta)
    parts = []
    if budget.definition in (Definition.PURE, Definition.APPROXIMATE):
        parts.append(_part(risk(filtered, partial(_beyond, cap), told=1.0, given_nothing_told=False), allowed))
    else:
        parts.append(_part(risk(filtered, np.zeros_like, told=1.0, given_nothing_told=False), allowed))
    for order, most in _divergences(budget):
        moment = risk(filtered, partial(_moment, order), told=0.0, given_nothing_told=True)
        parts.append(math.log(moment) / ((order - 1) * most))
    return parts


def _divergences(budget: Budget) -> list[tuple[float, float]]:
    """Orders, and the most that the budget allows there."""
    cap = float(budget.cap)
    match budget.definition:
        case Definition.PURE:
            return [(100.0, cap)]
        case Definition.ZCDP:
            return [(order, order * cap) for order in (1.05, 2.0, 5.0, 20.0)]
        case Definition.RDP:
            return [(float(order), cap) for order in open_weights(budget).orders]
    return []


def _beyond(cap: float, losses: Doubles) -> Doubles:
    return np.asarray(np.where(losses > cap, -np.expm1(np.minimum(cap - losses, 0.0)), 0.0))


def _moment(order: float, losses: Doubles) -> Doubles:
    return np.asarray(np.exp((order - 1) * losses))


def _part(reached: float, allowed: float) -> float:
    return reached / allowed if allowed else (math.inf if reached else 0.0)


def _drawn_participation(random: Random) -> Offsets:
    return Offsets((0, *sorted(random.sample(range(1, 5), random.randrange(4)))))


def _drawn_periods(random: Random) -> list[Periods]:
    """All, two ranges, and two sets of any periods."""
    ranges = [sorted(random.choices(CALENDAR, k=2)) for _ in range(2)]
    sets = [random.sample(CALENDAR, random.randrange(1, 4)) for _ in range(2)]
    return [None, *(frozenset(range(first, last + 1)) for first, last in ranges), *map(frozenset, sets)]


def _drawn_options(random: Random, relation: Neighbouring) -> list[Option]:
    """Two mechanisms of moderate losses."""
    return [random.choice((geometric, rare))(random.randrange(2, 17), relation) for _ in range(2)]


def _riskiest(budget: Budget, relation: Neighbouring) -> Option:
    """The response with the largest delta at the cap, of those that an empty account admits."""
    weights = open_weights(budget)

    def is_admitted(loss: int, values: int) -> bool:
        after = add_price(Totals(), price(rare(loss, relation, values).plan, relation, weights.orders))
        return not shortfalls(budget, weights, Totals(), after)

    def fewest_values(loss: int) -> int:
        low, high = 1, 2**40
        while high - low > 1 + low // 50:
            middle = math.isqrt(low * high)
            low, high = (low, middle) if is_admitted(loss, middle) else (middle, high)
        return high

    cap = int(budget.cap * GRID)
    found = [rare(loss, relation, fewest_values(loss)) for loss in range(cap + 4, cap + 40, 6)]
    return max(
        found,
        key=lambda option: float(_beyond(cap / GRID, np.array(option.law.largest / GRID)) * option.law.atoms[0][1]),
    )


def drawn(seed: int, definition: Definition, relation: Neighbouring) -> Design:
    """A random design. Caps other than (epsilon, delta) ones are filled exactly by some of the mechanisms."""
    random = Random(f"{seed} {definition} {relation}")
    told = Fraction(1, 1000) if seed % 3 == 2 else Fraction(0)
    room = told * random.choice((1, 2))
    options = _drawn_options(random, relation)
    if told:
        options.append(declared(random.randrange(1, 9), told))
    if definition is Definition.APPROXIMATE:
        cap = random.randrange(8, 33)
        delta = Fraction(1, 10 ** random.randrange(2, 5)) + room
        budget = Budget(definition=definition, cap=Fraction(cap, GRID), delta=delta, declared_delta=room)
        options[0] = _riskiest(budget, relation)
    else:
        alpha = Fraction(random.choice((2, 3, 10))) if definition is Definition.RDP else None
        budget = Budget(definition=definition, cap=Fraction(0), declared_delta=room, alpha=alpha)
        weights = open_weights(budget)
        total = Totals()
        for option in random.choices(options, k=random.choice((2, 3))):
            total = add_price(total, price(option.plan, relation, weights.orders))
        cap_filled = spent_of_cap(budget, weights, total)
        assert cap_filled is not None
        budget = replace(budget, cap=cap_filled)
    several = _drawn_periods(random)
    moves = tuple((option, periods) for option in options for periods in several)
    return Design(budget, relation, _drawn_participation(random), moves)


@pytest.mark.parametrize(("designs", "least"), [(2, 0.4), pytest.param(6, 0.6, marks=pytest.mark.statistics)])
@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("definition", Definition)
def test_no_adversary_exceeds_the_guarantee_for_any_unit(
    definition: Definition, relation: Neighbouring, designs: int, least: float
) -> None:
    reached: list[float] = []
    for seed in range(designs):
        filtered = Filter(drawn(seed, definition, relation))
        parts = used(filtered)
        assert max(parts) <= 1 + SLACK
        reached.append(max(parts))
    assert max(reached) >= least  # the adversary is not a weak one


class OnlyTheFirstPeriod(Filter):
    """A release is charged to the windows of its first period alone."""

    def places(self, periods: Periods) -> PeriodSet:
        return super().places(None if periods is None else frozenset({min(periods)}))


class ForgetsAll(Filter):
    """A release to all periods touches nothing."""

    def places(self, periods: Periods) -> PeriodSet:
        return PeriodSet() if periods is None else super().places(periods)

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        return not self.charge(number)[0].ranges or super().is_admitted(before, number)


class AllInWindowsThatExist(Filter):
    """A release to all periods is charged to the windows that others touched before, and to none that comes later."""

    def added(self, before: WindowTotals, number: int) -> WindowTotals:
        after = super().added(before, number)
        places, amount, _ = self.charge(number)
        if not places.everything:
            return after
        return add_to_windows(before, [(set_of((one, one) for one in before.windows), amount, 1)])


class WithoutTheLowestWindow(Filter):
    """Of the windows that a release touches, the one at the lower end of the range is left out."""

    def places(self, periods: Periods) -> PeriodSet:
        found = super().places(periods)
        return found if found.everything else set_of((one, one) for one in list(found.members)[1:])


class WithoutTheHighestWindow(Filter):
    """Of the windows that a release touches, the one at the upper end of the range is left out."""

    def places(self, periods: Periods) -> PeriodSet:
        found = super().places(periods)
        return found if found.everything else set_of((one, one) for one in list(found.members)[:-1])


class NoWindowBeforeTheFirstPeriod(Filter):
    """Windows begin at the calendar's first period."""

    def places(self, periods: Periods) -> PeriodSet:
        found = super().places(periods)
        return found if found.everything else set_of((one, one) for one in found.members if one in CALENDAR)


class GivesBackToAllWindows(Filter):
    """A release that never runs gives its amount back in every window."""

    def void(self, before: WindowTotals, after: WindowTotals, number: int) -> WindowTotals:
        amount = self.charge(number)[1]
        fitting = [
            place
            for place, totals in after.windows.items()
            if not add_prices(totals, [(amount, -1)]).is_below_zero  # the ledger would refuse the others
        ]
        return add_to_windows(after, [(set_of((one, one) for one in fitting), amount, -1)])


class DeclaredDeltasOfAllAlone(Filter):
    """The declared deltas are compared for releases to all periods alone."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        windows = {place: replace(totals, delta=Fraction(0)) for place, totals in before.windows.items()}
        return super().is_admitted(replace(before, windows=windows), number)


GAPS = Offsets((0, 2, 3))  # window -2 holds 0 and 1 of the calendar, which no window from 0 on does
READ: tuple[Periods, ...] = (None, *map(frozenset, ({0}, {1}, {4}, {1, 2}, {2, 3}, {0, 4})))


def filled_by(
    definition: Definition,
    relation: Neighbouring,
    participation: Participation,
    charges: int,
    read: tuple[Periods, ...],
) -> Design:
    """A budget that so many charges of one mechanism fill exactly, (epsilon, delta) ones by their pure sum."""
    option = geometric(12, relation)
    budget = Budget(
        definition=definition,
        cap=Fraction(0),
        delta=Fraction(definition is Definition.APPROXIMATE, 1000),
        alpha=Fraction(3) if definition is Definition.RDP else None,
    )
    notion = Definition.PURE if definition is Definition.APPROXIMATE else definition
    orders = (Fraction(3),) if definition is Definition.RDP else ()
    total = add_prices(Totals(), [(price(option.plan, relation, orders), charges)])
    cap = spent_of_cap(replace(budget, definition=notion), Weights(orders), total)
    assert cap is not None
    moves = tuple((option, periods) for periods in read)
    return Design(replace(budget, cap=cap), relation, participation, moves)


both = pytest.mark.parametrize("relation", Neighbouring)
every = pytest.mark.parametrize("definition", Definition)


def assert_caught(faulty: type[Filter], design: Design) -> None:
    """The fault breaks a promise, and the service's filter breaks none where the same is tried on it."""
    assert max(used(Filter(design))) <= 1 + SLACK
    assert max(used(faulty(design))) > 1.2


@both
@every
@pytest.mark.parametrize(
    "faulty",
    [
        OnlyTheFirstPeriod,
        ForgetsAll,
        AllInWindowsThatExist,
        WithoutTheLowestWindow,
        WithoutTheHighestWindow,
        NoWindowBeforeTheFirstPeriod,
    ],
)
def test_windows_that_are_left_out_are_found(
    faulty: type[Filter], definition: Definition, relation: Neighbouring
) -> None:
    assert_caught(faulty, replace(filled_by(definition, relation, GAPS, 1, READ), depth=3))


@both
@every
def test_an_amount_that_is_given_back_where_it_was_not_charged_is_found(
    definition: Definition, relation: Neighbouring
) -> None:
    design = filled_by(definition, relation, GAPS, 2, (frozenset({0}),))
    assert_caught(GivesBackToAllWindows, replace(design, voided=((design.moves[0][0], frozenset({4})),)))


@both
@every
def test_declared_deltas_that_are_compared_in_no_window_are_found(
    definition: Definition, relation: Neighbouring
) -> None:
    told = Fraction(1, 100)
    design = filled_by(definition, relation, GAPS, 4, ())
    budget = replace(design.budget, declared_delta=told, delta=design.budget.delta and told + design.budget.delta)
    option = declared(1, told)
    moves = ((option, None), (option, frozenset({0})), (option, frozenset({1, 2})))
    assert_caught(DeclaredDeltasOfAllAlone, replace(design, budget=budget, moves=moves))
