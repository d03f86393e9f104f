"""Continuous noise with offset tails answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Osgt
from tests.privacy.mechanisms.contract import DensityContract
from tests.privacy.reference import oracle


class TestOsgt(DensityContract):
    EXAMPLES = (
        Osgt(name="a", sigma_squared=Fraction(9), m=Fraction(2)),
        Osgt(name="b", sigma_squared=Fraction(4), m=Fraction("0.5"), sensitivity=Fraction("0.7")),
    )

    def density(self, mechanism: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = oracle.osgt_density(mechanism.sigma_squared, mechanism.m)
        return found
