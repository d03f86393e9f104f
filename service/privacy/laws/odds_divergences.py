"""Rényi divergences and zCDP of losses on finitely many odds, each counted with a factor; the largest of all decides.

With K(z) = log E exp(zL), tau(alpha) is K(alpha - 1)/(alpha - 1), and rho is the largest K(z)/(z(z+1)). No formula is
known for the place of that maximum. So a place is searched, and K(z) <= rho z(z+1) is proven for all z > 0 with a rho
that is a little larger than the quotient there (``_Cumulant.terms_left``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from flint import arb

from service.privacy.laws.loss_laws import OddsLoss
from service.privacy.numerics.arithmetic import Arithmetic, Number
from service.privacy.numerics.loss import Loss
from service.privacy.numerics.numbers import ball, ceiling, precision

_SLACKS = tuple(map(Fraction, ("5e-10", "1e-7", "1e-5", "1e-4", "1e-3", "1e-1")))
"""Shares by which the proven rho is above the quotient that the search found, the smallest first."""
_TERMS = 200_000  # of all moments in one attempt, some two seconds
_FINEST = 2.0**-40  # of a step, relative to the inverse of the losses' range
_PER_OCTAVE, _FIRST_OCTAVE = 4, -10  # of the search
_REFINEMENTS = 30
_GOLDEN = 0.6180339887498949
_BITS = 160


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss between two laws that allow the same values, and the factor with which it counts."""

    law: OddsLoss
    factor: Fraction


@dataclass(frozen=True, slots=True)
class LargestDivergence:
    """The formula of the largest of several factors times tau: a function of z = alpha - 1 and of an arithmetic."""

    losses: tuple[WeightedLoss, ...]

    def __call__(self, z: Number, at: Arithmetic) -> Number:
        return reduce(at.maximum, (at.number(one.factor) * _tau(one.law, z, at) for one in self.losses))


def _tau(law: OddsLoss, z: Number, at: Arithmetic) -> Number:
    logs = [at.log(at.number(odds)) for odds, _ in law.atoms]
    masses, top = [at.number(p) for _, p in law.atoms], logs[-1]

    def small() -> Number:
        return at.log1p(sum(p * at.expm1(z * log) for p, log in zip(masses, logs, strict=True))) / z

    def large() -> Number:
        return top + at.log(sum(p * at.exp(z * (log - top)) for p, log in zip(masses, logs, strict=True))) / z

    return at.either(z * top, small, large)


def largest_epsilon(losses: Sequence[WeightedLoss]) -> Loss:
    """Return the largest of the factors times the largest loss (nats), rounded up."""
    largest = ceiling(lambda: reduce(arb.max, (ball(one.factor) * ball(one.law.atoms[-1][0]).log() for one in losses)))
    return Loss(largest, rational=largest == 0)


def largest_rho(losses: Sequence[WeightedLoss]) -> Loss:
    """Return the largest of the factors times rho (nats), rounded up; usually 5e-10 of itself above the truth.

    It is up to 1e-3 of itself above for hundreds of values that are so near to Gaussian noise that tau(alpha)/alpha is
    nearly the same at all orders. If no share of ``_SLACKS`` is proven, it is epsilon tanh(epsilon/2) in place of rho,
    which all mechanisms of that loss keep.
    """
    moving = [one for one in losses if len(one.law.atoms) > 1]  # the others lose nothing
    if not moving:
        return Loss(Fraction(0))
    with precision(_BITS + 4 * max(0, *(-_octave(one.law) for one in moving))):
        cumulants = [(_Cumulant.of(one.law), ball(one.factor)) for one in moving]
        quotient = reduce(arb.max, (factor * cumulant.largest_quotient() for cumulant, factor in cumulants))
        for slack in _SLACKS:
            rho = quotient.upper() * (1 + ball(slack)).upper()
            if _are_below([(cumulant, (rho / factor).lower()) for cumulant, factor in cumulants]):
                return Loss(ceiling(lambda proven=rho: proven), rational=False)  # type: ignore[misc]
        return Loss(ceiling(lambda: reduce(arb.max, (factor * one.worst_rho for one, factor in cumulants))), False)


def _are_below(bounds: "Sequence[tuple[_Cumulant, arb]]") -> bool:
    """Tell whether each K(z) <= rho z(z+1) is proven, in ``_TERMS`` together."""
    left = _TERMS
    for cumulant, rho in bounds:
        found = cumulant.terms_left(rho, left)
        if found is None:
            return False
        left = found
    return True


def _octave(law: OddsLoss) -> int:
    """Return the binary exponent of the range of a loss."""
    (least, _), *_, (most, _) = law.atoms
    with precision(_BITS):
        mantissa, exponent = ball(most / least).log().mid().man_exp()
    return int(mantissa).bit_length() + int(exponent)


@dataclass(frozen=True, slots=True)
class _Cumulant:
    """K of one loss with at least two values, at the precision in force.

    Attributes:
        losses, masses: ascending losses (nats), with their probabilities.
        octave: the binary exponent of the range of the losses.
    """

    losses: Sequence[arb]
    masses: Sequence[arb]
    octave: int

    @classmethod
    def of(cls, law: OddsLoss) -> "_Cumulant":
        return cls([ball(odds).log() for odds, _ in law.atoms], [ball(p) for _, p in law.atoms], _octave(law))

    @property
    def worst_rho(self) -> arb:
        """The rho of all mechanisms with as large a loss."""
        largest = self.losses[-1].max(-self.losses[0])
        return largest * (largest / 2).tanh()

    def at(self, z: arb) -> tuple[arb, arb, arb]:
        """Return K(z), K'(z) and K''(z) for z >= 0."""
        top = self.losses[-1]
        weights = [p * (z * (loss - top)).exp() for p, loss in zip(self.masses, self.losses, strict=True)]
        moved = [weight * loss for weight, loss in zip(weights, self.losses, strict=True)]
        total = sum(weights, arb(0))
        mean = sum(moved, arb(0)) / total
        square = sum((one * loss for one, loss in zip(moved, self.losses, strict=True)), arb(0)) / total
        return z * top + total.log(), mean, square - mean * mean

    def largest_quotient(self) -> arb:
        """Return about the largest K(z)/(z(z+1)), or its limit K'(0): never above the truth by more than a radius.

        K(z) is at most z times the largest loss, so far out no quotient is larger than one that was found.
        """

        def quotient(z: arb) -> arb:
            return self.at(z)[0] / (z * (z + 1))

        best, place, step = self.at(arb(0))[1], None, arb(2) ** (arb(1) / _PER_OCTAVE)
        z = (arb(2) ** (_FIRST_OCTAVE - self.octave)).mid()
        while not self.losses[-1] < best * (z + 1):
            value = quotient(z)
            if value.mid() > best.mid():
                best, place = value, z
            z = (z * step).mid()
        if place is not None:
            low, high = (place / step).mid(), (place * step).mid()
            for _ in range(_REFINEMENTS):  # of the golden section
                left, right = ((high - _GOLDEN * (high - low)).mid(), (low + _GOLDEN * (high - low)).mid())
                low, high = (low, right) if quotient(left).mid() > quotient(right).mid() else (left, high)
            best = best.max(quotient(((low + high) / 2).mid()))
        return best

    def terms_left(self, rho: arb, terms: int) -> int | None:
        """Return what a proof that K(z) <= rho z(z+1) for all z > 0 leaves of some terms; None if it takes more.

        K''(z) is the variance of the losses weighted by exp(zL), and its slope, their third central moment, is at most
        the range R times the variance. So K''(z + t) <= K''(z) exp(Rt), and D(z) = rho z(z+1) - K(z) is at least D(z) +
        D'(z) t + (rho - K''(z) exp(Rh)/2) t² at z + t for t <= h. Steps of this kind lead from 0 to where rho (z+1) is
        the largest loss: from there on K(z) <= z times that loss proves it.

        Args:
            rho: exact.
            terms: of the moments.
        """
        width = (self.losses[-1] - self.losses[0]).upper()
        z, step = arb(0), (arb(2) ** -self.octave).mid()
        while terms > 0:
            if self.losses[-1] <= rho * (z + 1):
                return terms
            terms -= len(self.losses)
            value, slope, curvature = self.at(z)
            at_z = (rho * z * (z + 1) - value).lower() if z > 0 else arb(0)
            falling = (rho * (2 * z + 1) - slope).lower()
            while not _stays_above_0(at_z, falling, (rho - curvature * (width * step).exp() / 2).lower(), step):
                step = step / 2
                if width * step < _FINEST:
                    return None
            z, step = (z + step).mid(), 2 * step
        return None


def _stays_above_0(start: arb, slope: arb, curve: arb, end: arb) -> bool:
    """Tell whether start + slope t + curve t² is proven to be at least 0 for 0 <= t <= end; all are exact."""
    if not start >= 0:
        return False
    at_end = start + slope * end + curve * end * end
    if curve <= 0 or slope + 2 * curve * end <= 0:  # concave, or falling up to the end
        return bool(at_end >= 0)
    return bool(slope >= 0 or 4 * curve * start >= slope * slope)
