"""Partitions that mechanisms are drawn for: their admission, and the counters that each draw advances.

All partitions of a mechanism are charged once. The ledger cannot check whether they are disjoint. It can check whether
they are those that the plan declares, and whether it declares any.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, case, func, insert, select, text, tuple_

from service.errors import Altered, Conflict, InvalidInput, ServiceError
from service.ledger.accounts import account_rows
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws.choice_branches import ChoiceBound, LaterDraw
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import PartitionsDrawn, Release
from service.ledger.storage.transaction import secret_of
from service.privacy.mechanisms import Mechanism
from service.privacy.partitions import EXPECTED_NAME, Partitions, first_unclear

PartitionsPerMechanism = Sequence[tuple[Mechanism, int]]
"""The number of partitions that a draw takes of each mechanism that it draws."""

Place = tuple[str, str, int]
"""The key of a counter: its release, mechanism and repetition."""

Counts = Mapping[tuple[str, int], int]
"""Counters of a release by their mechanism and repetition."""

BranchRuns = Mapping[int, int]
"""The greatest number of partitions that a mechanism of each branch of a choice was drawn for."""


class DrawnFor(NamedTuple):
    """The partitions that a mechanism of a release was drawn for.

    Attributes:
        declared: the number of partitions that the plan declares; None where it declares none.
        drawn: the number of drawn partitions, in the repetition with the most of them.
    """

    mechanism: str
    declared: int | None
    drawn: int


def refusal(
    mechanism: Mechanism, names: Sequence[str], pointer: Callable[[int], str], *, required: bool
) -> ServiceError | None:
    """Return the error for partitions of these names that a mechanism is not drawn for; None if it may be.

    It is to be raised only if a request was not answered before: earlier versions drew for names of any form.

    Args:
        pointer: from the number of a name to its place in the request, for the fault.
        required: whether a plan must declare the partitions that it is drawn for.
    """
    if not names:
        return None
    unclear = first_unclear(names)
    if unclear is not None:
        return InvalidInput.at(pointer(unclear), EXPECTED_NAME)
    declared = mechanism.partitions
    if declared is None:
        return Conflict(_UNDECLARED) if required else None
    if declared.names is None or declared.names.issuperset(names):
        return None
    other = next(number for number, name in enumerate(names) if name not in declared.names)
    return InvalidInput.at(pointer(other), "expected one of the partitions that the plan declares")


_UNDECLARED = (
    "the plan declares no partitions of this mechanism, and this installation requires a declaration: draw it for the"
    " whole input, or register a release whose plan declares its partitions"
)


def counts_after(connection: Connection, release_id: str, repetition: int, taken: PartitionsPerMechanism) -> Counts:
    """Return the counters of the mechanisms of a draw as it would leave them.

    Raises:
        Altered: one is not as the service wrote it.
        Conflict: they are more than the plan declares.
    """
    after: dict[tuple[str, int], int] = {}
    for mechanism, number in taken:
        if number:
            name, declared = mechanism.name or "", mechanism.partitions
            after[name, repetition] = _after(connection, release_id, name, repetition, number, declared)
    return after


def take(
    connection: Connection,
    account: AccountRecord,
    release_id: str,
    repetition: int,
    taken: PartitionsPerMechanism,
    journalled: Counts,
) -> tuple[AccountRecord, Counts]:
    """Count the partitions of a draw of a locked account; return the account and the counters as they are then.

    Args:
        journalled: the counters before the draw, as the entries of the journal give them.

    Raises:
        Altered: a counter is not as the service wrote it, or is below that of the journal.
        Conflict: they are more than the plan declares.
    """
    counts: dict[tuple[str, int], int] = {}
    for mechanism, number in taken:
        if number:
            name = mechanism.name or ""
            after = count(connection, release_id, name, repetition, number, mechanism.partitions)
            if after - number < journalled.get((name, repetition), 0):
                raise _altered(release_id, name, repetition)
            counts[name, repetition] = after
    drawn = sum(number for _, number in taken)
    undeclared = sum(number for mechanism, number in taken if mechanism.partitions is None)
    counted = replace(
        account,
        partitions_drawn=account.partitions_drawn + drawn,
        partitions_undeclared=account.partitions_undeclared + undeclared,
    )
    return counted, counts


def count(
    connection: Connection, release_id: str, name: str, repetition: int, number: int, declared: Partitions | None
) -> int:
    """Count the partitions of one mechanism in its counter; return the counter.

    Raises:
        Altered: the counter is not as the service wrote it.
        Conflict: they are more than the plan declares.
    """
    after = _after(connection, release_id, name, repetition, number, declared)
    most = None if declared is None else declared.most
    row = _with_seal(secret_of(connection), (release_id, name, repetition, most, after))
    connection.execute(_FIRST if after == number else _NEXT, row)
    return after


def _after(
    connection: Connection, release_id: str, name: str, repetition: int, number: int, declared: Partitions | None
) -> int:
    drawn = _drawn(connection, release_id, name, repetition)
    if declared is not None and drawn + number > declared.most:
        raise Conflict(f"{drawn} of {declared.most} declared partitions are drawn")
    return drawn + number


def _drawn(connection: Connection, release_id: str, name: str, repetition: int) -> int:
    counter = connection.execute(COUNTER, counter_key(release_id, name, repetition)).one_or_none()
    return 0 if counter is None else _sealed(connection, counter).drawn


def branch_runs_of(connection: Connection, release_id: str, bounds: Sequence[ChoiceBound]) -> list[BranchRuns]:
    """Return how often each branch of choices was run, for each bound.

    A branch was run as often as its mechanism that was drawn for most partitions. The time grows with the mechanisms
    that were drawn, so this is read before any lock; a draw only adds to it what was drawn since.

    Returns:
        One for each bound, in their order; branches without a draw can be left out.

    Raises:
        Altered: a counter is not as the service wrote it.
    """
    if not bounds:
        return []
    names = connection.execute(_DRAWN_FROM, {"release": release_id}).scalars().all()
    below = [{name: place for name in names if (place := bound.find(name)) is not None} for bound in bounds]
    turns = {(name, repetitions) for found in below for name, (_, repetitions) in found.items()}
    given = json.dumps([(name, repetitions.start, repetitions.stop) for name, repetitions in turns])
    statement = text(_GREATEST_OF_TURNS[connection.dialect.name])
    rows = connection.execute(statement, {"release": release_id, "turns": given}).all() if turns else []
    unlike = {(row.mechanism, row.repetition): row for row in rows}  # a counter may be the greatest of many turns
    sealed = {place: _sealed(connection, row) for place, row in unlike.items()}
    greatest = {(row.mechanism, row.first): sealed[row.mechanism, row.repetition].drawn for row in rows}
    return [
        _most_of_each(
            (branch, greatest.get((name, repetitions.start), 0)) for name, (branch, repetitions) in found.items()
        )
        for found in below
    ]


def refuse_beyond(
    connection: Connection,
    release_id: str,
    bounds: Sequence[ChoiceBound],
    runs: Sequence[BranchRuns],
    counts: Counts,
    since: Sequence[LaterDraw] = (),
) -> None:
    """Refuse a draw after which more partitions than declared would have been drawn from a choice's branches.

    Args:
        runs: of the branches, as they were read before any lock, for each bound.
        counts: the counters that the draw moves, as it leaves them.
        since: the draws since ``runs`` was read, whose counters are read again.

    Raises:
        Altered: a counter is not as the service wrote it.
        Conflict: more would have been drawn.
    """
    if not bounds:
        return
    moved = {(name, one.repetition) for one in since if one.release_id == release_id for name, _ in one.taken}
    now = {place: _drawn(connection, release_id, *place) for place in moved - counts.keys()} | dict(counts)
    for bound, earlier in zip(bounds, runs, strict=True):
        later = [
            (found[0], drawn)
            for (name, repetition), drawn in now.items()
            if (found := bound.find(name)) is not None and repetition in found[1]
        ]
        if sum(_most_of_each([*earlier.items(), *later]).values()) > bound.most:
            raise Conflict(
                f"{bound.most} of {bound.most} declared partitions are drawn, of all branches of a choice together"
            )


def _most_of_each(runs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the greatest number of each branch."""
    most: dict[int, int] = {}
    for branch, number in runs:
        most[branch] = max(most.get(branch, 0), number)
    return most


_Row = PartitionsDrawn
_NAMES = ("release_id", "mechanism", "repetition", "most", "drawn")
_PURPOSE = "partitions-drawn"
_AT_ONCE = 1000
# Statements are built once, because building one costs more than running it.
COLUMNS = (_Row.release_id, _Row.mechanism, _Row.repetition, _Row.most, _Row.drawn, _Row.seal)
_KEY = (_Row.release_id, _Row.mechanism, _Row.repetition)
COUNTER = select(*COLUMNS).where(*(column == bindparam(f"of_{column.key}") for column in _KEY))
_nth = func.row_number().over(partition_by=_KEY[:2], order_by=(_Row.drawn.desc(), _Row.repetition)).label("nth")
_numbered = (
    select(*COLUMNS, _nth).where(_Row.release_id.in_(bindparam("releases", expanding=True))).subquery("numbered")
)
_GREATEST = select(_numbered).where(_numbered.c.nth == 1).order_by(_numbered.c.release_id, _numbered.c.mechanism)
_DRAWN_FROM = text(  # each looked up from the previous one, however many repetitions were drawn
    "WITH RECURSIVE drawn_from (name) AS (SELECT min(mechanism) FROM partitions_drawn WHERE release_id = :release"
    " UNION ALL SELECT (SELECT min(p.mechanism) FROM partitions_drawn p WHERE p.release_id = :release"
    " AND p.mechanism > d.name) FROM drawn_from d WHERE d.name IS NOT NULL)"
    " SELECT name FROM drawn_from WHERE name IS NOT NULL"
)
# Each turn's greatest counter is looked up by itself, in the order of the turns, whatever the statistics say.
_GREATEST_OF_TURNS = {
    "sqlite": "SELECT p.release_id, p.mechanism, p.repetition, p.most, p.drawn, p.seal, given.first FROM"
    " (SELECT json_extract(value, '$[0]') AS name, json_extract(value, '$[1]') AS first,"
    " json_extract(value, '$[2]') AS beyond FROM json_each(:turns)) AS given CROSS JOIN partitions_drawn p"
    " ON p.release_id = :release AND p.mechanism = given.name AND p.repetition ="
    " (SELECT q.repetition FROM partitions_drawn q WHERE q.release_id = :release AND q.mechanism = given.name"
    " AND q.repetition >= given.first AND q.repetition < given.beyond ORDER BY q.drawn DESC LIMIT 1)",
    "postgresql": "SELECT p.*, given.first FROM"
    " (SELECT value ->> 0 AS name, CAST(value ->> 1 AS bigint) AS first, CAST(value ->> 2 AS bigint) AS beyond"
    " FROM json_array_elements(CAST(:turns AS json))) AS given CROSS JOIN LATERAL"
    " (SELECT q.* FROM partitions_drawn q WHERE q.release_id = :release AND q.mechanism = given.name"
    " AND q.repetition >= given.first AND q.repetition < given.beyond ORDER BY q.drawn DESC LIMIT 1) AS p",
}
_FIRST = insert(_Row)
_NEXT = text(
    "UPDATE partitions_drawn SET drawn = :drawn, seal = :seal"
    " WHERE release_id = :release_id AND mechanism = :mechanism AND repetition = :repetition"
)


def counter_key(release_id: str, mechanism: str, repetition: int) -> dict[str, object]:
    """Return the parameters of ``COUNTER``."""
    return {"of_release_id": release_id, "of_mechanism": mechanism, "of_repetition": repetition}


def is_sealed(secret: Secret, counter: Row[*tuple[Any, ...]]) -> bool:
    """Return whether the service wrote a counter as it is."""
    return secret.is_text(counter.seal, seal_of(secret, counter._mapping))


def seal_of(secret: Secret, counter: Mapping[Any, Any]) -> str:
    """Return the seal of a counter."""
    return secret.row_seal(_PURPOSE, *(counter[name] for name in _NAMES))


def _sealed(connection: Connection, counter: Row[*tuple[Any, ...]]) -> Row[*tuple[Any, ...]]:
    """Return the counter after checking its seal.

    Raises:
        Altered: the service did not write it as it is.
    """
    if not is_sealed(secret_of(connection), counter):
        raise _altered(counter.release_id, counter.mechanism, counter.repetition)
    return counter


def _altered(release_id: str, mechanism: str, repetition: int) -> Altered:
    named = f"release {release_id!r}, mechanism {mechanism!r}, repetition {repetition}"
    return Altered("the number of partitions drawn", f"the row of partitions_drawn of {named}")


def seal_old(connection: Connection, secret: Secret, after: Place, limit: int) -> list[Place]:
    """Seal up to ``limit`` counters that are older than seals and follow ``after``; return their places.

    Args:
        after: release, mechanism and repetition; only later places are looked at.

    Returns:
        Ascending; empty once none is left.
    """
    query = select(*COLUMNS).where(_Row.seal.is_(None), tuple_(*_KEY) > tuple_(*after)).order_by(*_KEY).limit(limit)
    rows = connection.execute(query).all()
    for row in rows:
        connection.execute(_NEXT, _with_seal(secret, row[:5]))
    return [(row.release_id, row.mechanism, row.repetition) for row in rows]


def _with_seal(secret: Secret, values: Sequence[object]) -> dict[str, object]:
    counter = dict(zip(_NAMES, values, strict=True))
    return counter | {"seal": seal_of(secret, counter)}


def drawn_for(connection: Connection, release_ids: Iterable[str]) -> Mapping[str, list[DrawnFor]]:
    """Return the partitions that each release was drawn for, by mechanism; releases without any are left out.

    Of each mechanism only the greatest counter is read, so a lower one that an attacker added has no effect.

    Raises:
        Altered: the service did not write one of them.
    """
    found: dict[str, list[DrawnFor]] = {}
    for row in connection.execute(_GREATEST, {"releases": list(release_ids)}):
        counter = _sealed(connection, row)
        found.setdefault(row.release_id, []).append(DrawnFor(counter.mechanism, counter.most, counter.drawn))
    return found


def counters_of(connection: Connection, release_id: str) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield all counters of a release, by mechanism, holding only a few at a time.

    Raises:
        Altered: one was not written by the service.
    """
    query = select(*COLUMNS).where(_Row.release_id == release_id).order_by(*_KEY)
    with connection.execute(query.execution_options(yield_per=_AT_ONCE)) as rows:
        for row in rows:
            yield _sealed(connection, row)


class Total(NamedTuple):
    """The number of partitions drawn in total, and of those of mechanisms that declare none."""

    drawn: int
    undeclared: int


def own_total(connection: Connection, account_id: int) -> Total:
    """Return the counts of an account without those under it, summed from those of its releases."""
    undeclared = func.sum(case((_Row.most.is_(None), _Row.drawn), else_=0))
    query = select(func.sum(_Row.drawn), undeclared).join(Release, Release.id == _Row.release_id)
    drawn, undeclared_drawn = connection.execute(query.where(Release.account_id == account_id)).one()
    return Total(int(drawn or 0), int(undeclared_drawn or 0))


def total(connection: Connection, account_id: int) -> Total:
    """Return the counts of an account and of those under it, each from its sealed row.

    Raises:
        Unavailable: the row of one of them is not as the service wrote it.
    """
    drawn = undeclared = 0
    for row in sealed_family(connection, account_id):
        drawn, undeclared = drawn + row.partitions_drawn, undeclared + row.partitions_undeclared
    return Total(drawn, undeclared)


def sealed_family(connection: Connection, account_id: int) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the sealed rows of an account and of those under it, in no particular order.

    Raises:
        Unavailable: as ``total``.
    """
    family = connection.execute(_FAMILY, {"account": account_id}).scalars().all()
    return account_rows.sealed_rows(connection, family, strangers_too=False)


_FAMILY = text(
    "WITH RECURSIVE family (id) AS (SELECT CAST(:account AS bigint) UNION"  # not ALL: a cycle would have no end
    " SELECT a.id FROM accounts a JOIN family f ON a.parent_id = f.id) SELECT id FROM family"
)
