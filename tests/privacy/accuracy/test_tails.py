"""Tails, margins and coverages against sums over the integers in mpmath, and against reference values."""

import math
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types
import pytest
from flint import arb, ctx
from hypothesis import given, strategies as st

from service.privacy.accuracy import tails
from service.privacy.accuracy.tails import coverage, excess_of, is_within, margin_of_error, smallest
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.laws.noise_tails import tail
from tests.oracles.files import rows

ROWS = rows("margin_of_error")
mp: Any = mpmath.MPContext()  # a context of our own: precision is not shared with other tests
mp.dps = 100


def number(value: Fraction) -> Any:
    return mp.mpf(value.numerator) / value.denominator


def law_of(row: dict[str, Any]) -> NoiseLaw:
    parameter, *more = (Fraction(text) for text in row["parameters"])
    if row["mechanism"] == "geometric":
        return NoiseLaw(scale=parameter)
    return NoiseLaw(sigma_squared=parameter, scale=parameter / more[0] if more else None)


def endpoint(value: arb) -> Any:
    mantissa, exponent = value.man_exp()
    return mp.ldexp(mp.mpf(int(mantissa)), int(exponent))


def ends(value: arb) -> tuple[Any, Any]:
    middle, radius = endpoint(value.mid()), endpoint(value.rad())
    return middle - radius, middle + radius


def contains(value: arb, true: Any) -> bool:
    low, high = ends(value)
    slack = mp.mpf(10) ** -90  # of the oracle itself
    return bool(low - slack <= true <= high + slack)


def summed_tails(law: NoiseLaw, margins: list[int]) -> list[Any]:
    """P(|X| > m) for each m, by adding up weights until they are below 1e-110 of the largest."""
    nats = 260

    def weight(x: int) -> Any:
        slope = 0 if law.scale is None else x / number(law.scale)
        square = 0 if law.sigma_squared is None else mp.mpf(x) ** 2 / (2 * number(law.sigma_squared))
        return mp.exp(-slope - square)

    reaches = [] if law.scale is None else [math.ceil(nats * law.scale)]
    reaches += [] if law.sigma_squared is None else [math.isqrt(math.ceil(2 * nats * law.sigma_squared)) + 1]
    reach = min(reaches)
    weights = [weight(x) for x in range(max([reach, *margins]) + 2)]
    total = weights[0] + 2 * mp.fsum(weights[1:])
    return [2 * mp.fsum(weights[m + 1 :]) / total for m in margins]


SUMMABLE = [
    NoiseLaw(scale=Fraction("0.01")),
    NoiseLaw(scale=Fraction("2.336")),
    NoiseLaw(scale=Fraction(100, 7)),
    *(
        NoiseLaw(sigma_squared=Fraction(square))
        for square in ("0.01", "0.3", "1", "9.375", "100", "255.999", "256", "256.001", "1000/3", "2500")
    ),
    *(
        NoiseLaw(sigma_squared=Fraction(square), scale=Fraction(scale))
        for square, scale in (
            ("0.3", "1"),
            ("40", "40/3"),
            ("300", "3000"),
            ("300", "60"),
            ("1e8", "3"),
            ("900", "1e9"),
        )
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['mechanism']} {row['parameters'][0]}")
def test_margins_and_tails_of_the_reference_are_reproduced(row: dict[str, Any]) -> None:
    law = law_of(row)
    for confidence, margin in row["margin"].items():
        assert margin_of_error(law, Fraction(confidence)) == margin
    with ctx.workprec(400):
        low, high = ends(tail(law, 10))
    printed = mp.mpf(row["tail_beyond_10"])
    assert abs(low - printed) <= 1e-16 * printed
    assert abs(high - printed) <= 1e-16 * printed


def test_there_are_reference_values_of_all_laws() -> None:
    assert {row["mechanism"] for row in ROWS} == {"geometric", "discrete_gaussian", "discrete_osgt"}


@pytest.mark.parametrize("law", SUMMABLE, ids=str)
@pytest.mark.parametrize("precision", [20, 53, 128, 300])
def test_the_ball_contains_the_tail_and_is_narrow(law: NoiseLaw, precision: int) -> None:
    margins = [0, 1, 2, 5, 10, 16, 40, 100, 160, 300]
    for margin, true in zip(margins, summed_tails(law, margins), strict=True):
        with ctx.workprec(precision):
            value = tail(law, margin)
        assert contains(value, true)
        assert endpoint(value.rad()) < mp.mpf(2) ** (12 - precision)


@pytest.mark.parametrize("sigma", [10**8, 10**12, 2**50])
@pytest.mark.parametrize("deviations", ["0", "1e-6", "0.5", "1", "1.96", "5", "11"])
def test_wide_gaussians_have_the_normal_tail(sigma: int, deviations: str) -> None:
    margin = int(Fraction(deviations) * sigma)
    with ctx.workprec(200):
        value = tail(NoiseLaw(sigma_squared=Fraction(sigma**2)), margin)
    # The midpoint rule's error is of the order of the density's second difference, 1/sigma².
    normal = mp.erfc((margin + mp.mpf(0.5)) / (sigma * mp.sqrt(2)))
    low, high = ends(value)
    assert high - low < mp.mpf(10) ** -55
    assert abs(low - normal) < mp.mpf(1) / sigma**2


@pytest.mark.parametrize("scale", [Fraction(1, 1000), Fraction("2.336"), Fraction(10**6), Fraction(2**50)], ids=str)
@pytest.mark.parametrize("margin", [0, 1, 1000, 2**40, 2**62])
def test_the_geometric_tail_is_narrow_in_relation_to_itself(scale: Fraction, margin: int) -> None:
    q = mp.exp(-1 / number(scale))
    true = 2 * q ** (margin + 1) / (1 + q)
    with ctx.workprec(200):
        low, high = ends(tail(NoiseLaw(scale=scale), margin))
    assert low * (1 - mp.mpf(10) ** -40) <= true <= high * (1 + mp.mpf(10) ** -40)
    assert high - low < true * mp.mpf(10) ** -38  # of 200 bits, up to 62 go into the exponent margin/b


@pytest.mark.parametrize("sigma_squared", ["1e-300", "1e-6", "1", "255", "256", "1e10", "1e30", "1e300"])
@pytest.mark.parametrize("margin", [0, 1, 10**6, 2**62])
def test_extreme_parameters_give_a_ball_inside_the_unit_interval(sigma_squared: str, margin: int) -> None:
    with ctx.workprec(128):
        value = tail(NoiseLaw(sigma_squared=Fraction(sigma_squared)), margin)
        assert value.is_finite()
        assert value.overlaps(arb(0.5, 0.5))
        assert value.rad() < arb(2) ** -110


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="margin of at least 0, got -1"):
        tail(NoiseLaw(scale=Fraction(1)), -1)


@pytest.mark.parametrize("law", SUMMABLE, ids=str)
@pytest.mark.parametrize("confidence", ["0.001", "0.5", "0.9", "0.95", "0.99", "0.999999", "1/3", "0." + "9" * 30])
def test_the_margin_is_the_smallest_that_meets_its_confidence(law: NoiseLaw, confidence: str) -> None:
    margin = margin_of_error(law, Fraction(confidence))
    excess = 1 - number(Fraction(confidence))
    at, before = summed_tails(law, [margin, max(0, margin - 1)])
    assert at <= excess
    assert margin == 0 or before > excess


@pytest.mark.parametrize("scale", [10**12, 2**50])
@pytest.mark.parametrize("confidence", ["0.05", "0.95", "0.999999"])
def test_margins_of_wide_laws_are_the_least_ones(scale: int, confidence: str) -> None:
    excess = 1 - number(Fraction(confidence))
    q = mp.exp(-mp.mpf(1) / scale)
    margin = margin_of_error(NoiseLaw(scale=Fraction(scale)), Fraction(confidence))
    assert 2 * q ** (margin + 1) / (1 + q) <= excess < 2 * q**margin / (1 + q)

    margin = margin_of_error(NoiseLaw(sigma_squared=Fraction(scale**2)), Fraction(confidence))
    quantile = scale * mp.sqrt(2) * mp.erfinv(1 - excess)
    assert 0 <= margin + mp.mpf(0.5) - quantile < 1


@pytest.mark.parametrize("law", [NoiseLaw(scale=Fraction("2.336")), NoiseLaw(sigma_squared=Fraction("9.375"))], ids=str)
def test_a_near_tie_is_decided_rightly(law: NoiseLaw) -> None:
    # The confidence is the coverage of 6 to 60 digits and then a little less, or a little more.
    exact = 1 - summed_tails(law, [6])[0]
    below = Fraction(int(mp.floor(exact * mp.mpf(10) ** 60)), 10**60)
    assert margin_of_error(law, below) == 6
    assert margin_of_error(law, below + Fraction(1, 10**60)) == 7


def test_an_undecided_tie_takes_the_larger_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    # P(|X| > 3) = 1/20 with an error that no precision removes: 3 may do, 4 certainly does.
    blurred = {3: arb(0.05, 1e-6), 4: arb(0.01)}
    monkeypatch.setattr(tails, "tail", lambda law, margin: blurred.get(margin, arb(0) if margin > 4 else arb(1)))
    assert margin_of_error(NoiseLaw(scale=Fraction(1)), Fraction("0.95")) == 4


@pytest.mark.parametrize("law", SUMMABLE, ids=str)
def test_coverage_is_the_nearest_double_below(law: NoiseLaw) -> None:
    margins = [0, 1, 5, 20, 50, 200]
    for margin, beyond in zip(margins, summed_tails(law, margins), strict=True):
        reported = coverage(law, margin)
        assert mp.mpf(reported) <= 1 - beyond
        following = math.nextafter(reported, 2)
        assert following == 1 or 1 - beyond < mp.mpf(following)


@pytest.mark.parametrize(
    "law",
    [
        NoiseLaw(scale=Fraction(1, 10**300)),
        NoiseLaw(sigma_squared=Fraction(1, 10**300)),
        NoiseLaw(scale=Fraction(1, 1000)),
    ],
    ids=["geometric", "discrete Gaussian", "narrow"],
)
def test_coverage_never_reaches_one(law: NoiseLaw) -> None:
    assert coverage(law, 2**62) == math.nextafter(1, 0)


def test_the_coverage_of_very_wide_laws_is_small_and_not_lost() -> None:
    # P(X = 0) = (1-q)/(1+q) = 1/(2b) (1 + O(b^-2)), and 1/(sigma sqrt(2 pi)).
    assert coverage(NoiseLaw(scale=Fraction(10**200)), 0) == pytest.approx(0.5e-200, rel=1e-15)
    assert coverage(NoiseLaw(sigma_squared=Fraction(10**200)), 0) == pytest.approx(
        1e-100 / math.sqrt(2 * math.pi), rel=1e-15
    )


@pytest.mark.parametrize("confidence", [Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(3, 2)], ids=str)
def test_a_confidence_outside_the_unit_interval_is_refused(confidence: Fraction) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        margin_of_error(NoiseLaw(scale=Fraction(1)), confidence)


def test_a_confidence_too_near_one_is_refused() -> None:
    assert excess_of(1 - Fraction(1, 10**30)) == Fraction(1, 10**30)
    with pytest.raises(ValueError, match="1 - 1e-30"):
        excess_of(1 - Fraction(1, 10**30) + Fraction(1, 10**40))


def test_within_is_monotone_in_the_margin() -> None:
    law, excess = NoiseLaw(sigma_squared=Fraction("9.375")), Fraction(1, 20)
    assert [is_within(law, margin, excess) for margin in range(10)] == [False] * 6 + [True] * 4


@given(
    threshold=st.integers(min_value=-(10**30), max_value=10**30),
    guess=st.integers(min_value=-(10**30), max_value=10**30),
)
def test_the_search_finds_the_threshold_from_any_guess(threshold: int, guess: int) -> None:
    assert smallest(lambda n: n >= threshold, guess) == threshold


@given(threshold=st.integers(), offset=st.integers(min_value=-2, max_value=2))
def test_the_search_is_short_from_a_near_guess(threshold: int, offset: int) -> None:
    asked: list[int] = []

    def holds(n: int) -> bool:
        asked.append(n)
        return n >= threshold

    assert smallest(holds, threshold + offset) == threshold
    assert len(asked) <= (2 if offset == 0 else 8)


@pytest.mark.parametrize("value", [Fraction(0), Fraction(-1)], ids=str)
def test_a_law_needs_positive_parameters(value: Fraction) -> None:
    with pytest.raises(ValueError, match="scale above 0"):
        NoiseLaw(scale=value)
    with pytest.raises(ValueError, match="sigma_squared above 0"):
        NoiseLaw(sigma_squared=value)


def test_a_law_has_a_parameter() -> None:
    with pytest.raises(ValueError, match="got neither"):
        NoiseLaw()


@pytest.mark.parametrize("square", ["9.375", "1e4", "1e14"])
@pytest.mark.parametrize("confidence", ["0.5", "0.95", "0.999999"])
def test_the_joint_law_has_the_two_others_as_its_ends(square: str, confidence: str) -> None:
    """A slope too small to matter leaves the Gaussian margin, a curvature too small the geometric one."""
    v, level = Fraction(square), Fraction(confidence)
    scale, tiny = Fraction("2.336") * v, Fraction(1, 10**60)
    assert margin_of_error(NoiseLaw(sigma_squared=v, scale=v / tiny), level) == margin_of_error(
        NoiseLaw(sigma_squared=v), level
    )
    assert margin_of_error(NoiseLaw(sigma_squared=scale**2 / tiny, scale=scale), level) == margin_of_error(
        NoiseLaw(scale=scale), level
    )
