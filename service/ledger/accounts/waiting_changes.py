"""The change of an account that waits for other persons: how it is found, and how it is rejected."""

from dataclasses import dataclass, replace

from sqlalchemy import Connection

from service.errors import Conflict
from service.ledger.access.key_events import require_valid, see_keys
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.approvals import Approval
from service.ledger.idempotent_write import Operation
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.chains import all_chained
from service.ledger.journal.entries import (
    AccountClosure,
    AccountReopened,
    ApproversChanged,
    BudgetChanged,
    CapsChanged,
    ChangeApproved,
    ChangeProposed,
    ChangeRejected,
    read_text,
)
from service.ledger.journal.journal import Head, hash_before
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request

_OF_CHANGES = frozenset(
    kind.KIND
    for kind in (
        ChangeProposed,
        BudgetChanged,
        AccountClosure,
        AccountReopened,
        CapsChanged,
        ChangeRejected,
        ChangeApproved,
        ApproversChanged,
    )
)


@dataclass(frozen=True, slots=True)
class ChangedAccount:
    """An account after a change was stated.

    Attributes:
        waits: the change waits for other persons.
        approval: of the change that waits; None where none does, or is not looked up.
    """

    account: AccountRecord
    waits: bool = False
    approval: Approval | None = None


def before_proposal(connection: Connection, account: AccountRecord) -> Head:
    """Return the head after which the chain must be followed to find the waiting change; its own if there is none."""
    if account.proposed is None:
        return account.head
    return Head(account.proposed.seq - 1, hash_before(connection, account.id, account.proposed.seq))


def waiting_change(
    connection: Connection, account: AccountRecord, since: Head, proposed: ProposedChange | None
) -> ProposedChange | None:
    """Return the waiting change of an account, given the one that waited at an earlier head.

    Only the texts on the chain from there to the account's sealed head are used.

    Raises:
        Altered: the journal between the two is not as the service wrote it.
    """
    for entry in all_chained(connection, account.id, since, account.head, _OF_CHANGES, None):
        proposed = accounts.after_entry(proposed, read_text(entry.body))
    return proposed


def read_waiting(database: Database, name: str) -> tuple[AccountRecord, ProposedChange | None]:
    """Return an account and its waiting change, before a lock: the journal since the proposal may be long."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        return account, waiting_change(connection, account, before_proposal(connection, account), None)


def reject_change(
    database: Database, request: Request, name: str, proposal: int, reason: str
) -> Operation[ChangedAccount]:
    """Return the operation that rejects the change that waits; the steward who proposed it withdraws it so.

    Args:
        proposal: the number of the entry that proposed it, so that no later proposal is meant.
        reason: the actor's own words for the journal.

    Raises:
        Conflict: that change does not wait.
        Unauthenticated: the installation's journal does not know the actor's key as a valid one.
    """
    line = lines.line_of(database, name)
    keys = see_keys(database, request.secret)
    seen, vouched = read_waiting(database, name)

    def work(connection: Connection, at: str) -> ChangedAccount:
        account = lines.lock_account(connection, line)
        require_valid(connection, request.secret, request.actor, at, keys, "approver")
        waits = waiting_change(connection, account, seen.head, vouched)
        if waits is None or waits.seq != proposal:
            raise Conflict(
                f"the change that entry {proposal} proposed does not wait: it was decided, withdrawn or replaced"
            )
        entry = ChangeRejected(proposal=proposal, reason=reason)
        head = entry.append(connection, account.chain, actor=request.actor, at=at)
        accounts.save(connection, [replace(account, head=head)])
        return ChangedAccount(accounts.read_account(connection, name))

    return Operation(work, lambda connection, changed: accounts.is_committed(connection, changed.account))
