"""Walks through plans, which are trees of nodes over mechanisms, and their condensed forms."""

from collections.abc import Iterable, Iterator, Sequence as Listed
from enum import StrEnum

from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Choice, Group, Node, Parallel, Plan, Repeat, Sequence
from service.privacy.plans.base import condense_part
from service.privacy.plans.condensed import Condensed

__all__ = [
    "Choice",
    "Condensed",
    "Group",
    "Neighbouring",
    "Node",
    "Parallel",
    "Plan",
    "Priced",
    "Repeat",
    "Sequence",
    "children_with_pointers",
    "condense",
    "leaves",
    "mechanisms_of",
    "parts_of",
    "restrict",
    "runs_of",
    "with_parts",
]


class Neighbouring(StrEnum):
    """The pairs of inputs that must be hard to tell apart."""

    ADD_REMOVE = "add_remove"  # one record more or less
    REPLACE_ONE = "replace_one"  # one record changed


def parts_of(plan: Plan) -> Listed[Plan]:
    """Return the children of a node, in order; none for a mechanism."""
    return () if isinstance(plan, Mechanism) else plan.children


def children_with_pointers(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the children of a node, each with its JSON pointer in the node's document."""
    if not isinstance(plan, Mechanism):
        for number, part in enumerate(plan.children):
            yield plan.pointer_to(number), part


def mechanisms_of(plan: Plan) -> Iterator[Mechanism]:
    """Yield the mechanisms of a plan from left to right."""
    if isinstance(plan, Mechanism):
        yield plan
    for part in parts_of(plan):
        yield from mechanisms_of(part)


def runs_of(plan: Plan, times: int = 1) -> Iterator[tuple[Mechanism, int]]:
    """Yield the mechanisms of a plan from left to right, with the number of times that each runs.

    Args:
        times: the number of times that ``plan`` itself runs.
    """
    if isinstance(plan, Mechanism):
        yield plan, times
    else:
        for part in plan.children:
            yield from runs_of(part, times * plan.times)


def with_parts(plan: Plan, parts: Iterable[Plan]) -> Plan:
    """Return the node with other children; a mechanism as it is."""
    return plan if isinstance(plan, Mechanism) else plan.with_children(parts)


def restrict(plan: Plan, tag: str) -> Plan | None:
    """Return the part of a plan that carries ``tag`` (a node's tags hold for all below it); None if nothing does.

    The cost of this part is the loss about the subject of the tag. The Census Bureau reports such losses by attribute
    and by geography.
    """
    if tag in plan.tags:
        return plan
    kept = [part for part in (restrict(part, tag) for part in parts_of(plan)) if part is not None]
    return with_parts(plan, kept) if kept else None


Priced = Plan | Condensed
"""Plans that can be priced; a caller that folds a plan more than once condenses it first."""


def condense(plan: Priced) -> Condensed:
    """Return the condensed form of a plan."""
    return plan if isinstance(plan, Condensed) else condense_part(plan, 1)


def leaves(plan: Condensed) -> Iterator[Mechanism]:
    """Yield the mechanisms of a condensed plan, those of equal parts once."""
    for part, _ in plan.parts or ((plan, 1),):
        if part.mechanism is not None:
            yield part.mechanism
        elif part.parts:
            yield from leaves(part)
