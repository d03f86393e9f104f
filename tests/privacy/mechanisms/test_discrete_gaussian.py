"""Discrete Gaussian noise answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import DiscreteGaussian
from tests.privacy.mechanisms.contract import IntegerContract
from tests.privacy.reference import oracle


class TestDiscreteGaussian(IntegerContract):
    EXAMPLES = (
        DiscreteGaussian(name="a", sigma_squared=Fraction(9)),
        DiscreteGaussian(name="b", sigma_squared=Fraction("0.8"), sensitivity=2),
        DiscreteGaussian(name="c", sigma_squared=Fraction(40), sensitivity=3, granularity=Fraction(1, 4)),
        DiscreteGaussian(name="d", sigma_squared=Fraction(9), sensitivity=2, threshold=18),
    )

    def log_mass(self, mechanism: Any) -> Any:
        return oracle.discrete_gaussian(mechanism.sigma_squared)
