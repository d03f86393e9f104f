"""Charging releases to an account and to all that it is under: one transaction, in one function."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, insert

from service.errors import AccountClosed
from service.ledger import accounts, budgets, clock, journal, spending
from service.ledger.accounts import AccountRecord, Line
from service.ledger.database import Database, batch, tally
from service.ledger.idempotency import Request
from service.ledger.journal import Head, has_entry
from service.ledger.once import Answer, once, rehearse
from service.ledger.refusals import noted, refused
from service.ledger.releases import State, expires
from service.ledger.spending import Subplans
from service.ledger.tables import Hold, Release, ReleaseTag
from service.privacy.filter import Totals, add, charged, shortfalls, stand_alone
from service.privacy.notation import check_relation, walk
from service.privacy.numbers import exact_text
from service.privacy.plan import Plan
from service.privacy.pricing import ACCOUNTANT, Price, price


@dataclass(frozen=True, slots=True)
class NewRelease:
    """What a pipeline registers.

    Attributes:
        plan: what is priced.
        document: the plan as it was stated, exact numbers as strings; what is stored and shown.
        delta: at which its cost is shown as (epsilon, delta).
        pointer: where the plan is in the request, for faults.
        reserve_for: how long it is only reserved; None: it commits at once.
    """

    name: str
    plan: Plan
    document: dict[str, Any]
    tags: tuple[str, ...]
    delta: Fraction
    pointer: str
    reserve_for: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A release with all that can be known about it before any account is locked.

    Attributes:
        line: the account that it was prepared for, with those that it is under.
        prices: one for each account of the line.
        tags: those of the release and of every node of its plan.
        subplans: what the accounts' spending counts.
        expires: whether a reservation of it ends by itself.
    """

    release: NewRelease
    line: Line
    prices: tuple[Price, ...]
    tags: tuple[str, ...]
    subplans: Subplans
    expires: bool


@dataclass(frozen=True, slots=True)
class Registered:
    """A release that was charged; ``account`` is as the charge left it."""

    id: str
    release: NewRelease
    account: AccountRecord
    state: State
    created_at: str
    expires_at: str | None


_INSERT_RELEASE = insert(Release)
_INSERT_TAGS = insert(ReleaseTag)
_INSERT_HOLD = insert(Hold)

Render = Callable[[list[Registered]], str]


def prepare(database: Database, name: str, releases: Sequence[NewRelease]) -> list[Prepared]:
    """What needs no lock, the prices above all: however long a plan takes, other charges do not wait for it.

    Raises:
        NotFound: there is no such account.
        InvalidInput: a plan has no meaning under the account's relation.
    """
    line = accounts.line_of(database, name)
    known: dict[tuple[int, tuple[str, ...], bool], Prepared] = {}  # by plan: in a batch equal ones are one object
    prepared: list[Prepared] = []
    for release in releases:
        key = id(release.plan), release.tags, release.reserve_for is None
        if key not in known:
            known[key] = _prepared(line, release)
        prepared.append(replace(known[key], release=release))
    return prepared


def _prepared(line: Line, release: NewRelease) -> Prepared:
    check_relation(release.plan, line.neighbouring, release.pointer)
    tags = {tag for _, node in walk(release.plan) for tag in node.tags}.union(release.tags)
    subplans = spending.subplans_of(release.plan, release.tags)
    prices = tuple(price(release.plan, line.neighbouring, orders) for orders in line.orders)
    ends = release.reserve_for is not None and expires(release.plan)
    return Prepared(release, line, prices, tuple(sorted(tags)), subplans, ends)


def register(database: Database, request: Request, releases: Sequence[Prepared], render: Render) -> Answer:
    """Charge releases, which were prepared for one account, all or none.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
    """
    line = releases[0].line

    def work(connection: Connection, at: str) -> list[Registered]:
        return charge(connection, accounts.lock_line(connection, line, at), releases, request.principal, at)

    return noted(
        database,
        request,
        line,
        lambda: once(database, request, work, status=201, render=render, landed=landed),
    )


def dry_run(database: Database, request: Request, releases: Sequence[Prepared]) -> list[Registered]:
    """What ``register`` would do, rolled back."""
    line = releases[0].line

    def work(connection: Connection, at: str) -> list[Registered]:
        return charge(connection, accounts.lock_line(connection, line, at), releases, request.principal, at)

    return rehearse(database, work)


def charge(
    connection: Connection, line: Sequence[AccountRecord], releases: Sequence[Prepared], actor: str, at: str
) -> list[Registered]:
    """Admit and write releases one after the other, in the caller's transaction, on a locked line.

    The cost is that of the plans and never that of the ledger: the millionth release runs the same
    statements over the same rows as the first.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
        ValueError: a release was prepared for another account.
    """
    line, rows = list(line), _Rows()
    account_ids = tuple(account.id for account in line)
    if any(prepared.line.ids != account_ids for prepared in releases):
        raise ValueError(f"expected releases that were prepared for {line[-1].name}")
    for account in reversed(line):
        if account.state == "closed":
            raise AccountClosed(account.name)
    done: list[Registered] = []
    for prepared in releases:
        state = _first_state(line, prepared)
        amounts = tuple(
            charged(account.totals, asked, held=state != "committed")
            for account, asked in zip(line, prepared.prices, strict=True)
        )
        after = [add(account.totals, amount) for account, amount in zip(line, amounts, strict=True)]
        failures = [
            accounts.overrun(account, gap.cap, gap.requested, gap.remaining)
            for account, totals in zip(reversed(line), reversed(after), strict=True)
            for gap in shortfalls(account.budget, account.weights, account.totals, totals)
        ]
        if failures:
            raise refused(line, prepared.release.name, prepared.release.plan, prepared.release.document, failures)
        reserve_for = prepared.release.reserve_for
        registered = Registered(
            id=str(uuid.uuid4()),
            release=prepared.release,
            account=line[-1],
            state=state,
            created_at=at,
            expires_at=None if reserve_for is None else clock.later(at, reserve_for),
        )
        heads = rows.add(registered, prepared, line, amounts, actor)
        line = [
            _charged(account, totals, head, registered, prepared)
            for account, totals, head in zip(line, after, heads, strict=True)
        ]
        done.append(replace(registered, account=line[-1]))
    rows.write(connection, account_ids)
    accounts.save(connection, line)
    return done


def landed(connection: Connection, done: list[Registered]) -> bool:
    """Whether an earlier attempt at these charges is in the ledger."""
    return has_entry(connection, done[-1].account.id, done[-1].account.head)


def _first_state(line: Sequence[AccountRecord], prepared: Prepared) -> State:
    """Proposed where the release is too large, in some account of the line, for one person to decide."""
    for account, asked in zip(line, prepared.prices, strict=True):
        if account.approval_above is not None:
            size = stand_alone(account.budget, account.weights, asked)
            if size is None or size > account.approval_above:
                return "proposed"
    return "committed" if prepared.release.reserve_for is None else "reserved"


def _charged(
    account: AccountRecord, totals: Totals, head: Head, registered: Registered, prepared: Prepared
) -> AccountRecord:
    next_expiry = account.next_expiry
    if prepared.expires and registered.expires_at is not None:
        next_expiry = min(next_expiry or registered.expires_at, registered.expires_at)
    return replace(account, totals=totals, head=head, next_expiry=next_expiry, releases=account.releases + 1)


class _Rows:
    """What a transaction's charges insert: collected first, as one statement inserts all the rows of a table."""

    def __init__(self) -> None:
        self._releases: list[dict[str, Any]] = []
        self._entries: list[journal.Row] = []
        self._tags: list[dict[str, Any]] = []
        self._holds: list[dict[str, Any]] = []
        self._committed: Subplans = Counter()
        self._held: Subplans = Counter()

    def add(
        self,
        registered: Registered,
        prepared: Prepared,
        line: Sequence[AccountRecord],
        amounts: Sequence[Price],
        actor: str,
    ) -> list[Head]:
        """Take a release up, with an entry in each account's chain; return the heads that these make."""
        release, own, held = registered.release, line[-1], registered.state != "committed"
        seq, tags, delta = own.head.seq + 1, list(release.tags), exact_text(release.delta)
        prices = [budgets.write_price(amount) for amount in amounts]
        texts = [json.dumps(amount) for amount in (prices if held else prices[-1:])]
        self._releases.append(
            {
                "id": registered.id,
                "account_id": own.id,
                "seq": seq,
                "name": release.name,
                "plan": json.dumps(release.document, ensure_ascii=False),
                "tags": json.dumps(tags, ensure_ascii=False),
                "delta": delta,
                "state": registered.state,
                "price": texts[-1],
                "accountant": ACCOUNTANT,
                "created_at": registered.created_at,
                "expires_at": registered.expires_at,
            }
        )
        self._tags += [{"account_id": own.id, "tag": tag, "seq": seq} for tag in prepared.tags]
        (self._held if held else self._committed).update(prepared.subplans)
        content: dict[str, object] = {"name": release.name, "plan": release.document, "tags": tags, "delta": delta}
        if held:
            content["expires_at"] = registered.expires_at
            expires_at = registered.expires_at if prepared.expires else None
            hold = {"release_id": registered.id, "expires_at": expires_at}
            self._holds += [
                {**hold, "account_id": account.id, "price": text} for account, text in zip(line, texts, strict=True)
            ]
        heads: list[Head] = []
        for account, amount in zip(line, prices, strict=True):
            above = {} if account is own else {"origin": {"account": own.name, "seq": seq}}
            row, head = journal.following(
                account.chain,
                registered.state,
                {**content, "price": amount, "accountant": ACCOUNTANT, **above},
                actor=actor,
                release_id=registered.id,
                at=registered.created_at,
            )
            self._entries.append(row)
            heads.append(head)
        return heads

    def write(self, connection: Connection, account_ids: Sequence[int]) -> None:
        """Insert all of it."""
        connection.execute(_INSERT_RELEASE, batch(self._releases))
        for state, number in Counter(release["state"] for release in self._releases).items():
            tally(connection, "releases", state, number)
        if self._tags:
            connection.execute(_INSERT_TAGS, self._tags)
        journal.write(connection, self._entries)
        if self._holds:
            connection.execute(_INSERT_HOLD, self._holds)
        spending.record(connection, account_ids, self._committed, self._held)
