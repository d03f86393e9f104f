"""The entry of a release that was priced again."""

import json
from dataclasses import dataclass
from typing import ClassVar

from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries.base import (
    AmountField,
    Content,
    EntryView,
    Filing,
    ParsedEntry,
    PeriodsField,
    Rows,
    Text,
)
from service.ledger.journal.entry_texts import price_of
from service.ledger.journal.journal import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChanged(Content):
    """The price that an account is charged for a release from now on.

    Attributes:
        accountant: the version of the accountant that priced it.
        periods: those that the account is charged for, as canonical JSON; None: it has none.
        price: the new one.
        was: the price until now.
    """

    KIND: ClassVar[Kind] = "repriced"
    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    periods: PeriodsField = None
    price: AmountField
    was: AmountField

    def needs_steward(self, release: str | None) -> bool:  # noqa: ARG002
        """Return False: the operator's command makes such entries."""
        return False

    def next_state(self) -> None:
        """Return no state."""

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Count the release at the new price."""
        chain.reprice(entry.release_id, self.was, self.price, self.periods)

    def rows(self, filing: Filing) -> Rows:  # noqa: ARG002
        """Return the release's new price and accountant."""
        return Rows(changed={"price": json.dumps(price_of(self.price)), "accountant": self.accountant})

    def shown(self) -> EntryView:
        """Return an empty view beyond the kind."""
        return EntryView()
