"""Rényi differential privacy: tau(alpha), a bound on the Rényi divergence at each order alpha > 1.

This module evaluates one mechanism at a time in balls, and ledgers add these figures up. ``renyi.py`` evaluates plans
of any size.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from flint import arb

from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.arithmetic import BALLS
from service.privacy.numerics.keyed import FractionsKey, memoised
from service.privacy.numerics.loss import INFINITE, Loss, least_loss
from service.privacy.numerics.numbers import ceilings


def interpolate(rdp: tuple[tuple[Fraction, Fraction], ...], alpha: Fraction) -> Loss:
    """Return a bound at alpha from bounds at some orders: (alpha-1) tau(alpha) is convex and 0 at alpha = 1.

    So the chord between two bounds is a bound; above the last order nothing is known.

    Args:
        rdp: pairs of an order and a bound (nats), by ascending order.
        alpha: the order asked for, above 1.

    Returns:
        Nats, on the chord exactly.
    """
    place = bisect_left(rdp, alpha, key=lambda point: point[0])
    if place == len(rdp):
        return INFINITE
    (high, at_high), z = rdp[place], alpha - 1
    low, at_low = rdp[place - 1] if place else (Fraction(1), Fraction(0))
    share = (alpha - low) / (high - low)
    return Loss(((1 - share) * (low - 1) * at_low + share * (high - 1) * at_high) / z)


@memoised(maxsize=1 << 16)
def mechanism_tau(mechanism: Mechanism, alpha: Fraction) -> Loss:
    """Return tau(alpha) of one cell moved by the sensitivity (nats), rounded up; pure epsilon caps it.

    Args:
        alpha: above 1.
    """
    return _bounded_taus(mechanism, (alpha,))[0]


@lru_cache(maxsize=1 << 9)
def mechanism_taus(mechanism: Mechanism, orders: FractionsKey) -> tuple[Loss, ...]:
    """Return tau of one cell at many orders (nats), rounded up.

    Args:
        orders: each above 1.

    Returns:
        One bound for each order, in their order.
    """
    return _bounded_taus(mechanism, orders)


def _bounded_taus(mechanism: Mechanism, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
    pure = mechanism.pure_epsilon()
    if pure.nats == 0:
        return (pure,) * len(orders)
    bounds = [[Loss(pure.nats, rational=False)] for _ in orders]
    known = mechanism.rdp()
    if known.curve is not None:
        curve, exact_at = known.curve, known.attained_at
        places = [
            place for place, alpha in enumerate(orders) if exact_at is None or (alpha * exact_at).denominator != 1
        ]
        rounded = ceilings(lambda: _at_alpha(curve.prepared(BALLS)), [orders[place] for place in places])
        for place, nats in zip(places, rounded, strict=True):
            bounds[place].append(Loss(nats, rational=False))
    for of_order, alpha in zip(bounds, orders, strict=True):
        if known.slope is not None:
            of_order.append(Loss(known.slope * alpha))
        if known.line is not None:
            at_0, per_order = known.line
            of_order.append(Loss(at_0 + per_order * alpha, rational=False))
        if known.points:
            of_order.append(interpolate(known.points, alpha))
    return tuple(map(least_loss, bounds))


def _at_alpha(tau: Callable[[arb], arb]) -> Callable[[arb], arb]:
    return lambda alpha: tau(alpha - 1)
