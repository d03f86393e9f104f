"""Plans as documents: what is read, what comes back, and what is refused where."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from service.errors import InvalidInput
from service.privacy.mechanisms import (
    Declaration,
    Declared,
    DiscreteGaussian,
    DiscreteOsgt,
    Gaussian,
    Geometric,
    Laplace,
    Osgt,
    RandomizedResponse,
)
from service.privacy.numerics.numbers import exact_text, parse_exact
from service.privacy.plans import Choice, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.group import MAX_GROUP
from service.privacy.plans.notation import check_relation, read_plan, walk, write_plan
from service.privacy.plans.repeat import MAX_REPETITIONS
from service.privacy.plans.walking import Neighbouring, mechanisms_of
from tests.privacy.strategies import named, plans, responses

ADD, REPLACE = Neighbouring.ADD_REMOVE, Neighbouring.REPLACE_ONE
NOISE = {"type": "geometric", "scale": "2.5"}


def pointers(document: Mapping[str, Any], below: str = "") -> list[str]:
    """Return the pointers at which reading finds fault."""
    with pytest.raises(InvalidInput) as refusal:
        read_plan(document, below)
    assert all(fault.detail.startswith("expected") for fault in refusal.value.faults)
    return [fault.pointer for fault in refusal.value.faults]


@given(st.one_of(plans(ADD), plans(REPLACE), responses()))
def test_a_plan_reads_back_from_its_document(plan: Plan) -> None:
    plan = named(plan)
    document = write_plan(plan)
    assert read_plan(document) == plan
    assert write_plan(read_plan(document)) == document


numbers = st.builds(
    lambda digits, exponent: f"{digits}e{exponent}", st.integers(1, 2**1000), st.integers(-390, 90)
) | st.builds(lambda top, bottom: f"{top}/{bottom}", st.integers(1, 2**1024 - 1), st.integers(1, 2**1024 - 1))


@given(
    st.sampled_from(
        [
            ("geometric", "scale"),
            ("geometric", "epsilon"),
            ("discrete_gaussian", "rho"),
            ("laplace", "epsilon"),
            ("gaussian", "sigma_squared"),
            ("gaussian", "rho"),
        ]
    ),
    numbers,
    st.integers(1, 2**53),
    numbers,
)
def test_any_number_that_can_be_stated_reads_back(kind: tuple[str, str], text: str, whole: int, real: str) -> None:
    """Also where the noise parameter that follows from a stated loss has more digits than a number may."""
    name, field = kind
    try:
        value, sensitivity = parse_exact(text), parse_exact(real)
    except ValueError:
        return
    shift = exact_text(sensitivity) if name in ("laplace", "gaussian") else whole
    plan = read_plan({"type": name, field: exact_text(value), "sensitivity": shift})
    assert read_plan(write_plan(plan)) == plan


def test_parameters_follow_from_losses_exactly() -> None:
    assert read_plan({"type": "geometric", "epsilon": "0.3", "sensitivity": 2}) == Geometric(
        name="/", scale=Fraction(20, 3), sensitivity=2
    )
    assert read_plan({"type": "discrete_gaussian", "rho": "1/3", "sensitivity": 2, "cells": 5}) == DiscreteGaussian(
        name="/", sigma_squared=Fraction(6), sensitivity=2, cells=5
    )
    assert read_plan({"type": "gaussian", "rho": "0.5", "sensitivity": "1.5"}) == Gaussian(
        name="/", sigma_squared=Fraction(9, 4), sensitivity=Fraction(3, 2)
    )
    assert read_plan({"type": "laplace", "epsilon": "4", "name": "a", "tags": ["z", "b", "z"]}) == Laplace(
        name="a", scale=Fraction(1, 4), tags=("b", "z")
    )
    assert read_plan({"type": "osgt", "sigma_squared": "40", "m": "0"}) == Osgt(
        name="/", sigma_squared=Fraction(40), m=Fraction(0)
    )
    assert read_plan({"type": "discrete_osgt", "sigma_squared": "40", "m": "1/3", "sensitivity": 2}) == DiscreteOsgt(
        name="/", sigma_squared=Fraction(40), m=Fraction(1, 3), sensitivity=2
    )
    assert read_plan({"type": "randomized_response", "epsilon": "1"}) == RandomizedResponse(
        name="/", epsilon=Fraction(1), values=2
    )


def test_declared_figures_are_read_in_ascending_orders() -> None:
    points = [{"alpha": "8", "epsilon": "1"}, {"alpha": "1.5", "epsilon": "0"}]
    document = {"type": "declared", "rdp": points, "delta": "1e-9", "reference": "a proof"}
    expected = Declaration(delta=Fraction(1, 10**9), rdp=((Fraction(3, 2), Fraction(0)), (Fraction(8), Fraction(1))))
    assert read_plan(document) == Declared(name="/", guarantee=expected, reference="a proof")


def test_mechanisms_without_a_name_are_named_by_their_path() -> None:
    inner = {"type": "repeat", "count": 3, "part": {"type": "choice", "parts": [NOISE, NOISE | {"name": "second"}]}}
    plan = read_plan({"type": "sequence", "parts": [NOISE, inner], "tags": ["all"]})
    assert [mechanism.name for mechanism in mechanisms_of(plan)] == ["/parts/0", "/parts/1/part/parts/0", "second"]
    assert plan.tags == ("all",)
    assert [where for where, _ in walk(plan)] == [
        "",
        "/parts/0",
        "/parts/1",
        "/parts/1/part",
        "/parts/1/part/parts/0",
        "/parts/1/part/parts/1",
    ]
    nodes = dict(walk(plan, "/plan"))
    assert isinstance(nodes["/plan/parts/1"], Repeat)
    assert isinstance(nodes["/plan/parts/1/part"], Choice)


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"type": "geometric"}, ""),
        ({"type": "geometric", "scale": "1", "epsilon": "1"}, ""),
        ({"type": "laplace", "scale": "1", "epsilon": "1"}, ""),
        ({"type": "gaussian", "sigma_squared": "1", "rho": "1"}, ""),
        ({"type": "discrete_gaussian"}, ""),
        ({"type": "osgt", "sigma_squared": "1", "m": "-1"}, "/m"),
        ({"type": "geometric", "scale": "1", "sensitivity": 0}, "/sensitivity"),
        ({"type": "osgt", "sigma_squared": "0", "m": "1"}, "/sigma_squared"),
        ({"type": "discrete_osgt", "sigma_squared": "1", "m": "1e401"}, "/m"),
        ({"type": "group", "size": MAX_GROUP + 1, "part": NOISE}, "/size"),
        (
            {
                "type": "group",
                "size": 2,
                "part": {
                    "type": "repeat",
                    "count": 1,
                    "part": {"type": "group", "size": MAX_GROUP // 2 + 1, "part": NOISE},
                },
            },
            "/part/part/size",
        ),
        ({"type": "geometric", "scale": "0"}, "/scale"),
        ({"type": "geometric", "scale": "-1"}, "/scale"),
        ({"type": "geometric", "epsilon": "0"}, "/epsilon"),
        ({"type": "geometric", "scale": "NaN"}, "/scale"),
        ({"type": "geometric", "epsilon": "Infinity"}, "/epsilon"),
        ({"type": "geometric", "scale": "1e401"}, "/scale"),
        ({"type": "geometric", "scale": "1/0"}, "/scale"),
        ({"type": "discrete_gaussian", "sigma_squared": "-0.5"}, "/sigma_squared"),
        ({"type": "discrete_gaussian", "rho": "0"}, "/rho"),
        ({"type": "laplace", "scale": "1", "sensitivity": "0"}, "/sensitivity"),
        ({"type": "gaussian", "rho": "1", "sensitivity": "-1"}, "/sensitivity"),
        ({"type": "gaussian", "rho": "-inf"}, "/rho"),
        ({"type": "randomized_response", "epsilon": "0"}, "/epsilon"),
        ({"type": "randomized_response", "epsilon": "nan"}, "/epsilon"),
        ({"type": "declared", "reference": "r"}, ""),
        ({"type": "declared", "reference": "r", "delta": "1e-6"}, ""),
        ({"type": "declared", "reference": "r", "epsilon": "-1"}, "/epsilon"),
        ({"type": "declared", "reference": "r", "epsilon": "inf"}, "/epsilon"),
        ({"type": "declared", "reference": "r", "rho": "-1e-300"}, "/rho"),
        ({"type": "declared", "reference": "r", "rho": "1", "delta": "1"}, "/delta"),
        ({"type": "declared", "reference": "r", "rho": "1", "delta": "-0.1"}, "/delta"),
        ({"type": "declared", "reference": "r", "rdp": [{"alpha": "1", "epsilon": "1"}]}, "/rdp/0/alpha"),
        ({"type": "declared", "reference": "r", "rdp": [{"alpha": "0.5", "epsilon": "1"}]}, "/rdp/0/alpha"),
        (
            {
                "type": "declared",
                "reference": "r",
                "rdp": [{"alpha": "2", "epsilon": "1"}, {"alpha": "3", "epsilon": "-1"}],
            },
            "/rdp/1/epsilon",
        ),
        (
            {
                "type": "declared",
                "reference": "r",
                "rdp": [{"alpha": "2", "epsilon": "1"}, {"alpha": "4/2", "epsilon": "1"}],
            },
            "/rdp",
        ),
        ({"type": "declared", "reference": "r", "epsilon": "1", "add_remove": {"rho": "1"}}, "/add_remove"),
        (
            {"type": "declared", "reference": "r", "epsilon": "1", "delta": "1e-9", "add_remove": {"epsilon": "1"}},
            "/add_remove",
        ),
        ({"type": "declared", "reference": "r", "rho": "1", "add_remove": {}}, "/add_remove"),
        ({"type": "declared", "reference": "r", "rho": "1", "add_remove": {"rho": "-2"}}, "/add_remove/rho"),
        ({"type": "unheard_of"}, "/type"),
    ],
)
def test_an_invalid_field_is_refused_at_its_pointer(document: dict[str, Any], pointer: str) -> None:
    assert pointers(document) == [pointer]
    nested = {"type": "sequence", "parts": [NOISE, {"type": "repeat", "count": 2, "part": document}]}
    assert pointers(nested, "/plan") == [f"/plan/parts/1/part{pointer}"]


def test_a_name_is_used_once() -> None:
    twice = {"type": "sequence", "parts": [NOISE | {"name": "a"}, NOISE | {"name": "b"}, NOISE | {"name": "a"}]}
    assert pointers(twice, "/plan") == ["/plan/parts/0/name", "/plan/parts/2/name"]
    assert pointers({"type": "sequence", "parts": [NOISE, NOISE | {"name": "/parts/0"}]}) == [
        "/parts/0/name",
        "/parts/1/name",
    ]


def test_nested_repetitions_multiply_up_to_a_limit() -> None:
    inner = {"type": "sequence", "parts": [{"type": "repeat", "count": 10**6, "part": NOISE}]}
    plan = read_plan({"type": "repeat", "count": 10**6, "part": inner})
    assert isinstance(plan, Repeat)
    assert MAX_REPETITIONS == 10**12
    assert pointers({"type": "repeat", "count": 10**6 + 1, "part": inner}) == ["/part/parts/0/count"]
    assert pointers({"type": "repeat", "count": 10**12 + 1, "part": NOISE}) == ["/count"]
    beside = {"type": "sequence", "parts": [{"type": "repeat", "count": 10**12, "part": NOISE}] * 2}
    assert isinstance(read_plan(beside), Sequence)


def faults(plan: Plan, relation: Neighbouring) -> list[str]:
    with pytest.raises(InvalidInput) as refusal:
        check_relation(plan, relation, "/plan")
    return [fault.pointer for fault in refusal.value.faults]


def test_all_fields_that_are_invalid_under_a_relation_are_refused_at_once() -> None:
    response = RandomizedResponse(epsilon=Fraction(1))
    counted = Geometric(scale=Fraction(1), cells_added=1)
    one_sided = Declared(guarantee=Declaration(rho=Fraction(1)), reference="r", add_remove=Declaration(rho=Fraction(1)))
    plan = Sequence(parts=(response, Repeat(part=counted, count=2), one_sided, Geometric(scale=Fraction(1), cells=4)))
    assert faults(plan, ADD) == ["/plan/parts/0/type", "/plan/parts/1/part/cells_added", "/plan/parts/2/add_remove"]
    check_relation(plan, REPLACE)
    plain = Declared(guarantee=Declaration(rho=Fraction(1)), reference="r")
    inside = Sequence(parts=(plain, one_sided, response))
    check_relation(inside, REPLACE)
    for node in (Choice(parts=(inside,)), Parallel(parts=(inside,), max_degree=1)):
        assert faults(node, REPLACE) == ["/plan/parts/0/parts/0/add_remove", "/plan/parts/0/parts/2/type"]
    check_relation(Choice(parts=(plain,)), ADD)


@settings(max_examples=40)
@given(plans(ADD), plans(REPLACE))
def test_plans_that_are_valid_under_a_relation_pass(added: Plan, replaced: Plan) -> None:
    check_relation(added, ADD)
    check_relation(replaced, REPLACE)
    assert read_plan(write_plan(named(replaced))) == named(replaced)
