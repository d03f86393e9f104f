"""Tight (epsilon, delta) of one continuous Gaussian mechanism: a closed form, in ball arithmetic.

A composition of continuous Gaussians is one too, whose rho is the sum. The closed form must not stand for the discrete
Gaussian, whose profile it crosses again and again. At delta = 1e-10 it gives 1.04987 for sigma² = 31.36, where the
truth is 1.05104, and 1.18160 for 25, where it is 1.17869.
"""

from collections.abc import Callable
from fractions import Fraction

from flint import arb

from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import ball, ceiling


def gaussian_delta(rho: Fraction, epsilon: Fraction) -> Loss:
    """Return delta(epsilon) of Gaussian noise, rounded up (Balle and Wang 2018, Theorem 8).

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) for mu = sqrt(2 rho).

    Args:
        rho: of the noise, nats; at 0 there is no loss.
        epsilon: nats.
    """
    if rho == 0:
        return Loss(Fraction(0))

    return Loss(ceiling(lambda: delta_of_mu((2 * ball(rho)).sqrt(), ball(epsilon))), rational=False)


def delta_of_mu(mu: arb, epsilon: arb) -> arb:
    """Return delta of Gaussian noise whose loss has the standard deviation mu, above 0."""
    return _normal_distribution(mu / 2 - epsilon / mu) - epsilon.exp() * _normal_distribution(-mu / 2 - epsilon / mu)


def gaussian_epsilon(rho: Fraction, delta: Fraction, above: Fraction) -> Loss:
    """Return the least epsilon of Gaussian noise at ``delta``, rounded up by less than 1e-12 of itself.

    Args:
        rho: of the noise, nats.
        delta: above 0.
        above: an epsilon that is known to hold, such as that of the zCDP conversion.

    Returns:
        An upper bound in nats: the bracket's upper end, which holds by a certified evaluation whatever the search did.
    """
    low, high = Fraction(0), above
    if _holds(rho, low, delta):
        return Loss(low, rational=False)
    return Loss(_bisected(lambda epsilon: _holds(rho, epsilon, delta), high, low), rational=False)


def gaussian_rho_at(epsilon: Fraction, delta: Fraction, below: Fraction) -> Fraction:
    """Return the largest rho of Gaussian noise that keeps (epsilon, delta), rounded down by less than 1e-12 of itself.

    Args:
        epsilon: nats.
        delta: above 0.
        below: a rho above 0 that is known to keep it, such as that of the analytic conversion.

    Returns:
        A lower bound in nats: the bracket's lower end, which keeps (epsilon, delta) by a certified evaluation.
    """
    low, high = below, 2 * below
    while _holds(high, epsilon, delta):
        low, high = high, 2 * high
    return _bisected(lambda rho: _holds(rho, epsilon, delta), low, high)


def _bisected(holds: Callable[[Fraction], bool], inside: Fraction, outside: Fraction) -> Fraction:
    """Return the point where a condition ceases to hold, by bisection, on the side where it holds."""
    while abs(outside - inside) > max(inside, outside) / (1 << 42):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


def _holds(rho: Fraction, epsilon: Fraction, delta: Fraction) -> bool:
    reached = gaussian_delta(rho, epsilon).nats
    return reached is not None and reached <= delta


def _normal_distribution(x: arb) -> arb:
    """Return the standard normal distribution function."""
    return (-x / arb(2).sqrt()).erfc() / 2
