"""Estimates of the work for a plan's figures, made before the work begins, in about milliseconds of one core.

They are rough, and rather too large for costly plans. They decide where something is computed and what is refused, but
no figure depends on them.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from service.privacy.plans import Plan
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import condense, leaves, mechanisms_of

LIGHT = 50.0
"""Work up to this is done at once, in the process that receives the request."""

_READ = 0.2  # for each part, in arrays with others
_TIGHT, _MOST_TIGHT = 400.0, 10_000.0  # for one tight figure, and for all: ``tight.work_budget`` limits both
_FOR_TIGHT = 8.0  # for each mechanism, if there are few
_STEPS = 25  # of most searches for the noise that fits
_SCALED = 0.02  # for each mechanism, at each step


def of_guarantee(plan: Condensed, orders: int, deltas: int) -> float:
    """Estimate the work for a whole guarantee, in about milliseconds of one core.

    Args:
        orders: their number.
        deltas: their number.
    """
    distinct = [mechanism.work() for mechanism in set(leaves(plan))]
    tight = min(_TIGHT, _FOR_TIGHT * sum(one.tight for one in distinct))
    at_orders = orders * sum(one.at_order for one in distinct if not one.vectorized)
    return min(tight * deltas, _MOST_TIGHT) + of_proofs(plan) + _READ * plan.size + at_orders


def of_price(plan: Condensed, orders: int) -> float:
    """Estimate the work for a plan's addition to an account's totals, in balls at so many orders.

    Args:
        orders: their number.

    Returns:
        About milliseconds of one core.
    """
    return _READ * plan.size + orders * sum(one.work().at_order for one in set(leaves(plan)))


def of_proofs(plan: Condensed) -> float:
    """Estimate the work for the rho of a plan's mechanisms, which is done once for all accounts that it is charged to.

    Returns:
        About milliseconds of one core; a guarantee has it already.
    """
    return sum(one.work().proof for one in set(leaves(plan)))


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
    curved = plan.size - sum(one.linear for one in distinct)  # counts the nodes, where arrays are added or compared
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
