"""Settlement of reservations: one way for all of a line's accounts, and expiry without a request.

A hold counts against every budget of its line until it is committed, voided or expires. A request that locks an account
with a few small expired holds ends its transaction, lets them expire and begins again. If they are more, or have long
plans, a charge that fits beside them does not wait: they count as held until the server's own thread lets them expire,
some in each transaction (``expiry_keeper``). Readers leave expired holds out.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, literal, select, tuple_

from service.errors import TooManyRequests
from service.ledger.accounts import account_periods, accounts, lines
from service.ledger.accounts.account_periods import EVERY_PERIOD, number_of
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.journal import journal
from service.ledger.journal.entries import Expired, Settlement
from service.ledger.journal.journal import Actor, has_entry
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.releases.held_charges import (
    HeldCharge,
    caps_without,
    of_held,
    with_settled_windows,
    without,
)
from service.ledger.releases.recorded_releases import present, require_recorded
from service.ledger.releases.releases import HELD, ReleaseRecord, made_by, read_some
from service.ledger.spending import subplans
from service.ledger.spending.spending_rows import NOTHING, SettledSubplans, SpendingChange, Subplans, UnlikeChanges
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account, Entry, Hold, Release
from service.ledger.storage.transaction import batch, secret_of
from service.ledger.storage.waiting_line import WaitingLine
from service.ledger.storage.writing_pace import processor_seconds
from service.privacy.plans.notation import read_plan

_AT_ONCE = 25  # holds of one account that expire in one transaction, for which charges wait
_CHARACTERS = 1 << 16  # of their plans together, except one longer plan
_WINDOWS = 1000  # that they touch together, except one release's
_PAGE = 500
_MANY, _LOOKED_AT = 100, 1000
_MOST_DUE, _RETRY = 200, 5  # overdue holds of one principal in an account, and seconds until some are recorded


@dataclass(frozen=True, slots=True)
class Held:
    """A held release with the facts for its settlement, all of which were fixed when it was charged.

    Attributes:
        expires: whether its plan lets it expire; otherwise part of it could be published without a draw here.
    """

    id: str
    expires_at: str | None
    subplans: Subplans
    expires: bool

    def is_over(self, at: str) -> bool:
        """Return whether the hold has ended by itself at a moment."""
        return self.expires and self.expires_at is not None and self.expires_at <= at


def held_of(release: ReleaseRecord) -> Held:
    """Return a release's hold; it is read before any lock is taken, because a plan may be long."""
    plan = release.plan
    counted = subplans.subplans_of(plan, release.tags)
    return Held(release.id, release.expires_at, counted, reservation_rows.expires(plan))


def settle(
    connection: Connection,
    line: Sequence[AccountRecord],
    settled: Sequence[Held],
    settlement: Settlement,
    actor: Actor | None,
    at: str,
) -> list[AccountRecord]:
    """Settle held releases of a locked line's account, with an entry in each chain of the line.

    Args:
        line: locked, root first.
        actor: None for an expiry.

    Returns:
        The accounts of the line, as they are saved.

    Raises:
        Altered: a release or a hold is not as the service wrote it, or a hold is missing.
    """
    ids, account_ids = [held.id for held in settled], [account.id for account in line]
    change: SpendingChange = NOTHING
    state = settlement.next_state()
    gone = state in ("voided", "expired")
    charges = _charges(connection, ids)
    missing = next(
        (held_id for held_id in ids for account_id in account_ids if (held_id, account_id) not in charges), None
    )
    if missing is not None:
        raise reservation_rows.altered(missing)
    entries: list[journal.Row] = []
    after: list[AccountRecord] = []
    for account in line:
        own = [charges[held_id, account.id] for held_id in ids]
        seq = account.head.seq + 1
        for held in settled:
            row, head = settlement.following(account.chain, actor=actor, release_id=held.id, at=at)
            entries.append(row)
            account = replace(account, head=head)  # noqa: PLW2901 - the account as each entry leaves it
        if state not in HELD and account.windows is not None:
            account = with_settled_windows(connection, account, own, seq, gone=gone)  # noqa: PLW2901
        elif gone:
            account = without(account, own)  # noqa: PLW2901
        if gone:
            if account.totals.is_below_zero or any(cap.totals.is_below_zero for cap in account.caps):
                raise reservation_rows.altered(ids[0])  # more than was charged: an older row was put back
            account = replace(account, releases=account.releases - len(ids))  # noqa: PLW2901
        after.append(account)
    if state != "proposed":  # or else it has that state, and waits for further approvals
        release_rows.update_states(connection, ids, state)
    journal.write(connection, entries)
    if state not in HELD:
        change = _change(line, settled, charges, committed=state == "committed")
        connection.execute(_FORGET, batch([{"release": release_id} for release_id in ids]))
        after = [_with_next_expiry(connection, account, settled) for account in after]
    return accounts.save(connection, after, change)


def _change(
    line: Sequence[AccountRecord],
    settled: Sequence[Held],
    charges: Mapping[tuple[str, int], HeldCharge],
    *,
    committed: bool,
) -> SpendingChange:
    """Return the change of spending; accounts in which all the releases have equal periods have one in common."""
    together: defaultdict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for account in line:
        together[tuple(charges[held.id, account.id].periods for held in settled)].append(account.id)
    changes: dict[tuple[int, ...], SpendingChange] = {}
    for periods, account_ids in together.items():
        counted: Subplans = Counter()
        for held, stated in zip(settled, periods, strict=True):
            counted.update(subplans.charged_to(held.subplans, stated))
        changes[tuple(account_ids)] = SettledSubplans(counted, committed=committed)
    return UnlikeChanges(changes)


def _charges(connection: Connection, release_ids: Sequence[str]) -> dict[tuple[str, int], HeldCharge]:
    charges: dict[tuple[str, int], HeldCharge] = {}
    for row in connection.execute(select(*reservation_rows.COLUMNS).where(Hold.release_id.in_(release_ids))):
        reservation_rows.require_seal(connection, row)
        charges[row.release_id, row.account_id] = HeldCharge(row.price, row.caps, row.periods)
    return charges


def _with_next_expiry(connection: Connection, account: AccountRecord, settled: Sequence[Held]) -> AccountRecord:
    if account.next_expiry is None or account.next_expiry not in {held.expires_at for held in settled}:
        return account
    return replace(account, next_expiry=_first_expiry(connection, account.id))


def _first_expiry(connection: Connection, account_id: int) -> str | None:
    """Return the moment of an account's first expiry, among authentic holds of releases that are still held.

    The result is written into the account's row, where the effect of a forged row would outlast that row.
    """
    query = select(*reservation_rows.COLUMNS).join(Release, Release.id == Hold.release_id)
    query = query.where(Hold.account_id == account_id, Hold.expires_at.is_not(None), Release.state.in_(HELD))
    query = query.order_by(Hold.expires_at, Hold.release_id).limit(1)
    secret, row = secret_of(connection), connection.execute(query).one_or_none()
    while row is not None and not reservation_rows.is_sealed(secret, row):
        beyond = tuple_(Hold.expires_at, Hold.release_id) > tuple_(row.expires_at, row.release_id)
        row = connection.execute(query.where(beyond)).one_or_none()
    return None if row is None else str(row.expires_at)


_FORGET = delete(Hold).where(Hold.release_id == bindparam("release"))


@dataclass(frozen=True, slots=True)
class Expiry:
    """Overdue holds that expired; false if there were none.

    Attributes:
        charged: the ids of the accounts that they were charged to.
        locked: the most seconds of the processor that one of the transactions held its locks.
    """

    charged: frozenset[int]
    locked: float

    def __bool__(self) -> bool:
        """Return whether some expired."""
        return bool(self.charged)


def expire(database: Database, account_id: int, release_id: str | None = None) -> Expiry:
    """Expire some overdue holds of an account, in one transaction for each account below that registered some.

    One thread of a server does it for an account at a time. Requests that find the same holds wait, and then find them
    gone.

    Args:
        release_id: the one release that is to expire; None: those that were due first.

    Raises:
        Unavailable: the database does not answer, or a hold is not as the service wrote it.
    """
    places = database.expiring.setdefault(account_id, WaitingLine(1))  # none waits for another account's plans
    charged, locked = set[int](), 0.0
    with places.place(time.monotonic() + database.lock_timeout):
        for name, release_ids in _some_due(database, account_id, release_id).items():
            used = _expire(database, name, release_ids)
            if used is not None:
                locked = max(locked, used)
                charged.update(lines.line_of(database, name).ids)
    return Expiry(frozenset(charged), locked)


def _some_due(database: Database, account_id: int, release_id: str | None) -> dict[str, list[str]]:
    """Return overdue releases by the account that registered them; few enough to settle in a moment."""
    query = (
        select(Release.id, Account.name, func.length(Release.plan).label("size"), Hold.periods)
        .select_from(Hold)
        .join(Release, Release.id == Hold.release_id)
        .join(Account, Account.id == Release.account_id)
        .where(Hold.account_id == account_id, Hold.expires_at <= clock.now())
        .order_by(Hold.expires_at)
        .limit(_AT_ONCE)
    )
    if release_id is not None:
        query = query.where(Hold.release_id == release_id)
    due: defaultdict[str, list[str]] = defaultdict(list)
    size = windows = 0
    with database.read() as connection:
        periods = connection.execute(select(Account.periods).where(Account.id == account_id)).scalar_one()
        for row in connection.execute(query):
            size += row.size
            windows += number_of(periods, row.periods)
            if due and (size > _CHARACTERS or windows > _WINDOWS):
                break
            due[row.name].append(row.id)
    return due


def _expire(database: Database, name: str, release_ids: Sequence[str]) -> float | None:
    """Expire overdue releases of an account.

    Returns:
        The seconds of the processor under the locks; None if none of them expired: another process was faster, or the
            account that registered them has no such holds, because the ledger was changed outside the service.
    """
    used = 0.0
    line = lines.line_of(database, name)
    with database.read() as connection:  # following the journal takes long, so it is not done under the lock
        account = accounts.read_account(connection, name)
        releases = read_some(connection, line.account_id, release_ids)
        for release in releases:
            require_recorded(connection, account, release)
    found = [held_of(release) for release in releases]

    def work(connection: Connection) -> AccountRecord | None:
        nonlocal used
        locked, began = lines.lock_line(connection, line, None), processor_seconds()
        try:
            return settle_due(connection, locked)
        finally:
            used = processor_seconds() - began

    def settle_due(connection: Connection, locked: Sequence[AccountRecord]) -> AccountRecord | None:
        at = clock.now()
        query = select(Hold.release_id, Release.state).join(Release, Release.id == Hold.release_id)
        query = query.where(Hold.account_id == line.account_id, Hold.release_id.in_(release_ids), Hold.expires_at <= at)
        due = {row.release_id for row in map(of_held, connection.execute(query))}
        for release in releases:
            if release.id in due:
                present(connection, locked[-1], release, account.head)
        expired = [held for held in found if held.id in due]
        for held in expired:  # the query, or an index, may be shown another time than that of the sealed release
            if not held.is_over(at):
                raise reservation_rows.altered(held.id)
        if not expired:
            return None
        return settle(connection, locked, expired, Expired(), None, at)[-1]

    settled = database.write(
        work, is_committed=lambda connection, leaf: leaf is not None and has_entry(connection, leaf.id, leaf.head)
    )
    return None if settled is None else used


@dataclass(frozen=True, slots=True)
class PresentAccount:
    """An account at a moment, without the overdue holds that its totals may still count."""

    account: AccountRecord
    expired: Subplans


def has_many_due(connection: Connection, accounts: Iterable[AccountRecord], at: str) -> bool:
    """Return whether accounts have so many overdue holds together that a reader should not hold the interpreter for it.

    Those that touch many windows are many too.
    """
    holds = windows = 0
    for account in accounts:
        if account.next_expiry is None or account.next_expiry > at:
            continue
        query = select(Hold.periods).where(Hold.account_id == account.id, Hold.expires_at <= at)
        found = connection.execute(query.order_by(Hold.expires_at).limit(_MANY + 1)).scalars().all()
        own = None if account.periods is None else account_periods.write(account.periods)
        holds += len(found)
        windows += sum(account_periods.number_of(own, stated) for stated in found)
        if holds > _MANY or windows > _WINDOWS:
            return True
    return False


def refuse_many_due(connection: Connection, account: AccountRecord, actor: Actor, at: str) -> None:
    """Refuse further reservations of a principal of which many in this account are overdue.

    Readers of the account, and of those above it, go through all overdue holds until their expiry is recorded.

    Raises:
        TooManyRequests: the principal has many.
    """
    if account.next_expiry is None or account.next_expiry > at:
        return
    latest = select(Hold.release_id).where(Hold.account_id == account.id, Hold.expires_at <= at)
    some = latest.order_by(Hold.expires_at.desc(), Hold.release_id.desc()).limit(_LOOKED_AT).subquery()
    own = (
        select(func.count())
        .select_from(some)
        .join(Release, Release.id == some.c.release_id)
        .join(Entry, and_(Entry.account_id == Release.account_id, Entry.seq == Release.seq))
        .where(Release.account_id == account.id, made_by(literal(account.name), actor.name))
    )
    if connection.execute(own).scalar_one() > _MOST_DUE:
        raise TooManyRequests(
            f"more than {_MOST_DUE} reservations of this principal in the account have expired, and their expiry is"
            " still being recorded",
            _RETRY,
        )


def present_account(connection: Connection, account: AccountRecord, at: str) -> PresentAccount:
    """Return the account for readers, without overdue holds, and the subplans of these; nothing is written.

    Parsing the plans of the holds may take long.

    Raises:
        Altered: a hold is not as the service wrote it.
    """
    expired: Subplans = Counter()
    stated: Counter[tuple[str, str, str | None]] = Counter()
    due = list(_due(connection, account, at))
    for start in range(0, len(due), _PAGE):
        page = due[start : start + _PAGE]
        plans = release_rows.sealed_plans_and_tags(connection, [row.release_id for row in page])
        stated.update((*plans[row.release_id], row.periods) for row in page)
    for (plan, tags, periods), count in stated.items():
        counted = subplans.subplans_of(read_plan(json.loads(plan)), json.loads(tags))
        for subplan, occurrences in subplans.charged_to(counted, periods).items():
            expired[subplan] += occurrences * count
    charges = [HeldCharge(row.price, row.caps, row.periods) for row in due]
    return PresentAccount(_left_by(connection, account, charges), expired)


def in_list(connection: Connection, account: AccountRecord, at: str) -> AccountRecord:
    """Return the account without overdue holds, for lists, in which no window is read.

    In an account with periods, overdue holds of some periods still count in the bound, until their expiry is recorded;
    caps on tags do not count them.

    Raises:
        Altered: a hold is not as the service wrote it.
    """
    if account.windows is None:
        return without_due_reservations(connection, account, at)
    charges = [HeldCharge(row.price, row.caps, row.periods) for row in _due(connection, account, at)]
    common = [charge for charge in charges if charge.periods == EVERY_PERIOD]
    left = _left_by(connection, account, common)
    return replace(left, caps=caps_without(account, charges), releases=account.releases - len(charges))


def without_due_reservations(connection: Connection, account: AccountRecord, at: str) -> AccountRecord:
    """Return the account without overdue holds, where only its totals are needed: no plan is read.

    Raises:
        Altered: a hold is not as the service wrote it.
    """
    due = [HeldCharge(row.price, row.caps, row.periods) for row in _due(connection, account, at)]
    return _left_by(connection, account, due)


def _left_by(connection: Connection, account: AccountRecord, charges: Sequence[HeldCharge]) -> AccountRecord:
    if not charges:
        return account
    if account.windows is None:
        left = without(account, charges)
    else:
        left = with_settled_windows(connection, account, charges, account.head.seq, gone=True)
    return replace(left, releases=account.releases - len(charges))


def _due(connection: Connection, account: AccountRecord, at: str) -> Iterator[Row[*tuple[Any, ...]]]:
    if account.next_expiry is None or account.next_expiry > at:
        return
    last: tuple[str, str] | None = None
    while True:
        query = (
            select(*reservation_rows.COLUMNS, Release.state)
            .join(Release, Release.id == Hold.release_id)
            .where(Hold.account_id == account.id, Hold.expires_at <= at)
            .order_by(Hold.expires_at, Hold.release_id)  # as the index, so that a page reads no other rows
            .limit(_PAGE)
        )
        if last is not None:
            query = query.where(tuple_(Hold.expires_at, Hold.release_id) > tuple_(*last))
        page = connection.execute(query).all()
        for row in page:
            reservation_rows.require_seal(connection, of_held(row))
            if row.expires_at is None or row.expires_at > at:  # the sealed row decides, whatever an index finds
                raise reservation_rows.altered(row.release_id)
            yield row
        if len(page) < _PAGE:
            return
        last = page[-1].expires_at, page[-1].release_id
