"""Composition of losses of which only the range is known: an adversary chooses where each lies, by the losses so far.

A loss of range e is dominated by one of two values, t and t - e, for some t between 0 and e. So the largest delta V at
epsilon = x after one more step is the largest over t of

    p V(x - t) + (1 - p) V(x - t + e),  p = (exp(e) - exp(t))/(exp(e) - 1).

After the first step it is (exp(e/2) - exp(x/2))²/(exp(e) - 1). V is kept at the multiples of h = e/m and joined by
chords in exp(x), which are upper bounds as V is convex in exp(x). Between two multiples of t the sum is then of the
form a + b T + c/T with T = exp(t), so its largest value is known, and no t is left out
(``docs/mathematics/bounded-range.md``).
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from service.privacy.laws.loss_laws import RangeLoss
from service.privacy.tight.atoms import LARGEST_LOSS, TAIL, law_from_profile
from service.privacy.tight.families import Doubles
from service.privacy.tight.kernels import Grid
from service.privacy.tight.laws import Atoms, ComposedLaw
from service.privacy.tight.work_budget import NotTight, remaining_work, spend

MOST_WORK, SHARE = 1 << 23, 1 / 2
"""The most work for one range, and the most of what is left for all ranges of a sum."""
PAIRS = 5
"""The pairs of x and t whose work is that of one number (``work_budget.spend``)."""
FINEST, COARSEST = 1 << 12, 1 << 3
"""The most and the fewest multiples in a range."""
CHUNKS = tuple(1 << bits for bits in range(10, -1, -1))
"""The numbers of steps that are taken together if all are too many."""
POINTS = 1 << 11
"""Half of the points of the profile of one step."""
CACHED = 1 << 15
ROUNDING = 64 * 2.0**-53
"""A bound on the relative error of the doubles in one step."""


def worst_of_ranges(law: RangeLoss, count: int, kinds: int) -> Counter[ComposedLaw]:
    """Return laws that bound ``count`` losses of a range, one after another.

    If these are too many, some are taken together, and the worst law of these is composed. This bound is about 1/(6c)
    above the truth, relatively, if c are taken together.

    Args:
        law: the range.
        count: at least 1.
        kinds: the number of ranges in the sum, which share the work that is left.

    Raises:
        NotTight: the range is too large, or it would take too long.
    """
    if law.e > LARGEST_LOSS:
        raise NotTight
    e, work = float(law.e), min(MOST_WORK, remaining_work() * SHARE / kinds)
    together, m = min(_choices(e, count, work), key=lambda choice: _gap(choice[0], choice[1], count), default=(0, 0))
    if not together:
        raise NotTight
    spend(_pairs(e, together) * m * m / PAIRS)
    times = {together: count // together, count % together: 1}
    laws = _worst_laws(e, m, tuple(number for number in times if number))
    return Counter({one: times[number] for number, one in laws.items()})


def _choices(e: float, count: int, work: float) -> Iterator[tuple[int, int]]:
    """Yield numbers of steps that may be taken together, each with the largest m that is not too much work."""
    for together in (count, *(chunk for chunk in CHUNKS if chunk < count)):
        m = min(FINEST, math.isqrt(int(work * PAIRS / _pairs(e, together))))
        if m >= COARSEST and _reach(e, together) * e <= LARGEST_LOSS:
            yield together, m


def _pairs(e: float, count: int) -> float:
    """Return about the number of pairs of x and t for so many steps, each of as many ranges as it can reach."""
    reach = _reach(e, count)
    return reach * (count - reach / 2 + 1)


def _reach(e: float, count: int) -> int:
    """Return the number of ranges beyond which delta is negligible, by rho <= e²/8."""
    rho = e * e / 8 * count
    return min(count, math.ceil((rho + 2 * math.sqrt(-rho * math.log(TAIL))) / e))


def _gap(together: int, m: int, count: int) -> float:
    """Return about the share by which the bound is above the truth."""
    return 1 / (4 * m * m) + (1 / (6 * together) if together < count else 0)


@lru_cache(maxsize=32)
def _worst_laws(e: float, m: int, numbers: tuple[int, ...]) -> dict[int, Atoms]:
    """Return the worst law of some numbers of steps, by the number."""
    wanted = set(numbers)
    laws = {1: _law_of_one(e)} if 1 in wanted else {}
    steps = _Steps.of(e, m)
    grid, profile = Grid(steps.h, m), steps.first()
    for number in range(2, max(wanted) + 1):
        grid, profile = steps.before(grid, profile, _reach(e, max(wanted)) * m)
        if number in wanted:
            laws[number] = law_from_profile(
                grid.places, np.minimum(profile * (1 + number * ROUNDING), 1.0), grid.spacing
            )
    return laws


def _law_of_one(e: float) -> Atoms:
    """Return the law of one step, whose profile is known everywhere; its points are closer the nearer they are to e."""
    e = math.nextafter(e, math.inf)
    rest = np.union1d(np.linspace(0, 1, POINTS + 1), np.geomspace(1e-9, 1, POINTS))[::-1] * e
    return law_from_profile(e - rest, np.expm1(-rest / 2) ** 2 / -math.expm1(-e) * (1 + ROUNDING))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one range.

    Attributes:
        h: the range is m of them.
        m: the number of multiples in the range.
        larger: the probability of t, for t = e, e - h, ..., 0.
        smaller: that of t - e.
    """

    h: float
    m: int
    larger: Doubles
    smaller: Doubles

    @classmethod
    def of(cls, e: float, m: int) -> "_Steps":
        """Return the steps of a range that is rounded up to m multiples of a double."""
        h = math.nextafter(math.nextafter(e, math.inf) / m, math.inf)
        rest = h * np.arange(m + 1.0)
        lost = math.expm1(-h * m)
        return cls(h, m, np.expm1(-rest) / lost, np.exp(-rest) * np.expm1(-rest[::-1]) / lost)

    def first(self) -> Doubles:
        """Return the profile of one step at 0, h, ..., e."""
        rest = self.h * np.arange(self.m, -1.0, -1.0)
        return np.asarray(np.expm1(-rest / 2) ** 2 / -math.expm1(-self.h * self.m))

    def before(self, grid: Grid, profile: Doubles, most: int) -> tuple[Grid, Doubles]:
        """Return the profile of one step more, and its grid.

        Args:
            grid: of the profile.
            profile: of the steps that follow.
            most: points of the grid; beyond the last, the profile is bounded by a constant.
        """
        m, h = self.m, self.h
        wider = Grid(h, min(grid.points + m, most))
        around = grid.extended(profile, m, wider.points - grid.points + m)
        w, growth, lost = math.expm1(h), math.exp(h), -math.expm1(-h * m)
        slope = np.diff(around) / w  # of the chord from each multiple on, over exp(x), times exp of the multiple
        bend = growth * (slope[:-m] - math.exp(-h * m) * slope[m:]) / lost  # c, at most 0
        values, bends = sliding_window_view(around, m + 1), sliding_window_view(bend, m)
        found = np.empty(wider.points + 1)
        rows = max(1, CACHED // (m + 1))
        for start in range(0, wider.points + 1, rows):
            end = min(start + rows, wider.points + 1)
            sums = values[start:end] * self.larger
            sums += values[start + m : end + m] * self.smaller
            best = sums.max(axis=1)
            # from t = e - qh up to t + h the sum grows by at most -c w²: only near the largest may one be larger
            row, q = np.nonzero(sums[:, 1:] - w * w * bends[start:end] >= best[:, None])
            at, q = row + start + q, q + 1
            share, below = np.exp(-h * q), np.expm1(-h * q) * slope[at]
            above = around[at + 1 + m] - around[at + 1] + growth * np.expm1(-h * (m - q)) * slope[at + m]
            rise = (share * above + growth * below) / lost
            left = bend[at] + rise
            with np.errstate(all="ignore"):
                further = -rise / (left * (1 + np.sqrt(bend[at] / left)))
                inside = (rise > 0) & (left < 0) & (further < w)
                top = sums[row, q] - bend[at] * np.where(inside, further / (1 + further), 0.0) ** 2
            np.maximum.at(best, row, top)
            found[start:end] = best
        return wider, np.minimum(found, 1.0)
