"""Allotments as the journals of the charged accounts state them.

The seal of an allotment's row shows that the service wrote it, but not that it is the present one: the owner of the
database can put an earlier row back. If that row stated a higher price, a change of the allotment would give back more
than the account is charged.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from service.ledger.accounts import allotments
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import AllotmentRow
from service.ledger.accounts.caps import write_prices
from service.ledger.journal.entries import Allotted, ParsedEntry
from service.ledger.journal.entries_about import entries_about, entries_at
from service.ledger.journal.entry_texts import price_key_in
from service.ledger.journal.journal import Head, hash_before

_AT_ONCE = 500  # entries that are read together


def read_recorded(
    connection: Connection, line: Sequence[AccountRecord], child: AccountRecord
) -> dict[int, AllotmentRow]:
    """Return the charges for one allotted account, by the ids of the charged accounts; none if it was just opened.

    Args:
        line: the charged accounts, with heads that this process knows, or locked.

    Raises:
        Altered: a row is missing, or is not the one that the account's journal states last.
    """
    rows = allotments.read_rows(connection, [account.id for account in line], child.id)
    if len(rows) != len(line) and (rows or child.head.seq > 1):
        raise allotments.altered(child.id)
    for account in line:
        if account.id in rows:
            require_recorded(connection, account, {child.name: rows[account.id]})
    return rows


def require_recorded(connection: Connection, account: AccountRecord, rows: Mapping[str, AllotmentRow]) -> None:
    """Refuse rows of allotments that the journal of the charged account does not state last.

    Args:
        account: with a head that this process knows, or has locked.
        rows: by the names of the allotted accounts.

    Raises:
        Altered: the journal states another allotment last, or is not as the service wrote it.
    """
    if not rows:
        return
    stated = _last_entries(connection, account, min(row.seq for row in rows.values()))
    for child, row in rows.items():
        if child not in stated or not _is_stated(stated[child], row):
            raise allotments.altered(row.child_id)


def _last_entries(connection: Connection, account: AccountRecord, first: int) -> dict[str, ParsedEntry]:
    """Return the last entry about each allotment from an entry's number on, by the names of the allotted accounts."""
    if first > account.head.seq:  # of a transaction that was not committed
        return {}
    before = Head(first - 1, hash_before(connection, account.id, first))
    numbers = entries_about(connection, account.chain, None, before, [Allotted.KIND])[Allotted.KIND]
    found: dict[str, ParsedEntry] = {}
    for start in range(0, len(numbers), _AT_ONCE):
        for entry in entries_at(connection, account.chain, numbers[start : start + _AT_ONCE]):
            if isinstance(entry.content, Allotted):
                found[entry.content.child] = entry
    return found


def _is_stated(entry: ParsedEntry, row: AllotmentRow) -> bool:
    content = entry.content
    return isinstance(content, Allotted) and (
        content.plan,
        content.price,
        write_prices(content.caps or ()),
        entry.seq,
    ) == (
        row.plan,
        price_key_in(row.price),
        row.caps,
        row.seq,
    )
