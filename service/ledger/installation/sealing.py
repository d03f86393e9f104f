"""New seals for a new version of the ledger.

When an operator gives up a version of the ledger, for example to return to a backup, somebody may still hold the rows
of that version, with seals that are right. So the seals of all rows that can change depend on the version, and
``acknowledge`` seals the present rows again. So do those of stored answers, as not every answer states an entry. Other
rows that never change need no other seal: each is bound to its entry by the entry's hash, and the account's sealed row
tells which entries the ledger has.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, FromClause, Row, ScalarSelect, bindparam, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute

from service.ledger.access import key_rows
from service.ledger.accounts import account_rows, allotments
from service.ledger.draws import partitions
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.spending import window_rows
from service.ledger.storage import idempotency
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import (
    Account,
    Allotment,
    ApiKey,
    Hold,
    PartitionsDrawn,
    Release,
    StoredAnswer,
    WindowTotals,
)
from service.ledger.storage.transaction import batch

_AT_ONCE, _OF_ANSWERS = 500, 50  # rows; answers may have megabytes
_RING = 2**256

Owner = int | str
"""An account's id, or that of a key."""


class SealedRows(NamedTuple):
    """Rows with seals: their number, and a sum of codes of their seals, which other rows do not have."""

    number: int
    digest: int


@dataclass(frozen=True, slots=True)
class _Table:
    """A table whose seals depend on the version.

    Attributes:
        columns: those from which a seal is computed, and the seal.
        seal_of: computes the seal of a row.
        owner: the id of the account or key that a row belongs to.
        at_once: the number of rows in memory.
    """

    table: FromClause
    columns: Sequence[Any]
    seal_of: Callable[[Secret, Mapping[Any, Any]], str]
    owner: InstrumentedAttribute[Any] | ScalarSelect[Any]
    at_once: int = _AT_ONCE

    def sealed(
        self, connection: Connection, secret: Secret, without: Collection[Owner]
    ) -> Iterator[list[Row[*tuple[Any, ...]]]]:
        """Yield the rows that the service wrote, some at a time, in the order of the primary key."""
        key = self.table.primary_key
        query = select(*self.columns, self.owner.label("owner")).order_by(*key).limit(self.at_once)
        after, passed = query, 0
        while rows := connection.execute(after.offset(passed)).all():
            yield [
                row
                for row in rows
                if row.owner not in without and secret.is_text(row.seal, self.seal_of(secret, row._mapping))
            ]
            # SQLite takes any bytes as a text, but a statement cannot name such a key, so it is passed by its place.
            named = [place for row in rows if bytes not in map(type, place := [row._mapping[one.key] for one in key])]
            after, passed = (
                (query.where(tuple_(*key) > tuple_(*named[-1])), 0) if named else (after, passed + len(rows))
            )

    def seal(self, connection: Connection, secret: Secret, rows: Sequence[Row[*tuple[Any, ...]]]) -> None:
        """Write the seals of rows for the version of the secret."""
        key = self.table.primary_key
        change = update(self.table)  # type: ignore[arg-type] # it is a Table
        change = change.where(*(column == bindparam(f"of_{column.key}") for column in key))
        sealed = [
            {f"of_{column.key}": row._mapping[column.key] for column in key}
            | {"new_seal": self.seal_of(secret, row._mapping)}
            for row in rows
        ]
        if sealed:
            connection.execute(change.values(seal=bindparam("new_seal")), batch(sealed))


_account_of_counter = select(Release.account_id).where(Release.id == PartitionsDrawn.release_id).scalar_subquery()
_TABLES = (
    _Table(ApiKey.__table__, (*key_rows.SEALED, ApiKey.seal), key_rows.seal_of, ApiKey.id),
    _Table(Account.__table__, account_rows.COLUMNS, account_rows.seal_of, Account.id),
    _Table(WindowTotals.__table__, window_rows.COLUMNS, window_rows.seal_of, WindowTotals.account_id),
    _Table(Allotment.__table__, allotments.COLUMNS, allotments.seal_of, Allotment.account_id),
    _Table(Release.__table__, release_rows.STATE, release_rows.state_seal, Release.account_id),
    _Table(Hold.__table__, reservation_rows.COLUMNS, reservation_rows.seal_of, Hold.account_id),
    _Table(PartitionsDrawn.__table__, partitions.COLUMNS, partitions.seal_of, _account_of_counter),
    _Table(
        StoredAnswer.__table__, idempotency.COLUMNS, idempotency.seal_of, StoredAnswer.api_key_id, at_once=_OF_ANSWERS
    ),
)


def sealed_rows(connection: Connection, secret: Secret, without: Collection[Owner]) -> SealedRows:
    """Count the rows that ``seal_again`` would seal, and sum them up."""
    return _summed(secret, (rows for table in _TABLES for rows in table.sealed(connection, secret, without)))


def seal_again(connection: Connection, old: Secret, new: Secret, without: Collection[Owner]) -> SealedRows:
    """Seal all rows whose seals depend on the version for another version, and return them as they were.

    Args:
        old: the secret with the version in which the present rows were sealed; other rows keep their seals, and stay
            refused.
        new: the secret with the version that begins.
        without: accounts and keys whose rows keep their seals too.
    """

    def sealed() -> Iterator[list[Row[*tuple[Any, ...]]]]:
        for table in _TABLES:
            for rows in table.sealed(connection, old, without):
                table.seal(connection, new, rows)
                yield rows

    return _summed(old, sealed())


def _summed(secret: Secret, batches: Iterable[list[Row[*tuple[Any, ...]]]]) -> SealedRows:
    number = digest = 0
    for rows in batches:
        number += len(rows)
        digest += sum(secret.number("sealed row", row.seal) for row in rows)
    return SealedRows(number, digest % _RING)
