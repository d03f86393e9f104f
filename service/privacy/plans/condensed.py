"""Plans, reduced to what their prices depend on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from service.privacy.mechanisms import Mechanism, without_threshold
from service.privacy.numerics.keyed import Keyed


@dataclass(frozen=True, slots=True)
class Condensed(Keyed):
    """A plan, reduced to what its price depends on: without names, tags and partitions.

    Equal parts cost the same and occur once, with their count. So a plan of 100,000 nodes is folded as quickly as its
    few distinct parts.

    Attributes:
        mechanism: of a leaf; None for a node.
        degree: the largest number of parts that one record can be in; None if all parts are composed.
        parts: the distinct parts, each with the number of times that it occurs.
        fixed: whether a record alone decides in which parts it is, so that earlier outputs do not choose them.
        group: the number of records that change together, by all ``group`` nodes above.
        size: the number of its mechanisms and nodes, equal parts of a node counted once.
    """

    mechanism: Mechanism | None
    degree: int | None
    parts: tuple[tuple["Condensed", int], ...]
    group: int
    size: int = field(compare=False)
    fixed: bool = False

    def __hash__(self) -> int:
        """Return the hash; a leaf's is its mechanism's, which is known or needed anyway."""
        leaf = self.mechanism is not None and self.group == 1
        return hash(self.mechanism) if leaf else Keyed.__hash__(self)


def condense_leaf(plan: Mechanism, size: int) -> Condensed:
    """Return the condensed form of a mechanism where ``size`` records change together.

    ``group`` is pushed down to here: it multiplies sensitivities (``docs/mathematics/group-privacy.md``). A mechanism
    with ``moves`` is a division into its alternatives, of which a record does one: the composition of as many
    mechanisms as it moves cells, each at its distance. What a threshold costs is a part beside the noise, so that no
    other code need know of it.
    """
    if plan.moves:
        alternatives = (
            condense_sequence((condense_leaf(_moved_by(plan, by), size), cells) for by, cells in alternative)
            for alternative in plan.moves
        )
        return replace(condense_division(alternatives, 1, size), fixed=True)
    nameless, keys = without_threshold(plan, size)
    if plan.name is not None or plan.tags or plan.reads or plan.partitions is not None or plan.cells_replaced:
        nameless = replace(nameless, name=None, tags=(), reads=None, partitions=None, cells_replaced=None)
    mechanism, times = nameless.simplest().grouped(size) if size > 1 else (nameless.simplest(), 1)
    group = size if mechanism.ADDITIVE else 1  # for others, the whole effect of a group is known
    condensed = Condensed(mechanism, None, (), group, 1)
    if times == 1 and keys is None:
        return condensed
    beside = () if keys is None else ((Condensed(keys, None, (), 1, 1), 1),)
    return condense_sequence([(condensed, times), *beside])


def _moved_by(plan: Mechanism, distance: Fraction | int) -> Mechanism:
    return replace(plan, moves=(), sensitivity=distance)  # type: ignore[call-arg]  # mechanisms with moves have it


def condense_sequence(parts: Iterable[tuple[Condensed, int]]) -> Condensed:
    """Return the composition of parts with their counts; a composition inside of it is flattened."""
    counts: Counter[Condensed] = Counter()
    for part, count in parts:
        if part.mechanism is not None or part.degree is not None:
            counts[part] = counts.get(part, 0) + count
            continue
        for inner, times in part.parts:
            counts[inner] = counts.get(inner, 0) + count * times
    return _node(None, counts, 1)


def condense_division(parts: Iterable[Condensed], degree: int, size: int) -> Condensed:
    """Return the division into parts of which ``degree`` can see one record, where ``size`` records change together."""
    return _node(degree, Counter(parts), size)


def _node(degree: int | None, counts: Counter[Condensed], group: int) -> Condensed:
    parts = tuple(counts.items())
    return Condensed(None, degree, parts, group, 1 + sum(part.size for part, _ in parts))
