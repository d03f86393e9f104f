"""Sequential composition."""

from dataclasses import dataclass

from service.privacy.fields import PARTS
from service.privacy.plans.base import OfParts, condense_part
from service.privacy.plans.condensed import Condensed, condense_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(OfParts):
    """All parts; each may be chosen after the outputs of the earlier ones are seen."""

    TYPE = "sequence"
    FIELDS = (PARTS,)
    SUM = True
    ADDS_UP = True

    def condensed(self, size: int) -> Condensed:
        return condense_sequence((condense_part(part, size), 1) for part in self.parts)

    def in_words(self, parts: str) -> str:
        return f"sequential composition of {parts}"
