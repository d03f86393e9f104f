"""Experiments, and the two papers' table and figure again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from service.empirical import experiments
from service.empirical.experiments import ALGORITHMS, Experiment, direct_runs, run, simulated, tail_ratios
from service.empirical.loss import Setting
from service.empirical.populations import area_counts
from service.empirical.reproduction import (
    FIGURE_1_MEAN,
    FIGURE_1_PEOPLE,
    figure_1,
    table_sa1_a,
    table_sa1_b,
    table_sa1_c,
)

_SMALL = Experiment(algorithm="gdpc", epsilon=0.5, people=100_000, levels=2, mean=40, replicates=20, seed=1)
_OF = {
    "gdpc": _SMALL,
    "rdpc": replace(_SMALL, algorithm="rdpc", direct_runs=50),
    "adpc": replace(_SMALL, algorithm="adpc", parts=3, direct_runs=50),
    "consistent": replace(_SMALL, algorithm="consistent", strata=3),
    "invariant": replace(_SMALL, algorithm="invariant", strata=3),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_experiment_is_its_parameters(algorithm: str) -> None:
    """The same seed gives the same result, in JSON as well; another gives another."""
    told: list[float] = []
    found = run(_OF[algorithm], told.append)
    assert json.loads(json.dumps(found)) == run(_OF[algorithm], lambda _: None)
    assert found["epl"] != run(replace(_OF[algorithm], seed=2), lambda _: None)["epl"]
    assert told == sorted(told)
    assert told[0] == 0
    assert found["residuals"] == found["areas"] * _OF[algorithm].strata == 50**2 * _OF[algorithm].strata
    assert found["lower_bound"]["certified"] == (algorithm in ("gdpc", "adpc"))
    assert (found["divided_equally"] is None) == (algorithm != "rdpc")
    assert (found["direct"] is None) == (_OF[algorithm].direct_runs == 0)


def test_work_is_known_beforehand() -> None:
    assert (_SMALL.counts, _SMALL.values) == (2500, 2500)
    assert _OF["adpc"].values == 3 * 2500 + 2 * 3 * 50
    assert _OF["rdpc"].values == 2500 + 2 * 50 * 50 * 2
    assert _OF["invariant"].counts == 7500


def test_an_experiment_without_an_estimate_says_why() -> None:
    with pytest.raises(ValueError, match="at least two unit bins"):
        run(replace(_SMALL, epsilon=4.0), lambda _: None)


@pytest.mark.parametrize("algorithm", ["gdpc", "adpc", "rdpc"])
def test_runs_on_neighbours_differ_by_the_person_who_moved(algorithm: str) -> None:
    """Hardly any noise: what is left is the true counts' difference."""
    experiment = replace(_OF[algorithm], epsilon=200.0, direct_runs=200)
    counts = area_counts(experiment.tree, np.random.default_rng(1))
    first, second = direct_runs(experiment, counts, np.random.default_rng(2))
    assert np.abs(first).max() < 0.3
    assert np.abs(second + 1).max() < 0.3


@pytest.mark.parametrize(("children", "levels"), [(3, 2), (11, 3), (1200, 1), (1, 2)])
def test_the_neighbour_is_the_same_population_with_one_person_moved(
    children: int, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The true counts that the short cut sees, against those of the whole population D'."""
    seen: list[list[list[int]]] = []

    def look(_: int, siblings: list[np.ndarray], __: float, runs: int, ___: object) -> np.ndarray:
        seen.append([counts.tolist() for counts in siblings])
        return np.zeros(runs)

    monkeypatch.setattr(experiments, "raked_first_area", look)
    people = 10 * children**levels
    experiment = replace(_OF["rdpc"], people=people, mean=10, levels=levels, direct_runs=1)
    assert experiment.tree.children == children
    counts = area_counts(experiment.tree, np.random.default_rng(1)) + 1
    direct_runs(experiment, counts, np.random.default_rng(1))
    moved = counts.copy()
    moved.flat[0] -= 1
    moved.flat[min(1001, counts.size - 1)] += 1
    for population, siblings in zip((counts, moved), seen, strict=True):
        for level, found in enumerate(siblings, 1):
            sums = population.reshape(children**level, -1).sum(axis=1)
            assert found == sums[:children].tolist()


def test_direct_runs_bound_the_true_loss() -> None:
    experiment = replace(_OF["rdpc"], epsilon=3.0, direct_runs=20_000)
    found = run(experiment, lambda _: None)["direct"]
    # A leaf's count moves by one and so do those above it, each under a third of the budget.
    assert 0.8 < found["lower_bound"]["epsilon_lower_bound"] < 3.0
    assert found["moved_to"] == 1001
    assert found["epl"] == max(abs(point["epl"]) for point in found["curve"])


def test_tails_are_compared_as_frequencies() -> None:
    x, ratios = tail_ratios(np.array([0.0, 1, 2, 3]), np.array([0.0, 0, 1, 1, 2]), 100)
    assert x.tolist() == [0, 1, 2, 3]
    assert ratios[:3] == pytest.approx([0, np.log((3 / 4) / (3 / 5)), np.log((2 / 4) / (1 / 5))])
    assert ratios[3] == np.inf


def test_table_sa1_a_is_reproduced() -> None:
    rows = list(table_sa1_a(200, 1))
    assert len(rows) == 13
    for row in rows:
        assert row.within, row
        assert row.mean is not None
        assert row.mean == pytest.approx(row.printed[0], rel=0.06)


def test_bandwidth_and_range_matter_whatever_is_printed() -> None:
    bandwidths = [row.mean for row in table_sa1_b(30, 1)]
    assert bandwidths[0] is None
    sizes = [mean for mean in bandwidths if mean is not None]
    assert sizes[2:] == sorted(sizes[2:], reverse=True)
    assert (sizes[0], sizes[-1]) == pytest.approx((0.40, 0.0057), rel=0.15)
    ranges = [row.mean or 0 for row in table_sa1_c(30, 1)]
    assert ranges == sorted(ranges)
    assert ranges[0] == pytest.approx(0.16, rel=0.1)
    assert ranges[-1] > 1


def test_figure_1_is_reproduced() -> None:
    for panel in figure_1(FIGURE_1_PEOPLE, FIGURE_1_MEAN, 20, 1):
        assert abs(panel.off) < 0.15
        assert panel.experiment.tree.areas == 10**6


def test_seed_000s_two_cases() -> None:
    """Washington State's 2,663 districts, as a hierarchy of 51 times 51, with 24 strata of age, race and ethnicity."""
    state = Experiment(
        algorithm="consistent", epsilon=1.0, people=1_736_191, levels=2, mean=652, strata=24, replicates=0, seed=1
    )
    assert 0.3 < run(state, lambda _: None)["epl"] < 0.6
    held = replace(state, algorithm="invariant", epsilon=0.25)
    assert run(held, lambda _: None)["epl"] > 4 * 0.25


def test_the_mean_of_four_leaks_more_than_its_published_estimate_says() -> None:
    experiment = Experiment(
        algorithm="adpc",
        epsilon=0.05,
        people=10**9,
        levels=3,
        mean=1000,
        parts=4,
        setting=Setting(bandwidth=0.15),
        replicates=0,
        risk=0.001,
        seed=1,
    )
    found = run(experiment, lambda _: None)
    assert found["epl"] < 0.029 < found["lower_bound"]["epsilon_lower_bound"] < 0.05


def test_residuals_do_not_depend_on_what_is_asked_of_them() -> None:
    first, _, _ = simulated(_SMALL, np.random.default_rng(9))
    second, _, _ = simulated(replace(_SMALL, setting=Setting(1.0), direct_runs=7), np.random.default_rng(9))
    assert np.array_equal(first, second)
