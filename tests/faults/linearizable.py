"""Linearizability check of one account's recorded history: a counter under a cap that numbers its changes.

The model, executed one operation at a time: a state is a list of changes, of which each is one or more journal
entries. A write adds its entries at the end and is told their numbers, if the total stays within the cap after it;
else it is refused, told what is left, and changes nothing. A read is told how many entries there are and the total.
A history is linearizable if its operations can be put into one order in which the model gives these very answers,
and in which whatever was answered before another was asked comes before it.

The algorithm. Writes are told their numbers, so their order is known: no other order gives these answers. It is
right if the entries have no gap, if no total passes the cap, and if no write was answered before one with smaller
numbers was asked. What remains is to place each read and refusal after some number of writes. Where it may stand is
bounded from below by the last write that was answered before it was asked, from above by the first that was asked
after it was answered, and restricted to those totals that explain its answer. Taken in the order in which they were
asked, each is put at the least place that is allowed and not before one that was answered before it was asked.

Sound: the places respect all of these bounds, and at one place operations stand in the order in which they were
asked, so the order that comes out is a linearization. Complete: the places found are the least possible ones. By
induction over the order of asking, every linearization puts each operation at this place or later, since what bounds
it from below are writes, whose places are given, and operations that were answered, hence asked, before; so where
the least place is above the upper bound, there is no linearization.

Operations whose answers were lost are writes with the numbers that the journal shows, unanswered for ever, or, where
the journal has nothing of them, no operations at all: a lost request need not take effect.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Write:
    """Entries ``first`` to ``last``, which changed the total by ``cost``; negative where something was given back."""

    asked: float
    answered: float  # NEVER: the answer was lost
    first: int
    last: int
    cost: Fraction


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write of ``cost`` that did not fit; ``remaining`` is what its answer said was left, rounded down."""

    asked: float
    answered: float
    cost: Fraction
    remaining: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A read value: the number of the last entry, and the total."""

    asked: float
    answered: float
    seq: int
    total: Fraction


def fault(cap: Fraction, writes: Sequence[Write], others: Sequence[Read | Refusal]) -> str | None:
    """Return the reason why a history has no linearization, or None where it has one."""
    order = sorted(writes, key=lambda write: write.first)
    totals = [Fraction(0)]
    latest = -math.inf
    for write in order:
        expected = order[len(totals) - 2].last + 1 if len(totals) > 1 else 1
        if write.first != expected:
            return f"entry {expected} is of no operation, or of two"
        totals.append(totals[-1] + write.cost)
        if write.cost > 0 and totals[-1] > cap:
            return f"entry {write.last} takes the total to {totals[-1]}, above the cap"
        if write.answered < latest:
            return f"entry {write.first} was answered before one with a smaller number was asked"
        latest = max(latest, write.asked)
    return _misplaced(cap, order, totals, others)


def _misplaced(
    cap: Fraction, order: Sequence[Write], totals: Sequence[Fraction], others: Sequence[Read | Refusal]
) -> str | None:
    # Bounds by time: the largest place of a write answered before a moment, the smallest of one asked after it.
    answers = _running(((write.answered, place) for place, write in enumerate(order, 1)), max)
    questions = _running(((-write.asked, place) for place, write in enumerate(order, 1)), min)
    placed: list[tuple[float, int]] = []  # a heap: when the operations placed so far were answered, and where they are
    passed = 0  # the last place of those that were answered before this one was asked
    for one in sorted(others, key=lambda one: one.asked):
        while placed and placed[0][0] < one.asked:
            passed = max(passed, heappop(placed)[1])
        least = max(passed, _before(answers, one.asked, 0))
        most = _before(questions, -one.answered, len(order) + 1) - 1
        place = next((k for k in range(least, most + 1) if _explains(one, k, order, totals, cap)), None)
        if place is None:
            return f"nothing between {least} and {most} writes explains {one}"
        heappush(placed, (one.answered, place))
    return None


def _explains(
    one: Read | Refusal, place: int, order: Sequence[Write], totals: Sequence[Fraction], cap: Fraction
) -> bool:
    if isinstance(one, Read):
        return (order[place - 1].last if place else 0, totals[place]) == (one.seq, one.total)
    left = cap - totals[place]
    return one.cost > left and (one.remaining is None or rounded_down(left) == one.remaining)


_Steps = tuple[list[float], list[int]]


def _running(points: Iterable[tuple[float, int]], choose: Callable[[int, int], int]) -> _Steps:
    """Moments in order, each with the chosen of all places up to it."""
    moments: list[float] = []
    places: list[int] = []
    for moment, place in sorted(points):
        moments.append(moment)
        places.append(choose(places[-1], place) if places else place)
    return moments, places


def _before(steps: _Steps, moment: float, otherwise: int) -> int:
    """The place that was chosen of all that lie strictly before a moment."""
    number = bisect_left(steps[0], moment)
    return steps[1][number - 1] if number else otherwise


def rounded_down(value: Fraction) -> float:
    """The largest double that is not above a value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
