"""Releases that are read with the journal entries that made them.

The seal of a release's row shows that the service wrote it, but not that it was committed: whoever owns the database
can keep the rows of a transaction that failed, and show them for a moment. So an answer that people act on, such as
"committed", needs the entries of the charge and of the present state.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from service.errors import Altered
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.chains import is_hashed, read_end
from service.ledger.journal.entries import (
    Approved,
    ParsedEntry,
    PriceChanged,
    Registration,
    Settlement,
    read,
    read_text,
)
from service.ledger.journal.entries_about import entries_about, entries_at
from service.ledger.journal.entry_texts import PriceKey
from service.ledger.journal.journal import Actor, Head, Kind, hash_before
from service.ledger.journal.linked_heads import contains
from service.ledger.releases import release_rows
from service.ledger.releases.releases import HELD, ReleaseRecord, entry_of, read_release, state_of
from service.ledger.storage.tables import Entry

_STEPS: tuple[Kind, ...] = ("approved", "committed", "voided", "expired")
_TEXT = select(Entry.body).where(Entry.account_id == bindparam("account"), Entry.seq == bindparam("seq"))
_AT_ONCE = 500  # entries that are read together
_MISFILED = "the journal's entries about it are not filed as the service filed them"


@dataclass(frozen=True, slots=True)
class RecordedCharge:
    """The charge of a release to its account, as the account's journal states it.

    Attributes:
        entry: the entry that registered the release.
        price: the price that is charged, the last one of a release that was priced again.
        accountant: the version of the accountant that found this price.
        caps: the prices under the caps that the account had when the release was registered, by tag.
    """

    entry: Mapping[str, Any]
    price: PriceKey
    accountant: str
    caps: Mapping[str, PriceKey] = field(default_factory=dict)


def read_recorded(connection: Connection, account: AccountRecord, release_id: str) -> ReleaseRecord:
    """Return a release of an account whose charge and state are recorded in the account's journal.

    Raises:
        NotFound: the account has none with this id.
        Altered: its row is not as the service wrote it, or the journal lacks an entry.
    """
    release = read_release(connection, account.id, release_id)
    require_recorded(connection, account, release)
    return release


def require_recorded(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> None:
    """Refuse a release whose charge or present state is not recorded in the account's journal.

    A held release is refused where the journal has a later state. The other states are never left.

    Args:
        account: with a head that this process knows, or has locked.
        release: in the state of its row.

    Raises:
        Altered: the journal lacks an entry, or records another state.
    """
    steps = list(later_entries(connection, account, release, _STEPS)) if release.state in HELD else []
    if steps:
        _require_state(release, steps)
    elif _has_state_of_charge(connection, account.id, release):
        if not contains(connection, account.chain, [release.head]):
            raise _unrecorded(release)
    elif release.state in HELD or not _has_step(connection, account, release):
        raise _unrecorded(release)


def present(connection: Connection, account: AccountRecord, found: ReleaseRecord, since: Head) -> ReleaseRecord:
    """Return a release of a locked account in its present state, which its row has and the journal records.

    Args:
        found: as it was recorded before the lock.
        since: the account's head at which it was.

    Raises:
        Altered: its row has another state than the journal.
    """
    state = state_of(connection, account.id, found.id)
    if found.state not in HELD and state == found.state:  # which is never left
        return found
    release = replace(found, state=state)
    steps = list(later_entries(connection, account, release, _STEPS, since))
    if steps:
        _require_state(release, steps)
    elif state != found.state:
        raise _unrecorded(release)
    return release


def _require_state(release: ReleaseRecord, steps: Sequence[ParsedEntry]) -> None:
    """Refuse a release in another state than the last of the entries about it gave it.

    Raises:
        Altered: it has another state.
    """
    last = steps[-1].content
    if not isinstance(last, Settlement) or last.next_state() != release.state:
        raise _unrecorded(release)


def _unrecorded(release: ReleaseRecord) -> Altered:
    return release_rows.altered(release.id, "the journal does not record its charge or its state")


def _has_state_of_charge(connection: Connection, account_id: int, release: ReleaseRecord) -> bool:
    """Return whether a release still has the state that the entry of its charge stated, if that entry is genuine."""
    body = connection.execute(_TEXT, {"account": account_id, "seq": release.head.seq}).scalar_one()
    if not is_hashed(hash_before(connection, account_id, release.head.seq), body, release.head.hash):
        return False
    end = read_end(body)
    return end is not None and end[:3] == (release.state, release.id, release.head.seq)


def _has_step(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> bool:
    """Return whether the journal contains a release's charge, and the step that brought it to its state."""
    query = select(Entry.seq, Entry.body, Entry.hash).where(
        Entry.account_id == account.id,
        Entry.seq > release.head.seq,
        Entry.seq <= account.head.seq,
        Entry.release_id == release.id,
        Entry.kind.in_(_STEPS),
    )
    for row in connection.execute(query.order_by(Entry.seq)).all():  # approvals, and the end
        if not _is_hashed(connection, account.id, row):
            return False
        if not contains(connection, account.chain, [release.head, Head(row.seq, row.hash)]):
            return False
        entry = read_text(row.body)  # as the service wrote it
        state = entry.content.next_state() if isinstance(entry.content, Settlement) else None
        if (entry.release, state) == (release.id, release.state):
            return True
    return False


def read_approvals(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> tuple[Actor, ...]:
    """Return those who approved a release, in the order in which they did, by all texts of its account's journal.

    Args:
        account: with a head that this process knows, or has locked.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    return tuple(one.by for one in later_entries(connection, account, release, [Approved.KIND]))


def _is_hashed(connection: Connection, account_id: int, row: Row[*tuple[Any, ...]]) -> bool:
    """Return whether the text of an entry's row gives the row's hash, after the entry before it."""
    return is_hashed(hash_before(connection, account_id, row.seq), row.body, row.hash)


def charge_of(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> RecordedCharge:
    """Return the charge of a recorded release.

    The price and the accountant in its row are not sealed, and the servers' role may change them.

    Raises:
        Altered: the entry that registered it, or one that priced it again, is not as the service wrote it.
    """
    entry = entry_of(connection, account.id, release)
    content = read(entry).content
    if not isinstance(content, Registration):
        raise release_rows.altered(release.id)
    charge = RecordedCharge(entry, content.price, content.accountant, dict(content.caps or ()))
    for later in later_entries(connection, account, release, [PriceChanged.KIND]):
        again = later.content
        if not isinstance(again, PriceChanged):
            raise release_rows.altered(release.id)
        changed = again.caps or {}
        caps = {tag: changed[tag][1] if tag in changed else amount for tag, amount in charge.caps.items()}
        charge = replace(charge, price=again.price, accountant=again.accountant, caps=caps)
    return charge


def later_entries(
    connection: Connection,
    account: AccountRecord,
    release: ReleaseRecord,
    kinds: Sequence[Kind],
    since: Head | None = None,
) -> Iterator[ParsedEntry]:
    """Yield all entries of some kinds about a release after the one that registered it, in their order.

    Args:
        account: with a head that this process knows, or has locked.
        since: an earlier head of the account, whose entries are left out.

    Raises:
        Altered: one is not as the service wrote it, or filed under another kind or release than it states.
    """
    numbers = numbers_of_later(connection, account, release, kinds, since)
    for start in range(0, len(numbers), _AT_ONCE):
        yield from entries_of(connection, account, release, kinds, numbers[start : start + _AT_ONCE])


def numbers_of_later(
    connection: Connection,
    account: AccountRecord,
    release: ReleaseRecord,
    kinds: Sequence[Kind],
    since: Head | None = None,
) -> list[int]:
    """Return the numbers of the entries that ``later_entries`` yields; raise as it does."""
    found = entries_about(connection, account.chain, release.id, since or release.head, kinds)
    return sorted(number for of_kind in found.values() for number in of_kind)


def entries_of(
    connection: Connection,
    account: AccountRecord,
    release: ReleaseRecord,
    kinds: Sequence[Kind],
    numbers: Sequence[int],
) -> Iterator[ParsedEntry]:
    """Yield entries about a release by their numbers, as ``numbers_of_later`` gives them; raise as it does."""
    entries = entries_at(connection, account.chain, numbers, [release.head])
    if not all(one.release == release.id and one.content.KIND in kinds for one in entries):
        raise release_rows.altered(release.id, _MISFILED)
    yield from entries
