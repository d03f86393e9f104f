"""Gaussians on half-lines: balls against sums in mpmath, and the Abel-Plana formula where those are too long."""

from fractions import Fraction
from typing import Any

import pytest
from flint import arb

from service.privacy.numerics.half_gaussian_sums import half_line, log_half_line, whole_line
from service.privacy.numerics.numbers import ball, precision
from tests.privacy.reference import exactly, mp, oracle, rows

VARIANCES = ["0.05", "0.4", "0.6", "3", "255", "256", "300", "4000"]


def assert_near(value: arb, truth: Any, relative: Any) -> None:
    """The truth, correct to 50 digits or more, is in the ball, which is no wider than said."""
    middle = ball(exactly(truth))
    assert abs(value - middle).lower() <= abs(middle) * arb(10) ** -45
    assert value.rad() <= abs(middle) * arb(relative)


def summed(x: str, v: str, power: int) -> Any:
    """The trapezoid sum over y >= 0 of y^power exp(-(2xy + y²)/(2v)), term by term."""
    start, square = oracle.number(x), oracle.number(v)
    last = int(mp.sqrt(start * start + 300 * square) - min(start, 0)) + 3
    terms = [mp.mpf(y) ** power * mp.exp(-(2 * start * y + y * y) / (2 * square)) for y in range(last)]
    return mp.fsum(terms) - terms[0] / 2


@pytest.mark.parametrize("v", VARIANCES)
@pytest.mark.parametrize("x", ["0", "0.3", "17", "700"])
def test_moments_on_the_integers_are_the_sums(x: str, v: str) -> None:
    with precision(192):
        found = half_line(ball(Fraction(x)), Fraction(v), 3, lattice=True)
        for power, value in enumerate(found):
            truth = summed(x, v, power)
            if truth > mp.mpf(10) ** -40:  # else the first term is already below the precision
                assert_near(value, truth, 1e-40 / float(min(truth, 1)))


@pytest.mark.parametrize("v", VARIANCES)
@pytest.mark.parametrize("x", ["-0.4", "-3", "-30.25", "2"])
def test_the_whole_line_less_the_other_half_is_the_sum_left_of_0(x: str, v: str) -> None:
    with precision(192):
        value = log_half_line(ball(Fraction(x)), Fraction(v), lattice=True)
        assert_near(value, mp.log(summed(x, v, 0)), 1e-40)


@pytest.mark.parametrize("v", ["1e4", "1e10", "1e18"])
@pytest.mark.parametrize("x", ["0.5", "1", "0.001", "3"])
def test_wide_sums_are_those_of_abel_and_plana(v: str, x: str) -> None:
    """Sum' f - integral of f = 2 integral of e^(y²/2v) sin(xy/v)/(e^(2 pi y) - 1), up to e^(-2 pi² v); x in sigmas."""
    with mp.workdps(80):
        square, start = oracle.number(v), oracle.number(x) * mp.sqrt(oracle.number(v))
        integral = mp.sqrt(mp.pi * square / 2) * mp.exp(start**2 / (2 * square)) * mp.erfc(start / mp.sqrt(2 * square))
        ripple = mp.quad(
            lambda y: mp.exp(y * y / (2 * square)) * mp.sin(start * y / square) / mp.expm1(2 * mp.pi * y),
            mp.linspace(0, 26, 27),
        )
        with precision(220):
            (found,) = half_line(ball(exactly(start)), Fraction(v), 1, lattice=True)
            assert_near(found, integral + 2 * ripple, 1e-45)


@pytest.mark.parametrize("x", ["0", "0.1", "5", "44", "45", "1e9"])
def test_moments_on_the_line_are_the_integrals(x: str) -> None:
    """44 and 45 sigma lie about the change to Tricomi's function."""
    with precision(320), mp.workdps(80):
        start = oracle.number(x)
        size = 1 / (1 + start)
        for power, value in enumerate(half_line(ball(Fraction(x)), Fraction(1), 3, lattice=False)):
            truth = mp.quad(
                lambda y, power=power: y**power * mp.exp(-start * y - y * y / 2),
                [size * k for k in range(0, 250, 5)],
            )
            assert_near(value, truth, 1e-20)


@pytest.mark.parametrize("row", [row for row in rows("cost") if row["mechanism"] == "osgt"], ids=str)
def test_the_variance_of_offset_tails_is_the_reference(row: dict[str, Any]) -> None:
    """E Y² = moment 2 over moment 0; the seed's example V(3, 40) is 27.70468."""
    with precision(192):
        zero, _, two = half_line(ball(Fraction(row["m"])), Fraction(row["sigma_squared"]), 3, lattice=False)
        assert float(two / zero) == pytest.approx(float(row["variance"]), rel=1e-15)
        if row["m"] == "3":
            assert float(two / zero) == pytest.approx(27.70468, abs=5e-6)


@pytest.mark.parametrize("bits", [160, 640, 2560])
@pytest.mark.parametrize("v", ["256", "1000", "1e12"])
def test_both_methods_agree_about_the_threshold_between_them(bits: int, v: str) -> None:
    """R(x) - 1/2 = q (R(x+1) + 1/2), q the first ratio: x by Euler-Maclaurin, x + 1 term by term."""
    with precision(bits):
        square = Fraction(v)
        low = square / 4 - Fraction(1, 2)
        (here,) = half_line(ball(low), square, 1, lattice=True)
        (there,) = half_line(ball(low + 1), square, 1, lattice=True)
        ratio = (-ball((2 * low + 1) / (2 * square))).exp()
        gap = here - arb(0.5) - ratio * (there + arb(0.5))
        assert gap.contains(0)
        assert abs(gap).upper() < arb(2) ** (40 - bits)


def test_an_argument_that_the_precision_does_not_place_gives_no_number() -> None:
    with precision(64):
        assert not log_half_line(arb(0, 1), Fraction(3), lattice=True).is_finite()


@pytest.mark.parametrize("v", ["0.499", "0.5", "0.7"])
def test_the_whole_line_is_the_same_by_the_dual_sum(v: str) -> None:
    with precision(192):
        for x in ("0", "0.25", "-7.5", "12.9"):
            square, centre = oracle.number(v), oracle.number(x)
            truth = mp.fsum(mp.exp(-((y + centre) ** 2) / (2 * square)) for y in range(-60, 61))
            assert_near(whole_line(ball(Fraction(x)), Fraction(v), lattice=True), truth, 1e-40)
