"""Plans as objects: they have the fields of the contract, and mean the same to the service."""

import uuid
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from privacy_budget_ledger import ApproximateBudget, Client, PureBudget, RdpBudget, ZcdpBudget, plans
from privacy_budget_ledger.budgets import Budget
from privacy_budget_ledger.plans import Plan, choice, group, parallel, read_plan, repeat, sequence
from tests.api.calls import contract

_MASSES = tuple(
    plans.NoiseMass(value=value, mass=mass) for value, mass in ((-1, "1e-9"), (0, "0.999999998"), (1, "1e-9"))
)


def _losses(up: Any) -> plans.LossDistribution:
    """A loss of 1 with a probability, else of -1."""
    values = (1 - Fraction(up), 0, up)
    return plans.LossDistribution(
        pessimistic_pmf=plans.LossProbabilities(min_key=-1, values=values, discretization_interval=1)
    )


_UNLIKE = plans.LossDistributions(remove=_losses("0.75"), add=_losses("0.8"))
_ALL: list[Plan] = [
    plans.Geometric(epsilon="0.4", name="county", tags=("county",), partitions=("01", "02"), cells=2),
    plans.Geometric(scale=Fraction(5, 2), sensitivity=3, granularity="1.5"),
    plans.Geometric(scale=1, threshold=plans.Threshold(at_least=300)),
    plans.DiscreteOsgt(sigma_squared=1, m=1, granularity="0.5", threshold=plans.Threshold(at_least="99.5")),
    plans.DiscreteGaussian(sigma_squared=Decimal("1.21"), partitions=52, reads="nothing capped"),
    plans.DiscreteGaussian(rho="1/7", sensitivity=2, cells_replaced=2),
    plans.DiscreteOsgt(sigma_squared=4, m="0.5"),
    plans.NoiseTable(masses=_MASSES),
    plans.NoiseTable(rows=(plans.NoiseRow(masses=_MASSES), plans.NoiseRow(masses=_MASSES)), sensitivity=1),
    plans.Laplace(scale="2.5", sensitivity="0.5"),
    plans.Gaussian(rho="0.125"),
    plans.Osgt(sigma_squared=9, m=1),
    plans.Exponential(epsilon="0.3", name="best", sensitivity="0.5", scores="monotone"),
    plans.Declared(epsilon="0.1", delta="1e-9", reference="a proof"),
    plans.Declared(mu="0.5", reference="a proof"),
    plans.Declared(reference="a proof", pld=_UNLIKE),
    plans.Declared(reference="a proof", pld=plans.LossDistributions(symmetric=_losses(Fraction(7, 9)))),
    plans.Declared(
        reference="a proof", rdp=(plans.RdpPoint(alpha=2, epsilon="0.1"), plans.RdpPoint(alpha="2.5", epsilon="0.2"))
    ),
]
_ONE = plans.Geometric(epsilon="0.1")


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = contract()["components"]["schemas"]
    return schemas


@pytest.mark.parametrize(
    "kind",
    [
        *plans.MECHANISMS,
        *plans.NODES,
        plans.Declaration,
        plans.RdpPoint,
        plans.MovedCells,
        plans.Threshold,
        plans.NoiseMass,
        plans.NoiseRow,
        plans.LossDistributions,
        plans.LossDistribution,
        plans.LossProbabilities,
    ],
    ids=lambda kind: kind.__name__,
)
def test_a_class_has_the_fields_of_the_contract(kind: type) -> None:
    schema = _schemas()[kind.__name__]
    stated = set(schema["properties"]) - {"type"}
    assert {field.name for field in fields(kind)} == stated
    if "type" in schema["properties"]:
        assert schema["properties"]["type"]["const"] == kind.TYPE  # type: ignore[attr-defined]


def test_there_is_a_class_for_each_mechanism_and_node() -> None:
    mapping = _schemas()["Plan"]["discriminator"]["mapping"]
    assert {kind.TYPE for kind in (*plans.MECHANISMS, *plans.NODES)} == set(mapping)


@pytest.mark.parametrize("budget", [PureBudget, ZcdpBudget, RdpBudget, ApproximateBudget])
def test_a_budget_has_the_fields_of_the_contract(budget: type[Budget]) -> None:
    schema = _schemas()[budget.__name__]
    assert {field.name for field in fields(budget)} == set(schema["properties"]) - {"definition"}  # type: ignore[arg-type]
    made = budget(**dict.fromkeys(schema["required"][1:], "0.5"))
    assert made.document() == {"definition": budget.DEFINITION} | dict.fromkeys(schema["required"][1:], "0.5")


@pytest.mark.parametrize("plan", _ALL, ids=lambda plan: plan.TYPE)
def test_the_service_prices_a_plan_and_the_plan_is_read_back(plan: Plan, ledger: Client) -> None:
    assert read_plan(plan.document()) == plan
    priced = ledger.request("POST", "/v1/compositions", json={"plan": plan.document(), "neighbouring": "add_remove"})
    if getattr(plan, "threshold", None) is not None:
        assert priced["delta"] > 0
    else:
        lost = "1e-9" if isinstance(plan, plans.NoiseTable) else getattr(plan, "delta", None) or 0
        assert priced["delta"] == pytest.approx(float(Fraction(lost)))


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_a_registered_plan_is_read_back_as_it_was_stated(neighbouring: Any, ledger: Client) -> None:
    budget, name = ApproximateBudget(epsilon=1000, delta="1e-5", declared_delta="1e-6"), f"all-{uuid.uuid4()}"
    parts = list(_ALL)
    if neighbouring == "replace_one":
        parts = [one for one in _ALL if getattr(one, "cells_replaced", None) is None]
        parts = [one for one in parts if getattr(one, "pld", None) is not _UNLIKE]
        parts.append(plans.RandomizedResponse(epsilon="1/3", values=4))
        one_side = plans.Declaration(epsilon="0.1", delta="1e-9", rdp=(plans.RdpPoint(alpha=2, epsilon="0.1"),))
        parts.append(plans.Declared(reference="a proof", epsilon="0.2", delta="1e-9", add_remove=one_side))
    plan = sequence(parallel(_ONE, repeat(3, _ONE), max_degree=2), choice(_ONE, group(4, _ONE)), *parts, tags=["all"])
    account = ledger.open_account(name, unit="person", neighbouring=neighbouring, budget=budget)
    release = ledger.register(account.name, name="all", plan=plan)
    assert release.plan == ledger.release(account.name, release.id).plan == plan


def test_a_nested_plan_has_the_documents_form() -> None:
    plan = sequence(
        parallel(_ONE, repeat(3, _ONE), max_degree=2, tags=["state"]), choice(_ONE, group(4, _ONE)), partitions=("a",)
    )
    one = {"type": "geometric", "epsilon": "0.1"}
    assert plan.document() == {
        "type": "sequence",
        "partitions": ["a"],
        "parts": [
            {
                "type": "parallel",
                "tags": ["state"],
                "max_degree": 2,
                "parts": [one, {"type": "repeat", "count": 3, "part": one}],
            },
            {"type": "choice", "parts": [one, {"type": "group", "size": 4, "part": one}]},
        ],
    }
    assert read_plan(plan.document()) == plan


def test_declared_losses_have_a_form_for_one_side() -> None:
    one_side = plans.Declaration(epsilon="0.1", delta="1e-9")
    plan = plans.Declared(reference="a proof", epsilon="0.2", delta="1e-9", add_remove=one_side)
    assert plan.document()["add_remove"] == {"epsilon": "0.1", "delta": "0.000000001"}
    assert read_plan(plan.document()) == plan


def test_moves_are_lists_of_moved_cells() -> None:
    moves = [[plans.MovedCells(by="2"), plans.MovedCells(by=1, cells=3)], [plans.MovedCells(by="0.5")]]
    plan = plans.Gaussian(rho="0.1", moves=moves)  # type: ignore[arg-type]
    assert plan.document()["moves"] == [[{"by": 2}, {"by": 1, "cells": 3}], [{"by": "0.5"}]]
    assert read_plan(plan.document()) == plan
    assert hash(read_plan(plan.document())) == hash(plan)


def test_plans_are_equal_where_their_numbers_are() -> None:
    assert plans.Geometric(epsilon="0.50") == plans.Geometric(epsilon=Fraction(1, 2))
    assert hash(plans.Geometric(epsilon="1e-1")) == hash(plans.Geometric(epsilon=Decimal("0.1")))


@pytest.mark.parametrize("stated", [{}, {"scale": 1, "epsilon": 1}])
@pytest.mark.parametrize("kind", [plans.Geometric, plans.Laplace])
def test_noise_has_exactly_one_scale(kind: Any, stated: dict[str, int]) -> None:
    got = "scale and epsilon" if stated else "none"
    with pytest.raises(ValueError, match=f"{kind.__name__}: expected exactly one of scale and epsilon, got {got}"):
        kind(**stated)
    with pytest.raises(ValueError, match="exactly one of sigma_squared and rho"):
        plans.DiscreteGaussian(name="n")


def test_a_float_in_a_plan_is_refused() -> None:
    with pytest.raises(TypeError, match="got a float"):
        plans.Geometric(epsilon=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("document", [{"type": "unheard"}, {"epsilon": "1"}, {"type": "geometric", "sigma": "1"}])
def test_a_document_of_an_unknown_kind_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a plan of a known type with its fields"):
        read_plan(document)
