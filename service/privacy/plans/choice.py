"""A choice between plans."""

from dataclasses import dataclass

from service.privacy.fields import PARTS
from service.privacy.plans.base import OfParts, condense_part
from service.privacy.plans.condensed import Condensed, condense_division


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(OfParts):
    """One of the parts, chosen from earlier outputs, separately for each partition of the input."""

    TYPE = "choice"
    FIELDS = (PARTS,)
    DIVIDES = CHOOSES = True

    def condensed(self, size: int) -> Condensed:
        return condense_division((condense_part(part, size) for part in self.parts), 1, size)

    def in_words(self, parts: str) -> str:
        return f"one of {parts}, chosen by earlier answers for each partition; the largest loss counts"
