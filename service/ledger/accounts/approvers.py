"""The approvers that an account asks for: at least so many persons, from a list or from anybody who may approve."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from service.ledger.journal.canonical_json import canonical

MOST_PERSONS = 10
"""The largest number of persons that an account can ask for."""
MOST_NAMES = 50
"""The largest number of principals on a list."""


@dataclass(frozen=True, slots=True)
class Approvers:
    """The rule by which an account counts approvals.

    Attributes:
        at_least: the number of persons who must approve, beside the one who proposed.
        of: the principals who may approve, in the order of their names; None: any steward or approver.
    """

    at_least: int = 1
    of: tuple[str, ...] | None = None

    def admits(self, principal: str) -> bool:
        """Return whether the approval of a principal counts."""
        return self.of is None or principal in self.of

    def missing(self, principals: Collection[str]) -> int:
        """Return how many persons must still approve after these principals, each counted once."""
        return max(0, self.at_least - sum(map(self.admits, set(principals))))

    def document(self) -> dict[str, Any]:
        """Return the rule as JSON, without the list where there is none."""
        return {"at_least": self.at_least} | ({} if self.of is None else {"of": list(self.of)})


ANYBODY = Approvers()
"""The rule of an account that states none: one person, whoever may approve."""


def read_approvers(value: Any) -> Approvers:
    """Read a rule as the service writes it.

    Raises:
        KeyError, TypeError, ValueError: the service writes no such rule.
    """
    at_least, of = value["at_least"], value.get("of")
    if type(at_least) is not int or not isinstance(of, list | None):
        raise TypeError("expected a number and a list")
    if not all(isinstance(name, str) for name in of or ()):
        raise TypeError("expected names")
    names = list(of or ())
    most = MOST_PERSONS if of is None else min(MOST_PERSONS, len(names))
    if not 1 <= at_least <= most or len(names) > MOST_NAMES or names != sorted(set(names)):
        raise ValueError("expected a number of persons, from a list of distinct names in order")
    rule = Approvers(at_least, None if of is None else tuple(of))
    if rule.document() != value:
        raise ValueError("expected the members of a rule and no others")
    return rule


def write_approvers(rule: Approvers) -> str:
    """Return the canonical JSON of a rule."""
    return canonical(rule.document())


def stored_approvers(text: str | None) -> Approvers | None:
    """Read the rule of an account's row; None if there is none."""
    return None if text is None else read_approvers(json.loads(text))
