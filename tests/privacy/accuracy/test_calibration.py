"""Calibrated parameters against tails summed in mpmath: the target is met, and by the largest parameter that can."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.privacy.accuracy import calibration, tails
from service.privacy.accuracy.calibration import (
    margin_to_scale,
    margin_to_sigma_squared,
    safetab_scale,
    safetab_sigma_squared,
)
from service.privacy.accuracy.tails import coverage, margin_of_error
from service.privacy.laws.noise_law import NoiseLaw, offset_law

mp: Any = mpmath.MPContext()  # a context of our own: precision is not shared with other tests
mp.dps = 80

UP, DOWN = Context(prec=12, rounding=ROUND_CEILING), Context(prec=12, rounding=ROUND_FLOOR)
SMALLEST_EXCESS = Fraction(1, 10**30)
CALIBRATIONS: list[Callable[[int, Fraction], Fraction]] = [margin_to_scale, margin_to_sigma_squared]


def number(value: Fraction) -> Any:
    return mp.mpf(value.numerator) / value.denominator


def decimal_of(value: Fraction) -> Decimal:
    """The decimal of at most 12 significant digits that ``value`` is said to be."""
    decimal = DOWN.divide(Decimal(value.numerator), Decimal(value.denominator))
    assert Fraction(decimal) == value
    return decimal


def following(value: Fraction) -> Fraction:
    """The next larger number of 12 significant digits."""
    return Fraction(UP.next_plus(decimal_of(value)))


def geometric_tail(scale: Fraction, margin: int) -> Any:
    q = mp.exp(-1 / number(scale))
    return 2 * q ** (margin + 1) / (1 + q)


def gaussian_tail(sigma_squared: Fraction, margin: int) -> Any:
    reach = margin + math.isqrt(math.ceil(400 * sigma_squared)) + 2  # beyond it is below exp(-200)
    weights = [mp.exp(-(mp.mpf(x) ** 2) / (2 * number(sigma_squared))) for x in range(reach)]
    return 2 * mp.fsum(weights[margin + 1 :]) / (weights[0] + 2 * mp.fsum(weights[1:]))


CONFIDENCES = [Fraction("0.001"), Fraction("0.9"), Fraction("0.95"), Fraction("0.999999"), 1 - SMALLEST_EXCESS]


@pytest.mark.parametrize("confidence", CONFIDENCES, ids=lambda value: f"{1 - float(1 - value)}")
@pytest.mark.parametrize("margin", [0, 1, 6, 50, 10**6, 2**53])
def test_the_scale_meets_its_target_and_the_next_one_misses_it(margin: int, confidence: Fraction) -> None:
    scale = margin_to_scale(margin, confidence)
    excess = number(1 - confidence)
    assert geometric_tail(scale, margin) <= excess < geometric_tail(following(scale), margin)
    assert (
        margin_of_error(NoiseLaw(scale=scale), confidence)
        <= margin
        < margin_of_error(NoiseLaw(scale=following(scale)), confidence)
    )


@pytest.mark.parametrize("confidence", CONFIDENCES[1:], ids=lambda value: f"{1 - float(1 - value)}")
@pytest.mark.parametrize("margin", [0, 1, 6, 27, 32, 50, 200])
def test_sigma_squared_meets_its_target_and_the_next_one_misses_it(margin: int, confidence: Fraction) -> None:
    # 27 to 200 put sigma below, about and above 16, where the tail changes its method.
    sigma_squared = margin_to_sigma_squared(margin, confidence)
    excess = number(1 - confidence)
    assert gaussian_tail(sigma_squared, margin) <= excess < gaussian_tail(following(sigma_squared), margin)
    assert margin_of_error(NoiseLaw(sigma_squared=sigma_squared), confidence) == margin
    assert margin_of_error(NoiseLaw(sigma_squared=following(sigma_squared)), confidence) == margin + 1


@pytest.mark.parametrize("confidence", CONFIDENCES, ids=lambda value: f"{1 - float(1 - value)}")
@pytest.mark.parametrize("margin", [10**9, 2**53])
def test_sigma_squared_of_wide_margins_comes_from_the_normal_quantile(margin: int, confidence: Fraction) -> None:
    sigma_squared = margin_to_sigma_squared(margin, confidence)
    # Beyond the continuity correction the discrete and the normal tail differ by the order of 1/sigma².
    limit = mp.findroot(
        lambda log: mp.log(mp.erfc((margin + mp.mpf(0.5)) * mp.exp(-log) / mp.sqrt(2)) / number(1 - confidence)),
        mp.log(mp.sqrt(number(sigma_squared))) + mp.mpf("1e-4"),
    )
    assert abs(number(sigma_squared) / mp.exp(2 * limit) - 1) < mp.mpf(10) ** -11


@pytest.mark.parametrize("calibrate", CALIBRATIONS)
def test_a_tiny_confidence_is_met_by_vast_noise(calibrate: Callable[[int, Fraction], Fraction]) -> None:
    # P(X = 0) = 1/(2b) or 1/(sigma sqrt(2 pi)) is then the confidence, but for terms far below 12 digits.
    value = number(calibrate(0, Fraction(1, 10**40)))
    limit = mp.mpf(10) ** 40 / 2 if calibrate is margin_to_scale else mp.mpf(10) ** 80 / (2 * mp.pi)
    assert 0 <= 1 - value / limit < mp.mpf(10) ** -11


def test_margin_six_at_95_per_cent_as_published() -> None:
    scale, sigma_squared = margin_to_scale(6, Fraction("0.95")), margin_to_sigma_squared(6, Fraction("0.95"))
    assert float(1 / scale) == pytest.approx(0.45690, abs=5e-6)
    assert float(1 / (2 * sigma_squared)) == pytest.approx(0.04512, abs=5e-6)
    assert 0.95 <= coverage(NoiseLaw(scale=scale), 6) < 0.95 + 1e-11
    assert 0.95 <= coverage(NoiseLaw(sigma_squared=sigma_squared), 6) < 0.95 + 1e-11


def test_safetab_reproduces_its_paper_with_its_shortfall() -> None:
    # Coverages: rho = 1.92/36 is the 0.053333 of Haney et al. 2021.
    scale, sigma_squared = safetab_scale(6), safetab_sigma_squared(6)
    assert float(1 / scale) == pytest.approx(0.42796, abs=5e-6)
    assert sigma_squared == Fraction("9.375")
    assert coverage(NoiseLaw(scale=scale), 6) == pytest.approx(0.9395, abs=5e-5)
    assert coverage(NoiseLaw(sigma_squared=sigma_squared), 6) == pytest.approx(0.9670, abs=5e-5)


def test_safetabs_gaussian_form_falls_short_at_wide_margins() -> None:
    assert coverage(NoiseLaw(sigma_squared=safetab_sigma_squared(2632)), 2632) > 0.95
    assert coverage(NoiseLaw(sigma_squared=safetab_sigma_squared(2633)), 2633) < 0.95


@pytest.mark.parametrize(
    ("margin", "epsilon", "rho"), [(6, 4.2796, 0.5333), (11, 2.4964, 0.1587), (50, 0.5874, 0.00768)]
)
def test_safetab_table_4_is_reproduced(margin: int, epsilon: float, rho: float) -> None:
    # Base parameters times s/(1 - gamma) = 9/0.9.
    assert float(10 / safetab_scale(margin)) == pytest.approx(epsilon, abs=5e-5)
    assert float(10 / (2 * safetab_sigma_squared(margin))) == pytest.approx(rho, abs=5e-5)


@pytest.mark.parametrize("margin", [0, 1, 2, 6, 11, 50, 999, 10**6 + 3, 2**53])
def test_safetab_parameters_are_rounded_down_to_12_digits(margin: int) -> None:
    scale = safetab_scale(margin)
    assert number(scale) <= (margin + 1) / mp.log(20) < number(following(scale))
    if margin:
        sigma_squared = safetab_sigma_squared(margin)
        assert sigma_squared <= Fraction(margin**2 * 100, 384) < following(sigma_squared)


def test_safetab_has_no_gaussian_of_margin_zero() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        safetab_sigma_squared(0)


@pytest.mark.parametrize("margin", [-1, 2**53 + 1])
def test_a_margin_out_of_range_is_refused(margin: int) -> None:
    for calibrate in CALIBRATIONS:
        with pytest.raises(ValueError, match=r"at most 2\^53"):
            calibrate(margin, Fraction("0.95"))
    for reproduce in (safetab_scale, safetab_sigma_squared):
        with pytest.raises(ValueError, match=r"at most 2\^53"):
            reproduce(margin)


@pytest.mark.parametrize("calibrate", CALIBRATIONS)
def test_a_confidence_out_of_range_is_refused(calibrate: Callable[[int, Fraction], Fraction]) -> None:
    for confidence in (Fraction(0), Fraction(1), Fraction(2), Fraction(-1)):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            calibrate(6, confidence)
    with pytest.raises(ValueError, match="1 - 1e-30"):
        calibrate(6, 1 - SMALLEST_EXCESS / 2)


@pytest.mark.parametrize("calibrate", [margin_to_scale, margin_to_sigma_squared])
def test_a_calibration_evaluates_few_tails(
    calibrate: Callable[[int, Fraction], Fraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of a hundred levels calibrates a hundred mechanisms: each takes a few balls and not one for each bit."""
    computed: list[int] = []
    tail = tails.tail

    def counted(law: NoiseLaw, margin: int) -> Any:
        computed.append(margin)
        return tail(law, margin)

    for module in (tails, calibration):
        monkeypatch.setattr(module, "tail", counted)
    for margin in (0, 1, 6, 50, 10**6, 2**53):
        for confidence in (Fraction(1, 10**6), Fraction(1, 2), Fraction(95, 100), 1 - Fraction(1, 10**15)):
            computed.clear()
            calibrate(margin, confidence)
            assert 2 <= len(computed) <= 12


def offset_tails(square: Fraction, margin: int, offset: Fraction | None = None) -> tuple[Any, Any]:
    """P(|X| > margin) and Var X of integer offset tails, from sums over the integers; the offset is the usual one."""
    v, m = number(square), number(calibration.usual_offset(square) if offset is None else offset)
    weights = [mp.exp(-(mp.mpf(x * x) / 2 + x * m) / v) for x in range(margin + int(20 * mp.sqrt(v)) + 20)]
    whole = weights[0] + 2 * mp.fsum(weights[1:])
    squares = mp.fsum(x * x * weight for x, weight in enumerate(weights))
    return 2 * mp.fsum(weights[margin + 1 :]) / whole, 2 * squares / whole


@pytest.mark.parametrize("margin", [0, 1, 6, 11, 300])
@pytest.mark.parametrize("confidence", [Fraction("0.95"), Fraction("0.999")])
def test_offset_tails_meet_their_target_and_the_next_ones_miss_it(margin: int, confidence: Fraction) -> None:
    square = calibration.margin_to_offset_tails(margin, confidence)
    excess = number(1 - confidence)
    assert offset_tails(square, margin)[0] <= excess < offset_tails(following(square), margin)[0]


@pytest.mark.parametrize("margin", [0, 1, 6, 40])
@pytest.mark.parametrize("offset", ["0", "1e-9", "0.3", "3", "100", "9007199254740992"])
@pytest.mark.parametrize("confidence", [Fraction("0.5"), Fraction("0.95"), Fraction("0.999999")])
def test_tails_of_a_stated_offset_meet_their_target(margin: int, offset: str, confidence: Fraction) -> None:
    m, excess = Fraction(offset), number(1 - confidence)
    square = calibration.margin_to_offset_tails(margin, confidence, m)
    if m > 1000:  # as good as geometric, with q = exp(-m/v)
        assert square / m == pytest.approx(margin_to_scale(margin, confidence), rel=1e-6)
        return
    assert offset_tails(square, margin, m)[0] <= excess < offset_tails(following(square), margin, m)[0]


def continuous_tail(square: Fraction, offset: Fraction, margin: Fraction) -> Any:
    """P(|X| > margin) of continuous offset tails, by complementary error functions."""
    sigma, m, x = mp.sqrt(number(square)), number(offset), number(margin)
    return mp.erfc((m + x) / sigma / mp.sqrt(2)) / mp.erfc(m / sigma / mp.sqrt(2))


CONTINUOUS_MARGINS = [Fraction(1, 10**9), Fraction("0.37"), Fraction(6), Fraction(2**53)]


@pytest.mark.parametrize("confidence", [Fraction(1, 10**6), *CONFIDENCES])
@pytest.mark.parametrize("margin", CONTINUOUS_MARGINS)
def test_continuous_noise_meets_its_target_and_the_next_one_misses_it(margin: Fraction, confidence: Fraction) -> None:
    excess = number(1 - confidence)
    scale = calibration.continuous_margin_to_scale(margin, confidence)
    assert mp.exp(-number(margin / scale)) <= excess < mp.exp(-number(margin / following(scale)))
    for offset in (Fraction(0), Fraction("0.3"), Fraction(40), None):
        square = calibration.continuous_margin_to_sigma_squared(margin, confidence, offset)
        offsets = [calibration.usual_offset(one) if offset is None else offset for one in (square, following(square))]
        assert continuous_tail(square, offsets[0], margin) <= excess
        assert continuous_tail(following(square), offsets[1], margin) > excess


@pytest.mark.parametrize("margin", [Fraction(1, 10**9) - Fraction(1, 10**20), Fraction(2**53 + 1)])
def test_margins_of_continuous_noise_are_bounded(margin: Fraction) -> None:
    for calibrate in (calibration.continuous_margin_to_scale, calibration.continuous_margin_to_sigma_squared):
        with pytest.raises(ValueError, match="at least 1e-9"):
            calibrate(margin, Fraction("0.95"))
        with pytest.raises(ValueError, match="further from 0"):
            calibrate(Fraction(6), Fraction(1, 10**100))


@pytest.mark.parametrize("variance", ["0.0001", "0.3", "1", "1.5", "40", "1000"])
def test_a_variance_is_kept_and_the_next_parameter_exceeds_it(variance: str) -> None:
    target = Fraction(variance)
    square = calibration.variance_to_parameter(
        lambda v: offset_law(v, calibration.usual_offset(v)), target, guess=target
    )
    assert offset_tails(square, 0)[1] <= number(target) < offset_tails(following(square), 0)[1]
    scale = calibration.variance_to_parameter(lambda b: NoiseLaw(scale=b), target, guess=Fraction(1))

    def geometric(b: Fraction) -> Any:
        return 1 / (2 * mp.sinh(1 / (2 * number(b))) ** 2)

    assert geometric(scale) <= number(target) < geometric(following(scale))


@pytest.mark.parametrize("calibrate", [*CALIBRATIONS, calibration.margin_to_offset_tails])
def test_noise_beyond_doubles_is_refused(calibrate: Callable[[int, Fraction], Fraction]) -> None:
    for denominator in (10**300 - 1, 2**1024 - 1):
        with pytest.raises(ValueError, match="further from 0"):
            calibrate(2**53, Fraction(1, denominator))
    assert calibrate(0, Fraction(1, 10**100)) > 10**99
