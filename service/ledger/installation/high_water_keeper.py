"""Upkeep of the high-water mark while a server runs: it is written within a second after commits."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

import structlog
from sqlalchemy import Connection

from service.errors import ServiceError
from service.ledger.installation import installation_journal
from service.ledger.installation.high_water import BrokenMark, HighWaterFile, second_version
from service.ledger.installation.mark_check import SHOWN, described, known_heads
from service.ledger.installation.missing_entries import (
    MissingEntry,
    by_name,
    last_entries,
    lost_entries,
    missing_entries,
    present_heads,
)
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import Head
from service.ledger.journal.linked_heads import Walk, is_linked
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.connections.open_files import OpenFiles, open_files
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import INSTALLATION, NewEntry
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.schema import unexpected

_PAUSE = 0.5  # seconds between checks for committed entries
_REFRESH = 120  # checks after which the time is written even if nothing was committed
_EVERYTHING = 1200  # checks after which all journals are compared with the mark, whichever process changed them
_LINKING = 1.0  # seconds of a look in which known and marked heads are linked, if there are many
_AT_ONCE = 100  # journals that are looked up together
_LIMIT = 5.0  # seconds without a check of the schema or a write of the mark: ten times as long as both usually take
_END = 10.0  # seconds that the server's end waits for each of them

_UNWATCHED = "the high-water mark or the database's schema could not be checked for some seconds; nothing is written"
_OTHER_FILES = "a file of the database was removed or replaced while it was in use; nothing is written"

_log = structlog.get_logger("service.high_water")


class MarkKeeper:
    """The writer of a server's high-water mark while the server runs.

    Attributes:
        file: the mark's file.
        written_at: the moment at which the mark was last written.
    """

    def __init__(self, database: Database, file: HighWaterFile, *, serves: bool = True) -> None:
        """Begin a keeper, and let the database remember what it commits.

        Args:
            serves: False for a command, which advances the mark once and does not record whether a server is running.
        """
        self._database, self.file, self._serves = database, file, serves
        self._failing, self._altered = False, list[str | bytes]()
        self._looked = self._marked = time.monotonic()  # the last look, and the last moment when all could be marked
        self._everything = 0.0  # seconds that the last comparison of all journals took
        self._last_move = 0  # of a head in the mark, by any process
        self._to_link = deque[
            tuple[str, Head, Head]
        ]()  # a known and a marked head of a journal, which one chain must have
        self._own_marks = dict[str, Head]()  # the heads that this process marked, until it sees that they moved
        self._unwatched, self._changing = False, threading.Lock()
        self._files = OpenFiles()
        database.remembers = True
        self.written_at = clock.now()

    def advance(self, *, everything: bool = False, last: bool = False) -> None:
        """Mark what this process committed, then compare its journals, or all, with the mark.

        Entries that this process committed are marked from its memory, before any look at the database: whatever its
        owner shows at the look cannot keep the mark behind. The ledger was rolled back or rewritten if a journal lacks
        its marked entry, or an entry that this process committed since the last check, or if the account's row ends
        before such an entry. Then all further writes to the ledger are refused.

        Args:
            everything: whether all journals are compared with the mark.
            last: whether the server stops.

        Raises:
            BrokenMark: the mark cannot be read or written.
            Unavailable: the database does not answer.
        """
        began = time.monotonic()
        made = self._database.take_committed()
        try:
            journals = None if everything or not self.file.path.exists() else [entry.account for entry in made]
            in_use = not last if self._serves else None
            if made and (apart := self._mark_own(made, in_use)):
                self._stop("the ledger lacks entries that it had before; nothing is written", apart)
                return
            with self._reading() as connection:  # begun after these were taken: all of them were committed
                lost = lost_entries(connection, made)
            if not lost:
                lost = self._advance(made, journals, in_use)
            if lost:
                self._stop("the ledger lacks an entry that was just committed; nothing is written", lost)
            if everything:
                self._everything = time.monotonic() - began
        except BaseException:
            self._database.put_back_committed(made)
            raise

    def _mark_own(self, made: list[NewEntry], in_use: bool | None) -> list[MissingEntry]:
        """Mark entries of this process as far as they are of one chain with the marked heads; return the others.

        Each entry states the hash that it follows, so those of a single server are linked without the database. The
        texts of entries that other processes added between are read, after the linked ones were marked. A marked head
        and an entry that are not linked are of two versions of the journal, of which one is lost. Then both are marked,
        so that no start accepts either.
        """
        own: dict[str, list[NewEntry]] = {}
        for entry in sorted(made, key=lambda entry: entry.seq):
            own.setdefault(entry.account, []).append(entry)
        apart: list[MissingEntry] = []
        while own:  # again for journals whose head another process moved meanwhile
            marked = self.file.marked(own)
            walks = {name: Walk(marked.get(name), entries) for name, entries in own.items()}
            moved = self._mark_reached(walks, marked, in_use)
            gaps = {name: walk for name, walk in walks.items() if walk.gaps and name not in moved}
            if gaps:
                now_marked = {name: walk.reached for name, walk in gaps.items()}
                with self._reading() as connection:
                    unlinked = [name for name, walk in gaps.items() if not walk.close(connection)]
                moved |= self._mark_reached(gaps, now_marked, in_use)
                self._mark_second_versions({name: gaps[name].last for name in unlinked}, in_use)
                apart += [MissingEntry(name, gaps[name].marked, gaps[name].last.seq) for name in unlinked]
            own = {name: entries for name, entries in own.items() if name in moved}
        return apart

    def _mark_reached(self, walks: Mapping[str, "Walk"], marked: Mapping[str, Head], in_use: bool | None) -> set[str]:
        # Where another process has marked them all, it may go on meanwhile.
        reached = {name: walk.reached for name, walk in walks.items() if walk.reached != marked.get(name)}
        moved = self.file.advance(reached, marked, clock.now(), in_use=in_use)
        self._own_marks |= {name: head for name, head in reached.items() if name not in moved}
        return moved

    def _mark_second_versions(self, last: Mapping[str, Head], in_use: bool | None) -> None:
        heads = {second_version(name): head for name, head in last.items()}
        self.file.advance(heads, self.file.marked(heads), clock.now(), in_use=in_use)

    def _advance(self, made: list[NewEntry], journals: list[str] | None, in_use: bool | None) -> list[MissingEntry]:
        """Write the heads of these journals, or of all, unless entries are missing; return the lost entries.

        Args:
            made: entries that this process committed.
        """
        if journals is None:
            mark = self.file.read()
            marked: Mapping[str, Head] = {} if mark is None else mark.heads
        else:
            marked = self.file.marked([*journals, *map(second_version, journals), INSTALLATION])
        # Begun after the mark was read, so that all marked entries were committed before this moment of the ledger.
        with self._reading() as connection:
            accounts = last_entries(connection, journals)
            missing = missing_entries(connection, marked, accounts)
            heads = present_heads(connection, self.file.secret, accounts, marked)
            lost = lost_entries(connection, made)  # checked again: heads that are marked instead must follow them
        if heads.altered and heads.altered != self._altered:
            altered = [name or "the installation's journal" for name in heads.altered[:SHOWN]]
            number = len(heads.altered)
            _log.error("heads that the service did not write; they are not marked", journals=altered, number=number)
        self._altered = heads.altered
        if missing:
            self._stop("the ledger lacks entries that it had before; nothing is written", missing)
        elif not lost:
            at, begins = clock.now(), journals is None and not self._database.newest.complete
            unsound = by_name(heads.altered) if begins else {}  # later processes are to know these accounts
            # Those that moved are marked the next time.
            self.file.advance(unsound | heads.sound, marked, at, in_use=in_use)
            self.written_at = at
        return lost

    def _stop(self, reason: str, missing: list[MissingEntry]) -> None:
        self._database.stop(reason, missing=described(missing))

    def _reading(self) -> AbstractContextManager[Connection]:
        """Open a transaction; a server's waits for nothing, as the server must not write without its mark."""
        return self._database.look(limited=False) if self._serves else self._database.read()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Look at the schema and advance the mark periodically until the block ends; advance it once more at its end.

        Each has a thread of its own, so that a look that hangs does not keep the mark from being written. Nothing is
        written to the ledger after the block.
        """
        self._looked = self._marked = time.monotonic()
        self._database.unwatched = self.unwatched
        with (
            open_files(self._database.pools.writer.url) as self._files,
            until_stopped(self._keep_advancing, "high-water mark", within=_END),
            until_stopped(self._keep_looking, "schema", within=_END),
        ):
            self._database.begin_writing()
            yield
            self._database.end_writing(_END)  # so that the last mark has every entry
        self._database.unwatched = lambda: None

    def unwatched(self) -> str | None:
        """Return the reason why nothing may be written now; None while looks and the writing of the mark succeed.

        It is called at each write and look-up of a key, so that it holds whatever the threads wait for. A database that
        does not answer gives this reason too, and it is over when the database answers again.
        """
        now = time.monotonic()
        late = now - self._looked > _LIMIT or now - self._marked > _LIMIT + 2 * self._everything
        with self._changing:
            changed, self._unwatched = late != self._unwatched, late
        if changed and late:
            seconds = {"looked": round(now - self._looked, 1), "marked": round(now - self._marked, 1)}
            _log.critical(_UNWATCHED, seconds_since=seconds)
        elif changed:
            _log.warning("the high-water mark and the schema could be checked again; the server writes again")
        return _UNWATCHED if late else None

    def _keep_looking(self, stopping: threading.Event) -> None:
        sound = True
        while not stopping.wait(_PAUSE):
            began = time.monotonic()
            looked = self._look()
            sound, followed = self._follow_ends(sound=sound)
            if looked and followed:
                self._looked = began
            self.unwatched()

    def _keep_advancing(self, stopping: threading.Event) -> None:
        looks, last = 0, False
        while not last:
            last, looks, began = stopping.wait(_PAUSE), looks + 1, time.monotonic()
            if not (last or looks % _REFRESH == 0 or self._database.has_committed()):
                self._marked = began
                continue
            try:
                self.advance(everything=looks % _EVERYTHING == 0, last=last)
            except Exception as error:  # noqa: BLE001 - no content of the database may end the upkeep of the mark
                if not self._failing:
                    detail = (error.for_operator or str(error)) if isinstance(error, ServiceError) else None
                    _log.error("high-water mark not written", error=type(error).__name__, detail=detail)
                self._failing = True
            else:
                self._failing, self._marked = False, began
            self.unwatched()
            if looks % _REFRESH == 0 and (behind := clock.seconds_behind()) > 1:
                _log.error(
                    "the system's clock was set back; the server's time does not go back", seconds=round(behind, 1)
                )

    def _look(self) -> bool:
        """Stop the server if its files or the schema are others, and read the heads that must be found from now on.

        These are the marked heads that any process moved, and the last entry of the installation's journal. The
        statements that later read which keys were ended must reach this entry, and the one in the mark, which
        commands advance. Otherwise a false answer to those statements alone would keep an ended key valid.

        Returns:
            Whether the schema could be read.
        """
        try:
            if (replaced := self._files.replaced()) is not None:
                self._database.stop(_OTHER_FILES, event=_OTHER_FILES, file=replaced)
            self._remember_marked()  # first, so that it is known whatever the database answers
            with self._database.look() as connection:
                fault = unexpected(connection)
                if fault is None:
                    self._database.paused = None
                else:
                    self._database.other_schema(connection, fault)
                present = installation_journal.sealed_head(connection, self.file.secret)
            if present is not None:
                self._database.newest.add([KnownHead(INSTALLATION, present.seq, present.hash)])
        except ServiceError:  # another schema, or the database does not answer, which the writing of the mark reports
            return False
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("the schema was not checked", error=type(error).__name__)
            return False
        return True

    def _remember_marked(self) -> None:
        """Remember the heads that processes marked, and stop the server if it knows another version of such a journal.

        A row that does not follow from them is not used from now on.
        """
        try:
            last, heads = self.file.moved_since(self._last_move)
        except BrokenMark:  # reported when it is written
            return
        newest = self._database.newest
        for name, marked in heads.items():
            if self._own_marks.pop(name, None) == marked or name == INSTALLATION:
                continue  # entries of the installation's journal are linked as they are read
            known = newest.last(name)
            if known is not None and Head(known.seq, known.hash) != marked:
                lower, higher = sorted((Head(known.seq, known.hash), marked), key=lambda head: head.seq)
                self._to_link.append((name, lower, higher))
        newest.add(known_heads(heads))
        self._last_move = last
        if apart := self._link():
            self._stop("another server marked another version of a journal; nothing is written", apart)

    def _link(self) -> list[MissingEntry]:
        """Link pairs of a known and a marked head for a while; return those that are not of one chain.

        A command may mark thousands of journals at once. The rest is left to the next looks.
        """
        if not self._to_link:
            return []
        apart, until = list[MissingEntry](), time.monotonic() + _LINKING
        with self._reading() as connection:  # begun after all of them were committed
            while self._to_link and time.monotonic() < until:
                some = list(islice(self._to_link, _AT_ONCE))
                ids = {name: account_id for account_id, name, *_ in last_entries(connection, [one[0] for one in some])}
                for name, lower, higher in some:
                    if name not in ids or not is_linked(connection, ids[name], lower, higher):
                        apart.append(MissingEntry(name, lower, higher.seq))
                    self._to_link.popleft()
        return apart

    def _follow_ends(self, *, sound: bool) -> tuple[bool, bool]:
        """Read which keys were ended by any process.

        Args:
            sound: whether it was sound at the last check, so that the log reports a change only once.

        Returns:
            Whether the installation's journal is sound, and whether the database answered.
        """
        try:
            installation_journal.follow(self._database, self.file.secret)
        except BrokenChain as broken:
            if sound:
                _log.error("the installation's journal is not as the service wrote it", broken=str(broken))
            return False, True
        except ServiceError:  # the database does not answer, or a rollback was detected, which is logged already
            return sound, False
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("the installation's journal could not be read", error=type(error).__name__)
            return sound, False
        return True, True
