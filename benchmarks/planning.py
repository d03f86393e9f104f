"""Planning with nothing memoised: a SafeTab plan of a hundred levels, a margin of a million cells, crossing totals."""

import time
from collections.abc import Callable
from fractions import Fraction
from statistics import median
from typing import Any

import numpy as np

from benchmarks.pricing import memos
from service.api.computations.safetab import SafetabTarget, plan_safetab
from service.postprocess.published import PlaceTotal, blocks_of, project, rake
from service.privacy.accuracy.sums import NoiseSum
from service.privacy.laws.noise_law import NoiseLaw

_ROUNDS = 7
_PLAN_TARGET, _SUM_TARGET = 200, 100  # milliseconds
_LEVELS = 100
_CELLS = 10**6
_SHAPE = (3142, 2, 16)  # counties, sexes, ages


def run() -> None:
    """Print the times, medians."""
    print(f"A SafeTab plan of {_LEVELS} levels with different margins, nothing memoised (target: {_PLAN_TARGET} ms)")
    levels = [{"name": f"level {number}", "moe": 6 + number} for number in range(_LEVELS)]
    for mechanism in ("geometric", "discrete_gaussian"):
        target = SafetabTarget.model_validate({"mechanism": mechanism, "levels": levels})
        print(f"  {mechanism:<40}{_milliseconds(plan_safetab, target, None):9.1f} ms")
    print(f"The margin of a sum of {_CELLS:,} cells (target: {_SUM_TARGET} ms)")
    for name, law in (
        ("geometric", NoiseLaw(scale=Fraction(5, 2))),
        ("discrete_gaussian", NoiseLaw(sigma_squared=Fraction(9))),
    ):
        print(f"  {name:<40}{_milliseconds(_margin, law):9.1f} ms")
    _totals()


def _margin(law: NoiseLaw) -> None:
    NoiseSum.of(law, _CELLS, Fraction(5, 100)).margin(Fraction(95, 100))


def _totals() -> None:
    """Counties by sex and age that meet the totals of every county, and of every sex and age."""
    random = np.random.default_rng(2010)
    true = random.poisson(random.gamma(0.5, 200, _SHAPE))
    noisy = (true + np.rint(random.laplace(0, 3, _SHAPE)).astype(np.int64)).ravel()
    published = [PlaceTotal((0,), (place,), int(true[place].sum())) for place in range(_SHAPE[0])]
    published += [PlaceTotal((1, 2), place, int(true[:, *place].sum())) for place in np.ndindex(*_SHAPE[1:])]
    blocks = blocks_of(_SHAPE, published)
    print(f"{noisy.size:,} cells that meet {len(published):,} crossing totals in whole numbers")
    print(f"  {'totals checked, before a draw':<40}{_milliseconds(blocks_of, _SHAPE, published):9.1f} ms")
    for name, adjust in (("raked", rake), ("least squares", project)):
        print(f"  {name:<40}{_milliseconds(adjust, noisy, blocks):9.1f} ms")


def _milliseconds(what: Callable[..., Any], *arguments: Any) -> float:
    times = []
    for _ in range(_ROUNDS):
        for memo in memos():
            memo.cache_clear()
        start = time.perf_counter()
        what(*arguments)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)
