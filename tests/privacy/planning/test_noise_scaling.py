"""The factor on the noise with which a refused plan would have fitted."""

from fractions import Fraction

import pytest

from service.privacy.accounting.pricing import price
from service.privacy.accounting.privacy_filter import Budget, Definition, open_weights, shortfalls
from service.privacy.accounting.pure import plan_epsilon
from service.privacy.accounting.totals import Totals, add_price, price_as_charged
from service.privacy.accounting.zcdp import plan_rho
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Osgt,
    RandomizedResponse,
)
from service.privacy.planning.noise_scaling import noise_multiplier, scaled
from service.privacy.plans import Choice, Group, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import nats

ADD = Neighbouring.ADD_REMOVE
STEP = Fraction(1, 10**6)


def test_every_noise_scale_is_multiplied() -> None:
    plan = Sequence(
        parts=(
            Geometric(scale=Fraction(2), name="a"),
            Repeat(part=Laplace(scale=Fraction(3)), count=2),
            Choice(parts=(DiscreteGaussian(sigma_squared=Fraction(4)),)),
            Parallel(parts=(Gaussian(sigma_squared=Fraction(5)),), max_degree=2, tags=("t",)),
            Group(part=DiscreteOsgt(sigma_squared=Fraction(6), m=Fraction(2)), size=3),
            Osgt(sigma_squared=Fraction(7), m=Fraction(3)),
        )
    )
    assert scaled(plan, Fraction(3, 2)) == Sequence(
        parts=(
            Geometric(scale=Fraction(3), name="a"),
            Repeat(part=Laplace(scale=Fraction(9, 2)), count=2),
            Choice(parts=(DiscreteGaussian(sigma_squared=Fraction(9)),)),
            Parallel(parts=(Gaussian(sigma_squared=Fraction(45, 4)),), max_degree=2, tags=("t",)),
            Group(part=DiscreteOsgt(sigma_squared=Fraction(27, 2), m=Fraction(3)), size=3),
            Osgt(sigma_squared=Fraction(63, 4), m=Fraction(9, 2)),
        )
    )


@pytest.mark.parametrize("left", ["0.9999999", "0.7", "0.5", "1/3", "0.01", "1e-6"])
def test_pure_loss_falls_with_the_scale(left: str) -> None:
    """Epsilon 1 fits what is left of it at a factor of 1/left, found to a millionth."""
    plan = Geometric(scale=Fraction(1))
    found = noise_multiplier(plan, lambda louder: nats(plan_epsilon(louder, ADD)) <= Fraction(left))
    assert found is not None
    assert found % STEP == 0
    assert 1 / Fraction(left) <= found <= 1 / Fraction(left) * (1 + STEP) + STEP


@pytest.mark.parametrize("left", ["0.3", "1e-4"])
def test_rho_falls_with_the_square(left: str) -> None:
    plan = Repeat(part=DiscreteGaussian(sigma_squared=Fraction(1, 2)), count=7)
    fits = Fraction(left)
    found = noise_multiplier(plan, lambda louder: nats(plan_rho(louder, ADD)) <= fits)
    assert found is not None
    assert 7 / found**2 <= fits
    assert 7 / (found * (1 - 2 * STEP) - STEP) ** 2 > fits


def test_it_fits_an_approximate_account_with_little_left() -> None:
    budget = Budget(definition=Definition.APPROXIMATE, cap=Fraction(1), delta=Fraction(1, 10**6))
    weights = open_weights(budget)
    spent = add_price(Totals(), price(Gaussian(sigma_squared=Fraction(100)), ADD, weights.orders))

    def fits(plan: Plan) -> bool:
        after = add_price(spent, price_as_charged(spent, price(plan, ADD, weights.orders)))
        return not shortfalls(budget, weights, spent, after)

    plan = Sequence(parts=(Geometric(scale=Fraction(1)), DiscreteGaussian(sigma_squared=Fraction(1))))
    found = noise_multiplier(plan, fits)
    assert found is not None
    assert found > 1
    assert fits(scaled(plan, found))
    assert not fits(scaled(plan, found * (1 - 2 * STEP)))


def test_noise_does_not_help_everything() -> None:
    declared = Declared(guarantee=Declaration(epsilon=Fraction(1)), reference="a proof")
    for other in (declared, RandomizedResponse(epsilon=Fraction(1))):
        assert noise_multiplier(Sequence(parts=(Geometric(scale=Fraction(1)), other)), lambda plan: True) is None
    asked: list[Plan] = []

    def never(plan: Plan) -> bool:
        asked.append(plan)
        return False

    assert noise_multiplier(Geometric(scale=Fraction(1)), never) is None
    assert len(asked) < 30


def test_a_noise_multiplier_takes_few_prices() -> None:
    asked: list[Plan] = []

    def fits(plan: Plan) -> bool:
        asked.append(plan)
        return nats(plan_epsilon(plan, ADD)) <= Fraction(1, 10**11)

    assert noise_multiplier(Geometric(scale=Fraction(1)), fits) is not None
    assert len(asked) < 60
