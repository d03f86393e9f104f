"""Entries that bring a held release to another state: approved, committed, voided and expired.

They share a file because they are the steps of one hold and have little content.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast, get_args

from service.ledger.access.key_records import Role
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries.base import (
    Content,
    EntryView,
    Filing,
    Form,
    ParsedEntry,
    ReasonField,
    Rows,
    Text,
    TextOrNone,
)
from service.ledger.journal.journal import Kind
from service.ledger.releases.reservation_rows import State


class Settlement(Content):
    """A step of a held release."""

    __slots__ = ()
    CHANGES_BALANCE: ClassVar[bool] = True

    def next_state(self) -> State:
        """Return the state that it brings its release to: the kinds but one have the names of these states."""
        return cast("State", self.KIND)

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """End the hold."""
        chain.settle(entry.release_id, self.next_state())

    def rows(self, filing: Filing) -> Rows:  # noqa: ARG002
        """Return the release's new state."""
        return Rows(changed={"state": self.next_state()})

    def view(self) -> EntryView:
        """Return an empty view beyond the kind."""
        return EntryView()


def _read_state(value: object) -> State:
    for state in get_args(State):
        if state == value:
            return cast(State, state)
    raise ValueError("expected a state")


@dataclass(frozen=True, slots=True)
class Approved(Settlement):
    """The approval of a proposal by another person.

    Attributes:
        to: the state that the release comes to: ``reserved`` or ``committed``, or ``proposed`` while other persons must
            approve it too.
        reason: the approver's own words; None: none were given.
    """

    KIND: ClassVar[Kind] = "approved"

    to: Annotated[State, Form(_read_state)]
    reason: ReasonField = None

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return approver: approvers and stewards approve."""
        return "approver"

    def next_state(self) -> State:
        """Return the state that the release comes to."""
        return self.to

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Hold the release as reserved, commit it, or leave it proposed.

        Raises:
            BrokenChain: it was not proposed, comes to another state, or has too few approvals.
        """
        chain.approve(entry.release_id, self.to, entry.by)

    def rows(self, filing: Filing) -> Rows:
        """Return the release's new state, if it has another one."""
        return Rows() if self.to == "proposed" else super(Approved, self).rows(filing)

    def view(self) -> EntryView:
        """Return the reason."""
        return EntryView(reason=self.reason)


@dataclass(frozen=True, slots=True)
class HoldCommitted(Settlement):
    """The commitment of a reservation."""

    KIND: ClassVar[Kind] = "committed"

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline: pipelines commit."""
        return "pipeline"

    def replay(self, chain: AccountState, entry: ParsedEntry) -> None:
        """Commit the held release.

        Raises:
            BrokenChain: it is not held, or was proposed, which only an approval settles.
        """
        if chain.require_held(entry.release_id).state == "proposed":
            raise BrokenChain("the release was proposed, and is committed without an approval")
        chain.settle(entry.release_id, self.next_state())


@dataclass(frozen=True, slots=True)
class Voided(Settlement):
    """The end of a hold that a steward voided.

    Attributes:
        attestation: that nothing was published, where the service cannot know; None: it knows.
    """

    KIND: ClassVar[Kind] = "voided"

    attestation: TextOrNone
    reason: Text

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return approver, who voids proposals; the entry does not tell whether its release was one."""
        return "approver"

    def view(self) -> EntryView:
        """Return the reason."""
        return EntryView(reason=self.reason)


@dataclass(frozen=True, slots=True)
class Expired(Settlement):
    """The expiry of a hold. Entries made by expiry have no actor."""

    KIND: ClassVar[Kind] = "expired"

    def least_role(self, release: str | None) -> Role:  # noqa: ARG002
        """Return pipeline, which no entry is held against: these have no actor."""
        return "pipeline"
