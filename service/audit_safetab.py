"""SafeTab under audit: Haney et al. 2021's Algorithms 1 to 3 as tabulations run them, with and without one record.

A run is what one record can see of a release: of every level the ``stability`` groups that it is in. Plan and noise
come from the code that makes plans for tabulations, and the whole run is held against the claim about the whole plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from service.audit import Runs, Subject
from service.noise import Keystream, NoiseLaw
from service.noise.tabulation import SIZES, Counts, Groups, Laws, Rules, tabulate
from service.privacy.levels import laws_of, levels_of
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.plan import Plan
from service.privacy.safetab import Design, Kind, Level, noise_of, plan_of

_AT_ONCE = 1 << 16  # groups
_DIGITS = 9  # of a loss, so that equal ones are equal though they were added up in another order
_RULES = Rules((20, 40, 60), ((0, 2, 3, 4), tuple(range(9)), tuple(range(23))))
_IMPOSSIBLE = 1e6  # the loss of a detail that one of the inputs cannot have, as far as doubles tell
_WIDTHS = 60  # of the noise, beyond which a tail is below any double's weight beside 1

Tabulate = Callable[[Groups, Rules, Laws, Keystream], tuple[NDArray[np.int8], Counts]]
Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """What is tabulated.

    Attributes:
        size: of each group that the record is in, without it.
        total_only: the groups are marked.
        groups: how many of a level the record is in; None: as many as the design says.
    """

    name: str
    design: Design
    size: int
    total_only: bool = False
    groups: int | None = None


def own_safetab(tabulating: Tabulate = tabulate) -> list[Subject]:
    """SafeTab at several parameters, most of them near a threshold, where the step that decides tells the most."""
    return [subject_of(case, tabulating) for case in CASES]


def subject_of(case: Case, tabulating: Tabulate = tabulate) -> Subject:
    """A case as a subject: so many runs with the record and without it, each as the loss that it seems to show."""
    plan = plan_of(case.design, [noise_of(case.design, level) for level in case.design.levels])

    def draw(size: int) -> Runs:
        without, with_it = (_losses(case, plan, tabulating, more, size) for more in (0, 1))
        return without, with_it

    return Subject(f"SafeTab, {case.name}", plan, draw)


def _losses(case: Case, plan: Plan, tabulating: Tabulate, more: int, runs: int) -> Losses:
    """Of each run the loss of all levels and groups."""
    total = np.zeros(runs)
    groups = case.groups or case.design.stability
    for level in levels_of(plan):
        found = laws_of(level)
        if found is None:
            raise ValueError("expected noise of whole counts")
        laws, rest = Laws(*found), runs * groups
        parts = []
        while rest:
            parts.append(_tabulated(case, laws, tabulating, more, min(rest, _AT_ONCE)))
            rest -= parts[-1].size
        total += np.concatenate(parts).reshape(runs, groups).sum(axis=1)
    return np.round(total, _DIGITS)


def _tabulated(case: Case, laws: Laws, tabulating: Tabulate, more: int, number: int) -> Losses:
    """The losses of so many groups, each of its own noise.

    A loss is the logarithm of how much likelier the group's answer is with the record than without it, by the laws as
    they are claimed. Any figure of the outputs would do for a valid bound, and this one divides them best.
    """
    counts = np.zeros((1, 2, 23), np.int64)
    counts[0, 0, 0] = case.size + more  # the record is in the first cell of each table
    only, rows = np.full(number, case.total_only), np.zeros(number, np.int64)
    groups = Groups(np.full(number, case.size + more), only, counts, rows)
    details, noisy = tabulating(groups, _RULES, laws, Keystream())
    firsts = np.concatenate([[0], np.cumsum(np.take(SIZES, details))[:-1]])
    if case.total_only:
        return _of_count(noisy[firsts], case.size, laws.total)
    return _of_detail(case.size, laws.step_1)[details] + _of_count(noisy[firsts], case.size, laws.step_2)


def _of_count(noisy: Counts, true: int, law: NoiseLaw) -> Losses:
    """The loss of a noisy count."""
    before, after = (np.abs((noisy - true - more).astype(np.float64)) for more in (0, 1))
    losses: Losses = float(law.linear) * (before - after) + float(law.quadratic) * (before**2 - after**2)
    return losses


def _of_detail(true: int, law: NoiseLaw) -> Losses:
    """The loss of each detail: what the hidden total shows by the thresholds between which it came."""
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
    return np.concatenate([[0.0], losses])  # 0 of TOTAL_ONLY, which no unmarked group has


def _width(law: NoiseLaw) -> float:
    return float(law.scale) if law.scale is not None else math.sqrt(law.sigma_squared or 1)


def _design(kind: Kind, margins: tuple[int, ...], stability: int, stage_1: str) -> Design:
    levels = tuple(Level(f"level {number}", margin) for number, margin in enumerate(margins, 1))
    return Design(kind, levels, stability, Fraction(stage_1))


def _cases(kind: Kind, of: str) -> list[Case]:
    return [
        Case(f"{of}, at a threshold", _design(kind, (3,), 1, "1/2"), 19),
        Case(f"{of}, step 1 a tenth", _design(kind, (3,), 1, "1/10"), 39),
        Case(f"{of}, far from thresholds", _design(kind, (2,), 1, "1/3"), 5),
        Case(f"{of}, stability 3", _design(kind, (6,), 3, "1/4"), 19),
        Case(f"{of}, two levels, stability 2", _design(kind, (6, 11), 2, "1/4"), 59),
        Case(f"{of}, totals only, stability 2", _design(kind, (4,), 2, "1/10"), 19, total_only=True),
    ]


CASES = (*_cases(Geometric, "geometric"), *_cases(DiscreteGaussian, "Gaussian"))
