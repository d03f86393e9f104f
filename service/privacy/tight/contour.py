"""delta(epsilon) of a composition by summing along a vertical line of the complex plane.

f(x) = delta(x) exp(cx) has the Fourier transform M(z)/(z(z+1)), M = exp K, z = c + it, for every c > 0. By Poisson's
summation, the trapezoid rule with step h is *exactly* the sum over all integers j of delta(epsilon + jP) exp(cjP), P =
2 pi/h. These terms are never negative, so the discretisation can only make the answer larger. It does so by little,
because they fall geometrically. Bounds on what is cut off and on rounding are added.

If all losses lie on one lattice x0 + dZ, the integrand has the period 2 pi/d, and 1/(z(z+1)) is replaced by the sum
over the lattice points x >= epsilon of exp(z(epsilon-x)) (1 - exp(epsilon-x)). All else stays as it is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from service.privacy.tight.families import UNIT, Complexes, Doubles, Family, expm1
from service.privacy.tight.work_budget import spend

NEGLIGIBLE = 34.0  # nats: 2e-15
ALIASED = 27.0  # nats by which the repetitions of the trapezoid rule must be below the answer
SMALL_BLOCK = 1 << 18  # numbers in one array
FEW_POINTS = 256  # points of a line that are not worth dropping one by one


@dataclass(frozen=True, slots=True)
class Lattice:
    """A lattice x0 + dZ on which all losses lie; exact rationals, nats."""

    offset: Fraction
    spacing: Fraction

    def above(self, epsilons: Doubles) -> Doubles:
        """Return the distance from each epsilon to the first lattice point above it.

        Returns:
            Nats, one double for each epsilon, above 0 and at most the spacing.
        """
        off = [(self.offset - Fraction(epsilon)) % self.spacing or self.spacing for epsilon in epsilons.tolist()]
        return np.array([float(one) for one in off])


@dataclass(frozen=True, eq=False, slots=True)
class LossComposition:
    """Independent losses: members of families, and continuous Gaussians of total ``rho``.

    Attributes:
        lattice: the one on which all losses lie, if there is one; rho is then 0.
    """

    families: tuple[Family, ...]
    rho: float = 0.0
    lattice: Lattice | None = None

    def cumulant(self, c: Doubles) -> Doubles:
        """Return K at real c.

        Args:
            c: each above 0.

        Returns:
            One double for each c.

        Raises:
            NotTight: it would take too long.
        """
        total = self.rho * c * (c + 1)
        for family in self.families:
            step = max(1, SMALL_BLOCK // len(c))
            for start in range(0, len(family.count), step):
                piece = family.take(np.arange(start, min(start + step, len(family.count))))
                spend(len(piece.count) * len(c) * piece.cost)
                total = total + piece.count @ piece.cumulant(c)
        return np.asarray(total)

    def error(self, at_c: float) -> float:
        """Return the scale of the error of K(c), to be multiplied by ``UNIT``; sums of many members lose more."""
        members = sum(len(family.count) for family in self.families)
        return at_c * (1 + members / 64) + float(sum(family.count @ family.floor for family in self.families))


@dataclass(frozen=True, slots=True)
class ContourLine:
    """M along c + it, t = 0, h, 2h, ..., which serves every epsilon near the one for which c was chosen.

    Attributes:
        at_c: K(c).
        uncertain: the error of ``at_c`` is below UNIT times this.
        h: step in t.
        t, change, error: the points that matter, K(c+it) - K(c) there, and the scale of its error.
        left_out: bound on the sum, over all other points, of |M(c+it)/M(c)| times the kernel relative to its value at t
            = 0, which is the largest; times h/pi.
    """

    c: float
    at_c: float
    uncertain: float
    h: float
    t: Doubles
    change: Complexes
    error: Doubles
    left_out: float
    lattice: Lattice | None

    def _kernels(self, epsilons: Doubles) -> tuple[Complexes, Complexes]:
        """Return the factors of exp(K(z) - z epsilon) for delta(epsilon) and for its slope.

        Returns:
            Arrays with a row for each t and a column for each epsilon.
        """
        z = (self.c + 1j * self.t)[:, None]
        if self.lattice is None:
            return np.asarray(1 / (z * (z + 1))), np.asarray(-1 / (z + 1))
        y, d = self.lattice.above(epsilons), float(self.lattice.spacing)
        angle, decay = -self.t * d, np.full_like(self.t, -self.c * d)
        step, last = expm1(decay, angle)[:, None], -expm1(decay - d, angle)[:, None]  # last: 1 - exp(-(z+1)d)
        first = -np.expm1(-y) - (step + 1) * (np.exp(-y) * np.expm1(y - d))
        at_first = np.exp(-z * y) * d
        return np.asarray(-at_first * first / (step * last)), np.asarray(-at_first * np.exp(-y) / last)

    def log_deltas(self, epsilons: Doubles) -> tuple[Doubles, Doubles]:
        """Return upper bounds on log delta at each epsilon, and about their slopes; infinite if doubles are too coarse.

        Args:
            epsilons: nats.

        Raises:
            NotTight: it would take too long.
        """
        spend(len(self.t) * len(epsilons))
        kernel, falling = self._kernels(epsilons)
        turned = np.exp(self.change[:, None] - 1j * np.outer(self.t, epsilons))
        weights = np.full(len(self.t), self.h / math.pi)
        weights[0] /= 2
        terms = turned * kernel
        error = self.error[:, None] + np.outer(self.t, epsilons) + 3
        uncertain = UNIT * (weights @ (np.abs(terms) * error))
        value = np.multiply(terms.real.T, weights, order="C").sum(axis=1)  # pairwise: it loses a few units at most
        upper = value + uncertain + self.left_out * kernel[0].real
        slope = (weights @ (turned * falling).real) / np.maximum(value, upper / 2)
        margin = UNIT * (abs(self.at_c) + self.c * epsilons + self.uncertain + 1)
        log_upper = np.where((upper > 0) & (upper < math.inf), np.log(np.maximum(upper, 1e-320)), math.inf)
        return np.asarray(self.at_c - self.c * epsilons + log_upper + margin), np.asarray(slope)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Return an upper bound on log delta at one epsilon, and about its slope; infinite if digits run out."""
        value, slope = self.log_deltas(np.array([epsilon]))
        return float(value[0]), float(slope[0])

    def smoothed(self, rho: float) -> "ContourLine":
        """Return the line with one more continuous Gaussian in the composition.

        Args:
            rho: of the added Gaussian, nats.
        """
        more = rho * (1j * self.t * (2 * self.c + 1) - self.t * self.t)
        return replace(self, change=self.change + more, at_c=self.at_c + rho * self.c * (self.c + 1))


def sketch_of(composition: LossComposition) -> LossComposition:
    """Return a rough copy of a composition with fewer numbers, for the choice of a line and never for a figure."""
    return replace(composition, families=tuple(family.thinned() for family in composition.families))


@lru_cache(maxsize=8)  # a search calls it again at its present epsilon
def best_c(cumulant: LossComposition, epsilon: float) -> float:
    """Return the c > 0 near which exp(K(c) - c epsilon)/(c(c+1)) is least, where the line passes the saddle point.

    Args:
        epsilon: nats.
    """

    def objective(log_c: Doubles) -> Doubles:
        c = np.exp(log_c)
        with np.errstate(all="ignore"):
            value = cumulant.cumulant(c) - c * epsilon - log_c - np.log1p(c)
        return np.asarray(np.where(np.isnan(value), np.inf, value))

    return _minimising_c(objective)


def chernoff(cumulant: LossComposition, log_delta: float) -> float:
    """Return a rough least epsilon of delta <= exp(K(c) - c epsilon) c^c/(1+c)^(1+c) over c: a starting point.

    Args:
        log_delta: log of the delta, below 0.

    Returns:
        Nats, at least 0, on either side of a bound.
    """

    def objective(log_c: Doubles) -> Doubles:
        c = np.exp(log_c)
        with np.errstate(all="ignore"):
            value = (cumulant.cumulant(c) - log_delta + c * log_c - (1 + c) * np.log1p(c)) / c
        return np.asarray(np.where(np.isnan(value), np.inf, value))

    best = _minimising_c(objective)
    return max(0.0, float(objective(np.array([math.log(best)]))[0]))


def _minimising_c(objective: Callable[[Doubles], Doubles]) -> float:
    low, high, points = -14.0, 80.0, 48
    while True:
        x = np.linspace(low, high, points)
        place = int(np.argmin(objective(x)))
        step = (high - low) / (points - 1)
        if step < 0.02:
            return math.exp(x[place])
        low, high, points = x[place] - step, x[place] + step, 12


def period(cumulant: LossComposition, c: float, epsilon: float) -> float:
    """Return a period P so long that the repetitions are below exp(-ALIASED) of the answer.

    delta(x) is at most exp(K(b) - bx) for every b >= 0, so the repetition at epsilon ± P is below exp(K(b) - b epsilon
    -+ (b - c)P) for each b on the right side of c.

    Args:
        c: of the line.
        epsilon: nats.

    Returns:
        Nats; infinite if none is known to be long enough.
    """
    b = c * np.array([0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 3.0, 6.0])
    with np.errstate(all="ignore"):
        k = cumulant.cumulant(np.append(b, c))
        k, at_c = k[:-1], float(k[-1])
        width = np.sqrt(max(float(k[3] + k[4] - 2 * at_c), 0.0)) / (0.17 * c) if math.isfinite(k[4]) else 1.0
        needed = ALIASED + math.log1p((1 + c) * (1 + c * width))
        periods = (k - at_c - (b - c) * epsilon + needed) / np.abs(b - c)
    periods = np.where(np.isfinite(periods), periods, np.inf)
    below = min(float(periods[:4].min()), float(needed - at_c + c * epsilon) / c)
    above = float(periods[4:].min())
    return max(below, above) if math.isfinite(above) else below


_Points = tuple[Doubles, Complexes, Doubles]
"""t, K(c+it) - K(c), and the scale of its error."""


class _MemberQueue:
    """The members of families in pieces, the widest losses first, so that most points soon become negligible."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = [
            family.take(np.argsort(-family.count * family.spread**2, kind="stable")) for family in families
        ]
        self._taken = [0] * len(families)

    def next(self, how_many: int) -> Family | None:
        """Return at most ``how_many`` members of the family with the fewest taken; None if none are left."""
        waiting = [(taken, k) for k, taken in enumerate(self._taken) if taken < len(self._families[k].count)]
        if not waiting:
            return None
        taken, k = min(waiting)
        family = self._families[k]
        self._taken[k] = min(taken + how_many, len(family.count))
        return family.take(np.arange(taken, self._taken[k]))


def trace_line(composition: LossComposition, c: float, h: float, points: int, beyond: float) -> ContourLine:
    """Evaluate M at t = 0, h, ..., h*(points-1); points where it is negligible are left out, with a bound on them.

    Args:
        c: where the line crosses the real axis, above 0.
        h: step in t.
        points: their number.
        beyond: bound on the part of ``left_out`` that lies at larger t.

    Raises:
        NotTight: it would take too long.
    """
    block = 1 << 14
    pieces: list[_Points] = []
    left_out = beyond
    for start in range(0, points, block):
        kept, dropped = _trace_points(composition, c, np.asarray(h * np.arange(start, min(start + block, points))))
        pieces.append(kept)
        left_out += dropped * h / math.pi
    t, change, error = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    at_c = float(composition.cumulant(np.array([c]))[0])
    return ContourLine(c, at_c, composition.error(at_c), h, t, change, error, left_out, composition.lattice)


def _trace_points(composition: LossComposition, c: float, t: Doubles) -> tuple[_Points, float]:
    kernel = np.zeros_like(t)  # log of the kernel's size, relative to that at t = 0
    if composition.lattice is None:
        kernel = -np.log(np.abs((1 + 1j * t / c) * (1 + 1j * t / (c + 1))))
    change: Complexes = np.asarray(composition.rho * (1j * t * (2 * c + 1) - t * t))
    error: Doubles = np.abs(change)
    dropped = 0.0
    members = _MemberQueue(composition.families)
    looked_at = 0
    while len(t):
        level = change.real + kernel
        small = level < -NEGLIGIBLE
        if small.any():  # every further factor is at most 1, so that these points stay negligible
            dropped += float(np.exp(level[small]).sum()) * (1 + 1e-6)
            t, kernel, change, error = t[~small], kernel[~small], change[~small], error[~small]
            continue
        room = max(1, SMALL_BLOCK // len(t))
        family = members.next(room if len(t) <= FEW_POINTS else min(room, max(2, looked_at)))
        if family is None:
            break
        spend(len(family.count) * len(t) * family.cost)
        more, uncertain = family.along_line(c, t)
        looked_at += len(family.count)
        with np.errstate(over="ignore", invalid="ignore"):
            change = change + family.count @ more
            error = error + (1 + len(family.count) / 32) * (family.count @ uncertain)  # of the sums, too
    return (t, change, error), dropped
