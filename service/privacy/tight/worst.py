"""What composes in a plan, and the worst of several: the law with the largest profile at every epsilon.

An adversary who picks the next mechanism by earlier outcomes can do as much harm as one that faces, each time, the
law whose privacy profile is the pointwise maximum; the maximum over whole fixed combinations would understate
(privacy.md section 4.3 has the example).
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from service.privacy.mechanisms import Gaussian, Laplace, Mechanism
from service.privacy.plan import Neighbouring, Notion, Priced, fold
from service.privacy.pure import mechanism_delta
from service.privacy.tight.atoms import TAIL, enumerated, law_from_profile, profile
from service.privacy.tight.contour import NotTight
from service.privacy.tight.families import Doubles
from service.privacy.tight.laws import Atoms, Ladder, Law, law_of, total_rho
from service.privacy.tight.lines import Lines

FEW_ATOMS = 1 << 7  # losses above 0 of a law that is kept as it is
GRID = 1 << 14  # points on which other profiles are evaluated
RUNGS = 1 << 10  # steps by which a Laplace law is replaced below a choice
MOST_BRANCHES = 64
LARGEST_LOSS = 600.0  # nats, of a profile on a grid: its slopes stay inside the doubles
LINES, LINE_POINTS = 128, 1 << 12  # by which a branch is evaluated, and how long they may be


@dataclass(frozen=True, slots=True)
class Sum:
    """Laws composed.

    Attributes:
        items: laws with their counts.
        kept: log of the probability that no declared delta strikes, at most 0.
    """

    items: frozenset[tuple["Law | Worst", int]]
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst of at least two sums, at every epsilon by itself."""

    branches: frozenset[Sum]


def plan_sum(plan: Priced, neighbouring: Neighbouring) -> Sum:
    """What a plan composes (privacy.md section 3, whose rules ``fold`` holds).

    Raises:
        NotTight: a mechanism without a law.
    """
    return fold(plan, neighbouring, Notion(_of_mechanism, _total, _largest))


def _of_mechanism(mechanism: Mechanism) -> Sum:
    delta = mechanism_delta(mechanism).nats or 0
    law = law_of(mechanism)
    kept = -math.inf if delta >= 1 else math.log1p(-float(delta))
    return Sum(frozenset() if law is None else frozenset([(law, 1)]), kept)


def _total(weighted: Iterable[tuple[Sum, int]]) -> Sum:
    counts: Counter[Law | Worst] = Counter()
    kept = 0.0
    for part, count in weighted:
        kept += part.kept * count
        for law, times in part.items:
            counts[law] += times * count
    return Sum(frozenset(counts.items()), kept)


def _largest(weighted: Iterable[tuple[Sum, int]], how_many: int) -> Sum:
    """All, where there are no more than may be; else the worst as often as may be."""
    listed = list(weighted)
    if sum(count for _, count in listed) <= how_many:
        return _total(listed)
    branches: set[Sum] = set()
    for part, _ in listed:
        (only, *others) = part.items or [(None, 0)]
        nested = not others and part.kept == 0 and isinstance(only[0], Worst) and only[1] == 1
        branches |= only[0].branches if nested and isinstance(only[0], Worst) else {part}
    worst = _undominated(branches)
    one = worst[0] if len(worst) == 1 else Sum(frozenset([(Worst(frozenset(worst)), 1)]))
    return _total([(one, how_many)])


def _undominated(sums: Iterable[Sum]) -> list[Sum]:
    """The sums without those that another is certainly worse than: of the same kind and larger, or containing it."""
    largest: dict[object, tuple[object, Sum]] = {}
    for one in sums:
        kind, size = _rank(one)
        if kind not in largest or largest[kind][0] < size:  # type: ignore[operator]  # of one kind: both Fractions
            largest[kind] = size, one
    left = [one for _, one in largest.values()]
    if len(left) > MOST_BRANCHES:
        raise NotTight
    return [one for one in left if not any(_contains(two, one) for two in left if two is not one)]


def _rank(one: Sum) -> tuple[object, object]:
    """A kind in which laws are totally ordered, and where in it this one stands.

    Gaussians by rho; Laplace by e, geometric of equal steps and responses of equal many values likewise: less noise
    becomes more by adding independent noise, or by answering at random.
    """
    laws = {law: count for law, count in one.items if not isinstance(law, Worst)}
    if len(laws) == len(one.items) and all(isinstance(law, Gaussian) for law in laws):
        return ("gaussian", one.kept), total_rho(laws)
    if len(one.items) == 1:
        ((law, count),) = one.items
        if isinstance(law, Laplace):
            return ("laplace", count, one.kept), law.sensitivity / law.scale
        if isinstance(law, Ladder):
            return ("ladder", law.s, law.values, count, one.kept), law.e
    return one, 0


def _contains(two: Sum, one: Sum) -> bool:
    """Whether composing more makes ``two`` of ``one``; of equal ones, only one of them contains the other."""
    counts = dict(two.items)
    return two.kept <= one.kept and all(counts.get(law, 0) >= count for law, count in one.items)


def realised(one: Sum) -> tuple[dict[Law, int], float]:
    """A sum's laws, each ``Worst`` evaluated, and log of the probability that no loss is infinite (rounded down).

    Raises:
        NotTight: beyond the bounds on time and memory.
    """
    laws: Counter[Law] = Counter()
    kept = one.kept * (1 + 1e-15)
    for law, count in one.items:
        found = evaluated(law) if isinstance(law, Worst) else law
        if isinstance(found, Atoms):
            kept += count * math.log1p(-found.infinite) * (1 + 1e-15) if found.infinite < 1 else -math.inf
            found = Atoms(found.x, found.p / found.p.sum(), 0.0, found.spacing)
        laws[found] += count
    return dict(laws), kept


@dataclass(frozen=True, slots=True)
class _Branch:
    """One branch's profile: by its atoms, or where those are none or too many, along lines."""

    atoms: Atoms | None
    lines: Lines | None
    kept: float

    def profile(self, epsilons: Doubles) -> Doubles:
        if self.atoms is not None:
            found = profile(self.atoms, epsilons)
        elif self.lines is not None:
            found = np.concatenate([_along(self.lines, some) for some in np.array_split(epsilons, LINES)])
        return np.asarray(np.minimum(-math.expm1(self.kept) + math.exp(self.kept) * found, 1.0))

    def reach(self) -> float:
        """Beyond it the profile is next to nothing but what is infinite."""
        if self.atoms is not None:
            return float(self.atoms.x[-1])
        high = 1.0
        if self.lines is not None:
            log_tail = math.log(TAIL)
            while self.lines.at(high, rough=True)[0].log_delta(high)[0] > log_tail:
                high *= 1.25
                if high > 1e6:
                    raise NotTight
        return high


def _along(lines: Lines, epsilons: Doubles) -> Doubles:
    """Bounds on delta at a few epsilons, by the line for their middle."""
    if len(epsilons) == 0:
        return epsilons
    line, _ = lines.at(float(epsilons[len(epsilons) // 2]), rough=True)
    if len(line.t) > LINE_POINTS:
        raise NotTight
    return np.asarray(np.exp(np.minimum(line.log_deltas(epsilons)[0], 0.0)))


def _branch(one: Sum) -> _Branch:
    laws, kept = realised(one)
    if not laws:
        return _Branch(Atoms(np.zeros(1), np.ones(1)), None, kept)
    try:
        return _Branch(enumerated({_with_rungs(law): count for law, count in laws.items()}), None, kept)
    except NotTight:
        return _Branch(None, Lines.of(laws), kept)


def _with_rungs(law: Law) -> Law:
    return Ladder.of_laplace(law, RUNGS) if isinstance(law, Laplace) else law


def evaluated(worst: Worst) -> Atoms:
    """The law whose profile is the pointwise maximum of the branches', joined linearly between its points."""
    branches = [_branch(one) for one in sorted(worst.branches, key=repr)]
    every = [branch.atoms for branch in branches]
    losses = np.unique(np.concatenate([a.x[a.x > 0] for a in every if a is not None] or [np.zeros(0)]))
    if all(a is not None for a in every) and len(losses) <= FEW_ATOMS and losses.max(initial=0.0) < LARGEST_LOSS:
        points = np.append(0.0, losses)
        profiles = np.stack([branch.profile(points) for branch in branches])
        points = np.union1d(points, _crossings(points, profiles))
        return law_from_profile(points, np.max([branch.profile(points) for branch in branches], axis=0))
    reach = max(branch.reach() for branch in branches)
    if reach > LARGEST_LOSS:
        raise NotTight
    points = np.linspace(0.0, reach * (1 + 1e-12), GRID + 1)
    deltas = np.max([branch.profile(points) for branch in branches], axis=0)
    return law_from_profile(points, deltas, float(points[1]))


def _crossings(points: Doubles, profiles: Doubles) -> Doubles:
    """Where the two that are largest at the ends of an interval cross; both are linear in exp(epsilon) there."""
    top = profiles.argmax(axis=0)
    place = np.flatnonzero(top[:-1] != top[1:])
    low, high = top[place], top[place + 1]
    ahead = profiles[low, place] - profiles[high, place]
    behind = profiles[high, place + 1] - profiles[low, place + 1]
    some = (ahead > 0) & (behind > 0)
    share = ahead[some] / (ahead[some] + behind[some])
    width = np.expm1(np.diff(points)[place[some]])
    return np.asarray(points[:-1][place[some]] + np.log1p(share * width))
