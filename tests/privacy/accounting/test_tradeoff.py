"""Lower bounds on false negatives, against the best tests: those of Neyman and Pearson, by their likelihood ratios."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting.tradeoff import false_negatives
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    RandomizedResponse,
)
from service.privacy.plans import Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import exactly, mp, oracle
from tests.privacy.tight import exact

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
SHARES = ["1e-6", "0.001", "0.05", "0.5", "0.95"]


def found(plan: Plan, share: str, neighbouring: Neighbouring = ADD) -> Fraction:
    return false_negatives(plan, neighbouring, [Fraction(share)])[0]


def neyman_pearson(atoms: exact.Atoms, share: Any) -> Any:
    """The false negatives of the best test: it accuses where the loss is largest, and at the last loss by chance.

    Args:
        atoms: the loss under the accused neighbour, by its value.
        share: the false positives.
    """
    left, missed = share, mp.mpf(1)
    for loss in sorted(atoms, reverse=True):
        accused = atoms[loss]
        wrongly = accused * mp.exp(-loss)
        if wrongly >= left:
            return missed - accused * left / wrongly
        left, missed = left - wrongly, missed - accused
    return mp.mpf(0)


ATOMS: dict[str, tuple[Plan, Neighbouring, Callable[[], exact.Atoms]]] = {
    "geometric": (Geometric(scale=Fraction(2)), ADD, lambda: exact.noise(oracle.geometric("2"), 1)),
    "steps": (Geometric(scale=Fraction(3), sensitivity=4), ADD, lambda: exact.noise(oracle.geometric("3"), 4)),
    "response": (RandomizedResponse(epsilon=Fraction(2), values=7), REPLACE, lambda: exact.response("2", 7)),
    "gaussian": (
        DiscreteGaussian(sigma_squared=Fraction(3)),
        ADD,
        lambda: exact.noise(oracle.discrete_gaussian("3"), 1),
    ),
    "five": (
        Repeat(part=Geometric(scale=Fraction(1)), count=5),
        ADD,
        lambda: exact.composed([exact.noise(oracle.geometric("1"), 1)] * 5),
    ),
}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", ATOMS)
def test_the_best_test_misses_as_often(name: str, share: str) -> None:
    plan, neighbouring, atoms = ATOMS[name]
    with mp.workdps(60):
        truth = exactly(neyman_pearson(atoms(), oracle.number(share)))
    bound = found(plan, share, neighbouring)
    assert truth * (1 - Fraction(1, 10**5)) <= bound <= truth


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    "plan",
    [
        Gaussian(sigma_squared=Fraction(4)),
        Repeat(part=Gaussian(sigma_squared=Fraction(36)), count=9),
        Declared(guarantee=Declaration(mu=Fraction(1, 2)), reference="a proof"),
    ],
)
def test_gaussian_noise_has_the_trade_off_of_two_normal_variables(plan: Plan, share: str) -> None:
    with mp.workdps(40):
        quantile = mp.sqrt(2) * mp.erfinv(1 - 2 * oracle.number(share))
        truth = exactly(mp.ncdf(quantile - mp.mpf(1) / 2))
    assert truth * (1 - Fraction(1, 10**5)) <= found(plan, share) <= truth


@pytest.mark.parametrize("share", ["0.01", "0.2"])
def test_laplace_noise_has_the_trade_off_of_two_such_variables(share: str) -> None:
    """Laplace noise of scale 1: 1 - e a up to a = 1/(2e), and 1/(4 e a) up to 1/2."""
    a = oracle.number(share)
    truth = 1 - mp.e * a if a < mp.exp(-1) / 2 else 1 / (4 * mp.e * a)
    bound = found(Laplace(scale=Fraction(1)), share)
    assert exactly(truth) * (1 - Fraction(1, 10**5)) <= bound <= exactly(truth)


@pytest.mark.parametrize("share", SHARES)
def test_what_loses_nothing_is_not_tested_better_than_by_chance(share: str) -> None:
    assert found(Sequence(parts=()), share) == pytest.approx(1 - Fraction(share), rel=1e-9)


def test_what_may_lose_everything_may_miss_nothing() -> None:
    lost = Declared(guarantee=Declaration(epsilon=Fraction(0), delta=Fraction(9, 10)), reference="a proof")
    assert found(lost, "0.05") == pytest.approx(0.05, rel=1e-6)
    assert found(lost, "0.2") == 0


@pytest.mark.parametrize("share", SHARES)
def test_without_a_tight_figure_other_analyses_bound_the_test(share: str) -> None:
    """A declared rho has none; what is missed is between the bound by Gaussian noise and chance."""
    declared = Declared(guarantee=Declaration(rho=Fraction(1, 8)), reference="a proof")
    least = found(declared, share)
    assert 0 < least < found(Gaussian(sigma_squared=Fraction(4)), share)
    assert least > found(Declared(guarantee=Declaration(rho=Fraction(1, 2)), reference="a proof"), share)
