"""Zero-concentrated differential privacy: rho, the slope that bounds every Rényi divergence."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from flint import arb

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
from service.privacy.numbers import ball, ceiling
from service.privacy.osgt_zcdp import osgt_rho
from service.privacy.plan import Neighbouring, Notion, Priced, fold


def epsilon_to_rho(epsilon: Fraction) -> Loss:
    """epsilon-DP implies (epsilon tanh(epsilon/2))-zCDP, which is tight (privacy.md section 2.1).

    The usual epsilon²/2 (Bun and Steinke 2016, Prop. 3.3) is looser: 4.5 against 2.72 at epsilon = 3.
    """
    return _irrational(lambda: ball(epsilon) * (ball(epsilon) / 2).tanh(), epsilon * epsilon / 2)


def geometric_rho(mechanism: Geometric) -> Loss:
    """The KL divergence between the noise and the noise moved by s; the sup of tau/alpha is at alpha -> 1.

    With q = exp(-1/b) the loss is s/b left of 0, -s/b right of s and (s-2x)/b between; its mean is
    (1/b) [s - 2q (1-q^s)/(1-q²)], which for s = 1 is (1/b) tanh(1/(2b)).
    """
    inverse, s = 1 / mechanism.scale, mechanism.sensitivity

    def divergence() -> arb:
        rate = ball(inverse)
        return rate * (s - (-rate).exp() * (-s * rate).expm1() / (-2 * rate).expm1() * 2)

    return _irrational(divergence, (s * inverse) ** 2 / 2)


def laplace_rho(mechanism: Laplace) -> Loss:
    """e - 1 + exp(-e) for e = s/b: the KL divergence, where the sup of tau/alpha is (privacy.md 2.1)."""
    epsilon = mechanism.sensitivity / mechanism.scale
    return _irrational(lambda: ball(epsilon) + (-ball(epsilon)).expm1(), epsilon * epsilon / 2)


@lru_cache(maxsize=65536)
def gaussian_rho(mechanism: Gaussian | DiscreteGaussian) -> Loss:
    """s²/(2 sigma²), for the discrete Gaussian too (Canonne, Kamath, Steinke 2020, Theorem 4)."""
    return Loss(Fraction(mechanism.sensitivity) ** 2 / (2 * mechanism.sigma_squared))


def _irrational(evaluate: Callable[[], arb], otherwise: Fraction) -> Loss:
    """The value rounded up, or the looser rational bound where that is smaller.

    epsilon²/2 bounds every epsilon-DP mechanism (Bun and Steinke 2016, Prop. 3.3); it is the smaller
    only where cancellation exhausts the precision, at epsilon below about 1e-600.
    """
    rounded = ceiling(evaluate)
    return Loss(otherwise if rounded is None else min(rounded, otherwise), rational=False)


@lru_cache(maxsize=65536)
def mechanism_rho(mechanism: Mechanism) -> Loss:
    """zCDP loss (nats) of one cell moved by the sensitivity."""
    match mechanism:
        case Gaussian() | DiscreteGaussian():
            return gaussian_rho(mechanism)
        case Geometric():
            return geometric_rho(mechanism)
        case Laplace():
            return laplace_rho(mechanism)
        case Osgt() | DiscreteOsgt():
            return Loss(osgt_rho(mechanism), rational=False)
        case RandomizedResponse(epsilon=epsilon):
            # Exact for two values and a bound above: k-ary response is epsilon-DP.
            return epsilon_to_rho(epsilon)
        case Declared(guarantee=guarantee):
            rho = Loss(guarantee.rho) if guarantee.rho is not None else INFINITE
            return rho if guarantee.epsilon is None else least([rho, epsilon_to_rho(guarantee.epsilon)])
        case _:
            return INFINITE


_RHO = Notion(mechanism_rho, total, largest)


def plan_rho(plan: Priced, neighbouring: Neighbouring) -> Loss:
    """zCDP rho of a plan, in nats (seed 004, Lemma 2)."""
    return fold(plan, neighbouring, _RHO)
