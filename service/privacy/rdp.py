"""Rényi differential privacy: tau(alpha), a bound on the Rényi divergence at each order alpha > 1.

Everything is symmetric in the two neighbours, so one direction is computed. z stands for alpha - 1.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from service.privacy.arithmetic import BALLS, DOUBLES, Arithmetic, Number
from service.privacy.loss import INFINITE, Loss, largest, least, total
from service.privacy.mechanisms import (
    Declaration,
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
from service.privacy.numbers import ceiling
from service.privacy.osgt import is_too_wide, osgt_tau, product_tau
from service.privacy.plan import Condensed, Neighbouring, Notion, Priced, fold, leaves
from service.privacy.pure import mechanism_epsilon
from service.privacy.zcdp import gaussian_rho

Doubles = NDArray[np.float64]

SMOOTH_SIGMA_SQUARED = 2
"""From this variance on, alpha*rho is taken for the discrete Gaussian's divergence: it is never
below it, and above it by less than 8 pi² sigma² exp(-2 pi² sigma²) < 2e-15 relative for whole s
(Poisson summation of the theta function in ``_discrete_gaussian``)."""


def _geometric(m: Geometric, alpha: Number, at: Arithmetic) -> Number:
    """s/b + [log B(2 alpha - 1) - log B(1)]/z, the sum over the integers in closed form.

    With q = exp(-1/b) and y = 2 alpha - 1,
    B(y) = 1 + q^(ys) + (1-q) q^y (1 - q^(y(s-1)))/(1 - q^y), which for s = 1 is 1 + q^y: then this is
    privacy.md 2.2. Eq. (17) of seed 004 integrates where it should sum, and is below the truth.
    """
    rate, s, z, y = at.number(1 / m.scale), m.sensitivity, alpha - 1, 2 * alpha - 1
    rest = at.exp(-y * s * rate)
    if s > 1:
        rest += at.expm1(-rate) * at.exp(-y * rate) * (at.expm1(-y * (s - 1) * rate) / -at.expm1(-y * rate))
    return s * rate + (at.log1p(rest) - at.log1p(at.exp(-rate))) / z


def _discrete_gaussian(m: DiscreteGaussian, alpha: Number, at: Arithmetic) -> Number:
    """alpha*rho + log[theta(alpha s)/theta(0)]/z, theta(u) the sum of exp(-(x-u)²/(2 sigma²)) over the integers.

    Completing the square in P^alpha Q^(1-alpha) gives it; theta has period 1, so u is taken off centre.
    """
    variance = at.number(m.sigma_squared)
    u = at.off_centre(alpha, m.sensitivity)
    moved = -u * u / (2 * variance) + at.log1p(at.gaussian_side(u, m.sigma_squared))
    return alpha * m.sensitivity**2 / (2 * variance) + (moved - at.log1p(at.gaussian_side(u * 0, m.sigma_squared))) / (
        alpha - 1
    )


def _laplace(m: Laplace, alpha: Number, at: Arithmetic) -> Number:
    """Mironov 2017, Prop. 6: log[alpha/(2 alpha-1) e^(z e) + z/(2 alpha-1) e^(-alpha e)]/z for e = s/b."""
    epsilon, z, y = at.number(m.sensitivity / m.scale), alpha - 1, 2 * alpha - 1
    return epsilon + at.log1p(z / y * at.expm1(-y * epsilon)) / z


def _randomized_response(epsilon: Fraction, values: int, alpha: Number, at: Arithmetic) -> Number:
    """From K(z) of privacy.md section 2; with two values it dominates every epsilon-DP mechanism (2.1)."""
    e = at.number(epsilon)
    others = at.exp(-(2 * alpha - 1) * e) + (values - 2) * at.exp(-alpha * e)
    return e + (at.log1p(others) - at.log1p((values - 1) * at.exp(-e))) / (alpha - 1)


Curve = Callable[[Number, Arithmetic], Number]


def _curve(mechanism: Mechanism) -> Curve | None:
    """The formula that has to be evaluated; None where tau is linear in alpha, declared, or infinite."""
    match mechanism:
        case Geometric():
            return partial(_geometric, mechanism)
        case DiscreteGaussian() if mechanism.sigma_squared < SMOOTH_SIGMA_SQUARED:
            return partial(_discrete_gaussian, mechanism)
        case Laplace():
            return partial(_laplace, mechanism)
        case Osgt() | DiscreteOsgt() if not is_too_wide(mechanism):
            return partial(osgt_tau, mechanism)
        case RandomizedResponse(epsilon=epsilon, values=values):
            return partial(_randomized_response, epsilon, values)
        case Declared(guarantee=guarantee) if guarantee.epsilon is not None:
            return partial(_randomized_response, guarantee.epsilon, 2)
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
    return isinstance(mechanism, Gaussian | DiscreteGaussian) and _curve(mechanism) is None


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


@lru_cache(maxsize=1 << 17)
def mechanism_tau(mechanism: Mechanism, alpha: Fraction) -> Loss:
    """tau(alpha) of one cell moved by the sensitivity (nats), rounded up; pure epsilon bounds it at every order."""
    pure = mechanism_epsilon(mechanism)
    if pure.nats == 0:
        return pure
    bounds = [Loss(pure.nats, rational=False)]
    curve, linear = _curve(mechanism), slope(mechanism)
    if isinstance(mechanism, DiscreteGaussian) and (alpha * mechanism.sensitivity).denominator == 1:
        curve = None  # theta has period 1: the slope's bound is attained, which balls would not tell
    if curve is not None:
        rounded = ceiling(lambda: curve(BALLS.number(alpha), BALLS))
        bounds.append(Loss(rounded, rational=False))
    if linear is not None:
        bounds.append(Loss(linear * alpha))
    if isinstance(mechanism, Osgt | DiscreteOsgt):
        bounds.append(Loss(product_tau(mechanism, alpha), rational=False))
    if isinstance(mechanism, Declared) and mechanism.guarantee.rdp:
        bounds.append(interpolate(mechanism.guarantee.rdp, alpha))
    return least(bounds)


def plan_tau(plan: Priced, neighbouring: Neighbouring, alpha: Fraction) -> Loss:
    """tau(alpha) of a plan, in nats (seed 004, Lemma 3), rounded up."""
    return fold(plan, neighbouring, Notion(lambda mechanism: mechanism_tau(mechanism, alpha), total, largest))


def plan_curve(plan: Priced, neighbouring: Neighbouring, alphas: Doubles) -> Doubles:
    """tau at many orders in doubles: to choose an order by, never to report."""
    notion = Notion(partial(_approximate, alphas), _sum, _sum_of_largest)
    with np.errstate(all="ignore"):  # a nan or an infinity only makes an order unattractive
        return fold(plan, neighbouring, notion)


def _approximate(alphas: Doubles, mechanism: Mechanism) -> Doubles:
    pure = mechanism_epsilon(mechanism).nats
    bounds = [np.full_like(alphas, np.inf if pure is None else DOUBLES.number(pure))]
    curve, linear = _curve(mechanism), slope(mechanism)
    if curve is not None:
        bounds.append(np.asarray(curve(alphas, DOUBLES)))
    if linear is not None:
        bounds.append(DOUBLES.number(linear) * alphas)
    if isinstance(mechanism, Osgt | DiscreteOsgt):
        at_0, at_1 = (DOUBLES.number(product_tau(mechanism, Fraction(order))) for order in (0, 1))
        bounds.append(at_0 + (at_1 - at_0) * alphas)
    if isinstance(mechanism, Declared) and mechanism.guarantee.rdp:
        bounds.append(_interpolated(mechanism.guarantee, alphas))
    return np.asarray(np.fmin.reduce(bounds))


def _interpolated(guarantee: Declaration, alphas: Doubles) -> Doubles:
    orders = np.array([1.0] + [DOUBLES.number(order) for order, _ in guarantee.rdp])
    weighted = np.array([0.0] + [DOUBLES.number((order - 1) * tau) for order, tau in guarantee.rdp])
    return np.asarray(np.interp(alphas, orders, weighted, right=np.inf) / (alphas - 1))


def declared_orders(plan: Condensed) -> set[Fraction]:
    """The orders at which a plan's curve may have a kink, or end: a minimum lies often exactly there."""
    guarantees = [m.guarantee for m in leaves(plan) if isinstance(m, Declared)]
    guarantees += [m.add_remove for m in leaves(plan) if isinstance(m, Declared) and m.add_remove is not None]
    return {order for guarantee in guarantees for order, _ in guarantee.rdp}


def _sum(weighted: Iterable[tuple[Doubles, int]]) -> Doubles:
    return np.asarray(sum(float(count) * cost for cost, count in weighted))


def _sum_of_largest(weighted: Iterable[tuple[Doubles, int]], how_many: int) -> Doubles:
    listed = list(weighted)
    costs = np.stack([cost for cost, _ in listed])
    counts = np.array([float(count) for _, count in listed])
    order = np.argsort(-costs, axis=0)
    before = np.cumsum(counts[order], axis=0) - counts[order]
    taken = np.clip(how_many - before, 0, counts[order])
    return np.asarray((np.take_along_axis(costs, order, axis=0) * taken).sum(axis=0, where=taken > 0))
