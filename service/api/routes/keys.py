"""Routes of API keys: create, rotate, list and revoke; for stewards only."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.http.dependencies import Change, Changing, CurrentDatabase, CurrentSecret, in_writers, respond
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_cursor, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.openapi import examples
from service.api.routes.accounts import AccountName
from service.api.schemas.exact_numbers import Duration, Label, Short, duration_of
from service.api.schemas.moments import Moment
from service.errors import Conflict, Forbidden, InvalidInput
from service.ledger.access import key_rows, keys
from service.ledger.access.authentication import Principal
from service.ledger.access.key_events import Known, SeenKeys, require_valid, see_keys, sound_keys
from service.ledger.access.key_records import KeyRecord, Role
from service.ledger.accounts import able_approvers, accounts
from service.ledger.accounts.able_approvers import ListedIn
from service.ledger.idempotent_write import Operation, idempotent_write
from service.ledger.storage import clock
from service.ledger.storage.idempotency import Answer

router = APIRouter(prefix="/v1/keys", route_class=StrictRoute)

_MOST_LISTED = 100  # accounts that refuse approvals with a key


MustCount = Annotated[
    bool,
    Field(
        description="Refuse to make the key if an account lists its principal as an approver and would refuse an"
        " approval with it, because a principal beside the list makes it and so knows it."
    ),
]


class CreateKey(Short):
    """A key to create."""

    name: Label = Field(description="The principal that acts with this key. Each of its keys can be rotated.")
    role: Role
    accounts: Annotated[list[AccountName], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="The only accounts that the key may touch, which may be opened later; null: all."
    )
    expires_at: Moment | None = Field(None, description="RFC 3339 with a time zone.")
    must_count: MustCount = False


class RotateKey(Short):
    """The overlap of a key with its successor."""

    overlap: Duration = Field("PT24H", description="The time for which the old key stays valid beside the new one.")
    must_count: MustCount = False


class KeyBody(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    accounts: list[str] | None
    created_at: str
    created_by: str | None = Field(description="The principal that created it; null: the operator.")
    rotated_from: str | None = Field(description="The id of the key that it replaces.")
    rotated_to: str | None = Field(description="The id of the key that replaced it.")
    expires_at: str | None
    last_used_at: str | None = Field(description="To the hour; null: never, or within the last seconds.")
    revoked_at: str | None
    not_approver_of: list[str] = Field(
        description="The accounts that list its principal as an approver, and refuse an approval with this key since a"
        " principal beside the list knows it; at most 100, by name."
    )


class CreatedKey(KeyBody):
    """A key with its secret, which is shown only in this answer."""

    key: str
    unopened_accounts: list[str] = Field(description="Those of its accounts that are not open yet, or misspelt.")


class KeyPage(BaseModel):
    """A page of keys."""

    items: list[KeyBody]
    next_cursor: str | None


KeyPath = Annotated[str, Path(description="The key's id.", examples=[examples.KEY_ID])]


@router.post("", status_code=201, response_model=CreatedKey, openapi_extra=examples.body(examples.KEY))
@in_writers
def create_key(body: CreateKey, change: Changing) -> Response:
    """Create a key.

    Only this answer contains the key; the service stores its hash.
    """
    _require_unlimited(change.principal)
    seen = see_keys(change.database, change.secret)
    lists = _lists_of(change, lambda _: body.name) if body.must_count else []

    def work(connection: Connection, at: str) -> KeyRecord:
        new = keys.create_key(
            connection,
            change.secret,
            name=body.name,
            role=body.role,
            accounts=body.accounts,
            expires_at=None if body.expires_at is None else clock.stamp(body.expires_at),
            at=at,
            by=change.request.actor,
            seen=seen,
        )
        return _counting(connection, change, new[0], seen, lists)

    return _created(change, work, seen)


@router.post("/{key}/rotate", status_code=201, response_model=CreatedKey, openapi_extra=examples.body(examples.ROTATE))
@in_writers
def rotate_key(key: KeyPath, body: RotateKey, change: Changing) -> Response:
    """Rotate a key.

    The new key has the same principal, role and accounts; only this answer contains it. The old key stays valid for the
    overlap, or until its own expiry where that is earlier. Where the old key expires, the new one has a lifetime of the
    same length. A key can be rotated once, while it is valid. Revoke a leaked key, instead of rotating it or as well.
    """
    _require_unlimited(change.principal)
    seen = see_keys(change.database, change.secret)
    lists = _lists_of(change, lambda found: key_rows.read_key(found, key).name) if body.must_count else []

    def work(connection: Connection, at: str) -> KeyRecord:
        overlap = duration_of(body.overlap)
        actor = change.request.actor
        new = keys.rotate_key(connection, change.secret, key, overlap=overlap, at=at, by=actor, seen=seen)
        return _counting(connection, change, new[0], seen, lists)

    return _created(change, work, seen)


@router.get("", response_model=KeyPage, responses=AS_TABLE)
def list_keys(
    database: CurrentDatabase,
    secret: CurrentSecret,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List keys.

    Expired and revoked keys are included.
    """
    _require_unlimited(principal)
    seen = see_keys(database, secret)
    with database.read() as connection:
        known = sound_keys(connection, secret, seen)
        records = keys.list_keys(connection, secret, read_cursor(cursor) or None, limit, with_room(take), known=known)
        lists = able_approvers.lists_of_approvers(connection)
    shown = [_body(record) | _refused_by(lists, known, record) for record in records]
    last = records[-1].id if records.more else None
    return answer_list(accept, shown, last, tuple(KeyBody.model_fields))


@router.delete("/{key}", status_code=204)
@in_writers
def revoke_key(key: KeyPath, change: Changing) -> Response:
    """Revoke a key.

    The key is refused from now on; the ledger keeps all that was done with it.
    """
    _require_unlimited(change.principal)
    seen = see_keys(change.database, change.secret)

    def work(connection: Connection) -> None:
        keys.revoke_key(connection, change.secret, key, at=clock.now(), by=change.request.actor, seen=seen)

    change.database.write(work, is_committed=lambda *_: False)
    return Response(status_code=204)


def _require_unlimited(principal: Principal) -> None:
    require(principal, "steward")
    if principal.accounts is not None:
        raise Forbidden("the key is limited to accounts: it could create a key that is not; use an unlimited one")


def _lists_of(change: Change, name: Callable[[Connection], str]) -> list[ListedIn]:
    """Read the lists that may name a principal; before the lock, since they grow with the accounts.

    Raises:
        NotFound: there is no key to read the name from.
    """
    with change.database.read() as connection:
        return able_approvers.lists_of_approvers(connection, name(connection))


def _counting(
    connection: Connection, change: Change, record: KeyRecord, seen: SeenKeys | None, lists: Sequence[ListedIn]
) -> KeyRecord:
    """Return a new key; refuse one that accounts would refuse which list its principal, as it must count there.

    Raises:
        InvalidInput: an account would.
    """
    if lists:
        known = sound_keys(connection, change.secret, seen)
        refusing = able_approvers.refusing(lists, known, record)
        if refusing:
            raise InvalidInput.at(
                "/must_count",
                f"expected a key with which {record.name} can approve for {_some(refusing)}: {change.principal.name} is"
                " not among the approvers there, and would know this key. Ask the operator of the service for one that"
                f" nobody else knows: {_command(record)}",
            )
    return record


def _command(record: KeyRecord) -> str:
    if record.rotated_from is not None:
        return f"python -m service keys rotate {record.rotated_from}"
    return f"python -m service keys create --role {record.role} --name {shlex.quote(record.name)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refused_by(lists: Sequence[ListedIn], known: Known, record: KeyRecord) -> dict[str, Any]:
    refusing = able_approvers.refusing(lists, known, record) if record.id in known else []
    return {"not_approver_of": refusing[:_MOST_LISTED]}


def _created(change: Change, work: Callable[[Connection, str], KeyRecord], seen: SeenKeys | None) -> Response:
    """Return a new key with its token; the token is never stored, and a replay derives it again."""
    operation = Operation(work, lambda connection, record: key_rows.has_key(connection, record.id))
    done = idempotent_write(change.database, change.request, operation, _stored_answer)
    record = done.result
    if record is None:
        with change.database.read() as connection:
            require_valid(connection, change.secret, change.request.actor, clock.now(), seen)
            record = _load(connection, done.answer)
            if record.id != done.answer.api_key_id or not key_rows.is_made_by(
                connection, change.secret, record.id, change.request.principal
            ):
                raise Conflict("the key of this Idempotency-Key is not as this service wrote it: create another key")
    with change.database.read() as connection:
        lists = able_approvers.lists_of_approvers(connection, record.name)
        known = sound_keys(connection, change.secret, seen)
        unopened = accounts.unopened(connection, record.accounts or ())
    shown = _body(record) | _refused_by(lists, known, record) | {"unopened_accounts": unopened}
    shown |= {"key": key_rows.token_of(change.secret, record.id)}
    return respond(replace(done.answer, body=json.dumps(shown)))


def _stored_answer(record: KeyRecord) -> Answer:
    return Answer(201, json.dumps(_body(record)), api_key_id=record.id)


def _body(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "accounts": None if record.accounts is None else list(record.accounts),
        "created_at": record.created_at,
        "created_by": record.created_by,
        "rotated_from": record.rotated_from,
        "rotated_to": record.rotated_to,
        "expires_at": record.expires_at,
        "last_used_at": record.last_used_at,
        "revoked_at": record.revoked_at,
    }


def _load(connection: Connection, stored: Answer) -> KeyRecord:
    """Load the key as it was created: by the time of a replay it may have been used, rotated or revoked."""
    if stored.api_key_id is None:
        raise TypeError("an answer to making a key refers to the key")
    if stored.body is None:  # written by a version that did not store it
        return key_rows.read_key(connection, stored.api_key_id)
    shown = json.loads(stored.body)
    return KeyRecord(**shown | {"accounts": None if shown["accounts"] is None else tuple(shown["accounts"])})
