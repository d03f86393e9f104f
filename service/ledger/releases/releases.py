"""Reads of releases."""

import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Row,
    and_,
    bindparam,
    collate,
    exists,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, aliased

from service.errors import NotFound
from service.ledger.descriptions.description_rows import last_description, read_metadata
from service.ledger.descriptions.metadata import Metadata
from service.ledger.journal.canonical_json import canonical
from service.ledger.journal.chains import is_hashed
from service.ledger.journal.entry_texts import spending_key_in, tags_of
from service.ledger.journal.journal import AccountHead, Head, hash_before, up_to
from service.ledger.releases import release_rows
from service.ledger.releases.reservation_rows import State, expires
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.tables import OF_APPROVALS, Account, Entry, Hold, Release, ReleaseTag
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan

HELD = ("proposed", "reserved")
"""The states that count against the budgets and can still be taken back."""
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_AT_ONCE = 500  # releases whose owners are looked up together
LONG = 1 << 14
"""Characters of a plan, beyond which a helper reads it, where there is one."""


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """A stored release; ``head`` is the journal entry that charged it, ``expires_at`` that of its reservation.

    ``plan_text`` is the plan in the client's words, as the ledger stores it. A long plan takes seconds to parse, so it
    is parsed on demand, after the transaction. ``metadata`` is the release's metadata. ``periods`` are those that it
    reads, as canonical JSON; None: its account has none.
    """

    id: str
    name: str
    plan_text: str
    tags: tuple[str, ...]
    delta: Fraction
    state: State
    created_at: str
    head: Head
    expires_at: str | None = None
    metadata: Metadata = field(default_factory=dict)
    periods: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """Return the plan in the client's words."""
        document: dict[str, Any] = json.loads(self.plan_text)
        return document

    @property
    def plan(self) -> Plan:
        """Return the parsed plan, to be priced or drawn from."""
        return read_plan(self.document)

    @property
    def plan_tags(self) -> frozenset[str]:
        """Return the tags of the nodes of its plan, as its sealed row says."""
        if '"tags"' not in self.plan_text:  # most have none, and parsing a plan takes longest
            return frozenset()
        return tags_of(spending_key_in(self.plan_text, "[]")[0])

    def carries(self, tag: str | None) -> bool:
        """Return whether a tag is its own or that of a node of its plan; None: any release.

        The rows of tags have no seal, so anybody who writes the database can add one.
        """
        return tag is None or tag in self.tags or tag in self.plan_tags

    def is_over(self, at: str) -> bool:
        """Return whether it is held although its reservation has expired."""
        return self.state in HELD and self.expires_at is not None and self.expires_at <= at

    def seen(self, at: str) -> "ReleaseRecord":
        """Return the release at a moment: expired if its time is over, whether or not the expiry is recorded yet."""
        return replace(self, state="expired") if self.is_over(at) and expires(self.plan) else self


def read_release(connection: Connection, account_id: int, release_id: str) -> ReleaseRecord:
    """Return a release of an account.

    Raises:
        NotFound: the account has none with this id.
    """
    row = connection.execute(_BY_ID, {"account": account_id, "release": release_id}).one_or_none()
    if row is None:
        raise NotFound("release", release_id)
    return record_of(connection, row)


def read_some(connection: Connection, account_id: int, release_ids: Sequence[str]) -> list[ReleaseRecord]:
    """Return releases of an account in the order of their registration; unknown ids are left out.

    Raises:
        Altered: the row of one is not as the service wrote it.
    """
    query = RELEASES.where(Release.account_id == account_id, Release.id.in_(release_ids)).order_by(Release.seq)
    return [record_of(connection, row) for row in connection.execute(query)]


def sizes_of(connection: Connection, account_id: int, release_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of characters of some releases of an account, by their ids; unknown ids are left out."""
    query = select(Release.id, SIZE.label("size")).where(Release.account_id == account_id, Release.id.in_(release_ids))
    return {row.id: row.size for row in connection.execute(query)}


def owners_of(connection: Connection, release_ids: Sequence[str]) -> dict[str, str]:
    """Return the names of the accounts in which releases were registered, by the ids of the releases.

    Raises:
        Altered: the row of one is missing, or not as the service wrote it.
    """
    query = RELEASES.add_columns(Account.name.label("owner")).join(Account, Account.id == Release.account_id)
    owners: dict[str, str] = {}
    for start in range(0, len(release_ids), _AT_ONCE):
        for row in connection.execute(query.where(Release.id.in_(release_ids[start : start + _AT_ONCE]))):
            release_rows.require_seal(connection, row, row.hash)
            owners[row.id] = row.owner
    for release_id in release_ids:
        if release_id not in owners:
            raise release_rows.altered(release_id)
    return owners


def state_of(connection: Connection, account_id: int, release_id: str) -> State:
    """Return the state of an account's release, without its plan, which may be long.

    Raises:
        NotFound: the account has none with this id.
        Unavailable: its row is not as the service wrote it.
    """
    query = select(Release.id, Release.state, Release.seal)
    row = connection.execute(query.where(Release.account_id == account_id, Release.id == release_id)).one_or_none()
    if row is None:
        raise NotFound("release", release_id)
    release_rows.require_state(connection, row)
    return cast(State, row.state)


def state_at(connection: Connection, account_id: int, release: ReleaseRecord, at: str) -> State:
    """Return the state of a release at a moment without its plan: its hold says whether it expires by itself.

    Raises:
        NotFound: the account has none with this id.
        Unavailable: its row is not as the service wrote it.
    """
    state = state_of(connection, account_id, release.id)
    due = select(Hold.release_id).where(
        Hold.release_id == release.id, Hold.account_id == account_id, Hold.expires_at <= at
    )
    return "expired" if state in HELD and connection.execute(due).first() is not None else state


def metadata_of(connection: Connection, account_id: int, release_id: str, until: int) -> Metadata:
    """Return the metadata of a release when the account's journal ended with the entry ``until``.

    Raises:
        Altered: the text of its last description does not have its hash.
    """
    text = connection.execute(select(last_description(account_id, release_id, until))).scalar_one()
    return read_metadata(text, f"release {release_id!r}")


def entry_of(connection: Connection, account_id: int, release: ReleaseRecord) -> dict[str, Any]:
    """Return the content of the entry that charged a release; the release's seal holds the entry's hash.

    Returns:
        All members of the entry; what its kind states is in ``content``.

    Raises:
        Altered: the entry is not as the service wrote it.
    """
    query = select(Entry.body).where(Entry.account_id == account_id, Entry.seq == release.head.seq)
    body = connection.execute(query).scalar_one_or_none()
    previous = hash_before(connection, account_id, release.head.seq)
    if body is None or not is_hashed(previous, body, release.head.hash):
        raise release_rows.altered(release.id)
    members: dict[str, Any] = json.loads(body)
    return members


def plan_size(connection: Connection, release_id: str, account_id: int | None = None) -> int:
    """Return the number of characters of a release's plan.

    Raises:
        NotFound: there is none with this id, or the account has none.
    """
    query = select(func.length(Release.plan)).where(Release.id == release_id)
    query = query if account_id is None else query.where(Release.account_id == account_id)
    size: int | None = connection.execute(query).scalar_one_or_none()
    if size is None:
        raise NotFound("release", release_id)
    return size


def plan_part(connection: Connection, release_id: str, first: int, size: int) -> str:
    """Return ``size`` characters of a release's plan from the one with the number ``first``.

    Args:
        first: from 0.
    """
    part = select(func.substr(Release.plan, first + 1, size)).where(Release.id == release_id)
    return str(connection.execute(part).scalar_one())


@dataclass(frozen=True, slots=True)
class Wanted:
    """The releases that a list is asked for: those with all that is stated.

    Attributes:
        tag: releases that carry it themselves or on a node of their plan.
        state: releases that are in it at the moment of the question.
        name: releases whose name contains it, whatever the case of ASCII letters.
        principal: releases that it registered.
        approver: releases that it approved, whether or not others had to approve them too.
        since: releases that were registered at this moment or later.
        before: releases that were registered earlier than this moment.
    """

    tag: str | None = None
    state: State | None = None
    name: str | None = None
    principal: str | None = None
    since: str | None = None
    before: str | None = None
    approver: str | None = None


def list_releases(
    connection: Connection,
    account: AccountHead,
    after: int,
    limit: int,
    wanted: Wanted,
    at: str,
    before_reading: BeforeReading,
    *,
    newest_first: bool = False,
) -> Page[ReleaseRecord]:
    """Return a page of an account's releases in the order of their registration.

    Args:
        after: the number of the entry that the page follows; 0 for the first page.
        at: the moment of the question.
        newest_first: in the reverse order.

    Raises:
        Altered: a release is not as the service wrote it.
    """

    def follows(number: InstrumentedAttribute[int]) -> ColumnElement[bool]:
        return number < after if newest_first and after else number > after

    account_id, tag, state = account.id, wanted.tag, wanted.state
    query, number = RELEASES.where(Release.account_id == account_id), Release.seq
    query = query.where(*searched(connection, literal(account.name), account.head.seq, wanted))
    if tag is not None:
        query = query.join(
            ReleaseTag, (ReleaseTag.account_id == Release.account_id) & (ReleaseTag.seq == Release.seq)
        ).where(ReleaseTag.account_id == account_id, ReleaseTag.tag == tag)
    match state:
        case None | "committed":
            # Most or all rows are listed in this order. A rare tag has few rows, so the order of its own rows is used.
            number = Release.seq if tag is None else ReleaseTag.seq
            query = query.where(follows(number))
            query = query if state is None else query.where(Release.state == state)
        case "expired":
            query = query.where(UNCOMMITTED, Release.seq.in_(_expired(account_id, follows(Release.seq), at)))
        case "voided":
            query = query.where(UNCOMMITTED, follows(Release.seq), Release.state == state)
        case _:
            query = query.where(UNCOMMITTED, follows(Release.seq), Release.state == state, ~is_due(at))
    ordered, passed = query.order_by(number.desc() if newest_first else number), 0
    while True:
        rows = rows_of(connection, ordered.offset(passed), SIZE, limit, before_reading=before_reading)
        page = Page(one.seen(at) for row in rows if (one := record_of(connection, row)).carries(tag))
        page.more = rows.more
        if page or not rows.more:
            return page
        passed += len(rows)  # all were left out, and none has a number that a page could follow


class WantedProposals(NamedTuple):
    """The proposals that a list is asked for: those with all that is stated.

    Attributes:
        state: ``proposed``, those that wait; ``approved``, those that others approved and that are charged;
            ``voided``, those that were proposed and voided later, maybe after others approved them.
        by: the principal that proposed them; None: any.
        since: the moment before which none was proposed; None: any moment.
    """

    state: Literal["proposed", "approved", "voided"] = "proposed"
    by: str | None = None
    since: str | None = None

    def conditions(self, at: str) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions that the rows of releases and of their accounts meet."""
        if self.state == "approved":
            approval = aliased(Entry)
            yield Release.id.in_(select(approval.release_id).where(OF_APPROVALS))
            yield Release.state.in_(("reserved", "committed"))
        else:
            yield UNCOMMITTED
            yield Release.state == self.state
        if self.state != "voided":
            yield ~is_due(at)
        if self.since is not None:
            yield Release.created_at >= self.since
        first = aliased(Entry)  # the list reads entries itself
        made = select(first.seq).where(first.account_id == Release.account_id, first.seq == Release.seq)
        if self.state == "voided":
            yield made.where(first.kind == "proposed").exists()
        if self.by is not None:
            yield made.where(made_by(Account.name, self.by, first)).exists()


WAITING = WantedProposals()


class Proposal(NamedTuple):
    """A proposed release, with the account that it was registered in and the principal that proposed it."""

    account_id: int
    account: str
    release: ReleaseRecord
    proposed_by: str


def list_proposals(
    connection: Connection,
    after: tuple[int, int],
    limit: int,
    only: frozenset[str] | None,
    at: str,
    before_reading: BeforeReading,
    wanted: WantedProposals = WAITING,
) -> Page[Proposal]:
    """Return a page of proposed releases, by account and in the order of their registration.

    Args:
        after: the account and the number of the entry that the page follows; zeros for the first page.
        only: the names of the accounts to include; None: all.
        at: the moment of the question.

    Raises:
        Altered: a release or its entry is not as the service wrote it.
    """
    query = (
        RELEASES.add_columns(Release.account_id, Account.name.label("account"))
        .join(Account, Account.id == Release.account_id)
        .where(*wanted.conditions(at))
        .where(tuple_(Release.account_id, Release.seq) > after)
        .order_by(Release.account_id, Release.seq)
    )
    if only is not None:
        query = query.where(Account.name.in_(only))

    def read(row: Row[*tuple[Any, ...]]) -> Proposal:
        release = record_of(connection, row)
        actor = entry_of(connection, row.account_id, release)["actor"]
        return Proposal(row.account_id, row.account, release, actor)

    return page_of(rows_of(connection, query, SIZE, limit, before_reading=before_reading), read)


def made_by(
    account: ColumnElement[str] | InstrumentedAttribute[str], principal: str, entry: type[Entry] = Entry
) -> ColumnElement[bool]:
    """Return the condition that an entry of an account is by a principal: the first members of its text say so.

    Args:
        account: the account's name, which is the same in JSON.
    """
    start = literal('{"account":"') + account + literal(f'",{canonical({"actor": principal})[1:-1]},')
    return func.substr(entry.body, 1, func.length(start)) == start


def searched(
    connection: Connection,
    account: ColumnElement[str] | InstrumentedAttribute[str],
    head_seq: int | InstrumentedAttribute[int],
    wanted: Wanted,
) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a search by name, principal, approver and moment; no index serves them.

    Args:
        account: the name of the releases' account.
        head_seq: the number of its last entry.
    """
    if wanted.name is not None:
        # Only ASCII letters fold on SQLite; the collation makes PostgreSQL do the same.
        name = collate(Release.name, "C") if connection.dialect.name == "postgresql" else Release.name
        yield func.lower(name).contains(wanted.name.translate(_LOWER), autoescape=True)
    if wanted.principal is not None:
        yield made_by(account, wanted.principal)
    if wanted.approver is not None:
        approval = aliased(Entry)
        of_release = approval.release_id == Release.id, approval.account_id == Release.account_id
        yield exists().where(
            OF_APPROVALS, *of_release, up_to(approval.seq, head_seq), made_by(account, wanted.approver, approval)
        )
    if wanted.since is not None:
        yield Release.created_at >= wanted.since
    if wanted.before is not None:
        yield Release.created_at < wanted.before


def is_due(at: str) -> ColumnElement[bool]:
    """Return the condition that a release is held although its time is over, by its own row, which has a seal."""
    held = exists().where(Hold.release_id == Release.id, Hold.account_id == Release.account_id, Hold.expires_at <= at)
    ends = Release.expires_at.is_not(None)  # or else the condition, and its opposite, would be null
    return and_(ends, Release.expires_at <= at, held)


def _expired(account_id: int, follows: ColumnElement[bool], at: str) -> CompoundSelect[tuple[int]]:
    """Select the numbers of releases whose time is over, recorded or not; each half has its index."""
    written = select(Release.seq).where(Release.account_id == account_id, UNCOMMITTED, Release.state == "expired")
    due = select(Release.seq).join(Hold, Hold.release_id == Release.id)
    due = due.where(Release.account_id == account_id, Hold.account_id == account_id, Hold.expires_at <= at)
    due = due.where(Release.expires_at <= at)
    return union_all(written.where(follows), due.where(follows))


UNCOMMITTED = Release.state != literal_column("'committed'")  # worded as in the partial index of these few

_METADATA = last_description(Release.account_id, Release.id)
SIZE = (
    func.length(Release.plan)
    + func.length(Release.tags)
    + func.coalesce(func.length(Release.periods), 0)
    + func.coalesce(func.length(_METADATA), 0)
)

RELEASES = select(
    *release_rows.FIXED,
    Release.state,
    Release.seal,
    Entry.hash,
    _METADATA.label("metadata"),
).join(Entry, (Entry.account_id == Release.account_id) & (Entry.seq == Release.seq))

_BY_ID = RELEASES.where(Release.account_id == bindparam("account"), Release.id == bindparam("release"))


def record_of(connection: Connection, row: Row[*tuple[Any, ...]]) -> ReleaseRecord:
    """Return the release of a row of ``RELEASES``.

    Raises:
        Altered: the row is not as the service wrote it.
    """
    release_rows.require_seal(connection, row, row.hash)
    return ReleaseRecord(
        id=row.id,
        name=row.name,
        plan_text=row.plan,
        tags=tuple(json.loads(row.tags)),
        delta=Fraction(row.delta),
        state=row.state,
        created_at=row.created_at,
        head=Head(row.seq, row.hash),
        expires_at=row.expires_at,
        metadata=read_metadata(row.metadata, f"release {row.id!r}"),
        periods=row.periods,
    )
