"""The rows of held releases, each sealed, so that exactly the charged prices are given back."""

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, select, tuple_, update

from service.errors import Altered
from service.ledger.storage.secret import Secret, sealed_values
from service.ledger.storage.tables import Hold
from service.ledger.storage.transaction import batch, secret_of
from service.privacy.plans import Plan
from service.privacy.plans.walking import mechanisms_of

COLUMNS = (Hold.release_id, Hold.account_id, Hold.price, Hold.expires_at, Hold.caps, Hold.periods, Hold.seal)
_OPTIONAL = ("caps", "periods")  # added after the first seals, and null in most rows
_SEALED = tuple(column.key for column in COLUMNS if column.key not in ("seal", *_OPTIONAL))

State = Literal["proposed", "reserved", "committed", "voided", "expired"]
"""The state of a release."""

Place = tuple[str, int]


def expires(plan: Plan) -> bool:
    """Return whether a reservation expires by itself: only if nothing of it can be published without a draw here."""
    return all(mechanism.DRAWN for mechanism in mechanisms_of(plan))


def sealed(secret: Secret, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its seal.

    Args:
        row: the columns ``COLUMNS`` but for the seal.
    """
    return {**row, "seal": seal_of(secret, row)}


def seal_of(secret: Secret, row: Mapping[Any, Any]) -> str:
    """Return the seal of a row."""
    return secret.row_seal(_PURPOSE, *sealed_values(row, _SEALED, _OPTIONAL))


def is_sealed(secret: Secret, row: Row[*tuple[Any, ...]]) -> bool:
    """Return whether the service wrote a row as it is."""
    return secret.is_text(row.seal, seal_of(secret, row._mapping))


def require_seal(connection: Connection, row: Row[*tuple[Any, ...]]) -> None:
    """Refuse a row that the service did not write.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    if not is_sealed(secret_of(connection), row):
        raise altered(row.release_id)


def altered(release_id: str) -> Altered:
    """Return the refusal to settle a release whose hold is not as the service wrote it."""
    return Altered("what the release holds", f"a row of holds, of release {release_id!r},")


def seal_old(connection: Connection, secret: Secret, after: Place, limit: int) -> list[Place]:
    """Seal up to ``limit`` rows that are older than seals and follow ``after``; return their places.

    Args:
        after: a release's id and an account's; only later places are looked at.

    Returns:
        Ascending; empty once none is left.
    """
    query = select(*COLUMNS).where(Hold.seal.is_(None), tuple_(Hold.release_id, Hold.account_id) > tuple_(*after))
    query = query.order_by(Hold.release_id, Hold.account_id).limit(limit)
    rows = connection.execute(query).all()
    if rows:
        connection.execute(_UPDATE, batch([_update_values(secret, row._mapping) for row in rows]))
    return [(row.release_id, row.account_id) for row in rows]


def save(connection: Connection, secret: Secret, row: Mapping[Any, Any]) -> None:
    """Write new prices of a present hold, with the row's new seal."""
    connection.execute(_UPDATE, _update_values(secret, row))


def _update_values(secret: Secret, row: Mapping[Any, Any]) -> dict[str, Any]:
    given = {"release": row["release_id"], "account": row["account_id"], "new": row["price"], "under_caps": row["caps"]}
    return given | {"code": seal_of(secret, row)}


_PURPOSE = "hold"
_UPDATE = (
    update(Hold)
    .where(Hold.release_id == bindparam("release"), Hold.account_id == bindparam("account"))
    .values(price=bindparam("new"), caps=bindparam("under_caps"), seal=bindparam("code"))
)
