"""The exponential mechanism answers as a mechanism must, for all that an adversary may choose."""

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting.pure import plan_epsilon
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.accounting.zcdp import mechanism_rho, plan_rho
from service.privacy.mechanisms import Declaration, Declared, Exponential
from service.privacy.plans import Choice, Group, Parallel, Repeat
from service.privacy.plans.walking import Neighbouring
from service.privacy.tight import TightProfile
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.reference import exactly, mp, nats

ONE, BOTH = Neighbouring.ADD_REMOVE, list(Neighbouring)
ORDERS = (Fraction("1.001"), Fraction(2), Fraction("7.5"), Fraction(100))


def of_range(epsilon: Any, t: Any) -> list[tuple[Any, Any]]:
    """The two laws whose losses are t and t - epsilon."""
    p = (mp.exp(epsilon) - mp.exp(t)) / mp.expm1(epsilon)
    return [(p, p * mp.exp(-t)), (1 - p, (1 - p) * mp.exp(epsilon - t))]


def largest(function: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """The largest value between two numbers, by a search on a grid and then between its points."""
    step = (high - low) / 64
    middle = max((low + step * k for k in range(65)), key=function)
    low, high = max(middle - step, low), min(middle + step, high)
    for _ in range(80):
        left, right = low + (high - low) * mp.mpf("0.382"), low + (high - low) * mp.mpf("0.618")
        low, high = (low, right) if function(left) > function(right) else (left, high)
    return function((low + high) / 2)


def renyi(both: Sequence[tuple[Any, Any]], a: Any) -> Any:
    return mp.log(mp.fsum(p**a * q ** (1 - a) for p, q in both if p > 0)) / (a - 1)


def hockey_stick(both: Sequence[tuple[Any, Any]], epsilon: Any) -> Any:
    return mp.fsum(max(p - mp.exp(epsilon) * q, mp.mpf(0)) for p, q in both)


class TestExponential(MechanismContract):
    EXAMPLES = (
        Exponential(name="a", epsilon=Fraction("0.3")),
        Exponential(name="b", epsilon=Fraction(2), sensitivity=Fraction(3, 4)),
        Exponential(name="c", epsilon=Fraction(1, 300), scores="monotone"),
    )

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        """The range grows ``times``-fold."""
        with mp.workdps(60):
            epsilon, a = number(mechanism.epsilon * times), number(alpha)
            return largest(lambda t: renyi(of_range(epsilon, t), a), mp.mpf(0), epsilon)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        """A loss t at or below epsilon gives none."""
        with mp.workdps(60):
            width, least = number(mechanism.epsilon), number(epsilon)
            return largest(lambda t: hockey_stick(of_range(width, t), least), least, width)


def selected(scores: Sequence[Any], factor: Any) -> list[Any]:
    """The probabilities of the exponential mechanism."""
    weights = [mp.exp(factor * score) for score in scores]
    return [weight / mp.fsum(weights) for weight in weights]


def flipped(scores: Sequence[Any], factor: Any) -> list[Any]:
    """The probabilities of permute-and-flip, by enumeration of the orders."""
    accepted = [mp.exp(factor * (score - max(scores))) for score in scores]
    orders = list(itertools.permutations(range(len(scores))))
    found = [mp.mpf(0)] * len(scores)
    for order in orders:
        left = mp.mpf(1) / len(orders)
        for place in order:
            found[place] += left * accepted[place]
            left *= 1 - accepted[place]
    return found


def neighbours(monotone: bool) -> list[tuple[list[int], list[int]]]:
    """Scores, and those after one change that moves each by at most 1; all upward where they are ``monotone``."""
    chance = random.Random(1)
    found = []
    for size in (2, 2, 3, 3, 5, 9):
        scores = [chance.randint(0, 6) for _ in range(size)]
        found.append((scores, [score + chance.choice([0, 1] if monotone else [-1, 1]) for score in scores]))
    return [*found, ([0, 0], [1, 0] if monotone else [1, -1]), ([5, 0, 0], [5, 1, 1] if monotone else [4, 1, 1])]


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("epsilon", ["0.2", "1", "4"])
def test_no_exponential_mechanism_loses_more(epsilon: str, monotone: bool) -> None:
    """In either direction, by all notions."""
    mechanism = Exponential(name="a", epsilon=Fraction(epsilon))
    factor = number(mechanism.epsilon) / (1 if monotone else 2)
    profile = TightProfile.of(mechanism, ONE)
    assert profile is not None
    for one, two in neighbours(monotone):
        p, q = selected(one, factor), selected(two, factor)
        for both in (list(zip(p, q, strict=True)), list(zip(q, p, strict=True))):
            for alpha in ORDERS:
                assert exactly(renyi(both, number(alpha))) <= nats(mechanism_tau(mechanism, alpha))
            assert exactly(mp.fsum(x * mp.log(x / y) for x, y in both)) <= nats(mechanism.rho())
            for part in (Fraction(0), Fraction(1, 4), Fraction(4, 5)):
                found = profile.delta(mechanism.epsilon * part)
                assert found is not None
                assert exactly(hockey_stick(both, number(mechanism.epsilon * part))) <= nats(found.loss)


def test_two_candidates_lose_as_much_in_one_direction_only() -> None:
    """With odds of e^t the loss is that of the worst pair, and in the other direction it is less."""
    mechanism, alpha = Exponential(name="a", epsilon=Fraction(2)), Fraction(16)
    epsilon, a = number(mechanism.epsilon), number(alpha)
    losses = []
    for k in range(1, 200):
        both = of_range(epsilon, epsilon * k / 200)
        losses.append((renyi(both, a), renyi([(q, p) for p, q in both], a)))
    found = number(nats(mechanism_tau(mechanism, alpha)))
    worst, other = max(losses)
    assert other < worst * mp.mpf("0.9")
    assert worst <= found <= worst * mp.mpf("1.001")


def ratio(epsilon: Any, a: Any) -> Any:
    """The largest divergence of an order, divided by it."""
    return largest(lambda t: renyi(of_range(epsilon, t), a), mp.mpf(0), epsilon) / a


@pytest.mark.parametrize("epsilon", ["1/1000", "0.5", "1", "3", "30"])
def test_rho_is_the_largest_of_all_orders(epsilon: str) -> None:
    """So neither epsilon²/2 nor epsilon²/8 is it."""
    mechanism = Exponential(epsilon=Fraction(epsilon))
    rho, width = nats(mechanism.rho()), number(mechanism.epsilon)
    with mp.workdps(50):
        for order in ("1e-9", "1e-3", "0.1", "1", "30"):
            found = exactly(ratio(width, 1 + mp.mpf(order)))
            assert found <= rho
            assert order != "1e-9" or found >= rho * (1 - Fraction(1, 10**7))


@pytest.mark.parametrize("epsilon", ["1e-300", "1e-30", "1e-6", "299", "301", "800", "1e6"])
def test_rho_is_at_most_an_eighth_of_the_square(epsilon: str) -> None:
    rho = nats(Exponential(epsilon=Fraction(epsilon)).rho())
    assert 0 < rho <= min(Fraction(epsilon) ** 2 / 8, Fraction(epsilon)) * (1 + Fraction(1, 10**20))


def test_permute_and_flip_has_no_bounded_range() -> None:
    """It loses up to four times as much by zCDP: only its pure epsilon can be declared."""
    epsilon = Fraction(1, 100)
    declared = Declared(guarantee=Declaration(epsilon=epsilon), reference="a proof")
    p, q = (flipped(scores, number(epsilon / 2)) for scores in ([1, 1], [2, 0]))
    divergence = exactly(mp.fsum(x * mp.log(x / y) for x, y in zip(p, q, strict=True)))
    assert nats(Exponential(epsilon=epsilon).rho()) * Fraction(39, 10) < divergence <= nats(declared.rho())
    losses = [mp.log(x / y) for x, y in zip(p, q, strict=True)]
    assert max(losses) <= number(epsilon) * (1 + mp.mpf(10) ** -12)
    assert max(losses) - min(losses) > number(epsilon) * mp.mpf("1.9")


@pytest.mark.parametrize("relation", BOTH)
def test_it_is_composed_as_any_other(relation: Neighbouring) -> None:
    one = Exponential(name="a", epsilon=Fraction(1, 2))
    rho = mechanism_rho(one)
    tenfold = plan_rho(Repeat(part=one, count=10), relation)
    assert nats(rho) * 10 <= nats(tenfold) <= nats(rho) * 10 * (1 + Fraction(1, 10**20))
    assert plan_epsilon(Group(part=one, size=3), relation).nats == Fraction(3, 2)
    assert plan_rho(Group(part=one, size=3), relation) == mechanism_rho(Exponential(epsilon=Fraction(3, 2)))
    # a replaced record leaves one part and enters another
    changed = 2 if relation is Neighbouring.REPLACE_ONE else 1
    assert plan_epsilon(Parallel(parts=(one, one), max_degree=1), relation).nats == Fraction(changed, 2)
    assert plan_epsilon(Choice(parts=(one, Exponential(name="b", epsilon=Fraction(1, 3)))), relation).nats == Fraction(
        changed, 2
    )
