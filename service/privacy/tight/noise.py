"""Cumulant functions of the noise with Gaussian tails, and of losses given by their atoms."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import wofz  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.tight.families import UNIT, Complexes, Doubles, FamilyMembers, cumulant_error, log_1p
from service.privacy.tight.work_budget import CALL, spend

DIRECT = 1 << 17
"""Terms that are summed one by one although a transform would serve."""
FEW_ATOMS = 1 << 9
OFF_THE_RUN = 2.0**-50
"""Rounded multiples of a step are within this share of themselves of the run through the first and the last."""
WOFZ = 15.0
"""The error of wofz relative to its value, in ``families.UNIT``: 1e-13, by its documentation (Johnson 2012)."""
DUAL = 0.3
WIDE = 1.2
"""From DUAL on, the dual sum of the theta function is the shorter one; from WIDE on, one term a side is enough."""


@dataclass(frozen=True, slots=True)
class DiscreteGaussians(FamilyMembers):
    """exp(K) = exp(rho z(z+1)) theta(zs)/theta(0), theta(u) the sum of exp(-(x+u)²/(2 v)) over the integers x.

    The loss at x is (s² - 2sx)/(2v), and completing the square gives this. By Poisson summation theta(u) is
    proportional to 1 + 2 sum over k >= 1 of exp(-2 pi² v k²) cos(2 pi k u). As the losses are spaced by s/v, K(c+it)
    has period 2 pi v/s in t, apart from i pi s.
    """

    v: Doubles
    s: Doubles

    @property
    def spread(self) -> Doubles:
        return np.asarray(self.s / np.sqrt(self.v))

    @property
    def floor(self) -> Doubles:
        return np.ones_like(self.v)

    def cumulant(self, c: Doubles) -> Doubles:
        v, s = self.v[:, None], self.s[:, None]
        dual = np.maximum(v, DUAL)
        moved, top, bottom = c * s, np.zeros_like(v * c), np.ones_like(v)
        for k in (1, 2, 3):
            height = 2 * np.exp(-2 * (np.pi * k) ** 2 * dual)
            top = top - 2 * height * np.sin(np.pi * k * (moved - np.rint(moved))) ** 2
            bottom = bottom + height
        wiggle = np.log1p(top / bottom)
        if (self.v < DUAL).any():
            off = moved - np.rint(moved)
            narrow = np.minimum(v, DUAL)  # the largest term is taken out: at sigma = 0.01 all are below the doubles
            direct = np.log(sum(np.exp(-(j * j + 2 * j * off) / (2 * narrow)) for j in range(-8, 9)))
            centred = np.log(sum(np.exp(-(j**2) / (2 * narrow)) for j in range(-8, 9)))
            wiggle = np.where(v < DUAL, direct - centred - off * off / (2 * narrow), wiggle)
        return np.asarray(s * s / (2 * v) * c * (c + 1) + wiggle)

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        if (self.v >= DUAL).all():
            return self._dual(c, t)
        if (self.v < DUAL).all():
            return self._direct(c, t)
        size, error = np.empty((len(self.v), len(t)), complex), np.empty((len(self.v), len(t)))
        for some, method in ((self.v >= DUAL, DiscreteGaussians._dual), (self.v < DUAL, DiscreteGaussians._direct)):
            size[some], error[some] = method(self.take(np.flatnonzero(some)), c, t)
        return size, error

    def _dual(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        v, s = self.v[:, None], self.s[:, None]
        angle = t * (s / v)
        turns = np.rint(angle / (2 * np.pi))
        rest = angle - 2 * np.pi * turns
        moved = rest * v / s
        rho, off = s * s / (2 * v), c * s - np.rint(c * s)
        half_turns = np.pi * np.mod(np.mod(s, 2) * np.mod(turns, 2), 2)
        size = rho * (1j * moved * (2 * c + 1) - moved * moved) + 1j * half_turns
        x, bottom = np.zeros(angle.shape, complex), np.ones_like(v)
        for k in (1,) if self.v.min() >= WIDE else (1, 2, 3):  # the omitted terms are below exp(-47) of the rest
            fall = -2 * np.pi**2 * k * k * v
            cosine = np.cos(2 * np.pi * k * off)
            turn = cosine + 1j * np.sin(2 * np.pi * k * off)
            swing = 2 * np.pi * k * v * rest
            x = x + np.exp(fall - swing) * turn + np.exp(fall + swing) * turn.conj() - 2 * np.exp(fall) * cosine
            bottom = bottom + 2 * np.exp(fall) * cosine
        x = x / bottom
        size = size + log_1p(x.real, x.imag)
        error = cumulant_error(size, angle) + np.exp(
            -2 * np.pi**2 * v
        )  # of the theta function's terms, less what they are at c
        return size, error + (angle > 3) * (rho * (2 * c + 1) * t)  # the angle's error moves by c, too

    def _direct(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        v, s = self.v[:, None], self.s[:, None]
        angle, at = t * (s / v), np.rint(c * s)
        total, x, y = np.zeros_like(v), np.zeros_like(angle), np.zeros_like(angle)
        for j in range(-8, 9):
            mass = np.exp(-(j * j + 2 * j * (c * s - at)) / (2 * v))  # relative to the largest
            total = total + mass
            x -= 2 * mass * np.sin(angle * j / 2) ** 2
            y -= mass * np.sin(angle * j)
        mean = t * (s * (s + 2 * at) / (2 * v))
        size = log_1p(x / total, y / total)
        return size + 1j * mean, cumulant_error(size, 8 * angle) + np.abs(mean)


@dataclass(frozen=True, slots=True)
class Osgts(FamilyMembers):
    """Offset symmetric Gaussian tails (Sadeghi and Korki 2022), for complex z.

    With E(x) = erfcx(x/(sigma sqrt 2)) and the loss e = s(s+2m)/(2 v) at the two kinks, exp(K) is

        [exp(ez) (E(m-zs) + E(m+z(s+2m))) + exp(-e(z+1)) (E(m+(z+1)s) - E(m+s+z(s+2m)))]/(2 E(m)),

    from the three integrals left of 0, between 0 and s, and right of s.
    """

    v: Doubles
    m: Doubles
    s: Doubles

    @property
    def cost(self) -> int:
        """That of five error functions of complex numbers."""
        return 8

    @property
    def spread(self) -> Doubles:
        return np.asarray(self.s / np.sqrt(self.v))

    @property
    def floor(self) -> Doubles:
        return 1 + WOFZ * (2 + self.m / np.sqrt(self.v))

    def _scaled(self, z: Complexes, scale: Doubles) -> tuple[Complexes, Doubles]:
        """Return exp(K(z) - scale), and the size of the error functions in it.

        Args:
            z: members in rows.
            scale: real, and near K(Re z).
        """
        v, m, s = self.v[:, None], self.m[:, None], self.s[:, None]
        unit, e = 1 / np.sqrt(2 * v), s * (s + 2 * m) / (2 * v)

        def tail(x: Any) -> Complexes:
            return np.asarray(wofz(1j * (x * unit)))

        left = m - z * s
        falls = left.real < 0  # there erfcx(x) = 2 exp(x²) - erfcx(-x)
        sign = np.where(falls, -1.0, 1.0)
        edge = 2 * tail(m + 0j).real
        outer, beyond = sign * tail(left * sign), tail(m + z * (s + 2 * m))
        inner, within = tail(m + (z + 1) * s), tail(m + s + z * (s + 2 * m))
        up, down = np.exp(e * z - scale), np.exp(-e * (z + 1) - scale)
        bulk = np.exp(s * s / (2 * v) * z * (z + 1) + m * m / (2 * v) - np.log(edge / 2) - scale)
        value = ((outer + beyond) * up + (inner - within) * down) / edge + np.where(falls, bulk, 0.0)
        parts = (np.abs(outer) + np.abs(beyond)) * np.abs(up) + (np.abs(inner) + np.abs(within)) * np.abs(down)
        return np.asarray(value), np.asarray(parts / edge + np.abs(value))

    def cumulant(self, c: Doubles) -> Doubles:
        v, m, s = self.v[:, None], self.m[:, None], self.s[:, None]
        e, rho = s * (s + 2 * m) / (2 * v), s * s / (2 * v)
        bulk = rho * c * (c + 1) + m * m / (2 * v)
        scale = np.where(m < c * s, np.maximum(bulk, e * c), e * c)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(scale + np.log(self._scaled(np.broadcast_to(c + 0j, scale.shape), scale)[0].real))

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        scale = self.cumulant(np.array([c]))
        z = np.broadcast_to(c + 1j * t, (len(self.v), len(t)))
        value, functions = self._scaled(z, scale)
        size = log_1p(value.real - 1, value.imag)
        e = (self.s * (self.s + 2 * self.m) / (2 * self.v))[:, None]
        # exponents of the size of K(c) and of e c are subtracted from each other
        lost = 8 + 8 * e * (1 + t + c) + np.abs(scale) + WOFZ * functions
        return size, np.abs(size) + lost * np.exp(-size.real)


@dataclass(frozen=True, slots=True)
class AtomFamily:
    """One loss law given by its atoms, and the number of times that it is composed; infinite losses are left out.

    Attributes:
        count: the number of times, as an array of one.
        x: losses, nats, ascending.
        p: their probabilities; the sum is 1, or more if a law is only dominated by a measure.
        spacing: of the losses, if they are a run of multiples of it.
        rounding: bound on the relative error of p.
    """

    count: Doubles
    x: Doubles
    p: Doubles
    spacing: float | None = None
    rounding: float = 0.0

    @property
    def cost(self) -> int:
        """0, because it counts its work itself, by its atoms."""
        return 0

    @property
    def spread(self) -> Doubles:
        return np.array([np.sqrt((self.p * self.x**2).sum())])

    @property
    def floor(self) -> Doubles:
        return np.full(1, max(100.0, len(self.x) / 32) + self.rounding / UNIT)  # of the sums over p, and of p itself

    def take(self, members: NDArray[np.intp]) -> "AtomFamily":
        """Return the whole family, as there is only one member, or a family with a count of 0 if no member is taken."""
        return self if len(members) else AtomFamily(np.zeros(1), self.x[-1:], np.ones(1))

    def thinned(self) -> "AtomFamily":
        """Return a rough copy of this law with few atoms: neighbours joined at their mean."""
        kept = np.flatnonzero(self.p > 0)
        if len(kept) <= FEW_ATOMS:
            return self
        starts = np.arange(0, len(kept), -(-len(kept) // FEW_ATOMS))
        p = np.add.reduceat(self.p[kept], starts)
        return AtomFamily(self.count, np.add.reduceat((self.p * self.x)[kept], starts) / p, p)

    def cumulant(self, c: Doubles) -> Doubles:
        spend(CALL + len(c) * len(self.x) / 2)
        power = np.log(np.maximum(self.p, 1e-320)) + c[:, None] * self.x
        top = power.max(axis=1, keepdims=True)
        size = np.abs(self.x).max() or 1.0  # of losses that are all 0, the cumulant is 0
        grown = np.expm1(np.minimum(c[:, None] * size, 1.0) * self.x / size)
        near = np.log1p((self.p.sum() - 1) + grown @ self.p)
        far = (top + np.log(np.exp(power - top).sum(axis=1, keepdims=True)))[:, 0]
        return np.asarray(np.where(c * size < 1, near, far)[None, :])

    def along_line(self, c: float, t: Doubles) -> tuple[Complexes, Doubles]:
        power = np.log(np.maximum(self.p, 1e-320)) + c * self.x
        tilted = np.exp(power - power.max())
        tilted /= tilted.sum()
        mean = tilted @ self.x
        if self.spacing is not None and len(t) * len(self.x) > DIRECT:
            value, rounding = self._transformed(tilted, mean, t, self.spacing)
        else:
            # the terms' sizes sum to at most the root of the sum of their squares, which is twice the real part
            value = self._summed(tilted, mean, t)
            rounding = len(self.x) / 64 * np.minimum(1.0, np.sqrt(2 * np.abs(value.real)) + np.abs(value.real))
        size = log_1p(value.real, value.imag)[None, :]
        furthest = np.abs(self.x - mean).max() * t[None, :]
        uncertain = cumulant_error(size, furthest) + rounding * np.exp(np.minimum(-size.real, 300.0))
        return size + 1j * mean * t, uncertain + np.abs(mean) * t

    def _summed(self, tilted: Doubles, mean: float, t: Doubles) -> Complexes:
        """Return the sum of tilted (exp(it(x - mean)) - 1)."""
        spend(CALL + len(t) * len(self.x) / 2)
        value = np.empty(len(t), complex)
        step = max(1, DIRECT // len(self.x))
        for start in range(0, len(t), step):
            angle = np.outer(t[start : start + step], self.x - mean)
            half = np.sin(angle / 2)
            value[start : start + step] = -2 * half * half @ tilted + 1j * (np.sin(angle) @ tilted)
        return value

    def _transformed(
        self, tilted: Doubles, mean: float, t: Doubles, spacing: float
    ) -> tuple[Complexes, Doubles | float]:
        """Return the transform over the run of equal steps in t that contains all of t (Bluestein 1970).

        Returns:
            The transform less 1, and the scale of its error: what the Fourier transforms lose, and the phases
            (choices.md, V-6, derives them).
        """
        at = np.rint((t - t[0]) / np.diff(t).min()).astype(np.int64)
        h = float(
            (t[-1] - t[0]) / at[-1]
        )  # one difference is off by a unit of t, and would be taken thousands of times
        if len(t) * 16 < at[-1] or (np.abs(t - (t[0] + h * at)) > OFF_THE_RUN * t).any():
            return self._summed(tilted, mean, t), len(self.x) / 32
        n, m = len(self.x), int(at[-1]) + 1
        turn = h * spacing / (4 * np.pi)
        chirp = np.exp(2j * np.pi * np.mod(np.arange(max(n, m), dtype=float) ** 2 * turn, 1.0))
        size = 1 << (n + m - 1).bit_length()
        spend(CALL + 2 * size)
        kernel = np.zeros(size, complex)
        kernel[:m], kernel[size - n + 1 :] = chirp[:m].conj(), chirp[1:n][::-1].conj()
        spread = np.fft.fft(tilted * np.exp(1j * np.mod(t[0] * (self.x - self.x[0]), 2 * np.pi)) * chirp[:n], size)
        transform = np.fft.ifft(spread * np.fft.fft(kernel))[:m] * chirp[:m]
        turned_by = np.exp(1j * t * (self.x[0] - mean))
        lost = math.sqrt(size) * size.bit_length() / 2 + turn * max(n, m) ** 2 + t * (self.x[-1] - self.x[0])
        return np.asarray(transform[at] * turned_by - 1), lost
