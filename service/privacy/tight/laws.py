"""Which loss law a mechanism has, and a composition of laws as arrays."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.privacy.keyed import Keyed
from service.privacy.loss import Loss, total
from service.privacy.mechanisms import (
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Mechanism,
    Osgt,
    RandomizedResponse,
)
from service.privacy.tight.contour import Composition, Lattice
from service.privacy.tight.families import Doubles, Family, Ladders, Laplaces
from service.privacy.tight.noise import DUAL, WIDE, DiscreteGaussians, Osgts, Table
from service.privacy.tight.work import NotTight

LARGEST, SMALLEST = 1e40, 1e-40
"""Figures beyond these are left to other analyses: squares and products stay far inside the doubles."""


@dataclass(frozen=True, slots=True)
class Ladder(Keyed):
    """``families.Ladders`` of one member, exact.

    Attributes:
        e: largest loss, nats.
        s: steps of 2e/s from it down to -e.
        values: of randomised response with more than 2 (then s = 2), or 2: the geometric mechanism of sensitivity s,
            which for s = 1 is two-valued response.
    """

    e: Fraction
    s: int = 1
    values: int = 2

    @classmethod
    def of_laplace(cls, law: Laplace, steps: int) -> "Ladder":
        """The geometric law of as large a loss, which is worse, by the less the more steps there are."""
        return cls(law.sensitivity / law.scale, steps)

    @property
    def inner(self) -> float:
        """What the rungs between the ends weigh."""
        if self.values > 2:
            return (self.values - 2) * math.exp(-float(self.e) / 2)
        return -math.expm1(-float(self.e / self.s))


@dataclass(frozen=True, eq=False, slots=True)
class Atoms:
    """A law by its atoms.

    Attributes:
        x: losses, nats, ascending.
        p: their probabilities.
        infinite: probability of an infinite loss.
        spacing: of the losses, where all are multiples of it.
        rounding: bound on the relative error of p.
    """

    x: Doubles
    p: Doubles
    infinite: float = 0.0
    spacing: float | None = None
    rounding: float = 1e-13  # exp of at most 400, and a sum


Law = Ladder | Laplace | Gaussian | DiscreteGaussian | Osgt | DiscreteOsgt | Atoms


def law_of(mechanism: Mechanism) -> Law | None:
    """The law of the loss of one cell moved; None where nothing is lost (but for a declared delta).

    An (epsilon, delta)-DP mechanism is dominated by one that with probability delta loses everything and is
    else two-valued randomised response (Kairouz, Oh, Viswanath 2015, Theorem 3.4).

    Raises:
        NotTight: a declared rho or Rényi curve, which no law is known to have, or figures beyond the doubles.
    """
    match mechanism:
        case Geometric(scale=scale, sensitivity=s):
            law: Law = Ladder(s / scale, s)
        case RandomizedResponse(epsilon=e, values=k):
            law = Ladder(e, 2, k) if k > 2 else Ladder(e)
        case Declared(guarantee=guarantee) if guarantee.epsilon is not None:
            law = Ladder(guarantee.epsilon)
        case Gaussian():
            return mechanism if mechanism.sensitivity else None  # any figures: it has a closed form
        case Laplace() | DiscreteGaussian() | Osgt() | DiscreteOsgt():
            law = mechanism
            for figure in (mechanism.sensitivity, getattr(mechanism, "sigma_squared", 1), getattr(mechanism, "m", 0)):
                _within(Fraction(figure))
        case _:
            raise NotTight
    if isinstance(law, Ladder):
        _within(law.e)
        _within(Fraction(law.s))
    return None if isinstance(law, Ladder) and law.e == 0 else law


def _within(value: Fraction) -> float:
    """A figure as a double, where squares and products of such figures are."""
    try:
        size = float(value)
    except OverflowError:
        raise NotTight from None
    if value != 0 and not SMALLEST < size < LARGEST:
        raise NotTight
    return size


def gaussian_rho(law: Gaussian) -> Fraction:
    """s²/(2 sigma²)."""
    return law.sensitivity**2 / (2 * law.sigma_squared)


def total_rho(laws: Mapping[Law, int]) -> Fraction:
    """The rho of the continuous Gaussians among the laws; exact while it is short, then rounded up."""
    rhos = ((Loss(gaussian_rho(law)), count) for law, count in laws.items() if isinstance(law, Gaussian))
    return total(rhos).nats or Fraction(0)


def largest_loss(laws: Mapping[Law, int]) -> Fraction | None:
    """The largest finite loss of a composition, nats, or a little more; None where there is none."""
    largest = [(Loss(_largest(law)), count) for law, count in laws.items()]
    return None if any(loss.nats is None for loss, _ in largest) else total(largest).nats


def _largest(law: Law) -> Fraction | None:
    match law:
        case Ladder(e=e):
            return e
        case Laplace(sensitivity=s, scale=b):
            return s / b
        case Atoms(x=x):  # known to a few digits less than a double has
            return Fraction(float(x[-1])) * (1 + Fraction(1, 10**12))
        case _:
            return None


def lattice_of(laws: Mapping[Law, int], spacing: Fraction | None = None) -> Lattice | None:
    """The lattice on which all losses of a composition lie; None where there is none, or one far too fine."""
    offset, common = Fraction(0), spacing or Fraction(0)
    widest = Fraction(0)
    for law, count in laws.items():
        match law:
            case Ladder(e=e, s=s):
                first, step = e, 2 * e / s
            case DiscreteGaussian(sigma_squared=v, sensitivity=s):
                first, step = Fraction(s * s) / (2 * v), Fraction(s) / v
            case _:
                return None
        offset += count * first
        widest = max(widest, step)
        common = gcd(common, step)
        if common * (1 << 24) < widest:
            return None
    return Lattice(offset, common) if common else None


def gcd(one: Fraction, two: Fraction) -> Fraction:
    """The largest rational of which both are multiples."""
    return Fraction(
        math.gcd(one.numerator * two.denominator, two.numerator * one.denominator), one.denominator * two.denominator
    )


def composition_of(laws: Mapping[Law, int], lattice: Lattice | None = None) -> Composition:
    """The laws as arrays, kind by kind.

    Raises:
        NotTight: noise that has neither a cumulant function here nor, but by ``atoms``, few atoms.
    """
    kinds: dict[type, list[tuple[Law, int]]] = {}
    for law, count in laws.items():
        kinds.setdefault(type(law), []).append((law, count))
    rho = math.fsum(count * _within(gaussian_rho(law)) for law, count in laws.items() if isinstance(law, Gaussian))
    families: list[Family] = []
    for kind, counted in kinds.items():
        members, counts = [law for law, _ in counted], np.array([float(count) for _, count in counted])
        if kind is Atoms:
            families += [
                Table(counts[k : k + 1], law.x, law.p, law.spacing)
                for k, law in enumerate(members)
                if isinstance(law, Atoms)
            ]
        elif kind is not Gaussian:
            families += _families(kind, counts, members)
    return Composition(tuple(families), rho, lattice)


def _families(kind: type, counts: Doubles, members: list[Law]) -> Iterator[Family]:
    def columns(*names: str) -> Iterator[Doubles]:
        return (np.array([float(getattr(law, name)) for law in members]) for name in names)

    if kind is Ladder:
        e, s, inner = columns("e", "s", "inner")
        yield from _split(Ladders(counts, e, s, inner), s > 2)
    elif kind is Laplace:
        yield Laplaces(counts, np.array([float(m.sensitivity / m.scale) for m in members if isinstance(m, Laplace)]))
    elif kind is DiscreteGaussian:
        v, s = columns("sigma_squared", "sensitivity")
        yield from _split(DiscreteGaussians(counts, v, s), np.searchsorted([DUAL, WIDE], v, side="right"))
    elif kind is Osgt:
        yield Osgts(counts, *columns("sigma_squared", "m", "sensitivity"))
    else:
        raise NotTight


def _split(family: Family, by: NDArray[Any]) -> Iterator[Family]:
    """The members by what their formulas have in common."""
    return (family.take(np.flatnonzero(by == value)) for value in np.unique(by))


def merged(laws: Iterable[tuple[Law, int]]) -> Counter[Law]:
    """Equal laws once, with their counts."""
    counts: Counter[Law] = Counter()
    for law, count in laws:
        counts[law] += count
    return counts
