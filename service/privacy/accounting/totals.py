"""Totals of an account's charges: exact sums to which prices are added and from which they are taken away.

The totals are rational. Figures that users state stay as they are, and irrational ones are rounded up to quanta of
1e-15 nat, so every machine gets the same totals.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from service.privacy.accounting.pricing import NEVER_BELOW, Price

FINE_DENOMINATOR = 10**60  # totals are exact below it
COMMON = 10**60 * math.lcm(*range(1, 2**13))
"""A multiple of the denominators of all exact amounts that can be taken away again; 3,611 digits (Python reads 4,300).

Such amounts can cancel, as in a/p + (1 - a/p). So a bound on the denominator of their sum does not bound that of the
rest when some of them expire; only a multiple of all their denominators does."""
COARSE = 10**18  # a loss is rounded up to a multiple of its inverse if the denominator would be too large
COARSE_DELTA = 10**40
_TOGETHER = 64  # fractions that are added over one denominator


@dataclass(frozen=True, slots=True)
class LossSum:
    """A finite sum, and the number of its infinite contributions, so that each of these can be taken away again."""

    finite: Fraction = Fraction(0)
    infinite: int = 0

    def plus(self, value: Fraction | None) -> "LossSum":
        """Return the sum with one more value; None is infinite."""
        if value is None:
            return LossSum(self.finite, self.infinite + 1)
        return LossSum(self.finite + value, self.infinite)

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
        """True if more was taken away than was added, in any of the sums."""
        amounts = (self.epsilon.finite, self.rho.finite, self.delta, self.linear)
        counts = (self.epsilon.infinite, self.rho.infinite, *self.quanta, *self.infinite)
        return min(amounts) < 0 or min(counts) < 0


def price_as_charged(totals: Totals, asked: Price, *, held: bool = False) -> Price:
    """Return a price as it is added to totals: rounded up if the common denominator would pass 10^60.

    Args:
        totals: of the account before the charge.
        asked: the price to add.
        held: whether the charge can be taken away again; it is then also rounded up if its denominator does not divide
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
    finite, infinite = amount.quanta, list[bool]()
    if None in finite:  # almost never
        finite, infinite = tuple(one or 0 for one in finite), [one is None for one in finite]
    return Totals(
        epsilon=totals.epsilon.plus(amount.epsilon),
        rho=totals.rho.plus(amount.rho),
        delta=totals.delta + amount.delta if amount.delta else totals.delta,  # it is mostly 0
        linear=totals.linear + amount.linear if amount.linear else totals.linear,
        quanta=_sums(totals.quanta, cast("tuple[int, ...]", finite)),
        infinite=_sums(totals.infinite, infinite),
    )


def _sums(totals: tuple[int, ...], added: Sequence[int]) -> tuple[int, ...]:
    """Add order by order; all zeros become the empty tuple, so that equal totals compare equal."""
    if not any(added):
        return totals
    sums = tuple(map(operator.add, totals, added)) if totals else tuple(map(int, added))
    return sums if any(sums) else ()


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


def multiple(amount: Price, number: int) -> Price:
    """Return the sum of a number of equal charges."""
    return Price(
        epsilon=None if amount.epsilon is None else number * amount.epsilon,
        rho=None if amount.rho is None else number * amount.rho,
        delta=number * amount.delta,
        linear=number * amount.linear,
        quanta=tuple(None if one is None else number * one for one in amount.quanta),
    )


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


def without_totals(one: Totals, other: Totals) -> Totals:
    """Return the totals of the charges of one without those of the other, which are among them."""
    return Totals(
        epsilon=LossSum(one.epsilon.finite - other.epsilon.finite, one.epsilon.infinite - other.epsilon.infinite),
        rho=LossSum(one.rho.finite - other.rho.finite, one.rho.infinite - other.rho.infinite),
        delta=one.delta - other.delta,
        linear=one.linear - other.linear,
        quanta=_sums(one.quanta, [-quanta for quanta in other.quanta]),
        infinite=_sums(one.infinite, [-count for count in other.infinite]),
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


def may_be_charge_by(accountant: str, amount: Price, asked: Price) -> bool:
    """Return whether an accountant may have charged this amount where the present one asks for a price.

    Args:
        accountant: of ``COMPARABLE``; versions of ``NEVER_BELOW`` may have charged more.
    """
    if is_charge_of(amount, asked):
        return True
    figures = [
        (amount.epsilon, asked.epsilon),
        (amount.rho, asked.rho),
        (amount.delta, asked.delta),
        (amount.linear, asked.linear),
        *zip(amount.quanta, asked.quanta, strict=False),
    ]
    return (
        accountant in NEVER_BELOW
        and len(amount.quanta) == len(asked.quanta)
        and all(one is None or (other is not None and one >= other) for one, other in figures)
    )
