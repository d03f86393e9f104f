"""Route of an account's journal."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from service.api.http import csv_answers, event_streams
from service.api.http.dependencies import CurrentDatabase, in_helpers
from service.api.http.list_answers import AS_TABLE, USUAL, Accepted, answer_list
from service.api.http.memory_room import Room
from service.api.http.paging import Cursor, Limit, read_seq, with_room
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.errors import InvalidInput
from service.ledger.accounts import accounts
from service.ledger.journal import journal
from service.ledger.journal.canonical_json import LARGEST_INTEGER

router = APIRouter(prefix="/v1/accounts", route_class=StrictRoute)


class EntryBody(BaseModel):
    """A journal entry; hash is SHA-256 over the previous hash (32 bytes) and entry in RFC 8785 canonical JSON."""

    entry: dict[str, Any]
    previous: str
    hash: str


class JournalPage(BaseModel):
    """A page of an account's journal."""

    items: list[EntryBody]
    next_cursor: str | None


_COLUMNS = (
    "entry.seq", "entry.time", "entry.kind", "entry.release", "entry.actor", "entry.key", "entry.content", "previous",
    "hash",
)  # fmt: skip
_FORMS: dict[int | str, dict[str, Any]] = {200: AS_TABLE[200] | {"content": csv_answers.ANSWER | event_streams.ANSWER}}


@router.get("/{account}/journal", response_model=JournalPage, responses=_FORMS)
@in_helpers
def read_journal(
    account: AccountPath,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    limit: Limit = 100,
    cursor: Cursor = None,
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=LARGEST_INTEGER,
            description="Only entries with a higher number, in place of cursor. To follow the journal, ask again with"
            " the number of the last entry that you have.",
        ),
    ] = None,
    accept: Accepted = USUAL,
) -> Response:
    """Read an account's journal.

    The oldest entry comes first. Each entry is hashed together with the one before it. A reader who keeps one hash can
    therefore detect any change of the entries before it. With the number of the last entry that was read as after, the
    answer has the entries that were added since. A number above that of the last entry is refused with 412, as a
    restored ledger may have lost it.

    With text/event-stream as Accept the answer is a stream of server-sent events that goes on with each new entry,
    within about a second. It begins after the entry that the header Last-Event-ID or after names, otherwise with the
    first one, and takes neither limit nor cursor. It ends when the key does, when the client does not read, and when
    the server stops; a client then asks again. One principal has at most 16 streams of a server at once.
    """
    require(principal, "auditor", account)
    if after is not None and cursor is not None:
        raise InvalidInput.at("/query/after", "expected either after or cursor")
    first = read_seq(cursor) if after is None else after
    with database.read() as connection:
        record = accounts.read_account(connection, account)
        journal.require_number(record.name, record.head, after or 0)
        entries = journal.entries(connection, record.id, first, limit, with_room(take), until=record.head.seq)
        previous = journal.hash_before(connection, record.id, entries[0].seq) if entries else ""
    items = []
    for entry in entries:
        items.append({"entry": json.loads(entry.body), "previous": previous, "hash": entry.hash})
        previous = entry.hash
    return answer_list(accept, items, entries[-1].seq if entries.more else None, _COLUMNS)
