"""Evaluation of the sums and worst laws of ``worst_case``: profiles, their pointwise maxima, and laws from these."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.privacy.laws.loss_laws import DiscreteOsgtLoss, LaplaceLoss
from service.privacy.tight.atoms import TAIL, atoms_of, enumerate_atoms, law_from_profile, profile
from service.privacy.tight.contour_selection import ContourSelector
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, ComposedLaw
from service.privacy.tight.work_budget import CALL, NotTight, spend
from service.privacy.tight.worst_case import LawSum, WorstLaw

FEW_OSGT = 1 << 8  # atoms of discrete OSGT noise that are kept one by one beside noise with a density
FEW_ATOMS = 1 << 7  # losses above 0 of a law that is kept as it is
GRID = 1 << 14  # points on which other profiles are evaluated
RUNGS = 1 << 10  # steps by which a Laplace law is replaced below a choice
LARGEST_LOSS = 600.0  # nats, of a profile on a grid: its slopes stay in the range of doubles
LINES, LINE_POINTS = 64, 1 << 12  # the lines by which a branch is evaluated, and the most points of each


def evaluate_sum(one: LawSum) -> tuple[dict[ComposedLaw, int], float]:
    """Return a sum's laws, each ``WorstLaw`` evaluated, and log of the probability of a finite loss (rounded down).

    Raises:
        NotTight: this would take too much time or memory.
    """
    laws, kept = _split_infinite(
        (evaluate_worst(law) if isinstance(law, WorstLaw) else law, count) for law, count in one.items
    )
    return laws, kept + one.log_finite * (1 + 1e-15)


def contours_of(laws: Mapping[ComposedLaw, int]) -> tuple[ContourSelector, float]:
    """Return the contours of a composition, and log of the probability that no loss is infinite (rounded down).

    Discrete OSGT noise has no short cumulant function. It is given by its atoms, or by its profile if they are many.

    Raises:
        NotTight: this would take too much time or memory.
    """
    if not any(isinstance(law, DiscreteOsgtLoss) for law in laws):
        return ContourSelector.of(laws), 0.0
    finite_laws, kept = _split_infinite(
        (_table(law) if isinstance(law, DiscreteOsgtLoss) else law, n) for law, n in laws.items()
    )
    return ContourSelector.of(finite_laws), kept


def _split_infinite(laws: Iterable[tuple[ComposedLaw, int]]) -> tuple[dict[ComposedLaw, int], float]:
    """Return distinct laws, given that no loss is infinite, and log of the probability of that, rounded down."""
    finite: dict[ComposedLaw, int] = {}
    kept = 0.0
    for law, count in laws:
        if not isinstance(law, Atoms):
            finite[law] = count
        elif law.infinite < 1:
            kept += count * math.log1p(-law.infinite) * (1 + 1e-15)
            # not divided by the sum of p, which may exceed 1 in a law from bounds that are not quite a profile
            finite[replace(law, p=law.p / (1 - law.infinite), infinite=0.0)] = count
        else:
            kept = -math.inf
    return finite, kept


def _table(law: DiscreteOsgtLoss) -> Atoms:
    atoms = atoms_of(law)
    return atoms if len(atoms.x) <= FEW_OSGT else _on_grid([_Branch(atoms, None, 0.0)])


@dataclass(frozen=True, slots=True)
class _Branch:
    """The profile of one branch: by its atoms or, if it has none or too many, along lines."""

    atoms: Atoms | None
    lines: ContourSelector | None
    log_finite: float

    @classmethod
    def of(cls, one: LawSum) -> "_Branch":
        laws, kept = evaluate_sum(one)
        if not laws:
            return cls(Atoms(np.zeros(1), np.ones(1)), None, kept)
        try:
            return cls(enumerate_atoms({_with_rungs(law): count for law, count in laws.items()}), None, kept)
        except NotTight:
            lines, finite = contours_of(laws)
            return cls(None, lines, kept + finite)

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
        """Return the epsilon beyond which the profile is negligible, except for infinite losses."""
        if self.atoms is not None:
            return float(self.atoms.x[-1])
        high = 1.0
        if self.lines is not None:
            log_tail = math.log(TAIL)
            while self.lines.at(high, rough=True)[0].log_delta(high)[0] > log_tail:
                high *= 1.25
                if high > LARGEST_LOSS:
                    raise NotTight
        return high


def _deltas_by_line(lines: ContourSelector, epsilons: Doubles) -> Doubles:
    """Return upper bounds on delta at a few epsilons, by the line for their middle."""
    if len(epsilons) == 0:
        return epsilons
    line, _ = lines.at(float(epsilons[len(epsilons) // 2]), rough=True)
    if len(line.t) > LINE_POINTS:
        raise NotTight
    return np.asarray(np.exp(np.minimum(line.log_deltas(epsilons)[0], 0.0)))


def _with_rungs(law: ComposedLaw) -> ComposedLaw:
    return law.in_rungs(RUNGS) if isinstance(law, LaplaceLoss) else law


def evaluate_worst(worst: WorstLaw) -> Atoms:
    """Return the law whose profile is the pointwise maximum of the branches', joined linearly between its points.

    Raises:
        NotTight: this would take too much time or memory.
    """
    spend(CALL * len(worst.branches))
    branches = [_Branch.of(one) for one in sorted(worst.branches, key=repr)]
    every = [branch.atoms for branch in branches]
    losses = np.unique(np.concatenate([a.x[a.x > 0] for a in every if a is not None] or [np.zeros(0)]))
    if None in every or len(losses) > FEW_ATOMS or losses.max(initial=0.0) > LARGEST_LOSS:
        return _on_grid(branches)
    points = np.append(0.0, losses)
    profiles = np.stack([branch.profile(points) for branch in branches])
    points = np.union1d(points, _crossings(points, profiles))
    return law_from_profile(points, np.max([branch.profile(points) for branch in branches], axis=0))


def _on_grid(branches: Sequence[_Branch]) -> Atoms:
    reach = max(branch.reach() for branch in branches)
    if reach > LARGEST_LOSS:
        raise NotTight
    points = np.linspace(0.0, reach * (1 + 1e-12), GRID + 1)
    deltas = np.max([branch.profile(points) for branch in branches], axis=0)
    return law_from_profile(points, deltas, float(points[1]))


def _crossings(points: Doubles, profiles: Doubles) -> Doubles:
    """Return the points where the profiles that are largest at either end of an interval cross.

    Both are linear in exp(epsilon) there.
    """
    top = profiles.argmax(axis=0)
    place = np.flatnonzero(top[:-1] != top[1:])
    low, high = top[place], top[place + 1]
    ahead = profiles[low, place] - profiles[high, place]
    behind = profiles[high, place + 1] - profiles[low, place + 1]
    some = (ahead > 0) & (behind > 0)
    share = ahead[some] / (ahead[some] + behind[some])
    width = np.expm1(np.diff(points)[place[some]])
    return np.asarray(points[:-1][place[some]] + np.log1p(share * width))
