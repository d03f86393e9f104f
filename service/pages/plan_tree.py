"""A plan as a tree for display: each node with its own cost."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from service.pages.shell.api_client import Refused, Visit, address, send

MOST_NODES = 400
MOST_PRICED = 80
_MOST_ASKED = 10_000  # nodes of all priced parts together: a part is priced with all that is below it

_LONG_FRACTION = re.compile(r"-?(?=.{10})[0-9]{1,300}/[0-9]{1,300}")
_COMPOSITE = ("type", "name", "tags", "partitions", "parts", "part", "count", "max_degree", "size")
_NAMED = 12  # partitions of a list
_HEADINGS = {
    "sequence": "Sequence: losses add up",
    "parallel": "Parallel: each record is in at most {max_degree} of the parts",
    "choice": "Choice: one of the parts, whichever loses most",
    "repeat": "Repeated {count} times",
    "group": "Groups of {size} records",
}


@dataclass
class Node:
    """A node of a plan.

    Attributes:
        partitions: the partitions that it declares for itself or for nodes below.
        unseen: the number of its direct parts that are not shown.
        cost: None where it was not computed.
    """

    title: str
    name: str
    parameters: list[tuple[str, str]]
    tags: list[str]
    stated: dict[str, Any]
    partitions: str
    parts: list["Node"] = field(default_factory=list)
    unseen: int = 0
    cost: dict[str, Any] | None = None


def tree_of(plan: dict[str, Any]) -> Node:
    """Return the first nodes of a plan, in its order; a plan may have a hundred thousand."""
    remaining = MOST_NODES - 1

    def grown(document: dict[str, Any]) -> Node:
        nonlocal remaining
        node = _node(document)
        below = document.get("parts") or ([document["part"]] if "part" in document else [])
        for number, part in enumerate(below):
            if remaining <= 0:
                node.unseen = len(below) - number
                break
            remaining -= 1
            node.parts.append(grown(part))
        return node

    return grown(plan)


async def price_nodes(visit: Visit, root: Node, neighbouring: str) -> bool:
    """Compute each node's own cost, by requests to ``/v1``; equal nodes are priced once.

    Args:
        visit: the request of the signed-in user.
        root: the tree, whose nodes get their costs.
        neighbouring: the relation of the account.

    Returns:
        False where the plan is too large to price every node.
    """
    unlike: dict[str, list[Node]] = {}
    sizes: dict[int, int] = {}
    _measure(root.stated, sizes)
    remaining, whole = _MOST_ASKED, True
    for node in _walk(root):
        size = sizes[id(node.stated)]
        if size > remaining:
            whole = False
            continue
        remaining -= size
        unlike.setdefault(json.dumps(_cost_document(node.stated), sort_keys=True), []).append(node)
    for text, nodes in list(unlike.items())[:MOST_PRICED]:
        body = {"plan": json.loads(text), "neighbouring": neighbouring}
        try:
            cost = await send(visit, "POST", address("compositions"), body)
        except Refused as refused:
            if refused.status != 422:  # a part may be invalid outside its place
                raise
            continue
        for node in nodes:
            node.cost = cost
    return whole and len(unlike) <= MOST_PRICED


def _node(document: dict[str, Any]) -> Node:
    kind = document["type"]
    if kind in _HEADINGS:
        return Node(
            _HEADINGS[kind].format_map(document), "", [], document.get("tags") or [], document, _declared(document)
        )
    parameters = [
        (name, _parameter_text(value))
        for name, value in document.items()
        if name not in _COMPOSITE and value is not None
    ]
    return Node(kind, document.get("name") or "", parameters, document.get("tags") or [], document, _declared(document))


def _declared(document: dict[str, Any]) -> str:
    """Return the partitions that a node declares, in words; empty where it declares none."""
    partitions = document.get("partitions")
    if partitions is None:
        return ""
    if isinstance(partitions, int):
        return f"at most {partitions:,} partitions"
    more = len(partitions) - _NAMED
    names = ", ".join(partitions[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"partitions {names}"


def _measure(document: dict[str, Any], sizes: dict[int, int]) -> int:
    """Return the number of nodes in a plan, and store that of every part by its identity."""
    below = document.get("parts") or ([document["part"]] if "part" in document else [])
    sizes[id(document)] = size = 1 + sum(_measure(part, sizes) for part in below)
    return size


def _parameter_text(value: Any) -> str:
    """Return a parameter as text; long fractions are approximated."""
    if isinstance(value, str) and _LONG_FRACTION.fullmatch(value):
        return f"≈ {float(Fraction(value)):.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cost_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return a plan without names, tags and partitions, on which no loss depends."""
    bare = {name: value for name, value in document.items() if name not in ("name", "tags", "partitions")}
    if "parts" in bare:
        bare["parts"] = [_cost_document(part) for part in bare["parts"]]
    if "part" in bare:
        bare["part"] = _cost_document(bare["part"])
    return bare


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _walk(part)
