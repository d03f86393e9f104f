"""Loss laws of a plan: sums of laws, and the worst of several, which has the largest profile at every epsilon.

An adversary picks a branch of each ``choice``, and the parts of a ``parallel`` in which the record is, after earlier
outcomes. The maximum over whole fixed combinations would be too small (the guide's errata.md has an example).
``profiles`` evaluates what stands here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import itemgetter
from typing import Any

from service.privacy.accounting.zcdp import plan_rho
from service.privacy.laws.loss_laws import (
    GaussianLoss,
    LadderLoss,
    LaplaceLoss,
    ListedLoss,
    OddsLoss,
    RangeLoss,
    TableLoss,
)
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
        items: laws with their counts, each once; equal choices are made one after another.
        log_finite: log of the probability that no event of a declared delta happens, at most 0.
    """

    items: tuple[tuple["SummedLaw", int], ...]
    log_finite: float = 0.0


@dataclass(frozen=True, slots=True)
class WorstLaw(Keyed):
    """A choice of one of at least two sums."""

    branches: frozenset[LawSum]


@dataclass(frozen=True, slots=True)
class Part(Keyed):
    """A part of a ``parallel``.

    Attributes:
        whole: its loss under the account's relation.
        side: its loss under add/remove, if a record can be replaced; None if it is only added or removed.
        count: the number of equal parts.
    """

    whole: LawSum
    side: LawSum | None
    count: int


@dataclass(frozen=True, slots=True)
class Division(Keyed):
    """A choice of several parts, of which there are only so many.

    Attributes:
        parts: unlike ones.
        places: the number of parts that a record is in; less than there are parts.
    """

    parts: frozenset[Part]
    places: int

    @property
    def unlimited(self) -> tuple["WorstLaw", int]:
        """A choice, and how often it is made, that is at least as bad: as if there were any number of each part."""
        branches = {part.whole for part in self.parts}
        sides = [(part.side, 1) for part in self.parts if part.side is not None]
        if sides:
            branches.add(_total([(_largest(sides, 1), 2)]))
        return WorstLaw(frozenset(branches)), self.places


SummedLaw = ComposedLaw | WorstLaw | Division


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
    return evaluate(program, Notion(_of_mechanism, _total, _largest, _replaced))


def _of_mechanism(mechanism: Mechanism) -> LawSum:
    delta, law = mechanism.delta().nats, mechanism_law(mechanism)
    if isinstance(law, TableLoss):  # which has the delta of each direction
        return _largest([(_of_direction(one), 1) for one in law.directions], 1)
    items = () if law is None else ((law, 1),)
    # A listed loss has the infinite losses of each direction in its own law.
    return LawSum(items, 0.0 if isinstance(law, ListedLoss) else _log_finite(delta or Fraction(0)))


def _of_direction(law: OddsLoss) -> LawSum:
    return LawSum(((law, 1),) if law.atoms else (), _log_finite(1 - law.finite))


def _log_finite(delta: Fraction) -> float:
    """Return log of the probability that no event of probability delta happens, rounded down."""
    if not delta:
        return 0.0
    above = double_up(delta)  # above 0 if delta is, even one below all doubles
    return -math.inf if above >= 1 else math.log1p(-above)


def _total(weighted: Iterable[tuple[LawSum, int]]) -> LawSum:
    counts: Counter[SummedLaw] = Counter()
    listed = list(weighted)
    if len(listed) == 1:
        ((part, count),) = listed
        return LawSum(tuple((law, times * count) for law, times in part.items), part.log_finite * count)
    for part, count in listed:
        for law, times in part.items:
            counts[law] += times * count
    return LawSum(tuple(counts.items()), math.fsum(part.log_finite * count for part, count in listed))


def _largest(weighted: Iterable[tuple[LawSum, int]], how_many: int) -> LawSum:
    """Return all sums if these are at most ``how_many``, else the choice of so many among them."""
    listed = list(weighted)
    if sum(count for _, count in listed) <= how_many:
        return _total(listed)
    counts: Counter[LawSum] = Counter()
    for part, count in listed:
        for branch in _branches(part) if how_many == 1 else (part,):
            counts[branch] += count
    kept = _undominated(counts, how_many)
    if sum(kept.values()) <= how_many:
        return _total(kept.items())
    if min(kept.values()) < how_many:
        return LawSum(((Division(frozenset(Part(one, None, count) for one, count in kept.items()), how_many), 1),))
    return LawSum(((WorstLaw(frozenset(branch for part in kept for branch in _branches(part))), how_many),))


def _replaced(weighted: Iterable[tuple[LawSum, LawSum, int]], how_many: int) -> LawSum:
    """Return the choice of parts for a changed record: ``how_many`` that it is removed from, and that it is added to.

    Where it is removed from a part and added to the same one, that part's loss is the worse of its whole and of twice
    its side. With one place there may be any number of each part, as each partition makes its choice by itself. So it
    is assumed of many kinds, whose ways to be in them would be too many.
    """
    counts: Counter[tuple[LawSum, LawSum]] = Counter()
    for whole, side, count in weighted:
        counts[whole, side] += count
    if sum(counts.values()) <= how_many:
        return _total(
            (_largest([(whole, 1), (_total([(side, 2)]), 1)], 1), count) for (whole, side), count in counts.items()
        )
    if how_many == 1 or min(counts.values()) >= 2 * how_many or len(counts) > MOST_BRANCHES:
        side = _largest(((side, 1) for _, side in counts), 1)
        return _largest([*((whole, how_many) for whole, _ in counts), (_total([(side, 2)]), how_many)], how_many)
    parts = {(whole, side): min(count, 2 * how_many) for (whole, side), count in counts.items()}
    return LawSum(((Division(frozenset(Part(*part, count) for part, count in parts.items()), how_many), 1),))


def _branches(part: LawSum) -> Iterable[LawSum]:
    """Return the branches of a sum that is one choice and nothing else, or the sum itself."""
    if len(part.items) == 1 and part.log_finite == 0:
        ((law, count),) = part.items
        if isinstance(law, WorstLaw) and count == 1:
            return law.branches
    return (part,)


def _undominated(counts: Mapping[LawSum, int], how_many: int) -> dict[LawSum, int]:
    """Return the sums that can be among the ``how_many`` worst, each with at most so many.

    A sum can not if so many others are known to dominate it, as larger ones of the same kind or by containing it.
    """
    ranked: dict[ValuesKey, list[tuple[Any, LawSum]]] = {}
    for one in counts:
        kind, size = _rank(one)
        ranked.setdefault(ValuesKey(kind), []).append((size, one))
    kept: dict[LawSum, int] = {}
    for of_kind in ranked.values():
        left = how_many
        for _, one in sorted(of_kind, key=itemgetter(0), reverse=True):
            if left:
                kept[one] = min(counts[one], left)
                left -= kept[one]
    if len(kept) > MOST_BRANCHES:
        raise NotTight
    for one in list(kept):  # of equal ones the last stays
        if sum(count for two, count in kept.items() if two is not one and _contains(two, one)) >= how_many:
            del kept[one]
    return kept


def _rank(one: LawSum) -> tuple[object, object]:
    """Return a kind in which sums are totally ordered, and a sum's rank in it.

    Gaussians are ordered by rho. Laplace losses are ordered by e, as are geometric ones of equal steps and responses of
    equally many values: independent noise, or random answers, turn a mechanism with less noise into one with more.
    Losses of bounded range are ordered by it, as an interval is within any longer one that contains it. The
    kind has the laws themselves, without the figures of the rank, so every other field on which a loss depends counts.
    """
    laws = {law: count for law, count in one.items if not isinstance(law, WorstLaw | Division)}
    if len(laws) == len(one.items) and all(isinstance(law, GaussianLoss) for law in laws):
        return (frozenset((_GAUSSIAN, *map(_unranked, laws))), one.log_finite), total_rho(laws)
    if len(one.items) == 1:
        ((law, count),) = one.items
        if isinstance(law, LadderLoss | LaplaceLoss | RangeLoss):
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
        case LadderLoss() | RangeLoss():
            return replace(law, e=Fraction(0))
    return law


def _contains(two: LawSum, one: LawSum) -> bool:
    """Tell whether ``two`` is ``one`` composed with more, or choices that can be made so that they are ``one``."""
    if two.log_finite > one.log_finite:
        return False
    for choice, times in two.items if len(two.items) == 1 else ():
        if isinstance(choice, WorstLaw) and any(one == _total([(branch, times)]) for branch in choice.branches):
            return True
    counts = dict(two.items)
    return all(counts.get(law, 0) >= count for law, count in one.items)
