"""Totals that cross, against solvers that know nothing of the search, and against every table where these are few."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, linprog, milp  # type: ignore[import-untyped]  # no types

from service.errors import InvalidInput
from service.postprocess import crossing, rounding
from service.postprocess.contradictions import check_totals, find_table
from service.postprocess.crossing import OPEN, TOLERANCE, Crossing, Partition, hierarchies, project, rake
from service.postprocess.rounding import meets_totals, round_adjustment, round_counts


def _partition(block: Any, totals: Any, name: str = "p") -> Partition:
    return Partition(np.array(block, np.int64), np.array(totals, np.int64), (name + "/{}").format)


def _margins(truth: Any, margins: Sequence[tuple[int, ...]]) -> Crossing:
    """The full margins of a table that exists."""
    indices = np.indices(truth.shape).reshape(truth.ndim, -1)
    partitions = []
    for axes in margins:
        block = np.ravel_multi_index([indices[axis] for axis in axes], [truth.shape[axis] for axis in axes])
        partitions.append(_partition(block, np.bincount(block, truth.ravel())))
    return Crossing.of(partitions, "")


def _system(crossed: Crossing) -> tuple[Any, Any]:
    rows = [one.block == block for one in crossed.partitions for block in range(one.totals.size)]
    return np.array(rows, float), np.concatenate([one.totals for one in crossed.partitions])


def _random(random: np.random.Generator, partitions: int) -> Crossing:
    """Few cells in random blocks, with totals of a table or, often, some that are one or two off."""
    cells = int(random.integers(3, 13))
    truth = random.poisson(2, cells) * (random.random(cells) < 0.6)
    found = []
    for _ in range(partitions):
        blocks = int(random.integers(1, 6))
        block = random.integers(OPEN if random.random() < 0.4 else 0, blocks, cells)
        totals = np.array([truth[block == number].sum() for number in range(blocks)])
        if random.random() < 0.3:
            totals[random.integers(blocks)] += random.integers(0, 3)
        totals[[not (block == number).any() for number in range(blocks)]] = 0
        found.append(_partition(block, totals))
    return Crossing.of(found, "/totals")


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("seed", range(60))
def test_totals_are_refused_exactly_where_no_table_has_them(partitions: int, seed: int) -> None:
    crossed = _random(np.random.default_rng([seed, partitions]), partitions)
    matrix, totals = _system(crossed)
    cells = crossed.places.size
    exists = linprog(np.zeros(cells), A_eq=matrix, b_eq=totals, bounds=(0, None)).status == 0
    equal = LinearConstraint(matrix, totals, totals)
    in_whole = (
        milp(np.zeros(cells), constraints=equal, integrality=np.ones(cells), bounds=Bounds(0, np.inf)).status == 0
    )
    assert _accepted(check_totals, crossed) == exists
    assert _accepted(find_table, crossed) == in_whole
    assert in_whole == exists or partitions > 2
    if in_whole:
        assert meets_totals(find_table(crossed, "/totals"), crossed)


def _accepted(by: Any, crossed: Crossing) -> bool:
    try:
        by(crossed, "/totals")
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("size", [10, 10**3, 10**6])
@pytest.mark.parametrize("seed", range(40))
def test_no_table_is_nearer_than_the_projection(seed: int, size: int) -> None:
    """By the condition that is necessary and enough: no table is on the near side of the plane through it."""
    random = np.random.default_rng([seed, size])
    crossed = _random(random, 2 + seed % 2)
    if not _accepted(check_totals, crossed):
        return
    counts = random.integers(-size, size, crossed.places.size)
    found = project(counts, crossed)
    assert not crossed.misses(found)
    assert (found >= 0).all()
    matrix, totals = _system(crossed)
    towards = (found - counts) / size
    best = linprog(towards, A_eq=matrix, b_eq=totals, bounds=(0, None))
    assert towards @ found <= best.fun + 1e-6


@pytest.mark.parametrize("margins", [[(0,), (1,)], [(0,), (1, 2)], [(0, 1), (1, 2)]])
def test_raking_keeps_the_odds_ratios_that_no_total_speaks_of(margins: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(5)
    crossed = _margins(random.integers(1, 40, (5, 4, 3)), margins)
    counts = random.integers(1, 60, 60)
    found = rake(counts, crossed)
    assert not crossed.misses(found)
    if margins == [(0,), (1, 2)]:
        mine, theirs = found.reshape(5, 12), counts.reshape(5, 12)
        for (i, j), (k, m) in itertools.product(
            itertools.combinations(range(5), 2), itertools.combinations(range(12), 2)
        ):
            ratio = theirs[i, k] * theirs[j, m] / (theirs[i, m] * theirs[j, k])
            assert mine[i, k] * mine[j, m] / (mine[i, m] * mine[j, k]) == pytest.approx(ratio, rel=1e-6)
    # In general: the logarithms of what counts are multiplied by are sums of one number for each total.
    matrix, _ = _system(crossed)
    logs = np.log(found / counts)
    parts = np.linalg.lstsq(matrix.T, logs, rcond=None)[0]
    assert matrix.T @ parts == pytest.approx(logs, abs=1e-6)


def test_raking_meets_totals_that_its_zeros_forbid() -> None:
    """A diagonal of counts, and totals that only another table has; a block without counts begins with equal ones."""
    crossed = _margins(np.array([[0, 4], [6, 0]]), [(0,), (1,)])
    found = rake(np.array([9, 0, 0, 9]), crossed)
    assert not crossed.misses(found)
    faded = rake(
        np.array([5, 5, 0, 5]), _margins(np.array([[0, 1], [2, 1]]), [(0,), (1,)])
    )  # one count halves for ever
    assert faded == pytest.approx([0.5, 0.5, 1.5, 1.5], abs=1)
    assert not _margins(np.array([[0, 1], [2, 1]]), [(0,), (1,)]).misses(faded)
    crossed = _margins(np.array([[2, 2], [3, 3]]), [(0,), (1,)])
    assert rake(np.array([0, -5, 4, 4]), crossed) == pytest.approx([2, 2, 3, 3])


@pytest.mark.parametrize("fit", [rake, project])
@pytest.mark.parametrize("seed", range(25))
def test_rounding_of_two_hierarchies_is_a_floor_or_a_ceiling(fit: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.poisson(random.gamma(0.5, 6, (7, 3, 4)))
    margins: list[list[tuple[int, ...]]] = [[(0,), (1,)], [(0, 1), (1, 2)], [(0, 2), (1,)]]
    crossed = _margins(truth, margins[seed % 3])
    real = fit(truth.ravel() + random.integers(-9, 9, truth.size), crossed)
    found = round_counts(real, crossed).counts
    assert found is not None
    assert meets_totals(found, crossed)
    assert np.abs(found - real).max() < 1 + 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_no_rounding_of_two_hierarchies_moves_a_count_less(seed: int) -> None:
    """Every floor and ceiling of a table of nine cells."""
    random = np.random.default_rng(seed)
    crossed = _margins(random.poisson(2, (3, 3)), [(0,), (1,)])
    real = rake(random.integers(1, 20, 9), crossed)
    found = round_counts(real, crossed).counts
    assert found is not None
    least = min(
        float(np.abs(table - real).max())
        for up in itertools.product((0, 1), repeat=9)
        for table in [np.floor(real + 1e-7).astype(np.int64) + up]
        if meets_totals(table, crossed)
    )
    assert np.abs(found - real).max() <= max(least, 0.5) + 1 / 32


def test_totals_that_only_fractions_have() -> None:
    """Three cells, of which each two add up to 1."""
    crossed = Crossing.of([_partition(block, [1]) for block in ([0, 0, OPEN], [OPEN, 0, 0], [0, OPEN, 0])], "/totals")
    assert project(np.array([5, 0, 0]), crossed) == pytest.approx([0.5, 0.5, 0.5])
    assert check_totals(crossed, "/totals") == pytest.approx([0.5, 0.5, 0.5])
    with pytest.raises(InvalidInput) as refused:
        find_table(crossed, "/totals")
    assert "fractions" in refused.value.faults[0].detail


def test_three_crossing_margins_are_rounded_by_search() -> None:
    random = np.random.default_rng(1)
    truth = random.poisson(3, (5, 5, 5))
    crossed = _margins(truth, [(0, 1), (1, 2), (0, 2)])
    known = find_table(crossed, "")
    noisy = truth.ravel() + random.integers(-6, 7, truth.size)
    for fit in (rake, project):
        found = round_adjustment(fit, noisy, crossed, known)
        assert meets_totals(found, crossed)
        assert np.abs(found - fit(noisy, crossed)).max() < 1 + 1e-6


def test_the_known_table_is_the_answer_if_no_other_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adjustment that failed for some noisy counts would tell something of them."""
    crossed = _margins(np.arange(8).reshape(2, 2, 2), [(0, 1), (1, 2), (0, 2)])
    known = find_table(crossed, "")
    monkeypatch.setattr(rounding, "round_counts", lambda *_: rounding.RoundingSearch(None))
    assert round_adjustment(rake, np.arange(8), crossed, known).tolist() == known.tolist()


@pytest.mark.parametrize("fit", [rake, project])
def test_whatever_the_noise_totals_are_met(fit: Any) -> None:
    crossed = _margins(np.array([[2**38, 0, 3], [1, 0, 2]]), [(0,), (1,)])
    known = find_table(crossed, "")
    for counts in ([0] * 6, [2**63 - 1] * 6, [-(2**63)] * 6, [2**63 - 1, -(2**63)] * 3, [7, 0, -(2**61), 1, 1, 5]):
        assert meets_totals(round_adjustment(fit, np.array(counts, np.int64), crossed, known), crossed)


def test_the_same_is_found_again_whatever_runs_beside_it() -> None:
    random = np.random.default_rng(2)
    truth = random.poisson(4, (6, 5, 4))
    crossed = [_margins(truth, [(0, 1), (1, 2), (0, 2)]), _margins(truth, [(0,), (1, 2)])]
    noisy = truth.ravel() + random.integers(-5, 6, truth.size)

    def adjusted(_: int) -> list[list[int]]:
        return [
            round_adjustment(fit, noisy, one, find_table(one, "")).tolist()
            for one in crossed
            for fit in (rake, project)
        ]

    alone = adjusted(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == alone for found in pool.map(adjusted, range(8)))


def test_the_totals_that_contradict_each_other_are_named() -> None:
    rows = [0, 0, 1, 1, 2, OPEN]
    crossed = Crossing.of(
        [_partition(rows, [5, 4, 1], "rows"), _partition([0, 1, 0, 1, 2, 2], [3, 5, 9], "columns")], ""
    )
    with pytest.raises(InvalidInput) as refused:
        find_table(crossed, "")
    assert [fault.pointer for fault in refused.value.faults] == ["rows/0", "rows/1"]  # 9 in all, in columns with 8
    large = [2**39, 2**39 - 1]  # beyond what a flow carries, one unit less than the rows have
    crossed = Crossing.of([_partition([0, 0, 1, 1], [2**39] * 2, "rows"), _partition([0, 1, 0, 1], large)], "")
    with pytest.raises(InvalidInput) as refused:
        check_totals(crossed, "")
    assert [fault.pointer for fault in refused.value.faults] == ["rows/0", "rows/1"]


def test_more_than_is_searched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="2\\^40"):
        Crossing.of([_partition([0], [2**40 + 1]), _partition([0], [1])], "/totals")
    monkeypatch.setattr(crossing, "MOST_CELLS", 3)
    with pytest.raises(InvalidInput, match="3 cells"):
        _margins(np.ones((2, 2), np.int64), [(0,), (1,)])
    monkeypatch.undo()
    with pytest.raises(InvalidInput, match="2048 cells"):
        find_table(_margins(np.ones((13, 13, 13), np.int64), [(0, 1), (1, 2), (0, 2)]), "/totals")
    threes = list(itertools.combinations(range(9), 3))[:24]  # 512 cells in 84 margins were a search of minutes
    with pytest.raises(InvalidInput, match="at most 256 cells"):
        find_table(_margins(np.ones((2,) * 9, np.int64), threes), "/totals")
    many = list(itertools.combinations(range(13), 2))[:32]  # each two of which would be compared on 8,192 cells
    with pytest.raises(InvalidInput, match="at most 2048 cells"):
        _margins(np.ones((2,) * 13, np.int64), many)


def test_margins_are_divided_into_as_few_hierarchies_as_two() -> None:
    sets = [frozenset(margin) for margin in ((), (0,), (1,), (0, 1), (0, 1, 2))]
    assert [[set(one) for one in chain] for chain in hierarchies(sets)] == [[set(), {0}, {0, 1}, {0, 1, 2}], [{1}]]
    # Taken one by one, {1} would be put with {0, 1}, where {1, 2} and {0} have no place then.
    for order in itertools.permutations([frozenset(margin) for margin in ((0,), (1,), (0, 1), (1, 2))]):
        chains = hierarchies(order)
        assert len(chains) == 2
        assert all(one <= other for chain in chains for one, other in itertools.pairwise(chain))
    three = hierarchies([frozenset(margin) for margin in ((0,), (1,), (2,), (0, 1), (0, 2), ())])
    assert sorted(len(chain) for chain in three) == [1, 2, 3]
    assert all(one <= other for chain in three for one, other in itertools.pairwise(chain))


def test_misses_are_measured_relative_to_the_totals() -> None:
    crossed = _margins(np.array([[10**6, 1], [1, 1]]), [(0,), (1,)])
    table = np.array([10**6, 1, 1, 1.0])
    assert not crossed.misses(table + np.array([TOLERANCE * 1e5, 0, 0, 0]))
    assert crossed.misses(table + np.array([0, 0, 0, 3 * TOLERANCE]))


@pytest.mark.parametrize("seed", range(12))
def test_totals_of_unlike_sizes_have_tables_if_they_have_any(seed: int) -> None:
    """A few huge counts among tiny ones, which a search in doubles may take for a contradiction."""
    random = np.random.default_rng(seed)
    truth = np.where(random.random((5, 3, 6, 3)) < 0.2, 2**30, random.integers(0, 3, (5, 3, 6, 3)))
    crossed = _margins(truth, [(0, 1, 3), (0, 2, 3)])
    assert meets_totals(find_table(crossed, ""), crossed)


@pytest.mark.parametrize("seed", range(2))
def test_three_margins_of_unlike_sizes_are_not_taken_for_a_contradiction(seed: int) -> None:
    """Doubles that miss small totals beside huge ones are no proof that there is no table."""
    random = np.random.default_rng(seed)
    truth = np.floor(np.exp(random.uniform(0, 24, (5, 5, 5)))).astype(np.int64) * (random.random((5, 5, 5)) < 0.4)
    crossed = _margins(truth, [(0, 1), (1, 2), (0, 2)])
    assert meets_totals(find_table(crossed, ""), crossed)


@pytest.mark.parametrize("fit", [rake, project])
@pytest.mark.parametrize("seed", range(6))
def test_small_totals_beside_huge_ones_are_met_by_real_counts(fit: Any, seed: int) -> None:
    """A total of 1 is met to 1e-9 where others are in the billions, of which that is the last digit."""
    random = np.random.default_rng(seed)
    truth = np.floor(np.exp(random.uniform(0, 24, (6, 6, 6)))).astype(np.int64) * (random.random((6, 6, 6)) < 0.4)
    crossed = _margins(truth, [(0,), (1, 2)])
    noisy = truth.ravel() + np.rint(random.laplace(0, 20, truth.size)).astype(np.int64)
    found = fit(noisy, crossed)
    assert not crossed.misses(found)
    assert (found >= 0).all()
    assert np.abs(found - noisy).max() < 2000


@pytest.mark.parametrize("size", [3, 2**20, 2**36])
def test_a_contradiction_of_three_margins_is_proven_however_large(size: int) -> None:
    """Nearly always equal along two pairs of axes, and never along the third."""
    same, other = [size, 1, 1, size], [0, size + 1, size + 1, 0]
    totals = zip(((0, 1), (1, 2), (0, 2)), (same, same, other), strict=True)
    indices = np.indices((2, 2, 2)).reshape(3, -1)
    crossed = Crossing.of(
        [_partition(np.ravel_multi_index(list(indices[list(axes)]), (2, 2)), one) for axes, one in totals], "/totals"
    )
    with pytest.raises(InvalidInput) as refused:
        check_totals(crossed, "/totals")
    assert "no such table meets all of these" in refused.value.faults[0].detail


def test_real_counts_that_miss_totals_by_much_are_rounded_all_the_same() -> None:
    """As where a search ends at its limit, also where an atom of several cells is to have less than their floors."""
    crossed = _margins(np.array([[[2**33, 1], [0, 5]], [[3, 0], [7, 2]]]), [(0,), (1,)])
    for real in (np.full(8, 2.0**33), np.zeros(8), np.array([3.5, 0, 0, 2**34, 0, 2**35, 9.9, 0])):
        found = round_counts(real, crossed).counts
        assert found is not None
        assert meets_totals(found, crossed)


def test_blocks_that_exceed_beside_open_cells_are_named() -> None:
    """Rows exceed at one end, columns at the other, and open cells lie between."""
    rows, columns = [0, 1, OPEN, 2], [0, OPEN, 1, 2]
    crossed = Crossing.of([_partition(rows, [4, 1, 3], "rows"), _partition(columns, [3, 1, 4], "columns")], "")
    with pytest.raises(InvalidInput) as refused:
        check_totals(crossed, "")
    assert {fault.pointer for fault in refused.value.faults} <= {"rows/0", "columns/2"}
