"""The sparse vector technique answers as a mechanism must: against all that it can publish, by quadrature."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.errors import InvalidInput
from service.privacy.mechanisms import AboveThreshold
from service.privacy.plans.notation import read_plan
from tests.oracles.oracle import number
from tests.privacy.mechanisms.contract import MechanismContract
from tests.privacy.mechanisms.test_randomized_response import answers
from tests.privacy.reference import mp

ONE = AboveThreshold(name="a", threshold_scale=Fraction(4), query_scale=Fraction(8))
MONOTONE = AboveThreshold(
    name="b", threshold_scale=Fraction(2), query_scale=Fraction("7.5"), positives=3, answers="monotone"
)


class TestAboveThreshold(MechanismContract):
    """Two-valued response has the largest loss of all that have its pure one."""

    EXACT = False
    EXAMPLES = (ONE, MONOTONE, replace(ONE, name="c", positives=20, sensitivity=Fraction("0.5"), tags=("age",)))

    def tau(self, mechanism: Any, alpha: Fraction, times: int = 1) -> Any:
        a = number(alpha)
        moments = (p**a * q ** (1 - a) for p, q in answers(mechanism.epsilon * times, 2))
        return mp.log(mp.fsum(moments)) / (a - 1)

    def delta(self, mechanism: Any, epsilon: Fraction) -> Any:
        factor = mp.exp(number(epsilon))
        return mp.fsum(max(p - factor * q, mp.mpf(0)) for p, q in answers(mechanism.epsilon, 2))


def reaches(x: Any, b: Any) -> Any:
    """The probability that Laplace noise of scale b is at least x."""
    return mp.exp(-x / b) / 2 if x >= 0 else 1 - mp.exp(x / b) / 2


def probability(mechanism: AboveThreshold, distances: list[float], published: list[bool]) -> Any:
    """The probability of a sequence of outcomes for answers at these distances above the threshold.

    Nothing follows the last positive: those sequences end there.
    """
    a, b = number(mechanism.threshold_scale), number(mechanism.query_scale)

    def density(z: Any) -> Any:
        value = mp.exp(-abs(z) / a) / (2 * a)
        for distance, positive in zip(distances, published, strict=True):
            value *= reaches(z - distance, b) if positive else 1 - reaches(z - distance, b)
        return value

    corners = sorted({0, *distances, *(60.0 * side for side in (-1, 1)), -8.0, 8.0})
    return mp.quad(density, [mp.mpf(corner) for corner in corners])


def largest_loss(mechanism: AboveThreshold, before: list[float], after: list[float]) -> float:
    """The largest loss of any published sequence, in both directions."""
    losses = []
    for published in sequences(len(before), mechanism.positives):
        one, other = (probability(mechanism, side[: len(published)], published) for side in (before, after))
        losses.append(abs(mp.log(one / other)))
    return float(max(losses))


def sequences(answered: int, positives: int) -> list[list[bool]]:
    """All that can be published: it ends with the last positive that may be told, or with the last answer."""
    if answered == 0 or positives == 0:
        return [[]]
    return [[first, *rest] for first in (False, True) for rest in sequences(answered - 1, positives - first)]


@pytest.mark.parametrize("positives", [1, 2])
@pytest.mark.parametrize("monotone", [False, True])
def test_no_published_sequence_tells_more_than_the_pure_loss(positives: int, monotone: bool) -> None:
    """Also for answers far below the threshold that all move, with positives that move against them."""
    digits, mpmath.mp.dps = mpmath.mp.dps, 15
    try:
        one = replace(ONE, positives=positives, answers="monotone" if monotone else None)
        up, down = [-1.0, -1.0, 0.5], [0.0, 0.0, 0.5] if monotone else [0.0, 0.0, -0.5]
        found = max(largest_loss(one, up, down), largest_loss(one, [3.0, -2.0, 1.0], [2.0, -3.0, 0.0]))
        assert found <= float(one.epsilon) * (1 + 1e-9)
    finally:
        mpmath.mp.dps = digits


def test_the_loss_rises_to_its_bound_with_the_number_of_answers() -> None:
    """So no smaller figure would hold: a threshold of a wrong scale, or positives that are not counted, are below."""
    digits, mpmath.mp.dps = mpmath.mp.dps, 15
    try:
        losses = []
        for negatives in (4, 40, 400):
            before = probability_of_equal(ONE, -14.0, negatives, -10.0)
            after = probability_of_equal(ONE, -13.0, negatives, -11.0)
            losses.append(float(abs(mp.log(before / after))))
        assert losses == sorted(losses)
        assert losses[-1] == pytest.approx(float(ONE.epsilon), rel=1e-9)
    finally:
        mpmath.mp.dps = digits


def probability_of_equal(mechanism: AboveThreshold, distance: float, negatives: int, last: float) -> Any:
    """The probability of so many equal negatives and then a positive."""
    a, b = number(mechanism.threshold_scale), number(mechanism.query_scale)

    def density(z: Any) -> Any:
        return mp.exp(-abs(z) / a) / (2 * a) * (1 - reaches(z - distance, b)) ** negatives * reaches(z - last, b)

    return mp.quad(density, [mp.mpf(x) for x in (-200, distance, last, 0, 20, 40, 60, 80, 120, 200)])


def test_the_published_constants() -> None:
    """Lyu, Su and Li 2017, Theorems 4 and 5: half of epsilon for the threshold, and c positives share the other."""
    for positives in (1, 5):
        for answered, sides in ((None, 2), ("monotone", 1)):
            scale = Fraction(sides * positives) / Fraction(1, 2)
            one = AboveThreshold(threshold_scale=Fraction(2), query_scale=scale, positives=positives, answers=answered)
            assert one.epsilon == 1


@pytest.mark.parametrize(
    ("stated", "pointer"),
    [
        ({"threshold_scale": "0"}, "/threshold_scale"),
        ({"query_scale": "-1"}, "/query_scale"),
        ({"query_scale": "nan"}, "/query_scale"),
        ({"sensitivity": "0"}, "/sensitivity"),
    ],
)
def test_what_has_no_meaning_is_refused(stated: dict[str, str], pointer: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_plan({"type": "above_threshold", "threshold_scale": "2", "query_scale": "4"} | stated)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
