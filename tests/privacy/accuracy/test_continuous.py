"""Continuous noise against quadrature and against sums of exponentials written another way."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.integrate import quad  # type: ignore[import-untyped]  # it publishes no types

from service.privacy.accuracy.continuous import ContinuousSum
from service.privacy.mechanisms import Continuous, Gaussian, Laplace, Osgt
from service.privacy.numerics.numbers import ball, precision
from tests.privacy.reference import mp, oracle

CONFIDENCES = [Fraction("0.5"), Fraction("0.95"), 1 - Fraction(1, 10**12)]


@pytest.mark.parametrize("confidence", CONFIDENCES, ids=str)
@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(sigma_squared=Fraction(40)),
        Laplace(scale=Fraction("2.5")),
        Osgt(sigma_squared=Fraction(40), m=Fraction(3)),
        Osgt(sigma_squared=Fraction(4), m=Fraction(30)),
    ],
    ids=str,
)
def test_the_margin_of_one_cell_leaves_out_what_it_may(mechanism: Continuous, confidence: Fraction) -> None:
    match mechanism:
        case Gaussian(sigma_squared=v):
            density, spread = oracle.gaussian_density(v)
        case Laplace(scale=b):
            density, spread = oracle.laplace_density(b)
        case Osgt(sigma_squared=v, m=m):
            density, spread = oracle.osgt_density(v, m)
    found = ContinuousSum(mechanism.noise_law(), 1)
    margin, covered = found.margin(confidence)
    start = mp.mpf(margin.numerator) / margin.denominator
    points = [k * spread * 2 for k in range(60)]
    with mp.workdps(30):
        beyond = 2 * mp.quad(density, [start + point for point in points])
        square, size = (2 * mp.quad(lambda y, p=p: y**p * density(y), points) for p in (2, 1))
    excess = 1 - confidence
    wanted = mp.mpf(excess.numerator) / excess.denominator
    assert beyond <= wanted * (1 + mp.mpf(10) ** -20)
    assert beyond >= wanted * (1 - mp.mpf(10) ** -8)
    assert 1 - beyond - mp.mpf(10) ** -15 <= covered <= 1 - beyond + mp.mpf(10) ** -20
    assert float(found.variance()) == pytest.approx(float(square), rel=1e-12)
    assert float(found.mean_size()) == pytest.approx(float(size), rel=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "cells"),
    [
        (Gaussian(sigma_squared=Fraction(4)), 3),
        (Laplace(scale=Fraction(2)), 1),
        (Laplace(scale=Fraction(2)), 1000),
        (Osgt(sigma_squared=Fraction(4), m=Fraction(1)), 1),
    ],
)
@pytest.mark.parametrize("confidence", [Fraction(1, 10**6), Fraction(1, 10**20), Fraction(1, 10**300)])
def test_a_small_confidence_has_a_margin_of_its_size(mechanism: Continuous, cells: int, confidence: Fraction) -> None:
    # Near 0 the density is flat: the margin is as large a part of that of a thousandth as the confidence.
    found = ContinuousSum(mechanism.noise_law(), cells)
    margin, covered = found.margin(confidence)
    usual, _ = found.margin(Fraction(1, 1000))
    assert float(margin * Fraction(1, 1000) / (usual * confidence)) == pytest.approx(1, rel=1e-3)
    assert Fraction(covered) <= confidence * Fraction("1.0001")
    with precision(2400):
        assert found.tail_probability(margin) <= ball(1 - confidence)


def test_the_difference_of_two_exponentials_twice_over() -> None:
    """P(|S| > x) = (1 + x/2) exp(-x) for two cells."""
    margin, covered = ContinuousSum(Laplace(scale=Fraction(1)).noise_law(), 2).margin(Fraction("0.95"))
    assert (1 + float(margin) / 2) * math.exp(-margin) == pytest.approx(0.05, rel=1e-12)
    assert covered == pytest.approx(0.95, abs=1e-12)


@pytest.mark.parametrize("cells", [8, 300])
def test_sums_of_laplace_noise_are_those_of_the_inversion(cells: int) -> None:
    """P(|S| <= x) = 2/pi times the integral of sin(tx)/t (1 + t²)^-n."""
    found = ContinuousSum(Laplace(scale=Fraction(1)).noise_law(), cells)
    for confidence in (Fraction("0.9"), Fraction("0.999")):
        margin, _ = found.margin(confidence)
        inside, _ = quad(lambda t, x=float(margin): np.sinc(t * x / np.pi) * x * (1 + t * t) ** -cells, 0, 6, limit=500)
        assert 2 / math.pi * inside == pytest.approx(float(confidence), abs=1e-8)
    assert float(found.mean_size()) == pytest.approx(
        float(2 * cells * mp.binomial(2 * cells, cells) / mp.mpf(4) ** cells), rel=1e-12
    )


def test_sums_of_gaussian_noise_are_gaussian() -> None:
    many = ContinuousSum(Gaussian(sigma_squared=Fraction(3)).noise_law(), 10**6)
    one = ContinuousSum(Gaussian(sigma_squared=Fraction(3_000_000)).noise_law(), 1)
    assert many.margin(Fraction("0.95")) == one.margin(Fraction("0.95"))
    assert (many.variance(), many.mean_size()) == (one.variance(), one.mean_size())


@pytest.mark.parametrize(
    ("mechanism", "cells"),
    [
        (Osgt(sigma_squared=Fraction(40), m=Fraction(3)), 2),
        (Laplace(scale=Fraction(1)), 1001),
        (Laplace(scale=Fraction(10) ** 101), 1),
        (Osgt(sigma_squared=Fraction(40), m=Fraction(1, 10**101)), 1),
    ],
)
def test_sums_without_a_closed_form_are_refused(mechanism: Continuous, cells: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        ContinuousSum(mechanism.noise_law(), cells)
