"""Zero-concentrated differential privacy: rho, the slope that bounds every Rényi divergence."""

from fractions import Fraction
from functools import lru_cache

from service.privacy.arithmetic import BALLS, Arithmetic, Number
from service.privacy.costs import Costs, Straight
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
from service.privacy.numbers import ceiling
from service.privacy.osgt_zcdp import osgt_rho
from service.privacy.outline import Foldable, Notion, fold
from service.privacy.plan import Neighbouring
from service.privacy.pure import mechanism_epsilon
from service.privacy.tables import Curve


def _pure_rho(epsilon: Number, at: Arithmetic) -> Number:
    """epsilon-DP implies (epsilon tanh(epsilon/2))-zCDP, which is tight (privacy.md section 2.1).

    The usual epsilon²/2 (Bun and Steinke 2016, Prop. 3.3) is looser: 4.5 against 2.72 at epsilon = 3.
    """
    return epsilon * -at.expm1(-epsilon) / (1 + at.exp(-epsilon))


def _geometric_rho(scale: Number, sensitivity: Number, at: Arithmetic) -> Number:
    """The KL divergence between the noise and the noise moved by s; the sup of tau/alpha is at alpha -> 1.

    With e = 1/b, S = s e and q = exp(-e) the loss is S left of 0, -S right of s and (s-2x) e between; its mean
    is S - (e/sinh e)(1 - q^s), for s = 1 e tanh(e/2). Without cancellation: e/sinh e is (1 + C)(1 - t²) for
    t = tanh(e/2), C = (e/2) coth(e/2) - 1, and 1 - q^s is S - x(-S) for x(u) = e^u - 1 - u.
    """
    rate = 1 / scale
    loss, q, excess = sensitivity * rate, at.exp(-rate), at.coth_excess(rate / 2)
    t, rest = -at.expm1(-rate) / (1 + q), 4 * q / ((1 + q) * (1 + q))  # rest = 1 - t²
    return loss * (t * t - excess * rest) + (1 + excess) * rest * at.exp_excess(-loss)


def _laplace_rho(scale: Number, sensitivity: Number, at: Arithmetic) -> Number:
    """S - 1 + exp(-S) for S = s/b: the KL divergence, where the sup of tau/alpha is (privacy.md 2.1)."""
    return at.exp_excess(-sensitivity / scale)


def rho_curve_of(mechanism: Mechanism) -> Curve | None:
    """The formula of rho that has to be evaluated; None where rho is rational or infinite."""
    match mechanism:
        case Geometric(scale=scale, sensitivity=s):
            return Curve(_geometric_rho, (scale, s))
        case Laplace(scale=scale, sensitivity=moved):
            return Curve(_laplace_rho, (scale, moved))
        case RandomizedResponse(epsilon=epsilon):
            # Exact for two values and a bound above: k-ary response is epsilon-DP.
            return Curve(_pure_rho, (epsilon,))
        case Declared(guarantee=guarantee) if guarantee.epsilon is not None:
            return Curve(_pure_rho, (guarantee.epsilon,))
        case _:
            return None


def gaussian_rho(mechanism: Gaussian | DiscreteGaussian) -> Loss:
    """s²/(2 sigma²), for the discrete Gaussian too (Canonne, Kamath, Steinke 2020, Theorem 4)."""
    s, variance = mechanism.sensitivity, mechanism.sigma_squared
    return Loss(Fraction(s.numerator**2 * variance.denominator, 2 * s.denominator**2 * variance.numerator))


@lru_cache(maxsize=65536)
def mechanism_rho(mechanism: Mechanism) -> Loss:
    """zCDP loss (nats) of one cell moved by the sensitivity; irrational ones are rounded up from balls."""
    match mechanism:
        case Gaussian() | DiscreteGaussian():
            return gaussian_rho(mechanism)
        case Osgt() | DiscreteOsgt():
            return Loss(osgt_rho(mechanism), rational=False)
        case Declared(guarantee=guarantee):
            rho = Loss(guarantee.rho) if guarantee.rho is not None else INFINITE
            return least([rho, _irrational(mechanism)])
        case _:
            return _irrational(mechanism)


def _irrational(mechanism: Mechanism) -> Loss:
    """The formula's value rounded up, or a looser rational bound where that is smaller.

    epsilon²/2 bounds every epsilon-DP mechanism (Bun and Steinke 2016, Prop. 3.3); it is the smaller
    only where cancellation exhausts the precision, at epsilon below about 1e-600.
    """
    curve, pure = rho_curve_of(mechanism), mechanism_epsilon(mechanism).nats
    if curve is None or pure is None:
        return INFINITE
    rounded, otherwise = ceiling(lambda: curve.at(BALLS)), pure * pure / 2
    return Loss(otherwise if rounded is None else min(rounded, otherwise), rational=False)


def plan_rho(plan: Foldable, neighbouring: Neighbouring) -> Loss:
    """zCDP rho of a plan, in nats (seed 004, Lemma 2), to 96 bits: what ledgers add up."""
    return fold(plan, neighbouring, Notion(mechanism_rho, total, largest))


def certified_rho(plan: Straight) -> Loss:
    """The same in intervals of doubles, for plans of thousands of mechanisms: less than 1e-11 of itself above.

    ``plan``: with the mechanisms whose rho is rational.
    """
    costs = Costs(plan, _formula, lambda mechanism, _: mechanism_rho(mechanism), orders=False)
    return costs.bounds([Fraction(1)])[0]


def _formula(mechanism: Mechanism) -> Curve | None:
    """Where it says all that is known."""
    return None if isinstance(mechanism, Declared) else rho_curve_of(mechanism)
