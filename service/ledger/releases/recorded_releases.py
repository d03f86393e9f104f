"""Releases that are read with the journal entries that made them.

The seal of a release's row shows that the service wrote it, but not that it was committed: whoever owns the database
can keep the rows of a transaction that failed, and show them for a moment. So an answer that people act on, such as
"committed", needs the entries of the charge and of the present state.
"""

import re

from sqlalchemy import Connection, bindparam, select

from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal.chains import is_hashed
from service.ledger.journal.entries import Settlement, read_text
from service.ledger.journal.journal import Head, hash_before
from service.ledger.journal.linked_heads import contains
from service.ledger.releases import release_rows
from service.ledger.releases.releases import ReleaseRecord, read_release
from service.ledger.storage.tables import Entry

_STEPS = ("approved", "committed", "voided", "expired")
_TEXT = select(Entry.body).where(Entry.account_id == bindparam("account"), Entry.seq == bindparam("seq"))
_END = re.compile(r',"kind":"([a-z_]+)","release":"([^"]*)","seq":([0-9]+),"time":"[^"]*"\}\Z')
_END_LENGTH = 300  # characters in which the end of an entry's text lies; the plan before it may be long


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
    end = _END.search(body, max(0, len(body) - _END_LENGTH))
    return end is not None and end.groups() == (release.state, release.id, str(release.head.seq))


def _has_step(connection: Connection, account: AccountRecord, release: ReleaseRecord) -> bool:
    """Return whether the journal contains a release's charge, and the step that brought it to its state."""
    query = select(Entry.seq, Entry.body, Entry.hash).where(
        Entry.account_id == account.id,
        Entry.seq > release.head.seq,
        Entry.seq <= account.head.seq,
        Entry.release_id == release.id,
        Entry.kind.in_(_STEPS),
    )
    for row in connection.execute(query.order_by(Entry.seq).limit(2)).all():  # at most an approval, and the end
        step = Head(row.seq, row.hash)
        if not is_hashed(hash_before(connection, account.id, row.seq), row.body, row.hash):
            return False
        if not contains(connection, account.chain, [release.head, step]):
            return False
        entry = read_text(row.body)  # as the service wrote it
        state = entry.content.next_state() if isinstance(entry.content, Settlement) else None
        if (entry.release, state) == (release.id, release.state):
            return True
    return False
