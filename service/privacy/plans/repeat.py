"""Repetitions of a plan."""

from dataclasses import dataclass

from service.privacy.fields import PART
from service.privacy.grammar import WholeNumber
from service.privacy.plans.base import OfPart, condense_part
from service.privacy.plans.condensed import Condensed, condense_sequence

MAX_REPETITIONS = 10**12  # product of nested repeats
_NESTED = "expected a product of nested repeats of at most 10^12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat(OfPart):
    """One part, repeated count times."""

    TYPE = "repeat"
    FIELDS = (WholeNumber("count", required=True, most=MAX_REPETITIONS, nested=_NESTED), PART)
    ADDS_UP = True

    count: int

    @property
    def times(self) -> int:
        return self.count

    def condensed(self, size: int) -> Condensed:
        return condense_sequence([(condense_part(self.part, size), self.count)])

    def in_words(self, parts: str) -> str:  # noqa: ARG002
        return f"{self.count} times"
