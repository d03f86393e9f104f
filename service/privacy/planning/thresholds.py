"""Thresholds from a target: the least one that keeps a delta, and what it publishes."""

from dataclasses import replace
from fractions import Fraction

from service.privacy.accounting.pure import plan_delta
from service.privacy.accuracy.tails import smallest
from service.privacy.grammar import LARGEST_WHOLE
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.noise_tails import upper_tail
from service.privacy.mechanisms import Discrete
from service.privacy.numerics.numbers import double_down, floor
from service.privacy.plans.walking import Neighbouring


def with_least_threshold(mechanism: Discrete, neighbouring: Neighbouring, delta: Fraction) -> Discrete | None:
    """Return the mechanism with the least threshold that costs at most a delta; None if it would be above 2^53 units.

    Args:
        delta: above 0.
    """

    def holds(units: int) -> bool:
        return units > 0 and plan_delta(replace(mechanism, threshold=units), neighbouring) <= delta

    if not holds(LARGEST_WHOLE):
        return None
    return replace(mechanism, threshold=smallest(holds, mechanism.sensitivity + 1))


def chance_of_publication(noise: NoiseLaw, threshold: int, count: int) -> float:
    """Return the probability that a key with this true count is published, rounded down; all in units."""
    return double_down(floor(lambda: upper_tail(noise, threshold - count)))
