"""Partitions that mechanisms are drawn for: their admission, and the counters that each draw advances.

All partitions of a mechanism are charged once. The ledger cannot check whether they are disjoint. It can check whether
they are those that the plan declares, and whether it declares any.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, case, func, insert, select, text, tuple_

from service.errors import Altered, Conflict, InvalidInput, ServiceError
from service.ledger.accounts import account_rows
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.draws.choice_branches import ChoiceBound
from service.ledger.storage.database import secret_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import PartitionsDrawn, Release
from service.privacy.mechanisms import Mechanism
from service.privacy.partitions import EXPECTED_NAME, Partitions, first_unclear

Taken = Sequence[tuple[Mechanism, int]]
"""The number of partitions that a draw takes of each mechanism that it draws."""

Place = tuple[str, str, int]
"""The key of a counter: its release, mechanism and repetition."""


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
    "the plan declares no partitions of this mechanism, and this installation asks for them: draw it for the whole"
    " input, or register a release whose plan states its partitions"
)


def take(
    connection: Connection, account: AccountRecord, release_id: str, repetition: int, taken: Taken
) -> AccountRecord:
    """Count the partitions of a draw of a locked account; return the account with its updated counts.

    Raises:
        Conflict: they are more than the plan declares.
    """
    for mechanism, number in taken:
        if number:
            count(connection, release_id, mechanism.name or "", repetition, number, mechanism.partitions)
    drawn = sum(number for _, number in taken)
    undeclared = sum(number for mechanism, number in taken if mechanism.partitions is None)
    return replace(
        account,
        partitions_drawn=account.partitions_drawn + drawn,
        partitions_undeclared=account.partitions_undeclared + undeclared,
    )


def count(
    connection: Connection, release_id: str, name: str, repetition: int, number: int, declared: Partitions | None
) -> None:
    """Count the partitions of one mechanism in its counter.

    Raises:
        Altered: the counter is not as the service wrote it.
        Conflict: they are more than the plan declares.
    """
    counter = connection.execute(COUNTER, counter_key(release_id, name, repetition)).one_or_none()
    drawn = 0 if counter is None else _sealed(connection, counter).drawn
    if declared is not None and drawn + number > declared.most:
        raise Conflict(f"{drawn} of {declared.most} declared partitions are drawn")
    most = None if declared is None else declared.most
    row = _with_seal(secret_of(connection), (release_id, name, repetition, most, drawn + number))
    connection.execute(_FIRST if counter is None else _NEXT, row)


def refuse_beyond(connection: Connection, release_id: str, bounds: Sequence[ChoiceBound]) -> None:
    """Refuse a draw after which more partitions than declared would have been drawn from a choice's branches.

    A branch was run as often as its mechanism that was drawn for most partitions. However deeply choices are nested,
    each turn of a mechanism is looked up once.

    Raises:
        Conflict: more would have been drawn.
    """
    if not bounds:
        return
    names = connection.execute(_DRAWN_FROM, {"release": release_id}).scalars().all()
    below = [{name: place for name in names if (place := bound.find(name)) is not None} for bound in bounds]
    turns = {(name, repetitions) for found in below for name, (_, repetitions) in found.items()}
    greatest = {turn: _greatest(connection, release_id, *turn) for turn in turns}
    for bound, found in zip(bounds, below, strict=True):
        runs: dict[int, int] = {}  # by branch
        for name, (branch, repetitions) in found.items():
            runs[branch] = max(runs.get(branch, 0), greatest[name, repetitions])
        if sum(runs.values()) > bound.most:
            raise Conflict(
                f"{bound.most} of {bound.most} declared partitions are drawn, of all branches of a choice together"
            )


def _greatest(connection: Connection, release_id: str, mechanism: str, repetitions: range) -> int:
    """Return the largest number of partitions that a mechanism was drawn for in one of some repetitions."""
    at = {"release": release_id, "mechanism": mechanism, "start": repetitions.start, "stop": repetitions.stop}
    row = connection.execute(_GREATEST_IN, at).one_or_none()
    return 0 if row is None else _sealed(connection, row).drawn


_Row = PartitionsDrawn
_COLUMNS = ("release_id", "mechanism", "repetition", "most", "drawn")
_PURPOSE = "partitions-drawn"
_AT_ONCE = 1000
# Statements are built once, because building one costs more than running it.
_ROW = (_Row.release_id, _Row.mechanism, _Row.repetition, _Row.most, _Row.drawn, _Row.seal)
_KEY = (_Row.release_id, _Row.mechanism, _Row.repetition)
COUNTER = select(*_ROW).where(*(column == bindparam(f"of_{column.key}") for column in _KEY))
_nth = func.row_number().over(partition_by=_KEY[:2], order_by=(_Row.drawn.desc(), _Row.repetition)).label("nth")
_numbered = select(*_ROW, _nth).where(_Row.release_id.in_(bindparam("releases", expanding=True))).subquery("numbered")
_GREATEST = select(_numbered).where(_numbered.c.nth == 1).order_by(_numbered.c.release_id, _numbered.c.mechanism)
_DRAWN_FROM = text(  # each looked up from the previous one, however many repetitions were drawn
    "WITH RECURSIVE drawn_from (name) AS (SELECT min(mechanism) FROM partitions_drawn WHERE release_id = :release"
    " UNION ALL SELECT (SELECT min(p.mechanism) FROM partitions_drawn p WHERE p.release_id = :release"
    " AND p.mechanism > d.name) FROM drawn_from d WHERE d.name IS NOT NULL)"
    " SELECT name FROM drawn_from WHERE name IS NOT NULL"
)
_GREATEST_IN = (
    select(*_ROW)
    .where(
        _Row.release_id == bindparam("release"),
        _Row.mechanism == bindparam("mechanism"),
        _Row.repetition >= bindparam("start"),
        _Row.repetition < bindparam("stop"),
    )
    .order_by(_Row.drawn.desc())
    .limit(1)
)
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
    return secret.is_seal(counter.seal, _PURPOSE, *(counter._mapping[column] for column in _COLUMNS))


def _sealed(connection: Connection, counter: Row[*tuple[Any, ...]]) -> Row[*tuple[Any, ...]]:
    """Return the counter after checking its seal.

    Raises:
        Altered: the service did not write it as it is.
    """
    if not is_sealed(secret_of(connection), counter):
        named = f"release {counter.release_id!r}, mechanism {counter.mechanism!r}, repetition {counter.repetition}"
        raise Altered("the number of partitions drawn", f"the row of partitions_drawn of {named}")
    return counter


def seal_old(connection: Connection, secret: Secret, after: Place, limit: int) -> list[Place]:
    """Seal up to ``limit`` counters that are older than seals and follow ``after``; return their places."""
    query = select(*_ROW).where(_Row.seal.is_(None), tuple_(*_KEY) > tuple_(*after)).order_by(*_KEY).limit(limit)
    rows = connection.execute(query).all()
    for row in rows:
        connection.execute(_NEXT, _with_seal(secret, row[:5]))
    return [(row.release_id, row.mechanism, row.repetition) for row in rows]


def _with_seal(secret: Secret, values: Sequence[object]) -> dict[str, object]:
    return dict(zip(_COLUMNS, values, strict=True)) | {"seal": secret.seal(_PURPOSE, *values)}


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
    query = select(*_ROW).where(_Row.release_id == release_id).order_by(*_KEY)
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
    family = connection.execute(_FAMILY, {"account": account_id}).scalars().all()
    drawn = undeclared = 0
    for row in account_rows.sealed_rows(connection, family):
        drawn, undeclared = drawn + row.partitions_drawn, undeclared + row.partitions_undeclared
    return Total(drawn, undeclared)


_FAMILY = text(
    "WITH RECURSIVE family (id) AS (SELECT CAST(:account AS bigint) UNION"  # not ALL: a cycle would have no end
    " SELECT a.id FROM accounts a JOIN family f ON a.parent_id = f.id) SELECT id FROM family"
)
