"""Noise on a lattice: what it costs, against the Rényi divergence of its law in counts, summed here point by point."""

from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import logsumexp  # type: ignore[import-untyped]  # it publishes no types

from service.errors import InvalidInput
from service.privacy.accounting.pricing import price
from service.privacy.mechanisms import DiscreteGaussian, DiscreteOsgt, Geometric
from service.privacy.plans import Group
from service.privacy.plans.notation import read_plan, write_plan
from service.privacy.plans.walking import Neighbouring, condense
from tests.privacy.reference import plan_tau

ADD = Neighbouring.ADD_REMOVE
_ORDERS = (Fraction("1.5"), Fraction(2), Fraction(7))


def _divergence(minus_log: Callable[[Any], Any], unit: Fraction, moved: Fraction, alpha: Fraction) -> float:
    """D_alpha of the law with this mass on the multiples of ``unit`` (counts) and itself moved by ``moved``."""
    g, s, a = float(unit), float(moved), float(alpha)
    points = np.arange(-20_000, 20_001) * g
    here, there = -minus_log(points), -minus_log(points - s)
    ratios = a * here - (a - 1) * there
    return float((logsumexp(ratios) - logsumexp(here)) / (a - 1))


@pytest.mark.parametrize("unit", ["0.25", "0.1", "1/3", "2"])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("alpha", _ORDERS, ids=str)
def test_the_cost_is_the_divergence_on_the_lattice(unit: str, steps: int, alpha: Fraction) -> None:
    g = Fraction(unit)
    shared = {"granularity": unit, "sensitivity": str(steps * g)}
    cases: list[tuple[dict[str, str], Callable[[Any], Any]]] = [
        ({"type": "geometric", "scale": "7"}, lambda x: abs(x) / 7),
        ({"type": "discrete_gaussian", "sigma_squared": "6.25"}, lambda x: x * x / 12.5),
        ({"type": "discrete_osgt", "sigma_squared": "9", "m": "1.5"}, lambda x: x * x / 18 + abs(x) / 6),
    ]
    for document, minus_log in cases:
        cost = plan_tau(condense(read_plan(document | shared)), ADD, alpha).nats
        assert cost is not None
        assert float(cost) == pytest.approx(_divergence(minus_log, g, steps * g, alpha), rel=1e-9)


def test_a_loss_that_is_stated_fixes_the_noise_in_counts() -> None:
    assert read_plan(
        {"type": "geometric", "epsilon": "0.5", "sensitivity": "1.75", "granularity": "0.25"}
    ) == Geometric(name="/", scale=Fraction("3.5") * 4, sensitivity=7, granularity=Fraction(1, 4))
    assert read_plan({"type": "discrete_gaussian", "rho": "0.125", "granularity": "0.5"}) == DiscreteGaussian(
        name="/", sigma_squared=Fraction(4) * 4, sensitivity=2, granularity=Fraction(1, 2)
    )
    assert read_plan({"type": "discrete_osgt", "sigma_squared": 40, "m": 3, "granularity": 2, "sensitivity": 4}) == (
        DiscreteOsgt(name="/", sigma_squared=Fraction(10), m=Fraction(3, 2), sensitivity=2, granularity=Fraction(2))
    )


_units = st.fractions(Fraction(1, 10**6), 10**6, max_denominator=10**6)
_positive = st.fractions(Fraction(1, 1000), 1000, max_denominator=1000)


@settings(max_examples=60)
@given(_units, st.integers(1, 2**53), _positive, _positive)
def test_a_written_plan_reads_back_and_costs_as_much_as_on_integers(
    unit: Fraction, steps: int, parameter: Fraction, offset: Fraction
) -> None:
    for plan in (
        Geometric(name="/", scale=parameter, sensitivity=steps, granularity=unit),
        DiscreteGaussian(name="/", sigma_squared=parameter, sensitivity=steps, granularity=unit),
        DiscreteOsgt(name="/", sigma_squared=parameter, m=offset, sensitivity=steps, granularity=unit),
    ):
        assert read_plan(write_plan(plan)) == plan
        document = write_plan(plan)
        integers = type(plan)(**{f: getattr(plan, f) for f in (one.name for one in fields(plan)) if f != "granularity"})
        assert ("granularity" in document) == (unit != 1)
        assert condense(plan) == condense(integers)
        assert condense(Group(part=plan, size=3)) == condense(Group(part=integers, size=3))


def test_another_lattice_under_the_same_parameters_costs_something_else() -> None:
    """So the granularity is part of what is charged: a draw cannot choose it afterwards."""
    document = {"type": "geometric", "scale": "1", "sensitivity": "1"}
    rhos = [price(read_plan(document | {"granularity": unit}), ADD, ()).rho for unit in ("1", "0.5", "0.1", "0.01")]
    assert None not in rhos
    figures = [float(rho) for rho in rhos if rho is not None]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] - figures[-1] > 0.05  # tanh(1/2) of the integers against 1/e of the line, 0.46 and 0.37


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"sensitivity": "0.5"}, "/sensitivity"),
        ({"granularity": "0"}, "/granularity"),
        ({"granularity": "-0.5"}, "/granularity"),
        ({"granularity": "0.5", "sensitivity": "0.75"}, "/sensitivity"),
        ({"granularity": "0.5", "sensitivity": "0"}, "/sensitivity"),
        ({"granularity": "0.3"}, "/sensitivity"),  # of which 1 is no multiple
        ({"granularity": "1e-300", "sensitivity": "1"}, "/sensitivity"),
    ],
)
def test_a_lattice_without_a_meaning(fields: dict[str, Any], pointer: str) -> None:
    document = {"type": "geometric", "scale": "2"} | fields
    with pytest.raises(InvalidInput) as refused:
        read_plan(document)
    assert [fault.pointer for fault in refused.value.faults] == [pointer]
