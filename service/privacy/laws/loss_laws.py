"""Laws of the privacy loss of one cell moved, from which the tight figures of a composition are computed.

Each has only those parameters of a mechanism on which its loss depends. All are symmetric in the two neighbours, as is
the set of laws that a range stands for, except ``ListedLoss``, and ``OddsLoss``, one direction of a ``TableLoss``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from typing import Self

from service.privacy.numerics.keyed import Keyed


@dataclass(frozen=True, slots=True)
class LadderLoss(Keyed):
    """A loss on equidistant rungs: of geometric noise, of randomised response, of a declared pure epsilon.

    Attributes:
        e: the largest loss, nats.
        s: the number of steps of 2e/s from e down to -e.
        values: of randomised response, if more than 2 (then s = 2). 2 is the geometric mechanism of sensitivity s,
            which for s = 1 is two-valued response.
    """

    e: Fraction
    s: int = 1
    values: int = 2

    @property
    def figures(self) -> tuple[Fraction | int, ...]:
        """The numbers that must be in the range of doubles."""
        return self.e, self.s

    @property
    def is_zero(self) -> bool:
        """True if nothing is lost."""
        return self.e == 0

    @property
    def inner(self) -> float:
        """The weight of the rungs between the ends."""
        if self.values > 2:
            return (self.values - 2) * math.exp(-float(self.e) / 2)
        return -math.expm1(-(self.e.numerator / (self.e.denominator * self.s)))


class _PositiveLoss(Keyed):
    """A loss that is not 0."""

    __slots__ = ()

    @property
    def is_zero(self) -> bool:
        """False: noise has a sensitivity above 0."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceLoss(_PositiveLoss):
    """The loss of continuous Laplace noise: a density between e and -e, and an atom at each of them.

    Attributes:
        scale: of the noise.
        sensitivity: the distance by which the answer is moved.
    """

    scale: Fraction
    sensitivity: Fraction = Fraction(1)

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return (self.sensitivity,)

    @property
    def e(self) -> Fraction:
        """The largest loss, nats."""
        return self.sensitivity / self.scale

    def in_rungs(self, steps: int) -> LadderLoss:
        """Return the geometric law with the same largest loss; it is worse, and by less the more steps there are."""
        return LadderLoss(self.e, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianLoss(Keyed):
    """The loss of continuous Gaussian noise, which is Gaussian: mean rho, variance 2 rho.

    Attributes:
        sigma_squared: variance of the noise.
        sensitivity: the distance by which the answer is moved.
    """

    sigma_squared: Fraction
    sensitivity: Fraction = Fraction(1)

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """Empty, because the loss has a closed form."""
        return ()

    @property
    def is_zero(self) -> bool:
        """True if nothing is lost."""
        return self.sensitivity == 0

    @property
    def rho(self) -> Fraction:
        """zCDP loss, nats: s²/(2 sigma²)."""
        return self.sensitivity**2 / (2 * self.sigma_squared)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianLoss(_PositiveLoss):
    """The loss of discrete Gaussian noise."""

    sigma_squared: Fraction
    sensitivity: int

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return Fraction(self.sensitivity), self.sigma_squared


@dataclass(frozen=True, slots=True, kw_only=True)
class OsgtLoss(_PositiveLoss):
    """The loss of continuous noise with offset symmetric Gaussian tails."""

    sigma_squared: Fraction
    m: Fraction
    sensitivity: Fraction

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return self.sensitivity, self.sigma_squared, self.m


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteOsgtLoss(_PositiveLoss):
    """The loss of integer noise with offset symmetric Gaussian tails."""

    sigma_squared: Fraction
    m: Fraction
    sensitivity: int

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return Fraction(self.sensitivity), self.sigma_squared, self.m


@dataclass(frozen=True, slots=True)
class OddsLoss(_PositiveLoss):
    """The loss between two laws P and Q on finitely many values, in the direction from P.

    It need not be symmetric: the loss from Q has another law.

    Attributes:
        atoms: the values of P/Q, ascending, each with its probability under P, without those where Q is 0.
    """

    atoms: tuple[tuple[Fraction, Fraction], ...]

    @classmethod
    def between(cls, one: Iterable[tuple[Fraction, Fraction]]) -> Self:
        """Return the loss between two laws.

        Args:
            one: the probabilities of each value under P and under Q.
        """
        both = sorted((p / q, p) for p, q in one if p and q)
        alike = groupby(both, itemgetter(0))  # not hashed: a caller chooses the numbers
        return cls(tuple((odds, sum((p for _, p in same), Fraction(0))) for odds, same in alike))

    @property
    def finite(self) -> Fraction:
        """The probability under P that the loss is finite."""
        return sum((p for _, p in self.atoms), Fraction(0))

    def conditioned(self) -> "OddsLoss":
        """Return the loss between P and Q, each given that its value is possible under both; there must be one."""
        p, q = self.finite, sum((p / odds for odds, p in self.atoms), Fraction(0))
        return OddsLoss(tuple((odds * q / p, mass / p) for odds, mass in self.atoms))


@dataclass(frozen=True, slots=True)
class TableLoss(_PositiveLoss):
    """The worst of several losses between laws on finitely many values, of which the adversary picks one.

    With each direction of a pair of laws it has the other one, so that the worst of all is symmetric.

    Attributes:
        directions: at least one.
    """

    directions: frozenset[OddsLoss]

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """Empty: odds that are not in the range of doubles have logarithms that are."""
        return ()


@dataclass(frozen=True, slots=True)
class RangeLoss(_PositiveLoss):
    """A loss known only by its range, such as that of the exponential mechanism: an adversary chooses where it lies.

    It is in an interval of length e that contains 0. Of such laws, those of two values dominate the others.

    Attributes:
        e: the range, and so the largest loss, nats.
    """

    e: Fraction

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return (self.e,)


@dataclass(frozen=True, slots=True)
class LossMasses(Keyed):
    """The distribution of one direction of a loss, as it is stated.

    Attributes:
        first: the key of the first mass, which is that multiple of the spacing.
        masses: the probabilities of consecutive multiples.
        stated_infinite: probability of an infinite loss.
    """

    first: int
    masses: tuple[Fraction, ...]
    stated_infinite: Fraction = Fraction(0)

    @property
    def infinite(self) -> Fraction:
        """The probability of an infinite loss, as which all that is missing from 1 counts."""
        return max(self.stated_infinite, 1 - Fraction(sum(self.masses)))

    @property
    def above_0(self) -> list[tuple[int, Fraction]]:
        """The losses above 0 that have a probability, as keys."""
        return [(key, mass) for key, mass in enumerate(self.masses, self.first) if key > 0 and mass]


@dataclass(frozen=True, slots=True)
class ListedLoss(Keyed):
    """A loss by its distributions in both directions, whose laws may differ (``listed_losses``).

    Attributes:
        spacing: of the losses, which are multiples of it; nats.
        remove: under the data with the record.
        add: under the data without it.
    """

    spacing: Fraction
    remove: LossMasses
    add: LossMasses

    @property
    def figures(self) -> tuple[Fraction, ...]:
        """The numbers that must be in the range of doubles."""
        return (self.spacing,)

    @property
    def is_zero(self) -> bool:
        """True if nothing is lost."""
        return self.largest == 0 and self.infinite == 0

    @property
    def largest(self) -> Fraction:
        """The largest finite loss of both directions, nats."""
        return self.spacing * max((key for one in (self.remove, self.add) for key, _ in one.above_0), default=0)

    @property
    def infinite(self) -> Fraction:
        """The larger probability of an infinite loss."""
        return max(self.remove.infinite, self.add.infinite)


LossLaw = (
    LadderLoss
    | LaplaceLoss
    | GaussianLoss
    | DiscreteGaussianLoss
    | OsgtLoss
    | DiscreteOsgtLoss
    | TableLoss
    | RangeLoss
    | ListedLoss
)
"""The loss laws that mechanisms have."""
