"""epsilon at a given delta: a search whose result is a bound that was evaluated, whatever the search did."""

import math
from typing import Protocol

from service.privacy.tight.contour import Composition, best_c, chernoff


class Bound(Protocol):
    """An upper bound on log delta, good near one epsilon and true everywhere."""

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """The bound, and about its slope."""


class Analysis(Protocol):
    """Bounds near any epsilon."""

    @property
    def composition(self) -> Composition: ...

    def at(self, epsilon: float, rough: bool = False) -> tuple[Bound, str]:
        """The bound near epsilon, and the method's name; a rough one is quicker and further above."""


_STEPS = 60


def least_epsilon(analysis: Analysis, log_delta: float) -> tuple[float, str] | None:
    """About the least epsilon >= 0 that holds at log delta, and the method; None where none is found."""
    epsilon = chernoff(analysis.composition, log_delta)
    for _ in range(3):
        bound, _ = analysis.at(epsilon, rough=True)
        before, reached = epsilon, _root(bound, log_delta, epsilon)
        if reached is None:
            break
        epsilon = reached
        if abs(math.log(best_c(analysis.composition, epsilon) / best_c(analysis.composition, before))) < 0.3:
            break
    bound, method = analysis.at(epsilon)
    found = _root(bound, log_delta, epsilon)
    return None if found is None else (found, method)


def _root(bound: Bound, log_delta: float, start: float) -> float | None:
    """An epsilon at which the bound is at most log delta, about the least: Newton's steps inside a bracket."""
    low, high = -1.0, math.inf  # the bound holds at high, not at low
    epsilon = start
    for _ in range(_STEPS):
        value, slope = bound.log_delta(epsilon)
        if value <= log_delta:
            high = min(high, epsilon)
        else:
            low = max(low, epsilon)
        if high < math.inf and (high - low <= 4e-14 * high or high == 0):
            break
        step = epsilon - (value - log_delta) / slope if slope < 0 else math.nan
        if abs(step - epsilon) <= 1e-12 * epsilon:
            step *= 1 + 2e-14  # so that the root is above it, and the bracket closes
        step = max(step, 0.0)
        if not low < step < high:
            step = (max(low, 0.0) + high) / 2 if math.isfinite(high) else 2 * epsilon + 1e-300
        if not step < 1e30 or step == epsilon:
            break
        epsilon = step
    return high if math.isfinite(high) else None
