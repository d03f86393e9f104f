"""Many charges at once are what they are one by one, and taken away again they leave nothing."""

from fractions import Fraction
from random import Random

from service.privacy.accounting.pricing import Price
from service.privacy.accounting.totals import Totals, add_price, add_prices, add_totals

_ORDERS = 3


def _amount(random: Random) -> Price:
    def some() -> Fraction:
        return Fraction(random.choice((0, random.randrange(10**6))), random.choice((1, 7, 10**6 + 3, 3 * 10**18)))

    curve = tuple(random.choice((None, 0, random.randrange(10**16))) for _ in range(_ORDERS))
    return Price(
        epsilon=random.choice((None, some())),
        rho=random.choice((None, some())),
        delta=some(),
        linear=some(),
        quanta=random.choice(((), curve)),
    )


def test_charges_at_once_are_those_one_by_one() -> None:
    random = Random(5)
    for size in (0, 1, 5, 200):
        amounts = [(_amount(random), random.randrange(4)) for _ in range(size)]
        before, one_by_one = add_price(Totals(), _amount(random)), Totals()
        for amount, count in amounts:
            for _ in range(count):
                one_by_one = add_price(one_by_one, amount)
        assert add_prices(Totals(), amounts) == one_by_one
        both = add_totals(before, one_by_one)
        assert both == add_prices(before, amounts)
        assert add_prices(both, [(amount, -count) for amount, count in amounts]) == before
        assert add_totals(before, Totals()) == add_totals(Totals(), before) == before
        for amount, count in amounts:
            for _ in range(count):
                both = add_prices(both, [(amount, -1)])
        assert both == before
