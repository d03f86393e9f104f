"""The rows of descriptions, which only find the last entry that describes something."""

from typing import Any, NamedTuple

from sqlalchemy import Connection, ScalarSelect, select
from sqlalchemy.orm import aliased

from service.errors import Altered
from service.ledger.descriptions.metadata import Metadata
from service.ledger.journal.chains import last_chained
from service.ledger.journal.entries import Described, read_text
from service.ledger.journal.entries_about import entries_about
from service.ledger.journal.journal import AccountHead, Head, entry_hash, up_to
from service.ledger.journal.linked_heads import contains
from service.ledger.storage.tables import Account, Description, Entry

_described, _previous, _owner = aliased(Entry), aliased(Entry), aliased(Account)
_DIGITS = 64  # of a hash


def last_description(account_id: Any, release_id: Any, until: int | None = None) -> ScalarSelect[str]:
    """Return a query for the last description: the hash before its entry, the entry's own hash, and its text.

    Rows of descriptions only find the entry. A row has no effect if it belongs to no such entry up to the account's
    head, or up to the earlier entry ``until``.

    Args:
        account_id: a value, or the column of an outer query.
        release_id: likewise; None for descriptions of the account itself.
        until: the number of an entry.
    """
    return (
        select(_previous.hash + _described.hash + _described.body)
        .select_from(Description)
        .join(_described, (_described.account_id == Description.account_id) & (_described.seq == Description.seq))
        .join(_previous, (_previous.account_id == Description.account_id) & (_previous.seq == Description.seq - 1))
        .join(_owner, _owner.id == Description.account_id)
        .where(
            Description.account_id == account_id,
            Description.release_id.is_(None) if release_id is None else Description.release_id == release_id,
            _described.kind == "described",
            _described.release_id.is_not_distinct_from(Description.release_id),
            up_to(Description.seq, _owner.head_seq if until is None else until),
        )
        .order_by(Description.seq.desc())
        .limit(1)
        .scalar_subquery()
    )


def read_metadata(text: str | None, of: str) -> Metadata:
    """Return the metadata in the last description, as ``last_description`` finds it; empty where there is none.

    Args:
        of: the described thing, for the operator's message.

    Raises:
        Altered: its text does not have its hash.
    """
    return {} if text is None else _read_entry(text, of).metadata


class _FoundEntry(NamedTuple):
    """The last entry that describes something, as its row finds it: the head before it, its own, and the metadata."""

    before: Head
    head: Head
    metadata: Metadata


def _read_entry(text: str, of: str) -> _FoundEntry:
    previous, stored, body = text[:_DIGITS], text[_DIGITS : 2 * _DIGITS], text[2 * _DIGITS :]
    try:
        if entry_hash(previous, body) == stored:
            entry = read_text(body)
            if isinstance(entry.content, Described):
                return _FoundEntry(Head(entry.seq - 1, previous), Head(entry.seq, stored), entry.content.metadata)
    except ValueError:
        pass
    raise Altered("the description", f"the last entry that describes {of}")


def _find_entry(connection: Connection, account: AccountHead, release_id: str | None, of: str) -> _FoundEntry | None:
    text: str | None = connection.execute(select(last_description(account.id, release_id))).scalar_one()
    return None if text is None else _read_entry(text, of)


def before_description(connection: Connection, account: AccountHead, release_id: str | None) -> Head | None:
    """Return the head that the last description follows, as its row finds it; None where there is none.

    The journal from there up to the account's head must be followed before the description is used.

    Args:
        release_id: None for the description of the account itself.

    Raises:
        Altered: its text does not have its hash.
    """
    found = _find_entry(connection, account, release_id, f"account {account.name!r}")
    return None if found is None else found.before


def recorded_metadata(connection: Connection, account: AccountHead, release_id: str | None, after: Head) -> Metadata:
    """Return the metadata of an account or one of its releases, by the last of all texts that describe it.

    A row finds its description, and may be hidden or older. The first call of a process walks along the journal from
    ``after``; later ones only along what was added.

    Args:
        account: with a head that this process knows to be committed.
        release_id: None for the metadata of the account itself.
        after: a head before all descriptions, which the journal contains.

    Raises:
        Altered: the journal has a later description than the row, or lacks that of the row.
    """
    of = f"account {account.name!r}" if release_id is None else f"release {release_id!r}"
    numbers = entries_about(connection, account, release_id, after, [Described.KIND])[Described.KIND]
    found = _find_entry(connection, account, release_id, of)
    if (found and found.head.seq) != (numbers[-1] if numbers else None):
        raise Altered("the description", f"the last entry that describes {of}", "its row does not find it")
    if found is None:
        return {}
    if not contains(connection, account, [found.head]):
        raise Altered("the description", f"the last entry that describes {of}")
    return found.metadata


def metadata_since(
    connection: Connection, account: AccountHead, release_id: str | None, since: Head, said: Metadata
) -> Metadata:
    """Return the metadata of an account or one of its releases, given those at an earlier head.

    Only the texts on the chain from there to the account's sealed head are used.

    Args:
        release_id: None for the metadata of the account itself.
        since: the earlier head.
        said: the metadata at that head.

    Raises:
        Altered: the journal between the two is not as the service wrote it.
    """
    last = last_chained(connection, account.id, since, account.head, (Described.KIND,), release_id)
    content = None if last is None else read_text(last.body).content
    return content.metadata if isinstance(content, Described) else said
