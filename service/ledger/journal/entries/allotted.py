"""The entry of what an account is charged for an allotted account under it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState, Allotment
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries.base import (
    AmountField,
    CapPricesField,
    EntryView,
    Form,
    OfAccount,
    ParsedEntry,
    Text,
)
from service.ledger.journal.entry_texts import write
from service.ledger.journal.journal import Kind


def _read_plan(value: object) -> str:
    if not isinstance(value, dict):
        raise TypeError("expected a plan")
    return write(value)


_PLAN = Form(_read_plan, str)
_FORMER_PLAN = Form(_read_plan, str, omitted=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotted(OfAccount):
    """The amount of an allotment, in place of its former amount.

    Attributes:
        accountant: the version of the accountant that priced it.
        before: the mechanism that was counted until now, as canonical JSON; None: the allotted account is new.
        caps: its prices under the account's caps on tags; None: it has none.
        child: the name of the allotted account.
        plan: the mechanism that is counted from now on: declared, with the amount as its guarantee.
        price: the price that the account is charged.
    """

    KIND: ClassVar[Kind] = "allotted"
    CHANGES_BALANCE: ClassVar[bool] = True

    accountant: Text
    before: Annotated[str | None, _FORMER_PLAN] = None
    caps: CapPricesField = None
    child: Text
    plan: Annotated[str, _PLAN]
    price: AmountField

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return approver, who may approve a greater budget of the allotted account."""
        return "approver"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Count the allotment.

        Raises:
            BrokenChain: it had another amount, or lacks a price under a cap.
        """
        former = chain.allotments.get(self.child)
        if self.before != (None if former is None else former.plan):
            raise BrokenChain("the allotment had another amount")
        if [tag for tag, _ in self.caps or ()] != sorted(chain.caps):
            raise BrokenChain("an allotment is charged under every cap, and it is not")
        chain.allot(self.child, Allotment(self.plan, self.price, self.caps or (), entry.seq))

    def view(self) -> EntryView:
        """Return the name of the allotted account."""
        return EntryView(remark=self.child)
