"""Allocation of a budget to queries: noise from weights and a budget, and the budget that margins of error need.

The unit in which a budget is divided is the mechanism's own: epsilon of geometric and Laplace noise, rho of Gaussian
noise, which add up. Under a budget in that unit, the shares are exact fractions of it, and all of it is spent. Under
another budget, the search finds the largest amount of 12 digits whose plan an empty account with that budget would
admit.
"""

from collections.abc import Callable, Sequence as Listed
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.conversion import epsilon_to_rho_at
from service.privacy.accounting.pricing import estimate_price, price
from service.privacy.accounting.privacy_filter import Budget, Definition, Weights, open_weights, spent_of_cap
from service.privacy.accounting.totals import Totals, add_price, price_as_charged
from service.privacy.accuracy.calibration import (
    LARGEST_MARGIN,
    margin_to_offset_tails,
    margin_to_scale,
    margin_to_sigma_squared,
    rank_of,
    usual_offset,
    value_of_rank,
    variance_to_parameter,
)
from service.privacy.accuracy.tails import excess_of, smallest
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Gaussian, Geometric, Laplace
from service.privacy.numerics.arithmetic import DOUBLES, Doubles, double
from service.privacy.numerics.keyed import memoised
from service.privacy.numerics.numbers import MAX_BITS, ball, floor as lower_bound
from service.privacy.plans import Plan, Sequence
from service.privacy.plans.walking import Neighbouring

QueryNoise = Geometric | Laplace | DiscreteGaussian | Gaussian | DiscreteOsgt
QueryNoiseType = type[Geometric] | type[Laplace] | type[DiscreteGaussian] | type[Gaussian] | type[DiscreteOsgt]

_SECANTS = 40
_HALVINGS = 100
_BROAD = 1e12  # factor in either direction within which noise is searched
_SHARES = 10**15  # a share that is not exact is rounded down to a multiple of its inverse


class NoAllocation(ValueError):
    """Under this budget there is no noise, or none in the range of the search."""


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """A query, with its weight among all.

    Attributes:
        sensitivity: the distance by which one record moves one of its cells.
        cells: the number of cells that one record moves.
    """

    name: str
    weight: Fraction = Fraction(1)
    sensitivity: Fraction = Fraction(1)
    cells: int = 1


def sequence_plan(noise: Listed[QueryNoise]) -> Plan:
    """Return a plan of all queries in sequence."""
    return Sequence(parts=tuple(noise))


def cost_in_own_unit(noise: QueryNoise) -> Fraction:
    """Return a query's cost in the mechanism's own unit: epsilon or rho of all its cells.

    It is exact but for offset tails, whose rho is rounded up.
    """
    return (noise.cells or 1) * (noise.own_loss().nats or Fraction(0))


def with_amount(kind: QueryNoiseType, query: WeightedQuery, amount: Fraction) -> QueryNoise:
    """Return the noise at which a query costs ``amount``, or a little less if its parameter is too long to be stated.

    Args:
        amount: in the mechanism's own unit (epsilon or rho, nats), above 0.
    """
    s, c = query.sensitivity, query.cells
    return _with_parameter(kind, query, _shortened(c * s / amount if _has_scale(kind) else c * s * s / (2 * amount)))


def with_margin(kind: QueryNoiseType, query: WeightedQuery, margin: Fraction, confidence: Fraction) -> QueryNoise:
    """Return the cheapest noise of 12 digits that stays within a margin of error (counts) with this confidence.

    Args:
        margin: counts; rounded down for integer noise, which reaches whole margins only.

    Raises:
        ValueError: the margin or the confidence is out of range.
    """
    whole = kind.DRAWN
    reached = Fraction(int(margin)) if whole else margin
    return _with_parameter(kind, query, _calibrated(kind, reached, confidence))


def with_variance(kind: QueryNoiseType, query: WeightedQuery, variance: Fraction) -> QueryNoise:
    """Return the cheapest noise of 12 digits whose variance is at most a target.

    Args:
        variance: counts squared, above 0.
    """
    return _with_parameter(kind, query, _of_variance(kind, variance))


@memoised(maxsize=4096)
def _of_variance(kind: QueryNoiseType, variance: Fraction) -> Fraction:
    if _has_scale(kind):
        scale = value_of_rank(rank_of(lower_bound(lambda: (ball(variance) / 2).sqrt())))
        return variance_to_parameter(lambda b: NoiseLaw(scale=b), variance, scale) if kind.DRAWN else scale
    if not kind.DRAWN:
        return value_of_rank(rank_of(variance))
    return variance_to_parameter(
        lambda square: _with_parameter(kind, WeightedQuery(""), square).noise_law(), variance, variance
    )


@memoised(maxsize=4096)
def _calibrated(kind: QueryNoiseType, margin: Fraction, confidence: Fraction) -> Fraction:
    if kind.OFFSET:
        return margin_to_offset_tails(int(margin), confidence)
    if kind.DRAWN:
        return (margin_to_scale if _has_scale(kind) else margin_to_sigma_squared)(int(margin), confidence)
    excess = excess_of(confidence)
    if margin <= 0:
        raise ValueError("expected a margin above 0 for continuous noise")
    if _has_scale(kind):
        return value_of_rank(rank_of(lower_bound(lambda: ball(margin) / -ball(excess).log())))
    return value_of_rank(rank_of(lower_bound(lambda: (ball(margin) / ball(excess).erfcinv()) ** 2 / arb(2))))


def _has_scale(kind: QueryNoiseType) -> bool:
    """Return whether the noise has a scale, and so a pure loss; the tails of other noise are Gaussian."""
    return kind.PARAMETER == "scale"


def _with_parameter(kind: QueryNoiseType, query: WeightedQuery, parameter: Fraction) -> QueryNoise:
    sensitivity = int(query.sensitivity) if kind.DRAWN else query.sensitivity
    if kind.OFFSET:
        own: dict[str, Any] = {"sigma_squared": parameter, "m": usual_offset(parameter)}
    else:
        own = {str(kind.PARAMETER): parameter}
    own["sensitivity"] = sensitivity
    return kind(name=query.name, cells=query.cells, **own)


def _shortened(value: Fraction) -> Fraction:
    """Return a figure within the limits of a number: itself, or one that is larger by less than 1e-11 of itself."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
        return value
    return value_of_rank(rank_of(value) + 1)


@dataclass(frozen=True, slots=True)
class EmptyAccount:
    """An empty account with a budget, which tells what it would admit."""

    budget: Budget
    weights: Weights

    @classmethod
    def of(cls, budget: Budget) -> "EmptyAccount":
        """Return an empty account with this budget."""
        return cls(budget, open_weights(budget))

    def spent_by(self, plan: Plan) -> Fraction | None:
        """Return the figure that the filter would compare with the cap; a little more, never less. None is infinite.

        Args:
            plan: priced under ``add_remove``.

        Returns:
            Nats.
        """
        totals = Totals()
        query = plan, Neighbouring.ADD_REMOVE, self.weights.orders
        try:
            amount = estimate_price(*query)
        except BeyondDoubles:
            amount = price(*query)
        return spent_of_cap(self.budget, self.weights, add_price(totals, price_as_charged(totals, amount)))

    def log_excess(self, plan: Plan) -> float:
        """Return the logarithm of a plan's loss divided by the cap; not above 0 if the plan is admitted.

        Raises:
            NoAllocation: the plan's loss is infinite under the budget's definition.
        """
        used = self.spent_by(plan)
        if used is None:
            raise NoAllocation("expected a budget in a definition in which this mechanism's loss is finite")
        if used <= 0:
            return -1.0
        return max(float(np.log(double(used / self.budget.cap))), -20.0) if used != self.budget.cap else 0.0

    def admits(self, plan: Plan) -> bool:
        """Tell whether the filter admits a plan as the first one."""
        used = self.spent_by(plan)
        return used is not None and used <= self.budget.cap

    def rough_cap(self) -> float:
        """Return the nearest double to a pure or zCDP cap (nats), or about the rho that any other cap allows."""
        match self.budget:
            case Budget(definition=Definition.APPROXIMATE, cap=cap, delta=delta, declared_delta=declared):
                return double(epsilon_to_rho_at(cap, delta - declared))
            case Budget(definition=Definition.RDP, cap=cap, alpha=Fraction() as alpha):
                return double(cap / alpha)
            case _:
                return double(self.budget.cap)

    def own_amount(self, kind: QueryNoiseType) -> Fraction | None:
        """Return the cap in the mechanism's own unit (epsilon or rho, nats); None if it is in another unit."""
        if kind.OFFSET:
            return None
        match self.budget.definition:
            case Definition.PURE if _has_scale(kind):
                return self.budget.cap
            case Definition.ZCDP if not _has_scale(kind):
                return self.budget.cap
            case Definition.RDP if not _has_scale(kind) and self.budget.alpha is not None:
                return self.budget.cap / self.budget.alpha  # tau(alpha) is at most alpha*rho
            case _:
                return None


def divide_budget(
    account: EmptyAccount, kind: QueryNoiseType, queries: Listed[WeightedQuery], shares: Listed[Fraction]
) -> list[QueryNoise]:
    """Return the least noise that the budget admits, with these shares of it in the mechanism's own unit.

    Args:
        shares: of the amount, one for each query; together at most 1.

    Returns:
        One mechanism for each query, in their order.

    Raises:
        NoAllocation: no noise keeps the budget, or none in the range of the search.
    """

    def noise(amount: Fraction) -> list[QueryNoise]:
        return [with_amount(kind, query, share * amount) for query, share in zip(queries, shares, strict=True)]

    amount = account.own_amount(kind)
    if amount is None:
        amount = _largest_admitted(account, lambda value: sequence_plan(noise(value)))
    noises = noise(amount)
    if not account.admits(sequence_plan(noises)):  # by a last digit, because irrational losses are rounded up
        noises = noise(value_of_rank(rank_of(amount) - 1))
    return noises


def _largest_admitted(account: EmptyAccount, plan: Callable[[Fraction], Plan]) -> Fraction:
    """Return the largest amount of 12 digits whose plan is admitted; the loss grows with the amount."""
    guess = _rough_root(lambda x: account.log_excess(plan(Fraction(x))), 1.0)
    rank = smallest(lambda rank: not account.admits(plan(value_of_rank(rank))), rank_of(Fraction(guess)))
    return value_of_rank(rank - 1)


def least_largest_error(
    account: EmptyAccount, kind: QueryNoiseType, queries: Listed[WeightedQuery], confidence: Fraction
) -> list[QueryNoise]:
    """Return the noise whose largest weight times margin of error is as small as the budget admits.

    Args:
        confidence: of the margins, above 0 and below 1.

    Returns:
        One mechanism for each query, in their order.

    Raises:
        NoAllocation: no noise keeps the budget, or none in the range of the search.
    """
    whole = kind.DRAWN

    def noise(error: Fraction) -> list[QueryNoise]:
        margins = [min(error / query.weight, Fraction(LARGEST_MARGIN)) for query in queries]
        return [with_margin(kind, query, m, confidence) for query, m in zip(queries, margins, strict=True)]

    def over(x: float) -> float:
        return account.log_excess(sequence_plan(noise(Fraction(x))))

    least = max(query.weight for query in queries) if whole else Fraction(1)
    guess = _rough_root(lambda x: -over(x), double(least) * 10, lowest=double(least) if whole else 0.0)

    def admitted(rank: int) -> bool:
        error = value_of_rank(rank)
        return (not whole or error >= least) and account.admits(sequence_plan(noise(error)))

    return noise(value_of_rank(smallest(admitted, rank_of(Fraction(guess)))))


def _rough_root(grows: Callable[[float], float], start: float, lowest: float = 0.0) -> float:
    """Return a rough root of a growing function, by secants in log x inside a bracket: a place to search from.

    Raises:
        NoAllocation: there is none within a factor of 1e12.
    """
    x, low, high, before = start, lowest, np.inf, None
    for _ in range(_SECANTS):
        value = grows(x)
        low, high = (max(low, x), high) if value < 0 else (low, min(high, x))
        if abs(value) < 1e-12 or high <= low * (1 + 1e-12):
            return x
        step = 8.0 if value < 0 else 1 / 8
        if before is not None and before[1] != value:
            step = float(np.exp(np.clip(-value * np.log(x / before[0]) / (value - before[1]), -4, 4)))
        before = (x, value)
        x *= step
        if not low < x < high:
            x = (low * high) ** 0.5 if low > 0 and high < np.inf else max(x, lowest * (1 + 1e-9))
        if not start / _BROAD < x < start * _BROAD:
            raise NoAllocation("expected a budget for which some noise is within reach")
    return x


def proportional(queries: Listed[WeightedQuery]) -> list[Fraction]:
    """Return the queries' shares by weight, exact."""
    whole = sum((query.weight for query in queries), Fraction(0))
    return [query.weight / whole for query in queries]


def least_weighted_error(account: EmptyAccount, kind: QueryNoiseType, queries: Listed[WeightedQuery]) -> list[Fraction]:
    """Return shares with the least sum of weight times variance, to some 1e-6, rounded down to at most 1 in all.

    At the optimum, every query has the same gain per loss, where the gain is in weight times variance. The loss is
    epsilon for a pure budget, else rho, on which losses converted to (epsilon, delta) depend.

    Returns:
        One share for each query, in their order, a multiple of 1e-15.
    """
    weight, s = (
        np.array([double(getattr(query, field)) for query in queries])[:, None] for field in ("weight", "sensitivity")
    )
    cells = np.array([float(query.cells) for query in queries])[:, None]
    in_rho = account.budget.definition is not Definition.PURE
    around = np.exp(np.array([-1e-3, 1e-3]))

    def gain(unit: Doubles) -> Doubles:
        """Return the gain, which grows with the noise's parameter (scale or sigma)."""
        near = unit * around
        loss = cells * _loss_of_unit(kind, near, s, in_rho)
        error = weight * _variance(kind, near)
        return np.asarray((error[:, 1:] - error[:, :1]) / (loss[:, :1] - loss[:, 1:]))

    start = s * cells
    target = float(gain(start * 30).max())  # any value: the budget decides what it becomes
    unit = _equal_gain_units(gain, start, target)
    cap = account.rough_cap()
    for _ in range(_HALVINGS):
        total = float(np.sum(cells * _loss_of_unit(kind, unit, s, in_rho)))
        if abs(np.log(total / cap)) < 1e-9:
            break
        target *= (total / cap) ** (3 if _has_scale(kind) and not in_rho else 2)
        unit = _equal_gain_units(gain, start, target)
    amounts = (cells * (s / unit if _has_scale(kind) else s * s / (2 * unit * unit)))[:, 0]
    return [Fraction(int(share * _SHARES), _SHARES) for share in (amounts / amounts.sum() * (1 - 1e-14)).tolist()]


def _equal_gain_units(gain: Callable[[Doubles], Doubles], start: Doubles, target: float) -> Doubles:
    low, high = np.log(start) - 40, np.log(start) + 60
    for _ in range(70):
        middle = (low + high) / 2
        with np.errstate(all="ignore"):
            above = ~(gain(np.exp(middle)) < target)
        # Noise so small that neither error nor loss is known counts as below.
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(np.exp((low + high) / 2))


def _loss_of_unit(kind: QueryNoiseType, unit: Doubles, s: Doubles, in_rho: bool) -> Doubles:
    curve = _with_parameter(kind, WeightedQuery(""), Fraction(1)).rho_curve()
    if curve is None:
        return np.asarray(s * s / (2 * unit * unit))
    return np.asarray(curve.formula(unit, s, DOUBLES) if in_rho else s / unit)


def _variance(kind: QueryNoiseType, unit: Doubles) -> Doubles:
    if not kind.DRAWN:
        return 2 * unit * unit if _has_scale(kind) else unit * unit
    if _has_scale(kind):
        return np.asarray(1 / (2 * np.sinh(np.minimum(1 / (2 * unit), 300)) ** 2))
    x = np.arange(1, 40.0)[:, None, None]
    mass = 2 * np.exp(-x * x / (2 * np.minimum(unit, 2.0) ** 2))
    return np.asarray(np.where(unit < 2, (x * x * mass).sum(axis=0) / (1 + mass.sum(axis=0)), unit * unit))
