"""The Rényi curve of a whole plan: certified at some orders, or rough at many orders for searches."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

import numpy as np

from service.privacy.accounting.batch_costs import BatchCosts, LinearCosts
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.arithmetic import DOUBLES, Doubles, double
from service.privacy.numerics.loss import Loss
from service.privacy.plans.composition_program import CompositionProgram


class RenyiCurve:
    """tau(alpha) of a plan, in nats (Haney et al. 2021, Lemma 3).

    Attributes:
        linear_at_integers: the part that is c*alpha, at least at whole orders, where the discrete Gaussian attains its
            slope.
        is_convex: whether (alpha-1) tau(alpha) is known to be convex, as cumulants of mechanisms are, and their sums
            and maxima.
    """

    def __init__(self, plan: CompositionProgram) -> None:
        bounds = [mechanism.rdp() for mechanism in plan.mechanisms]
        slopes = [None if one.sole_slope is None else Loss(one.sole_slope) for one in bounds]
        straight = [None if of.curve else one for one, of in zip(slopes, bounds, strict=True)]
        curves = [None if one.is_mixed else one.curve for one in bounds]
        self.is_convex = not any(one.is_mixed for one in bounds)
        self.linear_at_integers = LinearCosts(plan, slopes)
        self._costs = BatchCosts(
            self.linear_at_integers if straight == slopes else LinearCosts(plan, straight), curves, mechanism_tau
        )
        self._at_whole_orders = (
            self._costs if straight == slopes else BatchCosts(self.linear_at_integers, curves, mechanism_tau)
        )

    @property
    def is_linear(self) -> bool:
        """True if tau(alpha) is c*alpha at every order, so that RDP says exactly what zCDP says."""
        return self._costs.is_linear

    def taus(self, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
        """Return upper bounds on tau (nats) at the orders, less than 1e-11 of themselves above the truth.

        Args:
            orders: each above 1.

        Returns:
            One bound for each order, in their order.
        """
        bounds: dict[int, Loss] = {}  # by place, because no number of a client is a key
        for whole in (True, False):
            places = [place for place, order in enumerate(orders) if (order.denominator == 1) is whole]
            if places:
                costs = self._at_whole_orders if whole else self._costs
                bounds.update(zip(places, costs.bounds([orders[place] for place in places]), strict=True))
        return tuple(bounds[place] for place in range(len(orders)))

    def slope_and_excess(self, orders: Sequence[Fraction]) -> tuple[Loss, Doubles]:
        """Return c and r with tau(alpha) <= c*alpha + r at each order; the discrete Gaussian counts with its slope.

        Args:
            orders: each above 1.

        Returns:
            c exact or rounded up, and r rounded up, one double for each order; nats.

        Raises:
            BeyondDoubles: a figure is too large or too small for doubles.
        """
        return self._at_whole_orders.slope, self._at_whole_orders.excess(orders)

    def rough(self, alphas: Doubles) -> Doubles:
        """Return tau at many orders in doubles: for the choice of an order, never to be reported.

        Args:
            alphas: each above 1.
        """
        return self._costs.rough(alphas, _rough)


def _rough(mechanism: Mechanism, alphas: Doubles) -> Doubles:
    """Return the least known bound of a mechanism, in doubles."""
    pure, known = mechanism.pure_epsilon().nats, mechanism.rdp()
    bounds = [np.full_like(alphas, np.inf if pure is None else double(pure))]
    if known.curve is not None:
        bounds.append(np.asarray(known.curve.at(DOUBLES, alphas - 1)))
    if known.slope is not None:
        bounds.append(double(known.slope) * alphas)
    if known.line is not None:
        at_0, at_1 = double(known.line[0]), double(sum(known.line))
        bounds.append(at_0 + (at_1 - at_0) * alphas)
    if known.points:
        bounds.append(_interpolated(known.points, alphas))
    return np.asarray(np.fmin.reduce(bounds))


def _interpolated(points: Sequence[tuple[Fraction, Fraction]], alphas: Doubles) -> Doubles:
    orders = np.array([1.0] + [double(order) for order, _ in points])
    weighted = np.array([0.0] + [double((order - 1) * tau) for order, tau in points])
    return np.asarray(np.interp(alphas, orders, weighted, right=np.inf) / (alphas - 1))


def declared_orders(plan: CompositionProgram) -> list[Fraction]:
    """Return the orders at which a plan's curve may have a kink or end, because minima are often exactly there.

    Returns:
        Ascending, each once.
    """
    points = (point for mechanism in plan.mechanisms for point in mechanism.rdp().points)
    return [order for order, _ in groupby(sorted(order for order, _ in points))]
