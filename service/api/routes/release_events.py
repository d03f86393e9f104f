"""Route of a release's events."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.http.dependencies import CurrentDatabase, in_helpers
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_seq, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.api.routes.releases import ReleasePath
from service.ledger.accounts import accounts
from service.ledger.releases import release_events
from service.ledger.releases.reservation_rows import State

router = APIRouter(prefix="/v1/accounts/{account}/releases", route_class=StrictRoute)


class ReleaseEvent(BaseModel):
    """A journal entry about a release."""

    seq: int = Field(description="The number of the entry in the account's journal.")
    kind: str = Field(description="The kind of the entry: reserved, approved, drawn, ….")
    time: str
    principal: str | None = Field(description="The principal that caused it; null: the ledger, when it expired.")
    state: State | None = Field(description="The state that it brought the release to; null: it changed no state.")
    reason: str | None = Field(description="The principal's own words, where an approval or an end has a reason.")
    detail: str | None = Field(description="What was drawn: mechanism, partition and number of counts.")


class ReleaseEventPage(BaseModel):
    """A page of a release's events."""

    items: list[ReleaseEvent]
    next_cursor: str | None


@router.get("/{release}/events", response_model=ReleaseEventPage, responses=AS_TABLE)
@in_helpers
def list_events(
    account: AccountPath,
    release: ReleasePath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    accept: Accepted = USUAL,
) -> Response:
    """List the events of a release.

    The answer says who registered, approved, described, drew, committed and voided it, when, and with which reason. The
    oldest event comes first. Each is an entry of the account's journal.
    """
    require(principal, "auditor", account)
    with database.read() as connection:
        owner = accounts.read_account(connection, account)
        events = release_events.list_events(connection, owner, release, read_seq(cursor), limit, with_room(take))
    shown = [
        {
            "seq": event.entry.seq,
            "kind": event.entry.kind,
            "time": event.entry.time,
            "principal": event.entry.actor,
            "state": event.state,
            "reason": event.reason,
            "detail": event.detail,
        }
        for event in events
    ]
    last = events[-1].entry.seq if events.more else None
    return answer_list(accept, shown, last, tuple(ReleaseEvent.model_fields))
