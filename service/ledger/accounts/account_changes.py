"""Changes of accounts: of budgets, caps, thresholds, approvers and states.

In accounts with a threshold, a change that permits more spending takes a steward and the approval of other persons.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlalchemy import Connection

from service.errors import BudgetExceeded, Conflict, Forbidden, InvalidInput, Overrun
from service.ledger.access.key_events import SeenKeys, require_valid, see_keys
from service.ledger.access.key_records import Role, includes
from service.ledger.accounts import accounts, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import is_fixed
from service.ledger.accounts.approvals import Approval, AskedRule, rules_above
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.cap_changes import CapsChange, require_same_kind, save_holds
from service.ledger.accounts.lines import Line
from service.ledger.accounts.two_persons import require_listed_people, require_other_person
from service.ledger.accounts.waiting_changes import ChangedAccount, read_waiting, waiting_change
from service.ledger.idempotent_write import Operation
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.entries import (
    AccountClosure,
    AccountReopened,
    ApproversChanged,
    BudgetChanged,
    CapsChanged,
    ChangeApproved,
    ChangeOfAccount,
    ChangeProposed,
    Decided,
    MetadataChanged,
)
from service.ledger.releases.allotment_charges import set_allotment
from service.ledger.releases.recorded_allotments import read_recorded
from service.ledger.spending.worst_windows import as_worst_window
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.privacy.accounting.privacy_filter import Budget, is_greater, spent_of_cap
from service.privacy.numerics.numbers import exact_text

Change = Budget | CapsChange | Fraction | Approvers | str
"""A budget, caps on tags, the price above which other persons must approve, who must approve, or a state."""


def change_account(
    database: Database,
    request: Request,
    name: str,
    change: Change,
    pointer: str,
    may_use: Callable[[str], bool],
    reason: str | None = None,
    role: Role = "steward",
) -> Operation[ChangedAccount]:
    """Return the operation that changes an account: its budget, caps or state, or what needs approval and by whom.

    Each change is a journal entry. Closing an account leaves those under it as they are; they cannot be charged while
    it is closed.

    If the account, or one above it, asks for approval, a change that permits more spending is only proposed until
    other persons state it too: so many, and those, that the present rules of all these accounts are met. The same holds
    for a change of the account's approvers; its first ones are set by one steward.

    The accounts above an allotted account are charged with its new cap. When it is closed, they are charged with what
    it has spent, held and allotted; when it is opened again, with its cap.

    Args:
        change: a state is ``open`` or ``closed``; a threshold is in nats of the budget's definition.
        pointer: the place of a budget in the request, for faults.
        may_use: whether the key reaches an account, by its name.
        reason: the actor's own words for the journal; None: none are given.
        role: of the actor: an approver states only what a steward has proposed.

    Raises:
        BudgetExceeded: the new cap is below the spending, or the cap of an allotted account does not fit above it.
        InvalidInput: the change is not of figures only.
        Conflict: more would pass without approval than before, or the account asks for no approvals and would have
            approvers.
        Forbidden: the change needs other persons, and this one is none of those who may approve it, or could have used
            the key of another; or an approver states what nobody proposed; or the change charges more to accounts above
            an allotted account, and the key does not reach the parent, or one that asks for approval.
        Unauthenticated: the installation's journal does not know the actor's key as a valid one.
    """
    line = lines.line_of(database, name, funding=True)
    keys = see_keys(database, request.secret)
    may = not isinstance(change, CapsChange) or _prepare(database, name, change, role)
    seen, vouched = read_waiting(database, name)
    if _charges_above(line, change):
        with database.read() as connection:  # so that under the lock the journal is followed only from here
            read_recorded(connection, lines.charged_line(lines.line_above(connection, name)[:-1]), seen)

    def work(connection: Connection, at: str) -> ChangedAccount:
        *above, account = _lock(connection, line, change)
        require_valid(connection, request.secret, request.actor, at, keys, role)
        if above and _permits_more(account, change):
            _require_reach(account, above, may_use)
        if not may:
            raise _unproposed()
        changed = _changed(connection, account, change, pointer, at)
        if changed is None:
            return ChangedAccount(account)
        waits: ProposedChange | None = None
        entry, after = replace(changed[0], reason=reason), changed[1]
        rules = rules_above(connection, name) if _takes_several(account, change) else ()
        if rules and isinstance(entry, Decided):
            proposed = waiting_change(connection, account, seen.head, vouched)
            approved = _approved(connection, request, entry, proposed, rules, keys)
            if approved is None and proposed is not None:  # a repeated request: it still waits
                return _waiting(accounts.read_account(connection, name), proposed, rules)
            entry = approved or entry
            waits = _waits_after(entry, proposed, account, request, at)
            after = account if waits is not None else after
        if not includes(role, entry.least_role(None)):
            raise _unproposed()
        head = entry.append(connection, account.chain, actor=request.actor, at=at)
        if isinstance(entry, CapsChanged):
            save_holds(connection, account, entry)
        (after,) = accounts.save(connection, [replace(after, head=head)])
        if above and waits is None:
            at_fault = "/state" if isinstance(change, str) else pointer
            set_allotment(connection, above, after, request.actor, at, at_fault)
        answered = accounts.read_account(connection, name)
        if waits is not None:
            return _waiting(answered, waits, rules)
        return ChangedAccount(replace(answered, proposed=None) if rules else answered)

    return Operation(work, lambda connection, changed: accounts.is_committed(connection, changed.account))


def may_state(database: Database, name: str, change: CapsChange | Approvers, role: Role) -> bool:
    """Return whether a role may state a change, before anything is computed or looked up for it.

    An approver may state what a steward has proposed and that waits, and caps that set no new one.
    """
    if includes(role, "steward"):
        return True
    account, waits = read_waiting(database, name)
    if isinstance(change, CapsChange):
        return change.needs_no_steward(account, waits)
    return waits is not None and waits.change == ApproversChanged(approvers=change).proposed().change()


def _prepare(database: Database, name: str, change: CapsChange, role: Role) -> bool:
    """Prepare a change of caps, which takes long, if the role may state it; return whether it may.

    Raises:
        InvalidInput, Conflict, TooManyRequests, Unavailable: as ``CapsChange.prepare``.
    """
    may = may_state(database, name, change, role)
    if may:
        change.prepare(database, name)
    return may


def _unproposed() -> Forbidden:
    return Forbidden("expected a change that a steward has proposed and that waits: approvers propose none")


def _waiting(account: AccountRecord, waits: ProposedChange, rules: tuple[AskedRule, ...]) -> ChangedAccount:
    approval = Approval(waits.by, waits.approved, rules)
    return ChangedAccount(replace(account, proposed=waits), waits=True, approval=approval)


def _waits_after(
    entry: ChangeOfAccount, proposed: ProposedChange | None, account: AccountRecord, request: Request, at: str
) -> ProposedChange | None:
    """Return the change that waits after an entry that is to follow; None if it makes the change."""
    if isinstance(entry, ChangeProposed):
        return ProposedChange(account.head.seq + 1, entry.change(), request.actor, at, entry.reason)
    if isinstance(entry, ChangeApproved) and proposed is not None:
        return replace(proposed, approved=(*proposed.approved, request.actor))
    return None


def _approved(
    connection: Connection,
    request: Request,
    entry: Decided,
    proposed: ProposedChange | None,
    rules: tuple[AskedRule, ...],
    keys: SeenKeys | None,
) -> ChangeOfAccount | None:
    """Return the entry of a change that takes several persons: its proposal, its approval, or the change itself.

    Args:
        proposed: the change that waits.
        rules: those that must be met before it is made.

    Returns:
        None if a person who proposed or approved it repeats it.

    Raises:
        Forbidden, Unauthenticated: as ``change_account``.
    """
    proposal = entry.proposed()
    if proposed is None or proposed.change != proposal.change():
        return proposal
    if proposed.by.name == request.principal:
        return None
    standing = Approval(proposed.by, proposed.approved, rules)
    known = require_other_person(connection, request, standing, "the change", keys)
    approval = require_listed_people(standing, known, request.actor, "the change")
    if approval.has_no_need_of(request.principal):
        return None
    if not approval.is_met_with(request.principal):
        return ChangeApproved(proposal=proposed.seq, reason=entry.reason)
    return replace(entry, proposal=proposed.seq)


def _require_reach(account: AccountRecord, above: Sequence[AccountRecord], may_use: Callable[[str], bool]) -> None:
    """Refuse a key that charges more to accounts above an allotted account without the right to approve that.

    Raises:
        Forbidden: it does not reach the parent, or one that asks for approval.
    """
    if not may_use(account.parent or ""):
        raise Forbidden(f"expected a key that reaches {account.parent}, which the account is allotted from")
    if not all(may_use(one.name) for one in above if one.approval_above is not None):
        raise Forbidden("expected a key that reaches all accounts above that are charged and have approval_above")


def _lock(connection: Connection, line: Line, change: Change) -> list[AccountRecord]:
    """Lock the last account of a line, and before it those above it that the change charges; return them, root first.

    Args:
        line: of an allotted account, with the accounts that are charged for it.
    """
    if _charges_above(line, change):
        return lines.lock_line(connection, line, None)
    return [lines.lock_account(connection, line)]


def _charges_above(line: Line, change: Change) -> bool:
    """Return whether a change of an account can change what the accounts above are charged for it."""
    return line.funding[-1] is not None and isinstance(change, Budget | str)


def _changed(
    connection: Connection, account: AccountRecord, change: Change, pointer: str, at: str
) -> tuple[ChangeOfAccount, AccountRecord] | None:
    """Return the entry of a change, and the account after it; None if it changes nothing, such as a retry.

    Raises:
        BudgetExceeded, InvalidInput, Conflict: as ``change_account``.
        ReservationsDue: the new cap may hold once expired reservations are released.
    """
    match change:
        case Budget():
            return _with_budget(connection, account, change, pointer, at)
        case Fraction():
            return _with_threshold(account, change)
        case CapsChange():
            return change.apply(connection, account, at)
        case Approvers():
            return _with_approvers(account, change)
        case state:
            return _with_state(account, state)


def _with_budget(
    connection: Connection, account: AccountRecord, budget: Budget, pointer: str, at: str
) -> tuple[ChangeOfAccount, AccountRecord]:
    lines.refuse_few_due(connection, [account], at)
    try:
        _check_change(connection, account, budget, pointer)
    except BudgetExceeded:
        lines.refuse_due([account], at)
        raise
    return BudgetChanged(budget=budget), replace(account, budget=budget)


def _with_threshold(account: AccountRecord, threshold: Fraction) -> tuple[ChangeOfAccount, AccountRecord] | None:
    if account.approval_above == threshold:
        return None
    if account.approval_above is not None and account.approval_above < threshold:
        detail = (
            "the loss above which others approve can only be lowered: one steward alone cannot ask for less approval"
        )
        raise Conflict(detail)
    return MetadataChanged(exact_text(threshold)), replace(account, approval_above=threshold)


def _with_approvers(account: AccountRecord, approvers: Approvers) -> tuple[ChangeOfAccount, AccountRecord] | None:
    if account.approval_above is None:
        raise Conflict("the account has no approval_above, above which its approvers must approve: set it first")
    if account.approvers == approvers:
        return None
    return ApproversChanged(approvers=approvers), replace(account, approvers=approvers)


def _with_state(account: AccountRecord, state: str) -> tuple[ChangeOfAccount, AccountRecord] | None:
    if account.state == state:
        return None
    return AccountClosure() if state == "closed" else AccountReopened(), replace(account, state=state)


def _permits_more(account: AccountRecord, change: Change) -> bool:
    """Return whether the change permits more spending than before."""
    match change:
        case Budget():
            return is_greater(change, account.budget)
        case CapsChange():
            return change.permits_more(account)
        case Approvers():
            return False
    return change == "open"


def _takes_several(account: AccountRecord, change: Change) -> bool:
    """Return whether a change takes the approval of others where the account, or one above it, asks for approvals."""
    if isinstance(change, Approvers):
        return account.approvers is not None
    return _permits_more(account, change)


def _check_change(connection: Connection, account: AccountRecord, new: Budget, pointer: str) -> None:
    """Refuse a change of anything but figures, and a cap below the spending."""
    old = account.budget
    require_same_kind(old, new, pointer, "account's")
    if account.funding is not None and is_fixed(old) and new != old:
        raise InvalidInput.at(
            pointer, "expected the figures that were allotted: those of an (epsilon, delta) budget stay"
        )
    failures: list[Overrun] = []
    used = spent_of_cap(new, account.weights, account.totals)
    if used is None or used > new.cap:  # windows take long to read, and this is mostly enough
        used = spent_of_cap(new, account.weights, as_worst_window(connection, replace(account, budget=new)).totals)
    if used is None or used > new.cap:
        failures.append(accounts.overrun(account.name, old, old.cap_on, used, new.cap, stated=exact_text(new.cap)))
    if account.totals.delta > new.declared_delta:
        stated = exact_text(new.declared_delta)
        given = account.totals.delta, new.declared_delta
        failures.append(accounts.overrun(account.name, old, "delta", *given, stated=stated))
    if failures:
        raise BudgetExceeded(failures, pointer=pointer, of_change=True)
