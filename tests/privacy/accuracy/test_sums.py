"""Sums of noise against convolutions: in rationals where they are few, in doubles over thousands of cells."""

import math
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from numpy.typing import NDArray

from service.privacy.accuracy.sums import NoiseSum, mean_size, variance
from service.privacy.accuracy.tails import excess_of
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.numerics.numbers import precision
from tests.privacy.reference import mp

CONFIDENCES = [Fraction(text) for text in ("0.5", "0.9", "0.95", "0.999")]
NARROW = [
    NoiseLaw(scale=Fraction("2.336")),
    NoiseLaw(scale=Fraction(1, 3)),
    NoiseLaw(sigma_squared=Fraction("9.375")),
    NoiseLaw(sigma_squared=Fraction("0.05")),
    NoiseLaw(sigma_squared=Fraction(40), scale=Fraction(40, 3)),
    NoiseLaw(sigma_squared=Fraction(2), scale=Fraction(1, 2)),
]
WIDE = [
    NoiseLaw(scale=Fraction(300)),
    NoiseLaw(sigma_squared=Fraction(90_000)),
    NoiseLaw(sigma_squared=Fraction(90_000), scale=Fraction(300)),
]
Doubles = NDArray[np.float64]


def masses(law: NoiseLaw, cells: int) -> list[mp.mpf]:
    """P(S = 0), P(S = 1), ... by convolving the mass with itself, 50 digits."""
    reach = 1
    while mp.mpf(float(law.quadratic)) * reach**2 + mp.mpf(float(law.linear)) * reach < 80:
        reach *= 2
    a, b = (mp.mpf(x.numerator) / x.denominator for x in (law.quadratic, law.linear))
    one = [mp.exp(-a * x * x - b * abs(x)) for x in range(-reach, reach + 1)]
    whole = mp.fsum(one)
    # Integers of 60 digits convolve exactly, as one product of two long numbers.
    digits, places = 10**50, 160
    packed = reduce(lambda total, weight: total * 2 ** (4 * places) + int(weight / whole * digits), one, 0)
    product = packed**cells
    centre = cells * reach
    mask = 2 ** (4 * places) - 1
    values = [product >> (4 * places * (centre + x)) & mask for x in range(cells * reach + 1)]
    return [mp.mpf(value) / mp.mpf(digits) ** cells for value in values]


def in_doubles(law: NoiseLaw, cells: int) -> Doubles:
    """P(|S| = 0), P(|S| = 1), ... by the fast Fourier transform, to some 1e-12 absolutely."""
    size = 1 << 19
    x = np.arange(size // 2 + 1, dtype=float)
    mass = np.exp(-float(law.quadratic) * x * x - float(law.linear) * x)
    folded = np.concatenate([mass, mass[-2:0:-1]])
    of_sum = np.fft.irfft(np.fft.rfft(folded / folded.sum()).real ** cells, size)[: size // 2 + 1]
    of_sum[1:] *= 2
    of_sum[of_sum < 1e-13] = 0
    return of_sum


@pytest.mark.parametrize("law", NARROW, ids=str)
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_margins_of_few_cells_are_those_of_the_convolution(law: NoiseLaw, cells: int) -> None:
    of_sum = masses(law, cells)
    size = of_sum[0] + 2 * mp.fsum(of_sum[1:])
    assert abs(size - 1) < mp.mpf(10) ** -40
    found = NoiseSum.of(law, cells, Fraction(1, 1000))
    for confidence in CONFIDENCES:
        margin, covered = found.margin(confidence)
        inside = [of_sum[0]]
        for mass in of_sum[1:]:
            inside.append(inside[-1] + 2 * mass)
        wanted = mp.mpf(confidence.numerator) / confidence.denominator
        assert margin == next(m for m, probability in enumerate(inside) if probability >= wanted)
        assert inside[margin] - mp.mpf(10) ** -12 < covered <= inside[margin] + mp.mpf(10) ** -40
    exact = 2 * mp.fsum(x * mass for x, mass in enumerate(of_sum))
    assert (
        exact * (1 - mp.mpf(10) ** -40)
        <= mp.mpf(float(found.mean_size()) * (1 + 1e-15))
        <= exact * (1 + mp.mpf(10) ** -12)
    )


@pytest.mark.parametrize("law", [*NARROW, *WIDE], ids=str)
@pytest.mark.parametrize("cells", [2, 40, 65, 3142])
def test_margins_of_many_cells_are_those_of_the_convolution(law: NoiseLaw, cells: int) -> None:
    of_size = in_doubles(law, cells)
    inside = np.cumsum(of_size)
    found = NoiseSum.of(law, cells, Fraction(1, 1000))
    for confidence in CONFIDENCES:
        margin, covered = found.margin(confidence)
        assert inside[margin] >= float(confidence) - 1e-10
        assert margin == 0 or inside[margin - 1] < float(confidence) + 1e-10
        assert covered == pytest.approx(inside[margin], abs=1e-10)
        assert confidence <= Fraction(covered) or covered == pytest.approx(float(confidence), abs=1e-15)
    assert float(found.mean_size()) == pytest.approx(float(np.sum(of_size * np.arange(len(of_size)))), rel=1e-8)
    assert float(found.variance()) == pytest.approx(float(np.sum(of_size * np.arange(len(of_size)) ** 2.0)), rel=1e-6)


@pytest.mark.parametrize("scale", ["0.5", "7", "1e6"])
def test_the_race_and_the_spectrum_agree_on_geometric_sums(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, excess = NoiseLaw(scale=Fraction(scale)), Fraction(1, 10**9)
    by_race = NoiseSum.of(law, 20, excess)
    monkeypatch.setattr("service.privacy.accuracy.sums.MOST_RACED_CELLS", 0)
    by_spectrum = NoiseSum.of(law, 20, excess)
    assert (by_race.method, by_spectrum.method) == ("closed form", "characteristic function")
    for confidence in (*CONFIDENCES, 1 - excess):
        one, two = by_race.margin(confidence), by_spectrum.margin(confidence)
        assert one[0] == two[0]
        assert one[1] == pytest.approx(two[1], abs=1e-14)
    assert float(by_race.mean_size()) == pytest.approx(float(by_spectrum.mean_size()), rel=1e-12)


@pytest.mark.parametrize("cells", [5, 10**6])
def test_offset_tails_have_the_two_others_as_their_ends(cells: int) -> None:
    excess, tiny = Fraction(1, 10**6), Fraction(1, 10**40)
    scale, v = Fraction(50), Fraction(2500)
    for joint, end in [
        (NoiseLaw(sigma_squared=v, scale=v / tiny), NoiseLaw(sigma_squared=v)),
        (NoiseLaw(sigma_squared=scale / tiny, scale=scale), NoiseLaw(scale=scale)),
    ]:
        for confidence in (Fraction("0.95"), 1 - excess):
            assert (
                NoiseSum.of(joint, cells, excess).margin(confidence)[0]
                == NoiseSum.of(end, cells, excess).margin(confidence)[0]
            )


@pytest.mark.parametrize("law", [*NARROW, *WIDE], ids=str)
def test_sums_of_very_many_cells_are_about_normal(law: NoiseLaw) -> None:
    cells, confidence = 10**12, Fraction("0.95")
    margin, covered = NoiseSum.of(law, cells, 1 - confidence).margin(confidence)
    normal = 1.959963984540054 * math.sqrt(cells * float(found_variance(law)))
    assert margin == pytest.approx(normal, rel=1e-4 if normal > 1e5 else 0.01)
    assert Fraction(covered) >= confidence - Fraction(1, 10**15)


def found_variance(law: NoiseLaw) -> Fraction:
    return NoiseSum.of(law, 1, Fraction(1, 20)).variance()


@pytest.mark.parametrize(
    "law", [NoiseLaw(sigma_squared=Fraction(10**24), scale=Fraction(10**12)), NoiseLaw(scale=Fraction(10**25))], ids=str
)
def test_the_widest_sums_of_few_cells_are_bounded(law: NoiseLaw) -> None:
    """Margins are larger than the least ones, and in order, where too few frequencies are computed."""
    excess = Fraction(1, 10**20)
    found = NoiseSum.of(law, 2, excess)
    margins = [found.margin(confidence) for confidence in (Fraction("0.95"), 1 - Fraction(1, 10**6), 1 - excess)]
    assert [margin for margin, _ in margins] == sorted(margin for margin, _ in margins)
    assert [covered for _, covered in margins] == sorted(covered for _, covered in margins)
    one = NoiseSum.of(law, 1, excess)
    assert one.margin(Fraction("0.95"))[0] < margins[0][0] < 2 * one.margin(Fraction("0.975"))[0]


def test_narrow_noise_is_mostly_nothing() -> None:
    found = NoiseSum.of(NoiseLaw(sigma_squared=Fraction(1, 1000)), 10**6, Fraction(1, 20))
    assert found.margin(Fraction("0.95")) == (0, math.nextafter(1, 0))
    assert 0 < found.mean_size() <= found.variance() < Fraction(1, 10**200)


def test_noise_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 2\^200"):
        NoiseSum.of(NoiseLaw(scale=Fraction(10) ** 40), 2, Fraction(1, 20))


@pytest.mark.parametrize("law", NARROW, ids=str)
def test_one_cell_has_the_moments_of_its_mass(law: NoiseLaw) -> None:
    of_one = masses(law, 1)
    with precision(200):
        square, size = variance(law), mean_size(law)
    assert float(square) == pytest.approx(float(2 * mp.fsum(x * x * mass for x, mass in enumerate(of_one))), rel=1e-14)
    assert float(size) == pytest.approx(float(2 * mp.fsum(x * mass for x, mass in enumerate(of_one))), rel=1e-14)


def test_a_confidence_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        NoiseSum.of(NoiseLaw(scale=Fraction(1)), 2, excess_of(Fraction("0.95"))).margin(Fraction(1))
