"""The principals that registered and approved listed releases, by the texts of the journal."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.orm import aliased

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.canonical_json import DECODER, canonical
from service.ledger.journal.chains import altered, check_filing, check_link, is_hashed
from service.ledger.journal.journal import Head, JournalEntry, up_to
from service.ledger.journal.linked_heads import contains
from service.ledger.releases import release_rows
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.storage.tables import OF_APPROVALS, Entry

_AT_ONCE = 16  # texts that are held at a time, each of up to some mebibytes
_before = aliased(Entry)
_previous = select(_before.hash).where(_before.account_id == Entry.account_id, _before.seq == Entry.seq - 1)
_ENTRIES = (
    select(Entry.seq, Entry.kind, Entry.release_id, Entry.body, Entry.hash, _previous.scalar_subquery())
    .where(Entry.account_id == bindparam("account"))
    .order_by(Entry.seq)
    .execution_options(yield_per=_AT_ONCE)
)
_REGISTRATIONS = _ENTRIES.where(Entry.seq.in_(bindparam("numbers", expanding=True)))
_APPROVALS = _ENTRIES.where(
    OF_APPROVALS, Entry.release_id.in_(bindparam("releases", expanding=True)), up_to(Entry.seq, bindparam("until"))
)


class Persons(NamedTuple):
    """The principal that registered a release, and those that approved it, in the order in which they did."""

    registered_by: str
    approved_by: tuple[str, ...]


def persons_of(connection: Connection, account: AccountRecord, releases: Sequence[ReleaseRecord]) -> dict[str, Persons]:
    """Return the persons of an account's releases, by their ids, in one query for each of the two acts.

    Args:
        account: with a head that this process knows.

    Raises:
        Altered: an entry is not as the service wrote it.
    """
    sealed = {release.head.seq: release for release in releases}
    registered: dict[str, str] = {}
    with connection.execute(_REGISTRATIONS, {"account": account.id, "numbers": list(sealed)}) as rows:
        for row in rows:
            release = sealed[row.seq]
            if is_hashed(row[-1], row.body, release.head.hash):
                registered[release.id] = _actor(account, row.body)
    approved: dict[str, list[str]] = {release.id: [] for release in releases}
    heads: list[Head] = []
    found = {"account": account.id, "releases": list(approved), "until": account.head.seq}
    with connection.execute(_APPROVALS, found) as rows:
        for row in rows:
            *entry, previous = row
            try:
                check_link(Head(row.seq - 1, previous), JournalEntry._make(entry))
                check_filing(JournalEntry._make(entry))
            except (TypeError, ValueError):
                raise release_rows.altered(row.release_id) from None
            heads.append(Head(row.seq, row.hash))
            approved[row.release_id].append(_actor(account, row.body))
    unknown = next((one.id for one in releases if one.id not in registered), None)
    if unknown is not None:
        raise release_rows.altered(unknown)
    if not contains(connection, account.chain, heads):
        raise altered(account.id, account.head.seq, "the texts of approvals do not lead to the head")
    return {name: Persons(by, tuple(dict.fromkeys(approved[name]))) for name, by in registered.items()}


def _actor(account: AccountRecord, body: str) -> str:
    """Return the actor of an entry that persons make; its name follows that of the account in the text."""
    start = f'{{"account":{canonical(account.name)},"actor":'
    actor: str = DECODER.raw_decode(body, len(start))[0]
    return actor
