"""Simulated experiments: a synthetic population, an algorithm, and estimates of its loss from what it returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from service.empirical.algorithms import (
    averaged_residuals,
    consistent_residuals,
    first_cell_counts,
    invariant_residuals,
    raked_first_area_counts,
    raked_residuals,
)
from service.empirical.bounds import (
    LowerBound,
    bound_from_outputs,
    bound_from_residuals,
    epsilon_at_least,
    pure_epsilon_of_shift,
)
from service.empirical.loss import Estimate, SmoothingSetting, estimate_loss
from service.empirical.populations import Hierarchy, area_counts, hierarchy, stratified_counts
from service.empirical.replicates import Bias, bootstrap, estimate_bias
from service.empirical.residuals import Counts, Floats, residuals_of

Algorithm = Literal["gdpc", "rdpc", "adpc", "consistent", "invariant"]
ALGORITHMS: tuple[Algorithm, ...] = ("gdpc", "rdpc", "adpc", "consistent", "invariant")
Measurement = Literal["geometric", "as_printed"]
STRATIFIED: tuple[Algorithm, ...] = ("consistent", "invariant")  # Flaxman and Petti 2020; others: Flaxman 2019

MOST_COUNTS = 4_000_000  # true counts of a population
MOST_VALUES = 200_000_000  # noise values of an experiment
MOST_POINTS = 2_000  # points of a stored curve
_MOVED_TO = 1001  # the area to which Flaxman 2019 moves a person from area 0

_PUBLISHED = SmoothingSetting()

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The inputs of a simulation.

    Attributes:
        algorithm: the algorithm whose loss is measured.
        epsilon: its budget (nats). In those of Flaxman 2019, a record is in one count of each level. In the others, a
            changed record changes two counts, so each measurement gets half.
        people: N.
        levels: J.
        mean: mu, the mean number of people in an area.
        parts: P, the number of measurements that ``adpc`` averages.
        strata: the number of strata in each area, for the algorithms of Flaxman and Petti 2020.
        total_share: the share of epsilon for the totals, for ``consistent``.
        noise: the noise of the algorithms of Flaxman and Petti 2020. ``as_printed`` is Table SA1's: the *success
            probability* is half of the budget, so a measurement loses more than that, -log(1 - budget/2).
        direct_runs: the number R of runs on D, and of runs on D', for the direct estimate; 0 for none.
        setting: of the residual estimate.
        replicates: the number for the bootstrap interval and for the bias; 0 for neither.
        risk: one minus the confidence of the lower bounds.
        seed: of the generator.
    """

    algorithm: Algorithm
    epsilon: float
    people: int
    levels: int
    mean: int
    parts: int = 1
    strata: int = 1
    total_share: float = 0.25
    noise: Measurement = "geometric"
    direct_runs: int = 0
    setting: SmoothingSetting = _PUBLISHED
    replicates: int = 200
    risk: float = 0.05
    seed: int = 0

    @property
    def tree(self) -> Hierarchy:
        """The hierarchy of areas."""
        return hierarchy(self.people, self.levels, self.mean)

    @property
    def values(self) -> int:
        """The approximate number of noise values that the experiment draws."""
        tree = self.tree
        of_one_run = {"rdpc": tree.children * tree.levels, "consistent": self.strata, "invariant": self.county}
        direct = self.direct_runs * of_one_run.get(self.algorithm, self.parts)
        return tree.areas * self.strata * self.parts + 2 * direct

    @property
    def counts(self) -> int:
        """The number of true counts of the population."""
        return self.tree.areas * self.strata

    @property
    def areas_of_county(self) -> int:
        """The number of areas of the last level in an area of the first one."""
        return self.tree.areas // self.tree.children

    @property
    def county(self) -> int:
        """The number of counts of a county: one for each stratum of its areas."""
        return self.areas_of_county * self.strata


def run(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    """Run an experiment, and return its result as a JSON object.

    Args:
        progress: called with the completed share, from 0 to 1.

    Raises:
        ValueError: the residuals leave nothing to estimate (the message says what would), or the first area's first
            stratum has no person to move, or the experiment is larger than a request may ask for.
    """
    if experiment.counts > MOST_COUNTS or experiment.values > MOST_VALUES:  # its parameters have no seal while it waits
        raise ValueError(f"expected at most {MOST_COUNTS} counts and {MOST_VALUES} noise values")
    generator = np.random.default_rng(experiment.seed)
    progress(0.0)
    residuals, counts, divided = simulate(experiment, generator)
    progress(0.5)
    sample, setting = residuals_of(residuals), experiment.setting
    estimate = estimate_loss(sample, setting)
    interval = bootstrap(sample, setting, experiment.replicates, generator) if experiment.replicates else None
    progress(0.7)
    bias = estimate_bias(sample, setting, experiment.replicates, generator) if experiment.replicates else None
    progress(0.85)
    bound = bound_from_residuals(residuals, 1, pure_epsilon_of_shift, experiment.risk, generator)
    progress(0.9)
    tree = experiment.tree
    return {
        "children": tree.children,
        "areas": tree.areas,
        "residuals": sample.size,
        "divided_equally": divided,
        **estimate_json(estimate, interval, bias, MOST_POINTS),
        "lower_bound": bound_json(bound) | {"certified": experiment.algorithm in ("gdpc", "adpc")},
        "direct": _direct(experiment, counts, generator) if experiment.direct_runs else None,
    }


def simulate(experiment: Experiment, generator: np.random.Generator) -> tuple[Floats, Counts, int | None]:
    """Return residuals at the last level, the true counts, and the number of areas that RDPC divided equally.

    Returns:
        Residuals in row-major order; the true counts with an axis for each level, and one for strata where there are
        any; None for the number where the algorithm is not RDPC.
    """
    tree, loss = experiment.tree, experiment.epsilon
    if experiment.algorithm in STRATIFIED:
        counts = stratified_counts(tree, experiment.strata, generator)
        return _of_rows(experiment, _rows(experiment, counts), generator), counts, None
    counts = area_counts(tree, generator)
    if experiment.algorithm == "rdpc":
        result = raked_residuals(counts, loss / (tree.levels + 1), generator)
        return result.residuals, counts, result.divided
    return averaged_residuals(tree.areas, experiment.parts, loss / experiment.parts, generator), counts, None


def _rows(experiment: Experiment, counts: Counts) -> Counts:
    """Return a row for each group of counts that are made consistent together: those of a county or of an area."""
    return counts.reshape(-1, experiment.county if experiment.algorithm == "invariant" else experiment.strata)


def _of_rows(experiment: Experiment, rows: Counts, generator: np.random.Generator) -> Floats:
    """Return the residuals of an algorithm of Flaxman and Petti 2020 on independent rows."""
    if experiment.algorithm == "invariant":
        return invariant_residuals(rows, _loss(experiment, experiment.epsilon), generator)
    share = experiment.total_share
    totals, strata = (_loss(experiment, part * experiment.epsilon) for part in (share, 1 - share))
    return consistent_residuals(rows, totals, strata, generator)


def _loss(experiment: Experiment, budget: float) -> float:
    """Return the loss of a measurement for a shift by one; a changed record shifts two that share the budget."""
    return budget / 2 if experiment.noise == "geometric" else -math.log1p(-budget / 2)


def _direct(experiment: Experiment, counts: Counts, generator: np.random.Generator) -> dict[str, Any]:
    """Return the direct estimate: the first area's noisy counts in runs on D and on D', in which one person has moved.

    The ratios of tails are the paper's. The lower bound holds for any algorithm, because the runs are independent.
    """
    with_person, without = direct_runs(experiment, counts, generator)
    tree, within_county = experiment.tree, experiment.algorithm == "invariant"
    x, ratios = tail_ratios(with_person, without, experiment.setting.percentile)
    bound = bound_from_outputs(with_person, without, epsilon_at_least(), experiment.risk, generator)
    finite = ratios[np.isfinite(ratios)]
    return {
        "runs": experiment.direct_runs,
        "moved_to": min(_MOVED_TO, (experiment.areas_of_county if within_county else tree.areas) - 1),
        "epl": float(np.abs(finite).max()) if finite.size else None,
        "curve": [{"x": float(at), "epl": _number(ratio)} for at, ratio in zip(x, ratios, strict=True)],
        "lower_bound": bound_json(bound) | {"certified": True},
    }


def direct_runs(experiment: Experiment, counts: Counts, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the first area's outputs on D and on D', both minus its true count in D.

    Returns:
        Two arrays, with a double for each run.

    Raises:
        ValueError: the first area's first stratum has no person to move.
    """
    tree, runs = experiment.tree, experiment.direct_runs
    true = int(counts.ravel()[0])
    if experiment.algorithm in STRATIFIED:
        row = _rows(experiment, counts)[0]
        first, second = (
            first_cell_counts(each, runs, lambda rows: _of_rows(experiment, rows, generator))
            for each in (row, _with_one_moved(experiment, row))
        )
        return first - true, second - true
    if experiment.algorithm != "rdpc":
        loss = experiment.epsilon / experiment.parts
        first, second = (averaged_residuals(runs, experiment.parts, loss, generator) for _ in range(2))
        return first, second - (tree.areas > 1)
    target = min(_MOVED_TO, tree.areas - 1)
    before, after = [], []
    for level in range(1, tree.levels + 1):
        siblings = counts.sum(axis=tuple(range(level, tree.levels)))[(0,) * (level - 1)]
        moved = siblings.copy()
        moved[0] -= 1
        at = target // tree.children ** (tree.levels - level)
        if at < tree.children:  # otherwise it is below another area of the level above
            moved[at] += 1
        before.append(siblings)
        after.append(moved)
    loss = experiment.epsilon / (tree.levels + 1)
    first, second = (raked_first_area_counts(tree.people, each, loss, runs, generator) for each in (before, after))
    return first - true, second - true


def _with_one_moved(experiment: Experiment, row: Counts) -> Counts:
    """Return the first row of D', in which the first stratum has one person less.

    For ``invariant``, the person stays in the county. If the county had another total, the outputs could not be equal,
    and no epsilon would hold.
    """
    if row[0] < 1:
        raise ValueError("expected a person in the first area's first stratum, to be moved")
    moved = row.copy()
    moved[0] -= 1
    if experiment.algorithm == "invariant":
        to = min(_MOVED_TO, experiment.areas_of_county - 1) * experiment.strata
        moved[to or 1] += 1  # if the county is one area, to its next stratum
    return moved


def tail_ratios(first: Floats, second: Floats, percentile: float) -> tuple[Floats, Floats]:
    """Return log P(first >= k)/P(second >= k) at whole k within the percentiles; infinite if one never happened.

    Args:
        percentile: above 50 and at most 100; the range begins at the percentile 100 - ``percentile``.

    Returns:
        The k, ascending, and the ratio at each.
    """
    both = np.concatenate([first, second])
    low, high = np.percentile(both, [100 - percentile, percentile])
    x = np.unique(np.rint(np.linspace(low, high, min(int(high - low) + 1, MOST_POINTS))))
    above = [part.size - np.searchsorted(np.sort(part), x) for part in (first, second)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return x, np.log(above[0] / first.size) - np.log(above[1] / second.size)


def estimate_json(
    estimate: Estimate, interval: tuple[float, float] | None, bias: Bias | None, bins: int
) -> dict[str, Any]:
    """Return an estimate as a JSON object, with at most ``bins`` points of its curve, equally far apart.

    Args:
        interval, bias: None if not known.
    """
    every = -(-estimate.x.size // bins)
    columns = (estimate.x, estimate.density, estimate.smoothed, estimate.ratios)
    points = zip(*(column[::every] for column in columns), strict=True)
    return {
        "epl": estimate.epl,
        "at": estimate.at,
        "interval": None if interval is None else list(interval),
        "bias": None
        if bias is None
        else {
            "epsilon": bias.epsilon,
            "mean": bias.mean,
            "bias": bias.bias,
            "interval": list(bias.interval),
            "replicates": bias.replicates,
        },
        "curve": [
            {"x": float(x), "density": float(density), "smoothed": float(smoothed), "epl": _number(ratio)}
            for x, density, smoothed, ratio in points
        ],
    }


def bound_json(bound: LowerBound) -> dict[str, Any]:
    """Return a lower bound on epsilon as a JSON object."""
    return {"epsilon_lower_bound": bound.value, "event": event_json(bound)}


def event_json(bound: LowerBound) -> dict[str, Any] | None:
    """Return the event that proves a bound as a JSON object; None if there is none."""
    event = bound.event
    if event is None:
        return None
    return {
        "kind": event.kind,
        "start": event.start,
        "stop": event.stop,
        "compared_with": event.compared,
        "likelier_on_neighbour": event.on_neighbour,
        "likely": event.likely,
        "unlikely": event.unlikely,
        "tested": bound.tested,
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
