"""SafeTab's tables: what the paper prints, what follows from its formulas, and what is sound."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from service.privacy.accounting.guarantee import guarantee
from service.privacy.mechanisms import DiscreteGaussian, Geometric
from service.privacy.planning.safetab import (
    PAPER,
    PAPER_DELTA,
    SafeTabNoiseType,
    loss_of,
    noise_of,
    printed_analysis,
    printed_level,
    printed_table_2,
    safetab_plan,
)
from service.privacy.plans.walking import Neighbouring
from tests.privacy.reference import safetab as written_out

DISCRETE = replace(PAPER, kind=DiscreteGaussian)


def _figures(design: object) -> dict[str, Any]:
    assert isinstance(design, type(PAPER))
    noise = [noise_of(design, level) for level in design.levels]
    formula = printed_analysis(design, noise, PAPER_DELTA)
    cost = guarantee(safetab_plan(design, noise), Neighbouring.ADD_REMOVE, deltas=[PAPER_DELTA])
    sound = {one.via: (float(one.epsilon.nats or 0), True) for one in cost.approximate}
    return sound | {formula.name: (float(formula.epsilon), formula.sound)}


@pytest.mark.parametrize("design", [PAPER, DISCRETE], ids=["geometric", "discrete Gaussian"])
def test_table_4_is_met_to_its_rounding(design: object) -> None:
    assert isinstance(design, type(PAPER))
    exact = {6: 4.2796, 11: 2.4964, 50: 0.5874} if design.kind is Geometric else {6: 0.5333, 11: 0.1587, 50: 0.00768}
    for level in design.levels:
        noise = noise_of(design, level)
        total, step_2 = (float(9 * loss_of(one)) for one in (noise.total_only, noise.step_2))
        assert total == pytest.approx(exact[level.margin], rel=3e-3)
        assert step_2 == pytest.approx(0.9 * total, rel=1e-12)
        assert loss_of(noise.step_1) + loss_of(noise.step_2) == loss_of(noise.total_only)
        printed = printed_level(design, level)
        assert printed is not None
        assert total == pytest.approx(float(printed[1]), abs=0.01)
        assert step_2 == pytest.approx(float(printed[0]), abs=0.015)


def test_table_2_of_geometric_noise() -> None:
    found = _figures(PAPER)
    assert found["pure"] == (pytest.approx(15.3143, abs=5e-5), True)
    assert found["rdp, printed formula"] == (pytest.approx(13.5742, abs=5e-5), False)
    assert found["rdp"] == (pytest.approx(14.1944, abs=5e-5), True)
    assert found["tight"] == (pytest.approx(14.05, abs=0.01), True)
    assert [(one.name, float(one.epsilon), one.sound) for one in printed_table_2(PAPER, PAPER_DELTA)] == [
        ("pure, as printed", 15.3, False),
        ("rdp, as printed", 13.2, False),
    ]


def test_table_2_of_discrete_gaussian_noise() -> None:
    found = _figures(DISCRETE)
    assert found["analytic"] == (pytest.approx(12.7911, abs=5e-5), True)
    assert found["zcdp, printed formula"] == (pytest.approx(12.1629, abs=5e-5), True)
    assert found["zcdp"] == (pytest.approx(12.1629, abs=5e-5), True)
    assert found["zcdp"][0] <= found["zcdp, printed formula"][0]
    assert found["tight"] == (pytest.approx(11.6691, abs=2e-4), True)  # at least 11.6688 in the worst order
    assert [float(one.epsilon) for one in printed_table_2(DISCRETE, PAPER_DELTA)] == [12.8, 12.2]


@pytest.mark.parametrize("kind", [Geometric, DiscreteGaussian])
@pytest.mark.parametrize("neighbouring", list(Neighbouring))
def test_the_plan_costs_what_it_costs_written_out_by_groups(kind: SafeTabNoiseType, neighbouring: Neighbouring) -> None:
    """As the paper has it: at each level in parallel, a record in at most nine of twelve groups."""
    design = replace(PAPER, kind=kind, exact=True, levels=PAPER.levels[:4])
    noise = [noise_of(design, level) for level in design.levels]
    ours, theirs = (
        guarantee(plan, neighbouring, deltas=(PAPER_DELTA,), tight=False)
        for plan in (
            safetab_plan(design, noise),
            written_out([replace(one.total_only, name=None, cells=1) for one in noise]),
        )
    )
    if neighbouring is Neighbouring.ADD_REMOVE:
        assert float(ours.rho.nats or 0) == pytest.approx(float(theirs.rho.nats or 0), rel=1e-12)
        assert [float(tau.nats or 0) for _, tau in ours.rdp] == pytest.approx(
            [float(tau.nats or 0) for _, tau in theirs.rdp], rel=1e-12
        )
    else:  # a changed record leaves nine groups and enters nine
        once = guarantee(safetab_plan(design, noise), Neighbouring.ADD_REMOVE, deltas=(PAPER_DELTA,), tight=False)
        assert float(ours.rho.nats or 0) == pytest.approx(2 * float(once.rho.nats or 0), rel=1e-12)


def test_exact_margins_cost_more_geometric_and_less_discrete_gaussian_noise() -> None:
    printed, exact = ([noise_of(replace(PAPER, exact=e), level) for level in PAPER.levels] for e in (False, True))
    assert all(loss_of(a.total_only) < loss_of(b.total_only) for a, b in zip(printed, exact, strict=True))
    printed, exact = ([noise_of(replace(DISCRETE, exact=e), level) for level in PAPER.levels] for e in (False, True))
    assert all(loss_of(a.total_only) > loss_of(b.total_only) for a, b in zip(printed, exact, strict=True))
    assert float(loss_of(exact[0].step_2)) == pytest.approx(0.04512, abs=5e-6)


def test_other_settings_have_nothing_printed() -> None:
    assert printed_table_2(replace(PAPER, exact=True), PAPER_DELTA) == []
    assert printed_table_2(replace(PAPER, stability=8), PAPER_DELTA) == []
    assert printed_table_2(PAPER, Fraction(1, 10**6)) == []
    assert printed_table_2(replace(PAPER, levels=PAPER.levels[:2]), PAPER_DELTA) == []
    assert printed_level(replace(PAPER, stage_1=Fraction(1, 5)), PAPER.levels[0]) is None
