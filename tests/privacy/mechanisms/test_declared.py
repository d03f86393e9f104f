"""Declared guarantees answer as a mechanism must: by the worst mechanism that has the guarantee."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Declaration, Declared
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.test_randomized_response import answers
from tests.privacy.reference import mp

CURVE = tuple((Fraction(order), Fraction(order) / 5) for order in (2, 4, 512))


class TestDeclared(MechanismContract):
    EXACT = False
    EXAMPLES = (
        Declared(name="a", guarantee=Declaration(epsilon=Fraction("0.5")), reference="a test"),
        Declared(name="b", guarantee=Declaration(rho=Fraction("0.2")), reference="a test"),
        Declared(name="c", guarantee=Declaration(epsilon=Fraction(2), rho=Fraction("0.3")), reference="a test"),
        Declared(name="d", guarantee=Declaration(rdp=CURVE, delta=Fraction(1, 10**9)), reference="a test"),
    )

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """Two-valued response has the largest divergence of what is epsilon-DP, Gaussian noise of what is rho-zCDP."""
        a, stated = number(alpha), mechanism.guarantee
        bounds = []
        if stated.epsilon is not None:
            bounds.append(mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in answers(stated.epsilon * times, 2))) / (a - 1))
        if stated.rdp:
            bounds.append(
                a / 5 if times == 1 else mp.inf
            )  # a chord between points of a line through (1, 0) is above it
        if stated.rho is not None:
            bounds.append(number(stated.rho) * a * times**2)
        return min(bounds)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.guarantee.epsilon, 2))
