"""What an account has spent it on: each distinct subplan with how often it occurs.

Balances at any order, tag or delta are computed from this and not from the releases, of which
there may be millions.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from sqlalchemy import Connection, select, text

from service.ledger.journal import canonical
from service.ledger.tables import Spending
from service.privacy.mechanisms import Mechanism
from service.privacy.notation import read_plan, write_plan
from service.privacy.plan import Plan, Repeat, Sequence, parts_of, restrict, with_parts

_COUNT = text(
    "INSERT INTO spending (account_id, digest, subplan, occurrences) VALUES (:account, :digest, :subplan, :occurrences)"
    " ON CONFLICT (account_id, digest) DO UPDATE SET occurrences = spending.occurrences + excluded.occurrences"
)


def record(connection: Connection, account_id: int, subplans: Counter[str]) -> None:
    """Count the subplans of new releases; rows are touched in one order, so that no two charges deadlock."""
    rows = [
        {
            "account": account_id,
            "digest": hashlib.sha256(subplan.encode()).hexdigest(),
            "subplan": subplan,
            "occurrences": count,
        }
        for subplan, count in sorted(subplans.items())
    ]
    connection.execute(_COUNT, rows)


def subplans_of(plan: Plan, tags: Iterable[str]) -> Counter[str]:
    """The summands of a plan as canonical JSON: without names, with the tags that hold for them."""
    return Counter(
        _mechanism_text(part) if isinstance(part, Mechanism) else canonical(write_plan(part))
        for part in _summands(plan, frozenset(tags))
    )


@lru_cache(maxsize=4096)
def _mechanism_text(mechanism: Mechanism) -> str:
    """Memoised, because pipelines register the same mechanisms again and again."""
    return canonical(write_plan(mechanism))


def plan_of(connection: Connection, account_id: int, tag: str | None = None) -> Plan:
    """All that an account has spent, as one plan; with ``tag``, only what carries it."""
    rows = connection.execute(select(Spending.subplan, Spending.occurrences).where(Spending.account_id == account_id))
    return composed(((row.subplan, row.occurrences) for row in rows), tag)


def composed(subplans: Iterable[tuple[str, int]], tag: str | None) -> Plan:
    """Subplans with their numbers of occurrences as one plan; with ``tag``, only what carries it."""
    parts: list[Plan] = []
    for subplan, occurrences in subplans:
        part: Plan | None = nameless(read_plan(json.loads(subplan)))
        if tag is not None and part is not None:
            part = restrict(part, tag)
        if part is not None:
            parts.append(Repeat(part=part, count=occurrences))
    return Sequence(parts=tuple(parts))


def nameless(plan: Plan) -> Plan:
    """The plan without the names of its mechanisms, on which no loss depends."""
    if isinstance(plan, Mechanism):
        return replace(plan, name=None)
    return with_parts(plan, map(nameless, parts_of(plan)))


def _summands(plan: Plan, tags: frozenset[str]) -> Iterator[Plan]:
    held = tags.union(plan.tags)
    if isinstance(plan, Sequence):
        for part in plan.parts:
            yield from _summands(part, held)
    else:
        yield replace(nameless(plan), tags=tuple(sorted(held)))
