"""Parallel composition."""

from dataclasses import dataclass

from service.privacy.fields import PARTS
from service.privacy.grammar import WholeNumber
from service.privacy.plans.base import OfParts, condense_part
from service.privacy.plans.condensed import Condensed, condense_division


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel(OfParts):
    """Parts on subsets of the input; any record is in at most max_degree of them."""

    TYPE = "parallel"
    FIELDS = (WholeNumber("max_degree", required=True), PARTS)
    DIVIDES = True

    max_degree: int

    def condensed(self, size: int) -> Condensed:
        return condense_division((condense_part(part, size) for part in self.parts), self.max_degree, size)

    def in_words(self, parts: str) -> str:
        return f"parallel composition: {parts}, each record in at most {self.max_degree} of them"
