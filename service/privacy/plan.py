"""A release as an expression tree over mechanisms, and the same without what its price does not depend on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence as Listed
from dataclasses import dataclass, field, replace
from enum import StrEnum

from service.privacy.fields import PART, PARTITIONS_BELOW, PARTS, TAGS
from service.privacy.grammar import Stated, Whole
from service.privacy.keyed import Keyed
from service.privacy.mechanisms import Mechanism


class Neighbouring(StrEnum):
    """The pairs of inputs that must be hard to tell apart."""

    ADD_REMOVE = "add_remove"  # one record more or less
    REPLACE_ONE = "replace_one"  # one record changed


MAX_REPETITIONS = 10**12  # product of nested repeats
MAX_GROUP = 10**9  # product of nested groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Keyed, Stated):
    """A plan that is made of others."""

    BEFORE = (TAGS, PARTITIONS_BELOW)

    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Node):
    """All parts, each possibly chosen after seeing the earlier ones' outputs."""

    TYPE = "sequence"
    FIELDS = (PARTS,)

    parts: tuple["Plan", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(Node):
    """Parts on subsets of the input; any record is in at most max_degree of them."""

    TYPE = "parallel"
    FIELDS = (Whole("max_degree", required=True), PARTS)

    parts: tuple["Plan", ...]
    max_degree: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Node):
    """One of the parts, chosen by earlier outputs, for each partition of the input by itself."""

    TYPE = "choice"
    FIELDS = (PARTS,)

    parts: tuple["Plan", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(Node):
    """One part, repeated count times."""

    TYPE = "repeat"
    FIELDS = (
        Whole(
            "count",
            required=True,
            most=MAX_REPETITIONS,
            nested="expected a product of nested repeats of at most 10^12",
        ),
        PART,
    )

    part: "Plan"
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Node):
    """The part when size records change together: its sensitivities times size."""

    TYPE = "group"
    FIELDS = (
        Whole("size", required=True, most=MAX_GROUP, nested="expected a product of nested groups of at most 10^9"),
        PART,
    )

    part: "Plan"
    size: int


Plan = Mechanism | Node
NODES: dict[str, type[Node]] = {node.TYPE: node for node in (Sequence, Parallel, Choice, Repeat, Group)}
"""All nodes, by their names in documents."""


def parts_of(plan: Plan) -> Listed[Plan]:
    """The children of a node, in order; none for a mechanism."""
    match plan:
        case Sequence(parts=parts) | Parallel(parts=parts) | Choice(parts=parts):
            return parts
        case Repeat(part=part) | Group(part=part):
            return (part,)
        case _:
            return ()


def pointer_to(plan: Plan, number: int) -> str:
    """The JSON pointer of a node's child, by its place among ``parts_of``, in the node's document."""
    return "/part" if isinstance(plan, Repeat | Group) else f"/parts/{number}"


def mechanisms_of(plan: Plan) -> Iterator[Mechanism]:
    """The mechanisms of a plan from left to right."""
    if isinstance(plan, Mechanism):
        yield plan
    for part in parts_of(plan):
        yield from mechanisms_of(part)


def with_parts(plan: Plan, parts: Iterable[Plan]) -> Plan:
    """Return the node with other children."""
    match plan:
        case Sequence() | Parallel() | Choice():
            return replace(plan, parts=tuple(parts))
        case Repeat() | Group():
            return replace(plan, part=next(iter(parts)))
        case _:
            return plan


def restrict(plan: Plan, tag: str) -> Plan | None:
    """Return the part of a plan that carries ``tag`` (a node's tags hold for all below it); None where nothing does.

    The cost of the rest is the loss about what the tag stands for, as the Census Bureau reports
    losses by attribute and by geography.
    """
    if tag in plan.tags:
        return plan
    kept = [part for part in (restrict(part, tag) for part in parts_of(plan)) if part is not None]
    return with_parts(plan, kept) if kept else None


@dataclass(frozen=True, slots=True)
class Condensed(Keyed):
    """All of a plan that its price depends on: no names, tags and partitions, equal parts once with their count.

    Equal ones cost the same, and a plan of 100,000 nodes is as quick to fold as its few distinct parts.

    Attributes:
        mechanism: of a leaf; None for a node.
        degree: how many parts one record can be in; None where all parts are composed.
        parts: distinct parts, each with how often it occurs.
        group: how many records change together, by all ``group`` nodes above.
        size: how many mechanisms and nodes it has, equal parts of a node once.
    """

    mechanism: Mechanism | None
    degree: int | None
    parts: tuple[tuple["Condensed", int], ...]
    group: int
    size: int = field(compare=False)

    def __hash__(self) -> int:
        """A leaf's is its mechanism's, which is known or needed anyway."""
        leaf = self.mechanism is not None and self.group == 1
        return hash(self.mechanism) if leaf else Keyed.__hash__(self)


Priced = Plan | Condensed
"""What can be priced; whoever folds a plan more than once condenses it first."""


def condense(plan: Priced) -> Condensed:
    """The plan as its price sees it.

    A composition inside a composition is part of it; ``group`` is pushed down to the mechanisms, whose
    sensitivities it multiplies (``docs/mathematics/group-privacy.md`` has the proof).
    """
    return plan if isinstance(plan, Condensed) else _condense(plan, 1)


def _condense(plan: Plan, size: int) -> Condensed:
    """``size``: how many records change together, the product of the groups above."""
    match plan:
        case Mechanism():
            said = plan.name is not None or plan.tags or plan.partitions is not None
            nameless = replace(plan, name=None, tags=(), partitions=None) if said else plan
            mechanism, times = nameless.simplest().grouped(size) if size > 1 else (nameless.simplest(), 1)
            group = size if mechanism.ADDITIVE else 1  # of others, all that a group does is known
            leaf = Condensed(mechanism, None, (), group, 1)
            return leaf if times == 1 else _composed([(leaf, times)])
        case Group():
            return _condense(plan.part, size * plan.size)
        case Sequence(parts=parts):
            return _composed((_condense(part, size), 1) for part in parts)
        case Repeat(part=part, count=count):
            return _composed([(_condense(part, size), count)])
        case Parallel() | Choice():
            degree = plan.max_degree if isinstance(plan, Parallel) else 1
            return _node(degree, Counter(_condense(part, size) for part in plan.parts), size)
        case _:
            raise TypeError(f"expected a node, got {type(plan).__name__}")


def _composed(parts: Iterable[tuple[Condensed, int]]) -> Condensed:
    counts: Counter[Condensed] = Counter()
    for part, count in parts:
        if part.mechanism is not None or part.degree is not None:
            counts[part] = counts.get(part, 0) + count
            continue
        for inner, times in part.parts:
            counts[inner] = counts.get(inner, 0) + count * times
    return _node(None, counts)


def _node(degree: int | None, counts: Counter[Condensed], group: int = 1) -> Condensed:
    parts = tuple(counts.items())
    return Condensed(None, degree, parts, group, 1 + sum(part.size for part, _ in parts))


def leaves(plan: Condensed) -> Iterator[Mechanism]:
    """The mechanisms of a condensed plan, those of equal parts once."""
    for part, _ in plan.parts or ((plan, 1),):
        if part.mechanism is not None:
            yield part.mechanism
        elif part.parts:
            yield from leaves(part)
