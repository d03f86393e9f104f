"""API keys: making, listing, revoking; stewards only."""

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field
from sqlalchemy import Connection

from service.api import examples
from service.api.accounts import AccountName
from service.api.auth import CurrentPrincipal, require
from service.api.body import StrictRoute
from service.api.context import Changing, CurrentDatabase, in_writers, ok, respond
from service.api.exact import Label, Strict
from service.api.paging import Cursor, Limit, page, read_cursor
from service.errors import Forbidden, InvalidInput
from service.ledger import clock, keys
from service.ledger.idempotency import StoredAnswer
from service.ledger.keys import KeyRecord, Principal, Role
from service.ledger.once import Answer, Reload, Source, once_reloaded

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=StrictRoute)


_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def _written(value: Any) -> Any:
    """Numbers would be taken for seconds or milliseconds since 1970, by their size."""
    if value is not None and not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("expected a moment as in RFC 3339, such as 2031-12-31T23:59:59Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a moment in the years 1 to 9999 of UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc), BeforeValidator(_written)]


class CreateKey(Strict):
    """A key to make."""

    name: Label = Field(description="The principal: who acts with this key. Keys of one principal can be rotated.")
    role: Literal["auditor", "pipeline", "steward"]
    accounts: Annotated[list[AccountName], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="The only accounts that the key may touch; null: all."
    )
    expires_at: Moment | None = Field(None, description="RFC 3339 with a time zone.")


class KeyBody(BaseModel):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    accounts: list[str] | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class CreatedKey(KeyBody):
    """A key with its secret, which is shown this once."""

    key: str


class KeyPage(BaseModel):
    """A page of keys."""

    items: list[KeyBody]
    next_cursor: str | None


KeyPath = Annotated[str, Path(description="The key's id.", examples=[examples.KEY_ID])]


@router.post("", status_code=201, response_model=CreatedKey, openapi_extra=examples.body(examples.KEY))
@in_writers
def create_key(body: CreateKey, change: Changing) -> Response:
    """Make a key.

    The answer is the only place where it stands; only its hash is stored.
    """
    _require_keeper(change.principal)
    expires_at = None if body.expires_at is None else clock.stamp(body.expires_at)

    def work(connection: Connection, at: str) -> KeyRecord:
        if expires_at is not None and expires_at <= at:
            raise InvalidInput.at("/expires_at", "expected a moment in the future")
        new = keys.create_key(
            connection,
            change.secret,
            name=body.name,
            role=body.role,
            accounts=body.accounts,
            expires_at=expires_at,
            at=at,
        )
        return new[0]

    made = once_reloaded(change.database, change.request, work, status=201, landed=_landed, reload=_RELOAD)
    shown = _body(made.result) | {"key": keys.token_of(change.secret, made.result.id)}
    return respond(Answer(made.status, json.dumps(shown), made.replayed))


@router.get("", response_model=KeyPage)
def list_keys(
    database: CurrentDatabase, principal: CurrentPrincipal, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List keys.

    Expired and revoked ones too.
    """
    _require_keeper(principal)
    with database.read() as connection:
        found = keys.list_keys(connection, read_cursor(cursor) or None, limit)
    return ok(page([_body(record) for record in found], limit, found[-1].id if found else None))


@router.delete("/{key}", status_code=204)
@in_writers
def revoke_key(key: KeyPath, change: Changing) -> Response:
    """Revoke a key.

    From now on it is refused; what was done with it stays.
    """
    _require_keeper(change.principal)
    change.database.write(lambda connection: keys.revoke_key(connection, key, clock.now()), landed=lambda *_: False)
    return Response(status_code=204)


def _require_keeper(principal: Principal) -> None:
    require(principal, "steward")
    if principal.accounts is not None:
        raise Forbidden("the key is limited to accounts: it could make itself one that is not")


def _body(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "accounts": None if record.accounts is None else list(record.accounts),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
    }


def _landed(connection: Connection, record: KeyRecord) -> bool:
    return keys.has_key(connection, record.id)


def _load(connection: Connection, stored: StoredAnswer) -> KeyRecord:
    if stored.api_key_id is None:
        raise TypeError("an answer to making a key refers to the key")
    return keys.read_key(connection, stored.api_key_id)


# A token is never stored, not even with its answer: a replay derives it again.
_RELOAD: Reload[KeyRecord] = Reload(lambda record: Source(api_key_id=record.id), _load)
