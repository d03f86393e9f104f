"""SafeTab under audit: as tabulations run it it passes, and each way of spending more than its plan says is caught."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from service.cli.noise_audit import Finding, Subject, audit
from service.cli.noise_audit_safetab import CASES, Case, Tabulate, own_safetab, subject_of
from service.noise import Keystream, NoiseLaw
from service.noise.tabulation import Counts, DetailRules, GroupCounts, LevelLaws, tabulate
from service.privacy.mechanisms import DiscreteGaussian, Geometric

_RUNS = 20_000


def _findings(*subjects: Subject, runs: int = _RUNS) -> list[Finding]:
    return list(audit(subjects, runs, np.random.default_rng(41)))


def _violated(case: Case, tabulating: Tabulate = tabulate) -> set[str]:
    return {finding.statement for finding in _findings(subject_of(case, _seeded(tabulating))) if finding.violated}


def _seeded(tabulating: Tabulate) -> Tabulate:
    """Keystreams with equal bits in every run of the tests, none of them twice in one run."""
    keystream = Keystream(bytes(range(32)))
    return lambda groups, rules, laws, _: tabulating(groups, rules, laws, keystream)


def _case(kind: type, name: str) -> Case:
    (found,) = (case for case in CASES if case.design.kind is kind and case.name.endswith(name))
    return found


def test_safetab_loses_no_more_than_its_plans_claim_and_hardly_less() -> None:
    """At every parameter; the bounds come near the claims, so that there is little room for a fault to hide in."""
    findings = _findings(*own_safetab(_seeded(tabulate)), runs=50_000)
    assert [finding for finding in findings if finding.violated] == []
    pure = {finding.subject: finding for finding in findings if finding.statement == "epsilon"}
    assert len(pure) == len(CASES) // 2
    assert pure["SafeTab, geometric, at a threshold"].bound > 0.85 * pure["SafeTab, geometric, at a threshold"].claim
    assert all(finding.bound > 0.5 * finding.claim for finding in pure.values())
    hockey_stick = [finding for finding in findings if finding.statement == "delta at epsilon 0.0"]
    assert len(hockey_stick) == len(CASES)
    assert all(finding.bound > 0.5 * finding.claim for finding in hockey_stick)


def test_the_step_that_decides_is_part_of_what_is_measured() -> None:
    """At a threshold the bound is above what step 2 alone could lose, so that the two steps were seen together."""
    case = _case(Geometric, "at a threshold")
    (epsilon,) = (
        one for one in _findings(subject_of(case, _seeded(tabulate)), runs=100_000) if one.statement == "epsilon"
    )
    assert epsilon.bound > 1.5 * (1 - float(case.design.stage_1)) * epsilon.claim


def _half_the_noise(
    groups: GroupCounts, rules: DetailRules, laws: LevelLaws, keystream: Keystream
) -> tuple[NDArray[np.int8], Counts]:
    return tabulate(groups, rules, replace(laws, step_2=_halved(laws.step_2), total=_halved(laws.total)), keystream)


def _halved(law: NoiseLaw) -> NoiseLaw:
    if law.scale is not None:
        return NoiseLaw(scale=law.scale / 2)
    return NoiseLaw(sigma_squared=(law.sigma_squared or Fraction(0)) / 4)


def _true_count_decides(
    groups: GroupCounts, rules: DetailRules, laws: LevelLaws, keystream: Keystream
) -> tuple[NDArray[np.int8], Counts]:
    return tabulate(groups, rules, replace(laws, step_1=NoiseLaw(scale=Fraction(1, 10_000))), keystream)


def _budget_spent_twice(
    groups: GroupCounts, rules: DetailRules, laws: LevelLaws, keystream: Keystream
) -> tuple[NDArray[np.int8], Counts]:
    """Step 1 with the noise of all of a group's budget, and step 2 with its share beside it."""
    return tabulate(groups, rules, replace(laws, step_1=laws.total), keystream)


@pytest.mark.parametrize("kind", [Geometric, DiscreteGaussian])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("at a threshold", _half_the_noise),
        ("totals only, stability 2", _half_the_noise),
        ("at a threshold", _true_count_decides),
        ("stability 3", _true_count_decides),
    ],
)
def test_broken_tabulations_are_caught(kind: type, name: str, fault: Tabulate) -> None:
    case = _case(kind, name)
    assert _violated(case, fault)
    assert not _violated(case)


def test_a_budget_that_is_spent_twice_is_caught() -> None:
    assert _violated(_case(Geometric, "at a threshold"), _budget_spent_twice) >= {"epsilon"}


@pytest.mark.parametrize("kind", [Geometric, DiscreteGaussian])
def test_a_record_in_more_groups_than_the_stability_is_caught(kind: type) -> None:
    case = _case(kind, "totals only, stability 2")
    assert _violated(replace(case, groups=5))
