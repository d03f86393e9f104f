"""Totals of the windows of an account with periods, and the admission of a release by every window that it touches.

A window is a set of periods in which one unit can take part. The privacy filter of the account's budget runs separately
for each window, over the releases that touch it: those to all periods, which make up the common totals, and those to
some of the window's periods. ``docs/mathematics/periods.md`` proves that this bounds the loss of every unit, and
numbers the statements that are cited here.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce

from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.privacy_filter import (
    Budget,
    Definition,
    Weights,
    deciding_order,
    shortfalls,
    spent_of_cap,
)
from service.privacy.accounting.totals import LossSum, Totals, add_price, add_totals, price_as_charged
from service.privacy.numerics.keyed import memoised
from service.privacy.periods import Periods, PeriodSet


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """The totals of an account with periods.

    Attributes:
        common: the totals of the releases to all periods, which count in every window, even one missing in ``windows``.
        windows: the totals of the other releases, by place (P-2); a missing place has none.
    """

    common: Totals = field(default_factory=Totals)
    windows: Mapping[int, Totals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Worst:
    """The window with the largest loss in the budget's own figure.

    Attributes:
        place: the place of the window; None if no window has more than the common totals.
        totals: the totals of the window, common totals included.
    """

    place: int | None
    totals: Totals


def price_as_charged_to_windows(totals: Iterable[Totals], asked: Price, *, held: bool) -> Price:
    """Return one amount that can be added to all given totals, with each figure exact or rounded up for all of them.

    A figure is rounded up if ``price_as_charged`` rounds it for any of the totals. It is not rounded a second time.

    Args:
        totals: all totals to which the amount will be added, before the charge.
        asked: the price to add.
        held: whether the charge can be removed again.
    """
    return reduce(lambda amount, one: price_as_charged(one, amount, held=held), totals, asked)


def decisive_window(
    budget: Budget,
    weights: Weights,
    common: Totals,
    windows: Mapping[int, Totals],
    amount: Price,
    most: Totals | None,
) -> Worst:
    """Return totals before a charge such that it fits them if and only if it fits every window that it touches (P-1).

    The maximum of the windows is compared first (P-4). If the charge does not fit it, each window is compared. The
    window with the largest excess is returned, or any window if the charge fits all of them.

    Args:
        budget: the budget of the account.
        weights: the orders of the budget.
        common: the totals of the releases to all periods.
        windows: all windows that the charge touches, without common totals; empty if only ``most`` is known of them.
        amount: the charge.
        most: upper bounds of the windows' totals; None: their maximum.
    """
    highest = maximum(weights, list(windows.values())) if most is None else most
    together = Worst(None, add_totals(common, highest))
    if not windows or not shortfalls(budget, weights, together.totals, add_price(together.totals, amount)):
        return together
    unlike: dict[str, tuple[int, Totals]] = {}  # equal totals are compared once, as those of the first window
    for place, totals in windows.items():
        unlike.setdefault(repr(totals), (place, totals))
    return max(
        (Worst(place, add_totals(common, totals)) for place, totals in unlike.values()),
        key=lambda one: excess(budget, weights, one.totals, add_price(one.totals, amount)),
    )


def excess(budget: Budget, weights: Weights, before: Totals, after: Totals) -> tuple[bool, bool, Fraction]:
    """Return a sort key of the excess over a cap after a charge; totals that fit all caps have the smallest key."""
    for gap in shortfalls(budget, weights, before, after):
        return True, gap.requested is None, (gap.requested or Fraction(0)) - gap.remaining
    return False, False, Fraction(0)


def worst(
    budget: Budget, weights: Weights, periods: Periods, totals: WindowTotals, including: int | None = None
) -> Worst:
    """Return the window with the largest loss in the figure that the budget caps; of equal ones, the first.

    Its other figures bound the loss of its own units only: another window can have larger ones (P-4).

    Args:
        budget: the budget of the account.
        weights: the orders of the budget.
        periods: the periods of the account.
        totals: the totals of every window, or at least of those that contain the period ``including``.
        including: a period that the window must contain; None: any window.
    """
    nothing = Totals()
    found = [Worst(None, totals.common)] if including is None else []
    places = sorted(totals.windows)
    if including is not None:
        places = list(periods.touched(PeriodSet(((including, including),))).members)
    own = [(place, totals.windows.get(place, nothing)) for place in places]
    if totals.common == nothing:  # then to add it would take longer than to compare
        found += [Worst(*one) for one in own]
    else:
        found += [Worst(place, add_totals(totals.common, one)) for place, one in own]
    return _with_largest_figure(budget, weights, found)


def _with_largest_figure(budget: Budget, weights: Weights, found: Sequence[Worst]) -> Worst:
    """Return the window with the largest figure; of equal ones, the first.

    The figure of an (epsilon, delta) budget is the least over its orders. The least over one order bounds it, and is
    found sooner. So the windows are looked at from the largest bound on, until no bound reaches the largest figure.
    """
    if budget.definition is not Definition.APPROXIMATE:
        return max(found, key=lambda one: _figure(budget, weights, one.totals))
    highest = max(found, key=lambda one: (one.totals.linear, one.totals.quanta))
    order = deciding_order(budget, weights, highest.totals) or 0  # any order bounds the figure; this one closely
    here = slice(order, order + 1)
    single = Weights(weights.orders[here], weights.shares[here])

    def bound(one: Worst) -> tuple[bool, Fraction]:
        quanta, infinite = one.totals.quanta[here], one.totals.infinite[here]
        return _figure(budget, single, replace(one.totals, quanta=quanta, infinite=infinite))

    bounds = list(map(bound, found))
    best, largest = 0, (False, Fraction(-1))
    for number in sorted(range(len(found)), key=bounds.__getitem__, reverse=True):
        if bounds[number] < largest:
            break
        figure = _figure(budget, weights, found[number].totals)
        if figure > largest or (figure == largest and number < best):
            best, largest = number, figure
    return found[best]


def _figure(budget: Budget, weights: Weights, totals: Totals) -> tuple[bool, Fraction]:
    """Return a sort key of the figure that is compared with the cap; an infinite figure has the largest key."""
    figure = spent_of_cap(budget, weights, totals)
    return figure is None, figure or Fraction(0)


def maximum(weights: Weights, several: Sequence[Totals]) -> Totals:
    """Return the maximum of several totals, each figure by itself.

    Under pure, zCDP and RDP budgets, a charge fits the maximum if and only if it fits each of the totals. Under
    (epsilon, delta), it fits each of them if it fits the maximum (P-4). A curve without quanta is 0 and changes no
    maximum.
    """
    if not several:
        return Totals()
    comparable = comparable_curves(weights, _without_lower_curves(weights, several))
    return Totals(
        epsilon=LossSum(max(one.epsilon.finite for one in several), max(one.epsilon.infinite for one in several)),
        rho=LossSum(max(one.rho.finite for one in several), max(one.rho.infinite for one in several)),
        delta=max(one.delta for one in several),
        linear=max(one.linear for one in comparable),
        quanta=tuple(map(max, zip(*(one.quanta for one in comparable if one.quanta), strict=True))),
        infinite=tuple(map(max, zip(*(one.infinite for one in several if one.infinite), strict=True))),
    )


def _without_lower_curves(weights: Weights, several: Sequence[Totals]) -> Sequence[Totals]:
    """Return totals without those whose curve is nowhere above the highest one: they change no maximum.

    Windows of earlier periods often have all releases of later ones, so that few are left to be rounded up to quanta.
    """
    if not any(one.quanta for one in several):
        return several
    nothing = (0,) * len(weights.orders)
    highest = max(several, key=lambda one: (one.linear, one.quanta))
    linear, quanta = highest.linear, highest.quanta or nothing
    return [highest] + [
        one for one in several if one.linear > linear or not all(map(operator.le, one.quanta or nothing, quanta))
    ]


def reaches(weights: Weights, most: Totals, totals: Totals) -> bool:
    """Return whether totals attain their maximum with others, ``most``, in some figure above 0."""
    if most == Totals():
        return False
    highest, one = comparable_curves(weights, [most, totals])
    pairs = [
        (highest.epsilon.finite, one.epsilon.finite),
        (highest.epsilon.infinite, one.epsilon.infinite),
        (highest.rho.finite, one.rho.finite),
        (highest.rho.infinite, one.rho.infinite),
        (highest.delta, one.delta),
        (highest.linear, one.linear),
        *zip(highest.quanta, one.quanta, strict=False),  # one of them is empty where all its figures are 0
        *zip(highest.infinite, one.infinite, strict=False),
    ]
    return any(figure and figure == other for figure, other in pairs)


def comparable_curves(weights: Weights, several: Sequence[Totals]) -> Sequence[Totals]:
    """Return totals whose Rényi curves are either all linear or all in quanta, so that each order has one figure.

    At a single order all curves become linear, exactly. At several orders the linear parts are rounded up to quanta,
    which gives an upper bound of each curve, and so of their maximum.
    """
    if not any(one.quanta for one in several):
        return several
    if len(weights.orders) == 1:
        (order,) = weights.orders
        return [
            replace(one, linear=one.linear + Fraction(sum(one.quanta), QUANTA) / order, quanta=()) for one in several
        ]
    return [in_quanta(weights, one) for one in several]


def in_quanta(weights: Weights, totals: Totals) -> Totals:
    """Return totals with the curve in quanta only, rounded up, as ``maximum`` has it if any totals have quanta."""
    return replace(totals, linear=Fraction(0), quanta=_in_quanta(weights, totals))


def _in_quanta(weights: Weights, totals: Totals) -> tuple[int, ...]:
    """Return the curve at each order in whole quanta, rounded up; empty for a curve that is 0."""
    if not totals.linear:
        return totals.quanta
    denominator, orders = _whole_orders(weights.orders)
    top, bottom = -totals.linear.numerator * QUANTA, totals.linear.denominator * denominator
    rests = totals.quanta or (0,) * len(orders)
    return tuple([rest - order * top // bottom for rest, order in zip(rests, orders, strict=True)])


@memoised(maxsize=16)
def _whole_orders(orders: tuple[Fraction, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the least common denominator of orders, and their numerators over it: integers divide faster."""
    denominator = math.lcm(*(order.denominator for order in orders))
    return denominator, tuple(int(order * denominator) for order in orders)
