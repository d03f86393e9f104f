"""Declared guarantees answer as a mechanism must: by the worst mechanism that has the guarantee."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from service.errors import InvalidInput
from service.privacy.laws.loss_laws import ListedLoss, LossMasses
from service.privacy.mechanisms import Declaration, Declared
from service.privacy.plans.notation import check_relation, read_plan
from service.privacy.plans.walking import Neighbouring
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.test_randomized_response import answers
from tests.privacy.reference import mp

CURVE = tuple((Fraction(order), Fraction(order) / 5) for order in (2, 4, 512))


def _gaussian_moment(mu: Any, alpha: Any) -> Any:
    """E_q (p/q)^alpha of two normal densities that are mu apart, by quadrature."""
    points = [alpha * mu + k for k in range(-40, 41, 4)]
    return mp.quad(lambda x: mp.npdf(x) * mp.exp(alpha * (mu * x - mu * mu / 2)), points)


def listed(mass: str, infinite: str = "0") -> ListedLoss:
    """A loss of 1/2 with a probability, and of as much less; the one of -1/2 is stated a little larger than it is."""
    p = Fraction(mass)
    low = p * Fraction("0.60653065971263343")
    masses = LossMasses(-1, (low, 1 - p - low - Fraction(infinite), p), Fraction(infinite))
    return ListedLoss(Fraction(1, 2), masses, masses)


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
        Declared(name="i", guarantee=Declaration(pld=listed("1/5")), reference="a test"),
        Declared(name="j", guarantee=Declaration(pld=listed("1/5", "1e-9")), reference="a test"),
        Declared(name="d", guarantee=Declaration(rdp=CURVE, delta=Fraction(1, 10**9)), reference="a test"),
    )

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """Two-valued response has the largest divergence of what is epsilon-DP, Gaussian noise of what is rho-zCDP."""
        a, stated = number(alpha), mechanism.guarantee
        bounds = []
        if stated.pld is not None:
            pld = stated.pld
            if times > 1:
                return self.tau(replace(mechanism, guarantee=Declaration(epsilon=pld.largest * times)), alpha)
            p, w = number(pld.remove.masses[-1]), number(pld.infinite)
            low = p * mp.exp(-mp.mpf(1) / 2)
            moment = mp.fsum(mass * mp.exp((a - 1) * x / 2) for mass, x in ((p, 1), (low, -1), (1 - w - p - low, 0)))
            return mp.log(moment / (1 - w)) / (a - 1)
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
        if stated.pld is not None:
            p, e = number(stated.pld.remove.masses[-1]), number(epsilon)
            return number(stated.pld.infinite) + max(p * (1 - mp.exp(e - mp.mpf(1) / 2)), mp.mpf(0))
        if stated.mu is not None and (stated.epsilon is None or stated.mu < 1):
            mu, e = number(stated.mu), number(epsilon)
            lost = number(stated.delta)
            return lost + (1 - lost) * (mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu))
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.guarantee.epsilon, 2))


def _pmf(values: Any = ("0.25", "0", "0.75"), key: Any = -1, interval: Any = "1", **fields: Any) -> Any:
    return {"pessimistic_pmf": {"min_key": key, "values": list(values), "discretization_interval": interval, **fields}}


_VALUES = "/pld/symmetric/pessimistic_pmf/values"


@pytest.mark.parametrize(
    ("pld", "pointer", "words"),
    [
        ({"remove": _pmf()}, "/pld", "expected symmetric, or both remove and add; got ['remove']"),
        ({"add": _pmf()}, "/pld", "got ['add']"),
        ({}, "/pld", "got []"),
        ({"symmetric": _pmf(), "add": _pmf()}, "/pld", "got ['add', 'symmetric']"),
        ({"symmetric": _pmf(["0.2", "-0.1", "0.9"])}, f"{_VALUES}/1", "expected a number of at least 0 and at most 1"),
        ({"symmetric": _pmf(["0.2", "0", "1.1"])}, f"{_VALUES}/2", "expected a number of at least 0 and at most 1"),
        ({"symmetric": _pmf(["0.2", "0.2", "0.61"])}, _VALUES, "expected probabilities that add up to at most 1"),
        ({"symmetric": _pmf(infinity_mass="0.1")}, _VALUES, "add up to at most 1, got 1.1000000000 with infinity_mass"),
        (
            {"symmetric": _pmf(infinity_mass="1")},
            "/pld/symmetric/pessimistic_pmf/infinity_mass",
            "expected a number of at least 0 and below 1",
        ),
        ({"symmetric": _pmf(["0", "0"])}, _VALUES, "expected finite losses of some probability"),
        ({"symmetric": _pmf(interval="301", key=-2)}, _VALUES, "expected losses between -600 and 600 nats"),
        (
            {"symmetric": _pmf(interval="0")},
            "/pld/symmetric/pessimistic_pmf/discretization_interval",
            "expected a number above 0",
        ),
        (
            {"remove": _pmf(), "add": _pmf(interval="0.5", values=["0.1", "0.1", "0.8"])},
            "/pld/add/pessimistic_pmf/discretization_interval",
            "expected that of remove, 1, got 1/2",
        ),
        ({"symmetric": _pmf(["0.4", "0", "0.6"])}, _VALUES, "expected E exp(-L) of at most 1"),
        ({"remove": _pmf(), "add": _pmf(["0.4", "0", "0.6"])}, "/pld/add/pessimistic_pmf/values", "rounded down"),
    ],
)
def test_losses_without_a_meaning(pld: Any, pointer: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_plan({"type": "declared", "reference": "a proof", "name": "a", "pld": pld})
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
    assert words in refused.value.faults[0].detail


@pytest.mark.parametrize("other", [{"epsilon": "1"}, {"delta": "1e-9"}, {"rho": "1", "mu": "1"}])
def test_listed_losses_are_stated_alone(other: Any) -> None:
    with pytest.raises(InvalidInput, match="/pld"):
        read_plan({"type": "declared", "reference": "a proof", "name": "a", "pld": {"symmetric": _pmf()}} | other)


def test_what_is_missing_from_1_is_lost() -> None:
    plan = read_plan(
        {"type": "declared", "reference": "-", "name": "a", "pld": {"symmetric": _pmf(["0.2", "0", "0.7"])}}
    )
    assert isinstance(plan, Declared)
    assert plan.delta().nats == Fraction(1, 10)
    assert plan.pure_epsilon().nats == 1


def test_rounded_probabilities_may_be_a_little_above_1() -> None:
    """Doubles seldom add up; what is above 1 is no probability of an infinite loss."""
    plan = read_plan(
        {"type": "declared", "reference": "-", "name": "a", "pld": {"symmetric": _pmf(["0.25", "1e-12", "0.75"])}}
    )
    assert isinstance(plan, Declared)
    assert plan.delta().nats == 0


def test_unlike_directions_have_no_meaning_under_replace_one() -> None:
    pld = {"remove": _pmf(), "add": _pmf(["0.2", "0", "0.8"])}
    plan = read_plan({"type": "declared", "reference": "a proof", "name": "a", "pld": pld})
    check_relation(plan, Neighbouring.ADD_REMOVE)
    with pytest.raises(InvalidInput, match="/pld"):
        check_relation(plan, Neighbouring.REPLACE_ONE)


@pytest.mark.parametrize(
    ("whole", "side", "missing"),
    [
        ({"pld": {"symmetric": _pmf()}}, {"pld": {"remove": _pmf(), "add": _pmf(["0.2", "0", "0.8"])}}, None),
        ({"pld": {"symmetric": _pmf()}}, {"epsilon": "1"}, None),
        ({"epsilon": "1", "rho": "1"}, {"pld": {"symmetric": _pmf()}}, None),
        ({"pld": {"symmetric": _pmf()}}, {"rho": "1"}, "['pld']"),
        ({"epsilon": "1", "rho": "1"}, {"epsilon": "1"}, "['rho']"),
    ],
)
def test_the_loss_of_one_side_has_the_same_figures(whole: Any, side: Any, missing: str | None) -> None:
    document = {"type": "declared", "reference": "a proof", "name": "a", "add_remove": side} | whole
    if missing is None:
        check_relation(read_plan(document), Neighbouring.REPLACE_ONE)
    else:
        with pytest.raises(InvalidInput) as refused:
            read_plan(document)
        assert refused.value.faults[0].pointer == "/add_remove"
        assert refused.value.faults[0].detail.endswith(missing)
