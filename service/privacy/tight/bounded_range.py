"""Composition of losses of which only the range is known: an adversary chooses where each lies, by the losses so far.

A loss of range e is dominated by one of two values, t and t - e, for some t between 0 and e. So the largest delta V at
epsilon = x after one more step is the largest over t, and over the ranges that are left, of

    p V(x - t) + (1 - p) V(x - t + e),  p = (exp(e) - exp(t))/(exp(e) - 1).

V is kept at the multiples of some h, of which every e is a multiple, and joined by chords in exp(x), which are upper
bounds as V is convex in exp(x). Between two multiples of t the sum is then of the form a + b T + c/T with T = exp(t),
so its largest value is known, and no t is left out (``docs/mathematics/bounded-range.md``).
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from service.privacy.laws.loss_laws import RangeLoss
from service.privacy.numerics.keyed import memoised
from service.privacy.tight.atoms import LARGEST_LOSS, TAIL, law_from_profile
from service.privacy.tight.families import Doubles
from service.privacy.tight.kernels import Grid
from service.privacy.tight.laws import Atoms, ComposedLaw, gcd
from service.privacy.tight.work_budget import CALL, NotTight, remaining_work, spend

MOST_WORK, SHARE = 1 << 23, 1 / 2
"""The most work for the ranges of a sum, and the most of what is left."""
PAIRS = 5
"""The pairs of x and t whose work is that of one number (``work_budget.spend``)."""
FINEST, COARSEST = 1 << 12, 1 << 3
"""The most and the fewest multiples in the smallest range."""
MOST_COMMON = 1 << 6
"""The ranges are rounded up to multiples of a common one, unless the smallest is at most so many times that."""
MOST_STATES = 1 << 10
CHUNKS = tuple(1 << bits for bits in range(9, -1, -1))
"""The numbers of losses of one range that are taken together if all are too many."""
POINTS = 1 << 11
"""Half of the points of the profile of one loss."""
CACHED = 1 << 15
ROUNDING = 64 * 2.0**-53
"""A bound on the relative error of the doubles in one step."""

State = tuple[int, ...]
"""The number of losses of each range."""


def worst_of_ranges(ranges: Mapping[RangeLoss, int]) -> Counter[ComposedLaw]:
    """Return laws that bound losses of some ranges, each so often, one after another in any order.

    If this would take too long, each range is taken by itself and, if its losses are too many, some of them are taken
    together. The worst laws of these are composed. This bound is up to about 2/(5c) above the truth, relatively, if c
    losses are taken together.

    Raises:
        NotTight: a range is too large, or it would take too long.
    """
    work = min(MOST_WORK, remaining_work() * SHARE)
    whole = _Induction.of(ranges, tuple(ranges.values()), work)
    if len(ranges) > 1 and whole is not None and whole.gap < _apart(max(ranges.values())):
        return whole.laws(1)
    found: Counter[ComposedLaw] = Counter()
    for law, count in ranges.items():
        some = (count, *(chunk for chunk in CHUNKS if chunk < count))
        tried = (_Induction.of({law: count}, (together,), work / len(ranges)) for together in some)
        best = min((one for one in tried if one is not None), key=lambda one: one.gap, default=None)
        if best is None:
            raise NotTight
        (together,) = best.counts
        found.update(best.laws(count // together, (count % together,)))
    return found


@dataclass(frozen=True, slots=True)
class _Induction:
    """A backward induction over the numbers of losses that are left.

    Attributes:
        h: the spacing, nats.
        sizes: the ranges, rounded up to multiples of it.
        counts: the losses of each range.
        work: as ``spend`` counts it.
        gap: about the share by which epsilon is above the truth.
    """

    h: float
    sizes: tuple[int, ...]
    counts: State
    work: float
    gap: float

    @classmethod
    def of(cls, ranges: Mapping[RangeLoss, int], counts: State, work: float) -> "_Induction | None":
        """Return the induction with the smallest spacing for some work; None if that is too coarse.

        Args:
            ranges: with the number of losses of each, from which ``counts`` are taken together.
        """
        es = [law.e for law in ranges]
        states = math.prod(count + 1 for count in counts)
        if states > MOST_STATES or max(es) > LARGEST_LOSS:
            return None
        base = reduce(gcd, es)
        if min(es) > MOST_COMMON * base:
            base = min(es)
        widths = [float(e / base) for e in es]
        reach = _reach(widths, counts, float(base))
        left = np.array([state for state in _states(counts) if sum(state) > 1]).reshape(-1, len(counts))
        pairs = float((np.minimum(left @ widths, reach) * ((left > 0) @ widths)).sum()) + 1
        finest = FINEST / min(widths)
        parts = int(min(finest, math.sqrt(max(work - CALL * states, 0) * PAIRS / pairs)))
        if parts * min(widths) < COARSEST or reach * base > LARGEST_LOSS:
            return None
        h = math.nextafter(math.nextafter(float(base), math.inf) / parts, math.inf)
        sizes = tuple(math.ceil(e * parts / base) for e in es)
        rounded = max(size / (width * parts) - 1 for size, width in zip(sizes, widths, strict=True))
        apart = 0 if counts == tuple(ranges.values()) else _apart(sum(counts))
        return cls(
            h, sizes, counts, CALL * states + pairs * parts**2 / PAIRS, rounded + 1 / (4 * min(sizes) ** 2) + apart
        )

    def laws(self, times: int, rest: State = ()) -> Counter[ComposedLaw]:
        """Return the worst law of all losses, so often, and that of other numbers of them.

        Raises:
            NotTight: it would take too long.
        """
        spend(self.work)
        wanted = (self.counts, rest) if any(rest) else (self.counts,)
        laws = _worst_laws(self.h, self.sizes, wanted)
        return Counter(dict(zip(laws, (times, 1), strict=False)))


def _apart(together: int) -> float:
    """Return about the gap where so many losses are taken together of many more, as measured."""
    return 2 / (5 * together)


def _states(counts: State) -> Iterator[State]:
    """Yield the numbers up to some counts, each after those below it."""
    return itertools.product(*(range(count + 1) for count in counts))


def _reach(widths: Sequence[float], counts: State, unit: float) -> float:
    """Return the largest loss, or that beyond which delta is negligible by rho <= e²/8; both in units."""
    rho = sum(count * (width * unit) ** 2 for width, count in zip(widths, counts, strict=True)) / 8
    largest = sum(width * count for width, count in zip(widths, counts, strict=True))
    return min(largest, (rho + 2 * math.sqrt(-rho * math.log(TAIL))) / unit)


@memoised(maxsize=32)
def _worst_laws(h: float, sizes: tuple[int, ...], wanted: tuple[State, ...]) -> list[Atoms]:
    """Return the worst laws of some numbers of losses, the largest first."""
    steps = [_Step.of(h, size) for size in sizes]
    most = math.ceil(_reach(sizes, wanted[0], h))
    kept = math.prod(count + 1 for count in wanted[0][1:])
    profiles: dict[State, Doubles] = {}
    laws: dict[State, Atoms] = {}
    for state in _states(wanted[0]):
        multiples = sum(size * count for size, count in zip(sizes, state, strict=True))
        number, e, points = sum(state), h * multiples, min(multiples, most)
        if number == 1:
            found = _profile_of_one(e, np.maximum(e - h * np.arange(points + 1.0), 0.0))
        else:
            reached = [
                step.before(profiles[(*state[:k], state[k] - 1, *state[k + 1 :])], points)
                for k, step in enumerate(steps)
                if state[k]
            ]
            found = np.maximum.reduce(reached) if reached else np.zeros(1)
        if len(profiles) > kept:
            del profiles[next(iter(profiles))]
        profiles[state] = found
        if state in wanted:
            bound = np.minimum(found * (1 + number * ROUNDING), 1.0)
            laws[state] = _law_of_one(e) if number == 1 else law_from_profile(h * np.arange(points + 1.0), bound, h)
    return [laws[state] for state in wanted]


def _profile_of_one(e: float, rest: Doubles) -> Doubles:
    """Return the profile of one loss at e - rest."""
    return np.asarray(np.expm1(-rest / 2) ** 2 / -math.expm1(-e))


def _law_of_one(e: float) -> Atoms:
    """Return the law of one loss, whose profile is known everywhere; its points are closer the nearer they are to e."""
    e = math.nextafter(e, math.inf)
    rest = np.union1d(np.linspace(0, 1, POINTS + 1), np.geomspace(1e-9, 1, POINTS))[::-1] * e
    return law_from_profile(e - rest, _profile_of_one(e, rest) * (1 + ROUNDING))


@dataclass(frozen=True, slots=True)
class _Step:
    """One loss on a grid.

    Attributes:
        h: the spacing, nats.
        m: the range in multiples of it.
        larger: the probability of t, for t = e, e - h, ..., 0.
        smaller: that of t - e.
    """

    h: float
    m: int
    larger: Doubles
    smaller: Doubles

    @classmethod
    def of(cls, h: float, m: int) -> "_Step":
        """Return the step of a range of m multiples."""
        rest = h * np.arange(m + 1.0)
        lost = math.expm1(-h * m)
        return cls(h, m, np.expm1(-rest) / lost, np.exp(-rest) * np.expm1(-rest[::-1]) / lost)

    def before(self, after: Doubles, points: int) -> Doubles:
        """Return the profile of this loss with those that follow, at the multiples from 0 to ``points``.

        Args:
            after: the profile of those that follow; beyond its last multiple it is bounded by its last value.
        """
        m, h = self.m, self.h
        after = np.pad(after, (0, max(0, m + 1 - len(after))), "edge")
        around = Grid(h, len(after) - 1).extended(after, m, points + m + 1 - len(after))
        w, growth, lost = math.expm1(h), math.exp(h), -math.expm1(-h * m)
        slope = np.diff(around) / w  # of the chord from each multiple on, over exp(x), times exp of the multiple
        bend = growth * (slope[:-m] - math.exp(-h * m) * slope[m:]) / lost  # c, at most 0
        values, bends = sliding_window_view(around, m + 1), sliding_window_view(bend, m)
        found = np.empty(points + 1)
        rows = max(1, CACHED // (m + 1))
        for start in range(0, points + 1, rows):
            end = min(start + rows, points + 1)
            sums = values[start:end] * self.larger
            sums += values[start + m : end + m] * self.smaller
            best = sums.max(axis=1)
            # from t = e - qh up to t + h the sum grows by at most -c w²: only near the largest may one be larger
            row, q = np.nonzero(sums[:, 1:] - w * w * bends[start:end] >= best[:, None])
            at, q = row + start + q, q + 1
            share, below = np.exp(-h * q), np.expm1(-h * q) * slope[at]
            above = around[at + 1 + m] - around[at + 1] + growth * np.expm1(-h * (m - q)) * slope[at + m]
            rise = (share * above + growth * below) / lost  # b + c, the slope at t
            left = bend[at] + rise
            with np.errstate(all="ignore"):
                further = -rise / (left * (1 + np.sqrt(bend[at] / left)))
                inside = (rise > 0) & (left < 0) & (further < w)
                top = sums[row, q] - bend[at] * np.where(inside, further / (1 + further), 0.0) ** 2
            np.maximum.at(best, row, top)
            found[start:end] = best
        return np.minimum(found, 1.0)
