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

import numpy as np
import pytest

from service.privacy.accounting.pricing import Price, price
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    open_weights,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.accounting.windows import (
    Charge,
    WindowTotals,
    add_to_windows,
    price_as_charged_to_windows,
    shortfalls_by_window,
    worst,
)
from service.privacy.mechanisms import Declaration, Declared, Geometric, RandomizedResponse
from service.privacy.periods import ALL, AnyOf, Offsets, Participation, PeriodSet, set_of, touched
from service.privacy.plans import Plan
from service.privacy.plans.walking import Neighbouring
from tests.oracles.windows import (
    Doubles,
    Mechanism,
    Periods,
    largest_risk,
    response,
    sets_of_at_most,
    sets_of_offsets,
    told_or,
    twice,
)

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
GRID = 16  # losses are multiples of 1/16, which doubles add exactly
CALENDAR = range(5)
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


def two_cells(loss: int) -> Option:
    """Under add_remove."""
    return Option(Geometric(scale=Fraction(GRID, loss), cells=2), twice(response(loss, 2, 1 / GRID)))


def response_of(loss: int, values: int = 2) -> Option:
    """Under replace_one."""
    return Option(
        RandomizedResponse(epsilon=Fraction(loss, GRID), values=values, name="r"), response(loss, values, 1 / GRID)
    )


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
        if isinstance(self.participation, AnyOf):
            return sets_of_at_most(self.participation.most, CALENDAR)
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
        amount = price_as_charged_to_windows([before.common, *before.windows.values()], asked)
        assert amount == asked  # all figures are short here, so that the order of charges does not matter
        return add_to_windows(before, [(places, amount, count)])

    def void(self, before: WindowTotals, after: WindowTotals, number: int) -> WindowTotals:
        places, amount, count = self.charge(number)
        return add_to_windows(after, [(places, amount, -count)])

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        design = self.design
        return not shortfalls_by_window(design.budget, self.weights, design.participation, before, self.charge(number))

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

    Pure and (epsilon, delta): delta at the cap, which declared deltas alone may reach under pure. zCDP and RDP: the
    Rényi divergence where nothing is told, at orders from 1.05 on, and the probability that anything is.
    """
    budget = filtered.design.budget
    cap = float(budget.cap)
    if budget.definition in (Definition.PURE, Definition.APPROXIMATE):
        allowed = float(budget.delta if budget.definition is Definition.APPROXIMATE else budget.declared_delta)
        beyond = partial(_beyond, cap)
        return [_part(risk(filtered, beyond, told=1.0, given_nothing_told=False), allowed)]
    told = risk(filtered, np.zeros_like, told=1.0, given_nothing_told=False)
    orders = [float(budget.alpha)] if budget.alpha is not None else [1.05, 2.0, 5.0, 20.0]
    parts = [_part(told, float(budget.declared_delta))]
    for order in orders:
        moment = risk(filtered, partial(_moment, order), told=0.0, given_nothing_told=True)
        parts.append(math.log(moment) / ((order - 1) * cap * (1 if budget.alpha is not None else order)))
    return parts


def _beyond(cap: float, losses: Doubles) -> Doubles:
    return np.asarray(np.where(losses > cap, -np.expm1(np.minimum(cap - losses, 0.0)), 0.0))


def _moment(order: float, losses: Doubles) -> Doubles:
    return np.asarray(np.exp((order - 1) * losses))


def _part(reached: float, allowed: float) -> float:
    return reached / allowed if allowed else (math.inf if reached else 0.0)


def _drawn_participation(random: Random) -> Participation:
    if random.random() < 0.4:
        return AnyOf(random.choice((1, 2)))
    return Offsets((0, *sorted(random.sample(range(1, 5), random.randrange(4)))))


def _drawn_periods(random: Random) -> list[Periods]:
    """All, two ranges, and two sets of any periods."""
    ranges = [sorted(random.choices(CALENDAR, k=2)) for _ in range(2)]
    sets = [random.sample(CALENDAR, random.randrange(1, 4)) for _ in range(2)]
    return [None, *(frozenset(range(first, last + 1)) for first, last in ranges), *map(frozenset, sets)]


def _drawn_options(random: Random, relation: Neighbouring, told: Fraction) -> list[Option]:
    """Three mechanisms, the last with a declared delta if there is room for any."""
    loss = partial(random.randrange, 2, 17)
    kinds: list[Callable[[], Option]] = [lambda: geometric(loss(), relation)]
    if relation is ADD:
        kinds.append(lambda: two_cells(loss()))
    else:
        kinds += [lambda: response_of(loss()), lambda: response_of(loss() + 16, random.randrange(3, 2000))]
    options = [random.choice(kinds)() for _ in range(3)]
    return [*options[:2], declared(loss() // 2, told)] if told else options


def drawn(seed: int, definition: Definition, relation: Neighbouring) -> Design:
    """A random design. Caps other than (epsilon, delta) ones are filled exactly by some of the mechanisms."""
    random = Random(f"{seed} {definition} {relation}")
    told = Fraction(1, 1000) if seed % 3 == 2 else Fraction(0)
    options = _drawn_options(random, relation, told)
    room = told * random.choice((1, 2))
    if definition is Definition.APPROXIMATE:
        delta = Fraction(1, 10 ** random.randrange(2, 5)) + room
        budget = Budget(
            definition=definition, cap=Fraction(random.randrange(8, 33), GRID), delta=delta, declared_delta=room
        )
    else:
        alpha = Fraction(random.choice((2, 3, 10))) if definition is Definition.RDP else None
        budget = Budget(definition=definition, cap=Fraction(0), declared_delta=room, alpha=alpha)
        weights = open_weights(budget)
        total = Totals()
        for option in random.choices(options, k=random.choice((2, 3))):
            total = add_price(total, price(option.plan, relation, weights.orders))
        cap = spent_of_cap(budget, weights, total)
        assert cap is not None
        budget = replace(budget, cap=cap)
    moves = tuple((option, periods) for option in options for periods in _drawn_periods(random))
    return Design(budget, relation, _drawn_participation(random), moves)


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("definition", Definition)
def test_no_adversary_exceeds_the_guarantee_for_any_unit(definition: Definition, relation: Neighbouring) -> None:
    reached: list[float] = []
    for seed in range(6):
        filtered = Filter(drawn(seed, definition, relation))
        parts = used(filtered)
        assert max(parts) <= 1 + SLACK
        reached.append(max(parts))
    assert max(reached) >= 0.6  # the adversary is not a weak one
