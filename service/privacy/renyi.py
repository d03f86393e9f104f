"""The Rényi curve of a whole plan: certified at some orders, or roughly at many to search by.

Mechanisms whose tau is c*alpha are added up as exact rationals. All others are evaluated at once in
intervals of doubles, whose upper ends are added up with every rounding upward: an upper bound some
1e-13 of itself above the truth. Where doubles do not tell, balls do (``rdp.mechanism_tau``).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from service.privacy.arithmetic import DOUBLES, Doubles, double
from service.privacy.intervals import INTERVALS, up
from service.privacy.loss import INFINITE, ZERO, Loss, largest, total
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Mechanism
from service.privacy.numbers import double_up
from service.privacy.plan import Condensed, Neighbouring, Notion, Outline, Priced, evaluate, leaves, outline
from service.privacy.pure import mechanism_epsilon
from service.privacy.rdp import curve_of, mechanism_tau, slope, sole_slope
from service.privacy.tables import Curve, Table

_NARROW = 2.0**-40
"""Of itself: an interval that is wider is replaced by a ball, so that every bound is within 1e-12."""
_REACH = 1e290
"""Sums stay far from where doubles end; a plan with a tau beyond it, or below its inverse, is folded in rationals."""


_EXACT = 2**53
"""Whole numbers up to it are doubles."""


class Beyond(ArithmeticError):
    """A figure is too large or too small for doubles."""


@dataclass(frozen=True, slots=True)
class _Combined:
    """A step of the outline in arrays.

    Attributes:
        slope: the exact part c*alpha, of all parts that are linear or have a linear part.
        how_many, places, counts: as in ``Step``, of the parts that have more than a linear part; the counts in
            a column, rounded up.
    """

    slope: Loss
    how_many: int | None
    places: NDArray[np.intp]
    counts: Doubles


class Renyi:
    """tau(alpha) of a plan under a neighbouring relation, in nats (seed 004, Lemma 3)."""

    def __init__(self, plan: Outline) -> None:
        self._plan = plan
        self._curved = _Leaves(plan.mechanisms, whole=False)
        self._at_whole_orders = _Leaves(plan.mechanisms, whole=True) if self._curved.has_steps else self._curved
        self._combined = {id(one): _combine(plan, one) for one in (self._curved, self._at_whole_orders)}

    @classmethod
    def of(cls, plan: Priced, neighbouring: Neighbouring) -> "Renyi":
        """The curve of a plan.

        Raises:
            ValueError: a mechanism that ``notation.check_relation`` refuses under this relation.
        """
        return cls(outline(plan, neighbouring))

    @property
    def is_straight(self) -> bool:
        """Whether tau(alpha) is c*alpha at every order, so that RDP says exactly what zCDP says."""
        return not len(self._combined[id(self._curved)][-1].places)

    def taus(self, orders: Sequence[Fraction]) -> tuple[Loss, ...]:
        """Upper bounds at the orders."""
        found: dict[Fraction, Loss] = {}
        for whole in (True, False):  # at whole orders the discrete Gaussian attains its slope
            listed = [order for order in orders if (order.denominator == 1) is whole]
            if listed:
                found.update(zip(listed, self._taus(listed, whole), strict=True))
        return tuple(found[order] for order in orders)

    def _taus(self, orders: list[Fraction], whole: bool) -> Iterable[Loss]:
        try:
            linear, rest = self.bounds(orders, whole)
        except Beyond:
            return [
                evaluate(self._plan, Notion(lambda one, at=order: mechanism_tau(one, at), total, largest))
                for order in orders
            ]
        if linear.nats is None:
            return [INFINITE for _ in orders]
        slope_of_all = linear.nats
        straight = [Loss(slope_of_all * order, linear.rational) for order in orders]
        if rest is None:
            return straight
        above = [Loss(Fraction(nats), rational=False) if np.isfinite(nats) else INFINITE for nats in rest.tolist()]
        return [total([(one, 1), (two, 1)]) for one, two in zip(straight, above, strict=True)]

    def bounds(self, orders: Sequence[Fraction], whole: bool = False) -> tuple[Loss, Doubles | None]:
        """c and r with tau(alpha) <= c*alpha + r at each order; r is None where tau is c*alpha everywhere.

        Args:
            whole: all orders are whole numbers.

        Raises:
            Beyond: doubles do not reach.
        """
        kind = self._at_whole_orders if whole else self._curved
        combined = self._combined[id(kind)]
        if not len(combined[-1].places):
            return combined[-1].slope, None
        if any(step.how_many and len(step.places) * step.how_many > _EXACT for step in combined):
            raise Beyond
        rows, alphas = kind.bounds(orders), np.array([double_up(order) for order in orders])
        found = _along(combined, rows, kind.slopes, alphas)
        if not np.all(found < _REACH) and np.all(rows < np.inf):
            raise Beyond
        return combined[-1].slope, found

    def rough(self, alphas: Doubles) -> Doubles:
        """tau at many orders in doubles: to choose an order by, never to report."""
        combined = self._combined[id(self._curved)]
        with np.errstate(all="ignore"):  # a nan or an infinity only makes an order unattractive
            linear = _rough(combined[-1].slope) * alphas
            if not len(combined[-1].places):
                return linear
            return linear + _along(combined, self._curved.rough(alphas), self._curved.slopes, alphas)


class _Leaves:
    """The mechanisms of an outline by what is known of their curves.

    Attributes:
        slopes: c where tau is c*alpha; None where there is more to it.
        has_steps: some discrete Gaussian is linear at whole orders only.
    """

    def __init__(self, mechanisms: Sequence[Mechanism], whole: bool) -> None:
        self.mechanisms = mechanisms
        self.slopes: list[Loss | None] = []
        self.has_steps = False
        curves: list[Curve] = []
        self._curved: list[int] = []
        self._others: list[int] = []
        for place, mechanism in enumerate(mechanisms):
            curve = curve_of(mechanism)
            steps = isinstance(mechanism, DiscreteGaussian) and curve is not None
            self.has_steps = self.has_steps or steps
            linear = sole_slope(mechanism) if curve is None or (steps and whole) else None
            self.slopes.append(None if linear is None else Loss(linear))
            if linear is not None:
                continue
            if curve is not None and curve.in_arrays and not _has_more_bounds(mechanism):
                curves.append(curve)
                self._curved.append(place)
            else:
                self._others.append(place)
        self._table = Table(curves)

    def bounds(self, orders: Sequence[Fraction]) -> Doubles:
        """Upper bounds of tau for each mechanism (0 where it is linear) at each order."""
        found = np.zeros((len(self.mechanisms), len(orders)))
        if self._curved:
            places = np.array(self._curved)
            table = self._table.bounds(INTERVALS.row(order - 1 for order in orders))
            found[places] = table.high
            for row, column in np.argwhere(~table.narrow(_NARROW)):
                found[places[row], column] = self._ball(int(places[row]), orders[column])
        for place in self._others:
            found[place] = [self._ball(place, order) for order in orders]
        return found

    def _ball(self, place: int, order: Fraction) -> float:
        nats = mechanism_tau(self.mechanisms[place], order).nats
        if nats is None:
            return np.inf
        if nats and not 1 < nats * Fraction(_REACH) < Fraction(_REACH) ** 2:
            raise Beyond
        return double_up(nats)

    def rough(self, alphas: Doubles) -> Doubles:
        """The same in doubles."""
        found = np.zeros((len(self.mechanisms), len(alphas)))
        if self._curved:
            found[self._curved] = self._table.rough(alphas - 1)
        for place in self._others:
            found[place] = _rough_other(self.mechanisms[place], alphas)
        return found


def _has_more_bounds(mechanism: Mechanism) -> bool:
    return isinstance(mechanism, Declared) and bool(mechanism.guarantee.rdp or mechanism.guarantee.rho is not None)


def _combine(plan: Outline, known: _Leaves) -> list[_Combined]:
    """The outline's steps with their exact linear parts; a maximum of unlike parts has none."""
    slopes: list[Loss] = [linear or ZERO for linear in known.slopes]
    curved = [linear is None for linear in known.slopes]
    found: list[_Combined] = []
    for step in plan.steps:
        pairs = list(zip(step.parts, step.counts, strict=True))
        more = [(part, count) for part, count in pairs if curved[part]]
        if step.how_many is None:
            linear = total((slopes[part], count) for part, count in pairs if slopes[part] != ZERO)
        elif more:
            linear, more = ZERO, [(part, min(count, step.how_many)) for part, count in pairs]
        else:
            linear = largest([(slopes[part], count) for part, count in pairs], step.how_many)
        places = np.array([part for part, _ in more], dtype=np.intp)
        found.append(_Combined(linear, step.how_many, places, np.array([[_count(count)] for _, count in more])))
        slopes.append(linear)
        curved.append(bool(more))
    return found


def _along(combined: list[_Combined], rows: Doubles, slopes: list[Loss | None], alphas: Doubles) -> Doubles:
    """The last step's part beyond its slope, from the mechanisms' rows; every operation rounds upward."""
    own = len(rows)
    linear = [ZERO if one is None else one for one in slopes] + [step.slope for step in combined]
    rows = np.concatenate([rows, np.zeros((len(combined), len(alphas)))])
    for place, step in enumerate(combined, own):
        if step.how_many is None and len(step.places):
            rows[place] = _sum(up(rows[step.places] * step.counts))
        elif len(step.places):
            compared = [up(rows[part] + up(_up(linear[part]) * alphas)) for part in step.places]
            rows[place] = _sum_of_largest(np.stack(compared), step.counts, step.how_many)
    return rows[-1]


def _sum(rows: Doubles) -> Doubles:
    """The sum over the rows, by halves and rounded up once a halving."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = np.concatenate([up(rows[:half] + rows[half : 2 * half]), rows[2 * half :]])
    return rows[0]


def _sum_of_largest(rows: Doubles, counts: Doubles, how_many: int) -> Doubles:
    """At each order by itself. The counts add up exactly, as ``Renyi.bounds`` made sure."""
    order = np.argsort(-rows, axis=0)
    each = np.take_along_axis(np.broadcast_to(counts, rows.shape), order, axis=0)
    taken = np.clip(how_many - (np.cumsum(each, axis=0) - each), 0, each)
    with np.errstate(invalid="ignore"):  # of an infinite cost nothing may be taken
        return _sum(np.where(taken > 0, up(np.take_along_axis(rows, order, axis=0) * taken), 0))


def _count(count: int) -> float:
    """The double itself, or one above it."""
    return float(count) if count < _EXACT else math.nextafter(double(Fraction(count)), math.inf)


def _up(linear: Loss) -> float:
    return np.inf if linear.nats is None else double_up(linear.nats)


def _rough(linear: Loss) -> float:
    return np.inf if linear.nats is None else double(linear.nats)


def _rough_other(mechanism: Mechanism, alphas: Doubles) -> Doubles:
    """The least of what a declared guarantee says; or a formula that takes one mechanism at a time."""
    pure = mechanism_epsilon(mechanism)
    bounds = [np.full_like(alphas, _rough(pure))]
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


def plan_tau(plan: Priced, neighbouring: Neighbouring, alpha: Fraction) -> Loss:
    """tau(alpha) of a plan, in nats, rounded up."""
    return Renyi.of(plan, neighbouring).taus([alpha])[0]


def declared_orders(plan: Condensed) -> set[Fraction]:
    """The orders at which a plan's curve may have a kink, or end: a minimum lies often exactly there."""
    guarantees = [m.guarantee for m in leaves(plan) if isinstance(m, Declared)]
    guarantees += [m.add_remove for m in leaves(plan) if isinstance(m, Declared) and m.add_remove is not None]
    return {order for guarantee in guarantees for order, _ in guarantee.rdp}
