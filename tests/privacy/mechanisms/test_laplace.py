"""Laplace noise answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Laplace
from tests.privacy.mechanisms.contract import DensityContract
from tests.privacy.reference import oracle


class TestLaplace(DensityContract):
    EXAMPLES = (
        Laplace(name="a", scale=Fraction(2)),
        Laplace(name="b", scale=Fraction("1.3"), sensitivity=Fraction("2.5")),
    )

    def density(self, mechanism: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = oracle.laplace_density(mechanism.scale)
        return found
