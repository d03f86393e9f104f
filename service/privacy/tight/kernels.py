"""Profiles on the multiples of a spacing, and steps that turn the profile of what follows into that of the whole.

A profile is kept as its values at t = 0, d, 2d, ..., and only ever grows by rounding: all sums are of positive terms.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from service.privacy.laws.loss_laws import DiscreteGaussianLoss, LadderLoss
from service.privacy.tight.atoms import atom_moments, law_from_profile
from service.privacy.tight.branches import Branch, EvaluatedSum
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, ComposedLaw, gcd, lattice_of
from service.privacy.tight.work_budget import CALL, spend

SNAPPED = 1e-9
"""Losses that are above a multiple of the spacing by less than this share of it are moved down to it."""
MULTIPLICATIONS = 64  # in the work for one number
MOST_APPLIED = 8  # laws of a step that are applied one by one; longer steps are composed first
UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Grid:
    """The multiples 0, d, ..., points * d of a spacing d; nats."""

    spacing: float
    points: int

    @property
    def places(self) -> Doubles:
        """The multiples."""
        return self.spacing * np.arange(self.points + 1.0)

    def extended(self, profile: Doubles, below: int, above: int) -> Doubles:
        """Return bounds of a profile from ``below`` multiples under 0 to ``above`` multiples over the last.

        Under 0 it is 1 - exp(t) (1 - V(-t)), and at most 1; over the last multiple it is at most its value there.
        """
        known = min(below, self.points)
        t = self.spacing * np.arange(known, 0.0, -1.0)
        under = -np.expm1(-t) + np.exp(-t) * profile[known:0:-1]
        return np.concatenate([np.ones(below - known), under, profile, np.full(above, profile[-1])])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A law whose losses are multiples of a spacing.

    Attributes:
        multiples: ascending.
        p: their probabilities.
        infinite: probability of an infinite loss.
        rounding: bound on the relative error of what ``applied`` returns.
    """

    multiples: NDArray[np.intp]
    p: Doubles
    infinite: float
    rounding: float

    @classmethod
    def of(cls, branch: Branch, grid: Grid) -> "Kernel":
        """Return a law that is at least as bad as a branch: each loss split between the multiples around it.

        The split keeps the probabilities of the loss under both neighbours, and joins the profile at the multiples
        by chords (Doroshenko et al. 2022).
        """
        atoms, kept = branch.atoms, branch.log_finite
        if atoms is None:
            points = grid.spacing * np.arange(math.ceil(branch.reach() / grid.spacing) + 1.0)
            atoms, kept = law_from_profile(points, branch.profile(points), grid.spacing), 0.0
        spend(len(atoms.x))
        lower = np.floor(atoms.x / grid.spacing + SNAPPED)
        over = np.maximum(atoms.x - lower * grid.spacing, 0.0)
        up = np.where(over < SNAPPED * grid.spacing, 0.0, np.expm1(-over) / math.expm1(-grid.spacing))
        # beyond these multiples, a profile is bounded by a constant
        multiples = np.clip(lower, -grid.points - 2.0, 2.0 * grid.points + 2.0).astype(np.intp)
        first = int(multiples[0])
        p = np.bincount(multiples - first, atoms.p * (1 - up), int(multiples[-1]) - first + 2)
        p += np.bincount(multiples - first + 1, atoms.p * up, len(p))
        taken = np.flatnonzero(p)
        infinite = -math.expm1(kept) + math.exp(kept) * atoms.infinite
        rounding = atoms.rounding + (len(atoms.x) + len(taken) + 16) * UNIT
        return cls(taken + first, np.asarray(p[taken] * math.exp(kept)), infinite, rounding)

    def applied(self, grid: Grid, profile: Doubles) -> Doubles:
        """Return E V(t - L) at the multiples, an upper bound if V is one."""
        first, last = int(self.multiples[0]), int(self.multiples[-1])
        below, above = max(last, 0), max(-first, 0)
        spend(len(self.p) * (grid.points + 1) / MULTIPLICATIONS)
        around = grid.extended(profile, below, above)
        if 2 * len(self.p) > last - first:
            dense = np.zeros(last - first + 1)
            dense[self.multiples - first] = self.p
            value = np.convolve(around[below - last : len(around) - above - first], dense, "valid")
        else:
            value = np.zeros(grid.points + 1)
            for multiple, p in zip(self.multiples.tolist(), self.p.tolist(), strict=True):
                value += p * around[below - multiple : below - multiple + grid.points + 1]
        return np.asarray(np.minimum(value + self.infinite, 1.0))


@dataclass(frozen=True, slots=True)
class StepLaws:
    """The laws that one step composes, each with its profile; or the whole step as one, if it has many.

    Attributes:
        laws: before they are evaluated.
        branches: profiles, each with the number of times that it is composed.
        log_finite: log of the probability that no event of a declared delta happens, rounded down.
    """

    laws: Sequence[ComposedLaw]
    branches: Sequence[tuple[Branch, int]]
    log_finite: float

    @classmethod
    def of(cls, one: EvaluatedSum) -> "StepLaws":
        """Return the laws of a step.

        Raises:
            NotTight: this would take too much time or memory.
        """
        spend(CALL * len(one.laws))
        if sum(one.laws.values()) > MOST_APPLIED:
            return cls(tuple(one.laws), [(Branch.of(one), 1)], 0.0)
        alone = [(Branch.of(EvaluatedSum({law: 1}, 0.0)), count) for law, count in one.laws.items()]
        return cls(tuple(one.laws), alone, one.log_finite)

    def log_moments(self, c: Doubles) -> Doubles:
        """Return about log E exp(cL) at each c > 0, over the finite losses."""
        moments = np.zeros(len(c))
        for branch, count in self.branches:
            if branch.atoms is not None:
                moments += count * atom_moments(branch.atoms, c)
            elif branch.lines is not None:
                moments += count * branch.lines.sketch.cumulant(c)
        return moments

    @property
    def largest(self) -> float:
        """The largest finite loss, nats; infinite if it is not known."""
        return sum(math.inf if one.atoms is None else float(one.atoms.x[-1]) * count for one, count in self.branches)

    def size(self, grid: Grid) -> float:
        """Return about the number of multiplications of ``Step.applied``."""
        numbers = 0.0
        for branch, count in self.branches:
            if branch.atoms is None:
                numbers += count * 2 * grid.points
            else:
                width = float(branch.atoms.x[-1] - branch.atoms.x[0])
                numbers += count * min(2.0 * len(branch.atoms.x), width / grid.spacing + 2)
        return numbers * (grid.points + 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One step on a grid: its kernels with their numbers."""

    kernels: Sequence[tuple[Kernel, int]]
    log_finite: float

    @classmethod
    def of(cls, one: StepLaws, grid: Grid) -> "Step":
        """Return a step on a grid.

        Raises:
            NotTight: this would take too much time or memory.
        """
        return cls([(Kernel.of(branch, grid), count) for branch, count in one.branches], one.log_finite)

    @property
    def times(self) -> int:
        """The number of kernels, each as often as it is applied."""
        return sum(count for _, count in self.kernels)

    @property
    def rounding(self) -> float:
        """The bound on the relative error of what ``applied`` returns."""
        return sum(kernel.rounding * count for kernel, count in self.kernels) + 8 * UNIT

    def applied(self, grid: Grid, profile: Doubles) -> Doubles:
        """Return the profile of this step with what follows, from the profile of what follows."""
        for kernel, count in self.kernels:
            for _ in range(count):
                profile = kernel.applied(grid, profile)
        return np.asarray(-math.expm1(self.log_finite) + math.exp(self.log_finite) * profile)


def grid_for(steps: Sequence[StepLaws], reach: float, points: int) -> Grid:
    """Return a grid of at most about ``points`` multiples up to ``reach`` that, if possible, has all losses.

    If not all laws fit on one such grid, the one fits whose losses are the furthest apart.
    """
    lattices = [one for law in {law for step in steps for law in step.laws} for one in _lattices(law)]
    spacing = reach / points
    for base in _bases(lattices):
        if base >= spacing:
            spacing = float(base) / math.floor(float(base) / spacing)
            break
    return Grid(spacing, max(1, math.ceil(reach / spacing)))


def _lattices(law: ComposedLaw) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield the spacing of a law's losses, and the largest number of which all are multiples."""
    if isinstance(law, LadderLoss | DiscreteGaussianLoss):
        lattice = lattice_of({law: 1})
        if lattice is not None:
            yield lattice.spacing, gcd(lattice.offset, lattice.spacing)


def _bases(lattices: Sequence[tuple[Fraction, Fraction]]) -> Iterator[Fraction]:
    if lattices:
        yield reduce(gcd, (base for _, base in lattices))
        yield max(lattices)[1]


def law_on(grid: Grid, profile: Doubles, rounding: float, applied: int) -> Atoms:
    """Return the law of a profile on a grid.

    Args:
        grid: of the profile.
        profile: upper bounds, except for the rounding of doubles.
        rounding: bound on the relative error of the profile.
        applied: the number of kernels that made it; each moved losses down by at most ``SNAPPED`` of the spacing.
    """
    law = law_from_profile(grid.places, np.minimum(profile * (1 + rounding), 1.0), grid.spacing)
    shift = 2 * SNAPPED * grid.spacing * applied
    return Atoms(law.x + shift, law.p, law.infinite, grid.spacing, law.rounding)
