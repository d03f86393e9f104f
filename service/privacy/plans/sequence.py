"""Sequential composition."""

from dataclasses import dataclass

from service.privacy.fields import PARTS
from service.privacy.plans.base import OfParts, condense_part
from service.privacy.plans.condensed import Condensed, condense_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(OfParts):
    """All parts, each possibly chosen after seeing the earlier ones' outputs."""

    TYPE = "sequence"
    FIELDS = (PARTS,)
    SUM = True

    def condensed(self, size: int) -> Condensed:
        return condense_sequence((condense_part(part, size), 1) for part in self.parts)

    def in_words(self, parts: str) -> str:
        return f"sequential composition of {parts}"
