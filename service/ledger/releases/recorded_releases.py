"""Releases that are read with the journal entries that made them.

The seal of a release's row shows that the service wrote it, but not that it was committed: whoever owns the database
can keep the rows of a transaction that failed, and show them for a moment. So an answer that people act on, such as
"committed", needs the entries of the charge and of the present state.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

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
from service.ledger.releases.releases import ReleaseRecord, entry_of, read_release
from service.ledger.storage.tables import OF_APPROVALS, Entry

_STEPS: tuple[Kind, ...] = ("approved", "committed", "voided", "expired")
_TEXT = select(Entry.body).where(Entry.account_id == bindparam("account"), Entry.seq == bindparam("seq"))
_AT_ONCE = 500  # entries that are read together
_APPROVALS = (
    select(Entry.seq, Entry.body, Entry.hash)
    .where(OF_APPROVALS, Entry.release_id == bindparam("release"), Entry.account_id == bindparam("account"))
    .where(Entry.seq > bindparam("first"), Entry.seq <= bindparam("last"))
    .order_by(Entry.seq)
)
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

    Args:
        account: with a head that this process knows, or has locked.
        release: in the state of its row.

    Raises:
        Altered: the journal lacks an entry.
    """
    if _has_state_of_charge(connection, account.id, release):
        recorded = contains(connection, account.chain, [release.head])
    else:
        recorded = _has_step(connection, account, release)
    if not recorded:
        raise release_rows.altered(release.id, "the journal does not record its charge or its state")


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
    """Return those who approved a release, in the order in which they did, by the texts of its account's journal.

    Args:
        account: with a head that this process knows, or has locked.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    found = {"account": account.id, "release": release.id, "first": release.head.seq, "last": account.head.seq}
    rows = connection.execute(_APPROVALS, found).all()
    if not rows:
        return ()
    heads = [release.head, *(Head(row.seq, row.hash) for row in rows)]
    are_hashed = all(_is_hashed(connection, account.id, row) for row in rows)
    if not are_hashed or not contains(connection, account.chain, heads):
        raise release_rows.altered(release.id, "the journal does not record its approvals")
    entries = [read_text(row.body) for row in rows]
    if not all(isinstance(one.content, Approved) and one.release == release.id for one in entries):
        raise release_rows.altered(release.id, _MISFILED)
    return tuple(one.by for one in entries)


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


def require_present(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> None:
    """Refuse a release whose row has an earlier state than the journal.

    Args:
        release: in the state of its row.

    Raises:
        Altered: the journal has a later state.
    """
    states = [step.content.next_state() for step in later_entries(connection, account, release, _STEPS)]
    if states and states[-1] != release.state:
        raise release_rows.altered(release.id, f"the journal records that it is {states[-1]}")


def later_entries(
    connection: Connection, account: AccountRecord, release: ReleaseRecord, kinds: Sequence[Kind]
) -> Iterator[ParsedEntry]:
    """Yield all entries of some kinds about a release after the one that registered it, in their order.

    Raises:
        Altered: one is not as the service wrote it, or filed under another kind or release than it states.
    """
    numbers = numbers_of_later(connection, account, release, kinds)
    for start in range(0, len(numbers), _AT_ONCE):
        yield from entries_of(connection, account, release, kinds, numbers[start : start + _AT_ONCE])


def numbers_of_later(
    connection: Connection, account: AccountRecord, release: ReleaseRecord, kinds: Sequence[Kind]
) -> list[int]:
    """Return the numbers of the entries that ``later_entries`` yields; raise as it does."""
    found = entries_about(connection, account.chain, release.id, release.head, kinds)
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
