"""The events of one release: who registered, approved, drew and ended it, when, and with which reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.entries import EntryMembers, ParsedEntry, read_members
from service.ledger.journal.journal import Kind
from service.ledger.releases.recorded_releases import entries_of, numbers_of_later, read_recorded
from service.ledger.releases.releases import entry_of
from service.ledger.releases.reservation_rows import State
from service.ledger.storage.paging import CHARACTERS, BeforeReading, Page
from service.ledger.storage.tables import Entry

_LATER: tuple[Kind, ...] = ("approved", "committed", "voided", "expired", "drawn", "described", "repriced")


@dataclass(frozen=True, slots=True)
class Event:
    """A journal entry about a release.

    Attributes:
        entry: the members of every entry, such as its time and its actor.
        state: the state that it brought the release to; None: it changed no state.
        reason: the actor's own words; None: none were given.
    """

    entry: EntryMembers
    state: State | None
    reason: str | None


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
        first = read_members(entry_of(connection, account.id, release))
        events.append(Event(first, _registered_as(first), None))
    numbers = [one for one in numbers_of_later(connection, account, release, _LATER) if one > after]
    wanted = _first_of(connection, account, numbers[: limit - len(events)], before_reading)
    events += map(_event, entries_of(connection, account, release, _LATER, wanted))
    events.more = len(wanted) < len(numbers)
    return events


def _registered_as(entry: EntryMembers) -> State:
    match entry.kind:
        case "proposed" | "reserved" | "committed":
            return entry.kind
    raise ValueError("the entry registers no release")


def _event(entry: ParsedEntry) -> Event:
    return Event(entry, entry.content.next_state(), entry.content.view().reason)


def _first_of(
    connection: Connection, account: AccountRecord, numbers: Sequence[int], before_reading: BeforeReading
) -> Sequence[int]:
    """Return the first of some entries, as many as a page holds by the length of their texts."""
    query = select(func.length(Entry.body)).where(Entry.account_id == account.id, Entry.seq.in_(numbers))
    total = count = 0
    for size in connection.execute(query.order_by(Entry.seq)).scalars():
        total, count = total + size, count + 1
        if total >= CHARACTERS:
            break
    before_reading(total)
    return numbers[:count]
