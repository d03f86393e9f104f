"""Costs of plans of thousands of mechanisms at once, with a proven error.

Costs that are rational (at every order c*alpha with a rational c) are added up exactly. All others are evaluated
together in intervals of doubles, whose upper ends are added up with every operation rounded upward. These bounds are
some 1e-14 of themselves above the truth. Balls take the place of doubles that are too coarse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.arithmetic import Doubles, double
from service.privacy.numerics.curve_table import Curve, CurveTable
from service.privacy.numerics.intervals import INTERVALS, up
from service.privacy.numerics.loss import INFINITE, ZERO, Loss, largest_losses, total_loss
from service.privacy.numerics.numbers import double_up
from service.privacy.plans.composition_program import CompositionProgram, Notion, evaluate

_NARROW = 2.0**-37
"""An interval that is wider than this share of itself is replaced by a ball, so that every bound is within 1e-11."""
_REACH = 1e290
"""A plan with a cost above it, or below its inverse, is added up in rationals: doubles stay far from their ends."""
_FEW_COSTS = 100
"""Up to this number, costs are evaluated sooner in balls, one by one."""
_LARGEST_EXACT_COUNT = 2**53
"""Doubles hold whole numbers exactly up to it."""


class BeyondDoubles(ArithmeticError):
    """A figure is too large or too small for doubles."""


@dataclass(frozen=True, slots=True)
class _ArrayStep:
    """A step of the program in arrays.

    Attributes:
        slope: the exact part c*alpha, of all parts together.
        how_many: as in ``composition_program.ProgramStep``.
        places: those of the parts that have more than an exact part.
        counts: the counts of these parts, in a column; rounded up.
    """

    slope: Loss
    how_many: int | None
    places: NDArray[np.intp]
    counts: Doubles


class LinearCosts:
    """The part of a plan's costs that is c*alpha with a rational c, added up exactly.

    Attributes:
        plan: the program.
        slopes: c of each place; 0 if a mechanism costs more than c*alpha, or if parts of a maximum do.
        curved: the places of mechanisms that cost more than c*alpha.
        steps: the plan's steps, with the costs that are not added up here.
    """

    def __init__(self, plan: CompositionProgram, slopes: Sequence[Loss | None]) -> None:
        """Split the plan's costs; ``slopes`` is c if a mechanism costs c*alpha, and None if it costs more."""
        self.plan = plan
        self.slopes = [ZERO if one is None else one for one in slopes]
        self.curved = [place for place, one in enumerate(slopes) if one is None]
        self.steps: list[_ArrayStep] = []
        has_more = [one is None for one in slopes]
        for step in plan.steps:
            straight = [(self.slopes[part], count) for part, count in step.pairs if self.slopes[part] is not ZERO]
            more = [(part, count) for part, count in step.pairs if has_more[part]]
            if step.how_many is None:
                slope = total_loss(straight)
            elif more:
                slope, more = ZERO, [(part, min(count, step.how_many)) for part, count in step.pairs]
            else:
                slope = largest_losses(straight, step.how_many)
            places = np.array([part for part, _ in more], dtype=np.intp)
            self.steps.append(_ArrayStep(slope, step.how_many, places, _column([count for _, count in more])))
            self.slopes.append(slope)
            has_more.append(bool(more))


class BatchCosts:
    """One notion's costs of a plan at any orders.

    Args:
        plan: the plan, with its exact costs split off.
        curves: the formulas of the mechanisms' costs, in alpha - 1 if there are orders; None for a cost that only
            ``exact`` computes.
        exact: returns a mechanism's cost at an order, rounded up from balls.
        orders: whether costs depend on an order; if not, the order 1 stands for it.
    """

    def __init__(
        self,
        plan: "LinearCosts",
        curves: Sequence[Curve | None],
        exact: Callable[[Mechanism, Fraction], Loss],
        *,
        orders: bool = True,
    ) -> None:
        self._plan, self._slopes, self._steps = plan.plan, plan.slopes, plan.steps
        self._exact, self._orders = exact, orders
        curved = [(place, curves[place]) for place in plan.curved]
        in_table = [(place, one) for place, one in curved if one is not None and one.vectorized]
        self._in_table = np.array([place for place, _ in in_table], dtype=np.intp)
        self._table = CurveTable([one for _, one in in_table])
        self._others = sorted({place for place, _ in curved} - {place for place, _ in in_table})

    @property
    def slope(self) -> Loss:
        """The whole plan's exact part."""
        return self._steps[-1].slope

    @property
    def is_linear(self) -> bool:
        """True if the exact part is all."""
        return not len(self._steps[-1].places)

    def bounds(self, orders: Sequence[Fraction]) -> list[Loss]:
        """Return upper bounds of the whole plan's cost (nats) at the orders.

        Args:
            orders: each above 1; the order 1 if the cost has none.

        Returns:
            One bound for each order, at most 1e-11 of itself above the truth.
        """
        slope = self.slope.nats
        straight = [INFINITE if slope is None else Loss(slope * order, self.slope.rational) for order in orders]
        if self.is_linear or slope is None:
            return straight
        if (len(self._in_table) + len(self._others)) * len(orders) <= _FEW_COSTS:
            return [self._in_rationals(order) for order in orders]
        try:
            excess = self.excess(orders)
        except BeyondDoubles:
            return [self._in_rationals(order) for order in orders]
        above = [Loss(Fraction(nats), rational=False) if nats < math.inf else INFINITE for nats in excess.tolist()]
        return [total_loss([(one, 1), (two, 1)]) for one, two in zip(straight, above, strict=True)]

    def _in_rationals(self, order: Fraction) -> Loss:
        return evaluate(self._plan, Notion(lambda mechanism: self._exact(mechanism, order), total_loss, largest_losses))

    def excess(self, orders: Sequence[Fraction]) -> Doubles:
        """Return upper bounds (nats) of the cost's excess over the exact part, at the orders.

        Returns:
            One double for each order, rounded up; infinite where the cost is.

        Raises:
            BeyondDoubles: a figure is too large or too small for doubles.
        """
        if any(step.how_many and len(step.places) * step.how_many > _LARGEST_EXACT_COUNT for step in self._steps):
            raise BeyondDoubles
        rows = np.zeros((len(self._plan.mechanisms), len(orders)))
        z = INTERVALS.nearest(np.array([double(order - 1) for order in orders]))
        if len(self._in_table):
            table = self._table.bounds(*([z] if self._orders else []))
            rows[self._in_table] = table.high
            for row, column in np.argwhere(~table.narrow(_NARROW)):
                place = int(self._in_table[row])
                rows[place, column] = self._in_balls(place, orders[column])
        for place in self._others:
            rows[place] = [self._in_balls(place, order) for order in orders]
        excess = self._evaluate_steps(rows, (z + 1).high)
        if not np.all(excess < _REACH) and np.all(rows < np.inf):
            raise BeyondDoubles
        return excess

    def _in_balls(self, place: int, order: Fraction) -> float:
        nats = self._exact(self._plan.mechanisms[place], order).nats
        if nats and not 1 / _REACH < double(nats) < _REACH:
            raise BeyondDoubles
        return math.inf if nats is None else double_up(nats)

    def rough(self, alphas: Doubles, other: Callable[[Mechanism, Doubles], Doubles]) -> Doubles:
        """Return the whole cost in doubles, for searches.

        Args:
            alphas: orders, each above 1.
            other: returns the cost (nats) at these orders of a mechanism without a formula for arrays.

        Returns:
            Nats, one double near the cost for each order, on either side of it.
        """
        with np.errstate(all="ignore"):
            straight = _slope_up(self.slope) * alphas
            if self.is_linear:
                return straight
            rows = np.zeros((len(self._plan.mechanisms), len(alphas)))
            rows[self._in_table] = self._table.rough(alphas - 1)
            for place in self._others:
                rows[place] = other(self._plan.mechanisms[place], alphas)
            return np.asarray(straight + self._evaluate_steps(rows, alphas))

    def _evaluate_steps(self, rows: Doubles, alphas: Doubles) -> Doubles:
        """Return the last step's excess over its exact part, from the mechanisms' rows."""
        place = len(rows)
        rows = np.concatenate([rows, np.zeros((len(self._steps), len(alphas)))])
        for step in self._steps:
            if step.how_many is None and len(step.places):
                rows[place] = _sum(up(rows[step.places] * step.counts))
            elif step.how_many is not None and len(step.places):
                compared = [up(rows[part] + up(_slope_up(self._slopes[part]) * alphas)) for part in step.places]
                rows[place] = _sum_of_largest(np.stack(compared), step.counts, step.how_many)
            place += 1
        return np.asarray(rows[-1])


def _sum(rows: Doubles) -> Doubles:
    """Return the sum over the rows, by repeated halving, rounded up each time."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = np.concatenate([up(rows[:half] + rows[half : 2 * half]), rows[2 * half :]])
    return np.asarray(rows[0])


def _sum_of_largest(rows: Doubles, counts: Doubles, how_many: int) -> Doubles:
    """Return the sum of the largest costs, at each order separately.

    The counts add up exactly: ``BatchCosts.excess`` checks it.
    """
    order = np.argsort(-rows, axis=0)
    each = np.take_along_axis(np.broadcast_to(counts, rows.shape), order, axis=0)
    taken = np.clip(how_many - (np.cumsum(each, axis=0) - each), 0, each)
    with np.errstate(invalid="ignore"):  # an infinite cost may be taken 0 times
        return _sum(np.where(taken > 0, up(np.take_along_axis(rows, order, axis=0) * taken), 0))


def _column(counts: list[int]) -> Doubles:
    """Return the counts as a column of doubles, rounded up."""
    if max(counts, default=0) <= _LARGEST_EXACT_COUNT:
        return np.array(counts, dtype=np.float64)[:, None]
    return np.array([double_up(Fraction(count)) for count in counts])[:, None]


def _slope_up(slope: Loss) -> float:
    return math.inf if slope.nats is None else double_up(slope.nats)
