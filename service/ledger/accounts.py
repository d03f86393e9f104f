"""Accounts: opening, reading, changing the cap, closing; and the lock that every charge takes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from service.errors import BudgetExceeded, Conflict, InvalidInput, NotFound
from service.ledger import budgets, journal
from service.ledger.database import Database
from service.ledger.idempotency import Request
from service.ledger.journal import BEFORE_FIRST, AccountHead, Head
from service.ledger.once import Answer, has_entry, once
from service.ledger.tables import Account, Release
from service.privacy.filter import Budget, Definition, Totals, Weights, open_weights, spent
from service.privacy.numbers import double_down, double_up
from service.privacy.plan import Neighbouring


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account as it stands at its head."""

    id: int
    name: str
    unit: str
    neighbouring: Neighbouring
    description: str
    budget: Budget
    weights: Weights
    totals: Totals
    state: str
    created_at: str
    head: Head

    @property
    def chain(self) -> AccountHead:
        """What the next journal entry follows."""
        return AccountHead(self.id, self.name, self.head)


@dataclass(frozen=True, slots=True)
class NewAccount:
    """What a steward states at opening."""

    name: str
    unit: str
    neighbouring: Neighbouring
    description: str
    budget: Budget


Render = Callable[[AccountRecord], str]


def open_account(database: Database, request: Request, new: NewAccount, render: Render) -> Answer:
    """Open an account. The RDP orders and weights of its admission rule are fixed now and for ever.

    Raises:
        Conflict: the name is taken.
    """
    weights = open_weights(new.budget)

    def work(connection: Connection, at: str) -> AccountRecord:
        if connection.execute(select(Account.id).where(Account.name == new.name)).first() is not None:
            raise Conflict(f"there is an account {new.name!r} already")
        admission = budgets.write_weights(weights)
        row: dict[str, int | str] = {
            "name": new.name,
            "unit": new.unit,
            "neighbouring": new.neighbouring.value,
            "description": new.description,
            "budget": json.dumps(budgets.write_budget(new.budget)),
            "admission": admission,
            "totals": budgets.write_totals(Totals()),
            "state": "open",
            "created_at": at,
            "head_seq": BEFORE_FIRST.seq,
            "head_hash": BEFORE_FIRST.hash,
        }
        account_id = connection.execute(insert(Account).values(row).returning(Account.id)).scalar_one()
        content: dict[str, object] = {field: row[field] for field in ("unit", "neighbouring", "description")}
        content |= {"budget": budgets.write_budget(new.budget), "admission": json.loads(admission)}
        chain = AccountHead(account_id, new.name, BEFORE_FIRST)
        head = journal.append(connection, chain, "account_opened", content, actor=request.principal, at=at)
        _save(connection, account_id, head)
        return read_account(connection, new.name)

    return once(database, request, work, status=201, render=render, landed=_landed)


def change_account(
    database: Database, request: Request, name: str, change: Budget | str, render: Render, pointer: str
) -> Answer:
    """Change an account's budget, or its state to ``open`` or ``closed``: a journal entry either way.

    Raises:
        BudgetExceeded: the new cap is below what is spent.
        InvalidInput: the change is not of figures only.
    """

    def work(connection: Connection, at: str) -> AccountRecord:
        account = lock_account(connection, name)
        if isinstance(change, Budget):
            _check_change(account, change, pointer)
            changed: dict[str, Any] = {"budget": budgets.write_budget(change)}
            kind: journal.Kind = "budget_changed"
            columns = {"budget": json.dumps(changed["budget"])}
        elif account.state == change:
            return account  # said twice, as a retry does: nothing changed and nothing to write
        else:
            kind, changed = "account_closed" if change == "closed" else "account_reopened", {}
            columns = {"state": change}
        head = journal.append(connection, account.chain, kind, changed, actor=request.principal, at=at)
        _save(connection, account.id, head, **columns)
        return read_account(connection, name)

    return once(database, request, work, status=200, render=render, landed=_landed)


def _check_change(account: AccountRecord, new: Budget, pointer: str) -> None:
    """Only figures may change: the admission weights were fixed for this definition, order and reserve.

    Changing ``declared_delta`` by what was spent would make the filter depend on its path.
    """
    old = account.budget
    if new.definition is not old.definition:
        raise InvalidInput.at(f"{pointer}/definition", f"expected the account's definition, {old.definition.value}")
    if new.alpha != old.alpha:
        raise InvalidInput.at(f"{pointer}/alpha", "expected the account's order")
    if old.definition is Definition.APPROXIMATE and new.declared_delta != old.declared_delta:
        raise InvalidInput.at(f"{pointer}/declared_delta", "expected the account's declared_delta")
    used = spent(new, account.weights, account.totals)
    if used is None or used > new.cap:
        requested = None if used is None else double_up(used)
        raise BudgetExceeded(account.name, old.definition.value, old.cap_on, requested, double_down(new.cap))
    if account.totals.delta > new.declared_delta:
        declared = double_up(account.totals.delta)
        raise BudgetExceeded(account.name, old.definition.value, "delta", declared, double_down(new.declared_delta))


def read_account(connection: Connection, name: str) -> AccountRecord:
    """An account by its name.

    Raises:
        NotFound: there is none.
    """
    return _found(name, connection.execute(_BY_NAME, {"name": name}).one_or_none())


def lock_account(connection: Connection, name: str) -> AccountRecord:
    """The same, held until the transaction ends: SQLite's writers are alone, PostgreSQL locks the row."""
    return _found(name, connection.execute(_LOCK, {"name": name}).one_or_none())


def list_accounts(connection: Connection, after: str, limit: int, only: frozenset[str] | None) -> list[AccountRecord]:
    """A page of accounts by name, those named in ``only`` where it is given."""
    query = select(*_COLUMNS).where(Account.name > after).order_by(Account.name).limit(limit)
    if only is not None:
        query = query.where(Account.name.in_(only))
    return [_record(row) for row in connection.execute(query)]


def count_releases(connection: Connection, account_id: int) -> int:
    """How many releases an account has been charged with."""
    return connection.execute(select(func.count()).where(Release.account_id == account_id)).scalar_one()


def save_charge(connection: Connection, account: AccountRecord, totals: Totals, head: Head) -> None:
    """The account's row after charges: one statement whatever was charged before."""
    _save(connection, account.id, head, totals=budgets.write_totals(totals))


def save_head(connection: Connection, account: AccountRecord, head: Head) -> None:
    """The account's row after an entry that costs nothing."""
    _save(connection, account.id, head)


_COLUMNS = (
    Account.id,
    Account.name,
    Account.unit,
    Account.neighbouring,
    Account.description,
    Account.budget,
    Account.admission,
    Account.totals,
    Account.state,
    Account.created_at,
    Account.head_seq,
    Account.head_hash,
)


# Statements are built once: building one costs more than running it.
_BY_NAME = select(*_COLUMNS).where(Account.name == bindparam("name"))
_LOCK = _BY_NAME.with_for_update()
_UPDATE = update(Account).where(Account.id == bindparam("account"))


def _record(row: Row[*tuple[Any, ...]]) -> AccountRecord:
    return AccountRecord(
        id=row.id,
        name=row.name,
        unit=row.unit,
        neighbouring=Neighbouring(row.neighbouring),
        description=row.description,
        budget=budgets.stored_budget(row.budget),
        weights=budgets.read_weights(row.admission),
        totals=budgets.read_totals(row.totals),
        state=row.state,
        created_at=row.created_at,
        head=Head(row.head_seq, row.head_hash),
    )


def _found(name: str, row: Row[*tuple[Any, ...]] | None) -> AccountRecord:
    if row is None:
        raise NotFound("account", name)
    return _record(row)


def _save(connection: Connection, account_id: int, head: Head, **columns: str) -> None:
    changed = {"head_seq": head.seq, "head_hash": head.hash, **columns}
    connection.execute(_UPDATE, {"account": account_id, **changed})


def _landed(connection: Connection, account: AccountRecord) -> bool:
    return has_entry(connection, account.id, account.head)
