"""The order in which accounts with new entries are looked at: principals who caused the entries take turns.

One principal may add entries to hundreds of accounts. The others' accounts must not wait until messages of all these
are made.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, case, func, select
from sqlalchemy.orm import aliased

from service.ledger.journal.chains import read_end
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.storage import clock
from service.ledger.storage.tables import Account, Entry, FollowedJournal, Release
from service.notifications.new_entries import actor_of

_BEGINNING = 1000  # characters of a text, in which its actor lies
_END = 300  # and the entry's time
_AT_ONCE = 500


class Moved(NamedTuple):
    """An account with new entries, and the place that was reached in its journal, if any."""

    account_id: int
    name: str
    last: Head | None


class _First(NamedTuple):
    """The first new entry of an account, as it is stored; no hash vouches for it, and only the order rests on it."""

    after: Head
    cause: str | None
    time: str | None


class Causes:
    """The principals who caused new entries, and their turns, as one server counts them."""

    def __init__(self) -> None:
        self._first = dict[int, _First]()  # by account
        self._last, self._number = dict[str | None, int](), 0  # the number of each principal's last turn

    def order(self, connection: Connection, moved: Sequence[Moved]) -> list[Moved]:
        """Return accounts so that each principal has one of them, then each a second one, and so on.

        The principal is first whose last turn was longest ago.
        """
        self._read_first(connection, moved)
        causes = {one.account_id: self._first[one.account_id].cause for one in moved}
        self._last = {cause: self._last.get(cause, 0) for cause in causes.values()}
        ranks, place = Counter[str | None](), dict[int, tuple[int, int]]()
        for account_id, cause in causes.items():
            place[account_id] = (ranks[cause], self._last[cause])
            ranks[cause] += 1
        return sorted(moved, key=lambda one: place[one.account_id])

    def take(self, one: Moved) -> None:
        """Count a turn of the principal who caused the entries of an account."""
        self._number += 1
        self._last[self._first[one.account_id].cause] = self._number

    def end(self, followed: Collection[int] | None = None) -> None:
        """Forget accounts that have no new entries any more; None: all."""
        self._first = {} if followed is None else {of: one for of, one in self._first.items() if of not in followed}

    def oldest_age(self) -> float:
        """Return the age in seconds of the oldest new entry that is known."""
        times = [one.time for one in [*self._first.values()] if one.time is not None and clock.is_stamp(one.time)]
        return max(0.0, clock.between(min(times), clock.now()).total_seconds()) if times else 0.0

    def _read_first(self, connection: Connection, moved: Sequence[Moved]) -> None:
        """Read the first new entry of each account, unless it is known: its text may be long."""
        first = {one.account_id: self._first.get(one.account_id) for one in moved}
        places = {one.account_id: one.last or BEFORE_FIRST for one in moved}
        known = {of: one for of, one in first.items() if one is not None and one.after == places[of]}
        unknown = [of for of in places if of not in known]
        for start in range(0, len(unknown), _AT_ONCE):
            for row in connection.execute(_FIRST.where(Account.id.in_(unknown[start : start + _AT_ONCE]))):
                end = read_end(row.end) if isinstance(row.end, str) else None
                cause = actor_of(row.beginning) if isinstance(row.beginning, str) else None
                known[row.id] = _First(places[row.id], cause, None if end is None else end.time)
        self._first = {of: known.get(of, _First(place, None, None)) for of, place in places.items()}


_length = func.length(Entry.body)
_registering = aliased(Entry)  # of the release that the entry is about: a release expires by nobody's act
_FIRST = (
    select(
        Account.id,
        func.substr(func.coalesce(_registering.body, Entry.body), 1, _BEGINNING).label("beginning"),
        func.substr(Entry.body, case((_length > _END, _length - _END), else_=1)).label("end"),
    )
    .outerjoin(FollowedJournal, FollowedJournal.account_id == Account.id)
    .join(Entry, and_(Entry.account_id == Account.id, Entry.seq == func.coalesce(FollowedJournal.seq, 0) + 1))
    .outerjoin(Release, Release.id == Entry.release_id)
    .outerjoin(_registering, and_(_registering.account_id == Release.account_id, _registering.seq == Release.seq))
)
