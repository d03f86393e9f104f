"""Group privacy."""

from dataclasses import dataclass

from service.privacy.fields import PART
from service.privacy.grammar import WholeNumber
from service.privacy.plans.base import OfPart, condense_part
from service.privacy.plans.condensed import Condensed

MAX_GROUP = 10**9  # product of nested groups
_NESTED = "expected a product of nested groups of at most 10^9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(OfPart):
    """The part, when size records change together: its sensitivities are multiplied by size."""

    TYPE = "group"
    FIELDS = (WholeNumber("size", required=True, most=MAX_GROUP, nested=_NESTED), PART)

    size: int

    def condensed(self, size: int) -> Condensed:
        return condense_part(self.part, size * self.size)

    def in_words(self, parts: str) -> str:  # noqa: ARG002
        return f"group privacy for {self.size} records that change together"
