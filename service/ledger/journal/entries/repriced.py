"""The entry of a release that was priced again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.entries.base import (
    AmountField,
    Content,
    EntryView,
    Filing,
    Form,
    ParsedEntry,
    PeriodsField,
    Rows,
    Text,
    read_amount,
)
from service.ledger.journal.entry_texts import PriceKey, price_of
from service.ledger.journal.journal import Kind

RepricedCaps = Mapping[str, tuple[PriceKey, PriceKey]]


def _read_caps(value: Any) -> RepricedCaps:
    if not value or any(prices.keys() != {"price", "was"} for prices in value.values()):
        raise ValueError("expected the former and the present price of at least one cap")
    return {tag: (read_amount(prices["was"]), read_amount(prices["price"])) for tag, prices in sorted(value.items())}


def _write_caps(caps: RepricedCaps) -> str:
    return canonical({tag: {"was": price_of(was), "price": price_of(price)} for tag, (was, price) in caps.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChanged(Content):
    """The price that an account is charged for a release from now on.

    Attributes:
        accountant: the version of the accountant that priced it.
        caps: for each cap on a tag whose price of it changes too, the price until now and the new one.
        periods: those that the account is charged for, as canonical JSON; None: it has none.
        price: the new one.
        was: the price until now.
    """

    KIND: ClassVar[Kind] = "repriced"
    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    caps: Annotated[RepricedCaps | None, Form(_read_caps, _write_caps, omitted=True)] = None
    periods: PeriodsField = None
    price: AmountField
    was: AmountField

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline, which no entry is held against: the operator's command makes these."""
        return "pipeline"

    def next_state(self) -> None:
        """Return no state."""

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Count the release at the new price."""
        chain.reprice(entry.release_id, self.was, self.price, self.caps or {}, self.periods)

    def rows(self, filing: Filing) -> Rows:  # noqa: ARG002
        """Return the release's new price and accountant."""
        return Rows(changed={"price": json.dumps(price_of(self.price)), "accountant": self.accountant})

    def view(self) -> EntryView:
        """Return an empty view beyond the kind."""
        return EntryView()
