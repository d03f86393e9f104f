"""The privacy filter: the decision whether one more release fits an account's budget.

Its guarantee holds when each release is chosen after seeing all earlier outputs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from service.privacy.accounting.conversion import conversion, epsilon_to_rho_at
from service.privacy.accounting.pricing import QUANTA, Price
from service.privacy.accounting.totals import Totals, add_price
from service.privacy.numerics.keyed import FractionsKey, memoised

_STEPS = 250

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

    @property
    def delta_cap(self) -> str:
        """The name of the cap on declared deltas."""
        return "declared_delta" if self.definition is Definition.APPROXIMATE else "delta"


@dataclass(frozen=True, slots=True)
class Weights:
    """RDP orders and, for an (epsilon, delta) budget, the share of delta that each may use; fixed at opening."""

    orders: tuple[Fraction, ...] = ()
    shares: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        for name in ("orders", "shares"):  # keys of memos: hashing 500 fractions again would take most of an admission
            object.__setattr__(self, name, FractionsKey.of(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A cap that a release does not fit, with the requested loss (None: infinite) and the remaining loss."""

    cap: str
    requested: Fraction | None
    remaining: Fraction


def open_weights(budget: Budget) -> Weights:
    """Return the orders that admission needs, and the weights that an (epsilon, delta) account keeps for ever.

    The order that is best for a Gaussian ledger that fills the cap gets 0.9; the other 0.1 is spread evenly over all
    orders. A mixture of supermartingales is a supermartingale, so the budget may be tested at every order at once. A
    choice of the order by what was spent would not be a filter.

    Returns:
        Shares that add up to 1, for (epsilon, delta) only; no orders if the budget needs no Rényi curve.
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
    rule = order_rule(budget, weights)
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


def deciding_order(budget: Budget, weights: Weights, totals: Totals) -> int | None:
    """Return the number of the order that gives the figure of an (epsilon, delta) budget; None: the pure sum does."""
    rule = order_rule(budget, weights)
    nothing = (0,) * len(rule.conversions)
    curve = zip(totals.quanta or nothing, rule.conversions, rule.orders, totals.infinite or nothing, strict=True)
    found = [
        (rest + more + totals.linear * order * QUANTA / rule.denominator, number)
        for number, (rest, more, order, infinite) in enumerate(curve)
        if not infinite
    ]
    pure, least = totals.epsilon.value, min(found, default=None)
    if least is None or (pure is not None and pure * QUANTA <= least[0]):
        return None
    return least[1]


@dataclass(frozen=True, slots=True)
class OrderRule:
    """The integers with which an (epsilon, delta) account's orders are tested.

    Attributes:
        orders: multiples of 1/denominator.
        conversions: the excess of epsilon over tau at each order's share of delta, in quanta rounded up.
    """

    denominator: int
    orders: tuple[int, ...]
    conversions: tuple[int, ...]


def order_rule(budget: Budget, weights: Weights) -> OrderRule:
    """Return the integers with which an (epsilon, delta) budget's orders are tested; computed once for each rule."""
    return _rule(budget.delta - budget.declared_delta, weights.orders, weights.shares)


@memoised(maxsize=1024)  # enough for several lines of accounts with as many caps as they may have
def _rule(delta: Fraction, alphas: tuple[Fraction, ...], shares: tuple[Fraction, ...]) -> OrderRule:
    denominator = math.lcm(*(alpha.denominator for alpha in alphas))
    conversions = (conversion(alpha, share * delta) for alpha, share in zip(alphas, shares, strict=True))
    return OrderRule(
        denominator,
        tuple(int(alpha * denominator) for alpha in alphas),
        tuple(math.ceil(epsilon * QUANTA) for epsilon in conversions),
    )


def remaining(budget: Budget, weights: Weights, totals: Totals) -> Fraction:
    """Return the rest of the cap (nats), never below 0."""
    return remaining_after(budget, spent_of_cap(budget, weights, totals))


def remaining_after(budget: Budget, used: Fraction | None) -> Fraction:
    """Return the rest of the cap (nats), never below 0, from the figure to compare with it; None is infinite."""
    return Fraction(0) if used is None else max(budget.cap - used, Fraction(0))


def shortfalls(budget: Budget, weights: Weights, before: Totals, after: Totals) -> list[Shortfall]:
    """Return the caps that ``after`` does not fit, if there are any: the loss first, then the declared deltas."""
    shortfalls_found: list[Shortfall] = []
    used = spent_of_cap(budget, weights, after)
    if used is None or used > budget.cap:
        requested = None if used is None else used - (spent_of_cap(budget, weights, before) or Fraction(0))
        shortfalls_found.append(Shortfall(budget.cap_on, requested, remaining(budget, weights, before)))
    if after.delta > budget.declared_delta:
        unused = max(budget.declared_delta - before.delta, Fraction(0))
        shortfalls_found.append(Shortfall(budget.delta_cap, after.delta - before.delta, unused))
    return shortfalls_found


def spent_alone(budget: Budget, weights: Weights, amount: Price) -> Fraction | None:
    """Return the figure that admission would count for an account's first release (nats); None is infinite."""
    return spent_of_cap(budget, weights, add_price(Totals(), amount))


def is_greater(new: Budget, old: Budget) -> bool:
    """Return whether a budget permits more than another of its kind."""
    return new.cap > old.cap or new.delta > old.delta or new.declared_delta > old.declared_delta
