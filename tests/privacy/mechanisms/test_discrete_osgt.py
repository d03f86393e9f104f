"""Integer noise with offset tails answers as a mechanism must."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt
from tests.privacy.mechanisms.contract import IntegerContract
from tests.privacy.reference import oracle


class TestDiscreteOsgt(IntegerContract):
    EXAMPLES = (
        DiscreteOsgt(name="a", sigma_squared=Fraction(9), m=Fraction(2)),
        DiscreteOsgt(name="b", sigma_squared=Fraction(30), m=Fraction("1.5"), sensitivity=2),
        DiscreteOsgt(name="c", sigma_squared=Fraction(12), m=Fraction(4), granularity=Fraction(10)),
        DiscreteOsgt(name="d", sigma_squared=Fraction(5), m=Fraction(0)),
        DiscreteOsgt(name="e", sigma_squared=Fraction(9), m=Fraction(2), threshold=15),
    )

    def log_mass(self, mechanism: Any) -> Any:
        return oracle.discrete_osgt(mechanism.sigma_squared, mechanism.m)

    def test_without_an_offset_it_is_the_discrete_gaussian(self) -> None:
        mechanism = DiscreteOsgt(sigma_squared=Fraction(5), m=Fraction(0), sensitivity=2, granularity=Fraction(3))
        assert mechanism.simplest() == DiscreteGaussian(sigma_squared=Fraction(5), sensitivity=2)
