"""The entry of new and changed caps on tags."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from service.ledger.accounts import budgets
from service.ledger.accounts.caps import StatedCap
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.charge_sums import CapState
from service.ledger.journal.entries.account_changed import ChangeProposed, Decided
from service.ledger.journal.entries.base import EntryView, Form, ParsedEntry, Text, read_amount, text
from service.ledger.journal.entry_texts import PriceKey, price_of
from service.ledger.journal.journal import Kind
from service.privacy.accounting.privacy_filter import Budget, Weights, is_greater


class ChangedCap(NamedTuple):
    """A cap as an entry states it.

    Attributes:
        admission: of a new cap: its orders and weights, fixed for ever.
        counted: of a new cap, or one that is priced again: the price of the releases that had committed before it.
        held: of a new cap: the price of each release that is held, where its price is not nothing.
    """

    tag: str
    budget: Budget
    admission: Weights | None = None
    counted: PriceKey | None = None
    held: tuple[tuple[str, PriceKey], ...] = ()


def _read_admission(value: Any) -> Weights:
    if value.keys() != {"orders", "weights"}:
        raise ValueError("expected orders and weights")
    return budgets.read_weights(json.dumps(value))


def read_cap(value: Mapping[str, Any]) -> ChangedCap:
    """Read a cap of an entry.

    Raises:
        KeyError, TypeError, ValueError, ServiceError: the service writes no such cap.
    """
    if not value.keys() <= set(ChangedCap._fields):
        raise ValueError("expected the members of a cap and no others")
    return ChangedCap(
        tag=text(value["tag"]),
        budget=budgets.read_budget(value["budget"]),
        admission=_read_admission(value["admission"]) if "admission" in value else None,
        counted=read_amount(value["counted"]) if "counted" in value else None,
        held=tuple(sorted((text(release), read_amount(price)) for release, price in value.get("held", {}).items())),
    )


def write_cap(cap: ChangedCap) -> dict[str, Any]:
    """Return the document of a cap."""
    document: dict[str, Any] = {"tag": cap.tag, "budget": budgets.write_budget(cap.budget)}
    if cap.admission is not None:
        document["admission"] = json.loads(budgets.write_weights(cap.admission))
    if cap.counted is not None:
        document["counted"] = price_of(cap.counted)
    if cap.held:
        document["held"] = {release: price_of(price) for release, price in cap.held}
    return document


def read_caps(value: Any) -> tuple[ChangedCap, ...]:
    """Read the caps of an entry: at least one, of unlike tags in order.

    Raises:
        KeyError, TypeError, ValueError, ServiceError: the service writes no such caps.
    """
    caps = tuple(map(read_cap, value))
    tags = [cap.tag for cap in caps]
    if not caps or tags != sorted(set(tags)):
        raise ValueError("expected caps of unlike tags, in order")
    return caps


def write_caps(caps: tuple[ChangedCap, ...]) -> str:
    """Return the canonical JSON of caps."""
    return canonical([write_cap(cap) for cap in caps])


CAPS = Form(read_caps, write_caps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsChanged(Decided):
    """New caps, and caps with another budget.

    Attributes:
        accountant: the version of the accountant that priced what new caps count of earlier releases.
    """

    KIND: ClassVar[Kind] = "caps_changed"
    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    caps: Annotated[tuple[ChangedCap, ...], CAPS]

    def proposed(self) -> ChangeProposed:
        """Return the proposal of the caps."""
        return ChangeProposed(caps=tuple(StatedCap(cap.tag, cap.budget) for cap in self.caps), reason=self.reason)

    def takes_approval(self, chain: AccountState) -> bool:
        """Return whether a cap is greater than before."""
        return any(one.tag in chain.caps and is_greater(one.budget, chain.caps[one.tag].budget) for one in self.caps)

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Set the caps.

        Raises:
            BrokenChain: a new cap lacks what it counts, or one that the account has is set as a new one.
        """
        for stated in self.caps:
            cap = chain.caps.get(stated.tag)
            if (cap is None) != (stated.admission is not None) or (stated.held and cap is not None):
                raise BrokenChain("a cap is set twice, or changed before it is set")
            if cap is None:
                if chain.allotments:
                    raise BrokenChain("a cap is set on an account that has allotted some of its budget")
                if stated.admission is None or stated.counted is None:
                    raise BrokenChain("a new cap does not state what it counts")
                cap = chain.caps[stated.tag] = CapState(stated.budget, stated.admission, entry.seq)
                chain.hold_under_cap(stated.tag, stated.held)
            cap.budget = stated.budget
            if stated.counted is not None:
                cap.count(stated.counted)
        chain.proposed = None

    def view(self) -> EntryView:
        """Return the tags of the caps, and the reason."""
        return EntryView(remark=", ".join(cap.tag for cap in self.caps), reason=self.reason)
