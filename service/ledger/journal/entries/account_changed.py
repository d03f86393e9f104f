"""Entries that change an account's budget, state or approvers, and proposals and approvals of such changes.

They share a file because they are one decision, of one person or of several. An entry with a ``proposal`` repeats the
change that the entry of that number proposed. Each of these entries ends a waiting proposal.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from service.ledger.access.key_records import Role
from service.ledger.accounts import budgets
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.caps import StatedCap
from service.ledger.journal.account_state import AccountState, ProposedChange
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries.base import (
    APPROVERS,
    BUDGET,
    WRONG,
    BudgetField,
    ChangeOfAccount,
    EntryMembers,
    EntryView,
    Form,
    ParsedEntry,
    exact,
    text,
    whole,
)
from service.ledger.journal.journal import Kind
from service.privacy.accounting.privacy_filter import Budget, is_greater

OPEN: Literal["open"] = "open"  # the only state that can be proposed


def _read_open(value: object) -> Literal["open"]:
    if value != OPEN:
        raise ValueError("expected the state open")
    return OPEN


def _read_caps(value: Any) -> tuple[StatedCap, ...]:
    caps = tuple(StatedCap(text(cap["tag"]), budgets.read_budget(cap["budget"])) for cap in value)
    if not caps or _documents(caps) != value:
        raise ValueError("expected caps with a tag and a budget")
    return caps


def _documents(caps: tuple[StatedCap, ...]) -> list[dict[str, Any]]:
    return [{"tag": cap.tag, "budget": budgets.write_budget(cap.budget)} for cap in caps]


def _write_caps(caps: tuple[StatedCap, ...]) -> str:
    return canonical(_documents(caps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(ChangeOfAccount):
    """A change that may need several persons.

    Attributes:
        proposal: the number of the entry in which a steward proposed it, whom other persons follow; None: one steward
            decided.
    """

    proposal: Annotated[int | None, Form(whole, omitted=True)] = None

    def least_role(self, release: str | None) -> Role:
        """Return approver for a change that somebody else proposed, and steward otherwise."""
        return super(Decided, self).least_role(release) if self.proposal is None else "approver"

    @abstractmethod
    def proposed(self) -> "ChangeProposed":
        """Return the proposal of this change, for accounts that need several persons."""

    @abstractmethod
    def takes_approval(self, chain: AccountState) -> bool:
        """Return whether accounts that ask for approvals ask for that of this change.

        Args:
            chain: of the account, before the change.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged(Decided):
    """A new budget."""

    KIND: ClassVar[Kind] = "budget_changed"
    CHANGES_BALANCE: ClassVar[bool] = True

    budget: BudgetField

    def proposed(self) -> "ChangeProposed":
        """Return the proposal of the budget."""
        return ChangeProposed(budget=self.budget, reason=self.reason)

    def takes_approval(self, chain: AccountState) -> bool:
        """Return whether the budget is greater."""
        return is_greater(self.budget, chain.current_budget)

    def view(self) -> EntryView:
        """Return the budget and the reason."""
        return EntryView(reason=self.reason, budget=budgets.write_budget(self.budget))

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Change the budget."""
        chain.budget, chain.proposed = self.budget, None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReopened(Decided):
    """An account that is open again."""

    KIND: ClassVar[Kind] = "account_reopened"
    CHANGES_BALANCE: ClassVar[bool] = False

    def proposed(self) -> "ChangeProposed":
        """Return the proposal of the state."""
        return ChangeProposed(state=OPEN, reason=self.reason)

    def takes_approval(self, chain: AccountState) -> bool:  # noqa: ARG002
        """Return true: an open account takes charges."""
        return True

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Open the account again."""
        chain.state, chain.proposed = OPEN, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproversChanged(Decided):
    """Other approvers of an account, or its first ones."""

    KIND: ClassVar[Kind] = "approvers_changed"
    CHANGES_BALANCE: ClassVar[bool] = False

    approvers: Annotated[Approvers, APPROVERS]

    def proposed(self) -> "ChangeProposed":
        """Return the proposal of the approvers."""
        return ChangeProposed(approvers=self.approvers, reason=self.reason)

    def takes_approval(self, chain: AccountState) -> bool:
        """Return whether the account had approvers: one steward states the first ones."""
        return chain.approvers is not None

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Change the approvers.

        Raises:
            BrokenChain: the account asks for no approvals.
        """
        if chain.approval_above is None:
            raise BrokenChain("an account without approvals has no approvers")
        chain.approvers, chain.proposed = self.approvers, None


@dataclass(frozen=True, slots=True)
class AccountClosure(ChangeOfAccount):
    """An account that takes no charges until it is open again."""

    KIND: ClassVar[Kind] = "account_closed"
    CHANGES_BALANCE: ClassVar[bool] = False

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Close the account."""
        chain.state, chain.proposed = "closed", None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProposed(ChangeOfAccount):
    """A change that waits for other persons: a budget, the state, caps on tags, or approvers.

    Attributes:
        approvers: the account's new ones.
        caps: new ones, and those with another budget.
        state: ``open``, if the account is to be open again.
    """

    KIND: ClassVar[Kind] = "change_proposed"
    CHANGES_BALANCE: ClassVar[bool] = False

    approvers: Annotated[Approvers | None, replace(APPROVERS, omitted=True)] = None
    budget: Annotated[Budget | None, replace(BUDGET, omitted=True)] = None
    caps: Annotated[tuple[StatedCap, ...] | None, Form(_read_caps, _write_caps, omitted=True)] = None
    state: Annotated[Literal["open"] | None, Form(_read_open, omitted=True)] = None

    def __post_init__(self) -> None:
        """Refuse a proposal that is not of one change."""
        if [self.approvers, self.budget, self.caps, self.state].count(None) != 3:
            raise BrokenChain(WRONG)

    def change(self) -> dict[str, Any]:
        """Return the change in the form in which the account shows it."""
        if self.approvers is not None:
            return {"approvers": self.approvers.document()}
        if self.caps is not None:
            return {"caps": _documents(self.caps)}
        return {"state": OPEN} if self.budget is None else {"budget": budgets.write_budget(self.budget)}

    def view(self) -> EntryView:
        """Return the reason, and the budget if one is proposed."""
        return EntryView(reason=self.reason, budget=self.change().get("budget"))

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Record the change as waiting."""
        chain.proposed = self.waiting(entry)

    def waiting(self, entry: EntryMembers) -> ProposedChange:
        """Return the change that waits, with its entry's number, actor and time."""
        return ProposedChange(entry.seq, self.change(), entry.by, entry.time, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalStep(ChangeOfAccount):
    """A step of a change that waits, other than its proposal and the change itself.

    Attributes:
        proposal: the number of the entry that proposed it.
    """

    CHANGES_BALANCE: ClassVar[bool] = False

    proposal: Annotated[int, Form(whole)]

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return approver: approvers and stewards approve and reject."""
        return "approver"

    def waiting_in(self, chain: AccountState, what: str) -> ProposedChange:
        """Return the change that waits.

        Args:
            what: the change in one word, for the message.

        Raises:
            BrokenChain: another change waits, or none.
        """
        if chain.proposed is None or chain.proposed.seq != self.proposal:
            raise BrokenChain(f"the {what} change does not wait")
        return chain.proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeApproved(ProposalStep):
    """The approval of a change that goes on waiting, because other persons must approve it too."""

    KIND: ClassVar[Kind] = "change_approved"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Count the approval.

        Raises:
            BrokenChain: another change waits, or none.
        """
        waiting = self.waiting_in(chain, "approved")
        chain.proposed = replace(waiting, approved=(*waiting.approved, entry.by))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRejected(ProposalStep):
    """The end of a change that waits."""

    KIND: ClassVar[Kind] = "change_rejected"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """End the proposal.

        Raises:
            BrokenChain: another change waits, or none.
        """
        self.waiting_in(chain, "rejected")
        chain.proposed = None


@dataclass(frozen=True, slots=True)
class MetadataChanged(ChangeOfAccount):
    """A lower price above which releases need approval.

    Attributes:
        approval_above: an exact number.
    """

    KIND: ClassVar[Kind] = "metadata_changed"
    CHANGES_BALANCE: ClassVar[bool] = False

    approval_above: Annotated[str, Form(exact)]

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:  # noqa: ARG002
        """Change the approval price."""
        chain.approval_above = self.approval_above
