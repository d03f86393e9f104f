"""Adjustment of counts to published totals that cross, such as those of rows and columns, in non-negative real numbers.

Totals of one hierarchy are a partition: each cell belongs to one block with a total, or to none. Totals that cross are
several partitions, and the counts must meet each of them. Raking is iterative proportional fitting. The projection is
the nearest table by least squares. It is max(z + A'y, 0), where z is the given table, A adds cells up to blocks, and y
solves the dual, a convex problem without constraints, by Newton's method. A table of this form that meets the totals is
the nearest one (Karush, Kuhn and Tucker), however it was found.

Raking can miss totals after its last sweep, because no table has these proportions, or only one with further zeros. The
table nearest to its result then replaces it.

All sums are by functions of numpy that add in the same order on every machine, so that a repeated computation has the
same result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidInput

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

OPEN = -1
"""The block of cells that have no published total in a partition."""
LARGEST_TOTALS = 2**40
"""The largest sum of a partition's totals: doubles tell its units apart, with 12 bits to spare."""
MOST_CELLS = 2**19
TOLERANCE = 1e-9
"""Real counts meet a total if they miss it by at most this share of it, or of 1 if it is less."""

_SWEEPS = 1000
_STEPS = 100
_WORK = 2**28  # limit of raking and of the projection, in cells visited, once for each partition: some seconds
_NOTHING = 1e-200  # smaller sums become 0, so that factors stay within the range of doubles
_CALL = 2**11  # the fixed cost of a visit to all cells, as a number of cells
_TRIALS = 40
_PROJECTIONS = 3
_FURTHEST = 1e18  # beyond this size of y the dual is taken to have no minimum, so no table meets the totals
_LARGEST_COUNT = 2.0**42


@dataclass(frozen=True, slots=True)
class Partition:
    """Totals of one hierarchy.

    Attributes:
        block: the block of each cell, or OPEN.
        totals: the total of each block; none is negative.
        pointers: returns the JSON pointer of a block's total, for faults.
    """

    block: Integers
    totals: Integers
    pointers: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Cells that have published totals in several partitions; cells that have none are left out.

    Attributes:
        places: the index of each cell in the table.
        partitions: the partitions of these cells.
        atom: the atom of each cell; cells that share all their blocks are one atom.
        atoms: for each partition, the block of each atom.
    """

    places: Integers
    partitions: tuple[Partition, ...]
    atom: Integers
    atoms: tuple[Integers, ...]

    @classmethod
    def of(cls, partitions: Sequence[Partition], at: str) -> "Crossing":
        """Return the crossing of partitions, without the cells that have no total.

        Args:
            partitions: of all cells of the table.
            at: JSON pointer of the totals, for faults.

        Raises:
            InvalidInput: there are too many cells, or the totals are too large.
        """
        if any(sum(one.totals.tolist()) > LARGEST_TOTALS for one in partitions):
            raise InvalidInput.at(at, "expected crossing totals that add up to at most 2^40 units")
        places = np.flatnonzero(np.any([one.block != OPEN for one in partitions], axis=0))
        if places.size > MOST_CELLS:
            raise InvalidInput.at(at, f"expected crossing totals of at most {MOST_CELLS} cells")
        kept = tuple(Partition(one.block[places], one.totals, one.pointers) for one in partitions)
        atom = np.zeros(places.size, np.int64)
        for one in kept:
            _, atom = np.unique(atom * (one.totals.size + 1) + one.block + 1, return_inverse=True)
        first = np.unique(atom, return_index=True)[1]
        most = 4 * MOST_CELLS // len(kept) ** 2  # every two are compared
        if len(kept) > 2 and first.size > most:
            detail = (
                f"expected at most {most} cells (those that share all totals are one) where {len(kept)} hierarchies"
            )
            raise InvalidInput.at(at, f"{detail} cross")
        return cls(places, kept, atom, tuple(one.block[first] for one in kept))

    def misses(self, counts: Reals) -> bool:
        """Tell whether real counts miss a total by more than the tolerance.

        Args:
            counts: of the crossing's cells.
        """
        return any(
            bool((np.abs(_block_sums(one, counts) - one.totals) > TOLERANCE * np.maximum(one.totals, 1)).any())
            for one in self.partitions
        )


Adjustment = Callable[[Integers, Crossing], Reals]
"""A function from the counts of a crossing's cells to real counts that meet its totals."""


def hierarchies(margins: Sequence[frozenset[int]]) -> list[list[frozenset[int]]]:
    """Return margins as chains, in each of which every margin includes the one before; two chains if two are enough.

    Two margins are in different chains if neither includes the other. So two chains are a colouring of such pairs with
    two colours.

    Args:
        margins: each as the set of its axes.

    Returns:
        The chains, each with its smallest margin first. Equal margins occur once.
    """
    ordered = sorted(dict.fromkeys(margins), key=len)
    crossing = {one: [other for other in ordered if not (one <= other or other <= one)] for one in ordered}
    colour: dict[frozenset[int], int] = {}
    for start in ordered:
        colour.setdefault(start, 0)
        reached = [start]
        while reached:
            one = reached.pop()
            for other in crossing[one]:
                if other not in colour:
                    colour[other] = 1 - colour[one]
                    reached.append(other)
    if any(colour[one] == colour[other] for one in ordered for other in crossing[one]):
        for number, one in enumerate(ordered):  # two are not enough: the first chain that has room
            taken = {colour[other] for other in crossing[one] if other in ordered[:number]}
            colour[one] = next(free for free in range(len(ordered)) if free not in taken)
    chains = [[one for one in ordered if colour[one] == number] for number in range(len(ordered))]
    return [chain for chain in chains if chain]


def _block_sums(one: Partition, counts: Reals) -> Reals:
    """Return the sums of blocks, without the first sum of ``bincount``, which is that of open cells."""
    return np.asarray(np.bincount(one.block + 1, counts, one.totals.size + 1)[1:], np.float64)


def _as_doubles(counts: Integers) -> Reals:
    """Return counts as doubles, clipped to a range in which doubles tell integers apart."""
    return np.asarray(np.clip(counts.astype(float), -_LARGEST_COUNT, _LARGEST_COUNT))


def rake(counts: Integers, crossing: Crossing) -> Reals:
    """Return counts that meet the totals and keep the proportions of the given counts as far as possible.

    Negative counts are taken as 0. A block without a positive count begins with equal ones.

    Args:
        counts: of the crossing's cells.

    Returns:
        Counts of the same cells; none is negative. They miss totals if no table meets these: see ``misses``.
    """
    fitted = np.maximum(_as_doubles(counts), 0.0)
    for one in crossing.partitions:
        empty = np.append((_block_sums(one, fitted) == 0) & (one.totals > 0), False)  # OPEN is the last one
        fitted[empty[one.block]] = 1.0
    fitted = _fit_proportions(fitted, crossing)
    return _nearest_counts(fitted, crossing) if crossing.misses(fitted) else fitted


def project(counts: Integers, crossing: Crossing) -> Reals:
    """Return the nearest counts, by least squares, that meet the totals.

    Args:
        counts: of the crossing's cells.

    Returns:
        Counts of the same cells; none is negative. They miss totals if no table meets these: see ``misses``.
    """
    return _nearest_counts(_as_doubles(counts), crossing)


def _fit_proportions(counts: Reals, crossing: Crossing) -> Reals:
    """Fit counts to the totals by iterative proportional fitting, until they meet these or the sweeps are used up."""
    fitted = counts
    for _ in range(min(_SWEEPS, _WORK // ((counts.size + _CALL) * len(crossing.partitions)))):
        for one in crossing.partitions:
            sums = _block_sums(one, fitted)
            some = sums > _NOTHING
            factors = np.where(some, one.totals / np.where(some, sums, 1.0), 0.0)
            fitted = fitted * np.append(factors, 1.0)[one.block]
        if not crossing.misses(fitted):
            break
    return fitted


def _nearest_counts(counts: Reals, crossing: Crossing) -> Reals:
    """Return the projection, corrected where rounding makes it miss totals.

    It can miss small totals by the last digit of large totals or counts. Proportional fitting then corrects it with
    factors near 1, which round each cell relative to its size. If that is not enough, another projection starts from
    there.
    """
    nearest = counts
    for _ in range(_PROJECTIONS):
        nearest = _Dual(nearest, crossing).solve()
        if crossing.misses(nearest):
            nearest = _fit_proportions(nearest, crossing)
        if not crossing.misses(nearest):
            break
    return nearest


class _Dual:
    """The dual of a projection: the minimum of the sum of max(z + A'y, 0)²/2, less b'y, where b is the totals.

    Cells of blocks whose total is 0 are 0, and are left out.
    """

    def __init__(self, counts: Reals, crossing: Crossing) -> None:
        self.counts, self.parts, self.passes = counts, crossing.partitions, 0
        self.alive = np.ones(counts.size, bool)
        for one in self.parts:
            self.alive &= np.append(one.totals > 0, True)[one.block]
        self.totals = np.concatenate([one.totals for one in self.parts]).astype(float)
        self.cells = self.block_sums(self.alive.astype(float))

    def block_sums(self, counts: Reals) -> Reals:
        """Return A times the counts: their sums over the blocks of all partitions."""
        self.passes += 1
        return np.concatenate([_block_sums(one, counts) for one in self.parts])

    def spread(self, y: Reals) -> Reals:
        """Return A'y."""
        spread, start = np.zeros(self.counts.size), 0
        for one in self.parts:
            spread += np.append(y[start : start + one.totals.size], 0.0)[one.block]
            start += one.totals.size
        return spread

    def at(self, y: Reals) -> tuple[Reals, Reals]:
        """Return z + A'y, and the slope there: the excess of its non-negative part over the totals."""
        shifted = self.counts + self.spread(y)
        return shifted, self.block_sums(np.maximum(shifted, 0.0) * self.alive) - self.totals

    def solve(self) -> Reals:
        """Minimise by Newton's method, and return the table of the last step."""
        y = np.zeros(self.totals.size)
        allowed = TOLERANCE / 4 * np.maximum(self.totals, 1)
        for number in range(_STEPS):
            work = self.passes * (self.counts.size + _CALL) * len(self.parts)
            if work > _WORK or np.abs(y).max(initial=0.0) > _FURTHEST:
                break
            y = self.sweep(y)
            shifted, missed = self.at(y)
            if not (np.abs(missed) > allowed).any():
                break
            # Cells a little below 0 will be above 0 after the step. Without them, steps near kinks would be short.
            # "A little" is measured by the cell's own totals and by all totals, in turn.
            reach = self.spread(np.abs(missed)) if number % 2 == 0 else np.abs(missed).max()
            active = self.alive * (shifted > -reach)
            step = self.direction(active, missed)
            y = y + self.length(y, step, float((step * missed).sum())) * step
        return np.maximum(shifted, 0.0) * self.alive

    def length(self, y: Reals, step: Reals, slope: float) -> float:
        """Return about the step length that gives the minimum: bracket the slope's zero, then narrow the bracket."""
        low, high, candidate = 0.0, np.inf, 1.0
        below, above = slope, 0.0
        for _ in range(_TRIALS):
            slope_here = float((step * self.at(y + candidate * step)[1]).sum())
            if abs(slope_here) <= 0.1 * abs(slope):
                break
            if slope_here < 0:
                low, below = candidate, slope_here
            else:
                high, above = candidate, slope_here
            if high == np.inf:
                candidate = 4 * low
            else:
                share = min(max(below / (below - above), 0.05), 0.95)
                candidate = low + share * (high - low)
        return candidate

    def sweep(self, y: Reals) -> Reals:
        """Return y after the exact minimum along the part of each partition in turn, which meets its totals.

        In each block, t = (total - sum of the k largest cells)/k is added to every cell. k is the largest number for
        which the k largest cells are then positive.
        """
        shifted, moved, start = self.counts + self.spread(y), y.copy(), 0
        for one in self.parts:
            inside = np.flatnonzero(self.alive & (one.block != OPEN))
            order = inside[np.lexsort((-shifted[inside], one.block[inside]))]
            block, ranked = one.block[order], shifted[order]
            sizes = np.bincount(block, minlength=one.totals.size)
            starts = np.cumsum(sizes) - sizes
            sums = np.cumsum(ranked)
            sums -= np.append(0.0, sums)[starts][block]
            k = np.arange(1, order.size + 1) - starts[block]
            above = np.maximum(np.bincount(block, ranked * k > sums - one.totals[block], one.totals.size), sizes > 0)
            last = (starts + above.astype(np.int64) - 1)[sizes > 0]
            step = np.zeros(one.totals.size)
            step[sizes > 0] = (one.totals[sizes > 0] - sums[last]) / above[sizes > 0]
            shifted += np.append(step, 0.0)[one.block]
            moved[start : start + one.totals.size] += step
            start += one.totals.size
        return moved

    def direction(self, active: Reals, missed: Reals) -> Reals:
        """Return Newton's step by conjugate gradients, damped while totals are missed by much."""
        size = float(np.sqrt((missed * missed).sum()))
        share = min(1.0, size / float(np.sqrt((self.totals * self.totals).sum()) + 1))
        damping = max(1e-3 * share, 1e-14) * np.maximum(self.cells, 1.0)
        scale = np.maximum(self.block_sums(active), 1e-3) + damping

        step, rest = np.zeros_like(missed), -missed
        scaled = rest / scale
        along, product = scaled, float((rest * scaled).sum())
        for _ in range(min(missed.size, 200) + 10):
            if not product > 0 or float(np.sqrt((rest * rest).sum())) <= min(1e-2, share) * 1e-2 * size:
                break
            curved = self.block_sums(active * self.spread(along)) + damping * along
            bend = float((along * curved).sum())
            if not bend > 0:
                break
            step = step + product / bend * along
            rest = rest - product / bend * curved
            scaled = rest / scale
            before, product = product, float((rest * scaled).sum())
            along = scaled + product / before * along
        return step
