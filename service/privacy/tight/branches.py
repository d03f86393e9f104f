"""Branches of a choice: compositions that are given by their atoms or, if these are too many, by their contours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.privacy.laws.loss_laws import DiscreteOsgtLoss, LaplaceLoss
from service.privacy.tight.atoms import LARGEST_LOSS, TAIL, atoms_of, enumerate_atoms, law_from_profile, profile
from service.privacy.tight.contour import chernoff
from service.privacy.tight.contour_selection import ContourSelector
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, ComposedLaw
from service.privacy.tight.work_budget import NotTight

FEW_OSGT = 1 << 8  # atoms of discrete OSGT noise that are kept one by one beside noise with a density
GRID = 1 << 14  # points on which profiles are evaluated
RUNGS = 1 << 10  # steps by which a Laplace law is replaced below a choice
LEAST_LOG_DELTA = -600.0  # smaller ones are rounded up to it, so that no difference of two deltas underflows
LEAST_REACH = 1e-6  # nats
LINES, LINE_POINTS = 64, 1 << 12  # the lines by which a branch is evaluated, and the most points of each


@dataclass(frozen=True, slots=True)
class EvaluatedSum:
    """A composition of laws, given that no loss is infinite.

    Attributes:
        laws: each with the number of times that it is composed.
        log_finite: log of the probability that no loss is infinite, rounded down.
    """

    laws: Mapping[ComposedLaw, int]
    log_finite: float

    def repeated(self, times: int) -> "EvaluatedSum":
        """Return the composition of so many."""
        return EvaluatedSum({law: times * count for law, count in self.laws.items()}, self.log_finite * times)


@dataclass(frozen=True, slots=True)
class Branch:
    """The profile of one branch: by its atoms or, if it has none or too many, along lines."""

    atoms: Atoms | None
    lines: ContourSelector | None
    log_finite: float

    @classmethod
    def of(cls, one: EvaluatedSum) -> "Branch":
        """Return the branch of a composition.

        Raises:
            NotTight: this would take too much time or memory.
        """
        if not one.laws:
            return cls(Atoms(np.zeros(1), np.ones(1)), None, one.log_finite)
        try:
            atoms = enumerate_atoms({_with_rungs(law): count for law, count in one.laws.items()})
            return cls(atoms, None, one.log_finite)
        except NotTight:
            lines, finite = contours_of(one.laws)
            return cls(None, lines, one.log_finite + finite)

    def profile(self, epsilons: Doubles) -> Doubles:
        """Return upper bounds on delta at the epsilons."""
        if self.atoms is not None:
            finite_delta = profile(self.atoms, epsilons)
        elif self.lines is not None:
            finite_delta = np.concatenate(
                [_deltas_by_line(self.lines, some) for some in np.array_split(epsilons, LINES)]
            )
        return np.asarray(np.minimum(-math.expm1(self.log_finite) + math.exp(self.log_finite) * finite_delta, 1.0))

    def reach(self) -> float:
        """Return the epsilon beyond which the profile is negligible, except for infinite losses.

        Raises:
            NotTight: it is beyond ``LARGEST_LOSS``.
        """
        if self.atoms is not None:
            return float(self.atoms.x[-1])
        high = 0.0
        if self.lines is not None:
            log_tail = math.log(TAIL)
            high = max(LEAST_REACH, min(chernoff(self.lines.sketch, log_tail), LARGEST_LOSS))
            while self.lines.at(high, rough=True)[0].log_delta(high)[0] > log_tail:
                high *= 1.25
                if high > LARGEST_LOSS:
                    raise NotTight
        return high


def contours_of(laws: Mapping[ComposedLaw, int]) -> tuple[ContourSelector, float]:
    """Return the contours of a composition, and log of the probability that no loss is infinite (rounded down).

    Discrete OSGT noise has no short cumulant function. It is given by its atoms, or by its profile if they are many.

    Raises:
        NotTight: this would take too much time or memory.
    """
    if not any(isinstance(law, DiscreteOsgtLoss) for law in laws):
        return ContourSelector.of(laws), 0.0
    finite_laws, kept = split_infinite(
        (_table(law) if isinstance(law, DiscreteOsgtLoss) else law, n) for law, n in laws.items()
    )
    return ContourSelector.of(finite_laws), kept


def split_infinite(laws: Iterable[tuple[ComposedLaw, int]]) -> tuple[dict[ComposedLaw, int], float]:
    """Return distinct laws, given that no loss is infinite, and log of the probability of that, rounded down."""
    finite: dict[ComposedLaw, int] = {}
    kept = 0.0
    for law, count in laws:
        if not isinstance(law, Atoms):
            finite[law] = finite.get(law, 0) + count
        elif law.infinite < 1:
            kept += count * math.log1p(-law.infinite) * (1 + 1e-15)
            # not divided by the sum of p, which may exceed 1 in a law from bounds that are not quite a profile
            finite[replace(law, p=law.p / (1 - law.infinite), infinite=0.0)] = count
        else:
            kept = -math.inf
    return finite, kept


def worst_on_grid(branches: Sequence[Branch]) -> Atoms:
    """Return the law whose profile is the largest of the branches', on a grid of equal steps.

    Raises:
        NotTight: the losses are too large, or this would take too much time.
    """
    reach = max(branch.reach() for branch in branches)
    if reach > LARGEST_LOSS:
        raise NotTight
    points = np.linspace(0.0, reach * (1 + 1e-12), GRID + 1)
    deltas = np.max([branch.profile(points) for branch in branches], axis=0)
    return law_from_profile(points, deltas, float(points[1]))


def _table(law: DiscreteOsgtLoss) -> Atoms:
    atoms = atoms_of(law)
    return atoms if len(atoms.x) <= FEW_OSGT else worst_on_grid([Branch(atoms, None, 0.0)])


def _deltas_by_line(lines: ContourSelector, epsilons: Doubles) -> Doubles:
    """Return upper bounds on delta at a few epsilons, by the line for their middle."""
    if len(epsilons) == 0:
        return epsilons
    line, _ = lines.at(float(epsilons[len(epsilons) // 2]), rough=True)
    if len(line.t) > LINE_POINTS:
        raise NotTight
    return np.asarray(np.exp(np.clip(line.log_deltas(epsilons)[0], LEAST_LOG_DELTA, 0.0)))


def _with_rungs(law: ComposedLaw) -> ComposedLaw:
    return law.in_rungs(RUNGS) if isinstance(law, LaplaceLoss) else law
