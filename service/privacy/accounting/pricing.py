"""Prices: a release's addition to an account's totals, exact, with the same integers on every machine.

Figures that users state stay as they are. Irrational ones are rounded up to whole quanta of 1e-15 nat.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from service.privacy.accounting.batch_costs import BeyondDoubles
from service.privacy.accounting.pure import plan_delta, plan_epsilon
from service.privacy.accounting.rdp import mechanism_taus
from service.privacy.accounting.renyi import RenyiCurve
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.intervals import up
from service.privacy.numerics.keyed import FractionsKey
from service.privacy.numerics.loss import Loss, largest_losses, total_loss
from service.privacy.plans.composition_program import Foldable, Notion, build_program, fold
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, Priced, condense

ACCOUNTANT = "2"
"""The version of everything that decides a price; a release stores the one that priced it."""

NEVER_BELOW = frozenset({"1"})
"""Earlier versions none of whose prices is below the present one: "1" took the rho of two values for all responses."""

COMPARABLE = NEVER_BELOW | {ACCOUNTANT}
"""The versions whose prices can be checked; others' are what they are."""

QUANTA = 10**15  # in a nat
MEMOISED_SIZE = 1000  # mechanisms and nodes; larger plans rarely come twice, and would fill the memory


@dataclass(frozen=True, slots=True)
class Price:
    """One release's addition to an account's totals.

    Attributes:
        epsilon, rho: rational; None is infinite.
        delta: the sum of what its mechanisms declare.
        linear: c of the part c*alpha of its Rényi curve.
        quanta: the rest of the curve at each of the account's orders (None: infinite); if empty, it is 0 everywhere.
    """

    epsilon: Fraction | None
    rho: Fraction | None
    delta: Fraction
    linear: Fraction
    quanta: tuple[int | None, ...]


def price(plan: Priced, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> Price:
    """Return a plan's addition to the totals of an account with these orders.

    Plans that differ only in names share one memoised price.

    Args:
        plan: valid under the relation (``notation.check_relation``).
        neighbouring: the relation under which the price holds.
        orders: of the account; empty if its budget needs no Rényi curve.

    Returns:
        Upper bounds: rational figures exact, irrational ones rounded up to whole quanta of 1e-15 nat.
    """
    condensed = condense(plan)
    if condensed.size > MEMOISED_SIZE:
        return _price(condensed, neighbouring, orders)
    return _memoised(condensed, neighbouring, FractionsKey.of(orders))


@lru_cache(maxsize=1024)
def _memoised(plan: Condensed, neighbouring: Neighbouring, orders: FractionsKey) -> Price:
    return _price(plan, neighbouring, orders)


def _price(plan: Condensed, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> Price:
    linear, rest = _curve(plan, neighbouring, orders) if orders else (Fraction(0), ())
    quanta = tuple(None if loss.nats is None else math.ceil(loss.nats * QUANTA) for loss in rest)
    return _price_of_curve(plan, neighbouring, linear, quanta)


def _price_of_curve(
    plan: Foldable, neighbouring: Neighbouring, linear: Fraction, quanta: tuple[int | None, ...]
) -> Price:
    """Return the price with this Rényi curve; an irrational epsilon or rho is whole quanta, rounded up."""
    epsilon, rho = (_in_quanta(of(plan, neighbouring)) for of in (plan_epsilon, plan_rho))
    return Price(epsilon, rho, plan_delta(plan, neighbouring), linear, quanta)


def _in_quanta(loss: Loss) -> Fraction | None:
    if loss.nats is None or loss.rational:
        return loss.nats
    return Fraction(math.ceil(loss.nats * QUANTA), QUANTA)


def estimate_price(plan: Priced, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> Price:
    """Return an upper bound on ``price``, some 1e-13 above it: for searches, never for charges.

    Upper ends of intervals take the place of the ceilings of balls. These ceilings are at most 2^-95 of themselves
    above the truth, far less than the unit by which each end is moved up here. With at most one order, the result is
    the price itself.

    Raises:
        BeyondDoubles: a figure is too large or too small for doubles.
    """
    if len(orders) <= 1:
        return price(plan, neighbouring, orders)
    program = build_program(condense(plan), neighbouring)
    linear, rest = RenyiCurve(program).slope_and_excess(orders)
    if linear.nats is None:
        raise BeyondDoubles
    quanta = tuple(None if math.isinf(nats) else math.ceil(nats) for nats in up(up(rest) * QUANTA).tolist())
    return _price_of_curve(program, neighbouring, linear.nats, quanta if set(quanta) - {0} else ())


_CurveParts = tuple[Fraction, tuple[Loss, ...]]
"""tau at the orders, as c*alpha plus a rest at each; an empty rest is 0."""


def _curve(plan: Condensed, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> _CurveParts:
    """Return a plan's Rényi curve: linear curves, the most usual, add up as one number, others order by order.

    At a single order every rational tau is linear, and stays exact, because a cap at that order needs it.
    """

    key = FractionsKey.of(orders)

    def mechanism(mechanism: Mechanism) -> _CurveParts:
        linear = mechanism.rdp().sole_slope
        if linear is not None:
            return linear, ()
        rest = mechanism_taus(mechanism, key)
        if len(rest) == 1 and rest[0].rational and rest[0].nats is not None:
            return rest[0].nats / orders[0], ()
        return Fraction(0), rest

    def total(weighted: Iterable[tuple[_CurveParts, int]]) -> _CurveParts:
        listed = list(weighted)
        rests = [(rest, count) for (_, rest), count in listed if rest]
        return (
            total_loss((Loss(linear), count) for (linear, _), count in listed).nats or Fraction(0),
            tuple(total_loss([(rest[k], count) for rest, count in rests]) for k in range(len(orders) if rests else 0)),
        )

    def largest(weighted: Iterable[tuple[_CurveParts, int]], how_many: int) -> _CurveParts:
        listed = list(weighted)
        if not any(rest for (_, rest), _ in listed):
            chosen = largest_losses([(Loss(linear), count) for (linear, _), count in listed], how_many)
            return chosen.nats or Fraction(0), ()
        values = [(_at_orders(curve, orders), count) for curve, count in listed]
        return Fraction(0), tuple(
            largest_losses([(value[k], count) for value, count in values], how_many) for k in range(len(orders))
        )

    return fold(plan, neighbouring, Notion(mechanism, total, largest))


def _at_orders(curve: _CurveParts, orders: tuple[Fraction, ...]) -> list[Loss]:
    linear, rest = curve
    straight = [Loss(linear * order) for order in orders]
    return [total_loss([(a, 1), (b, 1)]) for a, b in zip(straight, rest, strict=True)] if rest else straight
