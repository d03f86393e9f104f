"""The rows that entries wrote, checked beside the entries: releases, tags, descriptions, draws and branches."""

from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection, Row, bindparam, exists, false, select

from service.ledger.accounts import account_periods
from service.ledger.draws import count_codec, draw_rows
from service.ledger.draws.retention import is_removal
from service.ledger.draws.tabulation_layout import checked_layout, tabulated
from service.ledger.journal.account_state import Charge
from service.ledger.journal.entries import Described, Drawn, ParsedEntry, PriceChanged, Registration, Settlement
from service.ledger.journal.entries.committed_texts import find_unknown, start_of
from service.ledger.journal.entry_texts import PriceKey, SpendingKey, price_key_in, spending_key_in, tags_of
from service.ledger.journal.journal import JournalEntry
from service.ledger.journal.ordered_rows import BadRow, Found, SeqCursor
from service.ledger.releases import release_rows
from service.ledger.releases.releases import HELD
from service.ledger.storage.tables import Account, Description, Draw, Entry, Release, ReleaseTag, Tabulation
from service.ledger.storage.transaction import secret_of
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.funding_check import SharedLines
from service.ledger.verification.partition_check import DrawnRelease, PartitionRecount
from service.privacy.accounting.pricing import ACCOUNTANT
from service.privacy.planning.levels import find_level

_Priced = tuple[PriceKey | None, str]
"""A price with the version of the accountant that computed it."""


class RowVerifier:
    """The check of the rows that an account's entries wrote, entry by entry.

    Entries about releases of accounts under it wrote no rows here; those releases are read where they are.

    Args:
        audit: of the account, from its first entry on; ``take`` advances it.
        until: closes the cursors.
    """

    def __init__(self, connection: Connection, account_id: int, audit: Audit, until: ExitStack) -> None:
        self._connection, self._account, self._audit = connection, account_id, audit
        own = select(*_RELEASE).where(Release.account_id == account_id).order_by(Release.seq)
        self._releases = SeqCursor(connection, own, "releases", until)
        tags = select(ReleaseTag.seq, ReleaseTag.tag).where(ReleaseTag.account_id == account_id)
        self._tags = SeqCursor(connection, tags.order_by(ReleaseTag.seq), "release_tags", until)
        drawn = select(*_DRAW).where(Draw.account_id == account_id).order_by(Draw.seq)
        self._draws = SeqCursor(connection, drawn, "draws", until)
        query = select(*_DESCRIPTION).where(Description.account_id == account_id).order_by(Description.seq)
        self._descriptions = SeqCursor(connection, query, "descriptions", until)
        has_children = connection.execute(select(Account.id).where(Account.parent_id == account_id).limit(1)).first()
        below = _BELOW.where(Entry.account_id == account_id if has_children else false())
        self._below = SeqCursor(connection, below, "releases", until)
        self._shared = SharedLines(connection, account_id)
        self._start = start_of(audit.chain.name)  # the beginning of every entry's text
        self._states: dict[str, tuple[int, str]] = {}  # of held releases: the row's entry and state
        self._prices: dict[str, tuple[int, _Priced, _Priced]] = {}  # of repriced releases: the row's entry,
        # the row's price, and the price that the entries give
        self._recount = PartitionRecount(connection, account_id)
        self._secret = secret_of(connection)

    def take(self, entry: JournalEntry) -> None:
        """Audit the next entry, and check the rows that it wrote against it.

        Raises:
            BrokenChain: the entry is invalid here.
            BadRow: a row is missing, too many, or differs from the entry.
        """
        seq = entry.seq
        rows = self._releases.of(seq)
        below = self._below.of(seq) if self._below.seq <= seq else []
        if any(row.origin_id not in self._shared for row in below):
            raise BadRow(seq, "the release is of an allotted account, whose releases charge nothing above it")
        if not self._is_as_written(rows, below, entry):
            self._check(self._audit.take(entry), rows, below)
        if min(self._tags.seq, self._draws.seq, self._descriptions.seq) <= seq:
            raise BadRow(seq, "the entry wrote other rows than it states")
        if rows and not release_rows.is_sealed(self._secret, rows[0], entry.hash):
            raise BadRow(seq, release_rows.unsealed(rows[0].seal))

    def _is_as_written(self, rows: Found, below: Found, entry: JournalEntry) -> bool:
        """Check an entry that has exactly the text of its row's registration at once; return whether it has.

        Most entries are, and need no parsing: the checks of other entries hold for these by equality.
        """
        if len(rows) + len(below) != 1:
            return False
        own = bool(rows)
        _, release, name, delta, created_at, expires_at, stated, own_tags, _, *others = (rows or below)[0]
        accountant = ACCOUNTANT
        if own:
            stored, accountant, state, *_ = others
        subject, plan, tags = spending_key_in(stated, own_tags)
        found = find_unknown(
            entry.body,
            self._start,
            accountant=accountant,
            delta=delta,
            name=name,
            origin=None if own else (others[0], others[1]),
            plan=plan,
            tags=tags,
            release=release,
            seq=entry.seq,
            time=created_at,
        )
        if found is None or expires_at is not None:
            return False
        if own and (state, price_key_in(stored)) != ("committed", found.amount):
            return False
        charge = Charge(found.amount, subject, own, **found.optional)
        if charge.periods != self._periods_of((rows or below)[0], own=own):
            return False
        self._audit.take_committed(entry, release, accountant, charge)
        if found.key is not None:
            self._audit.check_key(found.key, found.actor, created_at, own=own)
        if own:
            self._check_tags(entry.seq, subject)
        return True

    def _check(self, entry: ParsedEntry, rows: Found, below: Found) -> None:
        seq, content = entry.seq, entry.content
        registers, own = isinstance(content, Registration), isinstance(content, Registration) and content.own
        if registers and len(rows if own else below) != 1:
            raise BadRow(seq, "the release is missing")
        if rows and not own:
            raise BadRow(seq, "a row of releases belongs to no entry that wrote one")
        match content:
            case Registration(origin=None):
                self._check_release(entry, content, rows[0])
            case Registration():
                self._check_below(entry, content, below[0])
            case Settlement():
                self._check_state(entry.release_id, content.next_state())
            case PriceChanged():
                self._check_repriced(entry, content)
            case Drawn():
                self._check_draw(entry, content)
            case Described():
                self._check_description(entry, content)

    def _check_release(self, entry: ParsedEntry, content: Registration, row: Row[*tuple[Any, ...]]) -> None:
        self._check_stated(entry, content, row)
        self._check_tags(entry.seq, content.charge.subject)
        stored, journalled = (price_key_in(row.price), row.accountant), (content.price, content.accountant)
        if stored != journalled:
            self._prices[row.id] = (entry.seq, stored, journalled)
        if content.next_state() != "committed":
            self._states[row.id] = (entry.seq, row.state)
        elif row.state != content.next_state():
            raise BadRow(entry.seq, "the release's state does not follow from the journal")

    def _check_below(self, entry: ParsedEntry, content: Registration, row: Row[*tuple[Any, ...]]) -> None:
        """Check a release of an account under this one: its own account must agree with the entry here."""
        if content.origin != (row.origin, row.origin_seq):
            raise BadRow(entry.seq, "the release was not registered where the entry states")
        self._check_stated(entry, content, row)

    def _periods_of(self, row: Row[*tuple[Any, ...]], *, own: bool) -> str | None:
        """Return the periods that the account is charged for by the release of a row, here or in an account below."""
        account = self._audit.chain.periods
        if own:
            return None if row.periods is None else str(row.periods)
        if account is None:
            return None
        return account_periods.read_by_another(account, row.origin_periods, row.periods)

    def _check_stated(self, entry: ParsedEntry, content: Registration, row: Row[*tuple[Any, ...]]) -> None:
        stated = content.row(entry.filing(self._account), row.plan)
        if any(stated[column] != row._mapping[column] for column in _SAME):
            raise BadRow(entry.seq, "the release's name, delta or time is not that of its entry")
        if content.periods != self._periods_of(row, own=content.own):
            raise BadRow(entry.seq, "the release's periods are not those of its entry")
        if spending_key_in(row.plan, row.tags)[0] != content.charge.subject:
            raise BadRow(entry.seq, "the release's plan or tags are not those of its entry")

    def _check_tags(self, seq: int, subject: SpendingKey) -> None:
        expected = tags_of(subject)
        if (expected or self._tags.seq == seq) and {row.tag for row in self._tags.of(seq)} != expected:
            raise BadRow(seq, "the tags are not those of the release")

    def _check_state(self, release: str, state: str) -> None:
        known = self._states.get(release)
        if known is None or state in HELD:
            return
        seq, stored = self._states.pop(release)
        if stored != state:
            raise BadRow(seq, "the release's state does not follow from the journal")

    def _check_repriced(self, entry: ParsedEntry, content: PriceChanged) -> None:
        """Check a release's price as later entries left it; a release of an account below has its price there.

        The audit compared the earlier price with the one that this chain charged, and the new one with the present
        accountant's price of the charged plan.
        """
        seq, release = entry.seq, entry.release_id
        row = self._connection.execute(_PRICED, {"id": release}).one_or_none()
        if row is None:
            raise BadRow(seq, "the release is missing")
        if row.account_id != self._account:
            return
        stored = (price_key_in(row.price), row.accountant)
        registered = self._prices[release][0] if release in self._prices else row.seq
        self._prices[release] = (registered, stored, (content.price, content.accountant))

    def _check_description(self, entry: ParsedEntry, content: Described) -> None:
        seq, release, rows = entry.seq, entry.release, self._descriptions.of(entry.seq)
        expected = content.rows(entry.filing(self._account)).added[Description]
        if [dict(row._mapping) for row in rows] != expected:
            raise BadRow(seq, "the description is not the one in its entry")
        if release is not None:
            found = self._connection.execute(_PRICED, {"id": release}).one_or_none()
            if found is None or found.account_id != self._account:
                raise BadRow(seq, "the description belongs to no release of the account")

    def _check_draw(self, entry: ParsedEntry, content: Drawn) -> None:
        seq, rows = entry.seq, self._draws.of(entry.seq)
        if len(rows) != 1:
            raise BadRow(seq, "the draw is missing")
        (row,), (stated,) = rows, content.rows(entry.filing(self._account)).added[Draw]
        if {**row._mapping} != stated | {"seal": row.seal}:
            raise BadRow(seq, "the draw is not the one in its entry")
        if not draw_rows.is_sealed(self._secret, row, self._audit.chain.head.hash, content.layout_hash):
            raise BadRow(seq, draw_rows.unsealed(row.seal))
        stored = self._connection.execute(_NOISY, {"id": row.id}).one()
        if stored.noisy_removed_at is None:
            as_drawn = count_codec.is_pack_of(stored.noisy, content.size, content.noisy_hash)
        else:
            as_drawn = not stored.noisy and is_removal(stored.noisy_removed_at, row.created_at)
        if not as_drawn:
            raise BadRow(seq, "the noisy counts are not those of the draw")
        release = self._recount.release_of(seq, row.release_id)
        if (release.row.account_id, release.row.state) != (self._account, "committed"):
            raise BadRow(seq, "the draw belongs to no committed release of the account")
        if '"choice"' in release.row.plan:
            self._audit.draws.take_branches(seq, row.release_id, content, release.plan)
        self._check_layout(seq, content, row, release)

    def _check_layout(self, seq: int, content: Drawn, row: Row[*tuple[Any, ...]], release: DrawnRelease) -> None:
        """Check a draw's partition, or a tabulation's layout with the groups that it took."""
        packed = self._connection.execute(_LAYOUT, {"id": row.id}).scalar_one_or_none()
        if packed is None and content.layout_hash is None:
            self._recount.check_draw(seq, row, release)
            return
        try:
            layout = checked_layout(packed or b"", content.layout_hash or "", content.level, content.groups)
        except ValueError:
            raise BadRow(seq, "the groups are not those of the tabulation") from None
        level = find_level(release.plan, layout.level)
        if level is None:
            raise BadRow(seq, "the release does not have the level of the tabulation")
        self._audit.draws.take_groups(seq, row.release_id, row.id, level, layout)
        self._recount.check_tabulation(seq, row, release, tabulated(level, layout))

    def check_end(self) -> None:
        """Check the rows that depend on all entries together.

        Raises:
            BadRow: a row is missing, too many, or differs from the result of the entries.
        """
        last = self._audit.chain.head.seq
        for rows in (self._releases, self._tags, self._draws, self._descriptions):
            rows.end(last)
        for release, (seq, state) in self._states.items():
            held = self._audit.chain.held.get(release)
            if held is None or held.state != state:
                raise BadRow(seq, "the release's state does not follow from the journal")
        for seq, stored, journalled in self._prices.values():
            if stored != journalled:
                raise BadRow(seq, "the release's price or accountant does not follow from the journal")
        if self._connection.execute(_LAYOUT_OF_NOTHING).first() is not None:
            raise BadRow(last, "the groups of a tabulation belong to no draw")
        self._audit.draws.check_rows(self._connection, self._account, last)
        self._recount.check_end(last)


_SAME = ("id", "name", "delta", "created_at", "expires_at")  # equal in a row and its entry
_STATED = (
    Release.id,
    Release.name,
    Release.delta,
    Release.created_at,
    Release.expires_at,
    Release.plan,
    Release.tags,
    Release.periods,
)
_RELEASE = (Release.seq, *_STATED, Release.price, Release.accountant, Release.state, Release.account_id, Release.seal)
_BELOW = (
    select(
        Entry.seq,
        *_STATED,
        Account.name.label("origin"),
        Release.seq.label("origin_seq"),
        Account.periods.label("origin_periods"),
        Release.account_id.label("origin_id"),
    )
    .join(Release, Release.id == Entry.release_id)
    .join(Account, Account.id == Release.account_id)
    .where(Entry.kind.in_(("committed", "reserved", "proposed")), Release.account_id != Entry.account_id)
    .order_by(Entry.seq)
)
_DRAW = (
    Draw.seq,
    Draw.release_id,
    Draw.id,
    Draw.mechanism,
    Draw.partition,
    Draw.repetition,
    Draw.size,
    Draw.noisy_hash,
    Draw.created_at,
    Draw.account_id,
    Draw.seal,
)
_DESCRIPTION = (Description.seq, Description.account_id, Description.release_id, Description.document)
_NOISY = select(Draw.noisy, Draw.noisy_removed_at).where(Draw.id == bindparam("id"))
_LAYOUT = select(Tabulation.layout).where(Tabulation.draw_id == bindparam("id"))
_LAYOUT_OF_NOTHING = select(Tabulation.draw_id).where(~exists().where(Draw.id == Tabulation.draw_id)).limit(1)
_PRICED = select(Release.account_id, Release.seq, Release.price, Release.accountant).where(
    Release.id == bindparam("id")
)
