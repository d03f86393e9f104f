"""Rényi differential privacy: tau(alpha), a bound on the Rényi divergence at each order alpha > 1.

One mechanism at a time in balls, which is what ledgers add up; plans of any size in ``renyi.py``.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial

from flint import arb

from service.privacy.arithmetic import BALLS
from service.privacy.curves import discrete_gaussian, geometric, laplace, randomized_response
from service.privacy.keyed import Figures, remembered
from service.privacy.loss import INFINITE, Loss, largest, least, total
from service.privacy.mechanisms import (
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.numbers import ceilings
from service.privacy.osgt import is_too_wide, osgt_tau, product_tau
from service.privacy.outline import Foldable, Notion, fold
from service.privacy.plan import Neighbouring
from service.privacy.pure import mechanism_epsilon
from service.privacy.tables import Curve
from service.privacy.zcdp import gaussian_rho

SMOOTH_SIGMA_SQUARED = 2
"""From this variance on, alpha*rho is taken for the discrete Gaussian's divergence: it is never
below it, and above it by less than 8 pi² sigma² exp(-2 pi² sigma²) < 2e-15 relative for whole s
(Poisson summation of the theta function in ``curves.discrete_gaussian``)."""


def curve_of(mechanism: Mechanism) -> Curve | None:
    """The formula that has to be evaluated; None where tau is linear in alpha, declared, or infinite."""
    match mechanism:
        case Geometric(scale=scale, sensitivity=s):
            return Curve(geometric, (scale, s))
        case DiscreteGaussian(sigma_squared=variance, sensitivity=s) if variance < SMOOTH_SIGMA_SQUARED:
            return Curve(discrete_gaussian, (variance, s))
        case Laplace(scale=scale, sensitivity=moved):
            return Curve(laplace, (scale, moved))
        case Osgt() | DiscreteOsgt() if not is_too_wide(mechanism):
            return Curve(partial(osgt_tau, mechanism), (), in_arrays=False)
        case RandomizedResponse(epsilon=epsilon, values=values):
            return Curve(randomized_response, (epsilon, values))
        case Declared(guarantee=guarantee) if guarantee.epsilon is not None:
            return Curve(randomized_response, (guarantee.epsilon, 2))
        case _:
            return None


def slope(mechanism: Mechanism) -> Fraction | None:
    """The rational c of a bound tau(alpha) <= c alpha that is used as it is; None where there is none."""
    match mechanism:
        case Gaussian() | DiscreteGaussian():
            return gaussian_rho(mechanism).nats
        case Declared(guarantee=guarantee):
            return guarantee.rho
        case _:
            return None


def is_straight(mechanism: Mechanism) -> bool:
    """Whether tau(alpha) is alpha*rho at every order, so that RDP says exactly what zCDP says."""
    return isinstance(mechanism, Gaussian | DiscreteGaussian) and curve_of(mechanism) is None


def sole_slope(mechanism: Mechanism) -> Fraction | None:
    """``slope`` where it is the only bound, or as good as one: what a ledger's totals may add up as one number."""
    if isinstance(mechanism, Declared) and (mechanism.guarantee.epsilon is not None or mechanism.guarantee.rdp):
        return None
    return slope(mechanism)


def interpolate(rdp: tuple[tuple[Fraction, Fraction], ...], alpha: Fraction) -> Loss:
    """A bound at alpha from bounds at some orders: (alpha-1) tau(alpha) is convex and 0 at alpha = 1.

    So the chord between two bounds is a bound; above the last order nothing is known.
    """
    place = bisect_left(rdp, alpha, key=lambda point: point[0])
    if place == len(rdp):
        return INFINITE
    (high, at_high), z = rdp[place], alpha - 1
    low, at_low = rdp[place - 1] if place else (Fraction(1), Fraction(0))
    share = (alpha - low) / (high - low)
    return Loss(((1 - share) * (low - 1) * at_low + share * (high - 1) * at_high) / z)


@remembered(maxsize=1 << 16)
def mechanism_tau(mechanism: Mechanism, alpha: Fraction) -> Loss:
    """tau(alpha) of one cell moved by the sensitivity (nats), rounded up; pure epsilon bounds it at every order."""
    return _taus(mechanism, (alpha,))[0]


@lru_cache(maxsize=1 << 9)
def mechanism_taus(mechanism: Mechanism, orders: Figures) -> tuple[Loss, ...]:
    """The same at many orders."""
    return _taus(mechanism, orders)


def _taus(mechanism: Mechanism, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
    pure = mechanism_epsilon(mechanism)
    if pure.nats == 0:
        return (pure,) * len(orders)
    bounds = [[Loss(pure.nats, rational=False)] for _ in orders]
    curve, linear = curve_of(mechanism), slope(mechanism)
    if curve is not None:
        places = [place for place, alpha in enumerate(orders) if not _attains_slope(mechanism, alpha)]
        rounded = ceilings(lambda: _from_alpha(curve.prepared(BALLS)), [orders[place] for place in places])
        for place, nats in zip(places, rounded, strict=True):
            bounds[place].append(Loss(nats, rational=False))
    for of_order, alpha in zip(bounds, orders, strict=True):
        if linear is not None:
            of_order.append(Loss(linear * alpha))
        if isinstance(mechanism, Osgt | DiscreteOsgt):
            of_order.append(Loss(product_tau(mechanism, alpha), rational=False))
        if isinstance(mechanism, Declared) and mechanism.guarantee.rdp:
            of_order.append(interpolate(mechanism.guarantee.rdp, alpha))
    return tuple(map(least, bounds))


def _attains_slope(mechanism: Mechanism, alpha: Fraction) -> bool:
    """theta has period 1: at these orders the discrete Gaussian's tau is its slope, which balls would not tell."""
    return isinstance(mechanism, DiscreteGaussian) and (alpha * mechanism.sensitivity).denominator == 1


def _from_alpha(tau: Callable[[arb], arb]) -> Callable[[arb], arb]:
    return lambda alpha: tau(alpha - 1)


def plan_tau(plan: Foldable, neighbouring: Neighbouring, alpha: Fraction) -> Loss:
    """tau(alpha) of a plan, in nats (seed 004, Lemma 3), to 96 bits: what ledgers add up."""
    return fold(plan, neighbouring, Notion(lambda mechanism: mechanism_tau(mechanism, alpha), total, largest))
