"""A plan under a neighbouring relation as sums and maxima, and the one fold that prices it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

from service.privacy.mechanisms import Mechanism
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.walking import Neighbouring, Priced, condense

T = TypeVar("T")
_MOST_PAIRED = 10
"""Alternatives of which each two are composed for a replacement; of more, either side may take the worst at any time,
which is a bound."""


@dataclass(frozen=True, slots=True)
class Notion(Generic[T]):
    """A notion of privacy loss: its prices, and the rules by which they compose.

    Attributes:
        mechanism: the cost of one cell moved.
        total: the cost of costs composed, each ``count`` times.
        largest: the cost of the ``how_many`` largest composed; for each order separately if the notion has orders.
        replaced: the cost of parts from each of which a changed record can be removed, and to each of which it can be
            added; None if a program without ``sides`` gives the right bound.
    """

    mechanism: Callable[[Mechanism], T]
    total: Callable[[Iterable[tuple[T, int]]], T]
    largest: Callable[[Iterable[tuple[T, int]], int], T]
    replaced: Callable[[Iterable[tuple[T, T, int]], int], T] | None = None


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One step of a composition program: the costs of earlier places, combined.

    Attributes:
        how_many: the number of largest costs that are summed; None sums all.
        parts: places; those of the mechanisms come first, then those of the steps.
        counts: the number of times that each part occurs.
        sides: the places of each part's cost for a record that is only removed from it, or only added to it; empty if
            the parts' costs cover that.
    """

    how_many: int | None
    parts: tuple[int, ...]
    counts: tuple[int, ...]
    sides: tuple[int, ...] = ()

    @property
    def pairs(self) -> Iterable[tuple[int, int]]:
        """Each part with its count."""
        return zip(self.parts, self.counts, strict=True)


@dataclass(frozen=True, slots=True)
class CompositionProgram:
    """A plan under a neighbouring relation as a sequence of sums and maxima; the last step is the whole.

    Every notion of loss, exact or in arrays of doubles, is evaluated along it.

    Attributes:
        mechanisms: the distinct ones, for one moved cell each; ``cells`` is in the counts.
        groups_compose: whether moving groups down to the mechanisms is proven for privacy profiles, and not only for
            Rényi divergences.
    """

    mechanisms: tuple[Mechanism, ...]
    steps: tuple[ProgramStep, ...]
    groups_compose: bool = True


Foldable = Priced | CompositionProgram
"""Plans that ``fold`` accepts; a caller that folds a plan repeatedly under one relation builds the program first."""


def build_program(plan: Foldable, neighbouring: Neighbouring, *, profiles: bool = False) -> CompositionProgram:
    """Return the sums and maxima that a plan's price is made of (Haney et al. 2021, Lemmas 1-3, 9, 10, 12).

    ``parallel`` is sharpened from max_degree times the largest part to the sum of the max_degree largest: the proofs of
    Lemmas 9, 10 and 12 bound exactly that sum.

    Args:
        profiles: for losses that are compared by their whole privacy profiles. Two different one-sided changes can then
            be worse, at some epsilon, than twice either of them. So the program states the ``sides`` of parts.

    Raises:
        ValueError: a mechanism that ``notation.check_relation`` refuses under this relation.
    """
    if isinstance(plan, CompositionProgram):
        return plan
    lines = _ProgramBuilder(neighbouring, profiles)
    lines.cost(condense(plan), False)
    return lines.build()


class _ProgramBuilder:
    """A program under construction: a mechanism's place is its number; a step's is ~number until ``build``."""

    def __init__(self, neighbouring: Neighbouring, profiles: bool) -> None:
        self._replaced, self._profiles = neighbouring is Neighbouring.REPLACE_ONE, profiles
        self._groups_compose = True
        self._mechanisms: list[Mechanism] = []
        self._steps: list[ProgramStep] = []
        self._places: dict[Condensed | Mechanism, int] = {}  # by the leaf if it is the same, as its hash is known
        self._cost_places: dict[tuple[Condensed, bool], int] = {}

    def build(self) -> CompositionProgram:
        """Return the finished program, in which the steps' places follow the mechanisms'."""
        first = len(self._mechanisms)

        def final(places: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place if place >= 0 else first + ~place for place in places)

        steps = [ProgramStep(one.how_many, final(one.parts), one.counts, final(one.sides)) for one in self._steps]
        return CompositionProgram(tuple(self._mechanisms), tuple(steps), self._groups_compose)

    def cost(self, node: Condensed, one_side: bool) -> int:
        """Return the place of a node's cost; ``one_side``: of the removal or addition that is half of a replacement."""
        place = self._cost_places.get((node, one_side))
        if place is None:
            place = self._cost_places[node, one_side] = self._of_node(node, one_side)
        return place

    def _of_node(self, node: Condensed, one_side: bool) -> int:
        if node.degree is None:
            return self._step(None, self._composed_costs(((node, 1),) if node.mechanism else node.parts, one_side))
        self._groups_compose &= node.group == 1
        costs = [(self.cost(part, one_side), count) for part, count in node.parts]
        if self._replaced and not one_side:
            # A changed record can leave one subset and enter another: two one-sided changes in
            # two parts, which together cost at most twice the more expensive one.
            halves = [self.cost(part, True) for part, _ in node.parts]
            if self._profiles and node.fixed and len(halves) <= _MOST_PAIRED:
                pairs = combinations_with_replacement(halves, 2)
                return self._step(1, [(self._step(None, ((one, 1), (other, 1))), 1) for one, other in pairs])
            if self._profiles:
                return self._step(node.degree, costs, halves)
            costs = [(self._larger_cost(one, half), count) for (one, count), half in zip(costs, halves, strict=True)]
        return self._step(node.degree, costs)

    def _larger_cost(self, one: int, half: int) -> int:
        """Return the larger of a cost and of twice another; no new step where one contains the other."""
        once, twice = self._steps[~one], self._steps[~half]
        if once.how_many is None and twice.how_many is None:
            counts, doubled = Counter[int](), Counter[int]()
            for place, count in once.pairs:
                counts[place] += count
            for place, count in twice.pairs:
                doubled[place] += 2 * count
            if doubled <= counts:
                return one
            if counts <= doubled:
                return self._step(None, [(half, 2)])
        return self._step(1, [(one, 1), (self._step(None, [(half, 2)]), 1)])

    def _composed_costs(self, parts: Iterable[tuple[Condensed, int]], one_side: bool) -> Iterator[tuple[int, int]]:
        for part, count in parts:
            if part.mechanism is None:
                yield self.cost(part, one_side), count
            else:
                moved, cells = part.mechanism.moved(replaced=self._replaced, one_side=one_side)
                # At most part.group records move a cell, and cells*part.group records move cells in all. One cell
                # moved by a+b is worse than one moved by a and one by b, for noise of monotone likelihood ratio (Dong,
                # Roth and Su 2022, Lemma A.5: the optimal tests of all shifts are the same). So the moves can be put
                # together in ``cells`` cells if they fit; moves of 2 and 1 always do.
                self._groups_compose &= cells == 1 or part.group <= 2
                yield self._place(part if moved is part.mechanism else moved, moved), cells * count

    def _place(self, key: Condensed | Mechanism, moved: Mechanism) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._mechanisms)
            self._mechanisms.append(moved)
        return place

    def _step(self, how_many: int | None, parts: Iterable[tuple[int, int]], sides: Iterable[int] = ()) -> int:
        listed = tuple(parts)
        places, counts = tuple(part for part, _ in listed), tuple(count for _, count in listed)
        self._steps.append(ProgramStep(how_many, places, counts, tuple(sides)))
        return ~(len(self._steps) - 1)


def fold(plan: Foldable, neighbouring: Neighbouring, notion: Notion[T]) -> T:
    """Return the cost of a plan in one notion.

    Raises:
        ValueError: a mechanism that ``notation.check_relation`` refuses under this relation.
    """
    return evaluate(build_program(plan, neighbouring), notion)


def evaluate(plan: CompositionProgram, notion: Notion[T]) -> T:
    """Return the cost of a program in one notion; a mechanism is priced when a step first needs it."""
    costs: dict[int, T] = {}

    def cost(place: int) -> T:
        if place not in costs:
            costs[place] = notion.mechanism(plan.mechanisms[place])
        return costs[place]

    for place, step in enumerate(plan.steps, len(plan.mechanisms)):
        weighted = ((cost(part), count) for part, count in step.pairs)
        if step.how_many is None:
            costs[place] = notion.total(weighted)
        elif notion.replaced is not None and step.sides:
            sides = map(cost, step.sides)
            costs[place] = notion.replaced(
                ((one, side, count) for (one, count), side in zip(weighted, sides, strict=True)), step.how_many
            )
        else:
            costs[place] = notion.largest(weighted, step.how_many)
    return cost(len(plan.mechanisms) + len(plan.steps) - 1)
