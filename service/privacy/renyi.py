"""The Rényi curve of a whole plan: certified at some orders, or roughly at many to search by."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from service.privacy.arithmetic import DOUBLES, Doubles, double
from service.privacy.costs import Costs
from service.privacy.loss import Loss
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Mechanism
from service.privacy.plan import Condensed, Foldable, Neighbouring, Outline, leaves, outline
from service.privacy.pure import mechanism_epsilon
from service.privacy.rdp import curve_of, mechanism_tau, slope, sole_slope
from service.privacy.tables import Curve


class Renyi:
    """tau(alpha) of a plan, in nats (seed 004, Lemma 3)."""

    def __init__(self, plan: Outline) -> None:
        self._plan = plan
        self._costs = Costs(plan, _slope, _curve, mechanism_tau)
        self._at_whole_orders: Costs | None = None

    @property
    def is_straight(self) -> bool:
        """Whether tau(alpha) is c*alpha at every order, so that RDP says exactly what zCDP says."""
        return self._costs.is_straight

    @property
    def is_convex(self) -> bool:
        """Whether (alpha-1) tau(alpha) is known to be convex: mechanisms' cumulants are, their sums and maxima."""
        return all(_curve(one) or sole_slope(one) for one in self._plan.mechanisms if isinstance(one, Declared))

    def taus(self, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
        """Upper bounds at the orders, less than 1e-11 of themselves above the truth."""
        found: dict[Fraction, Loss] = {}
        for whole in (True, False):
            listed = [order for order in orders if (order.denominator == 1) is whole]
            if listed:
                found.update(zip(listed, (self._whole() if whole else self._costs).bounds(listed), strict=True))
        return tuple(found[order] for order in orders)

    def _whole(self) -> Costs:
        """At whole orders the discrete Gaussian attains its slope, so that its cost is rational."""
        if self._at_whole_orders is None:
            steps = any(isinstance(one, DiscreteGaussian) and curve_of(one) for one in self._plan.mechanisms)
            self._at_whole_orders = Costs(self._plan, _slope_at_whole, _curve, mechanism_tau) if steps else self._costs
        return self._at_whole_orders

    def parts(self, orders: Sequence[Fraction]) -> tuple[Loss, Doubles]:
        """c and r with tau(alpha) <= c*alpha + r at each order.

        Raises:
            Beyond: doubles do not reach.
        """
        return self._costs.slope, self._costs.rest(orders)

    def rough(self, alphas: Doubles) -> Doubles:
        """tau at many orders in doubles: to choose an order by, never to report."""
        return self._costs.rough(alphas, _rough)


def _slope(mechanism: Mechanism) -> Loss | None:
    return None if curve_of(mechanism) else _slope_at_whole(mechanism)


def _slope_at_whole(mechanism: Mechanism) -> Loss | None:
    c = sole_slope(mechanism)
    return None if c is None else Loss(c)


def _curve(mechanism: Mechanism) -> Curve | None:
    """The formula where it says all that is known."""
    more = isinstance(mechanism, Declared) and (mechanism.guarantee.rdp or mechanism.guarantee.rho is not None)
    return None if more else curve_of(mechanism)


def _rough(mechanism: Mechanism, alphas: Doubles) -> Doubles:
    """The least of what is known of a mechanism, in doubles."""
    pure = mechanism_epsilon(mechanism).nats
    bounds = [np.full_like(alphas, np.inf if pure is None else double(pure))]
    curve, linear = curve_of(mechanism), slope(mechanism)
    if curve is not None:
        bounds.append(np.asarray(curve.at(DOUBLES, alphas - 1)))
    if linear is not None:
        bounds.append(double(linear) * alphas)
    if isinstance(mechanism, Declared) and mechanism.guarantee.rdp:
        bounds.append(_interpolated(mechanism.guarantee, alphas))
    return np.asarray(np.fmin.reduce(bounds))


def _interpolated(guarantee: Declaration, alphas: Doubles) -> Doubles:
    orders = np.array([1.0] + [double(order) for order, _ in guarantee.rdp])
    weighted = np.array([0.0] + [double((order - 1) * tau) for order, tau in guarantee.rdp])
    return np.asarray(np.interp(alphas, orders, weighted, right=np.inf) / (alphas - 1))


def plan_tau(plan: Foldable, neighbouring: Neighbouring, alpha: Fraction) -> Loss:
    """tau(alpha) of a plan, in nats, rounded up."""
    return Renyi(outline(plan, neighbouring)).taus([alpha])[0]


def declared_orders(plan: Condensed) -> set[Fraction]:
    """The orders at which a plan's curve may have a kink, or end: a minimum lies often exactly there."""
    guarantees = [m.guarantee for m in leaves(plan) if isinstance(m, Declared)]
    guarantees += [m.add_remove for m in leaves(plan) if isinstance(m, Declared) and m.add_remove is not None]
    return {order for guarantee in guarantees for order, _ in guarantee.rdp}
