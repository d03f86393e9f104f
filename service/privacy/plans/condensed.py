"""Plans without what their prices do not depend on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.keyed import Keyed


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
        """Return the hash; a leaf's is its mechanism's, which is known or needed anyway."""
        leaf = self.mechanism is not None and self.group == 1
        return hash(self.mechanism) if leaf else Keyed.__hash__(self)


def condense_leaf(plan: Mechanism, size: int) -> Condensed:
    """Return a mechanism as its price sees it, where ``size`` records change together.

    ``group`` is pushed down to here: it multiplies sensitivities (``docs/mathematics/group-privacy.md``).
    """
    nameless = plan
    if plan.name is not None or plan.tags or plan.reads or plan.partitions is not None or plan.cells_replaced:
        nameless = replace(plan, name=None, tags=(), reads=None, partitions=None, cells_replaced=None)
    mechanism, times = nameless.simplest().grouped(size) if size > 1 else (nameless.simplest(), 1)
    group = size if mechanism.ADDITIVE else 1  # of others, all that a group does is known
    condensed = Condensed(mechanism, None, (), group, 1)
    return condensed if times == 1 else condense_sequence([(condensed, times)])


def condense_sequence(parts: Iterable[tuple[Condensed, int]]) -> Condensed:
    """Return the composition of parts, each so often; a composition inside of it is flattened."""
    counts: Counter[Condensed] = Counter()
    for part, count in parts:
        if part.mechanism is not None or part.degree is not None:
            counts[part] = counts.get(part, 0) + count
            continue
        for inner, times in part.parts:
            counts[inner] = counts.get(inner, 0) + count * times
    return _node(None, counts, 1)


def condense_division(parts: Iterable[Condensed], degree: int, size: int) -> Condensed:
    """Return parts of which ``degree`` can see one record, where ``size`` records change together."""
    return _node(degree, Counter(parts), size)


def _node(degree: int | None, counts: Counter[Condensed], group: int) -> Condensed:
    parts = tuple(counts.items())
    return Condensed(None, degree, parts, group, 1 + sum(part.size for part, _ in parts))
