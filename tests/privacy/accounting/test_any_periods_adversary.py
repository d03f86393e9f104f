"""Accounts where a unit can be in any periods against the best adaptive adversary, for every set of so many periods.

The optimum over all adversaries is computed as in ``test_windows_adversary``, for each set of periods by itself.
Filters with one fault each have to exceed the guarantee.
"""

from dataclasses import replace
from fractions import Fraction

import pytest

from service.privacy.accounting.leading_windows import leading
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Definition, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_totals
from service.privacy.accounting.windows import WindowTotals
from service.privacy.periods import AnyPeriods, PeriodSet, set_of
from service.privacy.plans.walking import Neighbouring
from tests.privacy.accounting.test_windows_adversary import (
    GRID,
    SLACK,
    Design,
    Filter,
    both,
    declared,
    drawn,
    every,
    filled_by,
    geometric,
    rare,
    used,
)
from tests.privacy.accounting.window_charges import Charge, add_to_windows, shortfalls_of_several

Read = tuple[frozenset[int] | None, ...]


class AnyFilter(Filter):
    """The service's admission where a unit can be in any periods."""

    @property
    def number(self) -> int:
        participation = self.design.participation
        assert isinstance(participation, AnyPeriods)
        return participation.most

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        charge = self.charge(number)
        return not shortfalls_of_several(self.design.budget, self.weights, self.number, before, charge)


@pytest.mark.parametrize(("designs", "least"), [(2, 0.4), pytest.param(4, 0.6, marks=pytest.mark.statistics)])
@both
@every
def test_no_adversary_exceeds_the_guarantee_for_any_set_of_periods(
    definition: Definition, relation: Neighbouring, designs: int, least: float
) -> None:
    reached: list[float] = []
    for seed in range(designs):
        design = replace(drawn(seed, definition, relation), participation=AnyPeriods(1 + seed % 3), depth=3)
        filtered = AnyFilter(design)
        parts = used(filtered)
        assert max(parts) <= 1 + SLACK
        reached.append(max(parts))
    assert max(reached) >= least  # the adversary is not a weak one


class OneTooFew(AnyFilter):
    """One period less than a unit can be in is added up."""

    @property
    def number(self) -> int:
        return super().number - 1


class CommonAmongTheLargest(AnyFilter):
    """Releases to all periods count as one more period, and not beside the largest."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        places, amount, count = self.charge(number)
        windows = {**before.windows, -1: before.common}
        charged = set_of([(-1, -1)]) if places.everything else places
        return not shortfalls_of_several(
            self.design.budget, self.weights, self.number, WindowTotals(Totals(), windows), (charged, amount, count)
        )


class CommonForgotten(AnyFilter):
    """Releases to all periods are left out where others are compared."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        places = self.charge(number)[0]
        return super().is_admitted(before if places.everything else replace(before, common=Totals()), number)


class OnceForEachRelease(AnyFilter):
    """A release over several periods is charged to the first of them alone."""

    def places(self, periods: frozenset[int] | None) -> PeriodSet:
        return super().places(None if periods is None else frozenset({min(periods)}))


class DividedAmongPeriods(AnyFilter):
    """The price of a release is divided by the number of its periods."""

    def charge(self, number: int) -> Charge:
        places, amount, count = super().charge(number)
        part = Fraction(1, 1 if places.everything else places.number)
        quanta = tuple(None if one is None else int(one * part) for one in amount.quanta)
        epsilon, rho = (None if one is None else one * part for one in (amount.epsilon, amount.rho))
        return places, Price(epsilon, rho, amount.delta * part, amount.linear * part, quanta), count


class WorstOthersForgotten(AnyFilter):
    """Of the periods of a unit, those that a release reads are compared, without the worst others."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        places, amount, _ = self.charge(number)
        windows = (
            before.windows
            if places.everything
            else {place: before.windows.get(place, Totals()) for place in places.members}
        )
        found = add_totals(before.common, leading(self.weights, windows, self.number).together)
        return not shortfalls(self.design.budget, self.weights, found, add_price(found, amount))


class OnlyThoseThatLedBefore(AnyFilter):
    """The largest are taken among the periods that led before the charge."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        charge = self.charge(number)
        if charge[0].everything:
            return super().is_admitted(before, number)
        after = add_to_windows(before, [charge]).windows
        led = leading(self.weights, before.windows, self.number).places
        found = leading(self.weights, {place: after[place] for place in led}, self.number).together
        return not shortfalls(self.design.budget, self.weights, Totals(), add_totals(before.common, found))


ANY = AnyPeriods(2)
READ: Read = (None, *map(frozenset, ({0}, {1}, {4})))


def assert_caught(faulty: type[AnyFilter], design: Design) -> None:
    """The fault breaks a promise, and the service's filter breaks none where the same is tried on it."""
    assert max(used(AnyFilter(design))) <= 1 + SLACK
    assert max(used(faulty(design))) > 1.2


@both
@every
@pytest.mark.parametrize(
    ("faulty", "read"),
    [
        (OneTooFew, READ),
        (CommonAmongTheLargest, READ),
        (CommonForgotten, READ),
        (OnceForEachRelease, tuple(map(frozenset, ({0, 4}, {1, 4}, {2, 4})))),
        (DividedAmongPeriods, (frozenset({1, 2, 3}),)),
        (WorstOthersForgotten, READ),
        (OnlyThoseThatLedBefore, READ),
    ],
)
def test_losses_that_are_not_added_up_are_found(
    faulty: type[AnyFilter], read: Read, definition: Definition, relation: Neighbouring
) -> None:
    assert_caught(faulty, replace(filled_by(definition, relation, ANY, 2, read), depth=4))


class DeclaredDeltasOfEachPeriod(AnyFilter):
    """Of the declared deltas, the largest period's is compared."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        places, amount, count = self.charge(number)
        after = add_to_windows(before, [(places, amount, count)])
        most = max(totals.delta for totals in after.windows.values())
        free = {place: replace(totals, delta=Fraction(0)) for place, totals in before.windows.items()}
        return most <= self.design.budget.declared_delta and not shortfalls_of_several(
            self.design.budget,
            self.weights,
            self.number,
            replace(before, windows=free),
            (places, replace(amount, delta=Fraction(0)), count),
        )


@both
@every
def test_declared_deltas_that_are_not_added_up_are_found(definition: Definition, relation: Neighbouring) -> None:
    told = Fraction(1, 100)
    design = filled_by(definition, relation, ANY, 4, ())
    budget = replace(design.budget, declared_delta=told, delta=design.budget.delta and told + design.budget.delta)
    option = declared(1, told)
    moves = ((option, frozenset({0})), (option, frozenset({1})), (option, frozenset({2, 3})))
    assert_caught(DeclaredDeltasOfEachPeriod, replace(design, budget=budget, moves=moves))


class LargestOfOneOrder(AnyFilter):
    """The periods with the largest loss at one order are compared, at all orders."""

    def is_admitted(self, before: WindowTotals, number: int) -> bool:
        after = add_to_windows(before, [self.charge(number)])
        first = self.weights.orders[0]

        def loss(place: int) -> Fraction:
            totals = after.windows[place]
            return totals.linear * first + (totals.quanta[0] if totals.quanta else 0)

        largest = sorted(after.windows, key=loss, reverse=True)[: self.number]
        totals = after.common
        for place in largest:
            totals = add_totals(totals, after.windows[place])
        return not shortfalls(self.design.budget, self.weights, Totals(), totals)


@both
def test_the_largest_at_one_order_bound_no_other(relation: Neighbouring) -> None:
    """Two periods are full by their pure sum; a third has less at low orders, and a loss above the cap by chance."""
    filled = filled_by(Definition.APPROXIMATE, relation, ANY, 2, ())
    option = geometric(12, relation)
    cap = int(filled.budget.cap * GRID)
    chance = rare(cap + 16, relation, 40_000)
    budget = replace(filled.budget, delta=Fraction(1, 10**5))
    moves = ((option, frozenset({0})), (option, frozenset({1})), (chance, frozenset({4})))
    assert_caught(LargestOfOneOrder, replace(filled, budget=budget, moves=moves, depth=4))
