"""New seals for a new version of the ledger.

When an operator gives up a version of the ledger, for example to return to a backup, somebody may still hold the rows
of that version, with seals that are right. So the seals of all rows that can change depend on the version, and
``acknowledge`` seals the present rows again. Rows that never change need no other seal: each is bound to its entry by
the entry's hash, and the account's sealed row tells which entries the ledger has.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute

from service.ledger.access import key_rows
from service.ledger.accounts import account_rows, allotments
from service.ledger.draws import partitions
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.spending import window_rows
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Allotment, ApiKey, Hold, PartitionsDrawn, Release, WindowTotals
from service.ledger.storage.transaction import batch

_AT_ONCE = 500  # rows
_RING = 2**256

Key = tuple[InstrumentedAttribute[Any], ...]
Owner = int | str
"""An account's id, or that of a key."""


class SealedRows(NamedTuple):
    """Rows with seals: their number, and a sum of codes of their seals, which other rows do not have."""

    number: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class _Table:
    """A table whose rows can change.

    Attributes:
        key: its primary key.
        rows: the query of the columns from which a seal is computed, of the seal, and of the row's owner.
        seal_of: computes the seal of a row.
    """

    key: Key
    rows: Select[*tuple[Any, ...]]
    seal_of: Callable[[Secret, Mapping[Any, Any]], str]


def _table(
    key: Key,
    columns: Sequence[Any],
    seal_of: Callable[[Secret, Mapping[Any, Any]], str],
    owner: InstrumentedAttribute[Any],
) -> _Table:
    return _Table(key, select(*columns, owner.label("owner")), seal_of)


_counters = _table(partitions.KEY, partitions.COLUMNS, partitions.seal_of, Release.account_id)
_TABLES = (
    _table((ApiKey.id,), (*key_rows.SEALED, ApiKey.seal), key_rows.seal_of, ApiKey.id),
    _table((Account.id,), account_rows.COLUMNS, account_rows.seal_of, Account.id),
    _table(
        (WindowTotals.account_id, WindowTotals.place),
        window_rows.COLUMNS,
        window_rows.seal_of,
        WindowTotals.account_id,
    ),
    _table((Allotment.account_id, Allotment.child_id), allotments.COLUMNS, allotments.seal_of, Allotment.account_id),
    _table((Release.id,), release_rows.STATE, release_rows.state_seal, Release.account_id),
    _table((Hold.release_id, Hold.account_id), reservation_rows.COLUMNS, reservation_rows.seal_of, Hold.account_id),
    _Table(_counters.key, _counters.rows.join(Release, Release.id == PartitionsDrawn.release_id), _counters.seal_of),
)


def sealed_rows(connection: Connection, secret: Secret, without: Collection[Owner]) -> SealedRows:
    """Count the rows that ``seal_again`` would seal, and sum them up."""
    found = SealedRows()
    for table in _TABLES:
        for rows in _sealed(connection, table, secret, without):
            found = _plus(found, secret, rows)
    return found


def seal_again(connection: Connection, old: Secret, new: Secret, without: Collection[Owner]) -> SealedRows:
    """Seal all rows that can change for another version of the ledger, and return them as they were.

    Args:
        old: the secret with the version in which the present rows were sealed; other rows keep their seals, and stay
            refused.
        new: the secret with the version that begins.
        without: accounts and keys whose rows keep their seals too.
    """
    found = SealedRows()
    for table in _TABLES:
        change = update(table.key[0].class_).values(seal=bindparam("new_seal"))
        change = change.where(*(column == bindparam(f"of_{column.key}") for column in table.key))
        for rows in _sealed(connection, table, old, without):
            found = _plus(found, old, rows)
            sealed = [_place(table, row) | {"new_seal": table.seal_of(new, row._mapping)} for row in rows]
            connection.execute(change, batch(sealed))
    return found


def _sealed(
    connection: Connection, table: _Table, secret: Secret, without: Collection[Owner]
) -> Iterator[list[Row[*tuple[Any, ...]]]]:
    """Yield the rows of a table that the service wrote, some at a time, in the order of the key."""
    query = table.rows.order_by(*table.key).limit(_AT_ONCE)
    rows = connection.execute(query).all()
    while rows:
        sealed = [row for row in rows if row.owner not in without and _is_sealed(table, secret, row)]
        if sealed:
            yield sealed
        last = tuple(rows[-1]._mapping[column.key] for column in table.key)
        rows = connection.execute(query.where(tuple_(*table.key) > tuple_(*last))).all()


def _is_sealed(table: _Table, secret: Secret, row: Row[*tuple[Any, ...]]) -> bool:
    return secret.is_text(str(row.seal), table.seal_of(secret, row._mapping))


def _place(table: _Table, row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    return {f"of_{column.key}": row._mapping[column.key] for column in table.key}


def _plus(found: SealedRows, secret: Secret, rows: Sequence[Row[*tuple[Any, ...]]]) -> SealedRows:
    codes = (int.from_bytes(secret.hmac("sealed row", str(row.seal).encode()), "big") for row in rows)
    return SealedRows(found.number + len(rows), (found.digest + sum(codes)) % _RING)
