"""What an account has spent it on: each distinct subplan with how often it occurs.

Balances at any order, tag or delta are computed from this and not from the releases, of which
there may be millions.
"""

import json
from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, func, select

from service.errors import Altered
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.spending_rows import FEW, Subplans, is_sum, read_rows
from service.ledger.accounts.subplans import nameless
from service.ledger.storage.database import secret_of
from service.ledger.storage.tables import Spending
from service.privacy.mechanisms import Mechanism
from service.privacy.plans import Plan, Repeat, Sequence
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import parts_of, restrict

_SHORT = 1 << 16  # characters in rows that are read in a moment


def counts(connection: Connection, account: AccountRecord) -> tuple[Subplans, Subplans]:
    """What an account, read in the same transaction, has committed and what it holds, with the accounts under it.

    Each row is a distinct subplan that somebody charged, so that this is as long as the account's
    plans are unlike, and not as its releases are many.

    Raises:
        Altered: the rows are not as the service wrote them: they have not the sum that the account's row holds.
    """
    found, secret = read_rows(connection, account.id), secret_of(connection)
    if found is None or not is_sum(secret, account.id, account.spending_sum, *found):
        raise Altered("what the account has spent", f"a row of spending, of account {account.name!r},")
    return found


def few(connection: Connection, account: AccountRecord) -> Subplans | None:
    """What an account has committed and holds, together, where that is little; None where it is more.

    Raises:
        Altered: as ``counts``.
    """
    length = func.length(Spending.subplan)
    query = select(length).where(Spending.account_id == account.id).limit(FEW + 1)
    lengths = connection.execute(query).scalars().all()
    if len(lengths) > FEW or sum(lengths) > _SHORT:
        return None
    committed, held = counts(connection, account)
    return committed + held


def composed(subplans: Subplans, tag: str | None = None) -> Plan:
    """Subplans with their numbers of occurrences as one plan; with ``tag``, only what carries it."""
    parts: list[Plan] = []
    for subplan, occurrences in subplans.items():
        part: Plan | None = nameless(read_plan(json.loads(subplan)))
        if tag is not None and part is not None:
            part = restrict(part, tag)
        if part is not None:
            parts.append(Repeat(part=part, count=occurrences))
    return Sequence(parts=tuple(parts))


def tags_of(subplans: Iterable[str]) -> list[str]:
    """Every tag that some of the subplans carry, in order."""
    found: set[str] = set()
    for subplan in subplans:
        if '"tags":[' in subplan:  # most have none, and reading a plan takes longest
            found.update(*_tags(read_plan(json.loads(subplan))))
    return sorted(found)


def _tags(plan: Plan) -> Iterator[tuple[str, ...]]:
    yield plan.tags
    for part in () if isinstance(plan, Mechanism) else parts_of(plan):
        yield from _tags(part)
