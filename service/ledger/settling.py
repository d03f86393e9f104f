"""What becomes of held releases: one way for all of a line's accounts, and the expiry that nobody asks for.

A hold counts against every budget of its line until it is committed, voided or expires. Expiry needs
no background process: whoever locks an account whose ``next_expiry`` has passed leaves it, lets the
holds expire and begins again; whoever only reads leaves them out.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, delete, select, tuple_

from service.ledger import accounts, budgets, clock, hold_rows, journal, release_rows, spending
from service.ledger.accounts import AccountRecord, Line
from service.ledger.database import Database, batch, secret_of
from service.ledger.journal import Actor, has_entry
from service.ledger.releases import HELD, ReleaseRecord, State, read_release
from service.ledger.spending_rows import NOTHING, Change, Settled, Subplans
from service.ledger.tables import Account, Hold, Release
from service.privacy.filter import Totals, add_all
from service.privacy.notation import read_plan

_AT_ONCE = 500  # holds of one account that expire in one transaction
_PAGE = 500

Kind = Literal["approved", "committed", "voided", "expired"]


@dataclass(frozen=True, slots=True)
class Held:
    """A held release with what settling it needs, all of which was fixed when it was charged."""

    id: str
    expires_at: str | None
    subplans: Subplans


def held_of(release: ReleaseRecord) -> Held:
    """Read before any lock is taken, as a plan may be long."""
    return Held(release.id, release.expires_at, spending.subplans_of(release.plan, release.tags))


def settle(
    connection: Connection,
    line: Sequence[AccountRecord],
    settled: Sequence[Held],
    state: State,
    kind: Kind,
    content: dict[str, object],
    actor: Actor | None,
    at: str,
) -> list[AccountRecord]:
    """Take held releases of a locked line's account to another state, with an entry in each chain of the line."""
    ids, account_ids = [held.id for held in settled], [account.id for account in line]
    change: Change = NOTHING
    gone = state in ("voided", "expired")
    prices = _prices(connection, ids)
    missing = next(
        (held_id for held_id in ids for account_id in account_ids if (held_id, account_id) not in prices), None
    )
    if missing is not None:
        raise hold_rows.altered(missing)
    entries: list[journal.Row] = []
    after: list[AccountRecord] = []
    for account in line:
        for held in settled:
            row, head = journal.following(account.chain, kind, content, actor=actor, release_id=held.id, at=at)
            entries.append(row)
            account = replace(account, head=head)  # noqa: PLW2901 - the account as each entry leaves it
        if gone:
            totals = _without(account.totals, Counter(prices[held_id, account.id] for held_id in ids))
            if min(totals.epsilon.finite, totals.rho.finite, totals.delta, totals.linear) < 0:
                raise hold_rows.altered(ids[0])  # more than was ever taken: a row of an older price was put back
            account = replace(account, totals=totals, releases=account.releases - len(ids))  # noqa: PLW2901
        after.append(account)
    release_rows.update_states(connection, ids, state)
    journal.write(connection, entries)
    if state not in HELD:
        counted: Subplans = Counter()
        for held in settled:
            counted.update(held.subplans)
        change = Settled(counted, committed=state == "committed")
        connection.execute(_FORGET, batch([{"release": release_id} for release_id in ids]))
        after = [_with_next_expiry(connection, account, settled) for account in after]
    return accounts.save(connection, after, change)


def _without(totals: Totals, prices: Counter[str]) -> Totals:
    """The totals without so many charges of each price; reservations are often alike, and prices long to read."""
    return add_all(totals, [(budgets.read_price(json.loads(price)), -count) for price, count in prices.items()])


def _prices(connection: Connection, release_ids: Sequence[str]) -> dict[tuple[str, int], str]:
    prices: dict[tuple[str, int], str] = {}
    for row in connection.execute(select(*hold_rows.COLUMNS).where(Hold.release_id.in_(release_ids))):
        hold_rows.require_seal(connection, row)
        prices[row.release_id, row.account_id] = row.price
    return prices


def _with_next_expiry(connection: Connection, account: AccountRecord, settled: Sequence[Held]) -> AccountRecord:
    if account.next_expiry is None or account.next_expiry not in {held.expires_at for held in settled}:
        return account
    return replace(account, next_expiry=_first_expiry(connection, account.id))


def _first_expiry(connection: Connection, account_id: int) -> str | None:
    """When the first hold of an account expires that the service wrote, and whose release is held still.

    What is found is written into the account's row, where it would outlast a row of somebody else's.
    """
    query = select(*hold_rows.COLUMNS).join(Release, Release.id == Hold.release_id)
    query = query.where(Hold.account_id == account_id, Hold.expires_at.is_not(None), Release.state.in_(HELD))
    query = query.order_by(Hold.expires_at, Hold.release_id).limit(1)
    secret, row = secret_of(connection), connection.execute(query).one_or_none()
    while row is not None and not hold_rows.is_sealed(secret, row):
        beyond = tuple_(Hold.expires_at, Hold.release_id) > tuple_(row.expires_at, row.release_id)
        row = connection.execute(query.where(beyond)).one_or_none()
    return None if row is None else str(row.expires_at)


_FORGET = delete(Hold).where(Hold.release_id == bindparam("release"))


def expire(database: Database, account_id: int) -> bool:
    """Let what an account holds expire where its time is over: one transaction for each account that registered some.

    Those who find it at the same moment queue for the same locks, and all but one find nothing left to do.
    Returns whether there was anything.
    """
    now = clock.now()
    with database.read() as connection:
        query = (
            select(Release.id, Account.name)
            .select_from(Hold)
            .join(Release, Release.id == Hold.release_id)
            .join(Account, Account.id == Release.account_id)
            .where(Hold.account_id == account_id, Hold.expires_at <= now)
            .order_by(Hold.expires_at)
            .limit(_AT_ONCE)
        )
        due: defaultdict[str, list[str]] = defaultdict(list)
        for row in connection.execute(query):
            due[row.name].append(row.id)
    for name, release_ids in due.items():
        _expire(database, accounts.line_of(database, name), release_ids)
    return bool(due)


def _expire(database: Database, line: Line, release_ids: Sequence[str]) -> None:
    with database.read() as connection:
        found = [held_of(read_release(connection, line.account_id, release_id)) for release_id in release_ids]

    def work(connection: Connection) -> AccountRecord | None:
        at = clock.now()
        locked = accounts.lock_line(connection, line, None)
        query = select(Hold.release_id, Release.state).join(Release, Release.id == Hold.release_id)
        query = query.where(Hold.account_id == line.account_id, Hold.release_id.in_(release_ids), Hold.expires_at <= at)
        due = {row.release_id for row in map(_of_held, connection.execute(query))}
        expired = [held for held in found if held.id in due]
        if not expired:
            return None
        return settle(connection, locked, expired, "expired", "expired", {}, None, at)[-1]

    database.write(work, landed=lambda connection, leaf: leaf is not None and has_entry(connection, leaf.id, leaf.head))


@dataclass(frozen=True, slots=True)
class Present:
    """An account at a moment: without the holds whose time is over, which its totals may still count."""

    account: AccountRecord
    expired: Subplans


def present(connection: Connection, account: AccountRecord, at: str) -> Present:
    """What a reader is shown, who writes nothing down."""
    expired: Subplans = Counter()
    if account.next_expiry is None or account.next_expiry > at:
        return Present(account, expired)
    stated: Counter[tuple[str, str]] = Counter()
    prices: Counter[str] = Counter()
    for price, plan, tags in _due(connection, account.id, at):
        prices[price] += 1
        stated[plan, tags] += 1
    for (plan, tags), count in stated.items():
        for subplan, occurrences in spending.subplans_of(read_plan(json.loads(plan)), json.loads(tags)).items():
            expired[subplan] += occurrences * count
    totals = _without(account.totals, prices)
    return Present(replace(account, totals=totals, releases=account.releases - stated.total()), expired)


def _due(connection: Connection, account_id: int, at: str) -> Iterator[tuple[str, str, str]]:
    last = ""
    while True:
        query = (
            select(*hold_rows.COLUMNS, Release.plan, Release.tags, Release.state)
            .join(Release, Release.id == Hold.release_id)
            .where(Hold.account_id == account_id, Hold.expires_at <= at, Hold.release_id > last)
            .order_by(Hold.release_id)
            .limit(_PAGE)
        )
        page = connection.execute(query).all()
        for row in page:
            hold_rows.require_seal(connection, _of_held(row))
            yield row.price, row.plan, row.tags
        if len(page) < _PAGE:
            return
        last = page[-1].release_id


def _of_held(row: Row[*tuple[Any, ...]]) -> Row[*tuple[Any, ...]]:
    """A row of holds with the state of its release, which is held.

    Raises:
        Altered: it was settled, and its hold with it: the row was put back.
    """
    if row.state not in HELD:
        raise hold_rows.altered(row.release_id)
    return row
