"""Between notions: from RDP and zCDP to (epsilon, delta), and back.

Any order gives a valid bound, so the order is searched for in doubles and the bound is then
evaluated once, in ball arithmetic, rounded to the safe side (privacy.md section 4).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from flint import arb
from numpy.typing import NDArray

from service.privacy.arithmetic import DOUBLES
from service.privacy.loss import INFINITE, Loss
from service.privacy.numbers import ball, ceiling

Doubles = NDArray[np.float64]
Exact = Callable[[Fraction], Loss]
"""tau at one order, as an upper bound."""
Rough = Callable[[Doubles], Doubles]
"""tau at many orders, in doubles."""


@dataclass(frozen=True, slots=True)
class AtOrder:
    """A bound and the order alpha that gave it; None where the bound is a cap that needs no order."""

    loss: Loss
    alpha: Fraction | None


Objective = Callable[[Doubles, Doubles], Doubles]
"""What an order is chosen to minimise, from log(alpha-1) and alpha."""


def best_order(objective: Objective) -> Fraction:
    """The order alpha > 1 that minimises ``objective(log(alpha-1), alpha)``, to about 1e-6 in log(alpha-1).

    Over all alpha from 1 + e^-40 to e^700 and not over a table of orders: at rho = 1e-6 the best
    order is in the thousands, and ten repetitions of anything move it.
    """
    low, high = -40.0, 700.0
    points = 371
    while True:
        t = np.linspace(low, high, points)
        with np.errstate(all="ignore"):
            values = objective(t, 1 + np.exp(t))
        best = t[np.argmin(np.where(np.isnan(values), np.inf, values))]
        step = (high - low) / (points - 1)
        if step < 1e-6:
            return 1 + Fraction(float(np.exp(best)))
        low, high, points = best - step, best + step, 65


def _rough_excess(t: Doubles, alpha: Doubles) -> Doubles:
    """(alpha-1) log(1-1/alpha) - log(alpha): what ``conversion`` adds to log(1/delta)."""
    return np.asarray(np.exp(t) * -np.log1p(np.exp(-t)) - np.log(alpha))


def _excess(alpha: Fraction) -> arb:
    """(alpha-1) log(1-1/alpha) - log(alpha)."""
    return ball(alpha - 1) * ball(-1 / alpha).log1p() - ball(alpha).log()


def conversion(alpha: Fraction, delta: Fraction) -> Fraction:
    """What epsilon exceeds tau(alpha) by: [log(1/delta) + (alpha-1) log(1-1/alpha) - log(alpha)]/(alpha-1).

    Canonne, Kamath, Steinke 2020, Prop. 12 (seed 004, Lemma 4), rounded up; it can be negative.

    Raises:
        ArithmeticError: it is not a number, as at delta = 0.
    """
    needed = ceiling(lambda: (_excess(alpha) - ball(delta).log()) / ball(alpha - 1))
    if needed is None:
        raise ArithmeticError("expected an order above 1 and a delta above 0")
    return needed


def _candidates(objective: Objective, kinks: Iterable[Fraction]) -> list[Fraction]:
    """Orders worth an exact evaluation: the best of all, and the best of the curve's own orders.

    A minimum at a kink is met by the search to 1e-6 only, and at the last order of a declared curve it
    can be a last digit beyond, where the curve is infinite.
    """
    orders = sorted(kinks)
    if not orders:
        return [best_order(objective)]
    with np.errstate(all="ignore"):
        t = np.array([_rough_log(order - 1) for order in orders])
        values = objective(t, np.array([DOUBLES.number(order) for order in orders]))
    return [best_order(objective), orders[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]]


def rdp_to_epsilon(
    exact: Exact, rough: Rough, delta: Fraction, cap: Loss = INFINITE, kinks: Iterable[Fraction] = ()
) -> AtOrder:
    """The least epsilon that a Rényi curve gives at ``delta`` > 0, never above ``cap``, the pure epsilon.

    ``kinks``: the orders at which the curve may have a kink, or end.
    """
    needed = _rough_log(1 / delta)
    least = AtOrder(cap, None)
    for alpha in _candidates(lambda t, alpha: rough(alpha) + (needed + _rough_excess(t, alpha)) / np.exp(t), kinks):
        tau = exact(alpha).nats
        if tau is not None:
            epsilon = Loss(max(tau + conversion(alpha, delta), Fraction(0)), rational=False)
            least = AtOrder(epsilon, alpha) if epsilon < least.loss else least
    return least


def rdp_to_delta(exact: Exact, rough: Rough, epsilon: Fraction, kinks: Iterable[Fraction] = ()) -> AtOrder:
    """The least delta that a Rényi curve gives at ``epsilon``, at most 1: the same inequality, solved for delta."""
    target = DOUBLES.number(epsilon)
    least = AtOrder(Loss(Fraction(1)), None)
    for alpha in _candidates(lambda t, alpha: np.exp(t) * (rough(alpha) - target) + _rough_excess(t, alpha), kinks):
        tau = exact(alpha).nats
        if tau is not None:
            delta = Loss(ceiling(partial(_delta_at, alpha, tau, epsilon)), rational=False)
            least = AtOrder(delta, alpha) if delta < least.loss else least
    return least


def _delta_at(alpha: Fraction, tau: Fraction, epsilon: Fraction) -> arb:
    return (ball((alpha - 1) * (tau - epsilon)) + _excess(alpha)).exp()


def epsilon_to_rho_at(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest rho whose zCDP guarantee implies (epsilon, delta), rounded down.

    For each order, rho = (epsilon - conversion)/alpha suffices; the best order gives the most.
    """
    needed, target = _rough_log(1 / delta), DOUBLES.number(epsilon)
    alpha = best_order(lambda t, alpha: ((needed + _rough_excess(t, alpha)) / np.exp(t) - target) / alpha)
    return max((epsilon - conversion(alpha, delta)) / alpha, Fraction(0))


def rho_to_epsilon_analytic(rho: Fraction, delta: Fraction) -> Loss:
    """rho + sqrt(4 rho log(1/delta)) (Bun and Steinke 2016, Prop. 1.3; seed 004, Lemma 5): for comparison."""
    return Loss(ceiling(lambda: ball(rho) + (-4 * ball(rho) * ball(delta).log()).sqrt()), rational=False)


def _rough_log(value: Fraction) -> float:
    """log of a rational that may be beyond the doubles."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    scaled = value / (1 << shift) if shift >= 0 else value * (1 << -shift)
    return float(np.log(float(scaled)) + shift * np.log(2))
