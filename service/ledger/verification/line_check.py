"""The check that an account and the one above it have the same entries about the releases that both are charged for.

Each journal can be sound by itself while they disagree: somebody who writes the database may have put back an earlier
version of one of them. So each step of each release is compared: its registration, its approvals, and its end.
"""

import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Row, Select, func, select

from service.ledger.journal.account_state import AccountState
from service.ledger.journal.entries import KINDS, ParsedEntry, Registration
from service.ledger.journal.entries.settlement import Settlement
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.releases.releases import HELD
from service.ledger.storage.tables import Account, Entry, Release

_STEPS = tuple(
    kind for kind, contents in KINDS.items() if any(issubclass(one, Registration | Settlement) for one in contents)
)
_REGISTERED = tuple(kind for kind, contents in KINDS.items() if any(issubclass(one, Registration) for one in contents))
_MISSING_ABOVE = "the account above it lacks an entry about a release"
_MISSING_HERE = "the account above it has an entry about a release that is missing here"
_MISSING_BELOW = "it has an entry about a release that the account under it lacks"
_MORE_BELOW = "an account under it has an entry about a release that is missing here"


def check_line(connection: Connection, chain: AccountState, account: Row[Any]) -> None:
    """Compare the entries of an account with those of the account above it, if that shares its charges.

    Raises:
        BadRow: one of them lacks an entry of the other.
    """
    if account.parent is None or chain.funding is not None:
        return
    above = connection.execute(select(Account.id).where(Account.name == account.parent)).scalar_one()
    here, there = _steps_of(Entry.account_id == account.id), _steps_of(Entry.account_id == above)
    registered = select(Entry.release_id).where(Entry.account_id == account.id, Entry.kind.in_(_REGISTERED))
    # As a list, which databases sort once: no index finds the entries of a release, so each would be searched for.
    known = there.where(Entry.release_id.in_(registered))
    _require_none(connection, here.except_(there), chain, _MISSING_ABOVE)
    _require_none(connection, known.except_(here), chain, _MISSING_HERE)


def check_below(connection: Connection, chain: AccountState, account: Row[Any]) -> None:
    """Compare the entries of an account with those of all accounts under it that share their charges with it.

    Where every account of a ledger is verified, this finds what ``check_line`` finds for each of these accounts, and
    reads the entries of the account only once.

    Raises:
        BadRow: the account lacks an entry of one under it, or the reverse.
    """
    children = select(Account.id).where(Account.parent_id == account.id, Account.funding.is_(None))
    here, below = _steps_of(Entry.account_id == account.id), _steps_of(Entry.account_id.in_(children))
    charged = here.join(Release, Release.id == Entry.release_id).where(Release.account_id != account.id)
    _require_none(connection, below.except_(here), chain, _MORE_BELOW)
    _require_none(connection, charged.except_(below), chain, _MISSING_BELOW)


def _require_none(
    connection: Connection, steps: CompoundSelect[*tuple[Any, ...]], chain: AccountState, reason: str
) -> None:
    if connection.execute(steps.limit(1)).first() is not None:
        raise BadRow(chain.head.seq, reason)


def _steps_of(condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    steps = select(Entry.release_id, Entry.kind, func.count()).where(condition, Entry.kind.in_(_STEPS))
    return steps.group_by(Entry.release_id, Entry.kind)  # a release may have several approvals


class LineAudit:
    """The comparison in an export, whose entries come one by one: of sums of keyed hashes of the steps."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)  # so that no file can be made whose sums agree by design
        self._all: Counter[str] = Counter()  # by account
        self._own: Counter[str] = Counter()  # of releases that were registered in the account itself
        self._held: dict[tuple[str, str], bool] = {}  # whether a held release was registered in the account itself

    def take(self, account: str, entry: ParsedEntry) -> None:
        """Add the next entry of an account."""
        content = entry.content
        if not isinstance(content, Registration | Settlement):
            return
        place, state = (account, entry.release_id), content.next_state()
        own = content.own if isinstance(content, Registration) else self._held.pop(place, False)
        if state in HELD:
            self._held[place] = own
        step = f"{content.KIND} {entry.release_id}"
        code = int.from_bytes(hmac.digest(self._key, step.encode(), "sha256"), "big")
        self._all[account] += code
        self._own[account] += code * own

    def unequal(self, shared: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the accounts whose steps are not those of it and of the accounts under it.

        Args:
            shared: the accounts that charge the one above them for each release, with the name of that account.
        """
        below: Counter[str] = Counter()
        for account, above in shared:
            below[above] += self._all[account]
        for account, found in self._all.items():
            if found != self._own[account] + below[account]:
                yield account
