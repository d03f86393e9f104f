"""Totals of the windows of an account with periods, and the admission of a release by every window that it touches.

A window is the set of periods in which one unit can take part. The filter of the account's budget runs for each window
by itself, over the releases that touch it: those to all periods, which make up the common total, and those to some of
its own. ``docs/mathematics/periods.md`` proves that this is enough, and numbers the statements that are cited here.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Any

from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.privacy_filter import Budget, Shortfall, Weights, shortfalls, spent_of_cap
from service.privacy.accounting.totals import LossSum, Totals, add_prices, add_totals, price_as_charged
from service.privacy.periods import ALL, AnyOf, Participation, PeriodSet, touched

Charge = tuple[PeriodSet, Price, int]
"""The places that a release touches, its price as charged, and how many times it is charged; below 0: taken away."""


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """The totals of an account with periods.

    Attributes:
        common: of the releases to all periods; every window has them, also one that is in ``windows`` for nothing.
        windows: of the other releases, by place (P-2); a place that is missing has none. With ``AnyOf``, by period.
    """

    common: Totals = field(default_factory=Totals)
    windows: Mapping[int, Totals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Worst:
    """The window with the largest loss in the budget's own figure.

    Attributes:
        places: the window's place, or with ``AnyOf`` the periods whose totals are largest; empty: no window has more
            than the common totals.
        totals: of the window, common ones included; with ``AnyOf`` an upper bound for every set of periods.
    """

    places: tuple[int, ...]
    totals: Totals


@dataclass(frozen=True, slots=True)
class WindowShortfall:
    """A cap that a release does not fit, and the window in which it does not (as in ``Worst``)."""

    places: tuple[int, ...]
    shortfall: Shortfall


def price_as_charged_to_windows(totals: Iterable[Totals], asked: Price, *, held: bool = False) -> Price:
    """Return the one amount that is added to all these totals: each figure exact, or rounded up once for all.

    Rounded up where ``price_as_charged`` rounds for any of them; a figure that is rounded already stays as it is.

    Args:
        totals: all those to which the amount will be added, before it is.
        asked: the price to add.
        held: the charge can be taken away again.
    """
    return reduce(lambda amount, one: price_as_charged(one, amount, held=held), totals, asked)


def add_to_windows(before: WindowTotals, charges: Iterable[Charge]) -> WindowTotals:
    """Return the totals after charges, in each window that they touch; a count below 0 takes charges away.

    What is taken away must have been charged to the same places (F-5). The sums are exact, so nothing of it is left.
    """
    common: list[tuple[Price, int]] = []
    by_place: dict[int, list[tuple[Price, int]]] = {}
    for places, amount, count in charges:
        if places.everything:
            common.append((amount, count))
        for place in places.members:
            by_place.setdefault(place, []).append((amount, count))
    changed = {place: add_prices(before.windows.get(place, Totals()), added) for place, added in by_place.items()}
    return WindowTotals(add_prices(before.common, common), {**before.windows, **changed})


def shortfalls_by_window(
    budget: Budget, weights: Weights, participation: Participation, before: WindowTotals, charge: Charge
) -> list[WindowShortfall]:
    """Return the caps that a charge does not fit, each with the window that exceeds it most; none: it is admitted.

    Args:
        before: with the windows that the charge touches, at least. It has to have all windows where the charge is to
            all periods, and with ``AnyOf``.
        charge: of a release; its count is above 0.
    """
    if isinstance(participation, AnyOf):
        worst_before = worst(budget, weights, participation, before)
        worst_after = worst(budget, weights, participation, add_to_windows(before, [charge]))
        found = shortfalls(budget, weights, worst_before.totals, worst_after.totals)
        return [WindowShortfall(worst_after.places, shortfall) for shortfall in found]

    places, amount, count = charge

    def failures(totals: Totals) -> list[Shortfall]:
        held = add_totals(before.common, totals)
        return shortfalls(budget, weights, held, add_prices(held, [(amount, count)]))

    windows = _windows_at(before, places)
    if not failures(maximum(weights, list(windows.values()))):
        return []  # then each window is admitted: its totals are nowhere larger (P-6)
    most_by_cap: dict[str, WindowShortfall] = {}
    for at, totals in windows.items():
        for shortfall in failures(totals):
            found_here = WindowShortfall(at, shortfall)
            most_by_cap[shortfall.cap] = max(most_by_cap.get(shortfall.cap, found_here), found_here, key=_excess)
    return list(most_by_cap.values())


def _excess(one: WindowShortfall) -> tuple[bool, Fraction]:
    """Return by how much a cap is exceeded, as a key: an infinite loss exceeds it most."""
    requested = one.shortfall.requested
    return requested is None, (requested or Fraction(0)) - one.shortfall.remaining


def worst(
    budget: Budget,
    weights: Weights,
    participation: Participation,
    totals: WindowTotals,
    including: int | None = None,
) -> Worst:
    """Return the window with the largest loss in the budget's figure; the first of several.

    Its other figures bound those of its own units alone: another window can have more of them (P-6).

    Args:
        totals: with every window, or with those that hold the period ``including``; with ``AnyOf`` with every one.
        including: a period that the window must hold.
    """
    if isinstance(participation, AnyOf):
        return _worst_of_any(budget, weights, participation.most, totals, including)
    places = ALL if including is None else touched(participation, PeriodSet(((including, including),)))
    found = {at: add_totals(totals.common, one) for at, one in _windows_at(totals, places).items()}
    at = max(found, key=lambda at: _figure(budget, weights, found[at]))
    return Worst(at, found[at])


def _worst_of_any(budget: Budget, weights: Weights, most: int, totals: WindowTotals, including: int | None) -> Worst:
    """Return common totals and, in each figure by itself, the largest that so many periods add up to (P-4)."""
    rest = {
        period: one for period, one in sorted(totals.windows.items(), key=lambda item: item[0]) if period != including
    }
    chosen = [] if including is None else [including]
    fixed = Totals() if including is None else totals.windows.get(including, Totals())
    ranked = heapq.nlargest(most - len(chosen), rest, key=lambda period: _figure(budget, weights, rest[period]))
    bound = largest_together(weights, list(rest.values()), most - len(chosen))
    return Worst(tuple(sorted(chosen + ranked)), add_totals(add_totals(totals.common, fixed), bound))


def _figure(budget: Budget, weights: Weights, totals: Totals) -> tuple[bool, Fraction]:
    """Return the figure that is compared with the cap, as a key: infinite is the largest."""
    figure = spent_of_cap(budget, weights, totals)
    return figure is None, figure or Fraction(0)


def _windows_at(totals: WindowTotals, places: PeriodSet) -> dict[tuple[int, ...], Totals]:
    """Return the totals, without the common ones, of the windows at these places.

    Of all places also those that nothing but the common totals touched: together they are the window without a place.
    """
    if places.everything:
        return {(): Totals()} | {
            (place,): one for place, one in sorted(totals.windows.items(), key=lambda item: item[0])
        }
    return {(place,): totals.windows.get(place, Totals()) for place in places.members}


def maximum(weights: Weights, several: Sequence[Totals]) -> Totals:
    """Return totals that are nowhere below any of these.

    Under pure, zCDP and RDP budgets a charge fits them if and only if it fits each; under (epsilon, delta) it fits
    each where it fits them (P-6).
    """
    return _figure_by_figure(weights, several, max)


def reaches(weights: Weights, most: Totals, totals: Totals) -> bool:
    """Return whether totals, of one of those of which ``most`` is the maximum, attain it in some figure above 0."""
    if most == Totals():
        return False
    highest, one = _comparable_curves(weights, [most, totals])
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


def largest_together(weights: Weights, several: Sequence[Totals], most: int) -> Totals:
    """Return, for each figure by itself, the sum of its ``most`` largest values (P-4)."""
    return _figure_by_figure(weights, several, lambda values: sum(heapq.nlargest(most, values)))


def _figure_by_figure(weights: Weights, several: Sequence[Totals], pick: Callable[[Iterable[Any]], Any]) -> Totals:
    """Return the totals whose figures are picked from these; ``pick`` makes of figures >= 0 one that grows with each.

    A curve without quanta is 0 there, and leaving zeros out changes neither a maximum nor the sum of the largest.
    """
    if not several:
        return Totals()
    comparable = _comparable_curves(weights, several)
    return Totals(
        epsilon=LossSum(pick(one.epsilon.finite for one in several), pick(one.epsilon.infinite for one in several)),
        rho=LossSum(pick(one.rho.finite for one in several), pick(one.rho.infinite for one in several)),
        delta=pick(one.delta for one in several),
        linear=pick(one.linear for one in comparable),
        quanta=tuple(map(pick, zip(*(one.quanta for one in comparable if one.quanta), strict=True))),
        infinite=tuple(map(pick, zip(*(one.infinite for one in several if one.infinite), strict=True))),
    )


def _comparable_curves(weights: Weights, several: Sequence[Totals]) -> Sequence[Totals]:
    """Return totals whose Rényi curves are either all linear or all in quanta, so that each order has one figure.

    At a single order everything is linear, exactly. At several orders the linear parts are rounded up to quanta:
    an upper bound of each total, so also of what is picked from them.
    """
    if not any(one.quanta for one in several):
        return several
    if len(weights.orders) == 1:
        (order,) = weights.orders
        return [
            replace(one, linear=one.linear + Fraction(sum(one.quanta), QUANTA) / order, quanta=()) for one in several
        ]
    return [replace(one, linear=Fraction(0), quanta=_in_quanta(weights, one)) for one in several]


def _in_quanta(weights: Weights, totals: Totals) -> tuple[int, ...]:
    """Return the curve at each order in whole quanta, rounded up; of a curve that is 0, nothing."""
    if not totals.linear:
        return totals.quanta
    top, bottom = -totals.linear.numerator * QUANTA, totals.linear.denominator
    rests = totals.quanta or (0,) * len(weights.orders)
    return tuple(
        rest - order.numerator * top // (order.denominator * bottom)
        for rest, order in zip(rests, weights.orders, strict=True)
    )
