"""Gaussian noise answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Gaussian
from tests.privacy.mechanisms.contract import DensityContract
from tests.privacy.reference import oracle


class TestGaussian(DensityContract):
    EXAMPLES = (
        Gaussian(name="a", sigma_squared=Fraction(4)),
        Gaussian(name="b", sigma_squared=Fraction(7), sensitivity=Fraction("0.3")),
    )

    def density(self, mechanism: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = oracle.gaussian_density(mechanism.sigma_squared)
        return found
