"""The published estimate of empirical privacy loss, EPL (Flaxman and Petti 2020; Flaxman 2019).

The estimate is the largest log ratio of a smoothed density of residuals at places one apart. It is neither an upper nor
a lower bound. The maximum of noisy ratios is biased upward, and smoothing biases it downward. An output that depends on
more than one count can leak more than any residual shows.
"""

from dataclasses import dataclass

import numpy as np

from service.empirical.residuals import Floats, Residuals
from service.empirical.smoothing import densities

LARGEST_RANGE = 100_000  # unit bins


@dataclass(frozen=True, slots=True)
class SmoothingSetting:
    """The smoothing of the density, and the range in which the largest ratio is searched for.

    Attributes:
        bandwidth: of the kernel, in standard deviations of the residuals: scipy's ``bw_method``.
        percentile: the range is from -B to B. B is the larger absolute value of this percentile and of the opposite
            one, 100 - ``percentile``, times ``multiplier``.
        multiplier: the factor in B.
    """

    bandwidth: float = 0.1
    percentile: float = 95.0
    multiplier: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """The estimate, where it is attained, and its curves at the middles of the unit bins.

    Attributes:
        epl: the largest |log p(x)/p(x+1)| (nats).
        at: the x at which it is attained.
        x: the middles of the bins.
        density: the share of the residuals in each bin.
        smoothed: the kernel density p.
        ratios: log p(x)/p(x+1); NaN at the last x, and where doubles hold no density.
    """

    epl: float
    at: float
    x: Floats
    density: Floats
    smoothed: Floats
    ratios: Floats


def estimate_loss(residuals: Residuals, setting: SmoothingSetting) -> Estimate:
    """Estimate the empirical privacy loss (EPL) of a sample, in nats; it is neither an upper nor a lower bound.

    The bins are those of the authors' analysis, with edges at -B, -B + 1, ... below B. So the last bin is left out if
    2B is whole.

    Raises:
        ValueError: there are fewer than two residuals, or all are alike; the range has fewer than two bins, or too
            many; the bandwidth leaves no density between whole residuals.
    """
    if residuals.positions.size < 2:
        raise ValueError("expected at least two residuals that are not all alike")
    reach = reach_of(residuals, setting)
    if not reach <= LARGEST_RANGE / 2:
        raise ValueError(f"expected a range of at most {LARGEST_RANGE} unit bins: lower percentile or multiplier")
    bins = int(np.ceil(2 * reach)) - 1
    if bins < 2:
        raise ValueError("expected a range of at least two unit bins: raise percentile or multiplier")
    edges: Floats = np.arange(bins + 1, dtype=np.float64) - reach
    x = edges[:-1] + 0.5
    smoothed = densities(residuals, setting.bandwidth * residuals.deviation, float(x[0]), bins)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed)
        ratios = np.append(logs[:-1] - logs[1:], np.nan)
    ratios[~np.isfinite(ratios)] = np.nan
    if np.isnan(ratios).all():
        raise ValueError("expected a bandwidth that leaves a density between whole residuals: raise bandwidth")
    largest = int(np.nanargmax(np.abs(ratios)))
    below = residuals.below(edges)
    density = (below[1:] - below[:-1]) / residuals.size
    return Estimate(float(abs(ratios[largest])), float(x[largest]), x, density, smoothed, ratios)


def reach_of(residuals: Residuals, setting: SmoothingSetting) -> float:
    """Return B, if the range is from -B to B.

    Returns:
        Counts, at least 0.
    """
    ends = residuals.percentile(100 - setting.percentile), residuals.percentile(setting.percentile)
    return max(abs(end) for end in ends) * setting.multiplier
