"""Requests that may come twice: the first answer is kept under the caller's key and given again.

What is compared is a keyed digest: a plain hash of the body would let whoever reads the database
find small counts by trying them.
"""

import hmac
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select

from service.errors import IdempotencyConflict
from service.ledger import tables
from service.ledger.installation import Secret
from service.ledger.journal import Kept


@dataclass(frozen=True)
class Request:
    """What makes two requests the same one."""

    principal: str  # keys are rotated, so a principal and not its key
    key: str | None  # the Idempotency-Key; None: never replayed
    digest: str  # from `request_digest`
    kept: Kept | None = None  # an entry that the journal must hold, else nothing is done


@dataclass(frozen=True)
class StoredAnswer:
    """The first answer. One of a draw or an API key is rendered again: its body has no noise and no token."""

    status: int
    body: str | None
    draw_id: str | None
    api_key_id: str | None
    created_at: str


_stored = tables.StoredAnswer
# Statements are built once: building one costs more than running it.
_FIND = select(
    _stored.request_digest,
    _stored.status,
    _stored.body,
    _stored.draw_id,
    _stored.api_key_id,
    _stored.created_at,
).where(_stored.principal == bindparam("principal"), _stored.key == bindparam("key"))
_STORE = insert(_stored)


def request_digest(secret: Secret, method: str, path_with_query: str, body: bytes | bytearray) -> str:
    """A digest of the whole request that only the holder of the secret can compute."""
    return secret.hmac("idempotent-request", method.encode(), path_with_query.encode(), body).hex()


def find(connection: Connection, request: Request) -> StoredAnswer | None:
    """The answer that this request got before, if it did.

    Raises:
        IdempotencyConflict: the key came before with another request.
    """
    if request.key is None:
        return None
    row = connection.execute(_FIND, {"principal": request.principal, "key": request.key}).one_or_none()
    if row is None:
        return None
    if not hmac.compare_digest(row.request_digest, request.digest):
        raise IdempotencyConflict("this Idempotency-Key was used before with another request")
    return StoredAnswer(row.status, row.body, row.draw_id, row.api_key_id, row.created_at)


def store(
    connection: Connection,
    request: Request,
    *,
    status: int,
    body: str | None,
    draw_id: str | None = None,
    api_key_id: str | None = None,
    at: str,
) -> None:
    """Keep the first answer, in the transaction that did what the request asked.

    Where two requests with one key run at the same moment the primary key lets one of them in;
    the other is run again by ``Database.write`` and finds this answer.
    """
    if request.key is None:
        return
    row = {"principal": request.principal, "key": request.key, "request_digest": request.digest, "status": status}
    row |= {"body": body, "draw_id": draw_id, "api_key_id": api_key_id, "created_at": at}
    connection.execute(_STORE, row)
