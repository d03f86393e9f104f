"""Route of an account's journal as server-sent events."""

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from service.api.http.accepted_types import preferred
from service.api.http.csv_answers import MEDIA_TYPE as TABLE
from service.api.http.dependencies import CurrentDatabase
from service.api.http.event_streams import HEADERS, MEDIA_TYPE, comment, event, retry
from service.api.http.followed_journals import FollowedJournals
from service.api.http.memory_room import Room, Take
from service.api.http.request_parsing import StrictRoute
from service.api.identity.auth import AGAIN, CurrentPrincipal, require
from service.api.routes.accounts import AccountPath
from service.errors import InvalidInput, ServiceError
from service.ledger.accounts import accounts
from service.ledger.journal import journal
from service.ledger.journal.canonical_json import LARGEST_INTEGER
from service.ledger.storage.database import Database

_PAGE = 100  # entries that are read at once
_CHARACTERS = 1 << 18  # of them; a single entry may have more
_A_CHARACTER = 8  # bytes that one takes at most while it is read and sent: four as text, and its event
_LONG = 1 << 19  # bytes of events that are sent at once, and above which the next ones wait
_REST, _LONGEST_REST = 50, 30.0  # the rest after long ones: as many times as long as they took to read; seconds
_CHECK = 2.0  # seconds after which the key is looked up again
_HEARTBEAT = 15.0  # seconds without an event after which a comment is sent: less than proxies wait
_RETRY = 3  # seconds after which a client should ask again
_NUMBER = re.compile(r"[0-9]{1,16}")


class EventRoute(StrictRoute):
    """Route class for requests that ask for events, beside the route of the same address for other media types."""

    media_type = MEDIA_TYPE

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match only requests that prefer events."""
        match, child = super().matches(scope)
        if match is Match.NONE:
            return match, child
        accept = next((value for name, value in scope.get("headers", ()) if name == b"accept"), b"").decode("latin-1")
        return (match, child) if preferred(accept, (TABLE, MEDIA_TYPE)) == MEDIA_TYPE else (Match.NONE, {})


# The operation is documented with its JSON twin.
router = APIRouter(prefix="/v1/accounts", route_class=EventRoute, include_in_schema=False)


@router.get("/{account}/journal")
async def follow_journal(
    account: AccountPath,
    request: Request,
    database: CurrentDatabase,
    principal: CurrentPrincipal,
    take: Room,
    after: Annotated[int, Query(ge=0, le=LARGEST_INTEGER)] = 0,
    last_event: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """Follow an account's journal."""
    require(principal, "auditor", account)
    if last_event:  # of a client that continues, at the address with which it began
        if not _NUMBER.fullmatch(last_event) or int(last_event) > LARGEST_INTEGER:
            raise InvalidInput.at("/header/Last-Event-ID", "expected the number of an entry")
        after = int(last_event)
    stream = JournalStream(account, database, request.app.state.journals, take)
    await to_thread.run_sync(stream.require, after)
    return JournalResponse(stream, after)


class JournalStream:
    """The events of one account's journal."""

    def __init__(self, account: str, database: Database, journals: FollowedJournals, take: Take) -> None:
        self.account, self.journals = account, journals
        self._database, self._take = database, take

    def require(self, after: int) -> None:
        """Require that there is such an account, with an entry of this number.

        Raises:
            NotFound: there is no such account.
            LedgerRolledBack: its journal ends before that entry.
            Unavailable: the ledger does not answer.
        """
        with self._database.read() as connection:
            record = accounts.read_account(connection, self.account)
        journal.require_number(record.name, record.head, after)

    def read(self, after: int) -> list[tuple[int, bytes]]:
        """Return the numbers and events of the next entries.

        Raises:
            LedgerRolledBack: the journal ends before that number.
            TooLarge: they take more memory than one principal may.
            Unavailable: the ledger does not answer, or there is no memory.
        """
        with self._database.read() as connection:
            record = accounts.read_account(connection, self.account)
            journal.require_number(record.name, record.head, after)
            reserve, until = (lambda characters: self._take(_A_CHARACTER * characters)), record.head.seq
            entries = journal.entries(connection, record.id, after, _PAGE, reserve, until=until, most=_CHARACTERS)
            previous = journal.hash_before(connection, record.id, entries[0].seq) if entries else ""
        events = []
        for entry in entries:
            data = f'{{"entry": {entry.body}, "previous": "{previous}", "hash": "{entry.hash}"}}'
            events.append((entry.seq, event(entry.seq, entry.kind, data)))
            previous = entry.hash
        return events


class JournalResponse(StreamingResponse):
    """A stream of events that ends when its caller's rights do.

    Nothing is read while a client does not read: the answer waits, and the connection ends by its own limit. The client
    resumes then.
    """

    def __init__(self, stream: JournalStream, after: int) -> None:
        self._stream, self._after = stream, after
        self._checked = time.monotonic()
        super().__init__(iter(()), headers=HEADERS, media_type=MEDIA_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as one of the principal's streams."""
        with self._stream.journals.stream(scope["state"]["principal"].name):
            self.body_iterator = self._events(scope)
            await super().__call__(scope, receive, send)

    async def _events(self, scope: Scope) -> AsyncIterator[bytes]:
        try:
            yield retry(_RETRY)
            async for part in self._following(scope):
                yield part
        except ServiceError as error:  # the client asks again, and gets it as a problem
            yield comment(f"the stream ends: {error}")

    async def _following(self, scope: Scope) -> AsyncIterator[bytes]:
        stream, sent = self._stream, time.monotonic()
        while True:
            async for part in self._next(scope):
                yield part
                sent = time.monotonic()
            while not await stream.journals.wait(stream.account, self._after, _CHECK):
                if stream.journals.ending:
                    return
                await self._check(scope)
                if time.monotonic() - sent >= _HEARTBEAT:
                    yield comment()
                    sent = time.monotonic()

    async def _next(self, scope: Scope) -> AsyncIterator[bytes]:
        """Yield the next entries.

        A long one takes the interpreter while it is read, and memory until it is sent: so a principal's streams take
        turns, and rest after it.
        """
        places, name = scope["app"].state.turns, scope["state"]["principal"].name
        journals = self._stream.journals
        async with journals.turn(name):
            async with places.place(name, begun=True):
                begun = time.monotonic()
                events = await to_thread.run_sync(self._stream.read, self._after)
            taken = time.monotonic() - begun
            if sum(len(text) for _, text in events) > _LONG:
                async for part in self._sent(scope, events):
                    yield part
                await journals.rest(min(_LONGEST_REST, _REST * taken))
                return
        async for part in self._sent(scope, events):
            yield part

    async def _sent(self, scope: Scope, events: list[tuple[int, bytes]]) -> AsyncIterator[bytes]:
        for number, text in events:
            for start in range(0, len(text), _LONG):
                if self._stream.journals.ending:
                    return
                if not start:
                    await self._check(scope)
                yield text[start : start + _LONG]
            self._after = number

    async def _check(self, scope: Scope) -> None:
        """Look the caller up again, some seconds after the last time.

        Raises:
            Unauthenticated: the key has expired or was revoked.
            Forbidden: it no longer reaches the account.
            Unavailable: the database does not answer.
        """
        if time.monotonic() - self._checked < _CHECK:
            return
        require(await scope["state"][AGAIN](), "auditor", self._stream.account)
        self._checked = time.monotonic()
