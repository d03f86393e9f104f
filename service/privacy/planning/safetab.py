"""SafeTab (Haney et al. 2021): from margins of error at levels of population groups to a plan, and its analyses.

At each level a record is in at most ``stability`` groups. Either all of a group's budget goes to its total, or a
fraction of it goes to the total (step 1) and the rest to a table that the noisy total chooses (step 2). The cells of
this table meet the margin.
"""

import math
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from service.privacy.accounting.conversion import conversion
from service.privacy.accuracy.calibration import (
    margin_to_scale,
    margin_to_sigma_squared,
    safetab_scale,
    safetab_sigma_squared,
)
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.numerics.arithmetic import Doubles, double
from service.privacy.numerics.keyed import memoised
from service.privacy.plans import Choice, Repeat, Sequence

SafeTabNoiseType = type[Geometric] | type[DiscreteGaussian]

MOST_TIGHT = 16
"""The largest number of levels for which the tight analysis is computed."""
CONFIDENCE = Fraction(95, 100)
"""The only confidence for which the paper has closed forms."""
GRID = tuple(Fraction(k, 100) for k in range(101, 1001))
"""The orders that the paper uses: 1.01, 1.02, ..., 10."""


@dataclass(frozen=True, slots=True)
class TargetLevel:
    """A level of population groups, and the margin of error of a cell of its tables (counts)."""

    name: str
    margin: int


@dataclass(frozen=True, slots=True)
class Design:
    """The inputs of SafeTab.

    Attributes:
        stability: the largest number of groups of one level that a record can be in.
        stage_1: the fraction of a group's budget that is spent on choosing its table, between 0 and 1.
        exact: calibrate by the exact tail; if false, by the closed forms of the paper (at 0.95 only).
    """

    kind: SafeTabNoiseType
    levels: tuple[TargetLevel, ...]
    stability: int
    stage_1: Fraction
    confidence: Fraction = CONFIDENCE
    exact: bool = True


@dataclass(frozen=True, slots=True)
class LevelNoise:
    """The mechanisms of one level: for groups that only have a total, and for the two steps of all others."""

    total_only: Geometric | DiscreteGaussian
    step_1: Geometric | DiscreteGaussian
    step_2: Geometric | DiscreteGaussian


@dataclass(frozen=True, slots=True)
class SafeTabAnalysis:
    """The epsilon of the whole plan at delta, by one analysis.

    Attributes:
        sound: whether epsilon is proven to be an upper bound.
    """

    name: str
    epsilon: Fraction
    delta: Fraction
    sound: bool


@memoised(maxsize=1024)
def step_2_noise(
    kind: SafeTabNoiseType, margin: int, confidence: Fraction, exact: bool
) -> Geometric | DiscreteGaussian:
    """Return the mechanism of step 2 that meets a margin of error.

    Args:
        margin: counts.
        exact: as in ``Design``.

    Raises:
        ValueError: the margin or the confidence is out of range.
    """
    if kind.PARAMETER == "scale":
        return Geometric(scale=margin_to_scale(margin, confidence) if exact else safetab_scale(margin), cells=1)
    variance = margin_to_sigma_squared(margin, confidence) if exact else safetab_sigma_squared(margin)
    return DiscreteGaussian(sigma_squared=variance, cells=1)


def loss_of(mechanism: Geometric | DiscreteGaussian) -> Fraction:
    """Return the loss that divides a budget: epsilon of geometric, rho of discrete Gaussian noise (nats, exact)."""
    return mechanism.own_loss().nats or Fraction(0)


def noise_of(design: Design, level: TargetLevel) -> LevelNoise:
    """Return the mechanisms of a level; step 2 has the share 1 - stage_1 of a group's budget.

    So the budget is rho_base/(1 - gamma), as in the paper's Table 4; the text below its eq. 38 says 1/gamma.
    """
    base = step_2_noise(design.kind, level.margin, design.confidence, design.exact)
    rest = 1 - design.stage_1
    return LevelNoise(
        replace(base.with_share(1 / rest), name=f"{level.name}/total only"),
        replace(base.with_share(design.stage_1 / rest), name=f"{level.name}/step 1"),
        replace(base, name=f"{level.name}/step 2"),
    )


def safetab_plan(design: Design, noise: Listed[LevelNoise]) -> Sequence:
    """Return the plan, ready to be registered.

    At each level, ``stability`` times: the total only, or step 1 and then step 2. The groups of one record cost this
    many repetitions, each with a choice of its own. The cells of a table are disjoint, so one cell is moved.

    Args:
        noise: of each level, in the design's order.
    """
    levels = tuple(
        Repeat(
            count=design.stability,
            part=Choice(parts=(one.total_only, Sequence(parts=(one.step_1, one.step_2)))),
            tags=(level.name,),
        )
        for level, one in zip(design.levels, noise, strict=True)
    )
    return Sequence(parts=levels)


def printed_analysis(design: Design, noise: Listed[LevelNoise], delta: Fraction) -> SafeTabAnalysis:
    """Return epsilon of the plan by the paper's formula as it is printed.

    Args:
        noise: of each level, in the design's order.
        delta: above 0.
    """
    if design.kind.PARAMETER == "scale":
        shares = [(one.step_1, one.step_2, one.total_only) for one in noise]
        return SafeTabAnalysis("rdp, printed formula", _printed_rdp(design, shares, delta), delta, sound=False)
    rho = design.stability * sum((loss_of(one.total_only) for one in noise), Fraction(0))
    return SafeTabAnalysis("zcdp, printed formula", _printed_zcdp(rho, delta), delta, sound=True)


def _rough_excess(alphas: Doubles, delta: Fraction) -> Doubles:
    needed = math.log(delta.denominator) - math.log(delta.numerator)
    above = (alphas - 1) * np.log1p(-1 / alphas) - np.log(alphas)
    return np.asarray((needed + above) / (alphas - 1))


def _printed_rdp(design: Design, shares: Listed[tuple[Geometric | DiscreteGaussian, ...]], delta: Fraction) -> Fraction:
    """Return eqs. 39 and 40 with eq. 17 on the paper's orders: too small, as eq. 17 integrates where it should sum."""
    alphas = np.array([double(alpha) for alpha in GRID])
    total = np.zeros_like(alphas)
    for mechanisms in shares:
        one, two, whole = (_printed_tau(double(loss_of(mechanism)), alphas) for mechanism in mechanisms)
        total += design.stability * np.maximum(one + two, whole)
    return Fraction(float(np.min(total + _rough_excess(alphas, delta))))


def _printed_tau(epsilon: float, alphas: Doubles) -> Doubles:
    """Return eq. 17, which is below the divergence: 0.540 at epsilon = 1 and alpha = 2, where this is 0.735."""
    y = 2 * alphas - 1
    inside = np.tanh(epsilon / 2) * 2 * (alphas + (alphas - 1) * np.exp(-y * epsilon)) / (epsilon * y)
    return np.asarray(epsilon + np.log(inside) / (alphas - 1))


def _printed_zcdp(rho: Fraction, delta: Fraction) -> Fraction:
    """Return eq. 6 on the paper's orders; any order gives a bound, and the best is evaluated once, rounded up."""
    alphas = np.array([double(alpha) for alpha in GRID])
    best = GRID[int(np.argmin(double(rho) * alphas + _rough_excess(alphas, delta)))]
    return max(rho * best + conversion(best, delta), Fraction(0))


PAPER = Design(
    Geometric,
    tuple(
        TargetLevel(name, margin)
        for name, margin in (
            ("Nation, Detailed", 6),
            ("State, Detailed", 6),
            ("County, Detailed", 11),
            ("AIANNH, Detailed", 11),
            ("Nation, Regional", 50),
            ("State, Regional", 50),
            ("County, Regional", 50),
        )
    ),
    9,
    Fraction(1, 10),
    exact=False,
)
"""The paper's settings (Table 4), at delta = 1e-10."""
PAPER_DELTA = Fraction(1, 10**10)
_TABLE_4: dict[SafeTabNoiseType, dict[int, tuple[str, str]]] = {
    Geometric: {6: ("3.84", "4.27"), 11: ("2.24", "2.49"), 50: ("0.531", "0.59")},
    DiscreteGaussian: {6: ("0.481", "0.534"), 11: ("0.143", "0.159"), 50: ("0.007", "0.008")},
}
_TABLE_2: dict[SafeTabNoiseType, tuple[tuple[str, str, int], ...]] = {
    Geometric: (("pure, as printed", "15.3", 0), ("rdp, as printed", "13.2", 1)),
    DiscreteGaussian: (("zcdp, analytic, as printed", "12.8", 1), ("zcdp, as printed", "12.2", 1)),
}


def printed_table_2(design: Design, delta: Fraction) -> list[SafeTabAnalysis]:
    """Return Table 2 of the paper, if the design is the paper's; its figures are rounded, so none is a bound.

    Returns:
        Empty for any other design or delta.
    """
    same = [level.margin for level in design.levels] == [level.margin for level in PAPER.levels]
    if not same or design.exact or delta != PAPER_DELTA:
        return []
    if (design.stability, design.stage_1) != (PAPER.stability, PAPER.stage_1):
        return []
    return [
        SafeTabAnalysis(name, Fraction(text), delta if spends else Fraction(0), sound=False)
        for name, text, spends in _TABLE_2[design.kind]
    ]


def printed_level(design: Design, level: TargetLevel) -> tuple[Fraction, Fraction] | None:
    """Return step 2 and total of a level in Tables 1 and 4 of the paper, for its stability and fraction.

    Returns:
        Losses in nats, as they are printed; None if the paper prints none for the level.
    """
    if design.exact or (design.stability, design.stage_1) != (PAPER.stability, PAPER.stage_1):
        return None
    printed = _TABLE_4[design.kind].get(level.margin)
    return None if printed is None else (Fraction(printed[0]), Fraction(printed[1]))
