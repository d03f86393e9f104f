"""Rows of keys, each sealed with the installation's secret.

A token is derived from the installation's secret and the key's id, so the answer to a repeated request can show it
again. The database holds a code of it that only the secret's holder can compute, and each row is sealed with the
secret. So an attacker who can write the database can neither add a key nor change the rights of one.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy.orm import aliased

from service.errors import NotFound
from service.ledger.access.key_records import KeyRecord, Role
from service.ledger.journal.chains import UNREADABLE
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import ApiKey

_PURPOSE = "api-key-row"
_PREFIX = "pbl_"  # lets secret scanners recognise a leaked token
_LISTED = 10  # ids that share a beginning
_Successor = aliased(ApiKey)
ORDER = (ApiKey.created_at, ApiKey.id)
SEALED = (
    ApiKey.id, ApiKey.name, ApiKey.role, ApiKey.accounts, ApiKey.created_at, ApiKey.expires_at, ApiKey.revoked_at,
    ApiKey.created_by, ApiKey.rotated_from, ApiKey.token_hash,
)  # fmt: skip
COLUMNS = (
    ApiKey.id, ApiKey.name, ApiKey.role, ApiKey.accounts, ApiKey.created_at, ApiKey.expires_at, ApiKey.revoked_at,
    ApiKey.created_by, ApiKey.rotated_from, ApiKey.last_used_at,
    select(_Successor.id).where(_Successor.rotated_from == ApiKey.id).scalar_subquery(), ApiKey.seal.is_not(None),
)  # fmt: skip


def token_of(secret: Secret, key_id: str) -> str:
    """Return the bearer token of a key that ``create_key`` made."""
    code = secret.hmac("api-key", key_id.encode())
    return _PREFIX + base64.urlsafe_b64encode(code).rstrip(b"=").decode()


def read_key(connection: Connection, key_id: str) -> KeyRecord:
    """Return one key.

    Raises:
        NotFound: there is no such key.
    """
    row = connection.execute(select(*COLUMNS).where(ApiKey.id == key_id)).one_or_none()
    if row is None:
        raise NotFound("key", key_id)
    return record_of(row)


def has_key(connection: Connection, key_id: str) -> bool:
    """Return whether there is a key with this id."""
    return connection.execute(select(ApiKey.id).where(ApiKey.id == key_id)).first() is not None


def ids_that_begin(connection: Connection, beginning: str) -> Sequence[str]:
    """Return the ids of keys that begin with a text, in their order; a few where there are many."""
    begun = func.substr(ApiKey.id, 1, len(beginning)) == beginning
    return connection.execute(select(ApiKey.id).where(begun).order_by(ApiKey.id).limit(_LISTED)).scalars().all()


def is_made_by(connection: Connection, secret: Secret, key_id: str, principal: str) -> bool:
    """Return whether a principal made this key, by its row, which must be as the service wrote it."""
    row = connection.execute(select(*SEALED, ApiKey.seal).where(ApiKey.id == key_id)).one_or_none()
    return row is not None and is_sealed(secret, row) and row.created_by == principal


def journalled_values(record: KeyRecord) -> dict[str, object]:
    """Return the values of a key that the installation's journal records when it is made, or found at an upgrade."""
    accounts = None if record.accounts is None else list(record.accounts)
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "accounts": accounts,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "created_by": record.created_by,
        "rotated_from": record.rotated_from,
    }


def stored_keys(connection: Connection, secret: Secret) -> Iterator[tuple[str, str, KeyRecord | None, bool]]:
    """Yield the id and the name of all keys, oldest first, each with its content and whether its seal is right.

    Yields:
        No content for a row that cannot be read; the service wrote no such row.
    """
    for row in connection.execute(select(*COLUMNS, ApiKey.token_hash, ApiKey.seal.label("given")).order_by(*ORDER)):
        record = None
        with suppress(*UNREADABLE):  # SQLite takes any type in any column
            record = record_of(row[:-2])
        yield row.id, row.name, record, secret.is_text(row.given, seal_of(secret, row._mapping))


def unsealed_keys(connection: Connection) -> list[tuple[KeyRecord, str]]:
    """Return the keys without a seal, oldest first, each with the stored code or hash of its token."""
    query = select(*COLUMNS, ApiKey.token_hash).where(ApiKey.seal.is_(None)).order_by(*ORDER)
    return [(record_of(row[:-1]), row.token_hash) for row in connection.execute(query)]


def seal_key(connection: Connection, secret: Secret, key_id: str, token: str) -> None:
    """Seal a key's row as it is, as one that the service wrote."""
    row = lock_row(connection, key_id)._asdict() | {"token_hash": token_code(secret, token)}
    values = {"token_hash": row["token_hash"], "seal": seal_of(secret, row)}
    connection.execute(update(ApiKey).where(ApiKey.id == key_id).values(values))


def lock_row(connection: Connection, key_id: str) -> Row[*tuple[Any, ...]]:
    """Lock a key until the transaction ends, and return its row with its seal.

    Raises:
        NotFound: there is no such key.
    """
    row = connection.execute(select(*SEALED, ApiKey.seal).where(ApiKey.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound("key", key_id)
    return row


def change_row(connection: Connection, secret: Secret, row: Row[*tuple[Any, ...]], **values: str) -> None:
    """Change a key's row. A row that the service did not write gets no seal by that."""
    changed: dict[str, Any] = row._asdict() | values
    if is_sealed(secret, row):
        values["seal"] = seal_of(secret, changed)
    connection.execute(update(ApiKey).where(ApiKey.id == row.id).values(values))


def seal_of(secret: Secret, row: Mapping[Any, Any]) -> str:
    """Return the seal of a row."""
    return secret.row_seal(_PURPOSE, *(row[column.key] for column in SEALED))


def is_sealed(secret: Secret, row: Sequence[Any]) -> bool:
    """Return whether a row, whose last column is its seal, is as the service wrote it."""
    *values, seal = row
    return secret.is_text(seal, secret.row_seal(_PURPOSE, *values))


def any_key(connection: Connection) -> bool:
    """Return whether there is a key."""
    return connection.execute(select(ApiKey.id).limit(1)).first() is not None


def token_code(secret: Secret, token: str) -> str:
    """Return the code of a token that the database stores."""
    return secret.hmac("api-key-token", token.encode()).hex()


def read_reach(stored: str | None) -> tuple[str, ...] | None:
    """Return the accounts that a key reaches, as its row states them; None: all."""
    if stored is None:
        return None
    try:
        names = tuple(json.loads(stored))
        "".join(names).encode()
    except (RecursionError, TypeError, ValueError):  # not written by the service: the key reaches no account
        return ()
    return names


def read_role(stored: str) -> Role:
    """Return the role that a row states."""
    return cast("Role", stored)  # the table's check admits no other


def record_of(row: Sequence[Any]) -> KeyRecord:
    """Return the key of a row with ``COLUMNS``."""
    key_id, name, role, accounts, created_at, *rest = row
    return KeyRecord(key_id, name, read_role(role), read_reach(accounts), created_at, *rest)
