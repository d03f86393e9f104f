"""The contract of nodes: all that the rest of the service may ask of one.

Of the losses a node answers one question, how those of its parts compose: ``condensed`` says it, and every notion of
loss, pure, zCDP, RDP and tight, is folded along that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence as Listed
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from service.privacy.fields import PARTITIONS_BELOW, READS, TAGS
from service.privacy.grammar import PlanElement
from service.privacy.mechanisms import Mechanism
from service.privacy.numerics.keyed import Keyed
from service.privacy.plans.condensed import Condensed, condense_leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Keyed, PlanElement, ABC):
    """A plan that is made of others: a frozen value.

    Attributes:
        tags: what the mechanisms below reveal something about.
        reads: the promise that they read nothing on which the account has a cap.
    """

    BEFORE = (TAGS, READS, PARTITIONS_BELOW)
    SUM: ClassVar[bool] = False
    """Whether its losses are the sum of its parts' in every notion, so that they can be charged one by one."""
    DIVIDES: ClassVar[bool] = False
    """Whether a changed record can leave one part and enter another."""
    CHOOSES: ClassVar[bool] = False
    """Whether noise is drawn of one of its parts only, for each partition and turn."""

    tags: tuple[str, ...] = ()
    reads: str | None = None

    @property
    def times(self) -> int:
        """The number by which it multiplies how often each mechanism below runs."""
        return 1

    @property
    @abstractmethod
    def children(self) -> "Listed[Plan]":
        """Its parts, in the order of the document."""

    @abstractmethod
    def with_children(self, children: "Iterable[Plan]") -> Self:
        """Return the node with other parts in place of its own, as many and in their order."""

    @abstractmethod
    def pointer_to(self, number: int) -> str:
        """Return the JSON pointer of a part in the node's document.

        Args:
            number: of the part, from 0.
        """

    @abstractmethod
    def condensed(self, size: int) -> Condensed:
        """Return how the losses of its parts compose.

        Args:
            size: how many records change together, the product of the groups above.
        """

    @abstractmethod
    def in_words(self, parts: str) -> str:
        """Return a line that describes the node; ``parts`` are its parts in words."""


Plan = Mechanism | Node


@dataclass(frozen=True, slots=True, kw_only=True)
class OfParts(Node):
    """A node with a list of parts."""

    parts: tuple[Plan, ...]

    @property
    def children(self) -> Listed[Plan]:
        return self.parts

    def with_children(self, children: Iterable[Plan]) -> Self:
        return replace(self, parts=tuple(children))

    def pointer_to(self, number: int) -> str:
        return f"/parts/{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPart(Node):
    """A node with one part."""

    part: Plan

    @property
    def children(self) -> Listed[Plan]:
        return (self.part,)

    def with_children(self, children: Iterable[Plan]) -> Self:
        return replace(self, part=next(iter(children)))

    def pointer_to(self, number: int) -> str:  # noqa: ARG002
        return "/part"


def condense_part(plan: Plan, size: int) -> Condensed:
    """Return a part as its price sees it, where ``size`` records change together."""
    return condense_leaf(plan, size) if isinstance(plan, Mechanism) else plan.condensed(size)
