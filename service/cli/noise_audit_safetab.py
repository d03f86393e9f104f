"""Audit of SafeTab: Algorithms 1 to 3 of Haney et al. 2021 as tabulations run them, with and without one record.

A run consists of all that one record can influence in a release: at every level the ``stability`` groups that contain
it. Plan and noise come from the code that makes plans for tabulations. The whole run is compared with the claim about
the whole plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from service.cli.noise_audit import Runs, Subject
from service.noise import Keystream, NoiseLaw
from service.noise.tabulation import SIZES, Counts, DetailRules, GroupCounts, LevelLaws, tabulate
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.planning.levels import laws_of, levels_of
from service.privacy.planning.safetab import Design, SafeTabNoiseType, TargetLevel, noise_of, safetab_plan
from service.privacy.plans import Plan

_AT_ONCE = 1 << 16  # groups
_DIGITS = 9  # of a loss, so that equal losses stay equal in whatever order they were added up
_RULES = DetailRules((20, 40, 60), ((0, 2, 3, 4), tuple(range(9)), tuple(range(23))))
_IMPOSSIBLE = 1e6  # the loss of a detail that one of the inputs cannot have, in doubles
_WIDTHS = 60  # of the noise; the tail beyond is below the resolution of doubles at 1

Tabulate = Callable[[GroupCounts, DetailRules, LevelLaws, Keystream], tuple[NDArray[np.int8], Counts]]
Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """A tabulation under audit.

    Attributes:
        name: the case, for the report.
        design: SafeTab's parameters.
        size: the size of each group that contains the record, without it.
        total_only: the groups are marked so.
        groups: the number of a level's groups that contain the record; None: as many as the design allows.
    """

    name: str
    design: Design
    size: int
    total_only: bool = False
    groups: int | None = None


def own_safetab(tabulating: Tabulate = tabulate) -> list[Subject]:
    """Return SafeTab with several parameters, most near a threshold, where the deciding step reveals the most."""
    return [subject_of(case, tabulating) for case in CASES]


def subject_of(case: Case, tabulating: Tabulate = tabulate) -> Subject:
    """Return a case as a subject: runs with and without the record, each as the loss that its output shows."""
    plan = safetab_plan(case.design, [noise_of(case.design, level) for level in case.design.levels])

    def draw(size: int) -> Runs:
        without, with_it = (_losses(case, plan, tabulating, more, size) for more in (0, 1))
        return without, with_it

    return Subject(f"SafeTab, {case.name}", plan, draw)


def _losses(case: Case, plan: Plan, tabulating: Tabulate, more: int, runs: int) -> Losses:
    """Return the total loss of each run, over all levels and groups."""
    total = np.zeros(runs)
    groups = case.groups or case.design.stability
    for level in levels_of(plan):
        level_laws = laws_of(level)
        if level_laws is None:
            raise ValueError("expected noise of whole counts")
        laws, rest = LevelLaws(*level_laws), runs * groups
        parts = []
        while rest:
            parts.append(_tabulated(case, laws, tabulating, more, min(rest, _AT_ONCE)))
            rest -= parts[-1].size
        total += np.concatenate(parts).reshape(runs, groups).sum(axis=1)
    return np.round(total, _DIGITS)


def _tabulated(case: Case, laws: LevelLaws, tabulating: Tabulate, more: int, number: int) -> Losses:
    """Return the losses of so many groups, each with its own noise.

    A loss is the log ratio of the likelihoods of the group's answer with and without the record, by the claimed laws.
    Any function of the outputs would give a valid bound, and this one separates them best.
    """
    counts = np.zeros((1, 2, 23), np.int64)
    counts[0, 0, 0] = case.size + more  # the record is in the first cell of each table
    only, rows = np.full(number, case.total_only), np.zeros(number, np.int64)
    groups = GroupCounts(np.full(number, case.size + more), only, counts, rows)
    details, noisy = tabulating(groups, _RULES, laws, Keystream())
    firsts = np.concatenate([[0], np.cumsum(np.take(SIZES, details))[:-1]])
    if case.total_only:
        return _of_count(noisy[firsts], case.size, laws.total)
    return _of_detail(case.size, laws.step_1)[details] + _of_count(noisy[firsts], case.size, laws.step_2)


def _of_count(noisy: Counts, true: int, law: NoiseLaw) -> Losses:
    """Return the loss of a noisy count."""
    before, after = (np.abs((noisy - true - more).astype(np.float64)) for more in (0, 1))
    losses: Losses = float(law.linear) * (before - after) + float(law.quadratic) * (before**2 - after**2)
    return losses


def _of_detail(true: int, law: NoiseLaw) -> Losses:
    """Return the loss of each detail: the thresholds around the hidden total determine the detail."""
    reach = math.ceil(_WIDTHS * _width(law)) + max(_RULES.thresholds) + true
    places = np.arange(-reach, reach + 1)
    masses = np.exp(-float(law.quadratic) * places.astype(np.float64) ** 2 - float(law.linear) * np.abs(places))
    chances = [
        np.bincount(np.searchsorted(_RULES.thresholds, places + true + more, side="right"), masses, len(SIZES) - 1)
        for more in (0, 1)
    ]
    with np.errstate(divide="ignore"):
        losses = np.log(chances[1]) - np.log(chances[0])
    losses = np.nan_to_num(losses, posinf=_IMPOSSIBLE, neginf=-_IMPOSSIBLE)
    return np.concatenate([[0.0], losses])  # 0 for TOTAL_ONLY, which no unmarked group has


def _width(law: NoiseLaw) -> float:
    return float(law.scale) if law.scale is not None else math.sqrt(law.sigma_squared or 1)


def _design(kind: SafeTabNoiseType, margins: tuple[int, ...], stability: int, stage_1: str) -> Design:
    levels = tuple(TargetLevel(f"level {number}", margin) for number, margin in enumerate(margins, 1))
    return Design(kind, levels, stability, Fraction(stage_1))


def _cases(kind: SafeTabNoiseType, of: str) -> list[Case]:
    return [
        Case(f"{of}, at a threshold", _design(kind, (3,), 1, "1/2"), 19),
        Case(f"{of}, step 1 a tenth", _design(kind, (3,), 1, "1/10"), 39),
        Case(f"{of}, far from thresholds", _design(kind, (2,), 1, "1/3"), 5),
        Case(f"{of}, stability 3", _design(kind, (6,), 3, "1/4"), 19),
        Case(f"{of}, two levels, stability 2", _design(kind, (6, 11), 2, "1/4"), 59),
        Case(f"{of}, totals only, stability 2", _design(kind, (4,), 2, "1/10"), 19, total_only=True),
    ]


CASES = (*_cases(Geometric, "geometric"), *_cases(DiscreteGaussian, "Gaussian"))
