"""Import of an export into an empty ledger: every table from the journal, in one transaction or not at all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError

from service.errors import Conflict
from service.ledger.accounts import accounts, budgets
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.allotments import AllotmentRow, write_rows
from service.ledger.accounts.caps import write_prices
from service.ledger.draws import branch_rows, draw_rows, partitions, places, tabulated_groups
from service.ledger.draws.tabulation_layout import tabulated
from service.ledger.draws.tabulations import write_layout
from service.ledger.installation.binding import note_nothing_to_adopt
from service.ledger.installation.installation_journal import lock_installation
from service.ledger.installation.ledger_versions import start_version
from service.ledger.journal.account_state import AccountState, ends_by_itself
from service.ledger.journal.chains import UNREADABLE
from service.ledger.journal.entries import Described, Drawn, ParsedEntry, Registration, Rows
from service.ledger.journal.entry_texts import price_of, read_text
from service.ledger.journal.journal import BEFORE_FIRST, Head, has_entry
from service.ledger.journal.replay import as_row
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.spending.spending_rows import ChargedSubplans
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NewEntry
from service.ledger.storage.tables import Account, Base, Description, Draw, Entry, Hold, Release, ReleaseTag
from service.ledger.storage.transaction import bound_secret, note_entries, secret_of
from service.ledger.verification.export_reader import BadExport, CheckedEntry, DrawnCounts, Reader
from service.privacy.accounting.totals import Totals
from service.privacy.mechanisms import Mechanism
from service.privacy.planning.levels import find_level
from service.privacy.plans import Plan

_AT_ONCE = 1000  # rows that wait to be written together


def rebuild(database: Database, open_file: Callable[[], BinaryIO], public_key: str) -> dict[str, Head]:
    """Import an export into a ledger without accounts, as a new version of it; return the heads of the accounts.

    Args:
        open_file: opens the export at its start, anew for each attempt of the transaction.

    Returns:
        Heads by the accounts' names.

    Raises:
        BadExport: the file is not whole or not as it was signed by the holder of ``public_key``; nothing is imported.
        Conflict: there are accounts already.
    """
    bound = bound_secret(database)

    def work(connection: Connection) -> dict[str, Head]:
        lock_installation(connection)
        if connection.execute(select(Account.id).limit(1)).first() is not None:
            raise Conflict("expected a ledger without accounts: an import makes a ledger and never changes one")
        note_nothing_to_adopt(connection, bound, clock.now())  # whichever version bound it
        database.secret = start_version(connection, bound, "an export is imported")
        with open_file() as file:
            reader = Reader(file, public_key)
            writer = _Writer(connection, reader)
            for entered in reader.entries():
                _take(writer, reader, entered)
            note_entries(connection, writer.made)
            return reader.heads

    def is_committed(connection: Connection, heads: dict[str, Head]) -> bool:
        query = select(Account.id).where(Account.name == bindparam("name"))
        ids = [connection.execute(query, {"name": name}).scalar_one_or_none() for name in heads]
        found = zip(ids, heads.values(), strict=True)
        return all(account is not None and has_entry(connection, account, head) for account, head in found)

    try:
        return database.write(work, is_committed=is_committed)
    except BaseException:
        database.secret = bound
        raise


def _take(writer: "_Writer", reader: Reader, entered: CheckedEntry) -> None:
    try:
        writer.take(entered)
    except BadExport:
        raise
    except (IntegrityError, DataError):
        raise BadExport(reader.line, "the tables cannot hold the entry's content") from None
    except UNREADABLE:
        raise BadExport(reader.line, "the entry's content is not valid for its kind") from None


class _Writer:
    """The writer of the imported entries' rows, many rows of a table at a time."""

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self._connection, self._reader = connection, reader
        self._accounts: dict[str, AccountRecord] = {}  # as they were opened
        self._rows: dict[type[Base], list[dict[str, Any]]] = {table: [] for table in _IN_ORDER}
        self._changes: list[tuple[str, int, Mapping[str, Any]]] = []  # of these releases, or earlier ones
        self._drawn_from: tuple[str, Plan] | None = None
        self.made: list[NewEntry] = []  # the last entry of each account

    def take(self, entered: CheckedEntry) -> None:
        """Write an entry with all its rows."""
        entry, chain = entered.entry, entered.audit.chain
        if entry.seq == 1:
            self._accounts[chain.name] = self._open(chain)
        account = self._accounts[chain.name].id
        rows = entry.content.rows(entry.filing(account))
        self._add(account, entered, rows)
        row = {"account_id": account, "seq": entry.seq, "kind": entry.kind, "release_id": entry.release}
        self._rows[Entry].append(row | {"body": entered.body, "hash": entered.hash})
        if isinstance(entry.content, Drawn) and entered.drawn is not None:
            self._draw(account, entry, entry.content, entered.drawn)
        if entered.is_last:
            self._close(self._accounts[chain.name], chain)
        elif len(self._rows[Entry]) >= _AT_ONCE:
            self._flush()

    def _open(self, chain: AccountState) -> AccountRecord:
        account = AccountRecord(
            id=0,
            name=chain.name,
            unit=chain.unit,
            neighbouring=chain.neighbouring,
            description=chain.description,
            budget=chain.current_budget,
            admission=budgets.write_weights(chain.weights),
            weights=chain.weights,
            totals=Totals(),
            state="open",
            created_at=chain.created_at,
            head=BEFORE_FIRST,
            parent=chain.parent,
            periods=chain.periods,
            windows=chain.windows,
            funding=chain.funding,
        )
        above = None if chain.parent is None else self._accounts[chain.parent].id
        return replace(account, id=accounts.insert_row(self._connection, account, above))

    def _add(self, account: int, entered: CheckedEntry, rows: Rows) -> None:
        """Add the rows that an entry wrote, with their seals, after looking up the release or draw that they belong to.

        Raises:
            BadExport: it is not in the ledger.
        """
        entry, content, secret = entered.entry, entered.entry.content, secret_of(self._connection)
        if isinstance(content, Registration) and content.origin is not None:
            found = self._connection.execute(_ORIGIN, {"release": entry.release}).one_or_none()
            if found is None or tuple(found) != content.origin:
                raise BadExport(self._reader.line, "the release was not registered where the entry states")
        if isinstance(content, Described) and entry.release is not None:
            self._flush()
            if self._connection.execute(_PLAN, {"release": entry.release, "account": account}).first() is None:
                raise BadExport(self._reader.line, "the description belongs to no release of its account")
        for table, added in rows.added.items():
            for row in added:
                if isinstance(content, Registration) and table is Release:
                    row["seal"] = release_rows.seal_of(secret, row, entered.hash)
                elif isinstance(content, Drawn) and entered.drawn is not None:
                    row["seal"] = draw_rows.seal_of(secret, row, entered.hash, content.layout_hash)
                    row |= {"noisy": entered.drawn.noisy, "noisy_removed_at": entered.drawn.noisy_removed_at}
                self._rows[table].append(row)
        if rows.changed:
            self._changes.append((entry.release_id, account, rows.changed))

    def _draw(self, account: int, entry: ParsedEntry, content: Drawn, drawn: DrawnCounts) -> None:
        release = entry.release_id
        self._flush()
        found = self._connection.execute(_PLAN, {"release": release, "account": account}).one_or_none()
        if found is None or found.state != "committed":
            raise BadExport(self._reader.line, "the draw belongs to no committed release of its account")
        if '"choice"' in found.plan:
            plan = self._plan_of(release, found.plan)
            points = places.choice_points_of(plan, content.mechanism, content.repetition)
            branch_rows.take_branches(self._connection, release, points, content.partition, content.draw)
        if drawn.layout is not None and drawn.packed is not None:
            level = find_level(self._plan_of(release, found.plan), drawn.layout.level)
            if level is None:
                raise BadExport(self._reader.line, "the release does not have the level of the tabulation")
            write_layout(self._connection, content.draw, drawn.packed)
            tabulated_groups.record_at_once(self._connection, release, level, drawn.layout, content.draw, content.size)
            self._count(release, content, tabulated(level, drawn.layout))
        elif content.partition:
            mechanism = places.find_mechanism(self._plan_of(release, found.plan), content.mechanism, "")
            self._count(release, content, ((mechanism, (content.partition,)),))

    def _plan_of(self, release: str, text: str) -> Plan:
        """Return the plan of a drawn release, parsed once because its draws mostly come together."""
        if self._drawn_from is None or self._drawn_from[0] != release:
            self._drawn_from = release, read_text(text)
        return self._drawn_from[1]

    def _count(self, release: str, content: Drawn, drawn: Sequence[tuple[Mechanism, Sequence[str]]]) -> None:
        """Count the partitions of a draw, each for a mechanism that is drawn for it.

        Raises:
            BadExport: the plan does not declare them, or not so many.
        """
        for mechanism, names in drawn:
            declared = mechanism.partitions
            if declared is not None and declared.names is not None and not declared.names.issuperset(names):
                raise BadExport(self._reader.line, "the draw is of a partition that the plan does not declare")
            if names:
                partitions.count(
                    self._connection, release, mechanism.name or "", content.repetition, len(names), declared
                )

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                self._connection.execute(insert(table), rows)
                rows.clear()
        for release, account, changed in self._changes:
            own = (Release.id == release, Release.account_id == account)
            if "state" in changed:  # the seal covers the state
                ids = self._connection.execute(select(Release.id).where(*own)).scalars().all()
                release_rows.update_states(self._connection, ids, changed["state"])
            else:
                self._connection.execute(update(Release).where(*own).values(changed))
        self._changes.clear()

    def _close(self, account: AccountRecord, chain: AccountState) -> None:
        """Write the results of all entries of an account: its row, its holds and its spending."""
        self._flush()
        secret = secret_of(self._connection)
        holds = [
            {"release_id": release, "account_id": account.id, "price": json.dumps(price_of(held.charge.amount))}
            | {"expires_at": ends_by_itself(held), "caps": write_prices(held.charge.caps)}
            | {"periods": held.charge.periods}
            for release, held in chain.held.items()
        ]
        if holds:
            self._connection.execute(insert(Hold), [reservation_rows.sealed(secret, hold) for hold in holds])
        allotted = [
            AllotmentRow(
                account.id,
                self._accounts[child].id,
                one.plan,
                json.dumps(price_of(one.amount)),
                write_prices(one.caps),
                one.seq,
            )
            for child, one in chain.allotments.items()
        ]
        write_rows(self._connection, allotted, new=True)
        drawn, undeclared = partitions.own_total(self._connection, account.id)
        after = replace(as_row(account, chain), partitions_drawn=drawn, partitions_undeclared=undeclared)
        accounts.save(self._connection, [after], ChargedSubplans(chain.spent, chain.reserved))
        self.made.append(NewEntry(account.id, after.head.seq, after.head.hash, account.name))


_IN_ORDER: tuple[type[Base], ...] = (Release, ReleaseTag, Entry, Draw, Description)
_ORIGIN = (
    select(Account.name, Release.seq)
    .join(Account, Account.id == Release.account_id)
    .where(Release.id == bindparam("release"))
)
_PLAN = select(Release.plan, Release.state).where(
    Release.id == bindparam("release"), Release.account_id == bindparam("account")
)
