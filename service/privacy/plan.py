"""A release as an expression tree over mechanisms, and the one fold that prices it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence as Listed
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, TypeVar

from service.privacy.grouping import grouped
from service.privacy.mechanisms import Declared, Mechanism, RandomizedResponse, simplest

T = TypeVar("T")


class Neighbouring(StrEnum):
    """Which pairs of inputs must be hard to tell apart."""

    ADD_REMOVE = "add_remove"  # one record more or less
    REPLACE_ONE = "replace_one"  # one record changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """All parts, each possibly chosen after seeing the earlier ones' outputs."""

    parts: tuple["Plan", ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Parts on subsets of the input; any record is in at most ``max_degree`` of the subsets."""

    parts: tuple["Plan", ...]
    max_degree: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the parts, chosen by earlier outputs, for each partition of the input by itself."""

    parts: tuple["Plan", ...]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The same part ``count`` times."""

    part: "Plan"
    count: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The part when ``size`` records change together: what is protected is a group and not one record."""

    part: "Plan"
    size: int
    tags: tuple[str, ...] = ()


Plan = Mechanism | Sequence | Parallel | Choice | Repeat | Group


@dataclass(frozen=True, slots=True)
class Notion(Generic[T]):
    """How one notion of privacy loss prices a plan.

    Attributes:
        mechanism: the cost of one cell moved.
        total: the cost of costs composed, each ``count`` times.
        largest: the cost of the ``how_many`` largest composed, at each order by itself where the
            notion has orders.
    """

    mechanism: Callable[[Mechanism], T]
    total: Callable[[Iterable[tuple[T, int]]], T]
    largest: Callable[[Iterable[tuple[T, int]], int], T]


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
    """The same node over other children."""
    match plan:
        case Sequence() | Parallel() | Choice():
            return replace(plan, parts=tuple(parts))
        case Repeat() | Group():
            return replace(plan, part=next(iter(parts)))
        case _:
            return plan


def restrict(plan: Plan, tag: str) -> Plan | None:
    """What of a plan carries ``tag`` (a node's tags hold for all below it); None where nothing does.

    The cost of the rest is the loss about what the tag stands for, as the Census Bureau reports
    losses by attribute and by geography.
    """
    if tag in plan.tags:
        return plan
    kept = [part for part in (restrict(part, tag) for part in parts_of(plan)) if part is not None]
    return with_parts(plan, kept) if kept else None


@dataclass(frozen=True, slots=True)
class Condensed:
    """All of a plan that its price depends on: no names, no tags, equal parts once with their count.

    Equal ones cost the same, and a plan of 100,000 nodes is as quick to fold as its few distinct parts.

    Attributes:
        mechanism: of a leaf; None for a node.
        degree: how many parts one record can be in; None where all parts are composed.
        parts: distinct parts, each with how often it occurs.
        size: how many mechanisms and nodes it has, equal parts of a node once.
    """

    mechanism: Mechanism | None
    degree: int | None
    parts: tuple[tuple["Condensed", int], ...]
    size: int = field(compare=False)
    _hash: int = field(compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash


Priced = Plan | Condensed
"""What can be priced; whoever folds a plan more than once condenses it first."""


def condense(plan: Priced) -> Condensed:
    """The plan as its price sees it.

    A composition inside a composition is part of it; ``group`` is pushed down to the mechanisms, whose
    sensitivities it multiplies (``grouping`` has the proof).
    """
    return plan if isinstance(plan, Condensed) else _condense(plan, 1)


def _condense(plan: Plan, size: int) -> Condensed:
    """``size``: how many records change together, the product of the groups above."""
    match plan:
        case Mechanism():
            mechanism, times = grouped(simplest(replace(plan, name=None, tags=())), size)
            if isinstance(mechanism, Declared):
                mechanism = replace(mechanism, reference="")
            leaf = Condensed(mechanism, None, (), 1, hash(mechanism))
            return leaf if times == 1 else _composed([(leaf, times)])
        case Group():
            return _condense(plan.part, size * plan.size)
        case Sequence(parts=parts):
            return _composed((_condense(part, size), 1) for part in parts)
        case Repeat(part=part, count=count):
            return _composed([(_condense(part, size), count)])
        case Parallel() | Choice():
            degree = plan.max_degree if isinstance(plan, Parallel) else 1
            return _node(degree, Counter(_condense(part, size) for part in plan.parts))


def _composed(parts: Iterable[tuple[Condensed, int]]) -> Condensed:
    counts: Counter[Condensed] = Counter()
    for part, count in parts:
        is_composition = part.mechanism is None and part.degree is None
        for inner, times in part.parts if is_composition else ((part, 1),):
            counts[inner] += count * times
    return _node(None, counts)


def _node(degree: int | None, counts: Counter[Condensed]) -> Condensed:
    parts = tuple(counts.items())
    return Condensed(None, degree, parts, 1 + sum(part.size for part, _ in parts), hash((degree, parts)))


def leaves(plan: Condensed) -> Iterator[Mechanism]:
    """The mechanisms of a condensed plan, those of equal parts once."""
    if plan.mechanism is not None:
        yield plan.mechanism
    for part, _ in plan.parts:
        yield from leaves(part)


def fold(plan: Priced, neighbouring: Neighbouring, notion: Notion[T]) -> T:
    """The cost of a plan in one notion (privacy.md section 3; seed 004, Lemmas 1-3, 9, 10, 12).

    ``parallel`` is sharpened from max_degree times the largest part to the sum of the max_degree
    largest: the proofs of Lemmas 9, 10 and 12 bound exactly that sum.

    Raises:
        ValueError: a mechanism that ``notation.check_relation`` refuses under this relation.
    """
    known: dict[tuple[Condensed, bool], T] = {}

    def cost(node: Condensed, one_side: bool) -> T:
        """``one_side``: the change is the removal or the addition that makes up half of a replacement."""
        found = known.get((node, one_side))
        if found is None:
            found = of_mechanism(node.mechanism, one_side) if node.mechanism else of_node(node, one_side)
            known[node, one_side] = found
        return found

    def of_mechanism(mechanism: Mechanism, one_side: bool) -> T:
        moved, cells = _moved(mechanism, neighbouring, one_side)
        return notion.total([(notion.mechanism(moved), cells)])

    def of_node(node: Condensed, one_side: bool) -> T:
        costs = [(cost(part, one_side), count) for part, count in node.parts]
        if node.degree is None:
            return notion.total(costs)
        if neighbouring is Neighbouring.REPLACE_ONE and not one_side:
            # A changed record can leave one subset and enter another: two one-sided changes in
            # two parts, which together cost at most twice the dearer one.
            apart = [notion.total([(cost(part, True), 2)]) for part, _ in node.parts]
            costs = [
                (notion.largest([(one, 1), (two, 1)], 1), count) for (one, count), two in zip(costs, apart, strict=True)
            ]
        return notion.largest(costs, node.degree)

    return cost(condense(plan), False)


def _moved(mechanism: Mechanism, neighbouring: Neighbouring, one_side: bool) -> tuple[Mechanism, int]:
    """The mechanism as a change sees it, and how many of its cells the change moves."""
    if isinstance(mechanism, Declared):
        if not one_side:
            return mechanism, 1
        if mechanism.add_remove is None:
            raise ValueError("expected add_remove of a declared mechanism below parallel or choice")
        return replace(mechanism, guarantee=mechanism.add_remove), 1
    if isinstance(mechanism, RandomizedResponse):
        if one_side or neighbouring is Neighbouring.ADD_REMOVE:
            raise ValueError("expected randomized_response under replace_one only, not below parallel or choice")
        return mechanism, 1
    cells = mechanism.cells or (1 if neighbouring is Neighbouring.ADD_REMOVE else 2)
    if one_side:
        cells = mechanism.cells_added or (cells + 1) // 2
    if mechanism.cells is not None or mechanism.cells_added is not None:
        mechanism = replace(mechanism, cells=None, cells_added=None)
    return mechanism, cells
