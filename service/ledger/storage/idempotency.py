"""Idempotent replay: the first answer is stored under the caller's key and returned for repeated requests.

Requests are compared by a keyed digest. With a plain hash of the body, a reader of the database could find small counts
by trying them.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from service.errors import Conflict, IdempotencyConflict
from service.ledger.journal.journal import Actor, ExpectedHead, Head
from service.ledger.journal.ordered_rows import stream
from service.ledger.storage import tables
from service.ledger.storage.secret import Secret

_log = structlog.get_logger("service.idempotency")


@dataclass(frozen=True)
class Request:
    """The identity of a request, by which repeated ones are recognised."""

    principal: str  # the principal and not its key, because keys are rotated
    key: str | None  # the Idempotency-Key; None: the request is never replayed
    digest: str  # from `request_digest`
    secret: Secret = field(repr=False)
    kept: ExpectedHead | None = None  # an entry that the journal must hold; otherwise the request is refused
    key_id: str | None = None  # of the principal's API key, for the journal
    account: str | None = None  # that the request is to, by name
    before_noise: Callable[[], None] = lambda: None  # called before noisy counts go to the database

    @property
    def identity(self) -> str | None:
        """Return the identity that a repeated request shares; None if repeats cannot be recognised."""
        return None if self.key is None else f"{self.digest} {self.principal} {self.key}"

    @property
    def actor(self) -> Actor:
        """Return the actor that makes the request."""
        return Actor(self.principal, self.key_id)


@dataclass(frozen=True, slots=True)
class Answer:
    """The first answer to a request, or a replay of it.

    Attributes:
        body: JSON text; None where it is too large or too secret to be stored.
        draw_id, api_key_id: the draw or the API key from which such an answer is rendered again.
    """

    status: int
    body: str | None = None
    draw_id: str | None = None
    api_key_id: str | None = None
    replayed: bool = False

    @property
    def stated(self) -> dict[str, Any]:
        """Return what its body states of an account or a release, of a batch's last one; empty if it has no such body.

        Its ``head`` is the entry that the request added to the journal of the account: ``account``, or for an opening
        or a change of an account, ``name``.
        """
        if self.body is None or not self.body.startswith("{"):  # the id of a job is no document
            return {}
        document: dict[str, Any] = json.loads(self.body)
        stated: dict[str, Any] = document.get("shown", document)  # as the answer to a settlement is stored
        several = stated.get("releases")
        return several[-1] if isinstance(several, list) else stated

    @property
    def stated_head(self) -> Head | None:
        """Return the ``head`` of ``stated``; None if there is none.

        A long body is not parsed, which would hold the interpreter: its head is the last one. No text within quotation
        marks reads like it, since these have a backslash there, and a plan has no member of this name.
        """
        if self.body is None or len(self.body) <= _SHORT:
            head = self.stated.get("head")
            return None if head is None else Head(**head)
        place = self.body.rfind(_BEFORE_HEAD)
        if place < 0:
            return None
        found = _HEAD.match(self.body, place)
        if found is None:
            raise ValueError("expected a head of a number and a hash")
        return Head(int(found[1]), found[2])


ANSWERS_TOO = "answers-"
"""The beginning of the names of versions by which answers are sealed; programs up to 0.12 named versions without it."""
_stored = tables.StoredAnswer
_PURPOSE = "stored-answer"
_SHORT = 1 << 16  # characters of a body that is parsed in a millisecond
_BEFORE_HEAD = '"head": {"seq": '
_HEAD = re.compile(re.escape(_BEFORE_HEAD) + r'([0-9]+), "hash": "([0-9a-f]{64})"\}')
_ROW = (
    _stored.principal,
    _stored.key,
    _stored.request_digest,
    _stored.status,
    _stored.body,
    _stored.draw_id,
    _stored.api_key_id,
    _stored.created_at,
)
# Statements are built once, because building one costs more than running it.
_FIND = select(*_ROW[2:], _stored.seal).where(
    _stored.principal == bindparam("principal"), _stored.key == bindparam("key")
)
_STORE = insert(_stored)
_SEAL = (
    update(_stored)
    .where(_stored.principal == bindparam("whose"), _stored.key == bindparam("which"))
    .values(seal=bindparam("code"))
)
COLUMNS = (*_ROW, _stored.seal)
Place = tuple[str, str]
"""The place of an answer: its principal and Idempotency-Key."""


def request_digest(secret: Secret, method: str, path_with_query: str, body: bytes | bytearray) -> str:
    """Return a digest of the whole request that only the holder of the secret can compute."""
    return secret.hmac("idempotent-request", method.encode(), path_with_query.encode(), body).hex()


def find(connection: Connection, request: Request) -> Answer | None:
    """Return the stored answer of a repeated request; None for a new one.

    Raises:
        IdempotencyConflict: the key came before with another request.
        Conflict: the stored answer was altered, or is one of a version of the ledger that was given up.
    """
    if request.key is None:
        return None
    row = connection.execute(_FIND, {"principal": request.principal, "key": request.key}).one_or_none()
    if row is None:
        return None
    *values, seal = row
    if not request.secret.is_text(seal, _seal(request.secret, request.principal, request.key, *values)):
        _log.warning("a stored answer is not as this service wrote it", principal=request.principal)
        raise Conflict(
            "the stored answer to this Idempotency-Key was changed and is not repeated: look up whether the request was"
            " carried out"
        )
    if not hmac.compare_digest(row.request_digest, request.digest):
        raise IdempotencyConflict("this Idempotency-Key was used before with another request")
    return Answer(row.status, row.body, row.draw_id, row.api_key_id, replayed=True)


def store(connection: Connection, request: Request, answer: Answer, at: str) -> None:
    """Store the first answer, in the transaction that has the request's effect.

    If two requests with one key run at the same moment, the primary key admits one of them. ``Database.write`` runs the
    other again, which then finds this answer.
    """
    if request.key is None:
        return
    row: dict[str, object] = {"principal": request.principal, "key": request.key, "request_digest": request.digest}
    row |= {"status": answer.status, "body": answer.body, "draw_id": answer.draw_id, "api_key_id": answer.api_key_id}
    row["created_at"] = at
    connection.execute(_STORE, row | {"seal": _seal(request.secret, *row.values())})


def seal_of(secret: Secret, row: Mapping[Any, object]) -> str:
    """Return the seal of an answer's row in the present version of the ledger."""
    return _seal(secret, *(row[column.key] for column in _ROW))


def _seal(secret: Secret, *values: object) -> str:
    code = secret.seal(_PURPOSE, *values)
    return secret.in_version(code) if secret.version.startswith(ANSWERS_TOO) else code


def seal_old(connection: Connection, secret: Secret, after: Place, limit: int) -> list[Place]:
    """Seal up to ``limit`` answers that are older than seals and follow ``after``; return their places."""
    query = select(*_ROW).where(_stored.seal.is_(None), tuple_(_stored.principal, _stored.key) > tuple_(*after))
    rows = connection.execute(query.order_by(_stored.principal, _stored.key).limit(limit)).all()
    sealed = [{"whose": row.principal, "which": row.key, "code": seal_of(secret, row._mapping)} for row in rows]
    if sealed:
        connection.execute(_SEAL, sealed)
    return [(row.principal, row.key) for row in rows]


def stored_answers(connection: Connection, secret: Secret) -> Iterator[tuple[str, Answer | None]]:
    """Yield the principal of each stored answer, with the answer; None for one that was altered."""
    with ExitStack() as cursors:
        for row in stream(connection, select(*COLUMNS), cursors):
            sound = secret.is_text(row.seal, seal_of(secret, row._mapping))
            yield row.principal, Answer(row.status, row.body, row.draw_id, row.api_key_id) if sound else None
