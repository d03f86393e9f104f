"""Entries of the high-water mark that the ledger's journals lack, and the heads that the journals have now."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Connection, Row, select, text

from service.ledger.accounts import account_rows
from service.ledger.installation import installation_journal
from service.ledger.installation.high_water import is_second_version, journal_of
from service.ledger.journal.canonical_json import LARGEST_INTEGER
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.journal.linked_heads import is_linked
from service.ledger.storage.group_commit import INSTALLATION, NO_ACCOUNT, NewEntry
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Entry, InstallationEntry
from service.ledger.storage.transaction import secret_of

T = TypeVar("T")
LastEntry: TypeAlias = Row[int, str, Any, Any, Any]

_AT_ONCE = 500  # entries or accounts that one statement looks up
_FEW = 5000  # up to so many accounts are looked up by name; beyond that, all are read


@dataclass(frozen=True, slots=True)
class MissingEntry:
    """A journal that lacks an entry of the mark.

    Attributes:
        journal: the account's name.
        marked: the entry.
        last: the number of the last entry that the journal has; 0 where it has none.
    """

    journal: str
    marked: Head
    last: int

    @property
    def account(self) -> str:
        """The account's name; empty for the installation's journal."""
        return journal_of(self.journal)

    def __str__(self) -> str:
        name = f"the journal of {self.account!r}" if self.account else "the installation's journal"
        if is_second_version(self.journal):
            return f"{name} was written in two versions, and entry {self.marked.seq} ends one of them"
        if self.last < self.marked.seq:
            return f"{name} ends with entry {self.last} and had {self.marked.seq}"
        return f"{name} does not continue from entry {self.marked.seq} that it had"


class Heads(NamedTuple):
    """The present heads of journals.

    Attributes:
        sound: the heads whose entry is in the journal, of rows that the service wrote; for the installation's journal,
            only if the entry has its seal.
        altered: the names of the other journals. The service never wrote such a head.
    """

    sound: dict[str, Head]
    altered: list[str | bytes]


def present_heads(
    connection: Connection, secret: Secret, accounts: Collection[LastEntry], marked: Mapping[str, Head]
) -> Heads:
    """Find the heads of accounts' journals among their last entries, and read that of the installation's journal.

    Args:
        marked: the heads that are known already. A row with another one must have its seal.
    """
    moved = [one[0] for one in accounts if _is_sound(one) and marked.get(one[1]) != Head(one[2], one[3])]
    unsealed = account_rows.unsealed_among(connection, moved)
    sound: dict[str, Head] = {}
    altered: list[str | bytes] = []
    for account in accounts:
        account_id, name, seq, head, _ = account
        if _is_sound(account) and account_id not in unsealed:
            sound[name] = Head(seq, head)
        else:
            altered.append(name)
    own = installation_journal.sealed_head(connection, secret)
    if own is None:
        altered.append(INSTALLATION)
    else:
        sound[INSTALLATION] = own
    return Heads(sound, altered)


def by_name(names: Iterable[str | bytes]) -> dict[str, Head]:
    """Return the heads by which a mark knows accounts whose rows are not sound: by their names alone."""
    return {name: BEFORE_FIRST for name in names if isinstance(name, str) and name != INSTALLATION}


def missing_entries(
    connection: Connection, heads: Mapping[str, Head], accounts: Collection[LastEntry]
) -> list[MissingEntry]:
    """Find the journals that lack their marked entry, given the last entries of at least these accounts.

    An entry also counts as missing if the account's sealed row ends before it: then the row is an older one. And so it
    does if the journal's last entry does not follow from it by the hashes of the texts: then the journal is another
    one, in which the marked entry's row was put. A row without its seal says nothing: whoever writes the database can
    give it any head, and only its own account stops.
    """
    last: dict[str, int] = {}  # the number of the last entry
    older: dict[int, str] = {}  # accounts whose rows end before the marked entry, by id
    stored: dict[str, str] = {}  # the hash of the stored entry with the marked number
    earlier: dict[tuple[int, int], str] = {}  # continued journals, by the account's id and the marked entry's number
    for account_id, name, seq, _, digest in accounts:
        last[name] = seq if isinstance(seq, int) else 0
        marked = heads.get(name)
        if marked is not None and marked.seq == seq:
            stored[name] = digest
        elif marked is not None:  # an account's row may hold anything, so the entry itself is looked up
            earlier[account_id, marked.seq] = name
            if last[name] < marked.seq:
                older[account_id] = name
    stored |= {earlier[account_id, seq]: digest for account_id, seq, digest in _entries_at(connection, list(earlier))}
    later = {one[0] for one in accounts if one[1] in heads and _is_sound(one) and one[2] > heads[one[1]].seq}
    unsealed = account_rows.unsealed_among(connection, later | older.keys())
    behind = {name for account_id, name in older.items() if account_id not in unsealed}
    apart = {
        name
        for account_id, name, seq, digest, _ in accounts
        if account_id in later - unsealed and not is_linked(connection, account_id, heads[name], Head(seq, digest))
    }
    missing = [
        MissingEntry(name, head, last.get(name, 0))
        for name, head in heads.items()
        if name != INSTALLATION
        and head != BEFORE_FIRST  # of an account whose row was not sound when the mark began
        # no journal has the name of a second version, though a row of an account may
        and (is_second_version(name) or stored.get(name) != head.hash or name in behind | apart)
    ]
    own = heads.get(INSTALLATION)
    if own is not None:
        present = installation_journal.sealed_head(connection, secret_of(connection))
        # A last entry without its seal is found elsewhere, whatever it follows.
        present = present or (own if installation_journal.has_entry(connection, own) else BEFORE_FIRST)
        if not is_linked(connection, NO_ACCOUNT, own, present):
            missing.append(MissingEntry(INSTALLATION, own, present.seq))
    return missing


def _is_sound(account: LastEntry) -> bool:
    """Return whether an account's row has the number and the hash of a stored entry."""
    _, _, seq, head, stored = account
    return isinstance(seq, int) and 0 < seq <= LARGEST_INTEGER and isinstance(head, str) and head == stored


def lost_entries(connection: Connection, made: Sequence[NewEntry]) -> list[MissingEntry]:
    """Find the entries that their journals no longer hold, or that lie beyond the last entry of a sealed row."""
    present = set(_entries_at(connection, [entry[:2] for entry in made]))
    last: dict[int, tuple[str, int]] = {NO_ACCOUNT: (INSTALLATION, installation_journal.head(connection).seq)}
    for ids in _batches(list({entry.account_id for entry in made})):
        accounts = connection.execute(select(Account.id, Account.name, Account.head_seq).where(Account.id.in_(ids)))
        last |= {row.id: (row.name, row.head_seq if isinstance(row.head_seq, int) else 0) for row in accounts}
    # A deleted account has no name any more, and no other account has a name with this character.
    last |= {entry.account_id: (f"#{entry.account_id}", 0) for entry in made if entry.account_id not in last}
    behind = {entry.account_id for entry in made if last[entry.account_id][1] < entry.seq}
    older = behind - account_rows.unsealed_among(connection, behind)
    return [
        MissingEntry(entry.account or name, Head(entry.seq, entry.hash), seq)
        for entry in made
        for name, seq in (last[entry.account_id],)
        if entry[:3] not in present or (entry.account_id in older and seq < entry.seq)
    ]


def _entries_at(connection: Connection, places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield the entries at these places, by the account's id and the entry's number."""
    query = _AT_SQLITE if connection.dialect.name == "sqlite" else _AT_POSTGRESQL
    for some in _batches([place for place in places if place[0] != NO_ACCOUNT]):
        yield from map(tuple, connection.execute(query, {"places": json.dumps(some)}))
    own = (InstallationEntry.seq, InstallationEntry.hash)
    for numbers in _batches([seq for account_id, seq in places if account_id == NO_ACCOUNT]):
        for row in connection.execute(select(*own).where(InstallationEntry.seq.in_(numbers))):
            yield NO_ACCOUNT, row.seq, row.hash


def last_entries(connection: Connection, journals: Collection[str] | None = None) -> list[LastEntry]:
    """Read the accounts of these names, or all: id, name, head, and the hash of the journal entry of that number."""
    if journals is None or len(journals) > _FEW:
        return list(connection.execute(_LAST_ENTRIES))
    batches = (_LAST_ENTRIES.where(Account.name.in_(names)) for names in _batches(list(journals)))
    return [row for query in batches for row in connection.execute(query)]


def _batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[begin : begin + _AT_ONCE] for begin in range(0, len(values), _AT_ONCE))


# One parameter, so that the statement stays constant, and each place by the primary key: SQLite reads the whole journal
# for (a, b) IN (VALUES ...), and PostgreSQL may do so for a join.
_AT_SQLITE = text("""\
SELECT journal.account_id, journal.seq, journal.hash FROM json_each(:places) AS place CROSS JOIN journal
ON journal.account_id = json_extract(place.value, '$[0]') AND journal.seq = json_extract(place.value, '$[1]')""")
_AT_POSTGRESQL = text("""\
SELECT found.* FROM json_array_elements(CAST(:places AS json)) AS place CROSS JOIN LATERAL (
    SELECT account_id, seq, hash FROM journal
    WHERE account_id = CAST(place ->> 0 AS bigint) AND seq = CAST(place ->> 1 AS bigint) LIMIT 1
) AS found""")
# The journal's own hash, because an account's row can refer to an entry that is gone.
_LAST_ENTRIES = select(
    Account.id,
    Account.name,
    Account.head_seq,
    Account.head_hash,
    select(Entry.hash).where(Entry.account_id == Account.id, Entry.seq == Account.head_seq).scalar_subquery(),
)
