"""Charging releases to an account: one transaction, in one function."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, insert

from service.errors import AccountClosed, BudgetExceeded
from service.ledger import accounts, budgets, journal, spending
from service.ledger.accounts import AccountRecord
from service.ledger.database import Database
from service.ledger.idempotency import Request
from service.ledger.journal import Head
from service.ledger.once import Answer, has_entry, once, rehearse
from service.ledger.tables import Release, ReleaseTag
from service.privacy.filter import ACCOUNTANT, Price, Shortfall, add, charged, estimate, price, shortfall
from service.privacy.fitting import noise_multiplier
from service.privacy.mechanisms import DiscreteOsgt, Osgt
from service.privacy.notation import check_relation, walk
from service.privacy.numbers import double_down, double_up, exact_text
from service.privacy.plan import Neighbouring, Plan, condense, leaves


@dataclass(frozen=True, slots=True)
class NewRelease:
    """What a pipeline registers.

    Attributes:
        plan: what is priced.
        document: the plan as it was stated, exact numbers as strings; what is stored and shown.
        delta: at which its cost is shown as (epsilon, delta).
        pointer: where the plan is in the request, for faults.
    """

    name: str
    plan: Plan
    document: dict[str, Any]
    tags: tuple[str, ...]
    delta: Fraction
    pointer: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A release with all that can be known about it before the account is locked.

    Attributes:
        account: the name of the one that it was prepared for, under whose relation and orders it is priced.
        neighbouring: that relation.
        tags: those of the release and of every node of its plan.
        subplans: what the account's spending counts.
    """

    release: NewRelease
    account: str
    neighbouring: Neighbouring
    price: Price
    tags: tuple[str, ...]
    subplans: Counter[str]


@dataclass(frozen=True, slots=True)
class Registered:
    """A release that was charged; ``account`` is as the charge left it."""

    id: str
    release: NewRelease
    account: AccountRecord
    created_at: str


_INSERT_RELEASE = insert(Release)
_INSERT_TAGS = insert(ReleaseTag)

Render = Callable[[list[Registered]], str]


def prepare(database: Database, name: str, releases: Sequence[NewRelease]) -> list[Prepared]:
    """What needs no lock, the price above all: however long a plan takes, other charges do not wait for it.

    Raises:
        NotFound: there is no such account.
        InvalidInput: a plan has no meaning under the account's relation.
    """
    neighbouring, orders = _fixed_at_opening(database, name)
    prepared: list[Prepared] = []
    for release in releases:
        check_relation(release.plan, neighbouring, release.pointer)
        tags = {tag for _, node in walk(release.plan) for tag in node.tags}.union(release.tags)
        subplans = spending.subplans_of(release.plan, release.tags)
        asked = price(release.plan, neighbouring, orders)
        prepared.append(Prepared(release, name, neighbouring, asked, tuple(sorted(tags)), subplans))
    return prepared


@lru_cache(maxsize=4096)
def _fixed_at_opening(database: Database, name: str) -> tuple[Neighbouring, tuple[Fraction, ...]]:
    """What of an account never changes, so that a charge reads its row once, when it locks it."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
    return account.neighbouring, account.weights.orders


def register(database: Database, request: Request, name: str, releases: Sequence[Prepared], render: Render) -> Answer:
    """Charge releases, all or none.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
    """

    def work(connection: Connection, at: str) -> list[Registered]:
        return charge(connection, accounts.lock_account(connection, name), releases, request.principal, at)

    return once(database, request, work, status=201, render=render, landed=landed)


def dry_run(database: Database, request: Request, name: str, releases: Sequence[Prepared]) -> list[Registered]:
    """What ``register`` would do, rolled back."""

    def work(connection: Connection, at: str) -> list[Registered]:
        return charge(connection, accounts.lock_account(connection, name), releases, request.principal, at)

    return rehearse(database, work)


def charge(
    connection: Connection, account: AccountRecord, releases: Sequence[Prepared], actor: str, at: str
) -> list[Registered]:
    """Admit and write releases one after the other, in the caller's transaction, on a locked account.

    The cost is that of the plans and never that of the ledger: the millionth release runs the same
    statements over the same rows as the first.

    Raises:
        AccountClosed, BudgetExceeded: nothing is charged.
        ValueError: a release was prepared for another account.
    """
    if any(prepared.account != account.name for prepared in releases):
        raise ValueError(f"expected releases that were prepared for {account.name}")
    if account.state == "closed":
        raise AccountClosed(account.name)
    done: list[Registered] = []
    subplans: Counter[str] = Counter()
    for prepared in releases:
        amount = charged(account.totals, prepared.price)
        after = add(account.totals, amount)
        gap = shortfall(account.budget, account.weights, account.totals, after)
        if gap is not None:
            raise _refusal(account, prepared.release, gap)
        release_id = str(uuid.uuid4())
        head = _write(connection, account, prepared, release_id, budgets.write_price(amount), actor, at)
        account = replace(account, totals=after, head=head)
        subplans.update(prepared.subplans)
        done.append(Registered(release_id, prepared.release, account, at))
    spending.record(connection, account.id, subplans)
    accounts.save_charge(connection, account, account.totals, account.head)
    return done


def landed(connection: Connection, done: list[Registered]) -> bool:
    """Whether an earlier attempt at these charges is in the ledger."""
    return has_entry(connection, done[-1].account.id, done[-1].account.head)


def _write(
    connection: Connection,
    account: AccountRecord,
    prepared: Prepared,
    release_id: str,
    amount: dict[str, Any],
    actor: str,
    at: str,
) -> Head:
    release, seq = prepared.release, account.head.seq + 1
    tags, delta = list(release.tags), exact_text(release.delta)
    row = {
        "id": release_id,
        "account_id": account.id,
        "seq": seq,
        "name": release.name,
        "plan": json.dumps(release.document, ensure_ascii=False),
        "tags": json.dumps(tags, ensure_ascii=False),
        "delta": delta,
        "state": "committed",
        "price": json.dumps(amount),
        "accountant": ACCOUNTANT,
        "created_at": at,
    }
    connection.execute(_INSERT_RELEASE, row)
    if prepared.tags:
        connection.execute(_INSERT_TAGS, [{"account_id": account.id, "tag": tag, "seq": seq} for tag in prepared.tags])
    content: dict[str, object] = {
        "name": release.name,
        "plan": release.document,
        "tags": tags,
        "delta": delta,
        "price": amount,
        "accountant": ACCOUNTANT,
    }
    return journal.append(connection, account.chain, "committed", content, actor=actor, release_id=release_id, at=at)


def _refusal(account: AccountRecord, release: NewRelease, gap: Shortfall) -> BudgetExceeded:
    return BudgetExceeded(
        account.name,
        account.budget.definition.value,
        gap.cap,
        None if gap.requested is None else double_up(gap.requested),
        double_down(gap.remaining),
        noise_multiplier=lambda: multiplier(account, release),
    )


_FEW_OFFSET_TAILS = 3  # of unlike noise; each takes up to half a second a step of the search


def multiplier(account: AccountRecord, release: NewRelease) -> float | None:
    """The smallest factor on the plan's noise scales with which the release would have fitted.

    None where there is none, and where the search would take far longer than the refusal that it explains.
    """
    tails = {one for one in leaves(condense(release.plan)) if isinstance(one, Osgt | DiscreteOsgt)}
    if len(tails) > _FEW_OFFSET_TAILS:
        return None

    def fits(plan: Plan) -> bool:
        asked = estimate(plan, account.neighbouring, account.weights.orders)
        after = add(account.totals, charged(account.totals, asked))
        return shortfall(account.budget, account.weights, account.totals, after) is None

    found = noise_multiplier(release.plan, fits)
    if found is None:
        return None
    nearest = float(found)  # of a decimal with six digits, whose text it then shows
    return nearest if Fraction(repr(nearest)) >= found else double_up(found)
