"""Search for epsilon at a given delta; the result is a bound that was evaluated, whatever the search did."""

import math
from contextlib import suppress
from typing import Protocol, cast

from service.privacy.tight.contour import LossComposition, best_c, chernoff
from service.privacy.tight.work_budget import NotTight, attempt_budget, work_limit


class LogDeltaBound(Protocol):
    """An upper bound on log delta, good near one epsilon and true everywhere."""

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Return an upper bound on log delta at epsilon, and about its slope.

        Args:
            epsilon: nats.
        """


class TightAnalysis(Protocol):
    """Upper bounds on log delta near any epsilon."""

    @property
    def sketch(self) -> LossComposition:
        """A rough copy of the composition, for choices."""

    def at(self, epsilon: float, rough: bool = False) -> tuple[LogDeltaBound, str]:
        """Return the bound near epsilon, and the method's name; a rough one is quicker and further above.

        Args:
            epsilon: nats.

        Raises:
            NotTight: it takes too long, or doubles are too coarse.
        """


def bound_near(analysis: TightAnalysis, epsilon: float) -> tuple[LogDeltaBound, str]:
    """Return the bound near epsilon or, if that takes too long, the rough one, which is a little above it.

    Raises:
        NotTight: even the rough one takes too long.
    """
    try:
        with work_limit(attempt_budget()):
            return analysis.at(epsilon)
    except NotTight:
        return analysis.at(epsilon, rough=True)


_STEPS = 60
CLOSE, ROUGHLY = 1e-11, 1e-3  # the search may stop this far below the given delta, in log delta


def least_epsilon(analysis: TightAnalysis, log_delta: float) -> tuple[float, str] | None:
    """Return an epsilon >= 0 (nats) near the least that is proven at log delta, and the method; None if none is found.

    Rough bounds tell where to place the exact one. If this takes too long, the result is that of a rough bound.

    Args:
        log_delta: log of the delta, below 0.

    Raises:
        NotTight: even rough bounds take too long.
    """
    epsilon = chernoff(analysis.sketch, log_delta)
    bound, method = analysis.at(epsilon, rough=True)
    if cast("object", bound) is analysis:  # one bound serves every epsilon
        reached = _root(bound, log_delta, epsilon, CLOSE)
        return None if reached is None else (reached, method)
    best: tuple[float, str] | None = None
    with suppress(NotTight):
        for _ in range(3):
            before, reached = epsilon, _root(bound, log_delta, epsilon, ROUGHLY)
            if reached is None:
                break
            epsilon, best = reached, (reached, method)
            if abs(math.log(best_c(analysis.sketch, epsilon) / best_c(analysis.sketch, before))) < 0.3:
                break
            bound, method = analysis.at(epsilon, rough=True)
        with suppress(NotTight), work_limit(attempt_budget()):
            bound, method = analysis.at(epsilon)
        reached = _root(bound, log_delta, epsilon, CLOSE)
        best = best if reached is None else (reached, method)
    return best


def _root(bound: LogDeltaBound, log_delta: float, start: float, close: float) -> float | None:
    """Return an epsilon where the bound is below log delta by at most ``close``, by Newton's steps in a bracket."""
    low, high = -1.0, math.inf  # the bound holds at high, not at low
    epsilon = start
    for _ in range(_STEPS):
        value, slope = bound.log_delta(epsilon)
        if value <= log_delta:
            high = min(high, epsilon)
        else:
            low = max(low, epsilon)
        if log_delta - close <= value <= log_delta or high <= max(low, 0.0) * (1 + 4e-14):
            break
        step = epsilon - (value - log_delta + close / 2) / slope if slope < 0 else math.nan
        step = max(step, 0.0)
        if not low < step < high:
            step = (max(low, 0.0) + high) / 2 if math.isfinite(high) else 2 * epsilon + 1e-300
        if not step < 1e30 or step == epsilon:
            break
        epsilon = step
    return high if math.isfinite(high) else None
