"""Cumulant functions K(z) = log E exp(zL) of privacy losses L, for many mechanisms of one kind at once.

All but atoms is symmetric in the two neighbours, which is K(z) = K(-1-z). Formulas are written in w = z + 1/2, in which
they are even. Along a line z = c + it, K(c+it) - K(c) is computed directly and not by a subtraction, so that a thousand
million repetitions of a tiny loss keep their digits.
"""

from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Complexes = NDArray[np.complex128]
UNIT = 64 * 2.0**-53
"""An error of a cumulant function is below this times the figure that comes with it (64 is above what tests find)."""


class Family(Protocol):
    """Mechanisms of one kind: arrays over the members, with the number of times that each is composed."""

    @property
    def count(self) -> Doubles: ...

    @property
    def cost(self) -> int:
        """The work for a value of one member, as a multiple of that of a short formula (``work_budget.spend``)."""

    @property
    def spread(self) -> Doubles:
        """The rough size of each member's loss, nats; those with the largest are evaluated first."""

    @property
    def floor(self) -> Doubles:
        """The error of each member's K(c) is below ``UNIT`` times the sum of |K(c)| and this."""

    def cumulant(self, c: Doubles) -> Doubles:
        """Return K(c) of each member (rows) at each real c > 0 (columns)."""

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        """Return K(c+it) - K(c) of each member (rows) at each t, modulo 2 pi i, and the scale of its error.

        The error is below ``UNIT`` times the second figure.
        """

    def take(self, members: NDArray[np.intp]) -> Self: ...

    def thinned(self) -> Self:
        """Return a rough copy with few numbers."""


FEW_MEMBERS = 64


@dataclass(frozen=True, slots=True)
class FamilyMembers:
    """Arrays over the members of a family."""

    count: Doubles

    @property
    def cost(self) -> int:
        """That of a short formula."""
        return 1

    @property
    def spread(self) -> Doubles:
        """Defined by each kind."""
        raise NotImplementedError

    def take(self, members: NDArray[np.intp]) -> Self:
        """Return some of the members, by their places."""
        return replace(self, **{field.name: getattr(self, field.name)[members] for field in fields(self)})

    def thinned(self) -> Self:
        """Return few members, each for those of nearly its spread; their counts keep the sum of squared spreads."""
        spread = self.spread
        if len(spread) <= FEW_MEMBERS:
            return self
        edges = np.geomspace(spread.min(), spread.max(), FEW_MEMBERS)
        _, first, group = np.unique(np.searchsorted(edges, spread), return_index=True, return_inverse=True)
        chosen = self.take(first)
        return replace(chosen, count=np.bincount(group, self.count * spread**2) / chosen.spread**2)


def log_1p(x: Doubles, y: Doubles) -> Complexes:
    """Return log(1 + x + iy), relatively accurate for small arguments; at least -230 at a zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        modulus = np.where(x < -0.5, np.log(np.maximum((1 + x) ** 2 + y * y, 1e-200)), np.log1p(x * (2 + x) + y * y))
    return np.asarray(modulus / 2 + 1j * np.arctan2(y, 1 + x))


def expm1(x: Doubles, y: Doubles) -> Complexes:
    """Return exp(x + iy) - 1."""
    half = np.sin(y / 2)
    return np.asarray(np.expm1(x) * np.cos(y) - 2 * half * half + 1j * np.exp(x) * np.sin(y))


def cumulant_error(size: Complexes, angle: Doubles) -> Doubles:
    """Return the scale of a cumulant's error: its size and, beyond half a radian, that of the angle.

    The error of an angle is u*angle, and exp(K) moves by at most as much. Relative to exp(K), it is divided by
    |exp(K)|.

    Args:
        size: K(c+it) - K(c), members in rows, t in columns.
        angle: the largest angle of a term, in radians, of the same shape.

    Returns:
        The scale of the error, to be multiplied by ``UNIT``.
    """
    if angle.max(initial=0.0) <= 0.5:
        return np.abs(size)
    inverse_size = np.exp(np.minimum(-size.real, 300.0))  # beyond, exp(K) itself is negligible
    return np.asarray(np.abs(size) + np.where(angle > 0.5, (1 + angle) * inverse_size, 0.0))


@dataclass(frozen=True, slots=True)
class Ladders(FamilyMembers):
    """Losses on the rungs -e, -e + 2e/s, ..., e: exp(L/2)-shaped, with heavier ends.

    exp(K) is proportional to 2 cosh(ew) + inner * sinh(e w (s-1)/s)/sinh(e w/s). The geometric mechanism with
    q = exp(-1/b) has e = s/b and inner = 1-q (at x of 0..s the loss is (s-2x)/b; left and right of them it is
    -e and e); k-valued randomised response has s = 2 rungs apart and inner = (k-2) exp(-e/2); two-valued, s = 1.
    """

    e: Doubles
    s: Doubles
    inner: Doubles

    @property
    def spread(self) -> Doubles:
        return self.e

    @property
    def floor(self) -> Doubles:
        return np.where(self.s > 1, 1.0, 0.0)

    def _rungs(self, a: Doubles) -> Doubles:
        """Return exp(-ea) times the sum of exp(aL) over the inner rungs, for real a."""
        step = (self.e / self.s)[:, None] * a
        with np.errstate(invalid="ignore", divide="ignore"):
            inside = np.exp(-2 * step) * np.expm1(-2 * (self.s - 1)[:, None] * step) / np.expm1(-2 * step)
        return np.asarray(np.where(self.s[:, None] > 1, inside * self.inner[:, None], 0.0))

    def cumulant(self, c: Doubles) -> Doubles:
        e, half = self.e[:, None], np.array([0.5])
        inside, inside_half = self._rungs(c + 0.5), self._rungs(half)
        small = np.minimum(e * c, 1.0)
        bottom = 1 + np.exp(-e) + inside_half
        ends = -np.expm1(-(small + e)) * np.expm1(small)  # 2 cosh(ea) - 2 cosh(e/2), by exp(-e/2)
        more = np.where(self.s[:, None] > 2, inside * np.exp(small) - inside_half, 0.0)  # nothing for one inner rung
        near = np.log1p((ends + more) / bottom)
        far = e * c + np.log((1 + np.exp(-2 * e * (c + 0.5)) + inside) / bottom)
        return np.asarray(np.where(e * c < 1, near, far))

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        a, e = c + 0.5, self.e[:, None]
        down = np.exp(-2 * e * a)
        sine, cosine = np.sin(e * t / 2), np.cos(e * t / 2)
        inside = self._rungs(np.array([a]))
        x, y = -2 * (1 + down) * sine * sine, -2 * np.expm1(-2 * e * a) * sine * cosine
        many = bool((self.s > 2).any())
        if many:
            step, s = e / self.s[:, None], self.s[:, None]
            angle = step * t
            top = expm1(-2 * (s - 1) * step * a + 0 * t, -2 * (s - 1) * angle)
            bottom = expm1(-2 * step * a + 0 * t, -2 * angle)
            rungs = self.inner[:, None] * np.exp(-2 * step * a) * np.exp(1j * (s - 2) * angle) * top / bottom
            rungs = np.where(s > 1, rungs, 0.0) - inside
            x, y = x + rungs.real, y + rungs.imag
        total = 1 + down + inside
        size = log_1p(x / total, y / total)
        error = cumulant_error(size, e * t)
        if many:  # the quotient of two numbers near 0 where exp(-2ew/s) is near 1
            error = (
                error
                + (1 + e * t) * (1 + 1 / np.abs(bottom)) * np.exp(np.minimum(-size.real, 300.0)) * (self.s > 2)[:, None]
            )
        return size, error


@dataclass(frozen=True, slots=True)
class Laplaces(FamilyMembers):
    """Continuous Laplace noise, e = s/b: exp(K) = exp(-e/2) (cosh(ew) + sinh(ew)/(2w)), the limit of many rungs."""

    e: Doubles

    @property
    def spread(self) -> Doubles:
        return self.e

    @property
    def floor(self) -> Doubles:
        return np.minimum(self.e, 1.0)

    def cumulant(self, c: Doubles) -> Doubles:
        e, a = self.e[:, None], c + 0.5
        small = np.minimum(e * c, 1.0)
        ends = -np.expm1(-(small + e)) * np.expm1(small) / 2  # cosh(ea) - cosh(e/2), by exp(-e/2)
        use = (e * c < 1) & (e < 6)
        y = np.where(use, e * a, 0.0)
        half = np.where(use, e, 0.0) / 2
        near = np.log1p(ends + half * (_sinhc(y) - _sinhc(half)) * np.exp(-half))
        far = e * c + np.log1p(c / (2 * a) * np.expm1(-2 * a * e))
        return np.asarray(np.where(use, near, far))

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        a, e = c + 0.5, self.e[:, None]
        up, down = 1 + np.exp(-2 * e * a), -np.expm1(-2 * e * a)  # 2 cosh(ea) and 2 sinh(ea), by exp(-ea)
        sine, cosine = np.sin(e * t / 2), np.cos(e * t / 2)
        squared, doubled = -2 * sine * sine, 2 * sine * cosine
        over = 1 / (2 * (a * a + t * t))
        real, imaginary = down * squared, up * doubled - down * t / a
        total = up + down / (2 * a)
        x = up * squared + (real * a + imaginary * t) * over
        y = down * doubled + (imaginary * a - real * t) * over
        size = log_1p(x / total, y / total)
        return size, cumulant_error(size, e * t) + e * t / np.hypot(a, t)


def _sinhc(y: Doubles) -> Doubles:
    """Return sinh(y)/y - 1."""
    square = y * y
    series = square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72 * (1 + square / 110))))
    safe = np.where(y < 0.3, 1.0, y)
    return np.asarray(np.where(y < 0.3, series, np.sinh(safe) / safe - 1))
