"""Contour selection for a composition: c, step and length, the lattice, and the smoothing if there is none.

A composition without a smooth part and without a lattice has an integrand that only falls like 1/t². One more mechanism
never lowers delta. So a tiny continuous Gaussian mechanism is added, which ends the line soon enough and raises delta
by a share of ``rho`` c(c+1), to second order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from service.privacy.laws.loss_laws import DiscreteGaussianLoss, GaussianLoss, LadderLoss, LaplaceLoss
from service.privacy.tight.contour import (
    NEGLIGIBLE,
    ContourLine,
    Lattice,
    LossComposition,
    best_c,
    period,
    sketch_of,
    trace_line,
)
from service.privacy.tight.laws import ComposedLaw, compose_laws, gcd, lattice_of, merge_laws
from service.privacy.tight.work_budget import NotTight

LONGEST, LONGEST_ROUGH = 1 << 18, 1 << 13  # points of a line
LARGEST_PHASE = 1e8  # of c epsilon: beyond it, the phases of the integrand have too few digits
SHORT_LINE = 1 << 9  # points that are not worth shortening
SHARP, ROUGH = 3e-7, 1e-3  # the share of delta that smoothing, or rungs for a density, may add


@dataclass(frozen=True, slots=True)
class ContourSelector:
    """The lines of one composition.

    Attributes:
        laws: those that are composed, at least one.
        composition: the laws as arrays, without a lattice.
        sketch: a rough copy of the composition with fewer numbers, for the choice of lines.
    """

    laws: Mapping[ComposedLaw, int]
    composition: LossComposition
    sketch: LossComposition

    @classmethod
    def of(cls, laws: Mapping[ComposedLaw, int]) -> "ContourSelector":
        """Return the selector of a composition.

        Args:
            laws: at least one, each with the number of times that it is composed.

        Raises:
            NotTight: as ``compose_laws``.
        """
        composition = compose_laws(laws)
        return cls(laws, composition, sketch_of(composition))

    def at(self, epsilon: float, rough: bool = False) -> tuple[ContourLine, str]:
        """Return the line for epsilons near this one, and the method's name; a rough one is shorter.

        Args:
            epsilon: nats.
            rough: take the shorter line, whose bounds are further above.

        Returns:
            The method is ``lattice`` or ``contour``.

        Raises:
            NotTight: doubles are too coarse, or it would take too long.
        """
        c = best_c(self.sketch, epsilon)
        repetition = period(self.sketch, c, epsilon)
        if not 0 < repetition < 1e60 or c * epsilon > LARGEST_PHASE:
            raise NotTight
        allowed = (ROUGH if rough else SHARP) * min(1.0, c * epsilon + 0.01)  # of delta, or c epsilon if that is less
        longest = LONGEST_ROUGH if rough else LONGEST
        if not any(isinstance(law, GaussianLoss) for law in self.laws):
            on_lattice = self._on_lattice(c, repetition, allowed, longest)
            if on_lattice is not None:
                return on_lattice, "lattice"
        return self._smoothed(c, epsilon, repetition, allowed, longest), "contour"

    def _smoothed(self, c: float, epsilon: float, repetition: float, allowed: float, longest: int) -> ContourLine:
        """Return a line that a continuous Gaussian ends: the composition's own, or an added one that is small enough.

        If epsilon is near a kink of delta, at a loss of high probability, smoothing costs more than its second order.
        The change by four times the smoothing shows this.
        """
        h = 2 * math.pi / repetition
        of_all = self.composition.rho
        if of_all > 0 and math.sqrt(NEGLIGIBLE / of_all) <= SHORT_LINE * h:
            return _line_with_gaussians(self.composition, c, h, of_all)
        added = allowed / (c * (c + 1))
        while True:
            shortest = NEGLIGIBLE / (longest * h) ** 2
            smoothed_line = _line_with_gaussians(self.composition, c, h, max(of_all + added, shortest))
            change = smoothed_line.smoothed(3 * added).log_delta(epsilon)[0] - smoothed_line.log_delta(epsilon)[0]
            if of_all + added <= shortest or not change > 3.2 * allowed:
                return smoothed_line
            added /= 16

    def _on_lattice(self, c: float, repetition: float, allowed: float, longest: int) -> ContourLine | None:
        laws = self._with_rungs(c, repetition, allowed, longest)
        lattice = None if laws is None else lattice_of(laws)
        if laws is None or lattice is None:
            return None
        composition = compose_laws(laws, lattice)
        d = float(lattice.spacing)
        steps = math.ceil(repetition / d) | 1  # odd: t = 0 and pairs of conjugates
        h, points, beyond = 2 * math.pi / (steps * d), steps // 2 + 1, 0.0
        if points > longest:
            cut = _falls_until(laws, lattice, c)
            if cut is None or cut[0] > longest * h:
                return None
            points = math.ceil(cut[0] / h) + 1
            beyond = cut[1] / d
        return trace_line(composition, c, h, points, beyond)

    def _with_rungs(
        self, c: float, repetition: float, allowed: float, longest: int
    ) -> Mapping[ComposedLaw, int] | None:
        """Replace Laplace noise by geometric noise of many steps, which loses a little more.

        This has the profile of the Laplace mechanism at its rungs, joined linearly in exp(epsilon) between them. It is
        the least law on the lattice that dominates the Laplace loss (Doroshenko et al. 2022).
        """
        ranges = [2 * law.e for law in self.laws if isinstance(law, LaplaceLoss)]
        if not ranges:
            return self.laws
        rest: dict[ComposedLaw, int] = {
            law: count for law, count in self.laws.items() if not isinstance(law, LaplaceLoss)
        }
        of_rest = lattice_of(rest) if rest else Lattice(Fraction(0), Fraction(0))
        if of_rest is None:
            return None
        spacing = of_rest.spacing
        for one in ranges:
            spacing = gcd(spacing, one)
            if spacing * longest < repetition:
                return None
        finer = 1
        while float(spacing) * 2 * longest > repetition * finer:
            laws = merge_laws((_ladder(law, spacing / finer), count) for law, count in self.laws.items())
            added = float((compose_laws(laws).cumulant(at := np.array([c])) - self.composition.cumulant(at))[0])
            if added <= allowed:
                return laws
            finer = max(finer + 1, math.ceil(finer * min(math.sqrt(added / allowed) * 1.05, 64.0)))
        return None


def _line_with_gaussians(composition: LossComposition, c: float, h: float, rho: float) -> ContourLine:
    """Return the line of a composition with continuous Gaussians of ``rho`` in all, up to where it is negligible."""
    points = math.ceil(math.sqrt(NEGLIGIBLE / rho) / h) + 2
    end = h * (points - 1)
    # |M| <= exp(-rho t²) and |kernel| <= 1/t², c(c+1)/t² of that at t = 0: the integral from the last point on
    beyond = math.exp(-rho * end * end) / (2 * math.pi * rho * end**3) * c * (c + 1) * (1 + 1e-9)
    return trace_line(replace(composition, rho=rho), c, h, points, beyond)


def _ladder(law: ComposedLaw, spacing: Fraction) -> ComposedLaw:
    if not isinstance(law, LaplaceLoss):
        return law
    return law.in_rungs(int(2 * law.e / spacing))


def _falls_until(laws: Mapping[ComposedLaw, int], lattice: Lattice, c: float) -> tuple[float, float] | None:
    """Return the t from which |M| is negligible, and its bound from there to half the period; None if not known.

    The bound is that of one law, because the factors of the others are at most 1. This law has the lattice's own
    spacing, and its |M| falls over half a period. |M| of a two-point law does: it is |p + q exp(-2iet)|. That of the
    discrete Gaussian does by Jacobi's triple product: each of its factors is |1 + a exp(it)| with a > 0.
    """
    best: tuple[float, float] | None = None
    for law, count in laws.items():
        if isinstance(law, LadderLoss):
            falls, spacing, spread = law.s == 1, 2 * law.e, float(law.e) / math.cosh(min(300.0, float(law.e) * c))
        else:
            falls = isinstance(law, DiscreteGaussianLoss)
            spacing, spread = _spacing(law), math.sqrt(float(_spacing(law)))
        if not falls or spacing != lattice.spacing:
            continue
        of_law = compose_laws({law: count})
        t = 0.2 / (spread * math.sqrt(count))
        while t < math.pi / float(spacing):
            change = of_law.families[0].along_line(c, np.array([t]))[0][0, 0].real * count
            if change < -NEGLIGIBLE:
                fall = t, math.exp(change) * (1 + 1e-6)
                best = fall if best is None or fall < best else best
                break
            t *= 1.3
    return best


def _spacing(law: ComposedLaw) -> Fraction:
    return Fraction(law.sensitivity) / law.sigma_squared if isinstance(law, DiscreteGaussianLoss) else Fraction(0)
