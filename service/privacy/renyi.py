"""The Rényi curve of a whole plan: certified at some orders, or roughly at many to search by."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

import numpy as np

from service.privacy.arithmetic import DOUBLES, Doubles, double
from service.privacy.costs import Costs, Straight
from service.privacy.loss import Loss
from service.privacy.mechanisms import Declaration, Declared, DiscreteOsgt, Mechanism, Osgt
from service.privacy.osgt import product_tau
from service.privacy.outline import Outline
from service.privacy.pure import mechanism_epsilon
from service.privacy.rdp import curve_of, mechanism_tau, slope, sole_slope
from service.privacy.tables import Curve


class Renyi:
    """tau(alpha) of a plan, in nats (seed 004, Lemma 3).

    Attributes:
        whole: what of it is c*alpha at least at whole orders; there the discrete Gaussian attains its slope.
    """

    def __init__(self, plan: Outline) -> None:
        self._plan = plan
        slopes = [None if one is None else Loss(one) for one in map(sole_slope, plan.mechanisms)]
        straight = [None if one and curve_of(m) else one for one, m in zip(slopes, plan.mechanisms, strict=True)]
        self.whole = Straight(plan, slopes)
        self._costs = Costs(self.whole if straight == slopes else Straight(plan, straight), _formula, mechanism_tau)
        self._at_whole_orders = self._costs if straight == slopes else Costs(self.whole, _formula, mechanism_tau)

    @property
    def is_straight(self) -> bool:
        """Whether tau(alpha) is c*alpha at every order, so that RDP says exactly what zCDP says."""
        return self._costs.is_straight

    @property
    def is_convex(self) -> bool:
        """Whether (alpha-1) tau(alpha) is known to be convex: mechanisms' cumulants are, their sums and maxima."""
        return not any(map(_has_more, self._plan.mechanisms))

    def taus(self, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
        """Upper bounds at the orders, less than 1e-11 of themselves above the truth."""
        found: dict[int, Loss] = {}  # by place: no number of a client's is a key
        for whole in (True, False):
            places = [place for place, order in enumerate(orders) if (order.denominator == 1) is whole]
            if places:
                costs = self._at_whole_orders if whole else self._costs
                found.update(zip(places, costs.bounds([orders[place] for place in places]), strict=True))
        return tuple(found[place] for place in range(len(orders)))

    def parts(self, orders: Sequence[Fraction]) -> tuple[Loss, Doubles]:
        """c and r with tau(alpha) <= c*alpha + r at each order; the discrete Gaussian counts with its slope everywhere.

        Raises:
            Beyond: doubles do not reach.
        """
        return self._at_whole_orders.slope, self._at_whole_orders.rest(orders)

    def rough(self, alphas: Doubles) -> Doubles:
        """tau at many orders in doubles: to choose an order by, never to report."""
        return self._costs.rough(alphas, _rough)


def _has_more(mechanism: Mechanism) -> bool:
    """Whether a formula is not all that is known."""
    if not isinstance(mechanism, Declared):
        return False
    return bool(mechanism.guarantee.rdp) or None not in (mechanism.guarantee.epsilon, mechanism.guarantee.rho)


def _formula(mechanism: Mechanism) -> Curve | None:
    return None if _has_more(mechanism) else curve_of(mechanism)


def _rough(mechanism: Mechanism, alphas: Doubles) -> Doubles:
    """The least of what is known of a mechanism, in doubles."""
    pure = mechanism_epsilon(mechanism).nats
    bounds = [np.full_like(alphas, np.inf if pure is None else double(pure))]
    curve, linear = curve_of(mechanism), slope(mechanism)
    if curve is not None:
        bounds.append(np.asarray(curve.at(DOUBLES, alphas - 1)))
    if linear is not None:
        bounds.append(double(linear) * alphas)
    if isinstance(mechanism, Osgt | DiscreteOsgt):
        at_0, at_1 = (double(product_tau(mechanism, Fraction(order))) for order in (0, 1))
        bounds.append(at_0 + (at_1 - at_0) * alphas)
    if isinstance(mechanism, Declared) and mechanism.guarantee.rdp:
        bounds.append(_interpolated(mechanism.guarantee, alphas))
    return np.asarray(np.fmin.reduce(bounds))


def _interpolated(guarantee: Declaration, alphas: Doubles) -> Doubles:
    orders = np.array([1.0] + [double(order) for order, _ in guarantee.rdp])
    weighted = np.array([0.0] + [double((order - 1) * tau) for order, tau in guarantee.rdp])
    return np.asarray(np.interp(alphas, orders, weighted, right=np.inf) / (alphas - 1))


def declared_orders(plan: Outline) -> list[Fraction]:
    """The orders at which a plan's curve may have a kink, or end: a minimum lies often exactly there."""
    guarantees = [one.guarantee for one in plan.mechanisms if isinstance(one, Declared)]
    return [order for order, _ in groupby(sorted(order for one in guarantees for order, _ in one.rdp))]
