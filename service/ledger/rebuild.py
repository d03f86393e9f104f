"""Rebuilding a ledger from an export: every table from the journal, in one transaction or not at all."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError

from service.errors import Conflict
from service.ledger import accounts, branches, budgets, clock, draw_rows, draws, hold_rows, partitions, release_rows
from service.ledger.accounts import AccountRecord
from service.ledger.audit import UNREADABLE
from service.ledger.company import Made
from service.ledger.database import Database, note_entries, secret_of
from service.ledger.exports import BadExport, Drawn, Entered, Reader
from service.ledger.history import Chain, Said, as_left, ends_by_itself
from service.ledger.installation import note_nothing_to_adopt
from service.ledger.installation_journal import lock_installation
from service.ledger.journal import BEFORE_FIRST, Head, has_entry
from service.ledger.metadata import write_metadata
from service.ledger.spending_rows import Charged
from service.ledger.tables import Account, Base, Description, Draw, Entry, Hold, Release, ReleaseTag
from service.ledger.tabulations import tabulated, write_layout
from service.ledger.texts import Amount, amount_of, read_amount, read_text, tags_of
from service.privacy.filter import Totals
from service.privacy.levels import find_level
from service.privacy.mechanisms import Mechanism
from service.privacy.plan import Plan

_AT_ONCE = 1000  # rows that wait to be written together


def rebuild(database: Database, open_file: Callable[[], BinaryIO], public_key: str) -> dict[str, Head]:
    """Import an export into a ledger without accounts; return the heads of the accounts.

    Raises:
        BadExport: the file is not whole or not as it was signed by the holder of ``public_key``; nothing is imported.
        Conflict: there are accounts already.
    """

    def work(connection: Connection) -> dict[str, Head]:
        lock_installation(connection)
        if connection.execute(select(Account.id).limit(1)).first() is not None:
            raise Conflict("expected a ledger without accounts: an import makes a ledger and never changes one")
        note_nothing_to_adopt(connection, secret_of(connection), clock.now())  # whoever bound the database before
        with open_file() as file:
            reader = Reader(file, public_key)
            writer = _Writer(connection, reader)
            for entered in reader.entries():
                _take(writer, reader, entered)
            note_entries(connection, writer.made)
            return reader.heads

    def landed(connection: Connection, heads: dict[str, Head]) -> bool:
        query = select(Account.id).where(Account.name == bindparam("name"))
        ids = [connection.execute(query, {"name": name}).scalar_one_or_none() for name in heads]
        found = zip(ids, heads.values(), strict=True)
        return all(account is not None and has_entry(connection, account, head) for account, head in found)

    return database.write(work, landed=landed)


def _take(writer: "_Writer", reader: Reader, entered: Entered) -> None:
    try:
        writer.take(entered)
    except BadExport:
        raise
    except (IntegrityError, DataError):
        raise BadExport(reader.line, "the tables cannot hold what the entry says") from None
    except UNREADABLE:
        raise BadExport(reader.line, "the entry does not say what one of its kind says") from None


class _Writer:
    """Writes what entries say: the rows of many at a time, those of a table together."""

    def __init__(self, connection: Connection, reader: Reader) -> None:
        self._connection, self._reader = connection, reader
        self._accounts: dict[str, AccountRecord] = {}  # as they were opened
        self._rows: dict[type[Base], list[dict[str, Any]]] = {table: [] for table in _IN_ORDER}
        self._changes: list[dict[str, Any]] = []  # of releases that those rows make, or earlier ones
        self._drawn_from: tuple[str, Plan] | None = None
        self.made: list[Made] = []  # the last entry of each account

    def take(self, entered: Entered) -> None:
        """Write an entry with all that it says."""
        said, chain = entered.said, entered.audit.chain
        seq, content, release = said["seq"], said["content"], said["release"]
        if seq == 1:
            self._accounts[chain.name] = self._open(chain)
        account = self._accounts[chain.name].id
        if entered.state is not None and "plan" in content:
            self._register(account, entered)
        elif entered.state is not None:
            self._changes.append({"release": release, "account": account, "state": entered.state})
        elif said["kind"] == "repriced":
            price, accountant = _price_text(amount_of(content["price"])), content["accountant"]
            self._changes.append({"release": release, "account": account, "price": price, "accountant": accountant})
        elif said["kind"] == "described":
            self._describe(account, said)
        row = {"account_id": account, "seq": seq, "kind": said["kind"], "release_id": release}
        self._rows[Entry].append(row | {"body": entered.body, "hash": entered.hash})
        if entered.drawn is not None:
            self._draw(account, entered, entered.drawn)
        if entered.is_last:
            self._close(self._accounts[chain.name], chain)
        elif len(self._rows[Entry]) >= _AT_ONCE:
            self._flush()

    def _open(self, chain: Chain) -> AccountRecord:
        content, parent = chain.opened["content"], chain.opened["content"].get("parent")
        account = AccountRecord(
            id=0,
            name=chain.name,
            unit=content["unit"],
            neighbouring=chain.neighbouring,
            description=content["description"],
            budget=chain.stands,
            admission=budgets.write_weights(chain.weights),
            weights=chain.weights,
            totals=Totals(),
            state="open",
            created_at=chain.opened["time"],
            head=BEFORE_FIRST,
            parent=parent,
        )
        above = None if parent is None else self._accounts[parent].id
        return replace(account, id=accounts.insert_row(self._connection, account, above))

    def _register(self, account: int, entered: Entered) -> None:
        """A release of the account; one of an account below must be there already, as its entry says."""
        said, content, chain = entered.said, entered.said["content"], entered.audit.chain
        origin = content.get("origin")
        if origin is not None:
            found = self._connection.execute(_ORIGIN, {"release": said["release"]}).one_or_none()
            if found is None or tuple(found) != (origin["account"], origin["seq"]):
                raise BadExport(self._reader.line, "the release is not where the entry says that it was registered")
            return
        row = {"id": said["release"], "account_id": account, "seq": said["seq"], "state": entered.state}
        row |= {field: content[field] for field in ("name", "delta", "accountant")}
        row |= {
            "plan": json.dumps(content["plan"], ensure_ascii=False),
            "tags": json.dumps(content["tags"], ensure_ascii=False),
            "price": _price_text(chain.amount),
            "created_at": said["time"],
            "expires_at": content.get("expires_at"),
        }
        row["seal"] = release_rows.seal_of(secret_of(self._connection), row, entered.hash)
        self._rows[Release].append(row)
        tags = ({"account_id": account, "tag": tag, "seq": said["seq"]} for tag in tags_of(chain.subject))
        self._rows[ReleaseTag].extend(tags)

    def _describe(self, account: int, said: Said) -> None:
        seq, release = said["seq"], said["release"]
        if release is not None:
            self._flush()
            if self._connection.execute(_PLAN, {"release": release, "account": account}).first() is None:
                raise BadExport(self._reader.line, "the description is of no release of its account")
        row = {"account_id": account, "seq": seq, "release_id": release}
        self._rows[Description].append(row | {"document": write_metadata(said["content"]["metadata"])})

    def _draw(self, account: int, entered: Entered, drawn: Drawn) -> None:
        said, content, release = entered.said, entered.said["content"], entered.said["release"]
        row = {field: content[field] for field in ("mechanism", "partition", "repetition", "size", "noisy_hash")}
        row |= {"id": content["draw"], "release_id": release, "account_id": account, "seq": said["seq"]}
        row["created_at"] = said["time"]
        code = draw_rows.seal_of(secret_of(self._connection), row, entered.hash, content.get("layout_hash"))
        self._rows[Draw].append(row | {"noisy": drawn.noisy, "noisy_removed_at": drawn.noisy_removed_at, "seal": code})
        self._flush()
        found = self._connection.execute(_PLAN, {"release": release, "account": account}).one_or_none()
        if found is None or found.state != "committed":
            raise BadExport(self._reader.line, "the draw is of no committed release of its account")
        if '"choice"' in found.plan:
            plan = self._plan_of(release, found.plan)
            forks = draws.forks_of(plan, content["mechanism"], content["repetition"])
            branches.take_branches(self._connection, release, forks, content["partition"], content["draw"])
        if drawn.layout is not None and drawn.packed is not None:
            level = find_level(self._plan_of(release, found.plan), drawn.layout.level)
            if level is None:
                raise BadExport(self._reader.line, "the release has not the level of the tabulation")
            write_layout(self._connection, release, level, drawn.layout, drawn.packed, content["draw"])
            self._count(said, tabulated(level, drawn.layout))
        elif content["partition"]:
            mechanism = draws.find_mechanism(self._plan_of(release, found.plan), content["mechanism"], "")
            self._count(said, ((mechanism, (content["partition"],)),))

    def _plan_of(self, release: str, text: str) -> Plan:
        """The plan of a release that is drawn from, read once: its draws mostly come together."""
        if self._drawn_from is None or self._drawn_from[0] != release:
            self._drawn_from = release, read_text(text)
        return self._drawn_from[1]

    def _count(self, said: Said, drawn: Sequence[tuple[Mechanism, Sequence[str]]]) -> None:
        """The partitions of a draw, each of a mechanism that is drawn for it.

        Raises:
            BadExport: the plan does not declare them, or not so many.
        """
        release, repetition = said["release"], said["content"]["repetition"]
        for mechanism, names in drawn:
            declared = mechanism.partitions
            if declared is not None and declared.names is not None and not declared.names.issuperset(names):
                raise BadExport(self._reader.line, "the draw is of a partition that the plan does not declare")
            if names:
                partitions.count(self._connection, release, mechanism.name or "", repetition, len(names), declared)

    def _flush(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                self._connection.execute(insert(table), rows)
                rows.clear()
        for change in self._changes:
            own = (Release.id == change["release"], Release.account_id == change["account"])
            if "state" in change:
                ids = self._connection.execute(select(Release.id).where(*own)).scalars().all()
                release_rows.update_states(self._connection, ids, change["state"])
            else:
                values = {column: change[column] for column in ("price", "accountant")}
                self._connection.execute(update(Release).where(*own).values(values))
        self._changes.clear()

    def _close(self, account: AccountRecord, chain: Chain) -> None:
        """What all entries of an account together make of its row, its holds and its spending."""
        self._flush()
        secret = secret_of(self._connection)
        holds = [
            {"release_id": release, "account_id": account.id, "price": _price_text(held.amount)}
            | {"expires_at": ends_by_itself(held)}
            for release, held in chain.held.items()
        ]
        if holds:
            self._connection.execute(insert(Hold), [hold_rows.sealed(secret, hold) for hold in holds])
        drawn, undeclared = partitions.own_total(self._connection, account.id)
        after = replace(as_left(account, chain), partitions_drawn=drawn, partitions_undeclared=undeclared)
        accounts.save(self._connection, [after], Charged(chain.spent, chain.reserved))
        self.made.append(Made(account.id, after.head.seq, after.head.hash))


def _price_text(amount: Amount) -> str:
    return json.dumps(budgets.write_price(read_amount(amount)))


_IN_ORDER: tuple[type[Base], ...] = (Release, ReleaseTag, Entry, Draw, Description)
_ORIGIN = (
    select(Account.name, Release.seq)
    .join(Account, Account.id == Release.account_id)
    .where(Release.id == bindparam("release"))
)
_PLAN = select(Release.plan, Release.state).where(
    Release.id == bindparam("release"), Release.account_id == bindparam("account")
)
