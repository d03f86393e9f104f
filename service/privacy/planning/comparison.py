"""Offset tails beside Gaussian noise (Sadeghi and Korki 2022): at equal variance, and at equal (epsilon, delta)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from flint import arb

from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accuracy.calibration import of_rank, rank_of
from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.sums import finite, variance_of_cell
from service.privacy.accuracy.tails import tail
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, OffsetTails, Osgt
from service.privacy.numerics.numbers import ball, ceiling, precision
from service.privacy.planning.least_noise import Noise, NoSuchNoise, Target, delta_of, least_gaussian
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import Tight


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure of offset tails and of Gaussian noise, each rounded up; ``at`` says where."""

    at: Fraction
    offset_tails: Fraction
    gaussian: Fraction


def variance_of(mechanism: Noise) -> Fraction:
    """Return the variance of a mechanism's noise, rounded up."""
    law = mechanism.noise_law()
    return variance_of_cell(law) if mechanism.DRAWN else ContinuousSum(law, 1).variance()


def gaussian_beside(mechanism: OffsetTails) -> Gaussian | DiscreteGaussian:
    """Gaussian noise with its variance for sigma², rounded down to 12 digits: so that it has no more noise."""
    v = of_rank(rank_of(variance_of(mechanism)))
    if isinstance(mechanism, Osgt):
        return Gaussian(sigma_squared=v, sensitivity=mechanism.sensitivity)
    return DiscreteGaussian(sigma_squared=v, sensitivity=mechanism.sensitivity)


def is_sub_gaussian(mechanism: OffsetTails) -> bool:
    """Tell whether m/sigma <= Q^-1(1/4) = 0.67448...

    Then P(Y >= y) <= exp(-y²/(2 sigma²)) for the noise on the line.
    """
    with precision(256):
        return bool((ball(mechanism.m) / (2 * ball(mechanism.sigma_squared)).sqrt()).erfc() / 2 >= arb(0.25))


def deltas(mechanism: OffsetTails, epsilons: Iterable[Fraction]) -> list[Pair]:
    """delta at equal variance, one cell."""
    other = gaussian_beside(mechanism)
    return [Pair(at, finite(delta_of(mechanism, 1, at)), finite(delta_of(other, 1, at))) for at in epsilons]


def divergences(mechanism: OffsetTails, orders: Iterable[Fraction]) -> list[Pair]:
    """tau(alpha) at equal variance, one cell."""
    other = gaussian_beside(mechanism)
    return [Pair(at, finite(mechanism_tau(mechanism, at).nats), finite(mechanism_tau(other, at).nats)) for at in orders]


def epsilon_of(mechanism: OffsetTails, cells: int, delta: Fraction) -> Fraction:
    """epsilon of so many cells at delta, tight.

    Raises:
        NoSuchNoise: there is no tight figure.
    """
    profile = Tight.of(replace(mechanism, cells=cells), Neighbouring.ADD_REMOVE)
    found = None if profile is None else profile.epsilon(delta)
    if found is None or not found.loss.nats:
        raise NoSuchNoise("expected noise whose loss is within reach of the tight analysis")
    return found.loss.nats


def gaussian_variance(mechanism: OffsetTails, epsilon: Fraction, delta: Fraction, cells: int) -> Fraction:
    """sigma² of the least Gaussian noise that keeps the same (epsilon, delta) for so many cells."""
    kind = Gaussian if isinstance(mechanism, Osgt) else DiscreteGaussian
    least = least_gaussian(kind, Fraction(mechanism.sensitivity), Target(epsilon, delta, cells))
    return least.sigma_squared


def tails(mechanism: OffsetTails, distances: Iterable[Fraction]) -> list[Pair]:
    """P(|X| > x) at equal variance."""
    other = gaussian_beside(mechanism)
    return [Pair(at, _beyond(mechanism, at), _beyond(other, at)) for at in distances]


def tail_bound(mechanism: OffsetTails, x: Fraction) -> Fraction:
    """2 exp(-x²/(2 sigma²)), which bounds P(|X| > x) of sub-Gaussian noise."""
    return finite(ceiling(lambda: 2 * (-ball(x * x / (2 * mechanism.sigma_squared))).exp()))


def _beyond(mechanism: Noise, x: Fraction) -> Fraction:
    law = mechanism.noise_law()
    if mechanism.DRAWN:
        return finite(ceiling(lambda: tail(law, int(x))))
    return finite(ceiling(lambda: ContinuousSum(law, 1).beyond(x)))
