"""Post-processing against solvers that know nothing of it, and against every table there is where these are few."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize  # type: ignore[import-untyped]  # it publishes no types

from service.errors import InvalidInput
from service.postprocess.tables import MarginTotal, project, rake

Adjust = Callable[..., list[int] | list[float]]
BOTH: list[Adjust] = [rake, project]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[int], list[MarginTotal]]:
    """A table with nested totals, in any order of their axes."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    large = draw(st.sampled_from([5, 1000, 2**50]))
    cells = int(np.prod(shape))
    counts = draw(st.lists(st.integers(-large, large), min_size=cells, max_size=cells))
    axes = draw(st.permutations(range(len(shape))))
    kept = draw(st.integers(0, len(shape)))
    truth = np.array(draw(st.lists(st.integers(0, large), min_size=cells, max_size=cells))).reshape(shape)
    totals = []
    for number in range(kept + 1):
        chosen = axes[:number]
        others = tuple(axis for axis in range(len(shape)) if axis not in chosen)
        margin = truth.sum(axis=others)
        ascending = sorted(chosen)
        arranged = np.transpose(margin, [ascending.index(axis) for axis in chosen]) if chosen else margin
        totals.append(MarginTotal(tuple(chosen), tuple(int(value) for value in np.ravel(arranged))))
    return counts, shape, draw(st.permutations(totals))


def _margin(counts: list[int] | list[float], shape: list[int], total: MarginTotal) -> list[object]:
    array = np.array(counts, dtype=object).reshape(shape)
    return [
        sum(array[tuple(index)] for index in np.ndindex(*shape) if tuple(index[a] for a in total.axes) == place)
        for place in itertools.product(*(range(shape[axis]) for axis in total.axes))
    ]


@pytest.mark.parametrize("adjust", BOTH)
@given(case=tables())
@settings(max_examples=60, deadline=None)
def test_every_total_is_met_exactly_by_whole_counts_that_are_not_negative(
    adjust: Adjust, case: tuple[list[int], list[int], list[MarginTotal]]
) -> None:
    counts, shape, totals = case
    found = adjust(counts, shape, totals, integer=True)
    assert all(isinstance(value, int) and value >= 0 for value in found)
    for total in totals:
        assert _margin(found, shape, total) == list(total.values)
    real = adjust(counts, shape, totals, integer=False)
    assert all(value >= 0 for value in real)
    for total in totals:
        assert [float(value) for value in _margin(real, shape, total)] == pytest.approx(  # type: ignore[arg-type]
            list(total.values), rel=1e-9, abs=1e-6
        )
    if adjust is rake:
        assert all(abs(a - b) < 1 + 1e-9 * abs(b) for a, b in zip(found, real, strict=True))


@given(counts=st.lists(st.integers(-6, 6), min_size=1, max_size=4), total=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_no_whole_table_is_nearer_than_the_projection(counts: list[int], total: int) -> None:
    found = project(counts, [len(counts)], [MarginTotal((), (total,))], integer=True)
    distance = sum((a - b) ** 2 for a, b in zip(counts, found, strict=True))
    every = (table for table in itertools.product(range(total + 1), repeat=len(counts)) if sum(table) == total)
    assert distance == min(sum((a - b) ** 2 for a, b in zip(counts, table, strict=True)) for table in every)


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_is_the_solvers(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts, totals = random.integers(-10, 30, (2, 5)), random.integers(0, 60, 2)
    found = np.array(
        project(counts.ravel().tolist(), [2, 5], [MarginTotal((0,), tuple(totals.tolist()))], integer=False)
    )
    for row, total, mine in zip(counts, totals, found.reshape(2, 5), strict=True):
        solved = minimize(
            lambda x, row=row: ((x - row) ** 2).sum(),
            np.full(5, total / 5),
            bounds=[(0, None)] * 5,
            constraints={"type": "eq", "fun": lambda x, total=total: x.sum() - total},
            options={"ftol": 1e-14},
        )
        assert mine == pytest.approx(solved.x, abs=1e-4)


def test_raking_keeps_proportions_and_defines_what_has_none() -> None:
    assert rake([1, 3, 0, 0, -4, -2], [3, 2], [MarginTotal((0,), (8, 3, 5))], integer=True) == [2, 6, 2, 1, 3, 2]
    assert rake([1, 3, -2, 0], [4], [MarginTotal((), (6,))], integer=False) == [1.5, 4.5, 0, 0]
    assert rake([1, 1, 1], [3], [MarginTotal((), (4,))], integer=True) == [2, 1, 1]


@pytest.mark.parametrize("adjust", BOTH)
def test_without_totals_counts_only_cease_to_be_negative(adjust: Adjust) -> None:
    assert adjust([3, -2, 0], [3], [], integer=True) == [3, 0, 0]
    assert adjust([3, -2, 0], [3], [], integer=False) == [3.0, 0.0, 0.0]


@pytest.mark.parametrize("adjust", BOTH)
@pytest.mark.parametrize(
    ("shape", "totals", "pointer"),
    [
        ([2, 2], [], "/shape"),
        ([0], [], "/shape"),
        ([1] * 17, [], "/shape"),
        ([2, 3], [MarginTotal((2,), (1,))], "/totals/0/axes"),
        ([2, 3], [MarginTotal((0, 0), (1, 1, 1, 1))], "/totals/0/axes"),
        ([2, 3], [MarginTotal((0,), (1, 2, 3))], "/totals/0/values"),
        ([2, 3], [MarginTotal((0,), (1, -2))], "/totals/0/values"),
        ([2, 3], [MarginTotal((), (2**62,))], "/totals/0/values"),
        ([2, 3], [MarginTotal((), (10,)), MarginTotal((0,), (4, 5))], "/totals/1/values"),
        ([2, 3], [MarginTotal((0,), (4, 5)), MarginTotal((0,), (5, 4))], "/totals/1/values"),
        ([2, 3], [MarginTotal((0,), (4, 5)), MarginTotal((1,), (3, 3, 4))], "/totals/1/values"),
    ],
)
def test_totals_that_cannot_be_met_are_refused(
    adjust: Adjust, shape: list[int], totals: list[MarginTotal], pointer: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        adjust([1, 2, 3, 4, 5, 6], shape, totals, integer=True)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_counts_beyond_what_adds_up_are_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        rake([2**53] * 300, [300], [], integer=True)
    assert [fault.pointer for fault in refused.value.faults] == ["/counts"]
