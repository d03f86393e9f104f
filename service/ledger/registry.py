"""What a registry entry asks of the ledger beside accounts, releases and balances."""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import Connection, func, select, text

from service.errors import Altered, Conflict
from service.ledger.accounts import AccountRecord
from service.ledger.entries import AccountOpened, BudgetChanged, read_text
from service.ledger.journal import hash_before, is_hashed, up_to
from service.ledger.tables import Account, Draw, Entry
from service.privacy.filter import Budget, Totals, shortfalls

_OF_A_BUDGET = text("kind IN ('account_opened', 'budget_changed')")  # in the words of the index of these few


def largest_budget(connection: Connection, account: AccountRecord) -> Budget:
    """The largest budget that an account has had, which bounds what all its answers tell together.

    One that was lowered after answers were seen bounds only what follows.

    Raises:
        Altered: the text of an entry that states one has not the hash beside it.
        Conflict: more is counted than any budget allowed, since releases were priced again.
    """
    caps = [account.budget, *_stated(connection, account)]
    largest = replace(
        account.budget,
        cap=max(budget.cap for budget in caps),
        delta=max(budget.delta for budget in caps),
        declared_delta=max(budget.declared_delta for budget in caps),
    )
    if shortfalls(largest, account.weights, Totals(), account.totals):
        raise Conflict("the account is over its budget since releases were priced again: no budget bounds its releases")
    return largest


def _stated(connection: Connection, account: AccountRecord) -> Iterator[Budget]:
    """Yield each budget that an entry of an account states."""
    query = select(Entry.seq, Entry.body, Entry.hash).order_by(Entry.seq)
    query = query.where(Entry.account_id == account.id, up_to(Entry.seq, account.head.seq), _OF_A_BUDGET)
    for seq, body, stored in connection.execute(query).all():
        if not is_hashed(hash_before(connection, account.id, seq), body, stored):
            raise Altered("the account's journal", f"entry {seq} of account {account.name!r}")
        content = read_text(body).content
        if isinstance(content, AccountOpened | BudgetChanged):
            yield content.budget


def count_draws(connection: Connection, account_id: int, release_id: str | None) -> int:
    """How many draws there are of a release, or of an account and those under it."""
    query = select(func.count()).select_from(Draw)
    if release_id is not None:
        return connection.execute(query.where(Draw.release_id == release_id)).scalar_one()
    below = select(Account.id).where(Account.id == account_id).cte(recursive=True)
    below = below.union(select(Account.id).where(Account.parent_id == below.c.id))
    return connection.execute(query.where(Draw.account_id.in_(select(below.c.id)))).scalar_one()
