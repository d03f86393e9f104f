"""The trade-off of a plan: how often a test that is to tell two neighbours apart must miss.

Whoever looks at all outputs of a plan and decides between two neighbours accuses wrongly with some probability a, the
false positives, and misses with another one. By (epsilon, delta)-privacy, whichever of the two is true, the false
negatives are at least 1 - delta - e^epsilon a and e^-epsilon (1 - delta - a), for every epsilon and its delta
(Wasserman and Zhou 2010, Theorem 2.4; Dong, Roth and Su 2022, Proposition 2.12). Each upper bound on a delta gives a
lower bound here, so the search below decides only how good the bound is.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from service.privacy.accounting.guarantee import PlanProfile
from service.privacy.numerics.numbers import ball, floor
from service.privacy.plans.walking import Neighbouring, Priced
from service.privacy.tight import MOST_TOGETHER
from service.privacy.tight.work_budget import work_limit

FIGURES, ORDERS = 16, 400
"""The work for one share of a trade-off, in tight figures and in orders at which a plan without one is evaluated."""
_MOST_OTHERS = 25  # values of delta in one search that come from other analyses, which may take long
_FIRST, _LAST = 2.0**-8, 300.0
"""Nats: of the epsilons that are tried first, each twice the one before."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 45  # at most, of a search between two neighbours of the best one of these: to 1e-9 of their distance
_FLAT = 1e-9  # of a value: the search ends where two steps find no larger difference


def false_negatives(plan: Priced, neighbouring: Neighbouring, shares: Sequence[Fraction]) -> list[Fraction]:
    """Return lower bounds on the false negatives of every test with so many false positives.

    Args:
        shares: probabilities of false positives, each above 0 and below 1.

    Returns:
        One probability for each, rounded down.

    Raises:
        ValueError: a mechanism has no loss under this relation (``Mechanism.moved``).
    """
    profile, known = PlanProfile.of(plan, neighbouring, FIGURES), dict[float, Fraction]()
    found = []
    for share in shares:
        with work_limit(MOST_TOGETHER / len(shares)):
            found.append(_false_negatives(profile, known, share))
    return found


def _false_negatives(profile: PlanProfile, known: dict[float, Fraction], share: Fraction) -> Fraction:
    """Return the bound for one share; ``known`` has bounds on delta by epsilon, to which others are added.

    Where there is no tight delta, or the work has been done that one share may take, deltas are those of other
    analyses, which are above it, and after these 1. So the best of all epsilons that were tried is taken, and not that
    at which the search ended.
    """
    positives, others = float(share), 0

    def delta(epsilon: float) -> float:
        nonlocal others
        if epsilon not in known:
            found = profile.tight_delta(Fraction(epsilon))
            if found is None:
                others += 1
                if others > _MOST_OTHERS:
                    return 1.0
                found = profile.other_delta(Fraction(epsilon))
            known[epsilon] = found
        return float(known[epsilon])

    def missed(epsilon: float) -> float:
        return 1 - delta(epsilon) - math.exp(epsilon) * positives

    def mirrored(epsilon: float) -> float:
        return (1 - delta(epsilon) - positives) * math.exp(-epsilon)

    _look_for_the_largest(missed)
    others = 0
    _look_for_the_largest(mirrored)
    one, other = max(known, key=missed), max(known, key=mirrored)
    return max(
        Fraction(0),
        floor(lambda: ball(1 - known[one]) - ball(Fraction(one)).exp() * ball(share)),
        floor(lambda: ball(1 - known[other] - share) * (-ball(Fraction(other))).exp()),
    )


def _look_for_the_largest(value: Callable[[float], float]) -> None:
    """Try places up to that of the largest value, which rises to it and falls from there on: delta is convex in exp."""
    places = [0.0, _FIRST]
    while places[-1] < _LAST and value(places[-1]) >= value(places[-2]):
        places.append(2 * places[-1])
    low, high, flat = places[max(len(places) - 3, 0)], places[-1], 0
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_left, at_right = value(left), value(right)
        flat = flat + 1 if abs(at_left - at_right) < _FLAT * abs(at_left) else 0
        if flat == 2:
            return
        low, high = (left, high) if at_left < at_right else (low, right)
