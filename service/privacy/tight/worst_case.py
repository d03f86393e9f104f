"""Loss laws of a plan: sums of laws, and the worst of several, which has the largest profile at every epsilon.

Composing the worst law bounds an adversary who picks each next mechanism by earlier outcomes. The maximum over whole
fixed combinations would be too small (the guide's errata.md has an example).

The bound is exact for a choice that is made once, and if one branch has the largest profile at every epsilon. Otherwise
it can be above the truth. Two choices between geometric noise of epsilon 1 and discrete Gaussian noise of rho 0.1 get
3.0661 at delta = 1e-6, where the truth is 3.0233. A record in two of three different parts, these two and geometric
noise of epsilon 0.1, gets 3.0661, where the truth is 2.9629.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from service.privacy.accounting.zcdp import plan_rho
from service.privacy.laws.loss_laws import GaussianLoss, LadderLoss, LaplaceLoss
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.keyed import Keyed, ValuesKey
from service.privacy.numerics.numbers import double_up
from service.privacy.plans.composition_program import Notion, build_program, evaluate
from service.privacy.plans.walking import Neighbouring, Priced
from service.privacy.tight.laws import ComposedLaw, mechanism_law, total_rho
from service.privacy.tight.work_budget import NotTight

MOST_BRANCHES = 64


@dataclass(frozen=True, slots=True)
class LawSum(Keyed):
    """A composition of laws.

    Attributes:
        items: laws with their counts, each law once.
        log_finite: log of the probability that no event of a declared delta happens, at most 0.
    """

    items: tuple[tuple["ComposedLaw | WorstLaw", int], ...]
    log_finite: float = 0.0


@dataclass(frozen=True, slots=True)
class WorstLaw(Keyed):
    """The worst of at least two sums, for each epsilon separately."""

    branches: frozenset[LawSum]


def plan_sum(plan: Priced, neighbouring: Neighbouring) -> LawSum:
    """Return the laws that a plan composes, by the rules of ``composition_program``.

    Continuous Gaussians compose to one, and are totally ordered by rho, so for them the fold of rho is enough.

    Raises:
        NotTight: a mechanism has no law, or the profile of a group is not known to be that of its mechanisms.
    """
    program = build_program(plan, neighbouring, profiles=True)
    if not any(mechanism.work().tight for mechanism in program.mechanisms):
        rho = plan_rho(plan, neighbouring).nats
        return LawSum(((GaussianLoss(sigma_squared=1 / (2 * rho)), 1),) if rho else ())
    if not program.groups_compose:
        raise NotTight
    return evaluate(program, Notion(_of_mechanism, _total, _largest))


def _of_mechanism(mechanism: Mechanism) -> LawSum:
    delta, law = mechanism.delta().nats, mechanism_law(mechanism)
    items = () if law is None else ((law, 1),)
    if not delta:
        return LawSum(items)
    above = double_up(delta)  # above 0 if delta is, even one below all doubles
    kept = -math.inf if above >= 1 else math.log1p(-above)
    return LawSum(items, kept)


def _total(weighted: Iterable[tuple[LawSum, int]]) -> LawSum:
    counts: Counter[ComposedLaw | WorstLaw] = Counter()
    listed = list(weighted)
    if len(listed) == 1:
        ((part, count),) = listed
        return LawSum(tuple((law, times * count) for law, times in part.items), part.log_finite * count)
    for part, count in listed:
        for law, times in part.items:
            counts[law] += times * count
    return LawSum(tuple(counts.items()), math.fsum(part.log_finite * count for part, count in listed))


def _largest(weighted: Iterable[tuple[LawSum, int]], how_many: int) -> LawSum:
    """Return all sums if these are at most ``how_many``, else the worst one ``how_many`` times."""
    listed = list(weighted)
    if sum(count for _, count in listed) <= how_many:
        return _total(listed)
    branches: set[LawSum] = set()
    for part, _ in listed:
        (only, *others) = part.items or [(None, 0)]
        nested = not others and part.log_finite == 0 and isinstance(only[0], WorstLaw) and only[1] == 1
        branches |= only[0].branches if nested and isinstance(only[0], WorstLaw) else {part}
    worst = _undominated(branches)
    one = worst[0] if len(worst) == 1 else LawSum(((WorstLaw(frozenset(worst)), 1),))
    return _total([(one, how_many)])


def _undominated(sums: Iterable[LawSum]) -> list[LawSum]:
    """Return the sums that no other is known to dominate, as a larger one of the same kind or by containing it."""
    largest: dict[ValuesKey, tuple[object, LawSum]] = {}
    for one in sums:
        kind, size = _rank(one)
        key = ValuesKey(kind)
        if key not in largest or largest[key][0] < size:  # type: ignore[operator]  # of one kind: both Fractions
            largest[key] = size, one
    undominated = [one for _, one in largest.values()]
    if len(undominated) > MOST_BRANCHES:
        raise NotTight
    for one in list(undominated):  # of equal ones the last stays
        if any(_contains(two, one) for two in undominated if two is not one):
            undominated.remove(one)
    return undominated


def _rank(one: LawSum) -> tuple[object, object]:
    """Return a kind in which sums are totally ordered, and a sum's rank in it.

    Gaussians are ordered by rho. Laplace losses are ordered by e, as are geometric ones of equal steps and responses of
    equally many values: independent noise, or random answers, turn a mechanism with less noise into one with more. The
    kind has the laws themselves, without the figures of the rank, so every other field on which a loss depends counts.
    """
    laws = {law: count for law, count in one.items if not isinstance(law, WorstLaw)}
    if len(laws) == len(one.items) and all(isinstance(law, GaussianLoss) for law in laws):
        return (frozenset((_GAUSSIAN, *map(_unranked, laws))), one.log_finite), total_rho(laws)
    if len(one.items) == 1:
        ((law, count),) = one.items
        if isinstance(law, LadderLoss | LaplaceLoss):
            return (_unranked(law), count, one.log_finite), law.e
    return one, 0


_GAUSSIAN = GaussianLoss(sigma_squared=Fraction(1))


def _unranked(law: object) -> object:
    """Return a law with a constant in the fields that only determine its rank."""
    match law:
        case GaussianLoss():
            return replace(law, sigma_squared=Fraction(1), sensitivity=Fraction(1))
        case LaplaceLoss():
            return replace(law, scale=Fraction(1), sensitivity=Fraction(1))
        case LadderLoss():
            return replace(law, e=Fraction(0))
    return law


def _contains(two: LawSum, one: LawSum) -> bool:
    """Tell whether ``two`` is ``one`` composed with more."""
    counts = dict(two.items)
    return two.log_finite <= one.log_finite and all(counts.get(law, 0) >= count for law, count in one.items)
