"""Accounts and charges on the ledger itself, without HTTP, in few words."""

from fractions import Fraction
from typing import Any

from service.ledger import accounts, charges, journal, opening, spending
from service.ledger.accounts import AccountRecord
from service.ledger.budgets import read_budget
from service.ledger.charges import NewRelease, Prepared, Registered
from service.ledger.database import Database
from service.ledger.history import replay
from service.ledger.idempotency import Request
from service.ledger.journal import JournalEntry
from service.ledger.opening import NewAccount
from service.privacy.notation import read_plan
from service.privacy.plan import Neighbouring

ANN = Request("ann", None, "")  # a principal who sends no Idempotency-Key


def open_account(database: Database, name: str = "people", **budget: str) -> AccountRecord:
    """An account under add_remove; a rho of 1 unless told otherwise."""
    stated = read_budget(budget or {"definition": "zcdp", "rho": "1"})
    new = NewAccount(name, "person", Neighbouring.ADD_REMOVE, "", stated)
    opening.open_account(database, ANN, new, lambda account: account.name)
    return account_of(database, name)


def account_of(database: Database, name: str = "people") -> AccountRecord:
    with database.read() as connection:
        return accounts.read_account(connection, name)


def prepared(database: Database, *plans: dict[str, Any], name: str = "people") -> list[Prepared]:
    new = [NewRelease("a release", read_plan(plan), plan, (), Fraction(1, 10**10), "/plan") for plan in plans]
    return charges.prepare(database, name, new)


def charge(
    database: Database, *plans: dict[str, Any], name: str = "people", request: Request = ANN
) -> list[Registered]:
    """Charge plans in one transaction, and return what was registered."""
    done: list[Registered] = []

    def keep(registered: list[Registered]) -> str:
        done[:] = registered
        return "{}"

    charges.register(database, request, prepared(database, *plans, name=name), keep)
    return done


def entries_of(database: Database, name: str = "people") -> list[JournalEntry]:
    """The whole journal of an account, which must be sound: its chain, and all that follows from it, bit for bit."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        found = journal.entries(connection, account.id, 0, 10**6)
        assert journal.verify_chain(connection, account.chain) is None
        then = replay(connection, account, account.head.seq)
        assert then.account == account
        assert (then.committed, then.reserved) == spending.counts(connection, account.id)
    return found
