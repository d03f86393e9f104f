"""The entry that opens an account, the first of its journal."""

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from service.ledger.accounts import account_periods, budgets
from service.ledger.accounts.allotments import Funding
from service.ledger.accounts.approvers import Approvers
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.charge_sums import CapState
from service.ledger.journal.entries.base import (
    APPROVERS,
    WRONG,
    BudgetField,
    EntryView,
    Form,
    OfAccount,
    ParsedEntry,
    Text,
    exact,
    text_or_none,
)
from service.ledger.journal.entries.caps_changed import CAPS, ChangedCap
from service.ledger.journal.journal import Kind
from service.privacy.accounting.privacy_filter import Weights
from service.privacy.periods import Periods, read_account_periods
from service.privacy.plans.walking import Neighbouring


def _exact_or_none(value: object) -> str | None:
    return None if value is None else exact(value)


def _read_admission(value: Any) -> Weights:
    if value.keys() != {"orders", "weights"}:
        raise ValueError("expected orders and weights")
    return budgets.read_weights(json.dumps(value))


def _write_admission(weights: Weights) -> str:
    return canonical(json.loads(budgets.write_weights(weights)))


def _read_funding(value: object) -> Funding:
    if value != "allotted":
        raise ValueError("expected the funding allotted")
    return "allotted"


def _read_periods(value: object) -> Periods:
    return read_account_periods(value, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOpened(OfAccount):
    """An account as a steward opened it.

    Attributes:
        admission: orders and weights, fixed for ever.
        approval_above: the price above which other persons must approve; None: there is no such price, as in entries
            of the first version, which do not state one.
        approvers: who must approve; None: one other person, whoever may approve.
        caps: on tags; None: there are none.
        funding: ``allotted`` where the accounts above were charged with its whole cap; None: its releases charge them.
        periods: the calendar and participation by which it counts; None: it has none.
        parent: the account that it is under; None: it is a root, as in entries of the first version.
    """

    KIND: ClassVar[Kind] = "account_opened"
    CHANGES_BALANCE: ClassVar[bool] = True

    admission: Annotated[Weights, Form(_read_admission, _write_admission)]
    approval_above: Annotated[str | None, Form(_exact_or_none, required=False)] = None
    approvers: Annotated[Approvers | None, replace(APPROVERS, omitted=True)] = None
    budget: BudgetField
    caps: Annotated[tuple[ChangedCap, ...] | None, replace(CAPS, omitted=True)] = None
    description: Text
    funding: Annotated[Funding | None, Form(_read_funding, omitted=True)] = None
    neighbouring: Annotated[Neighbouring, Form(Neighbouring, lambda relation: canonical(relation.value))]
    parent: Annotated[str | None, Form(text_or_none, required=False)] = None
    periods: Annotated[Periods | None, Form(_read_periods, account_periods.write, omitted=True)] = None
    unit: Text

    def view(self) -> EntryView:
        """Return the budget."""
        return EntryView(budget=budgets.write_budget(self.budget))

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Open the account.

        Raises:
            BrokenChain: it has caps that the service does not open an account with, is allotted and has no parent, or
                has approvers and no price above which they must approve.
        """
        chain.created_at = entry.time
        chain.unit, chain.description, chain.parent = self.unit, self.description, self.parent
        chain.neighbouring, chain.weights = self.neighbouring, self.admission
        chain.budget, chain.approval_above, chain.approvers = self.budget, self.approval_above, self.approvers
        if self.funding is not None and self.parent is None:
            raise BrokenChain(WRONG)
        if self.approvers is not None and self.approval_above is None:
            raise BrokenChain(WRONG)
        chain.funding = self.funding
        for cap in self.caps or ():
            if cap.admission is None or cap.counted is not None or cap.held:
                raise BrokenChain(WRONG)
            chain.caps[cap.tag] = CapState(cap.budget, cap.admission, entry.seq)
        if self.periods is not None:
            chain.count_by(self.periods)
