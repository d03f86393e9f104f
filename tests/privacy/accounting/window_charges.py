"""Charges to windows, as the ledger makes them, on totals alone."""

from collections.abc import Iterable
from typing import NamedTuple

from service.privacy.accounting.leading_windows import decisive_windows, leading
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import Budget, Shortfall, Weights, shortfalls
from service.privacy.accounting.totals import Totals, add_price, add_prices, add_totals
from service.privacy.accounting.windows import WindowTotals, decisive_window
from service.privacy.periods import PeriodSet

Charge = tuple[PeriodSet, Price, int]
"""The places that a release touches, its price as charged, and how many times it is charged; below 0: taken away."""


class WindowShortfall(NamedTuple):
    """A cap that a charge does not fit, in the window that decides; None: in those that nothing else touched."""

    place: int | None
    shortfall: Shortfall


def add_to_windows(before: WindowTotals, charges: Iterable[Charge]) -> WindowTotals:
    """Return the totals after charges, in each window that they touch."""
    common: list[tuple[Price, int]] = []
    by_place: dict[int, list[tuple[Price, int]]] = {}
    for places, amount, count in charges:
        if places.everything:
            common.append((amount, count))
        for place in places.members:
            by_place.setdefault(place, []).append((amount, count))
    changed = {place: add_prices(before.windows.get(place, Totals()), added) for place, added in by_place.items()}
    return WindowTotals(add_prices(before.common, common), {**before.windows, **changed})


def shortfalls_of_several(
    budget: Budget, weights: Weights, number: int, before: WindowTotals, charge: Charge
) -> list[Shortfall]:
    """Return the caps that one charge does not fit where a unit can be in any ``number`` periods, as admission decides.

    Only the windows that lead, and those that are charged, are known, as in the ledger.
    """
    places, amount, _ = charge
    was, common = leading(weights, before.windows, number), before.common
    if places.everything:
        found = {place: was.beside(weights, own) for place, own in before.windows.items()}
        window = decisive_window(budget, weights, common, found, amount, was.together)
        return shortfalls(budget, weights, window.totals, add_price(window.totals, amount))
    known = {*was.places, *places.members}
    earlier = {place: before.windows.get(place, Totals()) for place in known}
    later = add_to_windows(WindowTotals(common, earlier), [charge]).windows
    bounds = add_totals(common, was.together), add_totals(common, leading(weights, later, number).together)
    decisive = decisive_windows(budget, weights, number, common, bounds, (earlier, later), places.members)
    return shortfalls(budget, weights, decisive.before, decisive.after)


def shortfalls_by_window(
    budget: Budget, weights: Weights, before: WindowTotals, charge: Charge
) -> list[WindowShortfall]:
    """Return the caps that one charge does not fit, as admission decides; none: it is admitted."""
    places, amount, _ = charge
    touched = sorted(before.windows) if places.everything else list(places.members)
    windows = {place: before.windows.get(place, Totals()) for place in touched}
    window = decisive_window(budget, weights, before.common, windows, amount, None)
    after = add_price(window.totals, amount)
    return [WindowShortfall(window.place, gap) for gap in shortfalls(budget, weights, window.totals, after)]
