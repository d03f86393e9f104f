"""Plans and mechanisms as requests state them: their size, and what they mean."""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from service.api.schemas.exact_numbers import Strict
from service.api.schemas.plan_models import Plan
from service.errors import InvalidInput
from service.privacy.laws.noise_law import NoiseLaw
from service.privacy.mechanisms import DRAWN, Mechanism as MechanismValue
from service.privacy.partitions import MOST_NAMES
from service.privacy.plans import Plan as PlanValue
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import condense, leaves, mechanisms_of


class Limits(NamedTuple):
    """The largest plan that is read."""

    nodes: int
    depth: int
    osgt: int


_USUAL = Limits(100_000, 32, 100)
plan_limits: ContextVar[Limits] = ContextVar("plan_limits", default=_USUAL)


DeclaredPartitions = Annotated[
    int | None,
    Field(
        description="The number of partitions that the plan declares for the mechanism. Null: none are declared, and"
        " the ledger cannot tell whether those drawn are disjoint."
    ),
]


def _small_enough(document: Any) -> Any:
    """Refuse a plan that is too large before anything recurses into it."""
    limits, level, nodes, depth, names = plan_limits.get(), [document], 0, 0, 0
    while level:
        nodes, depth, names = nodes + len(level), depth + 1, names + sum(map(_names, level))
        if nodes > limits.nodes or depth > limits.depth:
            raise ValueError(f"expected a plan of at most {limits.nodes} nodes and depth {limits.depth}")
        if names > MOST_NAMES:
            raise ValueError(f"expected at most {MOST_NAMES} partitions in all lists of a plan")
        level = [part for node in level for part in _children(node)]
    return document


def _names(node: Any) -> int:
    stated = node.get("partitions") if isinstance(node, dict) else None
    return len(stated) if isinstance(stated, list) else 0


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        parts = node.get("parts")
        yield from parts if isinstance(parts, list) else ()
        if "part" in node:
            yield node["part"]


BoundedPlan = Annotated[Plan, BeforeValidator(_small_enough)]
"""A plan within the configured size."""


def document_of(model: Strict) -> dict[str, Any]:
    """Return a plan or mechanism as it was stated, exact numbers as strings."""
    return model.model_dump(exclude_unset=True, exclude_none=True)


def plan_of(model: Any, pointer: str) -> PlanValue:
    """Return the value of a plan or mechanism model; faults are below ``pointer``.

    Raises:
        InvalidInput: it has no meaning, or takes too long to price.
    """
    return plan_of_document(document_of(model), pointer)


def plan_of_document(document: dict[str, Any], pointer: str) -> PlanValue:
    """Return the value of a document that ``document_of`` has made.

    Raises:
        InvalidInput: it has no meaning, or takes too long to price.
    """
    plan = read_plan(document, pointer)
    if not all(one.work().vectorized for one in mechanisms_of(plan)):
        _limit_slow_mechanisms(plan, pointer)
    return plan


def _limit_slow_mechanisms(plan: PlanValue, pointer: str) -> None:
    """Refuse too many distinct mechanisms whose RDP is computed in balls.

    Each takes tens of milliseconds, or half a second on an (epsilon, delta) account.

    Raises:
        InvalidInput: there are too many.
    """
    most = plan_limits.get().osgt
    some = (one for one in leaves(condense(plan)) if not one.work().vectorized)
    if len({replace(one, cells=None, cells_added=None) for one in some}) > most:
        detail = f"expected at most {most} osgt and discrete_osgt mechanisms of unlike noise or sensitivity"
        raise InvalidInput.at(pointer, detail)


def mechanism_of(model: Any, pointer: str) -> MechanismValue:
    """Return the value of a mechanism model; faults are below ``pointer``.

    Raises:
        InvalidInput: it has no meaning.
    """
    return next(mechanisms_of(plan_of(model, pointer)))


def declared_partitions(mechanism: MechanismValue) -> int | None:
    """Return the number of partitions a mechanism may be drawn for; None where none are declared."""
    return None if mechanism.partitions is None else mechanism.partitions.most


def law_of(mechanism: MechanismValue, pointer: str) -> NoiseLaw:
    """Return the law of a mechanism's noise.

    Raises:
        InvalidInput: it is continuous or declared, which this service accounts for and never draws.
    """
    law = mechanism.noise_law()
    if law is None or not mechanism.DRAWN:
        raise InvalidInput.at(
            pointer,
            f"expected a mechanism with integer noise: {DRAWN}; others are only accounted",
        )
    return law
