"""Backward induction over steps that an adversary chooses one after another, each by the losses so far.

Let V(t) be the largest delta that the remaining steps reach if epsilon is t above the losses so far. With no step left
it is the larger of 1 - e^t and 0. One step earlier it is the largest of E V(t - L) over the losses L among which the
adversary picks. So one pass over the steps finds the profile at every epsilon at once.

V is kept on a grid (``kernels``). As every pair of laws is symmetric, or the adversary can pick the reversed one too,
V(-t) = 1 - e^-t (1 - V(t)). Losses are split between the multiples around them, which is an upper bound. V is convex in
e^t, so chords are upper bounds too.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from service.privacy.laws.loss_laws import OddsLoss
from service.privacy.tight.atoms import LARGEST_LOSS, TAIL
from service.privacy.tight.branches import LEAST_REACH, EvaluatedSum
from service.privacy.tight.families import Doubles
from service.privacy.tight.kernels import MULTIPLICATIONS, Grid, Step, StepLaws, grid_for, law_on
from service.privacy.tight.laws import Atoms, ComposedLaw
from service.privacy.tight.work_budget import CALL, remaining_work, spend

POINTS = tuple(1 << bits for bits in (14, 13, 12, 11))
"""The numbers of multiples on a grid, from the most exact to the quickest."""
MOST_WORK, SHARE = 1 << 23, 1 / 3
"""The most work for one induction, and the most of what is left."""
MOST_STATES = 1 << 8
CHUNKS = 64, 32, 16, 8, 4, 2
"""The numbers of turns that are taken together if all are too many."""
SAME, NEGLIGIBLE = 1e-9, 1e-100
"""Profiles that differ by a smaller share are the same, and those below this do not decide which step is the worst."""
_C = np.geomspace(0.02, 400, 60)

State = TypeVar("State", bound=Hashable)
Moves = Callable[[State], Iterable[tuple[int, State]]]
"""The steps that the adversary may take in a state, by number, each with the state after it; none at the end."""


def worst_of_turns(steps: Sequence[EvaluatedSum], turns: int) -> Counter[ComposedLaw] | None:
    """Return laws that bound so many turns, in each of which the adversary takes one of the steps.

    If all turns would take too long, some are taken together, and the worst law of these is composed. One direction of
    a pair can be the worst at every epsilon from 0 on, and the other one below 0, which later turns need.

    Returns:
        The laws with their counts; None if one step is always the worst, or if two turns already take too long.

    Raises:
        NotTight: a step would take too much time or memory.
    """
    laws = [StepLaws.of(one) for one in steps]
    directed = any(isinstance(law, OddsLoss) for one in laws for law in one.laws)

    def moves(left: int) -> Iterable[tuple[int, int]]:
        return ((k, left - 1) for k in range(len(laws) if left else 0))

    for together in (turns, *(chunk for chunk in CHUNKS if chunk < turns)):
        induction = _Induction.of(laws, moves, _in_order(moves, together))
        if induction is None:
            continue
        if not directed and induction.one_is_worst():
            return None
        times = {together: turns // together, turns % together: 1}
        lengths = [left for left in times if left]
        return Counter(dict(zip(induction.worst(lengths), map(times.__getitem__, lengths), strict=True)))
    return None


@dataclass(frozen=True, slots=True)
class DividedPart:
    """A part of a division, as ``worst_case.Part``, with evaluated losses."""

    whole: EvaluatedSum
    side: EvaluatedSum | None
    count: int


def worst_of_division(parts: Sequence[DividedPart], places: int) -> Atoms | None:
    """Return the law of a record in at most ``places`` of some parts, which the adversary picks one after another.

    A state has the places that are left, on the side of removal and on that of addition if a record can be replaced,
    and the number of parts that are left of each kind.

    Returns:
        None if there are too many ways to be in the parts.

    Raises:
        NotTight: a part would take too much time or memory.
    """
    steps: list[EvaluatedSum] = []
    picks: list[tuple[int, tuple[int, ...]]] = []  # of each step: the part, and the places that it takes
    for k, part in enumerate(parts):
        if part.side is None:
            steps.append(part.whole)
            picks.append((k, (1,)))
        else:
            steps += [part.whole, part.side.repeated(2), part.side, part.side]
            picks += [(k, (1, 1)), (k, (1, 1)), (k, (1, 0)), (k, (0, 1))]

    def moves(state: _Places) -> Iterable[tuple[int, _Places]]:
        left, counts = state
        for step, (k, taken) in enumerate(picks):
            more = tuple(one - other for one, other in zip(left, taken, strict=True))
            if counts[k] and min(more) >= 0:
                # which of the two sides has more places left does not matter
                yield step, (tuple(sorted(more)), (*counts[:k], counts[k] - 1, *counts[k + 1 :]))

    start = ((places,) * len(picks[0][1]), tuple(part.count for part in parts))
    states = _in_order(moves, start)  # before the laws, which are much work
    if states is None:
        return None
    induction = _Induction.of([StepLaws.of(one) for one in steps], moves, states)
    return None if induction is None else induction.worst([start])[0]


_Places = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Induction(Generic[State]):
    """An induction that is not too long.

    Attributes:
        grid: of all profiles.
        steps: those that the moves name.
        moves: of each state.
        states: each after those that can follow it.
        longest: the largest number of steps one after another.
    """

    grid: Grid
    steps: Sequence[Step]
    moves: Moves[State]
    states: Sequence[State]
    longest: int

    @classmethod
    def of(
        cls, laws: Sequence[StepLaws], moves: Moves[State], states: Sequence[State] | None
    ) -> "_Induction[State] | None":
        """Return the induction over states ``_in_order``; None if they are too many or would take too long."""
        if states is None:
            return None
        longest = _longest(moves, states)
        reach = _reach(laws, longest)
        taken = Counter(k for state in states for k, _ in moves(state))
        allowed = min(MOST_WORK, SHARE * remaining_work())
        for points in POINTS if reach <= LARGEST_LOSS else ():
            grid = grid_for(laws, reach, points)
            if sum(count * (laws[k].size(grid) / MULTIPLICATIONS + CALL) for k, count in taken.items()) <= allowed:
                return cls(grid, [Step.of(one, grid) for one in laws], moves, states, longest)
        return None

    def one_is_worst(self) -> bool:
        """Return whether one step alone has about the largest profile everywhere, so that nothing is to choose."""
        alone = np.stack([step.applied(self.grid, self._end) for step in self.steps])
        largest = alone.max(axis=0)
        return bool((alone >= largest * (1 - SAME))[:, largest > NEGLIGIBLE].all(axis=1).any())

    def worst(self, wanted: Sequence[State]) -> list[Atoms]:
        """Return the worst laws from some states on."""
        profiles: dict[State, Doubles] = {}
        for state in self.states:
            spend(CALL)
            reached = [self.steps[k].applied(self.grid, profiles[after]) for k, after in self.moves(state)]
            profiles[state] = np.maximum.reduce(reached) if reached else self._end
        rounding = self.longest * max(step.rounding for step in self.steps) * (1 + 1e-3)  # compounded
        applied = self.longest * max(step.times for step in self.steps)
        return [law_on(self.grid, profiles[state], rounding, applied) for state in wanted]

    @property
    def _end(self) -> Doubles:
        """The profile of nothing at the multiples from 0 on."""
        return np.zeros(self.grid.points + 1)


def _in_order(moves: Moves[State], start: State) -> list[State] | None:
    """Return the states that can be reached, each after those that can follow it; None if they are too many."""
    layers: list[set[State]] = [{start}]
    seen = {start}
    while layers[-1]:
        following = set()
        for state in layers[-1]:
            for _, after in moves(state):
                following.add(after)
                seen.add(after)
                if len(seen) > MOST_STATES:
                    return None
        layers.append(following)
    return list(dict.fromkeys(state for layer in reversed(layers) for state in layer))


def _longest(moves: Moves[State], states: Sequence[State]) -> int:
    """Return the largest number of steps from any state."""
    lengths: dict[State, int] = {}
    for state in states:
        lengths[state] = max((1 + lengths[after] for _, after in moves(state)), default=0)
    return max(lengths.values())


def _reach(laws: Sequence[StepLaws], longest: int) -> float:
    """Return about the epsilon above 0 beyond which so many steps have a negligible delta, by Chernoff's bound."""
    moments = np.max([one.log_moments(_C) for one in laws], axis=0)
    bounds = (longest * moments - math.log(TAIL)) / _C
    bound = float(np.min(np.where(np.isnan(bounds), np.inf, bounds)))
    return max(min(bound, longest * max(one.largest for one in laws)), LEAST_REACH)
