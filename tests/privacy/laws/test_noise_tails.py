"""Tails on one side, against sums over the integers in mpmath."""

from fractions import Fraction
from typing import Any

import pytest
from flint import ctx

from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.noise_tails import tail, upper_tail
from tests.privacy.accuracy.test_tails import contains, endpoint
from tests.privacy.reference import mp, oracle

LAWS: list[tuple[NoiseLaw, Any]] = [
    (NoiseLaw(scale=Fraction("0.4")), oracle.geometric("0.4")),
    (NoiseLaw(scale=Fraction(3)), oracle.geometric(3)),
    (NoiseLaw(sigma_squared=Fraction("0.3")), oracle.discrete_gaussian("0.3")),
    (NoiseLaw(sigma_squared=Fraction(20)), oracle.discrete_gaussian(20)),
    (NoiseLaw(sigma_squared=Fraction(20), scale=Fraction(5)), oracle.discrete_osgt(20, 4)),
]


@pytest.mark.parametrize(("law", "log_mass"), LAWS, ids=lambda one: str(one) if isinstance(one, NoiseLaw) else "")
@pytest.mark.parametrize("precision", [53, 150])
def test_the_ball_contains_the_probability_and_is_narrow(law: NoiseLaw, log_mass: Any, precision: int) -> None:
    with mp.workdps(80):
        masses = oracle.pmf(log_mass, 200)
        for first in (-12, -3, -1, 0, 1, 2, 3, 9, 14):
            truth = mp.fsum(p for x, p in masses.items() if x >= first)
            with ctx.workprec(precision):
                found = upper_tail(law, first)
            assert contains(found, truth)
            assert endpoint(found.rad()) < mp.mpf(2) ** (12 - precision)


@pytest.mark.parametrize(("law", "_"), LAWS, ids=lambda one: str(one) if isinstance(one, NoiseLaw) else "")
def test_both_sides_are_alike(law: NoiseLaw, _: Any) -> None:
    with ctx.workprec(200):
        for first in range(1, 9):
            assert (2 * upper_tail(law, first)).overlaps(tail(law, first - 1))
            assert (upper_tail(law, first) + upper_tail(law, 1 - first)).overlaps(1)
