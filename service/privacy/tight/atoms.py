"""Losses as atoms: enumeration of compositions, privacy profiles, and laws from profiles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from service.privacy.laws.loss_laws import DiscreteGaussianLoss, DiscreteOsgtLoss, LadderLoss, OddsLoss
from service.privacy.tight.contour import LossComposition, sketch_of
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, ComposedLaw, atoms_of_odds, compose_laws
from service.privacy.tight.work_budget import NotTight, spend

TAIL = 1e-130
"""Losses that are rarer than this count as infinite: far below the least delta that is promised."""
EQUAL_LOSSES = 1e-13
"""Losses that differ by less, relative to the largest, count as equal to the larger one."""
MOST_ATOMS = 1 << 21
LARGEST_LOSS = 600.0
"""Nats, of a profile: its exponential times a probability or a slope stays in the range of doubles."""
UNIT = 2.0**-53
"""A sum of n positive doubles, in any order, is within n - 1 of these of the true sum."""


def atoms_of(law: ComposedLaw) -> Atoms:
    """Return a law's atoms.

    Raises:
        NotTight: the law has a density, or far too many atoms.
    """
    match law:
        case Atoms():
            return law
        case OddsLoss():
            return atoms_of_odds(law)
        case LadderLoss(e=e, s=s) if s < MOST_ATOMS:
            x = float(e) * (1 - 2 * np.arange(s, -1.0, -1.0) / s)
            p = np.exp((x - float(e)) / 2) * law.inner
            p[0], p[-1] = math.exp(-float(e)), 1.0
            return Atoms(x, p / p.sum())
        case DiscreteGaussianLoss(sigma_squared=v, sensitivity=s):
            return _of_noise(float(v), 0.0, s)
        case DiscreteOsgtLoss(sigma_squared=v, m=m, sensitivity=s):
            return _of_noise(float(v), float(m), s)
        case _:
            raise NotTight


def _of_noise(v: float, m: float, s: int) -> Atoms:
    """Return the losses of integer noise of mass proportional to exp(-x²/(2v) - |x| m/v), moved by s."""
    # beyond this x the mass is below TAIL of all: x²/2v + x m/v > 300 + log of the number of terms
    most = 2 * v * (340 + math.log1p(v))
    reach = math.ceil(most / (m + math.sqrt(m * m + most))) + 2 + s  # nothing cancels if m is large
    if 2 * reach + 1 > MOST_ATOMS:
        raise NotTight
    x = np.arange(float(reach + s), float(-reach - 1), -1.0)
    p = np.exp(-(x * x + 2 * m * np.abs(x)) / (2 * v))
    loss = (s * s - 2 * s * x + 2 * m * (np.abs(x - s) - np.abs(x))) / (2 * v)
    return Atoms(loss, p / p.sum(), TAIL)


def convolve(one: Atoms, two: Atoms) -> Atoms:
    """Return the sum of two independent losses; equal losses occur once, and the rarest count as infinite.

    Raises:
        NotTight: there are more than ``MOST_ATOMS`` atoms.
    """
    if len(one.x) * len(two.x) > MOST_ATOMS:
        raise NotTight
    spend(2 * len(one.x) * len(two.x))
    x, p = np.add.outer(one.x, two.x).ravel(), np.multiply.outer(one.p, two.p).ravel()
    infinite = one.infinite + two.infinite - one.infinite * two.infinite
    return gather_atoms(x, p, infinite * (1 + 1e-15), one.rounding + two.rounding + 1e-14)


def gather_atoms(x: Doubles, p: Doubles, infinite: float, rounding: float) -> Atoms:
    """Sort atoms, and join nearly equal losses at the largest of them, which is an upper bound at every epsilon.

    Args:
        x: losses, nats, in any order.
        p: their probabilities.
        infinite: the probability of an infinite loss.
        rounding: bound on the relative error of p.

    Returns:
        Atoms with ascending losses; the probability of the rarest is moved to ``infinite``.
    """
    order = np.argsort(x)
    x, p = x[order], p[order]
    new = np.diff(x, prepend=-math.inf) > EQUAL_LOSSES * max(abs(x[0]), abs(x[-1]), 1e-300)
    starts = np.flatnonzero(new)
    longest = int(np.diff(starts, append=len(p)).max())
    p = np.add.reduceat(p, starts)
    x = x[np.append(starts[1:], len(x)) - 1]
    kept = p > TAIL / MOST_ATOMS
    if not kept.all():
        infinite += float(p[~kept].sum())
        x, p = x[kept], p[kept]
    return Atoms(x, p, infinite, None, rounding + longest * UNIT)


def enumerate_atoms(laws: Mapping[ComposedLaw, int]) -> Atoms:
    """Return the atoms of a whole composition.

    Args:
        laws: each with the number of times that it is composed.

    Raises:
        NotTight: there are too many atoms, or a law has a density.
    """
    whole = Atoms(np.zeros(1), np.ones(1), rounding=0.0)
    for law, count in laws.items():
        power, remaining = atoms_of(law), count
        while remaining:
            if remaining & 1:
                whole = convolve(whole, power)
            remaining >>= 1
            if remaining:
                power = convolve(power, power)
    return whole


def profile(law: Atoms, epsilons: Doubles) -> Doubles:
    """Return upper bounds on delta at each epsilon >= 0: sums of p (1 - exp(epsilon - x)) over losses x above it.

    Args:
        epsilons: nats, in any order.

    Returns:
        One bound for each epsilon, in their order.
    """
    above = np.append(np.cumsum(law.p[::-1])[::-1], 0.0)
    top = min(float(law.x[-1]), LARGEST_LOSS)  # exp(top - x) and not exp(-x), which would underflow beside a small p
    beside = np.append(np.cumsum((law.p * np.exp(top - np.maximum(law.x, 0.0)))[::-1])[::-1], 0.0)
    first = np.searchsorted(law.x, epsilons, side="right")
    rounding = law.rounding + 1e-13 + len(law.x) * UNIT
    bound = above[first] - np.exp(np.minimum(epsilons - top, 0.0)) * beside[first] + 2 * rounding * above[first]
    return np.asarray(np.clip(bound, 0.0, 1.0) + law.infinite)


def law_from_profile(epsilons: Doubles, deltas: Doubles, spacing: float | None = None) -> Atoms:
    """Return the law of the largest profile convex in exp(epsilon) and at or below the bounds at 0 = e_0 < ... < e_n.

    The true profile is convex in exp(epsilon), so this one is not below it; nor is any chord (Doroshenko et al. 2022).
    Bounds that rounding raised out of line are passed by. Below 0 this is the profile of a symmetric pair, delta(-e) =
    1 - exp(-e) (1 - delta(e)). Above e_n it stays at its last value, which is the probability of an infinite loss. If
    the bounds near 0 are so rough that such a pair would need a negative probability at 0, it gets 0, and the
    probabilities sum to more than 1. This measure is still above the law at every epsilon.

    Args:
        epsilons: nats, ascending, about ``LARGEST_LOSS`` at most; multiples of ``spacing`` if it is given.
        deltas: the bounds, descending.
        spacing: of the losses; losses without probability are then kept, so that all stay a run of multiples.
    """
    spend(16 * len(epsilons))
    rounding = 1e-13 + 8 * len(epsilons) * UNIT  # each difference of bounds loses a unit of the larger one
    corners, slopes = _lower_hull(epsilons.tolist(), deltas.tolist())
    bends = np.zeros(len(epsilons))  # exp(top) times the probability of each loss under the other neighbour
    bends[corners[1:]] = np.diff(slopes, append=0.0)
    x, top = epsilons[1:], epsilons[-1]
    p, beside = bends[1:] * np.exp(x - top), bends[1:] * np.exp(-top)  # what vanishes of the latter is added at 0
    infinite = float(deltas[-1])
    at_0 = max(0.0, 1 - infinite - math.fsum(p) - math.fsum(beside))
    x, p = np.concatenate([-x[::-1], [0.0], x]), np.concatenate([beside[::-1], [at_0], p])
    return Atoms(x, p, infinite, spacing, rounding) if spacing else Atoms(x[p > 0], p[p > 0], infinite, None, rounding)


def _lower_hull(x: list[float], y: list[float]) -> tuple[list[int], list[float]]:
    """Return the corners of the lower convex hull of y over exp(x), and the slopes right of all but the last.

    The slopes are over exp(x - top), top being the last x: far out they would underflow over exp(x).
    """

    def slope(i: int, j: int) -> float:
        return math.exp(x[-1] - x[j]) * (y[j] - y[i]) / -math.expm1(x[i] - x[j])

    corners, slopes = [0], [-math.inf]
    for j in range(1, len(x)):
        while len(corners) > 1 and slope(corners[-1], j) <= slopes[-1]:
            corners.pop()
            slopes.pop()
        slopes.append(min(slope(corners[-1], j), 0.0))
        corners.append(j)
    return corners, slopes[1:]


def atom_moments(law: Atoms, c: Doubles) -> Doubles:
    """Return about log E exp(cL) over the finite losses, at each c > 0.

    Args:
        c: the exponents.
    """
    spend(len(c) * len(law.x))
    power = np.log(np.maximum(law.p, 1e-320)) + c[:, None] * law.x
    top = power.max(axis=1)
    return np.asarray(top + np.log(np.exp(power - top[:, None]).sum(axis=1)))


def rough_atom_count(laws: Mapping[ComposedLaw, int]) -> float:
    """Return the rough number of a composition's atoms; infinite if a law has a density."""
    many = 1.0
    for law, count in laws.items():
        match law:
            case LadderLoss(s=s):
                many *= s * count + 1
            case DiscreteGaussianLoss(sigma_squared=v):  # of x up to the root of 600 v, the others are below TAIL
                many *= (2 * math.sqrt(600 * float(v)) + 1) * count
            case DiscreteOsgtLoss(sigma_squared=v):
                many *= 3 * (60 * (math.sqrt(float(v)) + 1)) * count
            case Atoms(x=x, lattice=Fraction()):
                many *= len(x) * count
            case Atoms(x=x) | OddsLoss(atoms=x):
                many *= math.comb(len(x) + count - 1, count) if count < 64 else math.inf
            case _:
                return math.inf
        if many > 1e12:
            return math.inf
    return many


def rough_loss_range(laws: Mapping[ComposedLaw, int]) -> float:
    """Return the rough range of losses of a composition (nats), for laws with a finite ``rough_atom_count``."""
    width = 0.0
    for law, count in laws.items():
        match law:
            case LadderLoss(e=e):
                width += 2 * float(e) * count
            case DiscreteGaussianLoss(sigma_squared=v, sensitivity=s):
                width += 50 * s / math.sqrt(float(v)) * math.sqrt(count)
            case Atoms(x=x):
                width += float(x[-1] - x[0]) * count
            case OddsLoss(atoms=((least, _), *_, (most, _))):
                ratio = most / least  # maybe beyond the range of doubles
                width += (math.log(ratio.numerator) - math.log(ratio.denominator)) * count
    return width


@dataclass(frozen=True, slots=True)
class AtomEnumeration:
    """A composition, given by all its atoms."""

    sketch: LossComposition
    atoms: Atoms

    @classmethod
    def of(cls, laws: Mapping[ComposedLaw, int]) -> "AtomEnumeration":
        """Return the enumeration of a composition.

        Raises:
            NotTight: there are too many atoms.
        """
        whole = enumerate_atoms(laws)
        return cls(sketch_of(compose_laws({whole: 1})), whole)

    def at(self, epsilon: float, rough: bool = False) -> tuple["AtomEnumeration", str]:  # noqa: ARG002
        """Return the enumeration itself, which serves every epsilon."""
        return self, "atoms"

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Return log of the sum of p (1 - exp(epsilon - x)) over x above epsilon, rounded up, and its slope.

        Losses are known to within ``EQUAL_LOSSES`` of the largest, so epsilon is lowered by as much.

        Args:
            epsilon: nats.

        Returns:
            Minus infinity, and a slope of -1, if no loss is above epsilon.
        """
        epsilon -= EQUAL_LOSSES * float(abs(self.atoms.x[-1]))
        first = int(np.searchsorted(self.atoms.x, epsilon, side="right"))
        x, p = self.atoms.x[first:], self.atoms.p[first:]
        part = -np.expm1(epsilon - x)
        rounding = self.atoms.rounding + max(1e-12, 2 * len(x) * UNIT)
        value = float(p @ part) * (1 + rounding) + self.atoms.infinite
        if value <= 0:
            return -math.inf, -1.0
        return math.log(value), -float(p @ (1 - part)) / value
