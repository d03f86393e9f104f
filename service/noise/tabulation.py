"""SafeTab's tabulation of population groups (Haney et al. 2021, Algorithms 2 and 3), many groups at a time.

Of a group that is marked so only the total is tabulated, with all of the group's budget. Of any other one a noisy
total is taken first, with a small part of the budget, and is compared with thresholds: the larger it is, the finer is
the age detail of what is then tabulated with the rest. The first total decides and is not published.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.noise.keystream import Keystream
from service.noise.sampler import add_noise
from service.privacy.laws.noise_law import NoiseLaw

Counts = NDArray[np.int64]

SEXES = 2
BINS = (4, 9, 23)
"""The numbers of age bins that a group's detail can have, ascending."""
LARGEST = 2**53
"""A larger true count is refused: sums of a group's cells, with noise, stay within 64 bits."""
MOST_AGES = 200
_AT_ONCE = 10_000  # groups whose ages are copied to add them up


@dataclass(frozen=True, slots=True)
class DetailRules:
    """The rules for the detail that a group gets.

    Attributes:
        thresholds: a noisy total below the first gives the total, below the second the coarsest ages, and so on.
        age_bins: the first age of each bin, for 4, 9 and 23 bins; the last one has no end.
    """

    thresholds: tuple[int, int, int]
    age_bins: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


USUAL_RULES = DetailRules(
    thresholds=(500, 1000, 7000),
    age_bins=(
        (0, 18, 45, 65),
        (0, 5, 18, 25, 35, 45, 55, 65, 75),
        (0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85),
    ),
)
"""The paper prints the numbers of bins, but neither their ages nor the thresholds.

Both are those of the program that made the 2020 Census's Detailed DHC-A, which the Census Bureau published
(github.com/uscensusbureau/DAS_2020_DDHCA_Production_Code): the ages are ``BINS`` in
``safetab_p/tmlt/safetab_p/safetab_p_analytics.py``, the thresholds those of detailed groups of the nation and of states
in the configurations that it comes with. There, detailed groups of counties, tracts, places and AIANNH areas have
1,000, 5,000 and 20,000, and regional groups of any area 5,000, 20,000 and 150,000. The production run
(``configs/safetab-p/NMFv7-2020/config.json``) lowered each threshold by 29: 471, 971 and 6,971.
"""

TOTAL_ONLY = 0
"""The detail of a marked group. From 1 on it is the number of thresholds that the noisy total reached, plus 1."""
SIZES = (1, 1, *(SEXES * bins for bins in BINS))
"""How many counts each detail has; sex by age is row-major, a row for each sex."""


@dataclass(frozen=True, slots=True)
class LevelLaws:
    """The noise of a level: of a marked group's total, of the total that decides, and of what is published then."""

    total: NoiseLaw
    step_1: NoiseLaw
    step_2: NoiseLaw


@dataclass(frozen=True)
class GroupCounts:
    """True counts of groups.

    Attributes:
        totals: the size of each.
        total_only: which are marked.
        sex_by_age: counts by sex and single year of age, of groups in any order; a total is their sum.
        rows: of each group that is not marked, where among those its counts are.
    """

    totals: Counts
    total_only: NDArray[np.bool_]
    sex_by_age: Counts
    rows: NDArray[np.int64]


def tabulate(
    groups: GroupCounts, rules: DetailRules, laws: LevelLaws, keystream: Keystream
) -> tuple[NDArray[np.int8], Counts]:
    """Return each group's detail, and the noisy counts of all groups one after the other.

    Returns:
        The details in the order of the groups, and the counts in that order, which can be negative; ``SIZES`` has the
        number of a group's counts by its detail.

    Raises:
        ValueError: a law too wide for 64-bit results.
        OverflowError: as ``add_noise``.
    """
    details = np.zeros(groups.totals.size, np.int8)
    deciding_totals = add_noise(groups.totals[~groups.total_only], laws.step_1, keystream)
    details[~groups.total_only] = 1 + np.searchsorted(rules.thresholds, deciding_totals, side="right")
    ends = np.cumsum(np.take(SIZES, details))
    published = np.empty(int(ends[-1]) if ends.size else 0, np.int64)
    for detail, size in enumerate(SIZES):
        members = np.flatnonzero(details == detail)
        if not members.size:
            continue
        counts = groups.totals[members]
        if detail > 1:
            of_members, bins = groups.rows[members], rules.age_bins[detail - 2]
            pieces = range(0, members.size, _AT_ONCE)
            counts = np.concatenate(
                [bin_ages(groups.sex_by_age[of_members[start : start + _AT_ONCE]], bins) for start in pieces]
            )
        law = laws.total if detail == TOTAL_ONLY else laws.step_2
        places = (ends[members] - size)[:, None] + np.arange(size)
        published[places.ravel()] = add_noise(counts.ravel(), law, keystream)
    return details, published


def bin_ages(sex_by_age: Counts, first_ages: Sequence[int]) -> Counts:
    """Add counts by sex and single year of age up to age bins; a bin beyond the last single year is empty.

    Args:
        sex_by_age: the last axis has the single years of age, from 0 on.
        first_ages: of each bin, ascending.

    Returns:
        An array of that shape with a bin for each first age in the last axis.
    """
    ages = sex_by_age.shape[-1]
    nonempty = [age for age in first_ages if age < ages]
    sums = np.zeros((*sex_by_age.shape[:-1], len(first_ages)), np.int64)
    if len(sex_by_age):
        sums[..., : len(nonempty)] = np.add.reduceat(sex_by_age, nonempty, axis=-1)
    return sums
