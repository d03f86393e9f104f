"""Randomised response answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import RandomizedResponse
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.reference import mp


def answers(epsilon: Fraction, values: int) -> list[tuple[Any, Any]]:
    """The probability of each answer under one true value and under another."""
    odds = mp.exp(number(epsilon))
    total = odds + values - 1
    return [(odds / total, 1 / total), (1 / total, odds / total), *[(1 / total, 1 / total)] * (values - 2)]


class TestRandomizedResponse(MechanismContract):
    EXAMPLES = (
        RandomizedResponse(name="a", epsilon=Fraction("0.5")),
        RandomizedResponse(name="b", epsilon=Fraction(2), values=7),
    )

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """``times`` answers are moved, each by itself."""
        a = number(alpha)
        both = answers(mechanism.epsilon, mechanism.values)
        return times * mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in both)) / (a - 1)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.epsilon, mechanism.values))
