"""Estimates of the work that a plan's figures take, made before any of it is done: about milliseconds of one core.

Rough, and of costly plans rather too much: it decides where something is computed and what is refused, never a figure.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from service.privacy.plans import Plan
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import condense, leaves, mechanisms_of

LIGHT = 50.0
"""Work up to this is done at once, in the process that receives the request."""

_READ = 0.2  # a part, in arrays with others
_TIGHT, _MOST_TIGHT = 400.0, 10_000.0  # one tight figure, and all of them: ``tight.work`` bounds both
_FOR_TIGHT = 8.0  # each mechanism of few
_STEPS = 25  # of most searches for the noise that fits
_SCALED = 0.02  # a mechanism, at each step


def of_guarantee(plan: Condensed, orders: int, deltas: int) -> float:
    """Estimate the work for a whole guarantee, at so many orders and deltas (milliseconds)."""
    distinct = [mechanism.work() for mechanism in set(leaves(plan))]
    proven = sum(one.proof for one in distinct)
    tight = min(_TIGHT, _FOR_TIGHT * sum(one.tight for one in distinct))
    at_orders = orders * sum(one.at_order for one in distinct if not one.vectorized)
    return min(tight * deltas, _MOST_TIGHT) + proven + _READ * plan.size + at_orders


def of_price(plan: Condensed, orders: int) -> float:
    """Estimate the work for a plan's addition to an account's totals, in balls at so many orders.

    Args:
        orders: their number.

    Returns:
        About milliseconds of one core.
    """
    return _READ * plan.size + orders * sum(one.work().at_order for one in set(leaves(plan)))


def of_estimates(plan: Condensed, orders: Sequence[tuple[Fraction, ...]]) -> float:
    """Estimate the work for a plan's estimated prices, in arrays of doubles; infinite for offset tails.

    Args:
        orders: the orders of each account, one tuple for each.

    Returns:
        About milliseconds of one core.
    """
    distinct = [mechanism.work() for mechanism in set(leaves(plan))]
    if not all(one.vectorized for one in distinct):
        return math.inf
    curved = plan.size - sum(one.linear for one in distinct)  # with the nodes, at which arrays are added or compared
    return sum(0.1 + 0.003 * len(one) + curved * (0.05 + 0.0003 * len(one)) for one in set(orders))


def of_search(plan: Plan, orders: Sequence[tuple[Fraction, ...]]) -> float:
    """Estimate the search for the noise with which a plan fits accounts of these orders; infinite for offset tails.

    Args:
        orders: the orders of each account, one tuple for each.

    Returns:
        About milliseconds of one core.
    """
    comparisons = 0.001 * sum(map(len, orders))
    scaled = _SCALED * sum(1 for _ in mechanisms_of(plan))
    return _STEPS * (scaled + of_estimates(condense(plan), orders) + comparisons)
