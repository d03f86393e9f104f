"""delta at an epsilon of one cell of noise, by closed forms in balls, rounded up."""

import math
from fractions import Fraction

from flint import arb
from scipy.special import log_ndtr  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.laws.loss_laws import OsgtLoss
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.noise_tails import tail
from service.privacy.numerics.numbers import ball, ceiling


def rough_osgt_delta(loss: OsgtLoss, epsilon: float) -> float:
    """Return log delta of one cell of offset tails, in doubles; see ``osgt_delta``.

    Args:
        epsilon: nats.
    """
    sigma, s = math.sqrt(loss.sigma_squared), float(loss.sensitivity)
    s, m = s / sigma, float(loss.m) / sigma
    base = math.log(2) + log_ndtr(-m)
    if epsilon >= s * (s / 2 + m):
        near, far = log_ndtr(s / 2 - epsilon / s), epsilon + log_ndtr(-s / 2 - epsilon / s)
        return float(near + math.log(-math.expm1(min(far - near, -1e-17))) - base)
    crossing = (s * (s / 2 + m) - epsilon) / (s + 2 * m)
    inside = math.exp(log_ndtr(-crossing - m) - base) + math.exp(epsilon + log_ndtr(crossing - s - m) - base)
    return math.log(max(1 - inside, 1e-300))


def osgt_delta(loss: OsgtLoss, epsilon: Fraction) -> Fraction | None:
    """Return delta of one cell of offset tails, rounded up (Sadeghi and Korki 2022; below the kink the same integral).

    All is in units of sigma, and Q is the normal tail. The loss at -y is s (s/2 + m + y) for y >= 0, and it falls
    linearly from 0 to the right. If epsilon is at least s (s/2 + m), larger losses lie left of 0, and delta is
    (Q(epsilon/s - s/2) - e^epsilon Q(epsilon/s + s/2)) over 2 Q(m). Otherwise they lie left of y* = (s (s/2 + m) -
    epsilon)/(s + 2m), between the kinks.

    Args:
        epsilon: nats.

    Returns:
        None if no precision suffices.
    """
    v, s, m = loss.sigma_squared, loss.sensitivity, loss.m
    beyond = epsilon * v >= s * (s / 2 + m)
    crossing = Fraction(0) if beyond else (s * (s / 2 + m) - v * epsilon) / (s + 2 * m)

    def evaluate() -> arb:
        sigma = ball(v).sqrt()
        base = 2 * _q(ball(m) / sigma)
        if beyond:
            near, far = ball(v * epsilon / s - s / 2), ball(v * epsilon / s + s / 2)
            return (_q(near / sigma) - ball(epsilon).exp() * _q(far / sigma)) / base
        left, right = ball(m + crossing), ball(m + s - crossing)
        return 1 - (_q(left / sigma) + ball(epsilon).exp() * _q(right / sigma)) / base

    return ceiling(evaluate)


def integer_delta(law: NoiseLaw, s: int, epsilon: Fraction, negligible: Fraction) -> Fraction | None:
    """Return delta of one cell of integer noise, rounded up, or ``negligible`` if that is larger.

    It is P(X <= x*) - e^epsilon P(X <= x* - s). Losses fall from each integer to the next; x* is the last one with a
    loss of at least epsilon, left of 0 or between 0 and s.

    Args:
        s: the sensitivity, in the unit of the noise.
        epsilon: nats.

    Returns:
        None if no precision suffices.
    """
    v, m = law.sigma_squared or Fraction(0), law.offset
    short = Fraction(s * s, 2) + s * m - v * epsilon
    last = math.floor(short / (s if short < 0 else s + 2 * m))

    def up_to(x: int) -> arb:
        return tail(law, -x - 1) / 2 if x < 0 else 1 - tail(law, x) / 2

    return ceiling(lambda: (up_to(last) - ball(epsilon).exp() * up_to(last - s)).max(ball(negligible)))


def _q(x: arb) -> arb:
    return (x / arb(2).sqrt()).erfc() / 2
