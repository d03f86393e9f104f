"""The two arithmetics: balls contain the truth whatever is cut off, doubles are near it."""

from fractions import Fraction

import numpy as np
import pytest
from flint import arb, fmpq

from service.privacy.numerics import half_gaussian_sums
from service.privacy.numerics.arithmetic import BALLS, DOUBLES
from service.privacy.numerics.numbers import ball, precision
from tests.privacy.reference import exactly, mp, oracle


def side(u: Fraction, sigma_squared: Fraction) -> Fraction:
    """The sum over x other than 0 of exp(-(x² - 2xu)/(2 sigma²)), to 200 digits."""
    with mp.workdps(200):
        v, shift = oracle.number(sigma_squared), oracle.number(u)
        return exactly(mp.fsum(mp.exp(-(x * x - 2 * x * shift) / (2 * v)) for x in range(-60, 61) if x))


def contains(value: arb, truth: Fraction) -> bool:
    return bool(abs(value - arb(fmpq(truth.numerator, truth.denominator))).lower() <= 0)


@pytest.mark.parametrize("terms", [1, 2, 5, 20])
@pytest.mark.parametrize("square", ["0.05", "0.3", "1", "1.99"])
@pytest.mark.parametrize("u", ["-1/2", "0", "0.3", "1/2"])
def test_the_ball_contains_the_cut_off_part_of_the_sum(
    monkeypatch: pytest.MonkeyPatch, terms: int, square: str, u: str
) -> None:
    """However few terms are summed: the rest is bounded and not forgotten."""
    monkeypatch.setattr(half_gaussian_sums, "term_count", lambda sigma_squared, bits: terms)
    with precision(400):
        assert contains(
            BALLS.gaussian_side(ball(Fraction(u)), ball(Fraction(square))), side(Fraction(u), Fraction(square))
        )


@pytest.mark.parametrize("square", ["0.05", "1.99"])
def test_as_many_terms_are_summed_as_the_precision_needs(square: str) -> None:
    with precision(160):
        found = BALLS.gaussian_side(ball(Fraction(1, 2)), ball(Fraction(square)))
        assert found.rel_accuracy_bits() > 140
    near = DOUBLES.gaussian_side(np.array([0.5]), DOUBLES.number(Fraction(square)))
    assert near == pytest.approx(float(side(Fraction(1, 2), Fraction(square))), rel=1e-14)


def test_a_place_that_the_precision_does_not_tell_gives_no_number() -> None:
    """The bound on what is cut off rests on |u| < 1."""
    assert not BALLS.gaussian_side(arb(0, 5), arb(1)).is_finite()


def test_off_centre_is_the_distance_to_the_nearest_integer() -> None:
    for alpha, s, expected in [("7/3", 1, Fraction(1, 3)), ("5/3", 2, Fraction(1, 3)), ("2", 9, Fraction(0))]:
        with precision(160):
            assert contains(BALLS.off_centre(ball(Fraction(alpha)) * s), expected)
        assert DOUBLES.off_centre(np.array([float(Fraction(alpha))]) * s) == pytest.approx(float(expected), abs=1e-14)


def test_figures_beyond_doubles_are_infinite() -> None:
    assert DOUBLES.number(Fraction(10**400)) == float("inf")
    assert DOUBLES.number(Fraction(1, 10**400)) == 0
