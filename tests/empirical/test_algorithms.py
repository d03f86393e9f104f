"""The papers' algorithms against the same algorithms written out in loops, and against what they must keep."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import linprog, minimize  # type: ignore[import-untyped]  # it publishes no types

from service.empirical import algorithms
from service.empirical.algorithms import (
    averaged_residuals,
    consistent_residuals,
    invariant_residuals,
    project_onto_sums,
    raked_first_area_counts,
    raked_residuals,
)
from service.empirical.populations import Hierarchy, area_counts, hierarchy, stratified_counts


@given(st.integers(1, 10**12), st.integers(1, 12), st.integers(1, 10**6))
def test_areas_have_as_many_children_as_the_formula_says(people: int, levels: int, mean: int) -> None:
    children = hierarchy(people, levels, mean).children
    assert children >= 1
    assert children == 1 or Fraction(people, mean) >= children**levels
    assert Fraction(people, mean) < (children + 1) ** levels


def test_a_cube_root_that_doubles_miss() -> None:
    assert int((10**9 / 10**3) ** (1 / 3)) == 99
    tree = hierarchy(10**9, 3, 1000)
    assert (tree.children, tree.areas, tree.shape) == (100, 10**6, (100, 100, 100))


def test_everybody_is_somewhere_and_areas_are_alike() -> None:
    tree = Hierarchy(10**6, 2, 10)
    counts = area_counts(tree, np.random.default_rng(1))
    assert (counts.shape, counts.sum()) == ((10, 10), 10**6)
    assert ((counts - 10**4) ** 2 / 10**4).sum() < 160  # chi-square with 99 degrees of freedom
    strata = stratified_counts(tree, 3, np.random.default_rng(1))
    assert (strata.shape, strata.sum()) == ((10, 10, 3), 10**6)
    assert strata.sum(axis=(0, 1)) / 10**6 == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.002)


class _Scripted:
    """Noise that is known beforehand, in the order in which the algorithms ask for it."""

    def __init__(self, values: list[int]) -> None:
        self.left = values

    def draw(self, _: float, shape: int | tuple[int, ...], __: object) -> np.ndarray:
        size = int(np.prod(shape))
        taken, self.left = self.left[:size], self.left[size:]
        return np.array(taken).reshape(shape)


def _script(monkeypatch: pytest.MonkeyPatch, values: list[int]) -> None:
    monkeypatch.setattr(algorithms, "two_sided_geometric", _Scripted(values).draw)


def test_raking_is_the_printed_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three levels of two, by the recursion over tuples as Flaxman 2019 prints it."""
    generator = np.random.default_rng(2)
    counts = generator.integers(50, 90, (2, 2, 2))
    noise = generator.integers(-9, 10, 1 + 2 + 4 + 8).tolist()
    by_tuple = dict(zip((t for n in range(4) for t in itertools.product(range(2), repeat=n)), noise, strict=True))
    noisy = {t: int(counts[t].sum()) + x for t, x in by_tuple.items()}
    expected: dict[tuple[int, ...], Fraction] = {(): Fraction(noisy[()])}
    for t in list(noisy)[1:]:
        expected[t] = noisy[t] * expected[t[:-1]] / sum(noisy[(*t[:-1], child)] for child in range(2))
    _script(monkeypatch, noise)
    found = raked_residuals(counts, 0.1, generator)
    assert found.divided == 0
    true = [float(expected[t]) - counts[t] for t in itertools.product(range(2), repeat=3)]
    assert found.residuals == pytest.approx(true)


def test_children_without_a_positive_sum_get_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _script(monkeypatch, [0, -4, -5, 7, 1, 1, 1])  # the whole; one level of six
    found = raked_residuals(np.array([1, 2, 0, 1, 1, 1]), 0.1, np.random.default_rng(0))
    assert found.divided == 0  # 5 people, whose noisy counts sum to 7
    _script(monkeypatch, [3, -4, -5, 2])
    found = raked_residuals(np.array([1, 2, 3]), 0.1, np.random.default_rng(0))  # noisy: 9; -3, -3, 5
    assert found.divided == 1
    assert found.residuals == pytest.approx([3 - 1, 3 - 2, 3 - 3])
    _script(monkeypatch, [3, -4, -5, 3])
    found = raked_residuals(
        np.array([1, 2, 4]), 0.1, np.random.default_rng(0)
    )  # noisy: 10; -3, -3, 7: a sum of 1 is positive
    assert found.divided == 0
    assert found.residuals == pytest.approx([-30 - 1, -30 - 2, 70 - 4])


def test_the_first_area_alone_has_the_law_that_it_has_among_all() -> None:
    """Runs of the whole algorithm against the short cut: quantiles of the same distribution."""
    generator = np.random.default_rng(3)
    counts = generator.integers(0, 12, (3, 3))
    siblings = [counts.sum(axis=1), counts[0]]
    runs = 4000
    whole = np.sort([raked_residuals(counts, 0.8, generator).residuals[0] for _ in range(runs)])
    short = np.sort(raked_first_area_counts(int(counts.sum()), siblings, 0.8, runs, generator) - counts[0, 0])
    merged = np.concatenate([whole, short])
    distance = np.abs(np.searchsorted(whole, merged, "right") - np.searchsorted(short, merged, "right")).max() / runs
    assert distance < 1.95 * np.sqrt(2 / runs)  # Kolmogorov and Smirnov, at a thousandth


def test_averages_are_of_noise_of_their_own() -> None:
    generator = np.random.default_rng(4)
    found = averaged_residuals(300_000, 4, 0.5, generator)
    q = np.exp(-0.5)
    assert found.var() == pytest.approx(2 * q / (1 - q) ** 2 / 4, rel=0.03)
    assert np.array_equal(found * 4, np.rint(found * 4))
    whole = Counter(averaged_residuals(300_000, 1, 2.0, generator).tolist())
    assert whole[1.0] / whole[0.0] == pytest.approx(np.exp(-2), rel=0.03)


@pytest.mark.parametrize(("total_loss", "loss"), [(0.25, 0.75), (0.75, 0.25)])
def test_consistent_counts_minimise_the_weighted_differences(
    monkeypatch: pytest.MonkeyPatch, total_loss: float, loss: float
) -> None:
    """The minimum of scipy's linear program, area by area."""
    generator = np.random.default_rng(5)
    counts = generator.integers(0, 40, (20, 4))
    noise = generator.integers(-12, 13, 100).tolist()
    _script(monkeypatch, noise)
    fitted = counts + consistent_residuals(counts, total_loss, loss, generator).reshape(20, 4)
    strata = counts + np.array(noise[:80]).reshape(20, 4)
    totals = counts.sum(axis=1) + np.array(noise[80:])
    for y, measured, total in zip(fitted, strata, totals, strict=True):
        ours = total_loss * abs(total - y.sum()) + loss * np.abs(measured - y).sum()
        assert ours == pytest.approx(_least_differences(measured, total, total_loss, loss), abs=1e-6)


def _least_differences(measured: np.ndarray, total: int, total_loss: float, loss: float) -> float:
    """Variables: the counts, then what each measurement is off above and below."""
    size = measured.size
    cost = [0.0] * size + [loss] * (2 * size) + [total_loss] * 2
    rows = np.zeros((size + 1, 3 * size + 2))
    rows[:size, :size] = np.eye(size)
    rows[size, :size] = 1
    for row in range(size + 1):
        rows[row, size + 2 * row : size + 2 * row + 2] = (1, -1)
    limits = [(None, None)] * size + [(0, None)] * (2 * size + 2)
    return float(linprog(cost, A_eq=rows, b_eq=[*measured, total], bounds=limits).fun)


@given(
    st.lists(st.integers(-30, 30), min_size=1, max_size=6),
    st.integers(0, 60),
)
def test_the_nearest_row_with_a_sum_is_the_optimisers(values: list[int], total: int) -> None:
    row = np.array([values], float)
    found = project_onto_sums(row, np.array([float(total)]))[0]
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total, abs=1e-9)
    start = np.full(len(values), total / len(values))
    best = minimize(
        lambda y: ((y - row[0]) ** 2).sum(),
        start,
        bounds=[(0, None)] * len(values),
        constraints={"type": "eq", "fun": lambda y: y.sum() - total},
    )
    assert ((found - row[0]) ** 2).sum() <= best.fun * (1 + 1e-6) + 1e-6


def test_invariant_counts_keep_the_sums_of_their_counties() -> None:
    generator = np.random.default_rng(6)
    counts = generator.integers(0, 5, (7, 40))
    counts[0] = 0  # a county of nobody
    fitted = counts + invariant_residuals(counts, 0.1, generator).reshape(counts.shape)
    assert fitted.min() >= 0
    assert fitted.sum(axis=1) == pytest.approx(counts.sum(axis=1))
    assert not np.array_equal(fitted, counts)
