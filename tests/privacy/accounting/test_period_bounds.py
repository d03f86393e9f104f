"""The bound of all that was released against the composition of every set of periods (P-13)."""

from fractions import Fraction
from itertools import combinations
from random import Random

import pytest

from service.privacy.accounting.guarantee import Guarantee, guarantee
from service.privacy.accounting.period_bounds import dominating
from service.privacy.mechanisms import Declaration, Declared, DiscreteGaussian, Geometric, RandomizedResponse
from service.privacy.numerics.loss import Loss
from service.privacy.periods import ALL, PeriodSet, set_of
from service.privacy.plans import Plan, Sequence
from service.privacy.plans.walking import Neighbouring

DELTAS = (Fraction(1, 10**6), Fraction(1, 10**3))
_KINDS: list[Plan] = [
    DiscreteGaussian(sigma_squared=Fraction(30)),
    Geometric(scale=Fraction(4)),
    RandomizedResponse(epsilon=Fraction(1), values=40),
    Declared(guarantee=Declaration(epsilon=Fraction(1, 9), delta=Fraction(1, 10**8)), reference="a proof"),
    Declared(guarantee=Declaration(rdp=((Fraction(9), Fraction(1, 5)),)), reference="a proof"),
]


def _of(plan: Plan, relation: Neighbouring) -> Guarantee:
    return guarantee(plan, relation, deltas=DELTAS, adaptive=False)


def _figures(found: Guarantee) -> list[Loss]:
    return [found.epsilon, found.rho, Loss(found.delta), *(loss for _, loss in found.rdp)]


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_figure_is_below_that_of_a_set_of_periods(number: int, relation: Neighbouring) -> None:
    random = Random(f"{number} {relation}")
    kinds = [one for one in _KINDS if relation is Neighbouring.REPLACE_ONE or not isinstance(one, RandomizedResponse)]
    for _ in range(2):
        made: list[tuple[PeriodSet, Plan]] = [(ALL, random.choice(kinds))]
        for _ in range(7):
            some = random.sample(range(4), random.randrange(1, 3))
            made.append((set_of((one, one) for one in some), random.choice(kinds)))
        for period in (None, 0, 9):
            bound = _of(dominating(made, relation, number, period), relation)
            units = [one for one in combinations((*range(4), 9), number) if period is None or period in one]
            for unit in units:
                read = [plan for read, plan in made if read.everything or any(one in read for one in unit)]
                held = _of(Sequence(parts=tuple(read)), relation)
                assert not any(one < other for one, other in zip(_figures(bound), _figures(held), strict=True))
                for shown, best in zip(bound.best, held.best, strict=True):
                    assert shown.fixed is None or (
                        best.fixed is not None and not shown.fixed.epsilon < best.fixed.epsilon
                    )


def test_equal_periods_of_gaussian_noise_are_composed_exactly() -> None:
    noise = DiscreteGaussian(sigma_squared=Fraction(50))
    made: list[tuple[PeriodSet, Plan]] = [(PeriodSet(((month, month),)), noise) for month in range(20)]
    bound = _of(dominating([*made, (ALL, noise)], Neighbouring.ADD_REMOVE, 3, None), Neighbouring.ADD_REMOVE)
    assert bound.rho.nats == Fraction(4, 100)
    assert all(loss.nats == order * Fraction(4, 100) for order, loss in bound.rdp)


def test_nothing_is_lost_where_nothing_was_released() -> None:
    found = _of(dominating([], Neighbouring.ADD_REMOVE, 3, None), Neighbouring.ADD_REMOVE)
    assert [loss.nats for loss in _figures(found)] == [0] * len(_figures(found))
