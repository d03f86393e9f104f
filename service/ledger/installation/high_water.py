"""The high-water mark: the last known entry of every journal, kept in a file outside the database.

An older copy of a database, or one whose last entries were deleted, is consistent in itself. Only a record that is kept
elsewhere shows that entries are missing. The mark is that record: the head of every account's journal and of the
installation's. The installation's secret authenticates it, so that no other party can write or edit one.
"""

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Connection, Row, select, text

from service.errors import Conflict, StartupRefused
from service.ledger.accounts import account_rows
from service.ledger.installation import installation_journal
from service.ledger.journal.canonical_json import LARGEST_INTEGER
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.journal.linked_heads import is_linked
from service.ledger.storage.group_commit import INSTALLATION, NO_ACCOUNT, NewEntry
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Entry, InstallationEntry
from service.ledger.storage.transaction import secret_of

T = TypeVar("T")
LastEntry: TypeAlias = Row[int, str, Any, Any, Any]

_OTHER = "\0"  # ends the names under which the mark holds entries of second versions; no account's name has it

BEFORE_ALL = -1  # the number before that of any movement of a head
_MOVES = 10_000  # the last movements of heads that the file lists, for the other processes that use it
_AT_ONCE = 500  # entries or accounts that one statement looks up
_FEW = 5000  # up to so many accounts are looked up by name; beyond that, all are read
_WAIT = 10.0  # seconds that a process waits for another process that writes the same file
_RING = 2**256
_TABLES = """\
CREATE TABLE IF NOT EXISTS heads (journal TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moves (number INTEGER PRIMARY KEY AUTOINCREMENT, journal TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mark (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    journals INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    digest TEXT NOT NULL,
    written_at TEXT NOT NULL,
    in_use INTEGER NOT NULL,
    seal TEXT NOT NULL
);
"""


class BrokenMark(StartupRefused):
    """An unreadable file of the mark, or one that was not written with the installation's secret."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A high-water mark that was read and checked.

    Attributes:
        heads: the last known entry of each journal, by the account's name.
        entries: the number of entries of all those journals.
        written_at: the moment at which the mark was last written.
        in_use: whether a server wrote it and has not stopped in good order since.
    """

    heads: Mapping[str, Head]
    entries: int
    written_at: str
    in_use: bool

    def entries_of(self, journal: str) -> list[Head]:
        """Return the marked entries of a journal, of which there are two if it was written in two versions."""
        return [self.heads[name] for name in (journal, second_version(journal)) if name in self.heads]


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
        return self.journal.removesuffix(_OTHER)

    def __str__(self) -> str:
        name = f"the journal of {self.account!r}" if self.account else "the installation's journal"
        if self.journal.endswith(_OTHER):
            return f"{name} was written in two versions, and entry {self.marked.seq} ends one of them"
        if self.last < self.marked.seq:
            return f"{name} ends with entry {self.last} and had {self.marked.seq}"
        return f"{name} does not continue from entry {self.marked.seq} that it had"


@dataclass(frozen=True)
class HighWaterFile:
    """The file that holds the mark. Several processes may write it; journals only ever advance in it."""

    path: Path
    secret: Secret = field(repr=False)

    def read(self) -> Mark | None:
        """Read and check the whole mark.

        Returns:
            None where there is no mark yet.

        Raises:
            BrokenMark: the file cannot be read, or is not authentic.
        """
        if not self._exists():
            return None
        with self._opened() as file:
            file.execute("BEGIN")
            return self._all(file)

    def advance(
        self, heads: Mapping[str, Head], seen: Mapping[str, Head], at: str, *, in_use: bool | None = True
    ) -> set[str]:
        """Write heads that are later than those of the mark, durably, before this returns; skip earlier ones.

        Args:
            seen: the marked heads of these journals as they were read before, which the new heads are known to follow;
                journals that had none are left out.
            in_use: whether the server continues; None: a command writes, and the servers' state is left unchanged.

        Returns:
            The journals whose head another process moved since it was read; their new heads are not written.

        Raises:
            BrokenMark: the file cannot be written, or is not authentic.
        """
        moved = set[str]()
        self._make()
        with self._opened() as file:
            file.execute("BEGIN IMMEDIATE")
            for statement in _TABLES.split(";\n"):
                file.execute(statement)
            total, before, was_in_use = self._total(file) or (_Total(0, 0, 0), at, False)
            journals, entries, digest = total.journals, total.entries, total.digest
            for name, head in heads.items():
                row = file.execute("SELECT seq, hash FROM heads WHERE journal = ?", (name,)).fetchone()
                marked = None if row is None else Head(*row)
                if marked != seen.get(name):
                    moved.add(name)
                    continue
                if marked is not None and marked.seq >= head.seq:
                    continue
                file.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", (name, head.seq, head.hash))
                file.execute("INSERT INTO moves (journal) VALUES (?)", (name,))
                journals += marked is None
                entries += head.seq - (0 if marked is None else marked.seq)
                digest += self._code(name, head) - (0 if marked is None else self._code(name, marked))
            file.execute("DELETE FROM moves WHERE number <= (SELECT max(number) FROM moves) - ?", (_MOVES,))
            in_use = was_in_use if in_use is None else in_use
            self._write_total(file, _Total(journals, entries, digest % _RING), max(at, before), in_use=in_use)
            file.execute("COMMIT")
        return moved

    def marked(self, journals: Iterable[str]) -> dict[str, Head]:
        """Read the marked heads of some journals; journals without a mark are left out.

        Raises:
            BrokenMark: the file cannot be read.
        """
        if not self._exists():
            return {}
        found: dict[str, Head] = {}
        with self._opened() as file:
            for name in journals:
                row = file.execute("SELECT seq, hash FROM heads WHERE journal = ?", (name,)).fetchone()
                if row is not None:
                    found[name] = Head(*row)
        return found

    def moved_since(self, number: int) -> tuple[int, dict[str, Head]]:
        """Read the number of the last movement of a head, and the heads that moved after an earlier one.

        Args:
            number: of a movement; ``BEFORE_ALL`` for all heads.

        Returns:
            All heads where movements between were dropped from the list.

        Raises:
            BrokenMark: the file cannot be read.
        """
        if not self._exists():
            return 0, {}
        with self._opened() as file:
            file.execute("BEGIN")
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
            if "heads" not in tables:
                return 0, {}
            first = last = 0
            if "moves" in tables:  # version 0.6.0 made none
                first, last = file.execute(
                    "SELECT ifnull(min(number), 0), ifnull(max(number), 0) FROM moves"
                ).fetchone()
            if last == number:
                return number, {}
            moved = "SELECT * FROM heads WHERE journal IN (SELECT journal FROM moves WHERE number > ?)"
            listed = 0 < first <= number + 1 <= last
            rows = file.execute(moved, (number,)) if listed else file.execute("SELECT * FROM heads")
            return last, {name: Head(seq, digest) for name, seq, digest in rows}

    def forget(self, missing: Mapping[str, Head], heads: Mapping[str, Head], at: str) -> None:
        """Replace the heads of some journals, and continue from a moment, which may be earlier than the mark's.

        Args:
            missing: the heads to forget, as they were read.
            heads: the heads that take their place; journals without one are no longer marked.

        Raises:
            Conflict: one of ``missing`` is not marked any more, as another process advanced the mark; nothing changes.
            BrokenMark: the file cannot be read or written, or is not authentic.
        """
        with self._opened() as file:
            file.execute("BEGIN IMMEDIATE")
            marked = self._all(file)
            if marked is None or any(marked.heads.get(name) != head for name, head in missing.items()):
                raise Conflict(
                    "the high-water mark moved at the same moment and was left as it is: run the command again"
                )
            rest = {name: head for name, head in marked.heads.items() if name not in missing} | dict(heads)
            rows = [(name, head.seq, head.hash) for name, head in rest.items()]
            file.execute("DELETE FROM heads")
            file.executemany("INSERT INTO heads VALUES (?, ?, ?)", rows)
            self._write_total(file, self._figures(rest), at, in_use=marked.in_use)
            file.execute("COMMIT")

    def replace(self, heads: Mapping[str, Head], at: str) -> None:
        """Discard the mark, whatever is in the file, and begin another one with these heads.

        Raises:
            BrokenMark: the file cannot be written.
        """
        try:
            for path in (self.path, Path(f"{self.path}-journal")):
                path.unlink(missing_ok=True)
            self._make()
        except OSError as error:
            raise self._unwritable(error) from None
        with self._opened() as file:  # other processes must not take its first movements for old ones
            file.executescript(_TABLES)
            file.execute("INSERT INTO sqlite_sequence VALUES ('moves', ?)", (time.time_ns(),))
        self.advance(heads, {}, at, in_use=False)

    def _all(self, file: sqlite3.Connection) -> Mark | None:
        total = self._total(file)
        if total is None:
            return None
        heads = {name: Head(seq, digest) for name, seq, digest in file.execute("SELECT * FROM heads")}
        if self._figures(heads) != total[0]:
            raise self._broken("its heads are not those that the service wrote")
        return Mark(heads, total[0].entries, total[1], total[2])

    def _write_total(self, file: sqlite3.Connection, total: "_Total", at: str, *, in_use: bool) -> None:
        row = (total.journals, total.entries, f"{total.digest:064x}", at, int(in_use))
        seal = self.secret.seal("high-water-mark", *row)
        file.execute("INSERT OR REPLACE INTO mark VALUES (1, ?, ?, ?, ?, ?, ?)", (*row, seal))

    def _total(self, file: sqlite3.Connection) -> "tuple[_Total, str, bool] | None":
        """Return the mark's figures for all heads together, the time of its last writing, and whether it is in use."""
        if file.execute("SELECT 1 FROM sqlite_master WHERE name = 'mark'").fetchone() is None:
            return None
        row = file.execute("SELECT journals, entries, digest, written_at, in_use, seal FROM mark").fetchone()
        if row is None:
            return None
        *values, seal = row
        if not self.secret.is_seal(seal, "high-water-mark", *values):
            raise self._broken("it was not written with this installation's secret")
        return _Total(row[0], row[1], int(row[2], 16)), row[3], bool(row[4])

    def _figures(self, heads: Mapping[str, Head]) -> "_Total":
        """Return the figures of all heads; the digest is the sum of their codes.

        A change of one head changes the sum without a look at the others. The codes can be computed only with the
        secret, so no other party can find other heads with the same sum.
        """
        digest = sum(self._code(name, head) for name, head in heads.items()) % _RING
        return _Total(len(heads), sum(head.seq for head in heads.values()), digest)

    def _code(self, name: str, head: Head) -> int:
        return int(self.secret.seal("high-water-head", name, head.seq, head.hash), 16)

    def _exists(self) -> bool:
        try:
            return self.path.exists()
        except OSError as error:
            raise self._broken(error.strerror) from None

    def _make(self) -> None:
        """Create the file, readable only by its owner, because it names the accounts."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise self._unwritable(error) from None

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            address = self.path.resolve().as_uri() + "?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=_WAIT, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous = FULL")
                yield file
        except sqlite3.Error as error:
            raise self._broken(str(error)) from None
        except (TypeError, ValueError):  # SQLite takes any type in any column
            raise self._broken("its content is not valid") from None

    def _unwritable(self, error: OSError) -> BrokenMark:
        return BrokenMark(
            f"the high-water mark {self.path} cannot be written: {error.strerror};"
            " SERVICE_HIGH_WATER_FILE may name another place"
        )

    def _broken(self, reason: str | None) -> BrokenMark:
        return BrokenMark(f"the high-water mark {self.path} cannot be used: {reason}")


@dataclass(frozen=True, slots=True)
class _Total:
    """The authenticated figures of all heads together."""

    journals: int
    entries: int
    digest: int


class Heads(NamedTuple):
    """The present heads of journals.

    Attributes:
        sound: the heads whose entry is in the journal; for the installation's journal, only if the entry has its seal.
        altered: the names of the other journals. The service never wrote such a head.
    """

    sound: dict[str, Head]
    altered: list[str]


def present_heads(connection: Connection, secret: Secret, accounts: Iterable[LastEntry]) -> Heads:
    """Find the heads of accounts' journals among their last entries, and read that of the installation's journal."""
    sound: dict[str, Head] = {}
    altered: list[str] = []
    for account in accounts:
        _, name, seq, head, _ = account
        if _is_sound(account):
            sound[name] = Head(seq, head)
        else:
            altered.append(name)
    own = installation_journal.sealed_head(connection, secret)
    if own is None:
        altered.append(INSTALLATION)
    else:
        sound[INSTALLATION] = own
    return Heads(sound, altered)


def missing_entries(
    connection: Connection, heads: Mapping[str, Head], accounts: Iterable[LastEntry]
) -> list[MissingEntry]:
    """Find the journals that lack their marked entry, given the last entries of at least these accounts.

    An entry also counts as missing if the account's sealed row ends before it: then the row is an older one. And so it
    does if the journal's last entry does not follow from it by the hashes of the texts: then the journal is another
    one, in which the marked entry's row was put.
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
    for account_id in account_rows.unsealed_among(connection, older):
        del older[account_id]
    behind = set(older.values())
    apart = {
        name
        for account_id, name, seq, digest, _ in accounts
        if account_id in later and not is_linked(connection, account_id, heads[name], Head(seq, digest))
    }
    missing = [
        MissingEntry(name, head, last.get(name, 0))
        for name, head in heads.items()
        if name != INSTALLATION and (stored.get(name) != head.hash or name in behind | apart)
    ]
    own = heads.get(INSTALLATION)
    if own is not None:
        present = installation_journal.sealed_head(connection, secret_of(connection))
        # A last entry without its seal is found elsewhere, whatever it follows.
        present = present or (own if installation_journal.has_entry(connection, own) else BEFORE_FIRST)
        if not is_linked(connection, NO_ACCOUNT, own, present):
            missing.append(MissingEntry(INSTALLATION, own, present.seq))
    return missing


def second_version(journal: str) -> str:
    """Return the name under which the mark holds an entry of a journal that does not follow the marked one.

    No journal has this name, so no ledger has all entries of such a mark.
    """
    return journal + _OTHER


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
