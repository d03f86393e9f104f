"""The events of one release: who registered, approved, drew and ended it, when, and with which reason."""

from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection, func, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.entries import EntryMembers, ParsedEntry, read_members
from service.ledger.journal.journal import Kind
from service.ledger.releases.recorded_releases import entries_of, numbers_of_later, read_recorded
from service.ledger.releases.releases import entry_of
from service.ledger.releases.reservation_rows import State
from service.ledger.storage.paging import BeforeReading, Page, rows_of
from service.ledger.storage.tables import Entry

_LATER: tuple[Kind, ...] = ("approved", "committed", "voided", "expired", "drawn", "described", "repriced")


@dataclass(frozen=True, slots=True)
class Event:
    """A journal entry about a release.

    Attributes:
        entry: the members of every entry, such as its time and its actor.
        state: the state that it brought the release to; None: it changed no state.
        reason: the actor's own words; None: none were given.
        detail: what was drawn; None for other entries.
    """

    entry: EntryMembers
    state: State | None
    reason: str | None
    detail: str | None = None


def list_events(
    connection: Connection,
    account: AccountRecord,
    release_id: str,
    after: int,
    limit: int,
    before_reading: BeforeReading,
) -> Page[Event]:
    """Return a page of a release's events, in their order.

    They are found by the texts of the journal, and each is linked with its head.

    Args:
        after: the number of the entry that the page follows; 0 for the first page.

    Raises:
        NotFound: the account has no such release.
        Altered: the release or an entry about it is not as the service wrote it.
    """
    release = read_recorded(connection, account, release_id)
    events: Page[Event] = Page()
    if after < release.head.seq:
        first = read_members(entry_of(connection, account.id, release))  # its kind has the name of its state
        events.append(Event(first, cast("State", first.kind), None))
    numbers = [one for one in numbers_of_later(connection, account, release, _LATER) if one > after]
    query = select(Entry.seq).where(Entry.account_id == account.id, Entry.seq.in_(numbers[:limit]))
    rows = rows_of(
        connection,
        query.order_by(Entry.seq),
        func.length(Entry.body),
        limit - len(events),
        before_reading=before_reading,
    )
    wanted = numbers[: len(rows) if rows.more else limit]  # with those whose rows are gone, which is refused
    events += map(_event, entries_of(connection, account, release, _LATER, wanted))
    events.more = len(wanted) < len(numbers)
    return events


def _event(entry: ParsedEntry) -> Event:
    view = entry.content.view()
    return Event(entry, entry.content.next_state(), view.reason, view.detail)
