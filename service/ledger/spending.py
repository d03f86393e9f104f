"""What an account has spent it on: each distinct subplan with how often it occurs.

Balances at any order, tag or delta are computed from this and not from the releases, of which
there may be millions.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlalchemy import Connection, bindparam, delete, func, select, text, update

from service.ledger.journal import canonical
from service.ledger.tables import Spending
from service.privacy.mechanisms import Mechanism
from service.privacy.notation import read_plan, write_plan
from service.privacy.plan import Plan, Repeat, Sequence, parts_of, restrict, with_parts

_COUNT = text(
    "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
    " VALUES (:account, :digest, :subplan, :occurrences, :reserved)"
    " ON CONFLICT (account_id, digest) DO UPDATE SET occurrences = spending.occurrences + excluded.occurrences,"
    " reserved = spending.reserved + excluded.reserved"
)
_COUNT_MANY = {
    "sqlite": text(
        "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
        " SELECT :account, json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
        " json_extract(value, '$[2]') * :committed, json_extract(value, '$[2]') * :held FROM json_each(:rows)"
        " WHERE true ON CONFLICT (account_id, digest) DO UPDATE SET"
        " occurrences = spending.occurrences + excluded.occurrences, reserved = spending.reserved + excluded.reserved"
    ),
    "postgresql": text(
        "INSERT INTO spending (account_id, digest, subplan, occurrences, reserved)"
        " SELECT :account, value ->> 0, value ->> 1,"
        " CAST(value ->> 2 AS bigint) * :committed, CAST(value ->> 2 AS bigint) * :held"
        " FROM json_array_elements(CAST(:rows AS json)) AS value ON CONFLICT (account_id, digest) DO UPDATE SET"
        " occurrences = spending.occurrences + excluded.occurrences, reserved = spending.reserved + excluded.reserved"
    ),
}
_HERE = (Spending.account_id == bindparam("account"), Spending.digest == bindparam("at"))
_LEFT = Spending.reserved - bindparam("count")
_COMMIT = update(Spending).where(*_HERE).values(reserved=_LEFT, occurrences=Spending.occurrences + bindparam("count"))
_FORGET = delete(Spending).where(*_HERE, Spending.occurrences == 0, Spending.reserved == bindparam("count"))
_RELEASE = update(Spending).where(*_HERE).values(reserved=_LEFT)

_FEW, _SHORT = 64, 1 << 16  # rows, and characters in them, that are read in a moment

Subplans = Counter[str]
"""Summands of plans as canonical JSON, with how often each occurs."""


def record(connection: Connection, account_ids: Iterable[int], committed: Subplans, held: Subplans) -> None:
    """Count the subplans of new releases; rows are touched in one order, so that no two charges deadlock."""
    rows = [
        {
            "account": account_id,
            "digest": _digest(subplan),
            "subplan": subplan,
            "occurrences": committed[subplan],
            "reserved": held[subplan],
        }
        for account_id in account_ids
        for subplan in sorted(committed.keys() | held.keys())
    ]
    if rows:
        connection.execute(_COUNT, rows)


@dataclass(frozen=True, slots=True)
class Many:
    """Subplans that are many, as the text of rows: written where nobody waits, and counted by one statement."""

    rows: str

    @classmethod
    def of(cls, subplans: Subplans) -> "Many | None":
        """None where they are few: a statement a row takes less then."""
        if len(subplans) <= _FEW:
            return None
        return cls(json.dumps([[_digest(subplan), subplan, count] for subplan, count in sorted(subplans.items())]))

    def record(self, connection: Connection, account_ids: Iterable[int], *, held: bool) -> None:
        """Count them."""
        given = {"rows": self.rows, "committed": int(not held), "held": int(held)}
        for account_id in account_ids:
            connection.execute(_COUNT_MANY[connection.dialect.name], given | {"account": account_id})


def settle(connection: Connection, account_ids: Iterable[int], subplans: Subplans, *, committed: bool) -> None:
    """Count what was held as committed, or no longer; what is not counted at all has no row."""
    rows = [
        {"account": account_id, "at": _digest(subplan), "count": count}
        for account_id in account_ids
        for subplan, count in sorted(subplans.items())
    ]
    if not rows:
        return
    if committed:
        connection.execute(_COMMIT, rows)
    else:
        connection.execute(_FORGET, rows)
        connection.execute(_RELEASE, rows)


def _digest(subplan: str) -> str:
    return hashlib.sha256(subplan.encode()).hexdigest()


def subplans_of(plan: Plan, tags: Iterable[str]) -> Subplans:
    """The summands of a plan as canonical JSON: without names, with the tags that hold for them."""
    return Counter(
        _mechanism_text(part) if isinstance(part, Mechanism) else canonical(write_plan(part))
        for part in _summands(plan, frozenset(tags))
    )


@lru_cache(maxsize=4096)
def _mechanism_text(mechanism: Mechanism) -> str:
    """Memoised, because pipelines register the same mechanisms again and again."""
    return canonical(write_plan(mechanism))


def counts(connection: Connection, account_id: int) -> tuple[Subplans, Subplans]:
    """What an account has committed and what it holds, with the accounts under it.

    Each row is a distinct subplan that somebody charged, so that this is as long as the account's
    plans are unlike, and not as its releases are many.
    """
    query = select(Spending.subplan, Spending.occurrences, Spending.reserved).where(Spending.account_id == account_id)
    rows = connection.execute(query).all()
    committed = Counter({row.subplan: row.occurrences for row in rows if row.occurrences})
    return committed, Counter({row.subplan: row.reserved for row in rows if row.reserved})


def few(connection: Connection, account_id: int) -> Subplans | None:
    """What an account has committed and holds, together, where that is little; None where it is more."""
    length = func.length(Spending.subplan)
    query = select(length).where(Spending.account_id == account_id).limit(_FEW + 1)
    lengths = connection.execute(query).scalars().all()
    if len(lengths) > _FEW or sum(lengths) > _SHORT:
        return None
    committed, held = counts(connection, account_id)
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


def nameless(plan: Plan) -> Plan:
    """The plan without the names and the partitions of its mechanisms, on which no loss depends."""
    if isinstance(plan, Mechanism):
        return replace(plan, name=None, partitions=None)
    return with_parts(plan, map(nameless, parts_of(plan)))


def _summands(plan: Plan, tags: frozenset[str]) -> Iterator[Plan]:
    held = tags.union(plan.tags)
    if isinstance(plan, Sequence):
        for part in plan.parts:
            yield from _summands(part, held)
    else:
        yield replace(nameless(plan), tags=tuple(sorted(held)))
