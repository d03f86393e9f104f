"""Changes of accounts by stewards: opening, new caps, and closing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from service.errors import AccountClosed, BudgetExceeded, Conflict, Forbidden, InvalidInput, NotFound, Overrun
from service.ledger.access.key_events import require_valid, see_keys
from service.ledger.accounts import accounts, budgets, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import Funding, is_fixed
from service.ledger.accounts.cap_changes import (
    CapsChange,
    is_greater,
    opened_caps,
    opened_members,
    require_same_kind,
    save_holds,
)
from service.ledger.accounts.caps import StatedCap
from service.ledger.accounts.lines import MAX_DEPTH, Line
from service.ledger.accounts.two_persons import require_other_person
from service.ledger.accounts.window_state import WindowState
from service.ledger.idempotent_write import Operation
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.chains import last_chained
from service.ledger.journal.entries import (
    AccountClosure,
    AccountOpened,
    AccountReopened,
    BudgetChanged,
    CapsChanged,
    ChangeProposed,
    Decided,
    MetadataChanged,
    OfAccount,
    read_text,
)
from service.ledger.journal.journal import BEFORE_FIRST, Head, has_entry, hash_before
from service.ledger.releases.allotment_charges import (
    leaf_for,
    require_countable,
    require_one_person,
    set_allotment,
)
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.tables import Account
from service.privacy.accounting.privacy_filter import Budget, open_weights, spent_of_cap
from service.privacy.accounting.totals import Totals
from service.privacy.numerics.numbers import exact_text
from service.privacy.periods import Calendar, Periods, nests_in
from service.privacy.plans.walking import Neighbouring

Change = Budget | CapsChange | Fraction | str
"""A budget, caps on tags, the price above which a second steward must approve, or a state."""


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A steward's statement of a new account."""

    name: str
    unit: str
    neighbouring: Neighbouring
    description: str
    budget: Budget
    parent: str | None = None
    approval_above: Fraction | None = None
    caps: tuple[StatedCap, ...] = ()
    periods: Periods | None = None
    funding: Funding | None = None


@dataclass(frozen=True, slots=True)
class ChangedAccount:
    """An account after a change was stated; ``waits``: the change waits for another steward."""

    account: AccountRecord
    waits: bool = False


def open_account(database: Database, request: Request, new: NewAccount) -> Operation[AccountRecord]:
    """Return the operation that opens an account.

    The RDP orders and weights of the account's admission rule are fixed now and for ever. An allotted account charges
    its whole cap to the accounts above, up to the nearest one that is itself allotted.

    Raises:
        BudgetExceeded: the cap of an allotted account does not fit an account above it.
        Conflict: the name is taken.
        InvalidInput: the account cannot be under this parent, or not be allotted there.
        AccountClosed: the parent is closed.
        Unauthenticated: the installation's journal does not know the steward's key as a valid one.
    """
    weights = open_weights(new.budget)
    admission, caps = budgets.write_weights(weights), opened_caps(new.caps)
    keys = see_keys(database, request.secret)
    line = None if new.funding is None else _charged_line(database, new)

    def work(connection: Connection, at: str) -> AccountRecord:
        require_valid(connection, request.secret, request.actor, at, keys)
        above = [] if line is None else lines.lock_line(connection, line, at)
        parent_id = None if new.parent is None else _parent_id(connection, new, new.parent)
        if connection.execute(select(Account.id).where(Account.name == new.name)).first() is not None:
            raise Conflict(f"the account {new.name!r} exists already")
        account = AccountRecord(
            id=0,
            name=new.name,
            unit=new.unit,
            neighbouring=new.neighbouring,
            description=new.description,
            budget=new.budget,
            admission=admission,
            weights=weights,
            totals=Totals(),
            state="open",
            created_at=at,
            head=BEFORE_FIRST,
            parent=new.parent,
            approval_above=new.approval_above,
            caps=caps,
            periods=new.periods,
            windows=None if new.periods is None else WindowState.of(weights, new.periods),
            funding=new.funding,
        )
        if above:
            _require_allottable(above, account)
        account = replace(account, id=accounts.insert_row(connection, account, parent_id))
        opened = AccountOpened(
            unit=new.unit,
            neighbouring=new.neighbouring,
            description=new.description,
            budget=new.budget,
            admission=weights,
            parent=new.parent,
            approval_above=None if new.approval_above is None else exact_text(new.approval_above),
            caps=opened_members(caps),
            periods=new.periods,
            funding=new.funding,
        )
        head = opened.append(connection, account.chain, actor=request.actor, at=at)
        (account,) = accounts.save(connection, [replace(account, head=head)])
        if above:
            set_allotment(connection, above, account, request.actor, at, "/budget")
        return accounts.read_account(connection, new.name)

    return Operation(work, _is_committed)


def _charged_line(database: Database, new: NewAccount) -> Line:
    """Return the line that an account's allotment is charged to, with its prices kept before any account is locked.

    Raises:
        InvalidInput: there is no parent.
    """
    if new.parent is None:
        raise InvalidInput.at("/funding", "expected shared, or a parent whose budget the account is allotted from")
    try:
        return lines.line_of(database, new.parent)
    except NotFound:
        raise InvalidInput.at("/parent", _A_NAME) from None


_A_NAME = "expected the name of an account"


def _require_allottable(line: Sequence[AccountRecord], account: AccountRecord) -> None:
    """Refuse an account whose cap is no guarantee that the accounts above can count.

    Args:
        line: the accounts that would be charged, root first.

    Raises:
        InvalidInput: it is one, or needs two stewards.
    """
    for above in reversed(line):
        if above.periods is not None and above.periods.several is not None:
            raise InvalidInput.at("/funding", "expected shared, as the accounts above cannot allot")
        if account.periods is not None and is_fixed(account.budget):
            raise InvalidInput.at(
                "/periods",
                "expected none, as the account is allotted an approximate budget: its windows have no common cap",
            )
        if account.periods not in (None, above.periods):
            raise InvalidInput.at(
                "/periods",
                "expected none, or those of each account above that is charged: the cap holds for one window, and an"
                " account above with other periods, or without, needs a guarantee for all of its own",
            )
    leaf = leaf_for(account)
    require_countable(line, leaf, account.budget)
    require_one_person(line, leaf)


def _parent_id(connection: Connection, new: NewAccount, name: str) -> int:
    """Return the id of the account that a new one is to be under; a trigger refuses invalid parents."""
    try:
        line = lines.line_above(connection, name)
    except NotFound:
        raise InvalidInput.at("/parent", _A_NAME) from None
    parent = line[-1]
    if parent.unit != new.unit:
        raise InvalidInput.at("/parent", "expected a parent with the same unit")
    if parent.neighbouring is not new.neighbouring:
        raise InvalidInput.at("/parent", "expected a parent with the same neighbouring relation")
    if len(line) >= MAX_DEPTH:
        raise InvalidInput.at("/parent", f"expected a line of at most {MAX_DEPTH} accounts from the root down")
    for account in reversed(line):
        if account.state == "closed":
            raise AccountClosed(account.name)
        _require_nested(new, account)
    return parent.id


def _require_nested(new: NewAccount, above: AccountRecord) -> None:
    """Refuse a calendar whose periods do not lie in periods of an account above, which is charged for these."""
    if new.periods is None or above.periods is None or nests_in(new.periods.calendar, above.periods.calendar):
        return
    outer = above.periods.calendar
    accepted = ", ".join(inner for inner in Calendar if nests_in(inner, outer))
    known = f"{outer}, that of {above.name}: {accepted}" if above.name == new.parent else "those of all accounts above"
    raise InvalidInput.at("/periods/calendar", f"expected a calendar that nests in {known}; got {new.periods.calendar}")


def change_account(
    database: Database,
    request: Request,
    name: str,
    change: Change,
    pointer: str,
    may_use: Callable[[str], bool] = lambda _: True,
) -> Operation[ChangedAccount]:
    """Return the operation that changes an account: its budget, its caps, its state, or the price that needs approval.

    The state is ``open`` or ``closed``.

    Each change is a journal entry. Closing an account leaves those under it as they are; they cannot be charged while
    it is closed.

    If the account, or one above it, asks for approval, a change that permits more spending is only proposed until
    another steward states it too.

    The accounts above an allotted account are charged with its new cap. When it is closed, they are charged with what
    it has spent, held and allotted; when it is opened again, with its cap.

    Args:
        change: a threshold is in nats of the budget's definition.
        pointer: the place of a budget in the request, for faults.
        may_use: whether the key reaches an account, by its name.

    Raises:
        BudgetExceeded: the new cap is below the spending, or the cap of an allotted account does not fit above it.
        InvalidInput: the change is not of figures only.
        Conflict: more would pass without approval than before.
        Forbidden: the change needs a second steward, and this one proposed it or made one of the keys; or it charges
            the parent of an allotted account, which the key does not reach.
        Unauthenticated: the installation's journal does not know the steward's key as a valid one.
    """
    line = lines.line_of(database, name, funding=True)
    keys = see_keys(database, request.secret)
    with database.read() as connection:  # the journal since then may be long, so it is not followed under the lock
        seen = accounts.read_account(connection, name)
        vouched = _waiting(connection, seen, _before_proposal(connection, seen), None)
        if isinstance(change, CapsChange):
            change.prepare(connection, seen)

    def work(connection: Connection, at: str) -> ChangedAccount:
        *above, account = _lock(connection, line, change)
        require_valid(connection, request.secret, request.actor, at, keys)
        if above and _frees(account, change) and not may_use(account.parent or ""):
            raise Forbidden(f"expected a key that reaches {account.parent}, which the account is allotted from")
        changed = _changed(connection, account, change, pointer, at)
        if changed is None:
            return ChangedAccount(account)
        stated: dict[str, Any] | None = None  # the change, if it takes two stewards
        waits: ProposedChange | None = None
        entry, after = changed
        if isinstance(entry, Decided) and _frees(account, change) and _asks_approval(connection, name):
            stated = entry.proposed().change()
            proposed = _waiting(connection, account, seen.head, vouched)
            if proposed is None or proposed.change != stated:
                entry, after = entry.proposed(), account
                waits = ProposedChange(account.head.seq + 1, dict(stated), request.actor, at)
            elif proposed.by.name == request.principal:  # a repeated request: it still waits
                return ChangedAccount(replace(accounts.read_account(connection, name), proposed=proposed), waits=True)
            else:
                require_other_person(connection, request, proposed.by, "the change", keys)
                entry = replace(entry, proposal=proposed.seq)
        head = entry.append(connection, account.chain, actor=request.actor, at=at)
        if isinstance(entry, CapsChanged):
            save_holds(connection, account, entry)
        (after,) = accounts.save(connection, [replace(after, head=head)])
        if above and waits is None:
            at_fault = "/state" if isinstance(change, str) else pointer
            set_allotment(connection, above, after, request.actor, at, at_fault)
        answered = accounts.read_account(connection, name)
        if stated is not None:
            answered = replace(answered, proposed=waits)
        return ChangedAccount(answered, waits is not None)

    return Operation(work, lambda connection, changed: _is_committed(connection, changed.account))


def _lock(connection: Connection, line: Line, change: Change) -> list[AccountRecord]:
    """Lock the last account of a line, and before it those above it that the change charges; return them, root first.

    Args:
        line: of an allotted account, with the accounts that are charged for it.
    """
    if line.funding[-1] is None or not isinstance(change, Budget | str):
        return [lines.lock_account(connection, line)]
    return lines.lock_line(connection, line, None)


def _changed(
    connection: Connection, account: AccountRecord, change: Change, pointer: str, at: str
) -> tuple[OfAccount, AccountRecord] | None:
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
        case state:
            return _with_state(account, state)


def _with_budget(
    connection: Connection, account: AccountRecord, budget: Budget, pointer: str, at: str
) -> tuple[OfAccount, AccountRecord]:
    lines.refuse_few_due(connection, [account], at)
    try:
        _check_change(account, budget, pointer)
    except BudgetExceeded:
        lines.refuse_due([account], at)
        raise
    return BudgetChanged(budget=budget), replace(account, budget=budget)


def _with_threshold(account: AccountRecord, threshold: Fraction) -> tuple[OfAccount, AccountRecord] | None:
    if account.approval_above == threshold:
        return None
    if account.approval_above is not None and account.approval_above < threshold:
        raise Conflict("approval_above can only be lowered: one steward alone cannot ask for less approval")
    return MetadataChanged(exact_text(threshold)), replace(account, approval_above=threshold)


def _with_state(account: AccountRecord, state: str) -> tuple[OfAccount, AccountRecord] | None:
    if account.state == state:
        return None
    return AccountClosure() if state == "closed" else AccountReopened(), replace(account, state=state)


def _before_proposal(connection: Connection, account: AccountRecord) -> Head:
    """Return the head after which the chain must be followed to find the waiting change; None if there is none."""
    if account.proposed is None:
        return account.head
    return Head(account.proposed.seq - 1, hash_before(connection, account.id, account.proposed.seq))


def _waiting(
    connection: Connection, account: AccountRecord, since: Head, proposed: ProposedChange | None
) -> ProposedChange | None:
    """Return the waiting change of an account, given the one that waited at an earlier head.

    Only the texts on the chain from there to the account's sealed head are used.

    Raises:
        Altered: the journal between the two is not as the service wrote it.
    """
    last = last_chained(connection, account.id, since, account.head, _OF_CHANGES, None)
    if last is None:
        return proposed
    entry = read_text(last.body)
    return entry.content.waiting(entry) if isinstance(entry.content, ChangeProposed) else None


_OF_CHANGES = frozenset(
    kind.KIND for kind in (ChangeProposed, BudgetChanged, AccountClosure, AccountReopened, CapsChanged)
)


def _frees(account: AccountRecord, change: Change) -> bool:
    """Return whether the change permits more spending than before."""
    match change:
        case Budget():
            return is_greater(change, account.budget)
        case CapsChange():
            return change.frees(account)
    return change == "open"


def _asks_approval(connection: Connection, name: str) -> bool:
    """Return whether the account's releases may need approval, by itself or an account above; this never ends."""
    return any(account.approval_above is not None for account in lines.line_above(connection, name))


def _check_change(account: AccountRecord, new: Budget, pointer: str) -> None:
    """Refuse a change of anything but figures, and a cap below the spending."""
    old = account.budget
    require_same_kind(old, new, pointer, "account's")
    if account.funding is not None and is_fixed(old) and new != old:
        raise InvalidInput.at(
            pointer, "expected the figures that were allotted: those of an (epsilon, delta) budget stay"
        )
    failures: list[Overrun] = []
    used = spent_of_cap(new, account.weights, account.totals)
    if used is None or used > new.cap:
        failures.append(accounts.overrun(account.name, old, old.cap_on, used, new.cap))
    if account.totals.delta > new.declared_delta:
        failures.append(accounts.overrun(account.name, old, "delta", account.totals.delta, new.declared_delta))
    if failures:
        raise BudgetExceeded(failures, of_change=True)


def _is_committed(connection: Connection, account: AccountRecord) -> bool:
    return has_entry(connection, account.id, account.head)
