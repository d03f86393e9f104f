"""The high-water mark: the last known entry of every journal, kept in a file outside the database.

An older copy of a database, or one whose last entries were deleted, is consistent in itself. Only a record that is kept
elsewhere shows that entries are missing. The mark is that record: the head of every account's journal and of the
installation's. The installation's secret authenticates it, so that no other party can write or edit one.
"""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from service.errors import Conflict, StartupRefused
from service.ledger.journal.journal import Head
from service.ledger.storage.secret import Secret

_OTHER = "\0"  # ends the names under which the mark holds entries of second versions; no account's name has it

BEFORE_ALL = -1  # the number before that of any movement of a head
_MOVES = 10_000  # the last movements of heads that the file lists, for the other processes that use it
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

    def entries_of(self, journal: str | bytes) -> list[Head]:
        """Return the marked entries of a journal, of which there are two if it was written in two versions."""
        if not isinstance(journal, str):  # SQLite takes any type as a name
            return []
        return [self.heads[name] for name in (journal, second_version(journal)) if name in self.heads]


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
            file.execute("BEGIN")
            if "heads" not in self._tables(file):  # another process has just created the file
                return {}
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
            tables = self._tables(file)
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
        if "mark" not in self._tables(file):
            return None
        row = file.execute("SELECT journals, entries, digest, written_at, in_use, seal FROM mark").fetchone()
        if row is None:
            return None
        *values, seal = row
        if not self.secret.is_seal(seal, "high-water-mark", *values):
            raise self._broken("it was not written with this installation's secret")
        return _Total(row[0], row[1], int(row[2], 16)), row[3], bool(row[4])

    def _tables(self, file: sqlite3.Connection) -> set[str]:
        return {name for (name,) in file.execute("SELECT name FROM sqlite_master")}

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


def second_version(journal: str) -> str:
    """Return the name under which the mark holds an entry of a journal that does not follow the marked one.

    No journal has this name, so no ledger has all entries of such a mark.
    """
    return journal + _OTHER


def is_second_version(name: str) -> bool:
    """Return whether the mark holds an entry of a second version under this name."""
    return name.endswith(_OTHER)


def journal_of(name: str) -> str:
    """Return the journal of an entry that the mark holds under a name: the account's name, or empty."""
    return name.removesuffix(_OTHER)
