"""Intervals of doubles: the truth, in balls, is inside, and what numpy's functions are trusted with holds."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flint import arb
from hypothesis import given, strategies as st

from service.privacy.numerics.arithmetic import BALLS, SMALL, Doubles
from service.privacy.numerics.intervals import INTERVALS, Interval, down, up
from service.privacy.numerics.numbers import precision

DRAW = np.random.default_rng(1)


def doubles(low: float, high: float, count: int = 4000) -> Doubles:
    """Doubles spread over the exponents from 10^low to 10^high, and their neighbours at the powers of two."""
    found = 10 ** DRAW.uniform(low, high, count)
    return np.concatenate([found, 2.0 ** np.floor(np.log2(found[:500]))])


def both(x: Doubles) -> Doubles:
    return np.concatenate([x, -x])


FUNCTIONS: list[tuple[str, Doubles]] = [
    ("exp", np.concatenate([both(doubles(-20, 2.8)), DRAW.uniform(-700, 700, 4000)])),
    ("expm1", np.concatenate([both(doubles(-20, 2.8)), DRAW.uniform(-700, 700, 4000)])),
    ("log", np.concatenate([doubles(-300, 300), 1 + both(doubles(-15, -0.1))])),
    ("log1p", np.concatenate([doubles(-300, 300), -doubles(-300, -0.01), DRAW.uniform(-0.99, 2, 4000)])),
    ("exp_excess", np.concatenate([both(doubles(-100, 2.8)), DRAW.uniform(-2, 2, 4000)])),
    ("coth_excess", np.concatenate([doubles(-60, 300), DRAW.uniform(0.5, 2, 4000)])),
]


def inside(found: Interval, truths: list[arb]) -> Iterator[bool]:
    for low, high, truth in zip(found.low.tolist(), found.high.tolist(), truths, strict=True):
        yield bool(arb(low) <= truth) and bool(truth <= arb(high))


@pytest.mark.parametrize(("name", "x"), FUNCTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_function_of_a_double_is_inside_its_interval_and_the_interval_is_narrow(name: str, x: Doubles) -> None:
    """With a margin: 3 units of the 5 do, so that a library that comes near what it is trusted with is seen."""
    with np.errstate(all="ignore"):
        found: Interval = getattr(INTERVALS, name)(Interval(x, x))
    middle, half = (found.low + found.high) / 2, (found.high - found.low) / 2
    with precision(1100):
        truths = [getattr(BALLS, name)(arb(one)) for one in x.tolist()]
        assert all(inside(found, truths))
        if name not in ("exp_excess", "coth_excess"):
            kept = (np.abs(middle) > 1e-290) & ((found.low > -1) | (name in ("log", "log1p")))  # where no end is cut
            assert all(np.array(list(inside(Interval(middle - half * 0.6, middle + half * 0.6), truths)))[kept])
    normal = np.abs(middle) > 1e-290
    assert np.all(half[normal] <= 5e-15 * np.abs(middle[normal]))


OPERATIONS: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul, operator.truediv]
ends = st.tuples(st.floats(-1e100, 1e100), st.floats(0, 1e100)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
@given(one=ends, other=ends, shares=st.tuples(st.integers(0, 8), st.integers(0, 8)))
def test_an_operation_on_points_inside_is_inside(
    operation: Callable[[Any, Any], Any], one: tuple[float, float], other: tuple[float, float], shares: tuple[int, int]
) -> None:
    a, b = (Interval(np.array([low]), np.array([high])) for low, high in (one, other))
    with np.errstate(all="ignore"):
        found = operation(a, b)
    with precision(4200):  # exact for sums and products of doubles
        x, y = (
            arb(low) + (arb(high) - arb(low)) * share / 8
            for (low, high), share in zip((one, other), shares, strict=True)
        )
        if operation is operator.truediv and other[0] <= 0 <= other[1]:
            assert np.isnan(found.low[0])
            return
        truth = operation(x, y)
        assert arb(float(found.low[0])) <= truth or truth.overlaps(arb(float(found.low[0])))
        assert truth <= arb(float(found.high[0])) or truth.overlaps(arb(float(found.high[0])))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 20))
def test_down_and_up_move_by_units_in_the_last_place(x: float, units: int) -> None:
    below, above = x, x
    with np.errstate(over="ignore"):
        for _ in range(units):
            below, above = np.nextafter(below, -np.inf), np.nextafter(above, np.inf)
        assert down(np.array(x), units) <= below
        assert up(np.array(x), units) >= above


def test_arrays_and_numbers_on_either_side_are_exact() -> None:
    x, array = Interval(np.array([2.0]), np.array([2.0])), np.array([3.0])
    for found, truth in ((array - x, 1), (1 / x, 0.5), (3 * x, 6), (-x + array, 1), (x - 5, -3)):
        assert isinstance(found, Interval)
        assert found.low[0] < truth < found.high[0]
        assert found.high[0] - found.low[0] < 1e-14


def test_overflows_and_undefined_values_bound_nothing() -> None:
    x = Interval(np.array([1e308, 1.0, 0.0]), np.array([1e308, 1.0, 0.0]))
    with np.errstate(all="ignore"):
        assert (x * 10).narrow(1).tolist() == [False, True, False]
        assert (x / x).narrow(1e-9).tolist() == [True, True, False]
        assert INTERVALS.exp(x * 1).narrow(1e-9).tolist() == [False, True, True]
    assert not Interval(np.array([1.0]), np.array([1.1])).narrow(0.05)[0]


def test_each_of_two_forms_is_taken_where_it_holds() -> None:
    x = Interval(np.array([1.0, 2 * SMALL]), np.array([1.0, 2 * SMALL]))
    found = INTERVALS.either(x, lambda: x * 0 + 1, lambda: x * 0 + 2)
    assert found.low == pytest.approx([1, 2])


@pytest.mark.parametrize("variance", [1e-4, 0.05, 0.3, 1.0, 1.999])
def test_the_sum_of_a_discrete_gaussian_is_inside(variance: float) -> None:
    u = np.linspace(-0.5, 0.5, 41)
    found = INTERVALS.gaussian_side(Interval(u, u), Interval(*np.full((2, 1), variance)))
    with precision(300):
        assert all(inside(found, [BALLS.gaussian_side(arb(one), arb(variance)) for one in u.tolist()]))
    assert np.isnan(INTERVALS.gaussian_side(Interval(u, u), Interval(*np.full((2, 1), 2.1))).high).all()
    assert np.isnan(INTERVALS.gaussian_side(Interval(-u - 1, u + 1), Interval(*np.full((2, 1), 1.0))).high[20:]).all()
