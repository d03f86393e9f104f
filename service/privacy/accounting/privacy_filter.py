"""The privacy filter: exact totals of an account, and the decision if one more release fits its budget.

Its guarantee holds when each release is chosen after seeing all earlier outputs. The totals are rational: figures that
users state stay as they are, and irrational ones are rounded up to quanta of 1e-15 nat, so every machine gets the same
totals.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from service.privacy.accounting.conversion import conversion, epsilon_to_rho_at
from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.numerics.keyed import FractionsKey, memoised

FINE_DENOMINATOR = 10**60  # totals are exact below it
COMMON = 10**60 * math.lcm(*range(1, 2**13))
"""A multiple of the denominators of all exact amounts that can be taken away again; 3,611 digits (Python reads 4,300).

Such amounts can cancel, a/p + (1 - a/p), so that no bound on the denominator of their sum bounds that of what is left
when some of them expire: only one multiple of all their denominators does."""
COARSE = 10**18  # a loss is rounded up to a multiple of its inverse, where the denominator would be too large
COARSE_DELTA = 10**40
MOST_COUNTED = 10**6  # the largest number of further charges that is counted
_STEPS = 250
_TOGETHER = 64  # fractions that are added over one denominator

ORDERS = tuple(1 + Fraction(f"{10 ** (-3 + 9 * k / (_STEPS - 1)):.5e}") for k in range(_STEPS))
"""The RDP orders of (epsilon, delta) budgets: alpha - 1 geometric from 1e-3 to 1e6."""


class Definition(StrEnum):
    """The definition of privacy loss that a budget caps."""

    PURE = "pure"
    ZCDP = "zcdp"
    APPROXIMATE = "approximate"
    RDP = "rdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A cap on an account's privacy loss.

    Attributes:
        definition: the definition of the capped loss.
        cap: epsilon, or rho under zCDP; nats.
        delta: of an (epsilon, delta) cap; 0 for the others.
        declared_delta: cap on the sum of the deltas that mechanisms declare.
        alpha: the order of an RDP cap.
    """

    definition: Definition
    cap: Fraction
    delta: Fraction = Fraction(0)
    declared_delta: Fraction = Fraction(0)
    alpha: Fraction | None = None

    @property
    def cap_on(self) -> str:
        """The name of the capped figure."""
        return "rho" if self.definition is Definition.ZCDP else "epsilon"


@dataclass(frozen=True, slots=True)
class Weights:
    """RDP orders and, for an (epsilon, delta) budget, the share of delta that each may use; fixed at opening."""

    orders: tuple[Fraction, ...] = ()
    shares: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        for name in ("orders", "shares"):  # keys of memos: to hash 500 fractions again would be most of an admission
            object.__setattr__(self, name, FractionsKey.of(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class LossSum:
    """A finite sum, and how many infinite contributions it had: so that one can be taken away again."""

    finite: Fraction = Fraction(0)
    infinite: int = 0

    def plus(self, value: Fraction | None) -> "LossSum":
        """Return the sum with one more value; None is infinite."""
        if value is None:
            return LossSum(self.finite, self.infinite + 1)
        return LossSum(self.finite + value, self.infinite)

    def minus(self, value: Fraction | None) -> "LossSum":
        """Return the sum without a value that is in it; None is infinite."""
        if value is None:
            return LossSum(self.finite, self.infinite - 1)
        return LossSum(self.finite - value, self.infinite)

    @property
    def value(self) -> Fraction | None:
        return None if self.infinite else self.finite


@dataclass(frozen=True, slots=True)
class Totals:
    """The sum of the prices of all releases of an account."""

    epsilon: LossSum = LossSum()
    rho: LossSum = LossSum()
    delta: Fraction = Fraction(0)
    linear: Fraction = Fraction(0)
    quanta: tuple[int, ...] = ()
    infinite: tuple[int, ...] = ()

    @property
    def is_below_zero(self) -> bool:
        """True where more was taken away than was added, of any of the sums."""
        amounts = (self.epsilon.finite, self.rho.finite, self.delta, self.linear)
        counts = (self.epsilon.infinite, self.rho.infinite, *self.quanta, *self.infinite)
        return min(amounts) < 0 or min(counts) < 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A cap that a release does not fit, with the loss that it asks for (None: infinite) and the loss that is left."""

    cap: str
    requested: Fraction | None
    remaining: Fraction


def open_weights(budget: Budget) -> Weights:
    """Return the orders that admission needs, and the weights that an (epsilon, delta) account keeps for ever.

    0.9 at the order that is best for a Gaussian ledger filling the cap, 0.1 spread evenly. A mixture of
    supermartingales is one, so that it may be tested at every order at once; choosing the order by
    what was spent would not be a filter.

    Returns:
        Shares that add up to 1, for (epsilon, delta) only; no orders where the budget needs no Rényi curve.
    """
    if budget.definition is Definition.RDP and budget.alpha is not None:
        return Weights((budget.alpha,))
    if budget.definition is not Definition.APPROXIMATE:
        return Weights()
    delta = budget.delta - budget.declared_delta
    rho = epsilon_to_rho_at(budget.cap, delta)
    epsilons = [rho * order + conversion(order, delta) for order in ORDERS]
    best = epsilons.index(min(epsilons))
    even = Fraction(1, 10 * len(ORDERS))
    return Weights(ORDERS, tuple(even + (Fraction(9, 10) if k == best else 0) for k in range(len(ORDERS))))


def price_as_charged(totals: Totals, asked: Price, *, held: bool = False) -> Price:
    """Return a price as it is added to totals: rounded up where the common denominator would pass 10^60.

    Args:
        totals: of the account before the charge.
        asked: the price to add.
        held: the charge can be taken away again; then it is also rounded up where its denominator does not divide
            ``COMMON``.

    Returns:
        A price that is nowhere below ``asked``.
    """

    def manageable(before: Fraction, added: Fraction, steps: int) -> Fraction:
        fine = math.lcm(before.denominator, added.denominator) < FINE_DENOMINATOR
        return added if fine and not (held and COMMON % added.denominator) else _round_up(added, steps)

    return Price(
        epsilon=None if asked.epsilon is None else manageable(totals.epsilon.finite, asked.epsilon, COARSE),
        rho=None if asked.rho is None else manageable(totals.rho.finite, asked.rho, COARSE),
        delta=manageable(totals.delta, asked.delta, COARSE_DELTA),
        linear=manageable(totals.linear, asked.linear, COARSE),
        quanta=asked.quanta,
    )


def _round_up(value: Fraction, steps: int) -> Fraction:
    return Fraction(math.ceil(value * steps), steps)


def add_price(totals: Totals, amount: Price) -> Totals:
    """Return the totals after a charge."""
    return Totals(
        epsilon=totals.epsilon.plus(amount.epsilon),
        rho=totals.rho.plus(amount.rho),
        delta=totals.delta + amount.delta,
        linear=totals.linear + amount.linear,
        quanta=_sums(totals.quanta, [quanta or 0 for quanta in amount.quanta]),
        infinite=_sums(totals.infinite, _infinite(amount.quanta)),
    )


def subtract_price(totals: Totals, amount: Price) -> Totals:
    """Return the totals without a charge that is in them: those of the other charges, added in any order."""
    return Totals(
        epsilon=totals.epsilon.minus(amount.epsilon),
        rho=totals.rho.minus(amount.rho),
        delta=totals.delta - amount.delta,
        linear=totals.linear - amount.linear,
        quanta=_sums(totals.quanta, [-(quanta or 0) for quanta in amount.quanta]),
        infinite=_sums(totals.infinite, [-one for one in _infinite(amount.quanta)]),
    )


def _infinite(quanta: tuple[int | None, ...]) -> list[bool]:
    """Return the places at which a curve is infinite; there are almost never any."""
    return [one is None for one in quanta] if None in quanta else []


def _sums(totals: tuple[int, ...], added: Sequence[int]) -> tuple[int, ...]:
    """Add order by order; all zeros become the empty tuple, so that equal totals compare equal."""
    if not any(added):
        return totals
    sums = tuple(map(operator.add, totals, added)) if totals else tuple(map(int, added))
    return sums if any(sums) else ()


def spent_of_cap(budget: Budget, weights: Weights, totals: Totals) -> Fraction | None:
    """Return the figure that the filter compares with the cap (nats, an upper bound); None is infinite."""
    match budget.definition:
        case Definition.PURE:
            return totals.epsilon.value
        case Definition.ZCDP:
            return totals.rho.value
        case Definition.RDP:
            (order,) = weights.orders
            if any(totals.infinite):
                return None
            return totals.linear * order + Fraction(sum(totals.quanta), QUANTA)
    return _spent_of_delta(budget, weights, totals)


def _spent_of_delta(budget: Budget, weights: Weights, totals: Totals) -> Fraction | None:
    """Return the least of the pure sum and, over the orders, tau + conversion at the order's share of delta."""
    rule = _rule(budget.delta - budget.declared_delta, weights.orders, weights.shares)
    rests = totals.quanta or (0,) * len(rule.conversions)
    epsilons: Iterable[int] = (rest + more for rest, more in zip(rests, rule.conversions, strict=True))
    if totals.linear:
        # In whole quanta, rounded up: integers are many times as fast as fractions here.
        top, bottom = -totals.linear.numerator * QUANTA, totals.linear.denominator * rule.denominator
        epsilons = (quanta - order * top // bottom for quanta, order in zip(epsilons, rule.orders, strict=True))
    if totals.infinite:
        epsilons = (quanta for quanta, infinite in zip(epsilons, totals.infinite, strict=True) if not infinite)
    least = min(epsilons, default=None)
    by_order = None if least is None else Fraction(max(least, 0), QUANTA)
    return min((value for value in (totals.epsilon.value, by_order) if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The integers with which an (epsilon, delta) account's orders are tested.

    Attributes:
        orders: multiples of 1/denominator.
        conversions: the excess of epsilon over tau at each order's share of delta, in quanta rounded up.
    """

    denominator: int
    orders: tuple[int, ...]
    conversions: tuple[int, ...]


@memoised(maxsize=256)
def _rule(delta: Fraction, alphas: tuple[Fraction, ...], shares: tuple[Fraction, ...]) -> _Rule:
    denominator = math.lcm(*(alpha.denominator for alpha in alphas))
    conversions = (conversion(alpha, share * delta) for alpha, share in zip(alphas, shares, strict=True))
    return _Rule(
        denominator,
        tuple(int(alpha * denominator) for alpha in alphas),
        tuple(math.ceil(epsilon * QUANTA) for epsilon in conversions),
    )


def remaining(budget: Budget, weights: Weights, totals: Totals) -> Fraction:
    """Return the rest of the cap (nats), never below 0."""
    return remaining_after(budget, spent_of_cap(budget, weights, totals))


def remaining_after(budget: Budget, used: Fraction | None) -> Fraction:
    """Return the rest of the cap (nats), never below 0, given the figure to compare with it; None is infinite."""
    return Fraction(0) if used is None else max(budget.cap - used, Fraction(0))


def shortfalls(budget: Budget, weights: Weights, before: Totals, after: Totals) -> list[Shortfall]:
    """Return the caps that ``after`` does not fit, if there are any: the loss first, then the declared deltas."""
    shortfalls_found: list[Shortfall] = []
    used = spent_of_cap(budget, weights, after)
    if used is None or used > budget.cap:
        requested = None if used is None else used - (spent_of_cap(budget, weights, before) or Fraction(0))
        shortfalls_found.append(Shortfall(budget.cap_on, requested, remaining(budget, weights, before)))
    if after.delta > budget.declared_delta:
        name = "declared_delta" if budget.definition is Definition.APPROXIMATE else "delta"
        unused = max(budget.declared_delta - before.delta, Fraction(0))
        shortfalls_found.append(Shortfall(name, after.delta - before.delta, unused))
    return shortfalls_found


def spent_alone(budget: Budget, weights: Weights, amount: Price) -> Fraction | None:
    """Return the figure that admission would count for an account's first release (nats); None is infinite."""
    return spent_of_cap(budget, weights, add_price(Totals(), amount))


def mean_price(totals: Totals, number: int) -> Price:
    """Return the average price of the charges in ``totals``, rounded up; their own price if they were equal.

    Args:
        number: the number of charges, above 0.
    """
    infinite = totals.infinite or (0,) * len(totals.quanta)
    quanta = totals.quanta or (0,) * len(infinite)
    return price_as_charged(
        totals,
        Price(
            epsilon=None if totals.epsilon.infinite else totals.epsilon.finite / number,
            rho=None if totals.rho.infinite else totals.rho.finite / number,
            delta=totals.delta / number,
            linear=totals.linear / number,
            quanta=tuple(None if many else -(-one // number) for one, many in zip(quanta, infinite, strict=True)),
        ),
    )


def count_fitting(budget: Budget, weights: Weights, totals: Totals, amount: Price) -> int:
    """Count how many more charges of an amount a budget admits, exactly; at most ``MOST_COUNTED``.

    The amount is added as it is, as ``price_as_charged`` makes it. The figure that is spent grows with the number of
    charges, so doubling the number finds one too many, and halving the last that fits.
    """

    def fits(number: int) -> bool:
        return not shortfalls(budget, weights, totals, add_prices(totals, [(amount, number)]))

    low, high = 0, 1
    while high <= MOST_COUNTED and fits(high):
        low, high = high, 2 * high
    high = min(high, MOST_COUNTED + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def add_prices(totals: Totals, amounts: Iterable[tuple[Price, int]]) -> Totals:
    """Return the totals after several charges of each amount, as ``add_price`` would make them one by one.

    A count below 0 takes charges away.
    """
    counted = list(amounts)
    curves = [(amount.quanta, count) for amount, count in counted if amount.quanta]
    return Totals(
        epsilon=_sum(totals.epsilon, [(amount.epsilon, count) for amount, count in counted]),
        rho=_sum(totals.rho, [(amount.rho, count) for amount, count in counted]),
        delta=totals.delta + _dot((amount.delta, count) for amount, count in counted),
        linear=totals.linear + _dot((amount.linear, count) for amount, count in counted),
        quanta=_order_by_order(totals.quanta, [[count * (one or 0) for one in curve] for curve, count in curves]),
        infinite=_order_by_order(
            totals.infinite, [[count * (one is None) for one in curve] for curve, count in curves if None in curve]
        ),
    )


def _sum(total: LossSum, values: Sequence[tuple[Fraction | None, int]]) -> LossSum:
    infinite = sum(count for value, count in values if value is None)
    finite = _dot((value, count) for value, count in values if value is not None)
    return LossSum(total.finite + finite, total.infinite + infinite)


def _dot(values: Iterable[tuple[Fraction, int]]) -> Fraction:
    """Return the sum of the products, some dozens at a time over one denominator, as reducing each sum is slow."""
    parts, total = [(value, count) for value, count in values if value], Fraction(0)
    for first in range(0, len(parts), _TOGETHER):
        block = parts[first : first + _TOGETHER]
        bottom = math.lcm(*(value.denominator for value, _ in block))
        top = sum(count * value.numerator * (bottom // value.denominator) for value, count in block)
        total += Fraction(top, bottom)
    return total


def _order_by_order(totals: tuple[int, ...], curves: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if not curves:
        return totals
    sums = tuple(map(sum, zip(*([totals] if totals else []), *curves, strict=True)))
    return sums if any(sums) else ()


def add_totals(one: Totals, other: Totals) -> Totals:
    """Return the totals of the charges of both."""
    return Totals(
        epsilon=LossSum(one.epsilon.finite + other.epsilon.finite, one.epsilon.infinite + other.epsilon.infinite),
        rho=LossSum(one.rho.finite + other.rho.finite, one.rho.infinite + other.rho.infinite),
        delta=one.delta + other.delta,
        linear=one.linear + other.linear,
        quanta=_sums(one.quanta, other.quanta),
        infinite=_sums(one.infinite, other.infinite),
    )


def is_charge_of(amount: Price, asked: Price) -> bool:
    """Return whether ``price_as_charged`` makes this amount of a price: each figure as it is or rounded up."""
    figures = (
        (amount.epsilon, asked.epsilon, COARSE),
        (amount.rho, asked.rho, COARSE),
        (amount.delta, asked.delta, COARSE_DELTA),
        (amount.linear, asked.linear, COARSE),
    )
    return amount.quanta == asked.quanta and all(
        charged_figure == price
        or (charged_figure is not None and price is not None and charged_figure == _round_up(price, steps))
        for charged_figure, price, steps in figures
    )
