"""Empirical privacy loss of many residuals, beside scipy's kernel density of fewer, and the papers' experiments."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
from scipy.stats import gaussian_kde  # type: ignore[import-untyped]  # it publishes no types

from service.empirical.experiments import Experiment, run as run_experiment
from service.empirical.loss import SmoothingSetting, estimate_loss
from service.empirical.noise import two_sided_geometric
from service.empirical.replicates import bootstrap, estimate_bias
from service.empirical.reproduction import table_sa1_a
from service.empirical.residuals import Floats, residuals_of

_SIZE, _PEERS_SIZE = 1_000_000, 20_000  # residuals; scipy's time is their number times that of the places
_ROUNDS = 5
_REPLICATES = 200


def run() -> None:
    """Print seconds for a million residuals of several kinds, and for the experiments."""
    print(f"EPL of {_SIZE:,} residuals, seconds (target: under 1); scipy's gaussian_kde on {_PEERS_SIZE:,} of them")
    print(
        f"  {'':<28}{'estimate':>9}{'bootstrap':>11}{'bias':>7}{'all':>7}{'scipy, fewer':>14}{'a residual':>12}  error"
    )
    generator = np.random.default_rng(1)
    narrow, wide = (two_sided_geometric(loss, _SIZE, generator) for loss in (0.1, 0.001))
    _line("whole, scale 10", narrow.astype(np.float64), generator)
    _line("whole, scale 1,000", wide.astype(np.float64), generator)
    _line("normal, deviation 14", generator.normal(0, 14, _SIZE), generator)
    _line("normal, deviation 1,400", generator.normal(0, 1400, _SIZE), generator)
    print(f"Table SA1(a), 200 replicates (target: under 60 s)       {_timed(lambda: list(table_sa1_a(200, 1))):7.2f}")
    gdpc = Experiment(algorithm="gdpc", epsilon=0.1, people=10**9, levels=3, mean=1000, replicates=0)
    for experiment in (gdpc, replace(gdpc, algorithm="adpc", parts=4), replace(gdpc, algorithm="rdpc")):
        seconds = _timed(partial(run_experiment, experiment, lambda _: None))
        print(f"Residual estimate of {experiment.algorithm}, 10^6 areas (the paper: 20 s)  {seconds:7.2f}")


def _line(name: str, values: Floats, generator: np.random.Generator) -> None:
    setting = SmoothingSetting()
    sample = residuals_of(values)
    estimated = median(_timed(lambda: estimate_loss(residuals_of(values), setting)) for _ in range(_ROUNDS))
    resampled = _timed(lambda: bootstrap(sample, setting, _REPLICATES, generator))
    known = _timed(lambda: estimate_bias(sample, setting, _REPLICATES, generator))
    few = values[:_PEERS_SIZE]
    places = estimate_loss(residuals_of(few), setting).x
    peers = _timed(lambda: gaussian_kde(few, bw_method=setting.bandwidth)(places))
    ratio = (peers / _PEERS_SIZE) / (estimated / _SIZE)
    times = f"{estimated:9.3f}{resampled:11.3f}{known:7.3f}{estimated + resampled + known:7.2f}"
    print(f"  {name:<28}{times}{peers:14.3f}{ratio:11,.0f}x  {_error(values, setting):.1e}", flush=True)


def _error(values: Floats, setting: SmoothingSetting) -> float:
    """The largest relative difference from scipy's density of all residuals, at some of the places."""
    found = estimate_loss(residuals_of(values), setting)
    some = slice(None, None, found.x.size // 10)
    theirs = gaussian_kde(values, bw_method=setting.bandwidth)(found.x[some])
    return float(np.abs(found.smoothed[some] / theirs - 1).max())


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    run()
