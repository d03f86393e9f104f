"""Accounts: the record of one, and how its row is read and written."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, insert, literal, select
from sqlalchemy.orm import aliased

from service.errors import Altered, Overrun
from service.ledger.accounts import account_periods, account_rows, allotments, budgets
from service.ledger.accounts.account_rows import COLUMNS
from service.ledger.accounts.allotments import AllottedSum, Funding
from service.ledger.accounts.approvers import Approvers, stored_approvers, write_approvers
from service.ledger.accounts.caps import Cap, read_caps, write_cap_totals, write_caps
from service.ledger.descriptions.description_rows import last_description, read_metadata
from service.ledger.descriptions.metadata import Metadata
from service.ledger.journal import entries
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.entries import ChangeApproved, ChangeProposed, ParsedEntry
from service.ledger.journal.journal import AccountHead, Head, entry_hash, has_entry, hash_before, up_to
from service.ledger.spending import spending_rows, window_state
from service.ledger.spending.spending_rows import NOTHING, SpendingChange
from service.ledger.spending.window_state import WindowState
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.paging import BeforeReading, Page, rows_of
from service.ledger.storage.tables import OF_CHANGES, Account, Entry
from service.ledger.storage.transaction import secret_of
from service.privacy.accounting.privacy_filter import Budget, Weights
from service.privacy.accounting.totals import Totals, without_totals
from service.privacy.numerics.numbers import exact_text
from service.privacy.periods import Periods
from service.privacy.plans.walking import Neighbouring


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account in its state at its head.

    Attributes:
        admission: the orders and weights as they are stored.
        totals: of committed and held releases, in it and in the accounts under it. With periods: nowhere below those
            of any window.
        parent: the name of the account that it is under.
        approval_above: the price of a release above which other persons must approve.
        approvers: who must approve; None: one other person, whoever may approve.
        next_expiry: the moment of the first expiry among its holds.
        releases: the number of committed and held releases.
        partitions_drawn: the number of partitions that the mechanisms of its own releases were drawn for, counted for
            each mechanism and repetition separately.
        partitions_undeclared: the number of those whose plans declare none.
        spending_sum: the stored sum of its rows of spending; None for an account that is not saved yet.
        caps: on tags, in the order of the tags.
        periods: the periods that its budget counts by; None: it holds for all releases together.
        windows: the windows of an account with periods; None for others.
        funding: ``allotted`` where the accounts above were charged with its whole cap; None: its releases charge them.
        allotted: what it has allotted to accounts under it; None: nothing ever.
        metadata: the account's metadata when it was read; not looked up where an account is locked, because no charge
            needs it.
        proposed: the change that waits for approval; likewise not looked up where an account is locked.
    """

    id: int
    name: str
    unit: str
    neighbouring: Neighbouring
    description: str
    budget: Budget
    admission: str
    weights: Weights
    totals: Totals
    state: str
    created_at: str
    head: Head
    parent: str | None = None
    approval_above: Fraction | None = None
    approvers: Approvers | None = None
    next_expiry: str | None = None
    releases: int = 0
    partitions_drawn: int = 0
    partitions_undeclared: int = 0
    spending_sum: str | None = None
    caps: tuple[Cap, ...] = ()
    periods: Periods | None = None
    windows: WindowState | None = None
    funding: Funding | None = None
    allotted: AllottedSum | None = None
    metadata: Metadata = field(default_factory=dict)
    proposed: ProposedChange | None = None

    @property
    def of_releases(self) -> Totals:
        """Return the totals of its releases alone, without what it has allotted."""
        return self.totals if self.allotted is None else without_totals(self.totals, self.allotted.totals)

    @property
    def chain(self) -> AccountHead:
        """Return the account's head for its next journal entry."""
        return AccountHead(self.id, self.name, self.head)


def read_account(connection: Connection, name: str) -> AccountRecord:
    """Return an account by its name.

    Raises:
        NotFound: there is no account of this name.
        Unavailable: its row is not as the service wrote it, or there is none although the account is known.
    """
    row = connection.execute(_BY_NAME, {"name": name}).one_or_none()
    if row is None:
        raise account_rows.not_found(connection, name)
    return record_of(connection, row)


def head_numbers(connection: Connection, names: Sequence[str]) -> dict[str, int]:
    """Return the number of each account's last entry as its row has it, whose seal is not checked."""
    rows = connection.execute(select(Account.name, Account.head_seq).where(Account.name.in_(names)))
    return {row.name: row.head_seq for row in rows}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The accounts that a list is asked for: those with all that is stated.

    Attributes:
        only: the names to include; None: all.
        parent: the account directly above them.
        waiting: only accounts with a change that waits for approval.
        name: accounts whose name contains it, whatever the case of ASCII letters.
        state: accounts that are in it.
    """

    only: frozenset[str] | None = None
    parent: str | None = None
    waiting: bool = False
    name: str | None = None
    state: str | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions that the rows of these accounts meet."""
        if self.only is not None:
            yield Account.name.in_(self.only)
        if self.parent is not None:
            above = aliased(Account)
            yield Account.parent_id == select(above.id).where(above.name == self.parent).scalar_subquery()
        if self.waiting:
            yield _LAST_KIND.in_(("change_proposed", "change_approved"))
        if self.name is not None:
            yield Account.name.contains(self.name.lower(), autoescape=True)  # names of accounts have no capitals
        if self.state is not None:
            yield Account.state == self.state


def unopened(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return those of some names that no account has."""
    found = head_numbers(connection, names)
    return [name for name in names if name not in found]


def list_accounts(
    connection: Connection,
    after: str,
    limit: int,
    wanted: Wanted,
    before_reading: BeforeReading | None = None,
) -> Page[AccountRecord]:
    """Return a page of accounts by name.

    Args:
        after: the name that the page follows; empty for the first page.
    """
    query, passed = _LISTED.where(Account.name > after, *wanted.conditions()).order_by(Account.name), 0
    while True:
        rows = rows_of(connection, query.offset(passed), _SIZE, limit, before_reading=before_reading)
        page = _page(connection, rows)
        if page or not rows.more:
            return page
        passed += len(rows)  # all were left out, and none has a name that a page could follow


def read_accounts(
    connection: Connection, names: Sequence[str], before_reading: BeforeReading | None = None
) -> Page[AccountRecord]:
    """Return the accounts of these names in their order, or as many of the first as a page holds."""
    place = case({name: number for number, name in enumerate(names)}, value=Account.name)
    query = _LISTED.where(Account.name.in_(names)).order_by(place)
    rows = rows_of(connection, query, _SIZE, len(names), before_reading=before_reading) if names else Page()
    page = _page(connection, rows)
    page.more = len(rows) < len(names)
    return page


def _page(connection: Connection, rows: Page[Row[*tuple[Any, ...]]]) -> Page[AccountRecord]:
    found = Page(record_of(connection, row) for row in account_rows.without_strangers(connection, rows))
    found.more = rows.more
    return found


def names_after(connection: Connection, after: str, limit: int) -> Sequence[str]:
    """Return the names of up to ``limit`` accounts that follow a name, in order, without reading other columns.

    Args:
        after: empty for the first names.
    """
    query = select(Account.name).where(Account.name > after).order_by(Account.name).limit(limit)
    return connection.execute(query).scalars().all()


def allotting_names(connection: Connection) -> Sequence[str]:
    """Return the names of the accounts that have ever allotted, in order."""
    query = select(Account.name).where(Account.allotted.is_not(None)).order_by(Account.name)
    return connection.execute(query).scalars().all()


def insert_row(connection: Connection, account: AccountRecord, parent_id: int | None) -> int:
    """Write the row of a new account, and return its id; ``save`` seals it, in the same transaction.

    Args:
        parent_id: None for a root.

    Raises:
        Altered: the database gives it an id that no account has, such as that of the installation's journal.
    """
    row = {**_fixed(account), **_changing(account), "parent_id": parent_id}
    del row["id"], row["parent"]
    if connection.dialect.name == "sqlite":
        row["id"] = _free_id(parent_id)
    found: int = connection.execute(insert(Account).values(row).returning(Account.id)).scalar_one()
    if found <= NO_ACCOUNT:
        raise Altered("the ledger", "the sequence of accounts' ids", "it gave an id that is not positive; run verify")
    return found


_LARGEST_ID = 2**53  # that accounts reach one by one


def _free_id(parent_id: int | None) -> ColumnElement[int]:
    """Return a free id above the parent's, for SQLite, where the table has no rowid to choose one.

    It is the one after the largest. As soon as somebody else wrote a row with a number that is never reached, it is the
    least free one, which takes longer to find.
    """
    other, largest = aliased(Account), select(func.max(Account.id)).scalar_subquery()
    followed = select(other.id).where(other.id == Account.id + 1).exists()
    above = Account.id.between(parent_id or 1, _LARGEST_ID)
    least = select(func.coalesce(func.min(Account.id), 0) + 1).where(above, ~followed).scalar_subquery()
    return case((largest < _LARGEST_ID, func.max(largest, NO_ACCOUNT) + 1), else_=least)


def save(
    connection: Connection, line: Sequence[AccountRecord], change: SpendingChange = NOTHING
) -> list[AccountRecord]:
    """Write the rows of locked accounts after new entries, sealed: one statement whatever was charged before.

    Changes of spending and of windows are written only here, so that the sums move with them. Later steps of the same
    transaction must use the returned accounts.
    """
    added, secret = change.write(connection, [account.id for account in line]), secret_of(connection)
    after: list[AccountRecord] = []
    for account in line:
        spent = added.get(account.id, 0)
        if spent or account.spending_sum is None:
            total = spending_rows.sum_after(secret, account.id, account.spending_sum, spent)
            account = replace(account, spending_sum=total)  # noqa: PLW2901 - the account as it is saved
        if account.windows is not None:
            windows = window_state.save_windows(connection, account.id, account.windows)
            account = replace(account, windows=windows)  # noqa: PLW2901
        after.append(account)
    account_rows.update_rows(connection, [(_fixed(account), _changing(account)) for account in after])
    return after


def is_committed(connection: Connection, account: AccountRecord) -> bool:
    """Return whether the transaction that left an account with its head was committed."""
    return has_entry(connection, account.id, account.head)


def _fixed(account: AccountRecord) -> dict[str, object]:
    return {
        "id": account.id,
        "name": account.name,
        "unit": account.unit,
        "neighbouring": account.neighbouring.value,
        "description": account.description,
        "admission": account.admission,
        "created_at": account.created_at,
        "parent": account.parent,
        "periods": None if account.periods is None else account_periods.write(account.periods),
        "funding": account.funding,
    }


def _changing(account: AccountRecord) -> dict[str, object]:
    return {
        "budget": json.dumps(budgets.write_budget(account.budget)),
        "totals": budgets.write_totals(account.totals),
        "state": account.state,
        "head_seq": account.head.seq,
        "head_hash": account.head.hash,
        "approval_above": None if account.approval_above is None else exact_text(account.approval_above),
        "approvers": None if account.approvers is None else write_approvers(account.approvers),
        "next_expiry": account.next_expiry,
        "releases": account.releases,
        "partitions_drawn": account.partitions_drawn,
        "partitions_undeclared": account.partitions_undeclared,
        "spending_sum": account.spending_sum,
        "caps": write_caps(account.caps),
        "cap_totals": write_cap_totals(account.caps),
        "period_state": None if account.windows is None else window_state.write_state(account.windows),
        "allotted": None if account.allotted is None else allotments.write_sum(account.allotted),
    }


def overrun(
    account: str,
    budget: Budget,
    cap: str,
    requested: Fraction | None,
    remaining: Fraction,
    *,
    stated: str | None = None,
    tag: str | None = None,
    window: str | None = None,
) -> Overrun:
    """Return the requested and remaining amounts of a cap, for a refusal.

    Args:
        account: its name.
        budget: the one that has the cap.
        requested: nats, or a probability; None is infinite.
        remaining: nats, or a probability.
        stated: the remaining amount as a request stated it, where it is a new cap.
        tag: of a budget that caps one tag.
        window: of the totals that do not fit, in an account that has windows.

    Returns:
        The overrun of a cap.
    """
    return Overrun(
        account=account,
        definition=budget.definition.value,
        cap=cap,
        requested=requested,
        remaining=remaining,
        stated=stated,
        tag=tag,
        window=window,
    )


_METADATA = last_description(Account.id, None)
_SIZE = func.length(Account.description) + sum(
    (func.coalesce(func.length(column), 0) for column in (_METADATA, Account.caps, Account.cap_totals)), literal(0)
)
_LAST = (  # the proposal, or the entry that ended the last one, worded as in the partial index
    select(Entry)
    .where(Entry.account_id == Account.id, up_to(Entry.seq, Account.head_seq), OF_CHANGES)
    .order_by(Entry.seq.desc())
    .limit(1)
)
_PROPOSED = _LAST.with_only_columns(Entry.body).scalar_subquery().label("proposed")
_LAST_KIND = _LAST.with_only_columns(Entry.kind).scalar_subquery()


# Statements are built once, because building one costs more than running it.
_LISTED = select(*COLUMNS, _METADATA.label("metadata"), _PROPOSED)
_BY_NAME = _LISTED.where(Account.name == bindparam("name"))
_LAST_CHANGE = (
    select(Entry.seq, Entry.hash)
    .where(Entry.account_id == bindparam("account"), up_to(Entry.seq, bindparam("head")), OF_CHANGES)
    .order_by(Entry.seq.desc())
    .limit(1)
)
_CHANGES = (
    select(Entry.seq, Entry.body, Entry.hash)
    .where(Entry.account_id == bindparam("account"), OF_CHANGES)
    .where(Entry.seq >= bindparam("first"), Entry.seq <= bindparam("last"))
    .order_by(Entry.seq)
)


def _proposed(connection: Connection, account: Row[*tuple[Any, ...]]) -> ProposedChange | None:
    """Return the waiting change, from its entries, whose texts must have their hashes in the journal.

    Raises:
        Altered: one has another hash.
    """
    body = account._mapping.get("proposed")
    entry = None if body is None else entries.read_text(body)
    if entry is None or not isinstance(entry.content, ChangeProposed | ChangeApproved):
        return None
    found = connection.execute(_LAST_CHANGE, {"account": account.id, "head": account.head_seq}).one()
    if entry.seq != found.seq or (found.seq == account.head_seq and found.hash != account.head_hash):
        raise _unlinked(account, found.seq)
    _require_hash(connection, account, found.seq, str(body), found.hash)
    if isinstance(entry.content, ChangeProposed):
        return entry.content.waiting(entry)
    return _with_approvals(connection, account, entry.content.proposal, found.seq)


def _with_approvals(
    connection: Connection, account: Row[*tuple[Any, ...]], proposal: int, last: int
) -> ProposedChange | None:
    """Return the change that an entry proposed, with the approvals up to another entry.

    Raises:
        Altered: one of the entries has another hash, or is none of these.
    """
    rows = connection.execute(_CHANGES, {"account": account.id, "first": proposal, "last": last}).all()
    waits: ProposedChange | None = None
    for row in rows:
        _require_hash(connection, account, row.seq, row.body, row.hash)
        waits = after_entry(waits, entries.read_text(row.body))
    if waits is None or waits.seq != proposal:
        raise _unlinked(account, proposal)
    return waits


def after_entry(waits: ProposedChange | None, entry: ParsedEntry) -> ProposedChange | None:
    """Return the change that waits after the next entry that proposes or approves a change, or ends a proposal."""
    match entry.content:
        case ChangeProposed() as proposed:
            return proposed.waiting(entry)
        case ChangeApproved() if waits is not None:
            return replace(waits, approved=(*waits.approved, entry.by))
    return None


def _require_hash(connection: Connection, account: Row[*tuple[Any, ...]], seq: int, body: str, stated: str) -> None:
    if entry_hash(hash_before(connection, account.id, seq), body) != stated:
        raise _unlinked(account, seq)


def _unlinked(account: Row[*tuple[Any, ...]], seq: int) -> Altered:
    return Altered("an account's proposed change", f"entry {seq} of account {account.name!r}")


def record_of(connection: Connection, row: Row[*tuple[Any, ...]], *, locked: bool = False) -> AccountRecord:
    """Return the account of a row.

    Raises:
        Altered: the row, or the entry of the change that it waits for, is not as the service wrote it.
    """
    account_rows.require_seal(connection, row, locked=locked)
    return AccountRecord(
        id=row.id,
        name=row.name,
        unit=row.unit,
        neighbouring=Neighbouring(row.neighbouring),
        description=row.description,
        budget=budgets.stored_budget(row.budget),
        admission=row.admission,
        weights=budgets.read_weights(row.admission),
        totals=budgets.read_totals(row.totals),
        state=row.state,
        created_at=row.created_at,
        head=Head(row.head_seq, row.head_hash),
        parent=row.parent,
        approval_above=None if row.approval_above is None else Fraction(row.approval_above),
        approvers=stored_approvers(row.approvers),
        next_expiry=row.next_expiry,
        releases=row.releases,
        partitions_drawn=row.partitions_drawn,
        partitions_undeclared=row.partitions_undeclared,
        spending_sum=row.spending_sum,
        caps=read_caps(row.caps, row.cap_totals),
        periods=None if row.periods is None else account_periods.read(row.periods),
        windows=None if row.period_state is None else window_state.read_state(row.period_state),
        funding=row.funding,
        allotted=None if row.allotted is None else allotments.read_sum(row.allotted),
        metadata=read_metadata(row._mapping.get("metadata"), f"account {row.name!r}"),
        proposed=_proposed(connection, row),
    )
