"""What a registry entry asks of the ledger beside accounts, releases and balances."""

import json

from sqlalchemy import Connection, func, select, text

from service.ledger import budgets
from service.ledger.tables import Account, Draw, Entry
from service.privacy.filter import Budget

_OF_A_BUDGET = text("kind IN ('account_opened', 'budget_changed')")  # in the words of the index of these few


def budgets_so_far(connection: Connection, account_id: int) -> list[Budget]:
    """The budgets that an account has had, the present one last."""
    query = select(Entry.body).where(Entry.account_id == account_id, _OF_A_BUDGET).order_by(Entry.seq)
    return [budgets.read_budget(json.loads(body)["content"]["budget"]) for body in connection.execute(query).scalars()]


def count_draws(connection: Connection, account_id: int, release_id: str | None) -> int:
    """How many draws there are of a release, or of an account and those under it."""
    query = select(func.count()).select_from(Draw)
    if release_id is not None:
        return connection.execute(query.where(Draw.release_id == release_id)).scalar_one()
    below = select(Account.id).where(Account.id == account_id).cte(recursive=True)
    below = below.union_all(select(Account.id).where(Account.parent_id == below.c.id))
    return connection.execute(query.where(Draw.account_id.in_(select(below.c.id)))).scalar_one()
