"""Reads of accounts, and the lock on an account's line that every charge takes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, Select, bindparam, func, insert, select, text
from sqlalchemy.orm import aliased

from service.errors import Altered, Conflict, NotFound, Overrun
from service.ledger.accounts import account_rows, budgets, spending_rows
from service.ledger.accounts.account_rows import COLUMNS
from service.ledger.accounts.description_rows import last_description, read_metadata
from service.ledger.accounts.metadata import Metadata
from service.ledger.accounts.spending_rows import NOTHING, SpendingChange
from service.ledger.journal import entries
from service.ledger.journal.account_state import ProposedChange
from service.ledger.journal.entries import ChangeProposed
from service.ledger.journal.journal import AccountHead, Head, entry_hash, hash_before, up_to
from service.ledger.storage.database import Database
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.tables import Account, Entry, Hold, Release
from service.ledger.storage.transaction import leave_holds, secret_of, wait_in_queue
from service.privacy.accounting.privacy_filter import Budget, Definition, Totals, Weights
from service.privacy.numerics.numbers import double_down, double_up, exact_text
from service.privacy.plans.walking import Neighbouring

MAX_DEPTH = 8
"""The largest number of accounts in a line, from the root down."""


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account in its state at its head.

    Attributes:
        admission: the orders and weights as they are stored.
        totals: of committed and held releases, in it and in the accounts under it.
        parent: the name of the account that it is under.
        approval_above: the price of a release above which a second steward must approve.
        next_expiry: the moment of the first expiry among its holds.
        releases: the number of committed and held releases.
        partitions_drawn: the number of partitions that the mechanisms of its own releases were drawn for, counted for
            each mechanism and repetition separately.
        partitions_undeclared: the number of those whose plans declare none.
        spending_sum: the stored sum of its rows of spending; None for an account that is not saved yet.
        metadata: the account's metadata when it was read; not looked up where an account is locked, because no charge
            needs it.
        proposed: the change that waits for a second steward; likewise not looked up where an account is locked.
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
    next_expiry: str | None = None
    releases: int = 0
    partitions_drawn: int = 0
    partitions_undeclared: int = 0
    spending_sum: str | None = None
    metadata: Metadata = field(default_factory=dict)
    proposed: ProposedChange | None = None

    @property
    def chain(self) -> AccountHead:
        """Return the account's head for its next journal entry."""
        return AccountHead(self.id, self.name, self.head)


@dataclass(frozen=True, slots=True)
class Line:
    """The constant facts of an account and those above it, root first.

    Attributes:
        name: the account's own, which is the last of the line.
        definition: of its budget.
        orders: the RDP orders of each.
    """

    name: str
    ids: tuple[int, ...]
    neighbouring: Neighbouring
    definition: Definition
    orders: tuple[tuple[Fraction, ...], ...]

    @property
    def account_id(self) -> int:
        """Return the id of the account itself."""
        return self.ids[-1]


class ReservationsDue(Exception):
    """Expired holds of an account that is to be changed."""

    def __init__(self, account_id: int, release_id: str | None = None, *, all_of_them: bool = False) -> None:
        super().__init__("holds are due")
        self.account_id = account_id
        self.release_id = release_id  # the release that has to expire; None: any
        self.all_of_them = all_of_them


def read_account(connection: Connection, name: str) -> AccountRecord:
    """Return an account by its name.

    Raises:
        NotFound: there is none.
        Unavailable: its row is not as the service wrote it.
    """
    row = connection.execute(_BY_NAME, {"name": name}).one_or_none()
    if row is None:
        raise NotFound("account", name)
    return _record(connection, row)


def list_accounts(
    connection: Connection,
    after: str,
    limit: int,
    only: frozenset[str] | None,
    parent: str | None = None,
    before_reading: BeforeReading | None = None,
) -> Page[AccountRecord]:
    """Return a page of accounts by name.

    Args:
        after: the name that the page follows; empty for the first page.
        only: the names to include; None: all.
        parent: the account directly above them; None: any.
    """
    query = select(*COLUMNS, _METADATA.label("metadata"), _PROPOSED).where(Account.name > after).order_by(Account.name)
    if only is not None:
        query = query.where(Account.name.in_(only))
    if parent is not None:
        above = aliased(Account)
        query = query.where(Account.parent_id == select(above.id).where(above.name == parent).scalar_subquery())
    rows = rows_of(connection, query, _SIZE, limit, before_reading=before_reading)
    return page_of(rows, partial(_record, connection))


def names_after(connection: Connection, after: str, limit: int) -> Sequence[str]:
    """Return the names of up to ``limit`` accounts that follow a name, in order, without reading other columns.

    Args:
        after: empty for the first names.
    """
    query = select(Account.name).where(Account.name > after).order_by(Account.name).limit(limit)
    return connection.execute(query).scalars().all()


def line_above(connection: Connection, name: str) -> list[AccountRecord]:
    """Return an account with those above it, root first.

    Raises:
        NotFound: there is none of this name.
        Conflict: its line has no root.
        Unavailable: as ``read_account``.
    """
    line = [read_account(connection, name)]
    while line[-1].parent is not None:
        if len(line) == MAX_DEPTH:  # no account is deeper: this is a cycle that an attacker made
            raise Conflict(f"the account {name!r} has more accounts above it than are possible: its line has no root")
        line.append(read_account(connection, line[-1].parent))
    return line[::-1]


@lru_cache(maxsize=4096)
def line_of(database: Database, name: str) -> Line:
    """Return the line of an account; it is fixed at opening, so a charge reads its rows only to lock them.

    Raises:
        NotFound: there is none of this name.
    """
    with database.read() as connection:
        line = line_above(connection, name)
    ids, orders = tuple(account.id for account in line), tuple(account.weights.orders for account in line)
    return Line(name, ids, line[-1].neighbouring, line[-1].budget.definition, orders)


def budget_of(database: Database, line: Line) -> Budget:
    """Return the present budget of a line's account.

    Raises:
        NotFound: the database was replaced by one without it.
    """
    with database.read() as connection:
        text = connection.execute(_BUDGET, {"account": line.account_id}).scalar_one_or_none()
    if text is None:
        line_of.cache_clear()
        raise NotFound("account", line.name)
    return budgets.stored_budget(text)


def lock_line(connection: Connection, line: Line, at: str | None) -> list[AccountRecord]:
    """Lock the accounts of a line until the transaction ends, and return them, root first.

    SQLite has one writer at a time. PostgreSQL locks the rows in the order of their ids, in which every line has its
    root first, so that no two transactions wait for each other.

    Args:
        at: the present moment; None where overdue holds do not matter.

    Raises:
        NotFound: the database was replaced by one in which they are not this line; the next request finds its own.
        ReservationsDue: a few of their holds have expired at ``at``, if that is given. More are counted as held until
            the server's own thread lets them expire, so that no request waits for the reservations of others.
    """
    found = read_line(connection, line, lock=True)
    if at is not None:
        refuse_few_due(connection, found, at)
    return found


def read_line(connection: Connection, line: Line, *, lock: bool = False) -> list[AccountRecord]:
    """Return the present accounts of a line, without a lock by default.

    Raises:
        NotFound: as ``lock_line``.
    """
    found = _read(connection, line.name, line.ids, lock=lock)
    above = (None, *(account.name for account in found))
    stands = all(account.parent == parent for account, parent in zip(found, above, strict=False))
    if not stands or tuple(account.weights.orders for account in found) != line.orders:
        line_of.cache_clear()  # otherwise a charge would pass the caps of the accounts now above it
        raise NotFound("account", line.name)
    return found


def lock_account(connection: Connection, line: Line) -> AccountRecord:
    """Lock and return the account of a line alone, for changes that do not affect those above it.

    Raises:
        NotFound: the database was replaced by one without it.
    """
    return _read(connection, line.name, line.ids[-1:], lock=True)[0]


def refuse_few_due(connection: Connection, line: Iterable[AccountRecord], at: str) -> None:
    """Refuse to continue with accounts of which a few holds have expired; more are left to the server's own thread.

    Raises:
        ReservationsDue: a few have.
    """
    for account in line:
        if account.next_expiry is not None and account.next_expiry <= at:
            due = connection.execute(_DUE, {"account": account.id, "at": at}).scalars().all()
            if len(due) <= _FEW and sum(due) <= _SHORT:
                raise ReservationsDue(account.id)
            leave_holds(connection)


def refuse_due(line: Iterable[AccountRecord], at: str) -> None:
    """Refuse to continue with accounts that have expired holds.

    Raises:
        ReservationsDue: one of them has; all of these are to expire, or as many as a request waits for.
    """
    for account in line:
        if account.next_expiry is not None and account.next_expiry <= at:
            raise ReservationsDue(account.id, all_of_them=True)


def insert_row(connection: Connection, account: AccountRecord, parent_id: int | None) -> int:
    """Write the row of a new account, and return its id; ``save`` seals it, in the same transaction.

    Args:
        parent_id: None for a root.
    """
    row = {**_fixed(account), **_changing(account), "parent_id": parent_id}
    del row["id"], row["parent"]
    found: int = connection.execute(insert(Account).values(row).returning(Account.id)).scalar_one()
    return found


def save(
    connection: Connection, line: Sequence[AccountRecord], change: SpendingChange = NOTHING
) -> list[AccountRecord]:
    """Write the rows of locked accounts after new entries, sealed: one statement whatever was charged before.

    Changes of spending are written only here, so that the sums move with them. Later steps of the same transaction must
    use the returned accounts.
    """
    added, secret = change.write(connection, [account.id for account in line]), secret_of(connection)
    after = [
        replace(account, spending_sum=spending_rows.sum_after(secret, account.id, account.spending_sum, added))
        if added or account.spending_sum is None
        else account
        for account in line
    ]
    account_rows.update_rows(connection, [(_fixed(account), _changing(account)) for account in after])
    return after


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
    }


def _changing(account: AccountRecord) -> dict[str, object]:
    return {
        "budget": json.dumps(budgets.write_budget(account.budget)),
        "totals": budgets.write_totals(account.totals),
        "state": account.state,
        "head_seq": account.head.seq,
        "head_hash": account.head.hash,
        "approval_above": None if account.approval_above is None else exact_text(account.approval_above),
        "next_expiry": account.next_expiry,
        "releases": account.releases,
        "partitions_drawn": account.partitions_drawn,
        "partitions_undeclared": account.partitions_undeclared,
        "spending_sum": account.spending_sum,
    }


def overrun(account: AccountRecord, cap: str, requested: Fraction | None, remaining: Fraction) -> Overrun:
    """Return the requested and remaining amounts of a cap, for a refusal.

    Args:
        requested: nats, or a probability; None is infinite.
        remaining: nats, or a probability.

    Returns:
        Each amount exactly, and as a double: the requested one rounded up, the remaining one rounded down.
    """
    return Overrun(
        account=account.name,
        definition=account.budget.definition.value,
        cap=cap,
        requested=None if requested is None else double_up(requested),
        remaining=double_down(remaining),
        requested_exact=None if requested is None else str(requested),
        remaining_exact=str(remaining),
    )


_METADATA = last_description(Account.id, None)
_SIZE = func.length(Account.description) + func.coalesce(func.length(_METADATA), 0)
_OF_CHANGES = text("kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened')")
_PROPOSED = (  # or the entry that ended the last proposal, worded as in the partial index
    select(Entry.body)
    .where(Entry.account_id == Account.id, up_to(Entry.seq, Account.head_seq), _OF_CHANGES)
    .order_by(Entry.seq.desc())
    .limit(1)
    .scalar_subquery()
    .label("proposed")
)


# Statements are built once, because building one costs more than running it.
_BY_NAME = select(*COLUMNS, _METADATA.label("metadata"), _PROPOSED).where(Account.name == bindparam("name"))
_LAST_CHANGE = (
    select(Entry.seq, Entry.hash)
    .where(Entry.account_id == bindparam("account"), up_to(Entry.seq, bindparam("head")), _OF_CHANGES)
    .order_by(Entry.seq.desc())
    .limit(1)
)
_FEW, _SHORT = 10, 1 << 14  # the most holds that a request lets expire, and characters of their plans
_DUE = (
    select(func.length(Release.plan))
    .join(Hold, Hold.release_id == Release.id)
    .where(Hold.account_id == bindparam("account"), Hold.expires_at <= bindparam("at"))
    .order_by(Hold.expires_at)
    .limit(_FEW + 1)
)
_BUDGET = select(Account.budget).where(Account.id == bindparam("account"))


@cache
def _reading(depth: int, *, lock: bool) -> Select[Any]:
    ids: list[BindParameter[int]] = [bindparam(f"id_{number}") for number in range(depth)]
    query = select(*COLUMNS).where(Account.id.in_(ids)).order_by(Account.id)
    return query.with_for_update() if lock else query


def _read(connection: Connection, name: str, ids: tuple[int, ...], *, lock: bool) -> list[AccountRecord]:
    given = {f"id_{number}": account_id for number, account_id in enumerate(ids)}
    if lock:
        wait_in_queue(connection, ids[0])
    rows = connection.execute(_reading(len(ids), lock=lock), given).all()
    if len(rows) != len(ids) or rows[-1].name != name:  # the database was replaced
        line_of.cache_clear()
        raise NotFound("account", name)
    return [_record(connection, row, locked=lock) for row in rows]


def _proposed(connection: Connection, account: Row[*tuple[Any, ...]]) -> ProposedChange | None:
    """Return the waiting change, from its entry, whose text must have the hash in the journal.

    Raises:
        Altered: it has another hash.
    """
    body = account._mapping.get("proposed")
    entry = None if body is None else entries.read_text(body)
    if entry is None or not isinstance(entry.content, ChangeProposed):
        return None
    found = connection.execute(_LAST_CHANGE, {"account": account.id, "head": account.head_seq}).one()
    linked = entry_hash(hash_before(connection, account.id, found.seq), str(body)) == found.hash
    if not linked or entry.seq != found.seq or (found.seq == account.head_seq and found.hash != account.head_hash):
        raise Altered("an account's proposed change", f"entry {found.seq} of account {account.name!r}")
    return entry.content.waiting(entry)


def _record(connection: Connection, row: Row[*tuple[Any, ...]], *, locked: bool = False) -> AccountRecord:
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
        next_expiry=row.next_expiry,
        releases=row.releases,
        partitions_drawn=row.partitions_drawn,
        partitions_undeclared=row.partitions_undeclared,
        spending_sum=row.spending_sum,
        metadata=read_metadata(row._mapping.get("metadata"), f"account {row.name!r}"),
        proposed=_proposed(connection, row),
    )
