"""The contract of nodes: all that the rest of the service may ask of one.

A node answers one question about losses: how those of its parts compose. ``condensed`` answers it, and every notion of
loss (pure, zCDP, RDP and tight) is folded along the answer.
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
        tags: the subjects about which the mechanisms below reveal something.
        reads: the promise that they read nothing on which the account has a cap.
    """

    BEFORE = (TAGS, READS, PARTITIONS_BELOW)
    SUM: ClassVar[bool] = False
    """True if its loss is the sum of its parts' losses in every notion, so that parts can be charged one by one."""
    ADDS_UP: ClassVar[bool] = False
    """True if its loss is the sum of its parts' losses, each as often as the part runs (``times``)."""
    DIVIDES: ClassVar[bool] = False
    """True if a changed record can leave one part and enter another."""
    CHOOSES: ClassVar[bool] = False
    """True if noise is drawn for only one of its parts, in each partition and repetition."""

    tags: tuple[str, ...] = ()
    reads: str | None = None

    @property
    def times(self) -> int:
        """The factor by which it multiplies the number of runs of each mechanism below."""
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
        """Return the composition of its parts' losses.

        Args:
            size: the number of records that change together, which is the product of the groups above.
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
    """Return the condensed form of a part where ``size`` records change together."""
    return condense_leaf(plan, size) if isinstance(plan, Mechanism) else plan.condensed(size)
