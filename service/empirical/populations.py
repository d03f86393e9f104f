"""Synthetic populations of Flaxman 2019: N people, each in one of the areas at the bottom of a regular hierarchy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.empirical.residuals import Counts

STRATUM_RATIO = 0.5  # size of a stratum by that of the one before, in the tables of Flaxman and Petti 2020


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """``levels`` J nested levels below the whole, where every area has the same number of children.

    Attributes:
        people: N.
        levels: J, at least 1.
        children: of every area above the last level; at least 1.
    """

    people: int
    levels: int
    children: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of children, once for each level."""
        return (self.children,) * self.levels

    @property
    def areas(self) -> int:
        """The number of areas at the last level."""
        return int(self.children**self.levels)


def hierarchy(people: int, levels: int, mean: int) -> Hierarchy:
    """Return the hierarchy whose areas have about ``mean`` (mu) people: floor((N/mu)^(1/J)) children each.

    The root is computed in integers, because in floating point the cube root of 10^6 is a little below 100. If there
    are fewer people than mu, there is one area.
    """
    whole = people // mean  # for a whole c, c^J <= N/mu is the same as c^J <= floor(N/mu)
    low, high = 1, 2
    while high**levels <= whole:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**levels <= whole else (low, middle)
    return Hierarchy(people, levels, low)


def area_counts(tree: Hierarchy, generator: np.random.Generator) -> Counts:
    """Place each person in a random area, all equally likely; return the counts, with an axis for each level."""
    return _multinomial(tree.people, np.full(tree.areas, 1 / tree.areas), generator).reshape(tree.shape)


def stratified_counts(tree: Hierarchy, strata: int, generator: np.random.Generator) -> Counts:
    """Return counts with each area's people in strata, each of which is about half as large as the one before.

    The last axis has the strata. Most counts of a real cross-tabulation by age, race and ethnicity are small or zero,
    and so are these.
    """
    shares = STRATUM_RATIO ** np.arange(strata)
    masses = np.tile(shares / shares.sum() / tree.areas, tree.areas)
    return _multinomial(tree.people, masses, generator).reshape(*tree.shape, strata)


def _multinomial(people: int, masses: NDArray[np.float64], generator: np.random.Generator) -> Counts:
    counts: Counts = generator.multinomial(people, masses)
    return counts
