"""The opening of an account, under its parent, and the charge of its cap to the accounts above if it is allotted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sqlalchemy import Connection, select

from service.errors import AccountClosed, Conflict, InvalidInput, NotFound
from service.ledger.access.key_events import require_valid, see_keys
from service.ledger.accounts import accounts, budgets, lines
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import Funding, is_fixed
from service.ledger.accounts.approvers import Approvers
from service.ledger.accounts.cap_changes import opened_caps, opened_members
from service.ledger.accounts.caps import StatedCap
from service.ledger.accounts.lines import MAX_DEPTH, Line
from service.ledger.idempotent_write import Operation
from service.ledger.journal.entries import AccountOpened
from service.ledger.journal.journal import BEFORE_FIRST
from service.ledger.releases.allotment_charges import leaf_for, require_countable, require_one_person, set_allotment
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.tables import Account
from service.privacy.accounting.privacy_filter import Budget, open_weights
from service.privacy.accounting.totals import Totals
from service.privacy.numerics.numbers import exact_text
from service.privacy.periods import Calendar, Periods, nests_in
from service.privacy.plans.walking import Neighbouring


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
    approvers: Approvers | None = None


def open_account(database: Database, request: Request, new: NewAccount) -> Operation[AccountRecord]:
    """Return the operation that opens an account.

    The RDP orders and weights of the account's admission rule are fixed now and for ever. An allotted account charges
    its whole cap to the accounts above, up to the nearest one that is itself allotted.

    Raises:
        BudgetExceeded: the cap of an allotted account does not fit an account above it.
        Conflict: the name is taken.
        InvalidInput: it has approvers and no price above which they must approve; or the account cannot be under this
            parent, or not be allotted there.
        AccountClosed: the parent is closed.
        Unauthenticated: the installation's journal does not know the steward's key as a valid one.
    """
    if new.approvers is not None and new.approval_above is None:
        raise InvalidInput.at("/approvers", "expected approval_above beside them: the loss above which they approve")
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
            approvers=new.approvers,
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
            approvers=new.approvers,
            caps=opened_members(caps),
            periods=new.periods,
            funding=new.funding,
        )
        head = opened.append(connection, account.chain, actor=request.actor, at=at)
        (account,) = accounts.save(connection, [replace(account, head=head)])
        if above:
            set_allotment(connection, above, account, request.actor, at, "/budget")
        return accounts.read_account(connection, new.name)

    return Operation(work, accounts.is_committed)


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
        InvalidInput: the cap is no such guarantee, or the allotment needs two stewards.
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
