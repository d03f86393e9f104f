"""The stored rows of accounts, each sealed with the installation's secret.

A row holds the head of the journal, whose hash covers every entry before it. So an attacker who can write the database
can neither change an account nor add an entry: a row without its seal is not read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Row, bindparam, select, update
from sqlalchemy.orm import aliased

from service.errors import Altered, NotFound
from service.ledger.journal.linked_heads import require_linked
from service.ledger.spending.spending_rows import read_rows, stored_sum, sum_of
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.secret import Secret, sealed_values
from service.ledger.storage.tables import Account
from service.ledger.storage.transaction import (
    accounts_known,
    batch,
    is_unknown,
    newest_known,
    require_present,
    require_written,
    secret_of,
)

_parents = aliased(Account)
COLUMNS = (
    Account.id,
    Account.name,
    Account.unit,
    Account.neighbouring,
    Account.description,
    Account.budget,
    Account.admission,
    Account.totals,
    Account.state,
    Account.created_at,
    Account.head_seq,
    Account.head_hash,
    select(_parents.name).where(_parents.id == Account.parent_id).scalar_subquery().label("parent"),
    Account.approval_above,
    Account.approvers,
    Account.next_expiry,
    Account.releases,
    Account.partitions_drawn,
    Account.partitions_undeclared,
    Account.spending_sum,
    Account.caps,
    Account.cap_totals,
    Account.periods,
    Account.period_state,
    Account.funding,
    Account.allotted,
    Account.seal,
)
# Added after the first seals, and null in the rows of most accounts.
_OPTIONAL = ("caps", "cap_totals", "periods", "period_state", "funding", "allotted", "approvers")
_SEALED = tuple(column.key for column in COLUMNS if column.key not in ("seal", *_OPTIONAL))
_WITHOUT_SUM = tuple(name for name in _SEALED if name != "spending_sum")  # the columns that 0.4.0 sealed
_PURPOSE = "account"
_AT_ONCE = 500
_SHOWN = 20  # accounts that a log line names
_log = structlog.get_logger("service.accounts")
_UPDATE = update(Account).where(Account.id == bindparam("account"))


def read_row(connection: Connection, name: str) -> Row[*tuple[Any, ...]] | None:
    """Return an account's row as it is, without a check of its seal; None where there is none.

    Returns:
        The columns ``COLUMNS``.
    """
    return connection.execute(select(*COLUMNS).where(Account.name == name)).one_or_none()


def update_rows(connection: Connection, rows: Sequence[tuple[dict[str, object], dict[str, object]]]) -> None:
    """Write the changed values of rows, with their seals; each pair holds the constant and the changeable values.

    Raises:
        Altered: the database dropped some of them.
    """
    secret = secret_of(connection)
    sealed = [
        {"account": fixed["id"], **changing, "seal": seal_of(secret, {**fixed, **changing})} for fixed, changing in rows
    ]
    require_written(connection.execute(_UPDATE, batch(sealed)), len(sealed))


def seal_of(secret: Secret, row: Mapping[Any, object]) -> str:
    """Return the seal of an account's row, over all its columns, with the parent by its name."""
    return secret.row_seal(_PURPOSE, *sealed_values(row, _SEALED, _OPTIONAL))


def is_sealed(secret: Secret, row: Mapping[Any, object]) -> bool:
    """Return whether the service wrote a row as it is.

    No account has the number of the installation's journal, whatever an earlier version sealed: its entries would be
    looked for there.

    Args:
        row: the columns ``COLUMNS``.
    """
    return row["id"] != NO_ACCOUNT and secret.is_text(row["seal"], seal_of(secret, row))


def unsealed(row: Row[*tuple[Any, ...]]) -> str:
    """Return the fault of a row whose seal does not match, in words."""
    if row.seal is None:
        return "its row has no seal; the first start of a server after an upgrade seals old rows"
    if row.spending_sum is None:
        return "its row has no sum of its spending; the first start of a server after an upgrade computes it"
    return "its row, or the last entry of its journal, was not written by the service"


def sealed_rows(
    connection: Connection, account_ids: Sequence[int], *, strangers_too: bool = True
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the rows of accounts, each as the service wrote it.

    Args:
        strangers_too: refuse the rows of ``strangers`` as others, and do not leave them out.

    Yields:
        Rows in no particular order; unknown ids are left out.

    Raises:
        Unavailable: the row of one is not as the service wrote it, or is an older one.
    """
    rows = _rows(connection, account_ids)
    for row in rows if strangers_too else without_strangers(connection, rows):
        require_seal(connection, row)
        yield row


def strangers(connection: Connection, accounts: Iterable[tuple[int, str]]) -> set[int]:
    """Return the ids of those accounts that the service never opened: somebody else inserted their rows.

    Such a row has no right seal, and neither the high-water mark nor this process ever knew the account. Lists leave it
    out; otherwise one such row would end them all. ``verify`` reports it. The row of an account that is known is
    refused instead, because whoever writes the database could take away its seal to hide it. Nothing that is signed
    leaves a row out: somebody who imports an export would forget the charges of the account.

    Args:
        accounts: by id and name.

    Raises:
        Altered: a known account has no row. The row of a stranger may be its own under another name.
    """
    unknown = {account_id: name for account_id, name in accounts if is_unknown(connection, name)}
    found = unsealed_among(connection, unknown) if unknown else set()
    if found:
        _require_rows(connection, accounts_known(connection))
        names = [repr(unknown[account_id]) for account_id in sorted(found)[:_SHOWN]]
        _log.error("rows of accounts that the service did not write are left out", accounts=names, number=len(found))
    return found


def _require_rows(connection: Connection, known: Collection[str]) -> None:
    names = sorted(known)
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        missing = set(some).difference(connection.execute(select(Account.name).where(Account.name.in_(some))).scalars())
        if missing:
            raise absent(min(missing))


def absent(name: str) -> Altered:
    """Return the refusal to answer without an account that is known and has no row."""
    return Altered("the ledger", f"account {name!r}", "there is no row of it, or of one above it; run verify")


def not_found(connection: Connection, name: str) -> Altered | NotFound:
    """Return the error for an account without a row, which a known one has lost."""
    return NotFound("account", name) if newest_known(connection, name) is None else absent(name)


def without_strangers(connection: Connection, rows: Iterable[Row[*tuple[Any, ...]]]) -> list[Row[*tuple[Any, ...]]]:
    """Return the rows of accounts without those of ``strangers``."""
    rows = list(rows)
    left_out = strangers(connection, ((row.id, row.name) for row in rows))
    return [row for row in rows if row.id not in left_out]


def unsealed_among(connection: Connection, account_ids: Collection[int]) -> set[int]:
    """Return the ids of these accounts whose rows the service did not write.

    Args:
        account_ids: ids without an account are left out of the result.
    """
    secret = secret_of(connection)
    return {row.id for row in _rows(connection, list(account_ids)) if not is_sealed(secret, row._mapping)}


def _rows(connection: Connection, account_ids: Sequence[int]) -> Iterator[Row[*tuple[Any, ...]]]:
    for first in range(0, len(account_ids), _AT_ONCE):
        yield from connection.execute(select(*COLUMNS).where(Account.id.in_(account_ids[first : first + _AT_ONCE])))


def require_seal(connection: Connection, row: Row[*tuple[Any, ...]], *, locked: bool = False) -> None:
    """Refuse a row that the service did not write, that is older than a known entry, or that does not follow from it.

    Args:
        locked: whether the transaction locked the row when it read it.

    Raises:
        Altered: the service did not write it.
        Unavailable: it is an older one, or of another version of the journal. All further writes are refused.
    """
    if not is_sealed(secret_of(connection), row._mapping):
        raise Altered("an account's row", f"the row of account {row.name!r}", unsealed(row))
    head = KnownHead(row.name, row.head_seq, row.head_hash)
    require_present(connection, head, locked=locked)
    require_linked(connection, row.id, head)


def seal_old(connection: Connection, secret: Secret, after: int, limit: int, *, without_seal: bool = True) -> list[int]:
    """Seal up to ``limit`` accounts that are older than the sums of spending, with their sums; return their ids.

    An account that 0.4.0 sealed must have that seal. One without a seal is older still, and is sealed as it is,
    provided that ``without_seal`` says that there can be such accounts. The contents of the rows of spending are not
    checked.

    Args:
        after: an account's id; only later ones are looked at.

    Returns:
        Ascending; empty once none is left.
    """
    old = Account.spending_sum.is_(None) | Account.seal.is_(None)
    query = select(*COLUMNS).where(old).order_by(Account.id).limit(limit).with_for_update()
    while rows := connection.execute(query.where(Account.id > after)).all():
        sealed = [given for row in rows if (given := _sealed_old(connection, secret, row, without_seal=without_seal))]
        if sealed:
            connection.execute(_UPDATE, batch(sealed))
            return [row["account"] for row in sealed]
        after = rows[-1].id
    return []


def _sealed_old(
    connection: Connection, secret: Secret, row: Row[*tuple[Any, ...]], *, without_seal: bool
) -> dict[str, Any] | None:
    if row.seal is None:
        known = without_seal
    else:
        known = secret.is_seal(row.seal, _PURPOSE, *sealed_values(row._mapping, _WITHOUT_SUM, _OPTIONAL))
    found = read_rows(connection, row.id) if known else None
    if found is None:
        return None  # it stays unsealed, and is refused
    added = {"spending_sum": stored_sum(secret, row.id, sum_of(secret, *found))}
    return {"account": row.id, **added, "seal": seal_of(secret, {**row._mapping, **added})}
