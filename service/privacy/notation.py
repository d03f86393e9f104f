"""Plans as JSON documents: reading, checking, and the normal form that identifies a price.

A document is a plan as requests state it, with every exact number as a string. Reading checks what a
plan means (positive parameters, alternatives, names); ``check_relation`` checks what depends on the
neighbouring relation.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from service.errors import Fault, InvalidInput
from service.privacy.document import Document
from service.privacy.mechanisms import MECHANISMS, Mechanism
from service.privacy.partitions import Partitions, read_partitions
from service.privacy.plan import (
    Choice,
    Group,
    Neighbouring,
    Parallel,
    Plan,
    Repeat,
    Sequence,
    mechanisms_of,
    parts_of,
    pointer_to,
)

MAX_REPETITIONS = 10**12  # product of nested repeats
MAX_GROUP = 10**9  # product of nested groups


def read_plan(document: Document, pointer: str = "") -> Plan:
    """The plan that a document states; mechanisms without a name are named by their path.

    Raises:
        InvalidInput: with the JSON pointer (below ``pointer``) of each thing that has no meaning.
    """
    plan = _read(document, pointer, "", _Above())
    mechanisms = [(where, node) for where, node in walk(plan, pointer) if isinstance(node, Mechanism)]
    names = Counter(mechanism.name for _, mechanism in mechanisms)
    faults = [
        Fault(f"{where}/name", "expected a name that no other mechanism of the plan has")
        for where, mechanism in mechanisms
        if names[mechanism.name] > 1
    ]
    if faults:
        raise InvalidInput(faults)
    return plan


def walk(plan: Plan, pointer: str = "") -> Iterator[tuple[str, Plan]]:
    """Every node with its JSON pointer in the plan's document, parents first."""
    yield pointer, plan
    for number, part in enumerate(parts_of(plan)):
        yield from walk(part, pointer + pointer_to(plan, number))


@dataclass(frozen=True, slots=True)
class _Above:
    """The context of a node: products of ``repeat`` counts and ``group`` sizes above it, and declared partitions."""

    repetitions: int = 1
    records: int = 1
    partitions: Partitions | None = None


def _read(document: Document, base: str, path: str, above: _Above) -> Plan:
    stated = document.get("partitions")
    if stated is None:
        return _read_node(document, base, path, above)
    at = f"{base}{path}/partitions"
    plan = _read_node(document, base, path, replace(above, partitions=read_partitions(stated, at)))
    if not any(mechanism.DRAWN for mechanism in mechanisms_of(plan)):
        raise InvalidInput.at(at, "expected none: no geometric, discrete_gaussian or discrete_osgt noise is drawn here")
    return plan


def _read_node(document: Document, base: str, path: str, above: _Above) -> Plan:
    tags = tuple(sorted(set(document.get("tags") or ())))
    match document["type"]:
        case "repeat":
            count = document["count"]
            below = replace(above, repetitions=above.repetitions * count)
            if below.repetitions > MAX_REPETITIONS:
                raise InvalidInput.at(f"{base}{path}/count", "expected a product of nested repeats of at most 10^12")
            return Repeat(part=_read(document["part"], base, f"{path}/part", below), count=count, tags=tags)
        case "group":
            size = document["size"]
            below = replace(above, records=above.records * size)
            if below.records > MAX_GROUP:
                raise InvalidInput.at(f"{base}{path}/size", "expected a product of nested groups of at most 10^9")
            return Group(part=_read(document["part"], base, f"{path}/part", below), size=size, tags=tags)
        case "sequence" | "parallel" | "choice" as kind:
            parts = tuple(
                _read(part, base, f"{path}/parts/{number}", above) for number, part in enumerate(document["parts"])
            )
            if kind == "parallel":
                return Parallel(parts=parts, max_degree=document["max_degree"], tags=tags)
            return (Sequence if kind == "sequence" else Choice)(parts=parts, tags=tags)
        case _:
            kind = MECHANISMS.get(document["type"])
            if kind is None:
                raise InvalidInput.at(f"{base}{path}/type", "expected the type of a mechanism or of a node")
            mechanism = kind.read(document, base + path)
            partitions = above.partitions if mechanism.DRAWN else None
            return replace(mechanism, name=document.get("name") or path or "/", tags=tags, partitions=partitions)


def check_relation(plan: Plan, neighbouring: Neighbouring, pointer: str = "") -> None:
    """Refuse what has no meaning under the neighbouring relation.

    Raises:
        InvalidInput: with one fault for each such mechanism.
    """
    faults: list[Fault] = []
    _check(plan, neighbouring, pointer, False, faults)
    if faults:
        raise InvalidInput(faults)


def _check(plan: Plan, neighbouring: Neighbouring, at: str, divided: bool, faults: list[Fault]) -> None:
    """``divided``: below a ``parallel`` or ``choice``, where a changed record can leave one part and enter another."""
    if isinstance(plan, Mechanism):
        replaced = neighbouring is Neighbouring.REPLACE_ONE
        faults += [Fault(f"{at}/{field}", detail) for field, detail in plan.faults(replaced=replaced, divided=divided)]
    divided = divided or isinstance(plan, Parallel | Choice)
    for number, part in enumerate(parts_of(plan)):
        _check(part, neighbouring, at + pointer_to(plan, number), divided, faults)


def write_plan(plan: Plan) -> dict[str, Any]:
    """The document of a plan in normal form, with noise parameters as themselves; ``read_plan`` reads it back.

    Without the partitions that it declares: no loss depends on them, and they may be a hundred thousand.
    """
    if isinstance(plan, Mechanism):
        document: dict[str, Any] = {"type": plan.TYPE}
        if plan.name is not None:
            document["name"] = plan.name
        document |= plan.parameters()
        document |= {f: getattr(plan, f) for f in ("cells", "cells_added") if getattr(plan, f) is not None}
    elif isinstance(plan, Repeat):
        document = {"type": "repeat", "count": plan.count, "part": write_plan(plan.part)}
    elif isinstance(plan, Group):
        document = {"type": "group", "size": plan.size, "part": write_plan(plan.part)}
    else:
        document = {"type": _TYPES[type(plan)]}
        if isinstance(plan, Parallel):
            document["max_degree"] = plan.max_degree
        document["parts"] = [write_plan(part) for part in plan.parts]
    if plan.tags:
        document["tags"] = list(plan.tags)
    return document


_TYPES: dict[type, str] = {Sequence: "sequence", Parallel: "parallel", Choice: "choice"}
