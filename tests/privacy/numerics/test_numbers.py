"""Exact numbers and directed roundings, against exact comparison of fractions and against mpmath."""

import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from flint import arb, ctx
from hypothesis import example, given, strategies as st

from service.privacy.numerics.numbers import (
    MAX_BITS,
    ball,
    ceiling,
    double_down,
    double_up,
    exact_text,
    floor,
    parse_exact,
    precision,
)
from tests.privacy.reference import exactly, mp

LARGEST = 2**MAX_BITS - 1
ratios = st.builds(Fraction, st.integers(-LARGEST, LARGEST), st.integers(1, LARGEST))
decimals = st.builds(
    lambda digits, exponent: f"{digits}e{exponent}", st.integers(-(10**300), 10**300), st.integers(-690, 90)
)
texts = st.one_of(ratios.map(lambda x: f"{x.numerator}/{x.denominator}"), decimals)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Fraction(1, 10)),
        ("1e-10", Fraction(1, 10**10)),
        ("104/4099", Fraction(104, 4099)),
        ("6/4", Fraction(3, 2)),
        ("-2.50E+2", Fraction(-250)),
        ("0", Fraction(0)),
        ("-0.0", Fraction(0)),
        ("0e9999", Fraction(0)),
        ("1e400", Fraction(10**400)),
        ("9.9e-400", Fraction(99, 10**401)),
        (f"1/{LARGEST}", Fraction(1, LARGEST)),
        ("0." + "0" * 399 + "1", Fraction(1, 10**400)),
        (str(LARGEST), Fraction(LARGEST)),
    ],
)
def test_numbers_are_read_without_rounding(text: str, value: Fraction) -> None:
    assert parse_exact(text) == value


NOT_DECIMALS = ["", " 1", "1 ", "1\n", "+1", ".5", "5.", "1_000", "0x10", "--1", "1e", "1e5.0", "\u0661", "1\u00b2"]
NOT_NUMBERS = ["nan", "NaN", "inf", "-Infinity", "infinity", "\uff11", "one"]
NOT_FRACTIONS = ["1/0", "0/0", "1/-2", "1.5/2", "1 / 2", "1/2/3", "/2", "1/", f"1/{LARGEST + 1}", f"{LARGEST + 1}/3"]
TOO_LONG = ["1e401", "1e-401", "12e400", "1e9999", "1e99999", "1" * 310, "1" * 100_000, str(LARGEST + 1)]


@pytest.mark.parametrize("text", [*NOT_DECIMALS, *NOT_NUMBERS, *NOT_FRACTIONS, *TOO_LONG])
def test_texts_that_are_no_number_or_too_long_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        parse_exact(text)


@given(texts)
@example("1e400")
@example("-1e-400")
@example(f"{LARGEST}/{LARGEST - 2}")
@example("1/3e400")
def test_the_text_of_an_exact_number_reads_back(text: str) -> None:
    try:
        value = parse_exact(text)
    except ValueError:
        return
    shortest = exact_text(value)
    assert parse_exact(shortest) == value
    assert exact_text(parse_exact(shortest)) == shortest


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 10), "0.1"),
        (Fraction(1, 3), "1/3"),
        (Fraction(104, 4099), "104/4099"),
        (Fraction(5), "5"),
        (Fraction(1000), "1000"),
        (Fraction(1, 10**10), "1e-10"),
        (Fraction(-15, 10**9), "-1.5e-8"),
        (Fraction(10**30), "1e30"),
        (Fraction(0), "0"),
    ],
)
def test_the_usual_text_is_chosen(value: Fraction, text: str) -> None:
    assert exact_text(value) == text


@given(st.one_of(ratios, decimals.map(Fraction), st.floats(allow_nan=False, allow_infinity=False).map(Fraction)))
@example(Fraction(0))
@example(Fraction(10**400))
@example(Fraction(-(10**400)))
@example(Fraction(1, 10**400))
@example(Fraction(-1, 10**400))
@example(Fraction(sys.float_info.max) + 1)
@example(Fraction(sys.float_info.max))
def test_doubles_bracket_a_rational_and_are_next_to_it(value: Fraction) -> None:
    up, down = double_up(value), double_down(value)
    assert up == math.inf or Fraction(up) >= value
    assert down == -math.inf or Fraction(down) <= value
    below, above = math.nextafter(up, -math.inf), math.nextafter(down, math.inf)
    assert below == -math.inf or Fraction(below) < value
    assert above == math.inf or Fraction(above) > value


def test_zero_has_no_sign() -> None:
    for shown in (double_up(Fraction(0)), double_down(Fraction(0)), double_up(Fraction(-1, 10**400))):
        assert math.copysign(1, shown) == 1


FUNCTIONS: list[tuple[Any, Any]] = [
    (lambda x: ball(x).exp(), lambda x: mp.exp(x)),
    (lambda x: ball(x).log1p(), lambda x: mp.log1p(x)),
    (lambda x: -ball(x).sqrt(), lambda x: -mp.sqrt(x)),
    (lambda x: ball(x) - ball(x).sin(), lambda x: x - mp.sin(x)),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
@pytest.mark.parametrize("text", ["1e-30", "0.001", "1/3", "1", "700", "104/4099"])
def test_bounds_hold_to_29_digits(number: int, text: str) -> None:
    of_ball, of_mpmath = FUNCTIONS[number]
    with mp.workdps(400):
        truth = exactly(of_mpmath(mp.mpf(Fraction(text).numerator) / Fraction(text).denominator))
    upper, lower = ceiling(lambda: of_ball(Fraction(text))), floor(lambda: of_ball(Fraction(text)))
    assert upper is not None
    assert truth <= upper <= truth + abs(truth) / 2**95
    assert truth - abs(truth) / 2**60 <= lower <= truth


def test_a_ceiling_has_96_significant_bits_and_does_not_depend_on_the_arithmetics_last_bits() -> None:
    exact = ceiling(lambda: arb(2).sqrt())
    assert exact is not None
    assert exact.numerator.bit_length() <= 96
    assert exact - Fraction(1, 2**95) < Fraction(math.isqrt(2 << 2000), 1 << 1000) < exact
    # a machine whose square root is a thousand times less precise, and off centre
    assert exact == ceiling(lambda: arb(2).sqrt() + arb(0, arb(2) ** (10 - ctx.prec)) * 1 + arb(2) ** (9 - ctx.prec))


@pytest.mark.parametrize("truth", [Fraction(0), Fraction(1), Fraction(3, 7), Fraction(2) ** -300])
def test_a_figure_that_no_precision_decides_is_still_bounded(truth: Fraction) -> None:
    calls = []

    def blurred() -> arb:
        calls.append(ctx.prec)
        assert len(calls) < 100
        return ball(truth) + arb(0, arb(2) ** (20 - ctx.prec))

    upper, lower = ceiling(blurred), floor(blurred)
    assert upper is not None
    assert truth <= upper <= truth * (1 + Fraction(1, 2**94)) + Fraction(1, 2**4000)
    assert truth - Fraction(1, 2**60) * truth - Fraction(1, 2**4000) <= lower <= truth


def test_exact_values_are_their_own_bounds() -> None:
    for value in (Fraction(0), Fraction(5, 4), Fraction(-3)):
        assert ceiling(lambda value=value: ball(value)) == value  # type: ignore[misc]  # bound as a default
        assert floor(lambda value=value: ball(value)) == value  # type: ignore[misc]  # bound as a default


@pytest.mark.parametrize("exponent", [10**5, 10**9, 10**20, 10**400])
def test_numbers_whose_binary_exponent_is_astronomical_are_bounded_at_once(exponent: int) -> None:
    tiny = ceiling(lambda: (-ball(Fraction(exponent))).exp())
    assert tiny is not None
    assert 0 < tiny < Fraction(1, 10**4900)
    assert ceiling(lambda: ball(Fraction(exponent)).exp()) is None
    assert Fraction(-1, 10**4900) < floor(lambda: (-ball(Fraction(exponent))).exp()) <= 0
    beside_one = ceiling(lambda: 1 + (-ball(Fraction(exponent))).exp())
    assert beside_one == 1 + Fraction(1, 2**95)
    with pytest.raises(ArithmeticError):
        floor(lambda: ball(Fraction(exponent)).exp())


def test_an_undefined_figure_has_no_bound() -> None:
    assert ceiling(lambda: arb(-1).sqrt()) is None
    assert ceiling(lambda: arb(0).log()) is None
    with pytest.raises(ArithmeticError, match="finite"):
        floor(lambda: arb(0) / arb(0))


def test_threads_do_not_disturb_each_others_precision() -> None:
    before = ctx.prec
    numbers = [Fraction(k, 7) for k in range(1, 40)]

    def bounds(number: Fraction) -> tuple[Fraction | None, list[int]]:
        seen = []

        def evaluate() -> arb:
            seen.append(ctx.prec)
            time.sleep(0)  # offers every other thread its turn
            seen.append(ctx.prec)
            return ball(number).exp().sin()

        return ceiling(evaluate), seen

    alone = [bounds(number) for number in numbers]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(bounds, numbers * 4))
    assert together == alone * 4
    assert ctx.prec == before


def test_the_precision_is_restored_after_a_failure() -> None:
    before = ctx.prec
    with pytest.raises(ZeroDivisionError), precision(777):
        Fraction(1, ctx.prec - 777)
    assert ctx.prec == before
