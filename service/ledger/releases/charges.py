"""Charges of releases to an account and to all accounts above it: one transaction, in one function."""

import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert

from service.errors import AccountClosed, BudgetExceeded
from service.ledger.accounts import accounts, budgets, subplans
from service.ledger.accounts.accounts import AccountRecord, Line
from service.ledger.accounts.spending_rows import ChargedSubplans, ManySubplans, Subplans
from service.ledger.idempotent_write import Operation
from service.ledger.journal import journal
from service.ledger.journal.entries import Committed, Filing, Origin, Proposed, Registration, Reserved
from service.ledger.journal.entry_texts import PriceKey, price_key_of, price_of
from service.ledger.journal.journal import Actor, Head, has_entry
from service.ledger.releases import release_rows, reservation_rows
from service.ledger.releases.budget_refusals import refusal_of
from service.ledger.releases.reservation_rows import State
from service.ledger.releases.settlement import without_due_reservations
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Request
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Hold, Release, ReleaseTag
from service.ledger.storage.transaction import batch, bound_secret, count_metric, secret_of
from service.ledger.storage.writing_time import require_brief
from service.privacy.accounting.pricing import ACCOUNTANT, Price, price
from service.privacy.accounting.privacy_filter import Definition, shortfalls, spent_alone
from service.privacy.accounting.totals import Totals, add_price, price_as_charged
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans import Plan
from service.privacy.plans.notation import check_relation, read_plan, walk


@dataclass(frozen=True, slots=True)
class NewRelease:
    """A release as a pipeline registers it.

    Attributes:
        plan: the plan that is priced.
        document: the plan in the client's words, exact numbers as strings, for storage and display.
        delta: the delta for showing its cost as (epsilon, delta); None: the account's.
        pointer: the place of the plan in the request, for faults.
        reserve_for: the duration of its reservation; None: it commits at once.
    """

    name: str
    plan: Plan
    document: dict[str, Any]
    tags: tuple[str, ...]
    delta: Fraction | None
    pointer: str
    reserve_for: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A release with all facts about it that can be found before any account is locked.

    Large parts are text: a helper process prepares them, and another process reads text in no time.

    Attributes:
        document: the plan in the client's words, as the ledger stores it.
        written: the plan as journal entries have it.
        tags: its own.
        delta: the stored delta, for showing its cost.
        line: the account that it was prepared for, with the accounts above it.
        prices: one for each account of the line.
        all_tags: those of the release and of every node of its plan.
        subplans: the parts that the accounts' spending counts, if they are few.
        many: the same parts, if they are many.
        unlike: the number of distinct parts.
        expires: whether a reservation of it expires by itself.
    """

    name: str
    document: str
    written: str
    tags: tuple[str, ...]
    delta: Fraction
    line: Line
    prices: tuple[Price, ...]
    all_tags: tuple[str, ...]
    subplans: Subplans
    many: ManySubplans | None
    unlike: int
    reserve_for: timedelta | None
    expires: bool

    def plan(self) -> Plan:
        """Return the parsed plan."""
        return read_plan(json.loads(self.document))


@dataclass(frozen=True, slots=True)
class Registered:
    """A release that was charged; ``account`` is the account after the charge."""

    id: str
    release: Prepared
    account: AccountRecord
    state: State
    created_at: str
    expires_at: str | None


_INSERT_RELEASE = insert(Release)
_INSERT_TAGS = insert(ReleaseTag)
_INSERT_HOLD = insert(Hold)


def prepare(
    database: Database,
    name: str,
    releases: Sequence[NewRelease],
    prices: Mapping[int, tuple[Price, ...]] | None = None,
    deltas: Sequence[Fraction] | None = None,
) -> list[Prepared]:
    """Find all facts that need no lock, above all the prices, so that a slow plan delays no other charges.

    Args:
        prices: one for each account of the line, by the ``id`` of the plan, if they are known already.
        deltas: of the releases, as returned by ``deltas_of``, if they are known already.

    Returns:
        One for each release, in their order.

    Raises:
        NotFound: there is no such account.
        InvalidInput: a plan has no meaning under the account's relation, or they take too long to write.
    """
    line = accounts.line_of(database, name)
    if deltas is None:
        deltas = deltas_of(database, line, releases)
    secret = bound_secret(database)
    known: dict[tuple[int, tuple[str, ...], bool], Prepared] = {}  # by plan: equal plans in a batch are one object
    prepared: list[Prepared] = []
    for release, delta in zip(releases, deltas, strict=True):
        key = id(release.plan), release.tags, release.reserve_for is None
        if key not in known:
            known[key] = _prepared(secret, line, release, delta, prices)
        prepared.append(replace(known[key], name=release.name, delta=delta, reserve_for=release.reserve_for))
    _require_few(line, prepared, releases[0].pointer if len(releases) == 1 else "/releases")
    return prepared


def _require_few(line: Line, releases: Sequence[Prepared], pointer: str) -> None:
    """Refuse releases whose rows take long to write, single releases and batches alike.

    Other requests wait meanwhile: on SQLite all that write, and on PostgreSQL those that charge an account of the line.

    Raises:
        InvalidInput: the rows take too long; the message gives their number of each kind.
    """
    depth, number = len(line.ids), len(releases)
    orders = sum(map(len, line.orders))
    held = sum(release.reserve_for is not None for release in releases)
    equal = {id(release.subplans): release for release in releases if release.many is None}.values()  # counted together
    unlike = sum(release.unlike for release in equal)
    unlike += sum(release.unlike for release in releases if release.many is not None)
    tags = sum(len(release.all_tags) for release in releases)
    size = sum(len(release.written) for release in releases)
    microseconds = (
        number * (_RELEASE + depth * _ENTRY + orders * _ORDER)
        + held * depth * _HOLD
        + unlike * depth * _SUBPLAN
        + tags * _TAG
        + size * (depth + 2) * _CHARACTER  # the release's row and the answer contain the plan too
    )
    require_brief(
        microseconds,
        pointer,
        f"number of releases {number} (reserved {held}), tags {tags}, distinct subplans"
        f" {unlike}, characters of plans {size}; accounts in the line {depth}, their orders {orders}",
    )


# Times in a write transaction on SQLite, as measured: of rows, of an order's part of an entry, of a character of a
# plan.
_RELEASE, _ENTRY, _ORDER, _HOLD, _SUBPLAN, _TAG, _CHARACTER = 100, 45, 0.6, 35, 10, 10, 0.01


def deltas_of(database: Database, line: Line, releases: Sequence[NewRelease]) -> list[Fraction]:
    """Return the delta for showing each release's cost: the account's, unless the release states another.

    Returns:
        One for each release, in their order.

    Raises:
        NotFound: the database was replaced by one without the account.
    """
    asks = line.definition is Definition.APPROXIMATE and any(release.delta is None for release in releases)
    usual = budgets.usual_delta(accounts.budget_of(database, line) if asks else None)  # which may change
    return [usual if release.delta is None else release.delta for release in releases]


def _prepared(
    secret: Secret, line: Line, release: NewRelease, delta: Fraction, prices: Mapping[int, tuple[Price, ...]] | None
) -> Prepared:
    check_relation(release.plan, line.neighbouring, release.pointer)
    tags = {tag for _, node in walk(release.plan) for tag in node.tags}.union(release.tags)
    counted = subplans.subplans_of(release.plan, release.tags)
    found = (
        tuple(price(release.plan, line.neighbouring, orders) for orders in line.orders)
        if prices is None
        else (prices[id(release.plan)])
    )
    many = ManySubplans.of(secret, counted)
    return Prepared(
        name=release.name,
        document=json.dumps(release.document, ensure_ascii=False),
        written=journal.canonical(release.document),
        tags=release.tags,
        delta=delta,
        line=line,
        prices=found,
        all_tags=tuple(sorted(tags)),
        subplans=counted if many is None else Counter(),
        many=many,
        unlike=len(counted),
        reserve_for=release.reserve_for,
        expires=release.reserve_for is not None and reservation_rows.expires(release.plan),
    )


def register(request: Request, releases: Sequence[Prepared]) -> Operation[list[Registered]]:
    """Return the operation that charges releases, which were prepared for one account, all or none.

    Returns:
        An operation whose result has one item for each release, in their order.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
    """
    line = releases[0].line

    def work(connection: Connection, at: str) -> list[Registered]:
        return charge(connection, accounts.lock_line(connection, line, at), releases, request.actor, at)

    return Operation(work, _is_committed, charges=line)


def dry_run(database: Database, releases: Sequence[Prepared]) -> list[Registered]:
    """Return the result that ``register`` would have, on a line that is only read: it admits as ``charge`` does.

    Nothing is locked or written, so no other request waits (docs/decisions/0037-one-write-path.md).

    Raises:
        AccountClosed, BudgetExceeded: as ``register``.
    """
    at = clock.now()
    with database.read() as connection:
        found = accounts.read_line(connection, releases[0].line)
        line = [without_due_reservations(connection, account, at) for account in found]
    done, _ = _admit_all(line, releases, None, at)
    return done


def charge(
    connection: Connection, line: Sequence[AccountRecord], releases: Sequence[Prepared], actor: Actor, at: str
) -> list[Registered]:
    """Admit and write releases one after the other, in the caller's transaction, on a locked line.

    The time depends on the plans and not on the ledger's size: the millionth release runs the same statements over as
    many rows as the first.

    Args:
        line: locked, root first.

    Returns:
        One for each release, in their order.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
        ReservationsDue: nothing is charged yet; the release may fit once expired reservations are released.
        ValueError: a release was prepared for another account.
    """
    rows = _Rows(secret_of(connection), actor)
    try:
        done, after = _admit_all(line, releases, rows, at)
    except BudgetExceeded:
        accounts.refuse_due(line, at)
        raise
    rows.write(connection)
    saved = accounts.save(connection, after, rows.charged)
    done[-1] = replace(done[-1], account=saved[-1])  # a draw of the release continues from it
    return done


def _admit_all(
    line: Sequence[AccountRecord], releases: Sequence[Prepared], rows: "_Rows | None", at: str
) -> tuple[list[Registered], Sequence[AccountRecord]]:
    """Admit releases one after the other; return them, and the accounts as the last one leaves them.

    Args:
        rows: where the rows of the releases are collected; None in a dry run, which adds no entries to the journals.

    Raises:
        AccountClosed, BudgetExceeded, ValueError: as ``charge``.
    """
    _require_line(line, releases)
    done: list[Registered] = []
    for prepared in releases:
        admitted = _admit(line, prepared)
        registered = _registered(line, prepared, admitted.state, at)
        heads = [account.head for account in line] if rows is None else rows.add(registered, line, admitted.amounts)
        line = _after(line, admitted, heads, registered)
        done.append(replace(registered, account=line[-1]))
    return done, line


class _Admitted(NamedTuple):
    """A release that fits: the charge to each account of the line, and the totals after it."""

    state: State
    amounts: tuple[Price, ...]
    totals: list[Totals]


def _require_line(line: Sequence[AccountRecord], releases: Sequence[Prepared]) -> None:
    account_ids = tuple(account.id for account in line)
    if any(prepared.line.ids != account_ids for prepared in releases):
        raise ValueError(f"expected releases that were prepared for {line[-1].name}")
    for account in reversed(line):
        if account.state == "closed":
            raise AccountClosed(account.name)


def _admit(line: Sequence[AccountRecord], prepared: Prepared) -> _Admitted:
    """Admit a release to the budgets of a line.

    Raises:
        BudgetExceeded: it does not fit.
    """
    state = _first_state(line, prepared)
    amounts = tuple(
        price_as_charged(account.totals, asked, held=state != "committed")
        for account, asked in zip(line, prepared.prices, strict=True)
    )
    after = [add_price(account.totals, amount) for account, amount in zip(line, amounts, strict=True)]
    failures = [
        accounts.overrun(account, gap.cap, gap.requested, gap.remaining)
        for account, totals in zip(reversed(line), reversed(after), strict=True)
        for gap in shortfalls(account.budget, account.weights, account.totals, totals)
    ]
    if failures:
        raise refusal_of(line, prepared.name, prepared.written, prepared.plan, failures)
    return _Admitted(state, amounts, after)


def _registered(line: Sequence[AccountRecord], prepared: Prepared, state: State, at: str) -> Registered:
    expires_at = None if prepared.reserve_for is None else clock.later(at, prepared.reserve_for)
    return Registered(str(uuid.uuid4()), prepared, line[-1], state, at, expires_at)


def _is_committed(connection: Connection, done: list[Registered]) -> bool:
    """Return whether an earlier attempt at these charges is in the ledger."""
    return has_entry(connection, done[-1].account.id, done[-1].account.head)


def _first_state(line: Sequence[AccountRecord], prepared: Prepared) -> State:
    """Return the release's first state; it is proposed if some account of the line requires a second person."""
    for account, asked in zip(line, prepared.prices, strict=True):
        if account.approval_above is not None:
            size = spent_alone(account.budget, account.weights, asked)
            if size is None or size > account.approval_above:
                return "proposed"
    return "committed" if prepared.reserve_for is None else "reserved"


def _after(
    line: Sequence[AccountRecord], admitted: _Admitted, heads: Sequence[Head], registered: Registered
) -> list[AccountRecord]:
    """Return the accounts of a line as a release leaves them."""
    ends = registered.expires_at if registered.release.expires else None
    return [
        replace(
            account,
            totals=totals,
            head=head,
            next_expiry=min(filter(None, (account.next_expiry, ends)), default=None),
            releases=account.releases + 1,
        )
        for account, totals, head in zip(line, admitted.totals, heads, strict=True)
    ]


def _entry(registered: Registered, price: PriceKey) -> Registration:
    """Return the content of the release's entry in the journal of its own account."""
    release = registered.release
    committed = Committed(
        accountant=ACCOUNTANT,
        delta=exact_text(release.delta),
        name=release.name,
        plan=release.written,
        price=price,
        tags=release.tags,
    )
    if registered.state == "committed":
        return committed
    return (Reserved if registered.state == "reserved" else Proposed).until(registered.expires_at, committed)


class _Rows:
    """The rows that a transaction's charges insert, collected so that one statement inserts all rows of a table."""

    def __init__(self, secret: Secret, actor: Actor) -> None:
        self._secret, self._actor = secret, actor
        self._releases: list[dict[str, Any]] = []
        self._entries: list[journal.Row] = []
        self._tags: list[dict[str, Any]] = []
        self._holds: list[dict[str, Any]] = []
        self.charged = ChargedSubplans(Counter(), Counter())

    def add(self, registered: Registered, line: Sequence[AccountRecord], amounts: Sequence[Price]) -> list[Head]:
        """Add a release with an entry in each account's chain; return the heads that these entries make."""
        release, own, held = registered.release, line[-1], registered.state != "committed"
        seq, written = own.head.seq + 1, [price_key_of(budgets.write_price(amount)) for amount in amounts]
        self._tags += [{"account_id": own.id, "tag": tag, "seq": seq} for tag in release.all_tags]
        (self.charged.held if held else self.charged.committed).update(release.subplans)
        if release.many is not None:
            self.charged.many.append((release.many, held))
        if held:
            hold = {"release_id": registered.id, "expires_at": registered.expires_at if release.expires else None}
            self._holds += [
                {**hold, "account_id": account.id, "price": json.dumps(price_of(amount))}
                for account, amount in zip(line, written, strict=True)
            ]
        entry = _entry(registered, written[-1])
        heads: list[Head] = []
        for account, content in zip(line, entry.along(written, Origin(own.name, seq)), strict=True):
            row, head = journal.following(
                account.chain,
                entry.KIND,
                content,
                actor=self._actor,
                release_id=registered.id,
                at=registered.created_at,
            )
            self._entries.append(row)
            heads.append(head)
        stated = entry.row(Filing(own.id, seq, registered.id, registered.created_at), release.document)
        self._releases.append(stated | {"seal": release_rows.seal_of(self._secret, stated, heads[-1].hash)})
        return heads

    def write(self, connection: Connection) -> None:
        """Insert all rows except those of spending, which are saved with the accounts."""
        connection.execute(_INSERT_RELEASE, batch(self._releases))
        for state, number in Counter(release["state"] for release in self._releases).items():
            count_metric(connection, "releases", state, number)
        if self._tags:
            connection.execute(_INSERT_TAGS, self._tags)
        journal.write(connection, self._entries)
        if self._holds:
            connection.execute(_INSERT_HOLD, [reservation_rows.sealed(self._secret, hold) for hold in self._holds])
