"""Plans as trees for display, each node with its own cost."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread

from service.pages.shell.api_client import Refused, Visit, address, send
from service.privacy.mechanisms import mechanism_label
from service.rounding import near

MOST_NODES = 400
MOST_PRICED = 80
_MOST_PRICED_NODES = 10_000  # in all priced parts together: a part is priced with all nodes below it

_LONG_FRACTION = re.compile(r"-?(?=.{10})[0-9]{1,300}/[1-9][0-9]{0,299}")
_TEXTS = ("reference",)  # parameters that people write, so that none is taken for a number
_COMPOSITE = ("type", "name", "tags", "partitions", "parts", "part", "count", "max_degree", "size", "threshold")
_MOST_NAMED, _MOST_TAGS = 12, 8  # partitions and tags of a node that are listed by name
_LONGEST_VALUE = 300  # characters of a parameter, such as a reference
_HEADINGS = {
    "sequence": "Sequence: losses add up",
    "parallel": "Parallel: each record is in at most {max_degree} of the parts",
    "choice": "Choice: one of the parts; the largest loss counts",
    "repeat": "Repeated {count} times",
    "group": "Groups of {size} records",
}


@dataclass
class Node:
    """A node of a plan.

    Attributes:
        stated: the node as the plan states it.
        partitions: in words, the partitions that it declares for itself or for nodes below.
        unseen: the number of its direct parts that are not shown.
        cost: its own cost; None if it was not computed.
        accuracy: of a mechanism: its accuracy, as a statement has it; None if it was not computed.
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
    accuracy: dict[str, Any] | None = None


def tree_of(plan: dict[str, Any]) -> Node:
    """Return the tree of the first ``MOST_NODES`` nodes of a plan, depth first; a plan may have a hundred thousand."""
    remaining = MOST_NODES - 1

    def grow(document: dict[str, Any]) -> Node:
        nonlocal remaining
        node = _node(document)
        below = document.get("parts") or ([document["part"]] if "part" in document else [])
        for number, part in enumerate(below):
            if remaining <= 0:
                node.unseen = len(below) - number
                break
            remaining -= 1
            node.parts.append(grow(part))
        return node

    return grow(plan)


def state_accuracy(root: Node, mechanisms: Iterable[dict[str, Any]]) -> None:
    """Give the first mechanisms of a tree their accuracy.

    Args:
        mechanisms: the first ones of an accuracy statement, which has them in the order of the plan.
    """
    leaves = (node for node in _walk(root) if not node.parts and node.stated["type"] not in _HEADINGS)
    for node, accuracy in zip(leaves, mechanisms, strict=False):
        node.accuracy = accuracy


async def price_nodes(visit: Visit, root: Node, neighbouring: str) -> bool:
    """Compute each node's own cost by requests to ``/v1``; equal nodes are priced once.

    Args:
        visit: the request of the signed-in user.
        root: the tree; its nodes get their costs.
        neighbouring: the relation of the account.

    Returns:
        False if the plan is too large to price every node.
    """
    distinct, complete = await to_thread.run_sync(_distinct, root)
    for text, nodes in list(distinct.items())[:MOST_PRICED]:
        body = {"plan": json.loads(text), "neighbouring": neighbouring}
        try:
            cost = await send(visit, "POST", address("compositions"), body)
        except Refused as refused:
            if refused.status != 422:  # a part may be invalid outside its place
                raise
            continue
        for node in nodes:
            node.cost = cost
    return complete and len(distinct) <= MOST_PRICED


def _distinct(root: Node) -> tuple[dict[str, list[Node]], bool]:
    """Return the nodes that are to be priced, by the text of what they cost; False if some are left out."""
    distinct: dict[str, list[Node]] = {}
    sizes: dict[int, int] = {}
    _measure(root.stated, sizes)
    remaining, complete = _MOST_PRICED_NODES, True
    for node in _walk(root):
        size = sizes[id(node.stated)]
        if size > remaining:
            complete = False
            continue
        remaining -= size
        distinct.setdefault(json.dumps(_cost_document(node.stated), sort_keys=True), []).append(node)
    return distinct, complete


def _node(document: dict[str, Any]) -> Node:
    kind = document["type"]
    if kind in _HEADINGS:
        return Node(_HEADINGS[kind].format_map(document), "", [], _tags(document), document, _declared(document))
    threshold = document.get("threshold")
    stated = document if threshold is None else {**document, "suppressed below": threshold["at_least"]}
    parameters = [
        (name, _parameter_text(value, written=name in _TEXTS))
        for name, value in stated.items()
        if name not in _COMPOSITE and value is not None
    ]
    return Node(
        mechanism_label(kind), document.get("name") or "", parameters, _tags(document), document, _declared(document)
    )


def _declared(document: dict[str, Any]) -> str:
    """Return the partitions that a node declares, in words; empty if it declares none."""
    partitions = document.get("partitions")
    if partitions is None:
        return ""
    if isinstance(partitions, int):
        return f"at most {partitions:,} partitions"
    more = len(partitions) - _MOST_NAMED
    names = ", ".join(map(_short, partitions[:_MOST_NAMED])) + (f" and {more:,} more" if more > 0 else "")
    return f"partitions {names}"


def _measure(document: dict[str, Any], sizes: dict[int, int]) -> int:
    """Return the size of a plan: its nodes, and a tenth of the points of curves and losses and the masses of tables.

    Args:
        sizes: the size of each of its parts is added, by the part's id().
    """
    below = document.get("parts") or ([document["part"]] if "part" in document else [])
    rows = [row["masses"] for row in document.get("rows") or ()]
    losses = [one["pessimistic_pmf"]["values"] for one in (document.get("pld") or {}).values()]
    points = sum(map(len, (document.get("rdp") or (), document.get("masses") or (), *rows, *losses))) // 10
    sizes[id(document)] = size = 1 + points + sum(_measure(part, sizes) for part in below)
    return size


def _parameter_text(value: Any, *, written: bool) -> str:
    """Return a parameter as text; long fractions are approximated, and masses listed as they are in a table."""
    if isinstance(value, str) and not written and _LONG_FRACTION.fullmatch(value):
        return f"≈ {near(value)}"
    if isinstance(value, list) and value[0].keys() == {"value", "mass"}:
        return _short(", ".join(f"{one['value']}: {one['mass']}" for one in value), _LONGEST_VALUE)
    if isinstance(value, list) and value[0].keys() == {"masses"}:
        texts = (_parameter_text(one["masses"], written=False) for one in value)
        return _short("; ".join(f"for {number} ({text})" for number, text in enumerate(texts)), _LONGEST_VALUE)
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _LONGEST_VALUE)


def _tags(document: dict[str, Any]) -> list[str]:
    """Return the first tags of a node; a plan may have 25,000 tags of 200 characters."""
    tags = document.get("tags") or []
    more = [f"and {len(tags) - _MOST_TAGS} more"] if len(tags) > _MOST_TAGS else []
    return [*map(_short, tags[:_MOST_TAGS]), *more]


def _short(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _cost_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return a plan without names, tags and partitions: no loss depends on these."""
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
