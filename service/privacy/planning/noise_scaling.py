"""The factor by which the noise of a refused plan must grow so that the plan fits."""

from collections.abc import Callable
from fractions import Fraction

from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan
from service.privacy.plans.walking import mechanisms_of, parts_of, with_parts

_FINEST = 10**6  # the answer is a multiple of its inverse
_LARGEST = 10**12


def scaled(plan: Plan, multiplier: Fraction) -> Plan:
    """Return the plan with every noise scale (sigma, b) multiplied; that of offset tails is sigma with m.

    Args:
        multiplier: above 0.
    """
    if isinstance(plan, Mechanism):
        return plan.scaled(multiplier)
    return with_parts(plan, (scaled(part, multiplier) for part in parts_of(plan)))


def noise_multiplier(plan: Plan, fits: Callable[[Plan], bool]) -> Fraction | None:
    """Return the smallest multiple of 1e-6 by which every noise scale must grow so that the plan fits.

    None if more noise does not help: the plan has a guarantee without a noise scale, or a threshold, which more noise
    carries more counts over, or almost nothing is left.

    Args:
        plan: does not fit as it is.
        fits: tells whether a plan fits; it is monotone, because more noise never costs more without a threshold.

    Returns:
        A multiple of 1e-6 above 1 that fits, at most 1e-6 of itself above the smallest one.
    """
    if not all(mechanism.ADDITIVE and mechanism.threshold is None for mechanism in mechanisms_of(plan)):
        return None
    high = 2 * _FINEST
    while not fits(scaled(plan, Fraction(high, _FINEST))):
        high *= 4
        if high > _LARGEST * _FINEST:
            return None
    low = high // 4 if high > 2 * _FINEST else _FINEST
    while high - low > max(1, high // _FINEST):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(scaled(plan, Fraction(middle, _FINEST))) else (middle, high)
    return Fraction(high, _FINEST)
