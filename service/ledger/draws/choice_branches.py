"""The choices above a mechanism: their branches, turns and bounds, by the plan alone."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from service.privacy.mechanisms import Mechanism
from service.privacy.partitions import Partitions
from service.privacy.planning.levels import levels_of
from service.privacy.plans import Node, Plan
from service.privacy.plans.walking import mechanisms_of, runs_of

WHOLE = ""
"""The partition of a draw of the whole input."""

SMALL = 500
"""The number of groups of a small tabulation; also of a small piece of a large one. To write them takes about 10 ms."""


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """A ``choice`` above a mechanism: its place, the branch that leads to the mechanism, and its turn.

    Attributes:
        tabulated: the mechanism as whose draws its tabulations are stored; None if it is no level.
    """

    pointer: str
    branch: int
    turn: int
    tabulated: str | None = None


class LaterDraw(NamedTuple):
    """A draw that was made since the ledger was read for another one.

    Attributes:
        taken: the number of partitions that it took of each mechanism.
    """

    id: str
    release_id: str
    mechanism: str
    partition: str
    repetition: int
    is_tabulation: bool
    taken: Sequence[tuple[str, int]]

    @property
    def is_small(self) -> bool:
        """Return whether the draw took few partitions, so that reading their names takes less than a millisecond."""
        return all(number <= SMALL for _, number in self.taken)


def path_to(plan: Plan, mechanism: Mechanism) -> list[tuple[Node, int]]:
    """Return the nodes from the root down to a mechanism, each with the index of the child on the way.

    Returns:
        Empty where the plan is the mechanism itself, or does not have it.
    """
    if isinstance(plan, Mechanism):
        return []
    for number, part in enumerate(plan.children):
        if part is mechanism or part == mechanism:
            return [(plan, number)]
        below = path_to(part, mechanism)
        if below:
            return [(plan, number), *below]
    return []


def choice_points_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[ChoicePoint]:
    """Return the choices above a mechanism; the turn of each is the repetition without the repeats below it.

    Args:
        repetition: from 0, over all repeats above the mechanism.

    Returns:
        The outermost choice first.
    """
    way, points, pointer = path_to(plan, mechanism), list[ChoicePoint](), ""
    for depth, (node, number) in enumerate(way):
        if node.CHOOSES:
            below = math.prod(inner.times for inner, _ in way[depth:])
            level = None if points else next(levels_of(node), None)  # there is none below another choice
            tabulated = None if level is None else level.step_2.name
            points.append(ChoicePoint(pointer, number, repetition // below, tabulated))
        pointer += node.pointer_to(number)
    return points


@dataclass(frozen=True, slots=True)
class DeclaringMechanisms:
    """The mechanisms below a choice that declare one number of partitions, for look-ups by name.

    All choices below that one share it. Lists of texts and numbers take only milliseconds to send between processes.

    Attributes:
        names: sorted.
        numbers: for each name, the number of these mechanisms before it in the plan.
        times: for each name, the number of its runs in a turn of the choice.
    """

    names: list[str]
    numbers: list[int]
    times: list[int]

    def find(self, name: str) -> tuple[int, int] | None:
        """Return the number of a mechanism and the number of its runs; None for any other mechanism.

        Returns:
            The number of declaring mechanisms before it, and its runs in a turn of the choice.
        """
        place = bisect_left(self.names, name)
        if place == len(self.names) or self.names[place] != name:
            return None
        return self.numbers[place], self.times[place]


@dataclass(frozen=True, slots=True)
class ChoiceBound:
    """A declared number of partitions that the branches of a ``choice`` share, in one turn of it.

    Attributes:
        pointer: the place of the choice in the plan.
        turn: the turn of the choice.
        most: the declared number.
        declaring: the mechanisms that declare it below this choice, or below the topmost one above it.
        turns: the number of turns of this choice in one turn of the topmost one.
        starts: for each branch the number of its first declaring mechanism, and at the end the number after the last
            one.
    """

    pointer: str
    turn: int
    most: int
    declaring: DeclaringMechanisms
    turns: int
    starts: list[int]

    def find(self, mechanism: str) -> tuple[int, range] | None:
        """Return the branch to a mechanism and its repetitions in the turn; None if it is not bounded here.

        Returns:
            Repetitions as numbers from 0, over all repeats above the mechanism.
        """
        found = self.declaring.find(mechanism)
        if found is None or not self.starts[0] <= found[0] < self.starts[-1]:
            return None
        number, times = found[0], found[1] // self.turns
        return bisect_right(self.starts, number) - 1, range(self.turn * times, (self.turn + 1) * times)


def bounds_above(plan: Plan, mechanism: Mechanism, repetition: int) -> list[ChoiceBound]:
    """Return the bounds of the choices above a mechanism, by its declared number of partitions; none without one.

    Each partition takes one branch of a choice, and the choice is charged for one branch. If each mechanism were
    bounded by itself, a caller could invent as many partitions for every branch. A list of names needs no such bound.

    Args:
        repetition: from 0, over all repeats above the mechanism.

    Returns:
        The outermost choice first.
    """
    declared, bounds = mechanism.partitions, list[ChoiceBound]()
    if declared is None or declared.names is not None:
        return bounds
    way, pointer, first, turns = path_to(plan, mechanism), "", 0, 1
    declaring: DeclaringMechanisms | None = None
    sizes = _sizes(way, declared) if any(node.CHOOSES for node, _ in way) else []
    for depth, (node, child) in enumerate(way):
        if declaring is None and node.CHOOSES:
            declaring = _declaring(node, declared)
        if declaring is not None:
            starts = list(accumulate(sizes[depth], initial=first))
            if node.CHOOSES:
                turn = repetition // math.prod(inner.times for inner, _ in way[depth:])
                bounds.append(ChoiceBound(pointer, turn, declared.most, declaring, turns, starts))
            first, turns = starts[child], turns * node.times
        pointer += node.pointer_to(child)
    return bounds


def _sizes(way: Sequence[tuple[Node, int]], declared: Partitions) -> list[list[int]]:
    """Return, for each node on the way to a mechanism, how many mechanisms below each child declare its number."""
    sizes, size = list[list[int]](), 1
    for node, child in reversed(way):
        parts = enumerate(node.children)
        sizes.append([size if number == child else _number(part, declared) for number, part in parts])
        size = sum(sizes[-1])
    return sizes[::-1]


def _number(plan: Plan, declared: Partitions) -> int:
    return sum(below.partitions == declared for below in mechanisms_of(plan))


def _declaring(choice: Node, declared: Partitions) -> DeclaringMechanisms:
    found = ((below.name or "", times) for below, times in runs_of(choice) if below.partitions == declared)
    rows = sorted((name, number, times) for number, (name, times) in enumerate(found))
    return DeclaringMechanisms(
        [name for name, _, _ in rows], [number for _, number, _ in rows], [times for *_, times in rows]
    )
