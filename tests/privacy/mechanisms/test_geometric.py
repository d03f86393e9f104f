"""Geometric noise answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Geometric
from tests.privacy.mechanisms.contract import IntegerContract
from tests.privacy.reference import oracle


class TestGeometric(IntegerContract):
    EXAMPLES = (
        Geometric(name="a", scale=Fraction(2)),
        Geometric(name="b", scale=Fraction("0.7"), sensitivity=2),
        Geometric(name="c", scale=Fraction(4), sensitivity=3, granularity=Fraction(5), tags=("race",)),
        Geometric(name="d", scale=Fraction(3), sensitivity=2, granularity=Fraction(1, 2), threshold=40),
    )

    def log_mass(self, mechanism: Any) -> Any:
        return oracle.geometric(mechanism.scale)
