"""Sums of the largest totals of windows, which bound the loss of units that can be in several windows.

Each figure is summed by itself, so the sums of the k largest bound every set of k windows (P-9 in
``docs/mathematics/periods.md``). Only a few windows determine these sums: the leading windows. After a charge, the
leading windows are among those that led before and those that were charged (P-10).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    deciding_order,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import (
    COARSE,
    COARSE_DELTA,
    FINE_DENOMINATOR,
    LossSum,
    Totals,
    add_price,
    add_totals,
)
from service.privacy.accounting.windows import comparable_curves, excess

_NOTHING = Totals()
Ranked = Sequence[int]
"""The numbers of the largest values above 0 in a list, the largest first."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The largest totals of windows, of which a unit is in at most ``number``.

    Attributes:
        number: the largest number of windows of one unit.
        others: for each figure the sum of its ``number`` - 1 largest values; rational sums are rounded up as in P-12.
        last: for each figure its next largest value.
        places: the places of the windows with these values, and of the first window whose curve has quanta, ascending.
    """

    number: int
    others: Totals
    last: Totals
    places: tuple[int, ...]

    @property
    def together(self) -> Totals:
        """Upper bounds of the sum of any ``number`` windows."""
        return add_totals(self.others, self.last)

    def beside(self, weights: Weights, own: Totals) -> Totals:
        """Return upper bounds of the sum of one of these windows, with totals ``own``, and any others (P-11)."""
        if self.number == 1:
            return own
        others, last, one = comparable_curves(weights, [self.others, self.last, own])
        return add_totals(others, _minimum(last, one))


def leading(weights: Weights, windows: Mapping[int, Totals], number: int) -> Leading:
    """Return the largest totals of windows, of which a unit is in at most ``number``.

    Among windows with an equal figure, the one with the larger linear part leads, then the one with the larger rho,
    then the one at the lower place. So the result depends on the totals alone, and not on the windows that led before.
    """
    some = sorted(place for place, totals in windows.items() if totals != _NOTHING)
    places = _in_order(windows, some)
    several = comparable_curves(weights, [windows[place] for place in places])
    chosen: set[int] = set()

    def rational(figure: Callable[[Totals], Fraction], steps: int = COARSE) -> tuple[Fraction, Fraction]:
        values = [figure(one) for one in several]
        top = _largest(_whole(values), number)
        chosen.update(top)
        rest = _sum_up([values[place] for place in top[: number - 1]], steps)
        return rest, values[top[-1]] if len(top) == number else Fraction(0)

    def counts(figure: Callable[[Totals], int]) -> tuple[int, int]:
        others, last = _columns([(figure(one),) for one in several], number, chosen)
        return sum(others), sum(last)  # of one column, or of none

    def curve(figure: Callable[[Totals], tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        others, last = _columns([figure(one) for one in several], number, chosen)
        return _normal(others), _normal(last)

    pairs = {
        "epsilon": rational(lambda one: one.epsilon.finite),
        "rho": rational(lambda one: one.rho.finite),
        "delta": rational(lambda one: one.delta, COARSE_DELTA),
        "linear": rational(lambda one: one.linear),
    }
    epsilons, rhos = counts(lambda one: one.epsilon.infinite), counts(lambda one: one.rho.infinite)
    quanta, infinite = curve(lambda one: one.quanta), curve(lambda one: one.infinite)
    others, last = (
        Totals(
            epsilon=LossSum(pairs["epsilon"][which], epsilons[which]),
            rho=LossSum(pairs["rho"][which], rhos[which]),
            delta=pairs["delta"][which],
            linear=pairs["linear"][which],
            quanta=quanta[which],
            infinite=infinite[which],
        )
        for which in (0, 1)
    )
    found = {places[one] for one in chosen}
    if len(weights.orders) > 1:
        found.update([place for place in some if windows[place].quanta][:1])
    return Leading(number, others, last, tuple(sorted(found)))


def summed_exactly(
    weights: Weights, windows: Mapping[int, Totals], amount: Price, *, exact: bool
) -> tuple[dict[int, Totals], Price]:
    """Return windows and an amount that are nowhere below those given, and of which no sum is rounded by P-12.

    Any number of the amounts may be added to any of the windows. They are returned as they are if nothing needs to be
    rounded, so that each sum over them is the sum that a charge compares.

    Args:
        exact: no later charge is of another amount; else all is rounded up, since another denominator may come.
    """
    places = list(windows)
    *own, one = comparable_curves(weights, [*windows.values(), add_price(_NOTHING, amount)])
    rational = [[t.epsilon.finite, t.rho.finite, t.delta, t.linear] for t in (*own, one)]
    if exact and all(_common(values) is not None for values in zip(*rational, strict=True)):
        return dict(windows), amount
    rounded = dict(zip(places, map(_rounded_up, own), strict=True))
    return rounded, _as_price(_rounded_up(one))


def _rounded_up(totals: Totals) -> Totals:
    """Return totals with each rational figure rounded up as P-12 rounds one that it adds up."""

    def up(value: Fraction, steps: int = COARSE) -> Fraction:
        return Fraction(math.ceil(value * steps), steps)

    return replace(
        totals,
        epsilon=replace(totals.epsilon, finite=up(totals.epsilon.finite)),
        rho=replace(totals.rho, finite=up(totals.rho.finite)),
        delta=up(totals.delta, COARSE_DELTA),
        linear=up(totals.linear),
    )


def _as_price(totals: Totals) -> Price:
    """Return the price of one charge that alone makes these totals."""
    width = max(len(totals.quanta), len(totals.infinite))
    quanta, infinite = totals.quanta or (0,) * width, totals.infinite or (0,) * width
    return Price(
        epsilon=totals.epsilon.value,
        rho=totals.rho.value,
        delta=totals.delta,
        linear=totals.linear,
        quanta=tuple(None if many else one for one, many in zip(quanta, infinite, strict=True)),
    )


def _in_order(windows: Mapping[int, Totals], places: Sequence[int]) -> list[int]:
    """Return places in the order in which windows with an equal figure lead; they are given in ascending order."""
    linear = _whole([windows[place].linear for place in places])
    rho = _whole([windows[place].rho.finite for place in places])
    order = sorted(range(len(places)), key=lambda number: (linear[number], rho[number]), reverse=True)
    return [places[number] for number in order]


def _largest(values: Sequence[int | Fraction], number: int) -> Ranked:
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:number]  # equal ones in their order
    return order if order and values[order[-1]] else [one for one in order if values[one]]


def _columns(rows: Sequence[Sequence[int]], number: int, chosen: set[int]) -> tuple[list[int], list[int]]:
    """Return for each column the sum of its ``number`` - 1 largest values, and the next largest value.

    The numbers of the rows with these values are added to ``chosen``. An empty row stands for zeros.
    """
    width = max(map(len, rows), default=0)
    if not width:
        return [], []
    columns = zip(*(row or (0,) * width for row in rows), strict=True)
    if len(rows) < number:
        chosen.update(place for place, row in enumerate(rows) if any(row))
        return list(map(sum, columns)), [0] * width
    others: list[int] = []
    last: list[int] = []
    for column in columns:
        top = _largest(column, number)
        chosen.update(top)
        full = len(top) == number
        last.append(column[top[-1]] if full else 0)
        others.append(sum([column[one] for one in top]) - last[-1])
    return others, last


def _whole(values: Sequence[Fraction]) -> Sequence[int | Fraction]:
    """Return values as integer multiples of one unit, which sort many times as fast, unless the unit is too small."""
    bottom = _common(values)
    if bottom is None:
        return values
    return [value.numerator * (bottom // value.denominator) for value in values]


def _common(values: Iterable[Fraction]) -> int | None:
    """Return the least common denominator of values, or None if it is 10^60 or more."""
    bottom = last = 1
    for value in values:
        if value.denominator != last:  # no set of them: clients can choose numbers with equal hashes
            last = value.denominator
            bottom = math.lcm(bottom, last)
            if bottom >= FINE_DENOMINATOR:
                return None
    return bottom


def _sum_up(values: Sequence[Fraction], steps: int) -> Fraction:
    """Return a sum: exact, or with each value rounded up to 1/``steps`` if the common denominator is too large."""
    bottom = _common(values)
    if bottom is None:
        return Fraction(sum(math.ceil(value * steps) for value in values), steps)
    return Fraction(sum(value.numerator * (bottom // value.denominator) for value in values), bottom)


def _normal(figures: Sequence[int]) -> tuple[int, ...]:
    """Return the figures of a curve in their normal form: empty if all are zero."""
    return tuple(figures) if any(figures) else ()


def _minimum(one: Totals, other: Totals) -> Totals:
    """Return the minimum of totals with comparable curves, each figure by itself."""
    return Totals(
        epsilon=_smaller(one.epsilon, other.epsilon),
        rho=_smaller(one.rho, other.rho),
        delta=min(one.delta, other.delta),
        linear=min(one.linear, other.linear),
        quanta=_normal(list(map(min, one.quanta, other.quanta))),  # one of them is empty where all its figures are 0
        infinite=_normal(list(map(min, one.infinite, other.infinite))),
    )


def _smaller(one: LossSum, other: LossSum) -> LossSum:
    return LossSum(min(one.finite, other.finite), min(one.infinite, other.infinite))


@dataclass(frozen=True, slots=True)
class Decisive:
    """The totals, before and after a charge, that decide on its admission: it is admitted if they fit the budget (P-9).

    Attributes:
        places: the places of the windows that lack most if the charge is not admitted; else empty.
        before: the totals before the charge.
        after: the totals after it.
    """

    places: tuple[int, ...]
    before: Totals
    after: Totals


def decisive_windows(
    budget: Budget,
    weights: Weights,
    number: int,
    common: Totals,
    bounds: tuple[Totals, Totals],
    windows: tuple[Mapping[int, Totals], Mapping[int, Totals]],
    charged: Iterable[int],
) -> Decisive:
    """Return the totals that decide on a charge to some windows, of which a unit is in at most ``number``.

    The sums of the largest are compared first. If the charge does not fit these, each window that it touches is
    compared together with the worst others, and the window with the largest excess is returned.

    Args:
        budget: the budget of the account.
        weights: the orders of the budget.
        number: the largest number of windows of one unit.
        common: the totals of the releases to all periods.
        bounds: upper bounds of the sum of any ``number`` windows, before and after the charge, common totals included.
        windows: the windows that led before the charge and those that it touches, before and after it, without common
            totals.
        charged: the places of the windows that it touches.
    """
    if not shortfalls(budget, weights, *bounds):
        return Decisive((), *bounds)
    before, after = windows
    was, now = leading(weights, before, number), leading(weights, after, number)

    def beside(place: int) -> Decisive:
        one, other = was.beside(weights, before[place]), now.beside(weights, after[place])
        return Decisive((place,), add_totals(common, one), add_totals(common, other))

    found = max(map(beside, charged), key=lambda one: excess(budget, weights, one.before, one.after))
    return replace(found, places=worst_places(budget, weights, common, now, after, *found.places))


def worst_places(
    budget: Budget, weights: Weights, common: Totals, found: Leading, windows: Mapping[int, Totals], *including: int
) -> tuple[int, ...]:
    """Return the places of the windows with the largest sum, in the figure that decides on their admission.

    That figure is the one that the budget caps. Under (epsilon, delta) it is the loss at the order, or the pure sum,
    from which the epsilon of their bound follows. Windows without loss are left out.

    Args:
        budget: the budget of the account.
        weights: the orders of the budget.
        common: the totals of the releases to all periods.
        found: the leading windows.
        windows: the totals of at least the leading windows, without common totals.
        including: the place of a window that must be among them; without it, any.
    """
    own = [windows.get(place, _NOTHING) for place in including]
    bound = found.beside(weights, own[0]) if own else found.together
    figure = _deciding(budget, weights, add_totals(common, bound))
    ranked = [(figure(windows[place]), -place) for place in found.places if place not in including]
    largest = sorted((one for one in ranked if one[0] > (0, 0)), reverse=True)[: found.number - len(including)]
    return tuple(sorted((*including, *(-place for _, place in largest))))


_Figure = tuple[int, Fraction]
"""The number of infinite contributions, and the sum of the finite ones."""


def _deciding(budget: Budget, weights: Weights, totals: Totals) -> Callable[[Totals], _Figure]:
    """Return the function of a window's totals that decides if the sums of the windows are ``totals``."""
    used = spent_of_cap(budget, weights, totals)
    if totals.delta > budget.declared_delta and used is not None and used <= budget.cap:
        return lambda one: (0, one.delta)
    match budget.definition:
        case Definition.ZCDP:
            return lambda one: (one.rho.infinite, one.rho.finite)
        case Definition.PURE:
            order = None
        case Definition.RDP:
            order = 0
        case _:
            order = deciding_order(budget, weights, totals)
    if order is None:
        return lambda one: (one.epsilon.infinite, one.epsilon.finite)
    return partial(_loss_at, weights.orders[order], order)


def _loss_at(alpha: Fraction, number: int, totals: Totals) -> _Figure:
    infinite, quanta = (curve[number] if curve else 0 for curve in (totals.infinite, totals.quanta))
    return infinite, totals.linear * alpha + Fraction(quanta, QUANTA)
