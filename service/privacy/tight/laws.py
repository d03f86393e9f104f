"""Loss laws of mechanisms in the range of doubles, and compositions of laws as arrays."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.privacy.laws.listed_losses import Direction, dominating
from service.privacy.laws.loss_laws import (
    DiscreteGaussianLoss,
    GaussianLoss,
    LadderLoss,
    LaplaceLoss,
    ListedLoss,
    LossLaw,
    OddsLoss,
    OsgtLoss,
)
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.keyed import memoised
from service.privacy.numerics.loss import Loss, total_loss
from service.privacy.numerics.numbers import ball, ceiling, double_up
from service.privacy.tight.contour import Lattice, LossComposition
from service.privacy.tight.families import Doubles, Family, Ladders, Laplaces
from service.privacy.tight.noise import DUAL, WIDE, AtomFamily, DiscreteGaussians, Osgts
from service.privacy.tight.work_budget import NotTight

LARGEST, SMALLEST = 1e40, 1e-40
"""Figures beyond these are left to other analyses, so that squares and products stay in the range of doubles."""


@dataclass(frozen=True, eq=False, slots=True)
class Atoms:
    """A law, given by its atoms.

    Attributes:
        x: losses, nats, ascending.
        p: their probabilities.
        infinite: probability of an infinite loss.
        spacing: of the losses, if all are multiples of it.
        rounding: bound on the relative error of p.
        lattice: the spacing, where all losses are exactly multiples of it.
    """

    x: Doubles
    p: Doubles
    infinite: float = 0.0
    spacing: float | None = None
    rounding: float = 4e-13  # exp of numbers down to -745, each rounded up to four times, and a sum
    lattice: Fraction | None = None


ComposedLaw = LossLaw | OddsLoss | Atoms


def mechanism_law(mechanism: Mechanism) -> LossLaw | None:
    """Return the law of the loss of one cell moved; None if nothing is lost, apart from a declared delta.

    Raises:
        NotTight: no law is known, as for a declared rho or Rényi curve, or its figures are beyond the range of doubles.
    """
    law = mechanism.loss_law()
    if law is None:
        raise NotTight
    for figure in law.figures:
        _checked_double(figure)
    return None if law.is_zero else law


@memoised(maxsize=1 << 8)
def listed_atoms(law: ListedLoss, direction: Direction) -> Atoms:
    """Return the atoms of the law that dominates a listed loss; the probabilities are rounded up."""
    known = dominating(law, direction)
    keys = np.array(known.keys)
    p = np.zeros(keys[-1] - keys[0] + 1)
    p[keys - keys[0]] = [double_up(mass) for mass in known.masses]
    x = [key * law.spacing.numerator / law.spacing.denominator for key in range(known.keys[0], known.keys[-1] + 1)]
    return Atoms(np.array(x), p, double_up(known.infinite), float(law.spacing), lattice=law.spacing)


def _checked_double(value: Fraction | int) -> float:
    """Return a figure as a double, if squares and products of such figures are in the range of doubles too."""
    try:
        size = value.numerator / value.denominator  # as float() of a fraction, in a third of its time
    except OverflowError:
        raise NotTight from None
    if value.numerator and not SMALLEST < size < LARGEST:
        raise NotTight
    return size


def atoms_of_odds(law: OddsLoss) -> Atoms:
    """Return the atoms of a loss, given that it is finite; losses and probabilities are rounded up."""
    finite = law.finite
    x, p = [_log_up(odds) for odds, _ in law.atoms], [double_up(mass / finite) for _, mass in law.atoms]
    return Atoms(np.array(x), np.array(p), rounding=2.0**-52)


def _log_up(odds: Fraction) -> float:
    log = ceiling(lambda: ball(odds).log())
    if log is None:
        raise NotTight
    return double_up(log)


def total_rho(laws: Mapping[ComposedLaw, int]) -> Fraction:
    """Return the rho of the continuous Gaussians among the laws, exactly; a long sum is rounded up."""
    rhos = ((Loss(law.rho), count) for law, count in laws.items() if isinstance(law, GaussianLoss))
    return total_loss(rhos).nats or Fraction(0)


def largest_loss(laws: Mapping[ComposedLaw, int]) -> Fraction | None:
    """Return the largest finite loss of a composition (nats), rounded up; None if there is none."""
    largest = [(Loss(_largest_of_law(law)), count) for law, count in laws.items()]
    return None if any(loss.nats is None for loss, _ in largest) else total_loss(largest).nats


def _largest_of_law(law: ComposedLaw) -> Fraction | None:
    match law:
        case LadderLoss() | LaplaceLoss():
            return law.e
        case Atoms(x=x):  # known to a few digits less than a double has
            return Fraction(float(x[-1])) * (1 + Fraction(1, 10**12))
        case _:
            return None


def lattice_of(laws: Mapping[ComposedLaw, int]) -> Lattice | None:
    """Return the lattice on which all losses of a composition lie; None if there is none, or only one far too fine."""
    offset = common = widest = Fraction(0)
    for law, count in laws.items():
        match law:
            case LadderLoss(e=e, s=s):
                first, step = e, 2 * e / s
            case DiscreteGaussianLoss(sigma_squared=v, sensitivity=s):
                first, step = Fraction(s * s) / (2 * v), Fraction(s) / v
            case Atoms(lattice=Fraction() as step):
                first = Fraction(0)
            case _:
                return None
        offset += count * first
        widest = max(widest, step)
        common = gcd(common, step)
        if common * (1 << 24) < widest:
            return None
    return Lattice(offset, common) if common else None


def gcd(one: Fraction, two: Fraction) -> Fraction:
    """Return the largest rational of which both are multiples."""
    return Fraction(
        math.gcd(one.numerator * two.denominator, two.numerator * one.denominator), one.denominator * two.denominator
    )


def compose_laws(laws: Mapping[ComposedLaw, int], lattice: Lattice | None = None) -> LossComposition:
    """Return the composition of laws as arrays, kind by kind.

    Raises:
        NotTight: a law has no cumulant function here, as that of discrete OSGT noise, which has to be given by atoms.
    """
    kinds: dict[type, list[tuple[ComposedLaw, int]]] = {}
    for law, count in laws.items():
        kinds.setdefault(type(law), []).append((law, count))
    rho = math.fsum(count * _checked_double(law.rho) for law, count in laws.items() if isinstance(law, GaussianLoss))
    families: list[Family] = []
    for kind, counted in kinds.items():
        members, counts = [law for law, _ in counted], np.array([float(count) for _, count in counted])
        if kind in (Atoms, OddsLoss):
            listed = [atoms_of_odds(law) if isinstance(law, OddsLoss) else law for law in members]
            families += [
                AtomFamily(counts[k : k + 1], law.x, law.p, law.spacing, law.rounding)
                for k, law in enumerate(listed)
                if isinstance(law, Atoms)
            ]
        elif kind is not GaussianLoss:
            families += _families(kind, counts, members)
    return LossComposition(tuple(families), rho, lattice)


def _families(kind: type, counts: Doubles, members: list[ComposedLaw]) -> Iterator[Family]:
    def columns(*names: str) -> Iterator[Doubles]:
        return (np.array([float(getattr(law, name)) for law in members]) for name in names)

    if kind is LadderLoss:
        e, s, inner = columns("e", "s", "inner")
        yield from _split(Ladders(counts, e, s, inner), s > 2)
    elif kind is LaplaceLoss:
        yield Laplaces(counts, *columns("e"))
    elif kind is DiscreteGaussianLoss:
        v, s = columns("sigma_squared", "sensitivity")
        yield from _split(DiscreteGaussians(counts, v, s), np.searchsorted([DUAL, WIDE], v, side="right"))
    elif kind is OsgtLoss:
        yield Osgts(counts, *columns("sigma_squared", "m", "sensitivity"))
    else:
        raise NotTight


def _split(family: Family, by: NDArray[Any]) -> Iterator[Family]:
    """Yield the members in groups whose formulas have the same form."""
    return (family.take(np.flatnonzero(by == value)) for value in np.unique(by))


def merge_laws(laws: Iterable[tuple[ComposedLaw, int]]) -> Counter[ComposedLaw]:
    """Return the distinct laws, with the sums of their counts."""
    counts: Counter[ComposedLaw] = Counter()
    for law, count in laws:
        counts[law] += count
    return counts
