"""The capacity of budgets: the part of a budget that is used, and the number of equal charges that still fit.

``docs/mathematics/capacity.md`` states and proves C-1 to C-10, which are cited here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, order_rule, spent_of_cap
from service.privacy.accounting.totals import COARSE, Totals, add_price

MOST_COUNTED = 10**6  # the largest number of further charges that is counted
_MARGIN = Fraction(1, 10**9)  # an estimate exceeds its price by a far smaller relative error
_MARGIN_QUANTA = 3  # and in addition by fewer quanta than these


class BudgetCharge(NamedTuple):
    """A charge to one budget.

    Attributes:
        before: the totals before the charge.
        amount: the charge, as ``price_as_charged`` makes it for these totals.
    """

    budget: Budget
    weights: Weights
    before: Totals
    amount: Price


class Fit(NamedTuple):
    """The number of equal charges that fit all of some budgets.

    Attributes:
        number: at most ``MOST_COUNTED``.
        stop: the index of the first budget that one more charge does not fit, and the name of its cap; None if more
            than ``MOST_COUNTED`` charges fit.
    """

    number: int
    stop: tuple[int, str] | None


class _Loads(NamedTuple):
    """Totals at the orders of an (epsilon, delta) budget, in multiples of 1/scale quanta; None is infinite."""

    loads: list[int | None]
    scale: int


class Gauge(NamedTuple):
    """The used part of a budget (None is infinite), and the name of the cap that it refers to."""

    used: Fraction | None
    cap: str


def gauge(budget: Budget, weights: Weights, totals: Totals) -> Gauge:
    """Return the used part of a budget, on a scale on which equal charges take equal shares.

    It is at most 1 if and only if the privacy filter admits the totals (C-4). For n times the totals it is n times as
    large (C-5). For an (epsilon, delta) budget it is the least over all routes by which the filter can admit. For
    other definitions it is the spent part of the cap. If declared deltas use a larger part of their own cap, it is that
    part.
    """
    loss = _loss_gauge(budget, weights, totals)
    declared = _ratio(totals.delta, budget.declared_delta)
    if loss is None or (declared is not None and declared <= loss):
        return Gauge(loss, budget.cap_on)
    return Gauge(declared, budget.delta_cap)


def fullest(gauges: Iterable[Gauge]) -> Gauge:
    """Return the largest gauge. That of several windows is at most 1 if and only if each is admitted (C-8)."""
    return max(gauges, key=lambda one: (one.used is None, one.used or Fraction(0)))


def share_alone(budget: Budget, weights: Weights, amount: Price) -> Fraction | None:
    """Return the part of a budget that one charge takes in an unused account; None is infinite.

    n such charges take n times this part (C-5). Different charges can take more together than their parts (C-6).
    """
    return gauge(budget, weights, add_price(Totals(), amount)).used


def _loss_gauge(budget: Budget, weights: Weights, totals: Totals) -> Fraction | None:
    if budget.definition is not Definition.APPROXIMATE:
        return _ratio(spent_of_cap(budget, weights, totals), budget.cap)
    least = _ratio(totals.epsilon.value, budget.cap)
    rooms, (loads, scale) = _rooms(budget, weights), _order_loads(budget, weights, totals)
    top, bottom = (1, 0) if least is None else (least.numerator, least.denominator)
    for room, load in zip(rooms, loads, strict=True):  # integers are many times as fast as fractions here
        if load is None or room < 0 or (load and not room):
            continue
        whole = room * scale or 1  # without room, only a load of 0 comes here
        if load * bottom < top * whole:
            top, bottom = load, whole
    return Fraction(top, bottom) if bottom else None


def _ratio(load: Fraction | None, room: Fraction) -> Fraction | None:
    if load is None or room <= 0:
        return Fraction(0) if load == room == 0 else None
    return load / room


def _rooms(budget: Budget, weights: Weights) -> list[int]:
    """Return the largest tau, in whole quanta, that each order's route admits; below 0 if it admits nothing (C-4)."""
    whole = math.floor(budget.cap * QUANTA)
    return [whole - more for more in order_rule(budget, weights).conversions]


def _order_loads(budget: Budget, weights: Weights, totals: Totals) -> _Loads:
    """Return the exact tau of totals at each order of an (epsilon, delta) budget."""
    rule = order_rule(budget, weights)
    rests = totals.quanta or (0,) * len(rule.orders)
    scale = totals.linear.denominator * rule.denominator if totals.linear else 1
    top = totals.linear.numerator * QUANTA
    loads: list[int | None] = [rest * scale + top * order for rest, order in zip(rests, rule.orders, strict=True)]
    if totals.infinite:
        loads = [None if infinite else load for load, infinite in zip(loads, totals.infinite, strict=True)]
    return _Loads(loads, scale)


def fitting(charges: Sequence[BudgetCharge]) -> Fit:
    """Return the number of equal charges that fit all budgets, as repeated admission would find it (C-1, C-2).

    Args:
        charges: to each budget, in the order in which refusals name them; at least one.
    """
    counts = [(number, place, cap) for place, charge in enumerate(charges) for number, cap in _counts(charge)]
    number, place, cap = min(counts, key=lambda count: count[0])  # the first of equal ones
    return Fit(MOST_COUNTED, None) if number > MOST_COUNTED else Fit(int(number), (place, cap))


def count_fitting(budget: Budget, weights: Weights, totals: Totals, amount: Price) -> int:
    """Return how many more charges of an amount one budget admits; at most ``MOST_COUNTED``."""
    return fitting([BudgetCharge(budget, weights, totals, amount)]).number


def _counts(charge: BudgetCharge) -> list[tuple[float, str]]:
    """Return the number of charges that each cap of a budget admits: the loss first, then the declared deltas."""
    budget = charge.budget
    return [
        (_count_losses(charge), budget.cap_on),
        (_count(charge.before.delta, charge.amount.delta, budget.declared_delta), budget.delta_cap),
    ]


def _count_losses(charge: BudgetCharge) -> float:
    budget, weights, before = charge.budget, charge.weights, charge.before
    alone = add_price(Totals(), charge.amount)
    if budget.definition is not Definition.APPROXIMATE:
        return _count(spent_of_cap(budget, weights, before), spent_of_cap(budget, weights, alone), budget.cap)
    most = _count(before.epsilon.value, alone.epsilon.value, budget.cap)
    used, added = _order_loads(budget, weights, before), _order_loads(budget, weights, alone)
    for room, load, one in zip(_rooms(budget, weights), used.loads, added.loads, strict=True):
        if load is not None and one is not None and load <= room * used.scale:
            left = (room * used.scale - load) * added.scale
            most = max(most, left // (one * used.scale) if one > 0 else math.inf)
    return most


def _count(before: Fraction | None, amount: Fraction | None, cap: Fraction) -> float:
    """Return the largest n with before + n * amount <= cap; 0 if there is none, and infinite if all n do."""
    if before is None or amount is None or before > cap:
        return 0
    return (cap - before) // amount if amount else math.inf


def most_admitted(admits: Callable[[int], bool], guesses: Iterable[int], upto: int) -> int:
    """Return the largest number up to ``upto`` that is admitted, where all numbers below an admitted one are too.

    Args:
        admits: asked about numbers above 0 alone, and about few of them where a guess is near the result.
        guesses: numbers that are asked about first.
    """
    least, beyond = 0, upto + 1
    for guess in guesses:
        if least < guess < beyond:
            least, beyond = (guess, beyond) if admits(guess) else (least, guess)
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if admits(middle) else (least, middle)
    return least


def around_estimate(amount: Price) -> tuple[Price, Price]:
    """Return a lower and an upper bound of the exact amount, in every figure (C-3).

    Figures that an estimate has exactly are unchanged. The results are for ``fitting`` only, since parts of the lower
    bound's curve can be below 0.

    Args:
        amount: the amount that ``price_as_charged`` makes of ``estimate_price``.
    """
    least = Fraction(1, COARSE)  # either linear part can be rounded up by as much
    lowered = tuple(None if one is None else math.floor(one * (1 - _MARGIN)) - _MARGIN_QUANTA for one in amount.quanta)
    below = replace(amount, linear=amount.linear * (1 - _MARGIN) - least, quanta=lowered)
    return below, replace(amount, linear=amount.linear + least)
