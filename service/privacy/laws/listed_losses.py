"""Losses that are listed with their probabilities: privacy loss distributions from elsewhere, in both directions.

A distribution of one direction bounds delta(epsilon) = sum of p (1 - exp(epsilon - x))_+ over its losses x, the
infinite one included, for every epsilon >= 0. Only these bounds are used, and the laws here follow from them.

For two neighbours with laws P and Q, let G(u) be the largest P(S) - u Q(S) over events S. It is convex, G(0) = 1, and
G(1/u) = 1 - (1 - G'(u))/u for the G' of the other direction. So the bounds of both directions bound G at each
multiple of the spacing, on either side of u = 1, and at 1 the smaller one holds, which is the total variation. Their
lower convex hull is at or above G everywhere. It is the G of a pair of laws again, which therefore dominates the
mechanism, and its corners are losses: a segment A - Bu has the probabilities A and B of all losses beyond it, under P
and under Q. No bound is needed that a distribution states for its losses below 0.
"""

import heapq
import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np
from flint import arb

from service.privacy.laws.loss_laws import ListedLoss, LossMasses
from service.privacy.numerics.arithmetic import BALLS, Arithmetic, Doubles, Number, double
from service.privacy.numerics.keyed import memoised
from service.privacy.numerics.numbers import ball, ceiling, precision

_BITS = 640  # of balls for hulls, whose slopes differ by little
_RATIO, _FIRST, _HALVED = Fraction(9, 8), Fraction(1, 64), 128  # of z, between which rho is bounded; cells that are cut


class Direction(Enum):
    """The neighbour under which a loss is taken; EITHER is a law at least as bad as both."""

    REMOVE = "remove"
    ADD = "add"
    EITHER = "either"


@dataclass(frozen=True, slots=True)
class DominatingLaw:
    """The law of a loss: multiples of a spacing with exact probabilities, which sum to 1 with ``infinite``.

    Attributes:
        spacing: nats.
        keys: the multiples, ascending.
        masses: their probabilities, above 0.
        infinite: probability of an infinite loss, below 1.
        other: the probability of the same values under the other neighbour, rounded up; at most 1.
    """

    spacing: Fraction
    keys: tuple[int, ...]
    masses: tuple[Fraction, ...]
    infinite: Fraction
    other: Fraction

    @property
    def largest(self) -> Fraction:
        """The largest loss between the two neighbours, each given that the loss is finite; rounded up."""
        shift = ceiling(self._shift)
        return self.spacing * self.keys[-1] + (Fraction(0) if shift is None else shift)

    def _shift(self) -> arb:
        """Return what conditioning adds to each loss: it divides one neighbour's probabilities, and the other's."""
        return (ball(self.other) / ball(1 - self.infinite)).log()

    def log_moment(self, z: Number, at: Arithmetic) -> Number:
        """Return log E exp(zL) of the loss between the two neighbours, each given that the loss is finite.

        Both are conditioned: what holds beside a delta holds between what is left of one neighbour and of the other.

        Args:
            z: above 0.
            at: balls, or doubles where ``z`` is an array.
        """
        if at is not BALLS:
            return self._rough_log_moment(z)
        step, total, before = (-z * ball(self.spacing)).exp(), arb(0), self.keys[0]
        for key, mass in zip(self.keys, self.masses, strict=True):  # Horner's rule, relative to the largest loss
            total = total * step ** (key - before) + ball(mass)
            before = key
        return z * (ball(self.spacing * before) + self._shift()) + (total / ball(1 - self.infinite)).log()

    def _rough_log_moment(self, z: Doubles) -> Doubles:
        x = np.array([double(self.spacing * key) for key in self.keys])
        p = np.array([double(mass) for mass in self.masses])
        p = p / p.sum()
        x = x + math.log(self.other / (1 - self.infinite))
        largest = np.abs(x).max()
        return np.array(
            [
                np.log1p(p @ np.expm1(one * x))
                if one * largest < 1
                else one * x[-1] + np.log(p @ np.exp(np.maximum(one * (x - x[-1]), -745.0)))
                for one in z.tolist()
            ]
        )


def directions_of(law: ListedLoss) -> tuple[Direction, ...]:
    """Return the directions whose laws differ."""
    return (Direction.EITHER,) if law.remove == law.add else (Direction.REMOVE, Direction.ADD)


def listed_tau(law: ListedLoss, z: Number, at: Arithmetic) -> Number:
    """Return the larger tau(alpha) of both directions, given that the loss is finite; z is alpha - 1."""
    moments = [dominating(law, direction).log_moment(z, at) for direction in directions_of(law)]
    if len(moments) == 1:
        return moments[0] / z
    return (moments[0].max(moments[1]) if at is BALLS else np.maximum(*moments)) / z


@memoised(maxsize=1 << 8)
def dominating(law: ListedLoss, direction: Direction) -> DominatingLaw:
    """Return a law of losses that dominates the mechanism in one direction, or in either."""
    forward, backward = {
        Direction.REMOVE: (law.remove, law.add),
        Direction.ADD: (law.add, law.remove),
        Direction.EITHER: (law.remove, law.remove),
    }[direction]
    with precision(_BITS):
        one, other = _profile(forward, law.spacing), _profile(backward, law.spacing)
        if direction is Direction.EITHER and law.remove != law.add:
            one = other = _larger(one, _profile(law.add, law.spacing))
        step = ball(law.spacing).exp()
        corners = [(0, arb(0), arb(1))]  # the key has no meaning here
        for key in range(len(other) - 1, 0, -1):
            u = step**-key
            corners.append((-key, u, 1 - u * (1 - other[key])))
        corners.append((0, arb(1), one[0].min(other[0])))
        corners += [(key, step**key, one[key]) for key in range(1, len(one))]
        hull, tails = _hull(corners)
    infinite = law.infinite if direction is Direction.EITHER else forward.infinite
    rounded = [min(ceiling(lambda tail=tail: tail) or Fraction(1), Fraction(1)) for tail in tails]  # type: ignore[misc]
    rounded[0] = Fraction(1)
    keys, masses, above = list[int](), list[Fraction](), infinite
    for key, tail in zip(reversed(hull), reversed(rounded), strict=True):
        if tail > above:
            keys.append(key)
            masses.append(tail - above)
            above = tail
    keys, masses = keys[::-1], masses[::-1]

    def beside() -> arb:  # the probability of the same values under the other neighbour
        return sum(
            (ball(mass) * ball(-law.spacing * key).exp() for key, mass in zip(keys, masses, strict=True)), arb(0)
        )

    found = ceiling(beside)
    finite = Fraction(1) if found is None else min(found, Fraction(1))
    return DominatingLaw(law.spacing, tuple(keys), tuple(masses), infinite, finite)


def _profile(masses: LossMasses, spacing: Fraction) -> list[arb]:
    """Return delta at 0 and each multiple of the spacing up to the largest loss, by sums of positive terms."""
    step, above = (-ball(spacing)).exp(), dict(masses.above_0)
    deltas, beside = [ball(masses.infinite)], arb(0)
    for key in range(max(above, default=0), 0, -1):
        beside = beside * step + ball(above.get(key, Fraction(0)))
        deltas.append(deltas[-1] + (1 - step) * beside)
    return deltas[::-1]


def _larger(one: list[arb], two: list[arb]) -> list[arb]:
    """Return the larger of two profiles at each place; both stay at their last value."""
    return [
        (one[place] if place < len(one) else one[-1]).max(two[place] if place < len(two) else two[-1])
        for place in range(max(len(one), len(two)))
    ]


def _hull(points: list[tuple[int, arb, arb]]) -> tuple[list[int], list[arb]]:
    """Return the corners of the lower convex hull after the first one, and the probability from each loss on.

    A corner that is not certainly one is left out, which only raises the hull.
    """
    corners, slopes = [points[0]], list[arb]()
    for point in points[1:]:
        while True:
            _, u, value = corners[-1]
            slope = (point[2] - value) / (point[1] - u)
            if not slopes or slope > slopes[-1]:
                break
            corners.pop()
            slopes.pop()
        corners.append(point)
        slopes.append(slope)
    tails = [value - slope * u for (_, u, value), slope in zip(corners[1:], slopes, strict=True)]
    return [key for key, _, _ in corners[1:]], tails


def listed_rho(law: ListedLoss) -> Fraction:
    """Return the largest tau(alpha)/alpha of both directions, given that the loss is finite, rounded up.

    With K(z) the log of the moment, tau/alpha is K(z)/(z(z + 1)). K is convex, so between two orders it is at most the
    chord; far out it is at most the largest loss times z. Cells are halved where their bound is largest: 1e-9 above the
    truth is reached at a peak, and about 1e-4 where tau/alpha is flat. All of this is rational or in balls, so that
    every machine finds the same figure.
    """
    return max(_rho_of(dominating(law, direction)) for direction in directions_of(law))


def _rho_of(law: DominatingLaw) -> Fraction:
    largest = law.largest
    if largest <= 0:
        return Fraction(0)

    def moment(z: Fraction) -> Fraction:
        found = ceiling(lambda: law.log_moment(ball(z), BALLS))
        return largest * z if found is None else min(max(found, Fraction(0)), largest * z)

    cells: list[tuple[Fraction, tuple[Fraction, Fraction], tuple[Fraction, Fraction]]] = []

    def add(low: tuple[Fraction, Fraction], high: tuple[Fraction, Fraction]) -> None:
        heapq.heappush(cells, (-_largest_between(low, high), low, high))

    least, last, z = Fraction(0), (Fraction(0), Fraction(0)), _FIRST
    while last[0] == 0 or largest > least * (last[0] + 1):
        point = z, moment(z)
        add(last, point)
        least, last, z = max(least, point[1] / (z * (z + 1))), point, _short(z * _RATIO)
    for _ in range(_HALVED):
        bound, low, high = cells[0]
        middle = (low[0] + high[0]) / 2
        if -bound <= least * (1 + Fraction(1, 10**10)):
            break
        heapq.heappop(cells)
        between = middle, moment(middle)
        least = max(least, between[1] / (middle * (middle + 1)))
        add(low, between)
        add(between, high)
    return max(-cells[0][0], largest / (last[0] + 1))


def _largest_between(low: tuple[Fraction, Fraction], high: tuple[Fraction, Fraction]) -> Fraction:
    """Return the largest value of a chord of K over z(z + 1), rounded up.

    For a chord c + sz the derivative has the sign of -s z² - 2cz - c, which for c <= 0 is positive up to one z.
    """
    (a, at_a), (b, at_b) = low, high
    slope = (at_b - at_a) / (b - a)
    if a == 0 or slope <= 0:
        return slope if a == 0 else max(at_a, at_b) / (a * (a + 1))
    c = at_a - slope * a

    def rises(z: Fraction) -> bool:
        return -slope * z * z - 2 * c * z - c > 0

    if c >= 0 or not rises(a):
        return at_a / (a * (a + 1))
    if rises(b):
        return at_b / (b * (b + 1))
    shift, square = -c / slope, c * (c - slope) / slope**2

    def at_peak() -> arb:
        z = ball(shift) + ball(square).sqrt()
        return (ball(c) + ball(slope) * z) / (z * (z + 1))

    found = ceiling(at_peak)
    return at_b / (a * (a + 1)) if found is None else found


def _short(z: Fraction) -> Fraction:
    """Return about the same order with few digits."""
    return Fraction(round(z * (1 << 20)), 1 << 20)
