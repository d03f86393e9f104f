"""The counting algorithms of the two papers, as what they get wrong: noisy minus true counts.

``loss`` is always that of one noisy measurement for a shift by one (nats).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import Counts, Floats

_CHUNK = 1 << 20  # values; larger arrays fall out of the processor's cache


def averaged_residuals(shape: int, parts: int, loss: float, generator: np.random.Generator) -> Floats:
    """Return the residuals of ADPC: the mean of ``parts`` measurements, each with its own noise; one part is GDPC.

    Args:
        shape: their number.
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
    """RDPC at the last level.

    Attributes:
        residuals: raked minus true counts.
        divided: of how many areas the count was divided equally, for want of a positive sum below them.
    """

    residuals: Floats
    divided: int


def raked_residuals(counts: Counts, loss: float, generator: np.random.Generator) -> RakedResiduals:
    """Return RDPC's residuals (Flaxman 2019, 2.2): noisy counts at every level, scaled to the raked count above.

    Args:
        counts: true ones, an axis for each level.
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
    """Return each child's part of its siblings' sum.

    The paper divides by the sum whatever it is; where the children are few beside the noise it can be zero or negative,
    and then says nothing of how they divide: they get equal parts.
    """
    positive = (sums > 0)[..., None]
    return np.where(positive, noisy / np.where(positive, sums[..., None], 1), 1 / noisy.shape[-1])


def raked_first_area_counts(
    people: int, siblings: list[Counts], loss: float, runs: int, generator: np.random.Generator
) -> Floats:
    """Return ``runs`` outputs of RDPC for the first area: only its ancestors and their siblings play a part.

    ``siblings`` holds for each level the true counts of the area's ancestor there, first, and of its siblings.

    Args:
        people: the true count of the whole.

    Returns:
        Noisy counts of the area, one for each run, not residuals.
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

    ``counts`` has one axis for all areas and one for their strata. The result minimises the absolute differences,
    each weighted by the loss of its measurement: the most likely counts under this noise. A change of the total by
    one moves some stratum by one, so where a stratum weighs more the strata stay as they were measured, and otherwise
    the total does; of all minimisers that is then the one that spreads the difference evenly.

    Args:
        total_loss: of the measurement of a total, nats.
        loss: of the measurement of a stratum, nats.

    Returns:
        One for each stratum, in row-major order.
    """
    strata = counts + two_sided_geometric(loss, counts.shape, generator)
    totals = counts.sum(axis=1) + two_sided_geometric(total_loss, counts.shape[0], generator)
    fitted = strata.astype(np.float64)
    if total_loss > loss:
        fitted += ((totals - strata.sum(axis=1)) / counts.shape[1])[:, None]
    return (fitted - counts).ravel()


def invariant_residuals(counts: Counts, loss: float, generator: np.random.Generator) -> Floats:
    """Return the residuals of the second case of Flaxman and Petti 2020: counts with the true sum in each county.

    ``counts`` has one axis for the counties and one for all that is counted in them. The nearest such counts are found
    by least squares; they minimise the sum of absolute differences as well.

    Returns:
        One for each count, in row-major order.
    """
    noisy = counts + two_sided_geometric(loss, counts.shape, generator)
    return (project_onto_sums(noisy.astype(np.float64), counts.sum(axis=1).astype(np.float64)) - counts).ravel()


def first_cell_counts(row: Counts, runs: int, residuals_of: Callable[[Counts], Floats]) -> Floats:
    """Return the first count of a row in ``runs`` runs of an algorithm on it alone, from its residuals on rows.

    Args:
        residuals_of: from rows of true counts to residuals in row-major order.
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
    kept = np.maximum((ordered > lowered).sum(axis=1), 1)  # a sum of 0 keeps none; by the largest all become 0
    by: NDArray[np.float64] = np.take_along_axis(lowered, kept[:, None] - 1, axis=1)
    return np.maximum(values - by, 0.0)
