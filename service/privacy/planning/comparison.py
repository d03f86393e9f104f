"""Offset tails beside Gaussian noise (Sadeghi and Korki 2022): at equal variance, and at equal (epsilon, delta)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from flint import arb

from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accuracy.calibration import rank_of, value_of_rank
from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.accuracy.sums import require_finite, variance_of_cell
from service.privacy.laws.noise_tails import tail
from service.privacy.mechanisms import DiscreteGaussian, Gaussian, OffsetTails
from service.privacy.numerics.numbers import ball, ceiling, precision
from service.privacy.planning.least_noise import CalibratedNoise, NoSuchNoise, Target, delta_of_cells, least_gaussian
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile


@dataclass(frozen=True, slots=True)
class ComparedFigures:
    """A figure of offset tails and of Gaussian noise, each rounded up.

    Attributes:
        at: the epsilon, the order or the distance to which the figures belong.
    """

    at: Fraction
    offset_tails: Fraction
    gaussian: Fraction


def variance_of(mechanism: CalibratedNoise) -> Fraction:
    """Return the variance of a mechanism's noise (counts squared), rounded up."""
    law = mechanism.noise_law()
    return variance_of_cell(law) if mechanism.DRAWN else ContinuousSum(law, 1).variance()


def gaussian_of_equal_variance(mechanism: OffsetTails) -> Gaussian | DiscreteGaussian:
    """Return Gaussian noise whose sigma² is the mechanism's variance, rounded down to 12 digits: no more noise."""
    v = value_of_rank(rank_of(variance_of(mechanism)))
    if mechanism.DRAWN:
        return DiscreteGaussian(sigma_squared=v, sensitivity=int(mechanism.sensitivity))
    return Gaussian(sigma_squared=v, sensitivity=Fraction(mechanism.sensitivity))


def is_sub_gaussian(mechanism: OffsetTails) -> bool:
    """Tell whether m/sigma <= Q^-1(1/4) = 0.67448...

    Then P(Y >= y) <= exp(-y²/(2 sigma²)) for the noise on the line.
    """
    with precision(256):
        return bool((ball(mechanism.m) / (2 * ball(mechanism.sigma_squared)).sqrt()).erfc() / 2 >= arb(0.25))


def deltas(mechanism: OffsetTails, epsilons: Iterable[Fraction]) -> list[ComparedFigures]:
    """Return delta (upper bounds) of one cell at equal variance.

    Args:
        epsilons: nats.

    Returns:
        One for each epsilon, in their order.

    Raises:
        ArithmeticError: no precision suffices for a figure.
    """
    gaussian = gaussian_of_equal_variance(mechanism)
    return [
        ComparedFigures(
            at, require_finite(delta_of_cells(mechanism, 1, at)), require_finite(delta_of_cells(gaussian, 1, at))
        )
        for at in epsilons
    ]


def divergences(mechanism: OffsetTails, orders: Iterable[Fraction]) -> list[ComparedFigures]:
    """Return tau(alpha) (upper bounds, nats) of one cell at equal variance.

    Args:
        orders: each above 1.

    Returns:
        One for each order, in their order.
    """
    gaussian = gaussian_of_equal_variance(mechanism)
    return [
        ComparedFigures(
            at, require_finite(mechanism_tau(mechanism, at).nats), require_finite(mechanism_tau(gaussian, at).nats)
        )
        for at in orders
    ]


def tight_epsilon(mechanism: OffsetTails, cells: int, delta: Fraction) -> Fraction:
    """Return a tight upper bound on epsilon (nats) of ``cells`` cells at delta, under ``add_remove``.

    Raises:
        NoSuchNoise: there is no tight figure, or it is 0.
    """
    profile = TightProfile.of(replace(mechanism, cells=cells), Neighbouring.ADD_REMOVE)
    bound = None if profile is None else profile.epsilon(delta)
    if bound is None or not bound.loss.nats:
        raise NoSuchNoise("expected noise whose loss is within reach of the tight analysis")
    return bound.loss.nats


def gaussian_variance(mechanism: OffsetTails, epsilon: Fraction, delta: Fraction, cells: int) -> Fraction:
    """Return sigma² of the least Gaussian noise that keeps (epsilon, delta) for ``cells`` cells.

    Args:
        epsilon: nats.

    Returns:
        Counts squared, a number of 12 digits.

    Raises:
        NoSuchNoise: none is found.
    """
    kind = DiscreteGaussian if mechanism.DRAWN else Gaussian
    least = least_gaussian(kind, Fraction(mechanism.sensitivity), Target(epsilon, delta, cells))
    return least.sigma_squared


def tails(mechanism: OffsetTails, distances: Iterable[Fraction]) -> list[ComparedFigures]:
    """Return P(|X| > x) (upper bounds) at equal variance.

    Args:
        distances: counts, each at least 0; rounded down for integer noise.

    Returns:
        One for each distance, in their order.
    """
    gaussian = gaussian_of_equal_variance(mechanism)
    return [ComparedFigures(at, _beyond(mechanism, at), _beyond(gaussian, at)) for at in distances]


def tail_bound(mechanism: OffsetTails, x: Fraction) -> Fraction:
    """Return 2 exp(-x²/(2 sigma²)), rounded up, which bounds P(|X| > x) of sub-Gaussian noise.

    Args:
        x: counts.
    """
    return require_finite(ceiling(lambda: 2 * (-ball(x * x / (2 * mechanism.sigma_squared))).exp()))


def _beyond(mechanism: CalibratedNoise, x: Fraction) -> Fraction:
    law = mechanism.noise_law()
    if mechanism.DRAWN:
        return require_finite(ceiling(lambda: tail(law, int(x))))
    return require_finite(ceiling(lambda: ContinuousSum(law, 1).tail_probability(x)))
