"""The counting algorithms of Flaxman 2019 and of Flaxman and Petti 2020, as their residuals: noisy minus true counts.

``loss`` is always the loss of one noisy measurement for a shift by one, in nats.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import Counts, Floats

_CHUNK = 1 << 20  # values; larger arrays fall out of the processor's cache


def averaged_residuals(shape: int, parts: int, loss: float, generator: np.random.Generator) -> Floats:
    """Return the residuals of ADPC, the mean of ``parts`` measurements with independent noise; one part is GDPC.

    Args:
        shape: the number of residuals.
    """
    total = np.zeros(shape)
    for start in range(0, shape, _CHUNK):
        stop = min(shape, start + _CHUNK)
        for _ in range(parts):
            total[start:stop] += two_sided_geometric(loss, stop - start, generator)
    total /= parts
    return total


@dataclass(frozen=True, slots=True)
class RakedResiduals:
    """The residuals of RDPC at the last level.

    Attributes:
        residuals: raked minus true counts.
        divided: the number of areas whose count was divided equally, because the noisy counts below have no positive
            sum.
    """

    residuals: Floats
    divided: int


def raked_residuals(counts: Counts, loss: float, generator: np.random.Generator) -> RakedResiduals:
    """Return RDPC's residuals (Flaxman 2019, 2.2): noisy counts at every level, scaled to the raked count above.

    Args:
        counts: true counts, with an axis for each level.
    """
    levels = counts.ndim
    above: Floats = counts.sum() + two_sided_geometric(loss, (1,), generator).astype(np.float64)
    divided = 0
    for level in range(1, levels + 1):
        true = counts.sum(axis=tuple(range(level, levels)))
        noisy = (true + two_sided_geometric(loss, true.shape, generator)).reshape(-1, true.shape[-1])
        sums = noisy.sum(axis=1)
        divided += int((sums <= 0).sum())
        above = (above[:, None] * _shares(noisy, sums)).ravel()
    return RakedResiduals(above - counts.ravel(), divided)


def _shares(noisy: Counts, sums: Counts) -> Floats:
    """Return each child's share of the sum of the children.

    The paper divides by the sum in every case. If the children's counts are small beside the noise, the sum can be zero
    or negative, and then it gives no meaningful shares. The children get equal ones instead.
    """
    positive = (sums > 0)[..., None]
    return np.where(positive, noisy / np.where(positive, sums[..., None], 1), 1 / noisy.shape[-1])


def raked_first_area_counts(
    people: int, siblings: list[Counts], loss: float, runs: int, generator: np.random.Generator
) -> Floats:
    """Return ``runs`` outputs of RDPC for the first area, which depend only on its ancestors and their siblings.

    Args:
        people: the true count of the whole.
        siblings: for each level, the true counts of the area's ancestor, which is first, and of its siblings.

    Returns:
        Noisy counts of the area, one for each run; they are not residuals.
    """
    outputs: Floats = people + two_sided_geometric(loss, runs, generator).astype(np.float64)
    for true in siblings:
        chunk = max(1, _CHUNK // true.size)
        for start in range(0, runs, chunk):
            part = outputs[start : start + chunk]
            noisy = true + two_sided_geometric(loss, (part.size, true.size), generator)
            part *= _shares(noisy, noisy.sum(axis=1))[:, 0]
    return outputs


def consistent_residuals(counts: Counts, total_loss: float, loss: float, generator: np.random.Generator) -> Floats:
    """Return the residuals of the first case of Flaxman and Petti 2020: noisy totals and strata, made consistent.

    The result minimises the sum of the absolute differences, each weighted by the loss of its measurement. These are
    the most likely counts under this noise. A change of the total by one changes some stratum by one. So unless the
    total has the larger weight, the strata stay as they were measured. If it has, the total stays as it was measured,
    and of all minimisers the result is the one that spreads the difference evenly.

    Args:
        counts: true counts, with one axis for all areas and one for their strata.
        total_loss: of the measurement of a total, nats.
        loss: of the measurement of a stratum, nats.

    Returns:
        One residual for each stratum, in row-major order.
    """
    strata = counts + two_sided_geometric(loss, counts.shape, generator)
    totals = counts.sum(axis=1) + two_sided_geometric(total_loss, counts.shape[0], generator)
    fitted = strata.astype(np.float64)
    if total_loss > loss:
        fitted += ((totals - strata.sum(axis=1)) / counts.shape[1])[:, None]
    return (fitted - counts).ravel()


def invariant_residuals(counts: Counts, loss: float, generator: np.random.Generator) -> Floats:
    """Return the residuals of the second case of Flaxman and Petti 2020: counts with the true sum in each county.

    The nearest such counts by least squares also minimise the sum of absolute differences.

    Args:
        counts: true counts, with one axis for the counties and one for all counts of a county.

    Returns:
        One residual for each count, in row-major order.
    """
    noisy = counts + two_sided_geometric(loss, counts.shape, generator)
    return (project_onto_sums(noisy.astype(np.float64), counts.sum(axis=1).astype(np.float64)) - counts).ravel()


def first_cell_counts(row: Counts, runs: int, residuals_of: Callable[[Counts], Floats]) -> Floats:
    """Return the noisy first count of a row in ``runs`` runs of an algorithm on this row alone.

    Args:
        row: true counts.
        residuals_of: the algorithm, from rows of true counts to residuals in row-major order.
    """
    outputs = np.empty(runs)
    chunk = max(1, _CHUNK // row.size)
    for start in range(0, runs, chunk):
        part = outputs[start : start + chunk]
        rows = np.broadcast_to(row, (part.size, row.size))
        part[:] = residuals_of(rows).reshape(rows.shape)[:, 0] + row[0]
    return outputs


def project_onto_sums(values: Floats, sums: Floats) -> Floats:
    """Return the nearest non-negative rows with the given sums, which are non-negative (Held, Wolfe, Crowder 1974).

    Args:
        sums: one for each row.
    """
    ordered = -np.sort(-values, axis=1)
    surplus = ordered.cumsum(axis=1) - sums[:, None]
    lowered = surplus / np.arange(1, values.shape[1] + 1)
    kept = np.maximum((ordered > lowered).sum(axis=1), 1)  # if the sum is 0, all are lowered by the largest
    by: NDArray[np.float64] = np.take_along_axis(lowered, kept[:, None] - 1, axis=1)
    return np.maximum(values - by, 0.0)
