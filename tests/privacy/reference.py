"""The oracle (sums and quadrature in mpmath) and its values, and plans known from publications."""

from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]  # it publishes no types

import tests.oracles.oracle
from service.privacy.accounting.rdp import mechanism_tau
from service.privacy.mechanisms import DiscreteGaussian, Geometric, Mechanism
from service.privacy.numerics.loss import Loss, largest_losses, total_loss
from service.privacy.numerics.numbers import double_up
from service.privacy.plans import Choice, Parallel, Plan, Sequence
from service.privacy.plans.composition_program import Foldable, Notion, fold
from service.privacy.plans.walking import Neighbouring
from tests.oracles import files

oracle: Any = tests.oracles.oracle
mp: Any = oracle.mp
rows = files.rows


def exactly(value: Any) -> Fraction:
    """An mpmath number as the rational that it is."""
    sign, mantissa, exponent, _ = mpmath.mpf(value)._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


def last_digit(text: str) -> Fraction:
    """Half a unit of the 17th significant digit: by so much a printed reference value can be above the truth."""
    return Fraction(10) ** (int(mp.floor(mp.log10(abs(mp.mpf(text))))) - 16) / 2


def assert_just_above(reported: Fraction | float, reference: str, relative: float = 1e-9) -> None:
    """An upper bound: never below the reference but for the reference's own rounding, and close to it."""
    value, truth = Fraction(reported), Fraction(reference)
    assert value >= truth - last_digit(reference)
    assert value <= truth * (1 + Fraction(relative))


def reported(loss: Loss) -> float:
    """The double that leaves the service."""
    assert loss.nats is not None
    return double_up(loss.nats)


def nats(loss: Loss) -> Fraction:
    """A finite loss."""
    assert loss.nats is not None
    return loss.nats


def pl94() -> Plan:
    """The 2020 redistricting release: 65 discrete Gaussian queries (its file states how their variances follow)."""
    release = files.allocation()
    scale = Fraction(release["global_scale"])
    queries = [
        DiscreteGaussian(
            name=f"{level['geolevel']}/{query['name']}",
            tags=(level["geolevel"],),
            sigma_squared=scale**2 / (Fraction(level["proportion"]) * Fraction(query["proportion"])),
        )
        for level in release["levels"]
        for query in level["queries"]
    ]
    assert len(queries) == release["expected"]["mechanisms"]
    return Sequence(parts=tuple(queries))


STABILITY, STEP_1 = 9, Fraction(1, 10)
"""Of SafeTab (Haney et al. 2021, Table 4): a record is in at most 9 groups of a level; gamma."""


def safetab(base: list[Mechanism]) -> Plan:
    """SafeTab over levels with these mechanisms for the whole budget of one group.

    At each level, on at most 9 groups of a record: the total only, or step 1 with a tenth of the budget
    and one of step 2's tabulations with the rest.
    """
    levels = []
    for mechanism in base:
        steps = Sequence(
            parts=(share(mechanism, STEP_1), Parallel(max_degree=1, parts=(share(mechanism, 1 - STEP_1),) * 3))
        )
        group = Choice(parts=(mechanism, steps))
        levels.append(Parallel(max_degree=STABILITY, parts=(group,) * (STABILITY + 3)))
    return Sequence(parts=tuple(levels))


def share(mechanism: Mechanism, of_budget: Fraction) -> Mechanism:
    """The mechanism at a share of its budget: of epsilon for geometric noise, of rho for Gaussian."""
    if isinstance(mechanism, Geometric):
        return Geometric(scale=mechanism.scale / of_budget)
    assert isinstance(mechanism, DiscreteGaussian)
    return DiscreteGaussian(sigma_squared=mechanism.sigma_squared / of_budget)


def assert_bounds(bound: Fraction, truth: Any, relative: float = 1e-25, error: Fraction = Fraction(1, 10**40)) -> None:
    """``truth``, which is computed up to a relative error, is not above the bound, and close to it."""
    exact = exactly(truth)
    assert bound >= exact * (1 - error)
    assert bound <= exact * (1 + Fraction(relative))


def plan_tau(plan: Foldable, neighbouring: Neighbouring, alpha: Fraction) -> Loss:
    """An upper bound on tau(alpha) of a plan (nats), to 96 bits: one mechanism and order at a time, in balls.

    Source: Haney et al. 2021, Lemma 3.
    """
    return fold(
        plan, neighbouring, Notion(lambda mechanism: mechanism_tau(mechanism, alpha), total_loss, largest_losses)
    )
