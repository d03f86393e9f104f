"""Windows by their definition, and the largest risk of any adaptive adversary, by induction over exact laws.

Nothing here knows how the service keeps totals: participation is a list of sets of numbers, a release is a set of
numbers or None for all periods, and a mechanism is the law of its privacy loss.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Periods = frozenset[int] | None
"""The periods that a release reads; None: all."""


def sets_of_offsets(offsets: Iterable[int], periods: Sequence[int]) -> list[frozenset[int]]:
    """The sets {t + o}, for every t, of which any periods are left within ``periods``; no two are equal."""
    span = max(offsets)
    shifted = ({t + o for o in offsets} for t in range(min(periods) - span, max(periods) + 1))
    return sorted({frozenset(one & set(periods)) for one in shifted} - {frozenset()}, key=sorted)


def sets_of_any(most: int, periods: Sequence[int]) -> list[frozenset[int]]:
    """All sets of so many of the periods."""
    return [frozenset(one) for one in combinations(periods, most)]


def reads(release: Periods, unit: frozenset[int]) -> bool:
    """Tell whether a release reads data of a unit that is in these periods, or could be in them later."""
    return release is None or bool(release & unit)


@dataclass(frozen=True)
class Mechanism:
    """The law of a mechanism's privacy loss, equal in both directions.

    Attributes:
        atoms: loss, a multiple of the grid, with its probability under the neighbour that runs.
        told: probability that everything is lost; the atoms' add up to 1 less this.
    """

    atoms: tuple[tuple[int, float], ...]
    told: float = 0.0

    @property
    def largest(self) -> int:
        return max(abs(loss) for loss, _ in self.atoms)

    def divergence(self, order: float, grid: float) -> float:
        """The Rényi divergence, in nats, where nothing is told."""
        return math.log(sum(p * math.exp((order - 1) * loss * grid) for loss, p in self.atoms)) / (order - 1)

    def given_that_nothing_is_told(self) -> "Mechanism":
        return Mechanism(tuple((loss, p / (1 - self.told)) for loss, p in self.atoms))


def response(loss: int, values: int, grid: float) -> Mechanism:
    """Randomised response on so many values; of two values also the law of geometric noise on one cell moved by 1."""
    rest = math.exp(loss * grid) + values - 1
    middle = ((0, (values - 2) / rest),) if values > 2 else ()
    return Mechanism(((loss, math.exp(loss * grid) / rest), (-loss, 1 / rest), *middle))


def twice(one: Mechanism) -> Mechanism:
    """Two independent runs: geometric noise on two cells, each moved by 1."""
    sums: dict[int, float] = {}
    for loss, p in one.atoms:
        for other, q in one.atoms:
            sums[loss + other] = sums.get(loss + other, 0.0) + p * q
    return Mechanism(tuple(sums.items()))


def told_or(told: float, one: Mechanism) -> Mechanism:
    """With probability ``told`` the record is published, else the mechanism runs."""
    return Mechanism(tuple((loss, (1 - told) * p) for loss, p in one.atoms), told)


State = TypeVar("State", bound=Hashable)
Move = tuple[Mechanism | None, Periods]
"""A mechanism over periods; None: a release that is never run."""


def largest_risk(
    start: State,
    follow: Callable[[State, int], State | None],
    moves: Sequence[Move],
    unit: frozenset[int],
    depth: int,
    value: Callable[[NDArray[Any]], NDArray[Any]],
    grid: float,
    told_value: float = 1.0,
) -> float:
    """Return the supremum over all adaptive adversaries of E[value(loss)], for a unit in these periods.

    An adversary picks each move by all earlier outputs, among those that ``follow`` admits, and stops when it wants to.
    What the future can add depends on the past by the filter's state and by the loss so far alone. So backward
    induction over these gives the optimum, and not a sample. All laws are equal in both directions, hence so are the
    optima.

    Args:
        follow: the state after a move, by its number; None: refused.
        depth: the most moves.
        value: of losses, in nats.
        told_value: where everything was told; then nothing more can be gained.
    """
    reach = depth * max(mechanism.largest for mechanism, _ in moves if mechanism is not None)
    losses = grid * np.arange(-reach, reach + 1)
    stopped: NDArray[Any] = value(losses)
    found: dict[tuple[State, int], NDArray[Any]] = {}

    def best(state: State, left: int) -> NDArray[Any]:
        if (state, left) not in found:
            most = stopped
            for number, (mechanism, periods) in enumerate(moves) if left else ():
                after = follow(state, number)
                if after is None:
                    continue
                later = best(after, left - 1)
                if mechanism is not None and reads(periods, unit):
                    later = _expected(mechanism, later, told_value)
                most = np.maximum(most, later)
            found[state, left] = most
        return found[state, left]

    return float(best(start, depth)[reach])


def _expected(mechanism: Mechanism, later: NDArray[Any], told_value: float) -> NDArray[Any]:
    """The mean over the mechanism's loss; beyond the grid's ends, which no path reaches, the end stands in."""
    places = np.arange(len(later))
    total = np.full(len(later), mechanism.told * told_value)
    for loss, p in mechanism.atoms:
        total += p * later[np.clip(places + loss, 0, len(later) - 1)]
    return total
