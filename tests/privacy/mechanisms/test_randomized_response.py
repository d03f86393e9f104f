"""Randomised response answers as a mechanism must."""

from fractions import Fraction
from typing import Any

import pytest

from service.privacy.mechanisms import RandomizedResponse
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.reference import exactly, mp, nats


def answers(epsilon: Fraction, values: int) -> list[tuple[Any, Any]]:
    """The probability of each answer under one true value and under another."""
    odds = mp.exp(number(epsilon))
    total = odds + values - 1
    return [(odds / total, 1 / total), (1 / total, odds / total), *[(1 / total, 1 / total)] * (values - 2)]


class TestRandomizedResponse(MechanismContract):
    EXAMPLES = (
        RandomizedResponse(name="a", epsilon=Fraction("0.5")),
        RandomizedResponse(name="b", epsilon=Fraction(2), values=7),
        RandomizedResponse(name="c", epsilon=Fraction("0.5"), values=50),
    )

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """``times`` answers are moved, each by itself."""
        a = number(alpha)
        both = answers(mechanism.epsilon, mechanism.values)
        return times * mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in both)) / (a - 1)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.epsilon, mechanism.values))


@pytest.mark.parametrize(
    ("epsilon", "values", "about"),
    [("0.5", 50, 0.017159), ("3", 100, 0.74138), ("1", 3, 0.36418), ("1", 9, 0.160388), ("0.01", 5, 2.006001e-5)],
)
def test_rho_of_many_values_is_the_largest_of_all_orders(epsilon: str, values: int, about: float) -> None:
    """By the divergences at many orders, none above it and one just below it."""
    mechanism = RandomizedResponse(epsilon=Fraction(epsilon), values=values)
    rho = nats(mechanism.rho())
    assert float(rho) == pytest.approx(about, rel=1e-4)
    both = answers(mechanism.epsilon, values)
    with mp.workdps(60):
        orders = [1 + mp.mpf(10) ** (mp.mpf(k) / 200) for k in range(-2000, 400)]
        slopes = [mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in both)) / (a * (a - 1)) for a in orders]
        assert rho * (1 - Fraction(1, 10**4)) <= exactly(max(slopes)) <= rho


@pytest.mark.parametrize("epsilon", ["1e-300", "1e-30", "1e-5", "0.7", "30", "700"])
@pytest.mark.parametrize("values", [3, 6, 7, 10**6, 10**15])
def test_rho_of_many_values_is_at_most_that_of_two(epsilon: str, values: int) -> None:
    rho, two = (nats(RandomizedResponse(epsilon=Fraction(epsilon), values=k).rho()) for k in (values, 2))
    assert 0 < rho <= two
