"""Conversions between notions: from RDP and zCDP to (epsilon, delta), and back.

Any order gives a valid bound. So the order is searched for in doubles, and the bound is then evaluated once, in ball
arithmetic, rounded to the safe side.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from flint import arb

from service.privacy.numerics.arithmetic import Doubles, double
from service.privacy.numerics.loss import INFINITE, Loss
from service.privacy.numerics.numbers import ball, ceiling, floor

ExactCurve = Callable[[Fraction], Loss]
"""tau at one order, as an upper bound."""
RoughCurve = Callable[[Doubles], Doubles]
"""tau at many orders, in doubles."""


@dataclass(frozen=True, slots=True)
class BoundAtOrder:
    """A bound and the order alpha that gave it; None if the bound is a cap that needs no order."""

    loss: Loss
    alpha: Fraction | None


OrderObjective = Callable[[Doubles, Doubles], Doubles]
"""The function of log(alpha-1) and alpha that the chosen order minimises."""


_AROUND = np.arange(-4.0, 5.0)
_GRAIN = 2.0**-20
"""The grid of log(alpha-1): objectives with the same minimum find the same order, at a cost of some 1e-13 relative."""
_LOWEST, _HIGHEST = -40.0, 700.0
"""The range of log(alpha-1). Beyond it there is no order of interest, and no double."""


def best_order(objective: OrderObjective, near: Fraction | None = None) -> Fraction:
    """Return the alpha > 1 that minimises ``objective(log(alpha-1), alpha)``, to about 1e-6 in log(alpha-1).

    The search covers all alpha from 1 + e^-40 to e^700 and not a table of orders: at rho = 1e-6 the best order is in
    the thousands, and ten repetitions of anything move it. It begins with a grid over all of them. If an order ``near``
    is known and the objective has one minimum, it begins there and goes downhill until the minimum is bracketed.

    Each step divides the bracket by four. If the vertex of the parabola through the best points is then lower than its
    own neighbours, the bracket becomes 64 times as narrow around the vertex. A smooth curve takes a few dozen orders; a
    kink only takes longer.

    The rounding of doubles does no harm here: every order above 1 gives a valid bound, which callers evaluate at the
    returned order with directed rounding. The values are divided by eight, so that no sum or difference of them
    overflows. This leaves the vertex as it is, to the last bit unless it is below the normal doubles.

    Args:
        objective: a function of two arrays of equal length; NaN counts as infinite.
        near: an order above 1 to search from; None begins with the grid.
    """

    def at(t: Doubles) -> tuple[int, Doubles]:
        with np.errstate(all="ignore"):
            values = objective(t, 1 + np.exp(t))
        values = np.where(np.isnan(values), np.inf, values)
        return int(np.argmin(values)), values

    best, step = _bracket(at, near)
    while step > _GRAIN:
        step /= 4
        place, values = at(best + step * _AROUND)
        best += step * (place - 4)
        if 0 < place < 8 and np.all(np.isfinite(values[place - 1 : place + 2])):
            left, middle, right = values[place - 1 : place + 2] / 8
            bend = left - 2 * middle + right
            vertex, finer = best + (step * (left - right) / (2 * bend) if bend > 0 else 0), step / 64
            if at(vertex + finer * _AROUND[3:6])[0] == 1:
                best, step = vertex, finer
    best = np.clip(best, _LOWEST, _HIGHEST)  # from ``near``, a search goes past them if the objective falls for ever
    return 1 + Fraction(float(np.exp(np.rint(best / _GRAIN) * _GRAIN)))


def _bracket(at: Callable[[Doubles], tuple[int, Doubles]], near: Fraction | None) -> tuple[float, float]:
    """Return a point and a step such that the minimum is no further from the point than the step."""
    if near is not None:
        best, step = _rough_log(near - 1), 0.25
        while _LOWEST <= best <= _HIGHEST:
            t = best + step * _AROUND
            place, _ = at(t)
            best = t[place]
            if 0 < place < len(t) - 1:
                return best, step
            step *= 2
    t = np.linspace(_LOWEST, _HIGHEST, 371)
    return t[at(t)[0]], t[1] - t[0]


def _rough_excess(t: Doubles, alpha: Doubles) -> Doubles:
    """Return (alpha-1) log(1-1/alpha) - log(alpha), which ``conversion`` adds to log(1/delta)."""
    return np.asarray(np.exp(t) * -np.log1p(np.exp(-t)) - np.log(alpha))


def _excess(alpha: Fraction) -> arb:
    """Return (alpha-1) log(1-1/alpha) - log(alpha)."""
    return ball(alpha - 1) * ball(-1 / alpha).log1p() - ball(alpha).log()


def conversion(alpha: Fraction, delta: Fraction) -> Fraction:
    """Return epsilon's excess over tau(alpha): [log(1/delta) + (alpha-1) log(1-1/alpha) - log(alpha)]/(alpha-1).

    Source: Canonne, Kamath, Steinke 2020, Prop. 12 (Haney et al. 2021, Lemma 4).

    Args:
        alpha: the order, above 1.
        delta: above 0.

    Returns:
        Nats, rounded up; it can be negative.

    Raises:
        ArithmeticError: it is not a number, as at delta = 0.
    """
    excess = ceiling(lambda: (_excess(alpha) - ball(delta).log()) / ball(alpha - 1))
    if excess is None:
        raise ArithmeticError("expected an order above 1 and a delta above 0")
    return excess


def _candidates(objective: OrderObjective, kinks: Iterable[Fraction], near: Fraction | None) -> list[Fraction]:
    """Return orders for an exact evaluation: the best of all, and the best of the curve's own orders.

    The search meets a minimum at a kink only to 1e-6. At the last order of a declared curve, it can be a last digit
    beyond, where the curve is infinite.
    """
    orders = sorted(kinks)
    if not orders:
        return [best_order(objective, near)]
    with np.errstate(all="ignore"):
        t = np.array([_rough_log(order - 1) for order in orders])
        values = objective(t, np.array([double(order) for order in orders]))
    return [best_order(objective), orders[int(np.argmin(np.where(np.isnan(values), np.inf, values)))]]


def rdp_to_epsilon(
    exact: ExactCurve,
    rough: RoughCurve,
    delta: Fraction,
    cap: Loss = INFINITE,
    kinks: Iterable[Fraction] = (),
    near: Fraction | None = None,
) -> BoundAtOrder:
    """Return the least epsilon (nats, an upper bound) that a Rényi curve gives at ``delta`` > 0, at most ``cap``.

    Args:
        exact, rough: the curve.
        delta: above 0.
        cap: the pure epsilon.
        kinks: the orders at which the curve may have a kink, or end.
        near: an order from which to search; only for a curve whose (alpha-1) tau(alpha) is convex. The objective then
            has one minimum: (alpha-1) log(1-1/alpha) - log(alpha) is convex in alpha as well, and a convex function
            over alpha - 1 falls up to a point and rises from there.

    Returns:
        The order is None if ``cap`` is the least.
    """
    log_inverse_delta = _rough_log(1 / delta)
    best = BoundAtOrder(cap, None)

    def epsilon_at(t: Doubles, alpha: Doubles) -> Doubles:
        return rough(alpha) + (log_inverse_delta + _rough_excess(t, alpha)) / np.exp(t)

    for alpha in _candidates(epsilon_at, kinks, near):
        tau = exact(alpha).nats
        if tau is not None:
            epsilon = Loss(max(tau + conversion(alpha, delta), Fraction(0)), rational=False)
            best = BoundAtOrder(epsilon, alpha) if epsilon < best.loss else best
    return best


def rdp_to_delta(
    exact: ExactCurve,
    rough: RoughCurve,
    epsilon: Fraction,
    kinks: Iterable[Fraction] = (),
    near: Fraction | None = None,
) -> BoundAtOrder:
    """Return the least delta (an upper bound, at most 1) that a Rényi curve gives at ``epsilon`` (nats).

    Args:
        exact, rough: the curve.
        epsilon: nats.
        kinks, near: as in ``rdp_to_epsilon``.

    Returns:
        The order is None if no order gives a delta below 1.
    """
    target = double(epsilon)
    best = BoundAtOrder(Loss(Fraction(1)), None)

    def exponent(t: Doubles, alpha: Doubles) -> Doubles:
        return np.exp(t) * (rough(alpha) - target) + _rough_excess(t, alpha)

    for alpha in _candidates(exponent, kinks, near):
        tau = exact(alpha).nats
        if tau is not None:
            delta = Loss(ceiling(partial(_delta_at, alpha, tau, epsilon)), rational=False)
            best = BoundAtOrder(delta, alpha) if delta < best.loss else best
    return best


def _delta_at(alpha: Fraction, tau: Fraction, epsilon: Fraction) -> arb:
    return (ball((alpha - 1) * (tau - epsilon)) + _excess(alpha)).exp()


def pure_to_delta(pure: Fraction, epsilon: Fraction) -> Loss:
    """Return the least delta at ``epsilon`` that pure privacy gives, rounded up: 0 from the pure epsilon on.

    Below, it is that of two-valued response with the pure epsilon, which dominates every mechanism with this epsilon
    (``mechanisms/randomized_response.py``): (e^pure - e^epsilon)/(1 + e^pure).

    Args:
        pure: the pure epsilon, nats.
        epsilon: nats.
    """
    if epsilon >= pure:
        return Loss(Fraction(0))
    delta = ceiling(lambda: -ball(epsilon - pure).expm1() / (1 + (-ball(pure)).exp()))
    return Loss(Fraction(1) if delta is None else min(delta, Fraction(1)), rational=False)


def epsilon_to_rho_at(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho whose zCDP guarantee implies (epsilon, delta), rounded down.

    For each order, rho = (epsilon - conversion)/alpha suffices; the best order gives the most.

    Args:
        epsilon: nats.
        delta: above 0.

    Returns:
        Nats, at least 0.
    """
    log_inverse_delta, target = _rough_log(1 / delta), double(epsilon)
    alpha = best_order(lambda t, alpha: ((log_inverse_delta + _rough_excess(t, alpha)) / np.exp(t) - target) / alpha)
    return max((epsilon - conversion(alpha, delta)) / alpha, Fraction(0))


def rho_to_epsilon_analytic(rho: Fraction, delta: Fraction) -> Loss:
    """Return rho + sqrt(4 rho log(1/delta)), an upper bound on epsilon (nats), rounded up.

    Source: Bun and Steinke 2016, Prop. 1.3; Haney et al. 2021, Lemma 5. It serves for comparison: ``rdp_to_epsilon``
    gives less.

    Args:
        rho: nats.
        delta: above 0 and at most 1.
    """
    return Loss(ceiling(lambda: ball(rho) + (-4 * ball(rho) * ball(delta).log()).sqrt()), rational=False)


def rho_to_delta_analytic(rho: Fraction, epsilon: Fraction) -> Loss:
    """Return exp(-(epsilon - rho)²/(4 rho)), an upper bound on delta, rounded up; 1 where epsilon is below rho.

    Args:
        rho: nats.
        epsilon: nats.
    """
    if epsilon <= rho or rho == 0:
        return Loss(Fraction(rho > 0))
    return Loss(ceiling(lambda: (-(ball(epsilon - rho) ** 2) / (4 * ball(rho))).exp()), rational=False)


def epsilon_to_rho_analytic(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Solve the analytic bound for rho, rounded down: (sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))².

    It is computed as epsilon²/(sum of the two roots)², in which nothing cancels.

    Args:
        epsilon: nats.
        delta: above 0 and below 1.

    Returns:
        Nats, at least 0.
    """

    def solved() -> arb:
        log_inverse_delta = -ball(delta).log()
        return (ball(epsilon) / ((log_inverse_delta + ball(epsilon)).sqrt() + log_inverse_delta.sqrt())) ** 2

    return max(floor(solved), Fraction(0))


def _rough_log(value: Fraction) -> float:
    """Return the log of a rational that may be beyond the range of doubles."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    scaled = value / (1 << shift) if shift >= 0 else value * (1 << -shift)
    return float(np.log(float(scaled)) + shift * np.log(2))
