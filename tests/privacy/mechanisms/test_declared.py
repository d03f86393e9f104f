"""Declared guarantees answer as a mechanism must: by the worst mechanism that has the guarantee."""

from fractions import Fraction
from typing import Any

from service.privacy.mechanisms import Declaration, Declared
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.test_randomized_response import answers
from tests.privacy.reference import mp

CURVE = tuple((Fraction(order), Fraction(order) / 5) for order in (2, 4, 512))


def _gaussian_moment(mu: Any, alpha: Any) -> Any:
    """E_q (p/q)^alpha of two normal densities that are mu apart, by quadrature."""
    points = [alpha * mu + k for k in range(-40, 41, 4)]
    return mp.quad(lambda x: mp.npdf(x) * mp.exp(alpha * (mu * x - mu * mu / 2)), points)


class TestDeclared(MechanismContract):
    EXACT = False
    EXAMPLES = (
        Declared(name="a", guarantee=Declaration(epsilon=Fraction("0.5")), reference="a test"),
        Declared(name="b", guarantee=Declaration(rho=Fraction("0.2")), reference="a test"),
        Declared(name="c", guarantee=Declaration(epsilon=Fraction(2), rho=Fraction("0.3")), reference="a test"),
        Declared(name="e", guarantee=Declaration(mu=Fraction("0.7")), reference="a test"),
        Declared(name="f", guarantee=Declaration(mu=Fraction("1/3"), delta=Fraction(1, 10**9)), reference="a test"),
        Declared(name="g", guarantee=Declaration(mu=Fraction(2), epsilon=Fraction("0.5")), reference="a test"),
        Declared(name="h", guarantee=Declaration(mu=Fraction("0.5"), epsilon=Fraction(5)), reference="a test"),
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
        if stated.mu is not None:
            mu = number(stated.mu) * times
            bounds.append(mp.log(_gaussian_moment(mu, a)) / (a - 1) if not stated.delta or times == 1 else mp.inf)
        return min(bounds)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        stated = mechanism.guarantee
        if stated.mu is not None and (stated.epsilon is None or stated.mu < 1):
            mu, e = number(stated.mu), number(epsilon)
            lost = number(stated.delta)
            return lost + (1 - lost) * (mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu))
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.guarantee.epsilon, 2))
