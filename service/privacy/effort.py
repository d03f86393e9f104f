"""How much work a plan's figures take, counted before any of it is done: about milliseconds of one core.

Rough, and of costly plans rather too much: it decides where something is computed and what is refused, never a figure.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Mechanism, Osgt
from service.privacy.plan import Condensed, Plan, condense, leaves, mechanisms_of

LIGHT = 50.0
"""What is done at once, wherever it is."""

_READ = 0.2  # a part, in arrays with others
_TIGHT, _MOST_TIGHT = 400.0, 10_000.0  # one tight figure, and all of them: ``tight.work`` bounds both
_FOR_TIGHT = 8.0  # each mechanism of few
_SUMMED = 10  # below this variance a discrete Gaussian's divergence is a sum
_PROVEN = 500.0  # that rho of offset tails on the integers is what it is
_STEPS = 25  # of most searches for the noise that fits
_SCALED = 0.02  # a mechanism, at each step


def of_guarantee(plan: Condensed, orders: int, deltas: int) -> float:
    """A whole guarantee, at so many orders and deltas."""
    distinct = set(leaves(plan))
    offset = [one for one in distinct if isinstance(one, Osgt | DiscreteOsgt)]
    proven = _PROVEN * sum(isinstance(one, DiscreteOsgt) for one in offset)
    tight = min(_TIGHT, _FOR_TIGHT * sum(not isinstance(one, Gaussian) for one in distinct))
    return min(tight * deltas, _MOST_TIGHT) + proven + _READ * plan.size + orders * sum(map(_at_order, offset))


def of_price(plan: Condensed, orders: int) -> float:
    """What a plan adds to an account's totals, in balls at so many orders."""
    return _READ * plan.size + orders * sum(map(_at_order, set(leaves(plan))))


def of_search(plan: Plan, orders: Sequence[tuple[Fraction, ...]]) -> float:
    """The search for the noise with which a plan fits accounts with these orders each; infinite for offset tails."""
    condensed = condense(plan)
    unlike = set(leaves(condensed))
    if any(isinstance(one, Osgt | DiscreteOsgt) for one in unlike):
        return math.inf
    straight = sum(isinstance(one, Gaussian | DiscreteGaussian) for one in unlike)
    curved = condensed.size - straight  # with the nodes, at which arrays are added up or compared
    estimated = sum(0.1 + 0.003 * len(one) + curved * (0.05 + 0.0003 * len(one)) for one in set(orders))
    compared = 0.001 * sum(map(len, orders))
    return _STEPS * (_SCALED * sum(1 for _ in mechanisms_of(plan)) + estimated + compared)


def _at_order(mechanism: Mechanism) -> float:
    match mechanism:
        case Gaussian():
            return 0.0  # a multiple of the order
        case DiscreteGaussian(sigma_squared=variance):
            return 0.0 if variance >= _SUMMED else 0.5
        case DiscreteOsgt():
            return 1.2
        case Osgt():
            return 0.3
        case _:
            return 0.03
