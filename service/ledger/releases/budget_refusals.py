"""Refusals of what does not fit: what they say, and the entry that the journal keeps of each."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from sqlalchemy import Connection

from service.errors import BudgetExceeded, Overrun
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord, Line
from service.ledger.journal.entries import Refused
from service.ledger.journal.journal import Head, has_entry
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.privacy.accounting import effort
from service.privacy.accounting.batch_costs import Beyond
from service.privacy.accounting.filter import add, charged, shortfalls
from service.privacy.accounting.pricing import Price, estimate
from service.privacy.numerics.numbers import double_up
from service.privacy.planning.noise_scaling import noise_multiplier
from service.privacy.plans import Plan

T = TypeVar("T")


def noted(database: Database, request: Request, line: Line, act: Callable[[], T]) -> T:
    """Run a charge; where it does not fit a budget, note that in the journal of the account that was asked.

    In a transaction of its own, as the refused one was rolled back. The refusal is told only once it is noted.
    """
    try:
        return act()
    except BudgetExceeded as refusal:
        if refusal.entry is not None and isinstance(entry := refusal.entry(), Refused):
            _note(database, request, line, entry)
        raise


def _note(database: Database, request: Request, line: Line, entry: Refused) -> None:
    def work(connection: Connection) -> tuple[int, Head]:
        account = accounts.lock_account(connection, line)
        head = entry.append(connection, account.chain, actor=request.actor, at=clock.now())
        accounts.save(connection, [replace(account, head=head)])
        return account.id, head

    database.write(work, landed=lambda connection, written: has_entry(connection, *written))


def refused(
    line: Sequence[AccountRecord], name: str, written: str, plan: Callable[[], Plan], failures: Sequence[Overrun]
) -> BudgetExceeded:
    """The refusal of a release, which a line of accounts cannot take; its plan as the journal writes it, and read."""
    # Whoever reads this account's journal may not be let read those above it.
    first = failures[0] if failures[0].account == line[-1].name else Overrun()

    def entry() -> Refused:
        return Refused(
            name=name,
            plan_digest=hashlib.sha256(written.encode()).hexdigest(),
            account=first.account,
            definition=first.definition,
            cap=first.cap,
            requested=first.requested_exact,
            remaining=first.remaining_exact,
        )

    def search() -> float | None:
        return multiplier(line, plan()) if len(written) <= _LONG else None

    return BudgetExceeded(failures, noise_multiplier=search, entry=entry)


_LONG = 1 << 14  # characters of a plan, of which reading alone would hold others up


def multiplier(line: Sequence[AccountRecord], plan: Plan) -> float | None:
    """The smallest factor on the plan's noise scales with which the release would have fitted every account.

    None where there is none, and where the search would take far longer than the refusal that it explains: the
    serving process searches, for anybody whose release is refused.
    """
    if effort.of_search(plan, [account.weights.orders for account in line]) > effort.LIGHT:
        return None

    def fits(scaled: Plan) -> bool:
        asked = {
            orders: estimate(scaled, line[-1].neighbouring, orders)
            for orders in {account.weights.orders for account in line}
        }
        return not any(_gaps(account, asked[account.weights.orders]) for account in line)

    try:
        found = noise_multiplier(plan, fits)
    except Beyond:  # the exact price would be found step by step, each of which takes as long as a charge
        return None
    if found is None:
        return None
    nearest = float(found)  # of a decimal with six digits, whose text it then shows
    return nearest if Fraction(repr(nearest)) >= found else double_up(found)


def _gaps(account: AccountRecord, asked: Price) -> bool:
    after = add(account.totals, charged(account.totals, asked))
    return bool(shortfalls(account.budget, account.weights, account.totals, after))
