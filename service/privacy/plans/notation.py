"""Plans as JSON documents: reading, checking, and the normal form that identifies a price.

A document is a plan as requests state it, with every exact number as a string. Reading checks the plan itself (positive
parameters, alternatives, names). ``check_relation`` checks what depends on the neighbouring relation.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from service.errors import Fault, InvalidInput
from service.privacy.fields import CELLS
from service.privacy.grammar import Document, Part, Parts, WholeNumber
from service.privacy.mechanisms import DRAWN, MECHANISMS, Mechanism
from service.privacy.partitions import Partitions, read_partitions
from service.privacy.plans import NODES, Node, Plan
from service.privacy.plans.walking import Neighbouring, children_with_pointers, mechanisms_of


def read_plan(document: Document, pointer: str = "") -> Plan:
    """Return the plan that a document states; mechanisms without a name are named by their path.

    Raises:
        InvalidInput: something is not valid; each fault has its JSON pointer, below ``pointer``.
    """
    plan = _read(document, pointer, "", _Context())
    if isinstance(plan, Mechanism):
        return plan
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
    """Yield every node with its JSON pointer in the plan's document, parents first.

    Args:
        pointer: the JSON pointer of ``plan`` itself.
    """
    yield pointer, plan
    for step, part in children_with_pointers(plan):
        yield from walk(part, pointer + step)


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of a node: products of fields of the nodes above it, by their names, and declared partitions."""

    products: Mapping[str, int] = field(default_factory=dict)
    partitions: Partitions | None = None


def _read(document: Document, base: str, path: str, above: _Context) -> Plan:
    declared = document.get("partitions")
    if declared is None:
        return _read_undeclared(document, base, path, above)
    at = f"{base}{path}/partitions"
    plan = _read_undeclared(document, base, path, replace(above, partitions=read_partitions(declared, at)))
    if not any(mechanism.DRAWN for mechanism in mechanisms_of(plan)):
        raise InvalidInput.at(at, f"expected none: no {DRAWN} noise is drawn here")
    return plan


def _read_undeclared(document: Document, base: str, path: str, above: _Context) -> Plan:
    mechanism = MECHANISMS.get(document["type"])
    if mechanism is not None:
        partitions = above.partitions if mechanism.DRAWN else None
        name = document.get("name") or path or "/"
        shared = {"tags": _tags(document), "reads": document.get("reads"), "partitions": partitions}
        return mechanism.read(document, base + path, name=name, **shared)
    node = NODES.get(document["type"])
    if node is None:
        raise InvalidInput.at(f"{base}{path}/type", "expected the type of a mechanism or of a node")
    return _read_node(node, document, base, path, above)


def _read_node(node: type[Node], document: Document, base: str, path: str, above: _Context) -> Plan:
    values: dict[str, Any] = {"tags": _tags(document), "reads": document.get("reads")}
    for declared_field in node.FIELDS:
        name, value = declared_field.name, document[declared_field.name]
        match declared_field:
            case Part():
                values[name] = _read(value, base, f"{path}/{name}", above)
            case Parts():
                values[name] = tuple(
                    [_read(part, base, f"{path}/{name}/{number}", above) for number, part in enumerate(value)]
                )
            case WholeNumber(nested=str(expected)):
                product = above.products.get(name, 1) * value
                if product > declared_field.most:
                    raise InvalidInput.at(f"{base}{path}/{name}", expected)
                above = replace(above, products={**above.products, name: product})
                values[name] = value
            case _:
                values[name] = value
    return node(**values)


def _tags(document: Document) -> tuple[str, ...]:
    tags = document.get("tags")
    return tuple(sorted(set(tags))) if tags else ()


def check_relation(plan: Plan, neighbouring: Neighbouring, pointer: str = "") -> None:
    """Refuse mechanisms and fields that are not allowed under the neighbouring relation.

    Args:
        pointer: the JSON pointer of ``plan`` itself, for faults.

    Raises:
        InvalidInput: with one fault for each such mechanism.
    """
    faults: list[Fault] = []
    _check(plan, neighbouring, pointer, False, faults)
    if faults:
        raise InvalidInput(faults)


def _check(plan: Plan, neighbouring: Neighbouring, at: str, divided: bool, faults: list[Fault]) -> None:
    """Add a plan's faults; ``divided``: below a ``parallel`` or ``choice``, between whose parts a record can move."""
    if isinstance(plan, Mechanism):
        replaced = neighbouring is Neighbouring.REPLACE_ONE
        faults += [Fault(f"{at}/{field}", detail) for field, detail in plan.faults(replaced=replaced, divided=divided)]
        return
    for step, part in children_with_pointers(plan):
        _check(part, neighbouring, at + step, divided or plan.DIVIDES, faults)


def write_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan's document in normal form, with noise parameters and not losses; ``read_plan`` reads it back.

    It leaves out declared partitions: no loss depends on them, and there may be a hundred thousand.
    """
    document: dict[str, Any] = {"type": plan.TYPE}
    if isinstance(plan, Mechanism):
        if plan.name is not None:
            document["name"] = plan.name
        document |= plan.parameters()
        document |= {cells.name: getattr(plan, cells.name) for cells in CELLS if getattr(plan, cells.name) is not None}
    else:
        for stated in plan.FIELDS:
            value = getattr(plan, stated.name)
            match stated:
                case Part():
                    value = write_plan(value)
                case Parts():
                    value = [write_plan(part) for part in value]
            document[stated.name] = value
    if plan.tags:
        document["tags"] = list(plan.tags)
    if plan.reads is not None:
        document["reads"] = plan.reads
    return document
