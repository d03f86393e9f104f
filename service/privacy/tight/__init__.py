"""Tight (epsilon, delta) of whole plans: delta(epsilon) of the composition itself, not of a moment bound.

The loss of a plan is a sum of independent losses (``worst_case`` reads it from the plan). ``laws`` has the law of each
mechanism's loss; ``families`` and ``noise`` have their cumulant functions. ``contour`` and ``contour_selection`` invert
the product of their transforms; ``atoms`` enumerates the losses if they are few. Every figure is an upper bound.

Most losses have the same law under either of two neighbours, K(z) = K(-1-z), so that one direction stands for both. A
table of noise is a choice of one of several losses, among which is the reverse of each. Where only the range of a loss
is known (``bounded_range``), the symmetry holds of the largest profile. Where a listed loss differs, the whole plan is
evaluated in both directions, since a record is removed from all its mechanisms or added to all, and the larger figure
holds. Below choices, and under replace_one, a law stands for it that is at least as bad as both.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from flint import arb

from service.privacy.accounting.conversion import rho_to_epsilon_analytic
from service.privacy.laws.listed_losses import Direction
from service.privacy.laws.loss_laws import GaussianLoss, ListedLoss
from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import ball, ceiling, double_down, floor
from service.privacy.plans.walking import Neighbouring, Priced
from service.privacy.tight.atoms import AtomEnumeration, rough_atom_count, rough_loss_range
from service.privacy.tight.beside_gaussian import AtomsBesideGaussian
from service.privacy.tight.branches import LEAST_LOG_DELTA, EvaluatedSum, contours_of
from service.privacy.tight.gaussian import gaussian_delta, gaussian_epsilon
from service.privacy.tight.laws import Atoms, ComposedLaw, largest_loss, lattice_of, total_rho
from service.privacy.tight.profiles import evaluate_sum
from service.privacy.tight.search import TightAnalysis, bound_near, least_epsilon
from service.privacy.tight.work_budget import NotTight, work_limit
from service.privacy.tight.worst_case import SummedLaw, plan_sum

FEW_ATOMS, MANY_ATOMS = 1 << 12, 1 << 19
"""Up to this many atoms are enumerated and not integrated: in general, and without a lattice or on a far finer one."""
ROUNDING = Fraction(1, 10**14)
"""A relative margin that covers the rounding of a few doubles."""
Enumeration = AtomEnumeration | AtomsBesideGaussian
LARGEST_EPSILON = Fraction(10) ** 30
SMALL_TAIL = 1e-6
"""Enumerated tails up to this share of delta do not matter."""
MOST_WORK, MOST_TOGETHER = 1 << 25, 1 << 26
"""The most work for reading the laws and for one figure, some two seconds each, and for all figures of a profile."""


@dataclass(frozen=True, slots=True)
class TightBound:
    """An upper bound on epsilon or delta, and its method.

    The methods are ``closed form`` (continuous Gaussians), ``pure`` (no loss is larger), ``atoms`` (all losses
    enumerated), and an integral along a line: ``lattice`` if all losses lie on a lattice, else ``contour``.
    """

    loss: Loss
    method: str


@dataclass(frozen=True, slots=True)
class TightProfile:
    """The privacy profile of a plan.

    Attributes:
        laws: of the finite losses, with their counts.
        log_finite: log of the probability that the loss is finite, rounded down.
        analysis: of the laws; None if all are continuous Gaussians, or there are none.
        largest: a bound on all finite losses, nats; None if there is none.
        work: the most work for one figure.
        backward: the profile of the other direction, where it differs.
    """

    laws: Mapping[ComposedLaw, int]
    log_finite: float
    analysis: TightAnalysis | None
    largest: Fraction | None
    work: float = MOST_WORK
    backward: "TightProfile | None" = None

    @classmethod
    def of(cls, plan: Priced, neighbouring: Neighbouring, figures: int = 1) -> "TightProfile | None":
        """Return a plan's profile for ``figures`` figures; None if none is known, or if it would take too long.

        Args:
            figures: the number of figures that will be computed; they share one limit on the work.
        """
        try:
            with np.errstate(all="ignore"), work_limit(MOST_WORK):
                summed = plan_sum(plan, neighbouring)
                work = min(MOST_WORK, MOST_TOGETHER / max(figures, 1))
                if neighbouring is Neighbouring.REPLACE_ONE or not any(map(_differs, summed.items)):
                    return cls._of_laws(evaluate_sum(summed), work)
                backward = cls._of_laws(evaluate_sum(summed, Direction.ADD), work)
                return replace(cls._of_laws(evaluate_sum(summed, Direction.REMOVE), work), backward=backward)
        except (NotTight, OverflowError):  # counts can be beyond the range of doubles
            return None

    @classmethod
    def _of_laws(cls, evaluated: EvaluatedSum, work: float) -> "TightProfile":
        laws, kept = evaluated.laws, evaluated.log_finite
        if all(isinstance(law, GaussianLoss) for law in laws):
            return cls(laws, kept, None, None)
        analysis, finite = _analysis(laws)
        return cls(laws, kept + finite, analysis, largest_loss(laws), work)

    def epsilon(self, delta: Fraction) -> TightBound | None:
        """Return the larger ``_own_epsilon`` of both directions; None if one is not known."""
        return _larger(self._own_epsilon(delta), self.backward, lambda other: other.epsilon(delta))

    def delta(self, epsilon: Fraction) -> TightBound | None:
        """Return the larger ``_own_delta`` of both directions; None if one is not known."""
        return _larger(self._own_delta(epsilon), self.backward, lambda other: other.delta(epsilon))

    def _own_epsilon(self, delta: Fraction) -> TightBound | None:
        """Return an upper bound on epsilon (nats) at delta, or None.

        There is none if delta does not exceed the probability of an infinite loss, if it would take too long, or if
        doubles are too coarse.

        Args:
            delta: above 0 and below 1, with the deltas that mechanisms declare.
        """
        finite_delta = delta
        if self.log_finite < 0:
            finite_delta -= Fraction(-math.expm1(self.log_finite)) * (1 + ROUNDING)
            if finite_delta <= 0:
                return None
            finite_delta = finite_delta / Fraction(math.exp(self.log_finite)) * (1 - ROUNDING)
        if self.analysis is None:
            rho = total_rho(self.laws)
            above = rho_to_epsilon_analytic(rho, finite_delta).nats
            return None if above is None else TightBound(gaussian_epsilon(rho, finite_delta, above), "closed form")
        bounds = [] if self.largest is None else [TightBound(Loss(self.largest, rational=False), "pure")]
        with suppress(NotTight, OverflowError), np.errstate(all="ignore"), work_limit(self.work):
            log_delta = double_down(floor(lambda: ball(finite_delta).log()))
            if log_delta < self.least_log_delta:
                raise NotTight
            for analysis in (self.analysis, self._beyond_tails(log_delta)):
                found = None if analysis is None else least_epsilon(analysis, log_delta)
                if found is not None:
                    bounds.append(TightBound(Loss(Fraction(found[0]), rational=False), found[1]))
        return min(bounds, key=lambda bound: bound.loss, default=None)

    @property
    def least_log_delta(self) -> float:
        """The log of delta below which nothing is stated: underflow is absolute in laws that were made of profiles."""
        made = any(isinstance(law, Atoms) and law.lattice is None for law in self.laws)
        return LEAST_LOG_DELTA if made else -math.inf

    def _beyond_tails(self, log_delta: float) -> TightAnalysis | None:
        """Return contours, which count all tails, if those that an enumeration counts as lost matter at a delta.

        Args:
            log_delta: log of the delta.
        """
        lost = self.analysis.atoms.infinite if isinstance(self.analysis, Enumeration) else 0.0
        if lost == 0 or log_delta > math.log(lost / SMALL_TAIL):
            return None
        lines, kept = contours_of(self.laws)
        return lines if kept == 0 else None

    def _own_delta(self, epsilon: Fraction) -> TightBound | None:
        """Return an upper bound on delta at epsilon, at most 1; None if it takes too long or doubles are too coarse.

        Args:
            epsilon: nats, at least 0.
        """
        lost = min(Fraction(1), Fraction(-math.expm1(self.log_finite)) * (1 + ROUNDING))
        conditional: Fraction | None = None
        if self.analysis is None:
            conditional, method = gaussian_delta(total_rho(self.laws), epsilon).nats, "closed form"
        elif self.largest is not None and self.largest <= epsilon:
            conditional, method = Fraction(0), "pure"
        elif epsilon <= LARGEST_EPSILON:
            value = 0.0
            with suppress(NotTight, OverflowError), np.errstate(all="ignore"), work_limit(self.work):
                value, method = _log_delta(self.analysis, epsilon)
                further = self._beyond_tails(value)
                if further is not None:
                    value, method = min((value, method), _log_delta(further, epsilon))
            value = max(value, self.least_log_delta)
            conditional = None if not value < 0 else Fraction(0) if value == -math.inf else ceiling(_exp(value))
        if conditional is None:
            return None
        return TightBound(Loss(lost + (1 - lost) * conditional, rational=False), method)


def _differs(item: tuple[SummedLaw, int]) -> bool:
    law, _ = item
    return isinstance(law, ListedLoss) and law.remove != law.add


def _larger(
    one: TightBound | None, backward: TightProfile | None, find: Callable[[TightProfile], TightBound | None]
) -> TightBound | None:
    if one is None or backward is None:
        return one
    other = find(backward)
    return None if other is None else max(one, other, key=lambda bound: bound.loss)


def _log_delta(analysis: TightAnalysis, epsilon: Fraction) -> tuple[float, str]:
    """Return an upper bound on log delta at epsilon, and the method."""
    bound, method = bound_near(analysis, float(epsilon))
    return bound.log_delta(math.nextafter(float(epsilon), 0.0))[0], method


def _exp(value: float) -> Callable[[], arb]:
    return lambda: ball(Fraction(value)).exp()


def _analysis(laws: Mapping[ComposedLaw, int]) -> tuple[TightAnalysis, float]:
    """Return an analysis of a composition, and log of the probability that the loss is finite by it."""
    beside = AtomsBesideGaussian.of(laws)
    if beside is not None:
        return beside, 0.0
    atoms = rough_atom_count(laws)
    if atoms <= MANY_ATOMS:
        lattice = lattice_of(laws)
        if atoms <= FEW_ATOMS or lattice is None or atoms * float(lattice.spacing) < rough_loss_range(laws):
            with suppress(NotTight):
                return AtomEnumeration.of(laws), 0.0
    return contours_of(laws)
