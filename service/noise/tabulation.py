"""SafeTab's tabulation of population groups (Haney et al. 2021, Algorithms 2 and 3), many groups at a time.

A group that is marked ``total_only`` gets a total, with all of the group's budget. Every other group first gets a noisy
total with a small part of its budget. This total is compared with thresholds: the larger it is, the finer is the age
detail of the counts that get the rest of the budget. It only decides, and is not published.
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
"""The largest true count: sums of a group's cells, with noise, then fit 64 bits."""
MOST_AGES = 200
_AT_ONCE = 10_000  # groups whose ages are copied at a time to add them up


@dataclass(frozen=True, slots=True)
class DetailRules:
    """The rules for the detail that a group gets.

    Attributes:
        thresholds: a noisy total below the first gives only a total, below the second the coarsest ages, and so on.
        age_bins: the first age of each bin, for 4, 9 and 23 bins; the last bin has no upper end.
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
"""The default rules. The paper prints the numbers of bins, but neither their ages nor the thresholds.

Both are from the program that made the 2020 Census's Detailed DHC-A, which the Census Bureau published
(github.com/uscensusbureau/DAS_2020_DDHCA_Production_Code). The ages are ``BINS`` in
``safetab_p/tmlt/safetab_p/safetab_p_analytics.py``. The thresholds are those of detailed groups of the nation and of
states in the program's own configurations. There, detailed groups of counties, tracts, places and AIANNH areas have
1,000, 5,000 and 20,000, and regional groups of any area have 5,000, 20,000 and 150,000. The production run
(``configs/safetab-p/NMFv7-2020/config.json``) lowered each threshold by 29: 471, 971 and 6,971.
"""

TOTAL_ONLY = 0
"""The detail of a group with only a total. Others have 1 plus the number of thresholds that the noisy total reached."""
SIZES = (1, 1, *(SEXES * bins for bins in BINS))
"""The number of counts of each detail. Counts by sex and age are in row-major order, a row for each sex."""


@dataclass(frozen=True, slots=True)
class LevelLaws:
    """The noise laws of a level.

    Attributes:
        total: of the total of a group that is marked ``total_only``.
        step_1: of the total that decides on the detail of another group.
        step_2: of the counts of another group that are published.
    """

    total: NoiseLaw
    step_1: NoiseLaw
    step_2: NoiseLaw


@dataclass(frozen=True)
class GroupCounts:
    """True counts of groups.

    Attributes:
        totals: the size of each group.
        total_only: true for each group that gets only a total.
        sex_by_age: counts by group, sex and single year of age, with the groups in any order. A total is the sum of the
            group's counts.
        rows: for each group, the index of its counts in ``sex_by_age``; not used for groups with only a total.
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
        The details in the order of the groups, and the counts in the same order. A group has ``SIZES[detail]`` counts,
            which can be negative.

    Raises:
        ValueError: a law is too wide for 64-bit results.
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
    """Add counts by sex and single year of age up to age bins; a bin beyond the last single year is 0.

    Args:
        sex_by_age: the last axis has the single years of age, from 0 on.
        first_ages: the first age of each bin, ascending.

    Returns:
        An array of the same shape, except that the last axis has the bins.
    """
    ages = sex_by_age.shape[-1]
    nonempty = [age for age in first_ages if age < ages]
    sums = np.zeros((*sex_by_age.shape[:-1], len(first_ages)), np.int64)
    if len(sex_by_age):
        sums[..., : len(nonempty)] = np.add.reduceat(sex_by_age, nonempty, axis=-1)
    return sums
