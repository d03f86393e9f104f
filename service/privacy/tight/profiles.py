"""Evaluation of the sums and worst laws of ``worst_case``: profiles, their pointwise maxima, and laws from these."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from service.privacy.laws.listed_losses import Direction
from service.privacy.laws.loss_laws import ListedLoss, RangeLoss
from service.privacy.tight.atoms import LARGEST_LOSS, law_from_profile
from service.privacy.tight.bounded_range import worst_of_ranges
from service.privacy.tight.branches import Branch, EvaluatedSum, split_infinite, worst_on_grid
from service.privacy.tight.families import Doubles
from service.privacy.tight.induction import DividedPart, worst_of_division, worst_of_turns
from service.privacy.tight.laws import Atoms, ComposedLaw, listed_atoms
from service.privacy.tight.work_budget import CALL, spend
from service.privacy.tight.worst_case import Division, LawSum, WorstLaw

APART = 1e-11  # nats between points of a profile
FEW_ATOMS = 1 << 7  # losses above 0 of a law that is kept as it is


def evaluate_sum(one: LawSum, direction: Direction = Direction.EITHER) -> EvaluatedSum:
    """Return a sum's laws, each choice and division replaced by laws that are at least as bad.

    Args:
        one: the sum.
        direction: that of its listed losses; below choices and divisions they are those of either.

    Choices that are equal are taken together, one after another. For unlike ones that the adversary may interleave,
    composing the worst law of each is a bound: an interactive mechanism can be simulated by a single draw from the pair
    of laws that has its profile (Vadhan and Zhang 2023).

    Raises:
        NotTight: this would take too much time or memory.
    """
    laws, kept = split_infinite(_laws_of(one, direction))
    return EvaluatedSum(laws, kept + one.log_finite * (1 + 1e-15))


def _laws_of(one: LawSum, direction: Direction) -> Iterator[tuple[ComposedLaw, int]]:
    ranges = {law: count for law, count in one.items if isinstance(law, RangeLoss)}
    if ranges:
        yield from worst_of_ranges(ranges).items()
    for law, count in one.items:
        match law:
            case WorstLaw():
                yield from evaluate_worst(law, count).items()
            case Division():
                yield from evaluate_division(law, count).items()
            case RangeLoss():
                pass
            case ListedLoss():
                yield listed_atoms(law, direction), count
            case _:
                yield law, count


def evaluate_worst(worst: WorstLaw, count: int) -> Counter[ComposedLaw]:
    """Return laws that bound ``count`` choices one after another; for one choice, its own profile.

    Raises:
        NotTight: this would take too much time or memory.
    """
    spend(CALL * len(worst.branches))
    sums = [evaluate_sum(one) for one in sorted(worst.branches, key=repr)]
    found = worst_of_turns(sums, count) if count > 1 else None
    return Counter({_worst_of([Branch.of(one) for one in sums]): count}) if found is None else found


def evaluate_division(division: Division, count: int) -> Counter[ComposedLaw]:
    """Return laws that bound ``count`` divisions; without a limit on equal parts, if it would take too long else.

    Raises:
        NotTight: this would take too much time or memory.
    """
    parts = [
        DividedPart(evaluate_sum(part.whole), None if part.side is None else evaluate_sum(part.side), part.count)
        for part in sorted(division.parts, key=repr)
    ]
    found = worst_of_division(parts, division.places)
    if found is not None:
        return Counter({found: count})
    choice, times = division.unlimited
    return evaluate_worst(choice, times * count)


def _worst_of(branches: list[Branch]) -> Atoms:
    """Return the law whose profile is the pointwise maximum of the branches', joined linearly between its points."""
    every = [branch.atoms for branch in branches]
    losses = np.unique(np.concatenate([a.x[a.x > 0] for a in every if a is not None] or [np.zeros(0)]))
    if None in every or len(losses) > FEW_ATOMS or losses.max(initial=0.0) > LARGEST_LOSS:
        return worst_on_grid(branches)
    points = _apart(np.append(0.0, losses))
    for _ in branches:  # where two cross, a third one can be above both
        profiles = np.stack([branch.profile(points) for branch in branches])
        before, points = len(points), _apart(np.union1d(points, _crossings(points, profiles)))
        if len(points) == before:
            break
    return law_from_profile(points, np.max([branch.profile(points) for branch in branches], axis=0))


def _apart(points: Doubles) -> Doubles:
    """Return points from 0 on, without those just below another one: slopes between them are only rounding."""
    kept = points[np.diff(points, append=np.inf) > APART]
    kept[0] = 0.0
    return np.asarray(kept)


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
