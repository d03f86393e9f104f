"""Accounts and charges on the ledger itself, without HTTP, in few words."""

from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pytest
from sqlalchemy import Connection, insert, text

from service.ledger.access.key_records import Role
from service.ledger.accounts import account_changes, account_opening, account_rows, accounts
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import read_budget
from service.ledger.accounts.cap_changes import CapsChange
from service.ledger.accounts.caps import StatedCap
from service.ledger.accounts.waiting_changes import ChangedAccount
from service.ledger.draws import draw_rows, draws, partitions, places, stored_draws
from service.ledger.draws.stored_draws import Turn
from service.ledger.idempotent_write import Operation, idempotent_write
from service.ledger.journal import journal
from service.ledger.journal.journal import ExpectedHead, JournalEntry
from service.ledger.journal.replay import replay
from service.ledger.releases import charges, preparation, release_rows, releases, reservation_rows, reservations
from service.ledger.releases.charges import Registered
from service.ledger.releases.preparation import NewRelease, Prepared
from service.ledger.releases.releases import ReleaseRecord
from service.ledger.releases.settlement import present_account
from service.ledger.spending import spending
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.idempotency import Answer, Request
from service.ledger.storage.migrate import downgrade, migrate
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Installation
from service.ledger.verification.verify import Verdict, verify
from service.privacy.accounting import pricing
from service.privacy.accounting.pricing import Price
from service.privacy.accounting.privacy_filter import remaining
from service.privacy.periods import read_account_periods
from service.privacy.plans import Plan
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring, mechanisms_of
from tests.ledger.writing import stored

R = TypeVar("R")
SECRET = Secret(bytes(range(32)))


Rows = dict[str, list[dict[str, Any]]]


def asking(
    principal: str,
    key: str | None = None,
    digest: str = "",
    kept: ExpectedHead | None = None,
    key_id: str | None = None,
) -> Request:
    """A principal's request; without an Idempotency-Key unless it is given."""
    return Request(principal, key, digest, SECRET, kept, key_id)


of_every_definition = pytest.mark.parametrize(
    "budget",
    [
        {"definition": "pure", "epsilon": "3", "delta": "1e-9"},
        {"definition": "zcdp", "rho": "2", "delta": "1e-9"},
        {"definition": "rdp", "alpha": "7/3", "epsilon": "4", "delta": "1e-9"},
        {"definition": "approximate", "epsilon": "8", "delta": "1e-6", "declared_delta": "1e-9"},
    ],
    ids=lambda budget: budget["definition"],
)
"""A test with budgets of every definition."""
ANN, BOB = asking("ann"), asking("bob")  # of an identity provider


def carry_out(database: Database, operation: Operation[R], request: Request = ANN) -> R:
    """Carry out an operation for the first time, and return its result."""
    done = idempotent_write(database, request, operation, lambda _: Answer(200))
    assert done.result is not None
    return done.result


def change_account(
    database: Database, name: str, change: Any, request: Request = ANN, role: Role = "steward"
) -> ChangedAccount:
    """Change an account: its budget, its state, or the price that needs approval."""
    changing = account_changes.change_account(database, request, name, change, "/budget", lambda _: True, role=role)
    return carry_out(database, changing, request)


def open_account(
    database: Database,
    name: str = "people",
    *,
    parent: str | None = None,
    approval_above: str | None = None,
    approvers: Any = None,
    caps: Any = MappingProxyType({}),
    periods: Any = None,
    funding: Any = None,
    neighbouring: Any = Neighbouring.ADD_REMOVE,
    **budget: str,
) -> AccountRecord:
    """An account; a rho of 1 unless told otherwise; ``caps``: budgets by tag."""
    stated = read_budget(budget or {"definition": "zcdp", "rho": "1"})
    above = None if approval_above is None else Fraction(approval_above)
    counted = None if periods is None else read_account_periods(periods, "/periods")
    new = NewAccount(
        name,
        "person",
        neighbouring,
        "",
        stated,
        parent,
        above,
        stated_caps(caps),
        counted,
        funding,
        approvers,
    )
    carry_out(database, account_opening.open_account(database, ANN, new))
    return account_of(database, name)


def stated_caps(caps: Mapping[str, dict[str, str]]) -> tuple[StatedCap, ...]:
    """Caps as a steward states them, by tag."""
    return tuple(StatedCap(tag, read_budget(budget)) for tag, budget in caps.items())


def set_caps(
    database: Database, caps: Mapping[str, dict[str, str]], name: str = "people", request: Request = ANN
) -> ChangedAccount:
    """Set caps of an account, by tag."""
    return change_account(database, name, CapsChange(stated_caps(caps)), request)


def bind_as_before(database: Database, secret: Secret = SECRET) -> None:
    """Bind a database as an older version did, which sealed no rows; what its journal says since is kept."""

    def work(connection: Connection) -> None:
        row = {"id": 1, "secret_fingerprint": secret.fingerprint(), "created_at": "2026-01-01T00:00:00.000000Z"}
        connection.execute(insert(Installation).values(row))

    database.write(work, is_committed=lambda *_: False)
    database.secret = secret


def unseal(database: Database) -> None:
    """Take the seals of accounts, and the sums of their spending, away, as a version had it that knew of none."""

    def work(connection: Connection) -> None:
        for table in ("holds", "releases"):
            connection.execute(text(f"UPDATE {table} SET seal = NULL"))
        triggers: list[tuple[str, str]] = []
        if database.kind == "sqlite":  # triggers keep the seals of what is for ever
            names = "('accounts_by_entry', 'draws_sealed', 'partitions_drawn_forward')"
            found = text(f"SELECT name, sql FROM sqlite_master WHERE name IN {names}")
            triggers = [(row.name, row.sql) for row in connection.execute(found)]
            for name, _ in triggers:
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        for changed in ("accounts SET spending_sum = NULL,", "draws SET", "partitions_drawn SET"):
            connection.execute(text(f"UPDATE {changed} seal = NULL"))
        for _, sql in triggers:
            connection.execute(text(sql))

    database.write(work, is_committed=lambda *_: False)


def migrate_unsealed(database: Database) -> None:
    """Run the migration again that looks for rows without seals, as over a ledger that an older version left."""
    downgrade(database, "0016")
    migrate(database)


def seal(database: Database) -> None:
    """Seal what is without a seal as it is: what only somebody with the secret can."""
    database.write(lambda connection: account_rows.seal_old(connection, SECRET, 0, 100), is_committed=lambda *_: False)
    database.write(lambda connection: release_rows.seal_old(connection, SECRET, "", 100), is_committed=lambda *_: False)
    database.write(
        lambda connection: reservation_rows.seal_old(connection, SECRET, ("", 0), 100), is_committed=lambda *_: False
    )
    database.write(lambda connection: draw_rows.seal_old(connection, SECRET, "", 100), is_committed=lambda *_: False)
    counters = ("", "", -1)
    database.write(
        lambda connection: partitions.seal_old(connection, SECRET, counters, 100), is_committed=lambda *_: False
    )


def account_of(database: Database, name: str = "people") -> AccountRecord:
    with database.read() as connection:
        return accounts.read_account(connection, name)


def prepared(
    database: Database,
    *plans: dict[str, Any],
    name: str = "people",
    reserve_for: timedelta | None = None,
    periods: object = None,
) -> list[Prepared]:
    new = [
        NewRelease("a release", read_plan(plan), plan, (), Fraction(1, 10**10), "/plan", reserve_for, periods)
        for plan in plans
    ]
    return preparation.prepare(database, name, new)


def half_price(plan: Plan, neighbouring: Neighbouring, orders: tuple[Fraction, ...]) -> Price:
    """Ask for half of what is right, as an accountant who was wrong."""
    right = pricing.price(plan, neighbouring, orders)
    return Price(
        None if right.epsilon is None else right.epsilon / 2,
        None if right.rho is None else right.rho / 2,
        right.delta / 2,
        right.linear / 2,
        tuple(None if quanta is None else quanta // 2 for quanta in right.quanta),
    )


def charge(
    database: Database,
    *plans: dict[str, Any],
    name: str = "people",
    request: Request = ANN,
    reserve_for: timedelta | None = None,
    periods: object = None,
) -> list[Registered]:
    """Charge plans in one transaction, and return what was registered; nothing if the request was answered before."""
    operation = charges.register(
        request, prepared(database, *plans, name=name, reserve_for=reserve_for, periods=periods)
    )
    done = idempotent_write(database, request, operation, lambda _: Answer(201, "{}"))
    return done.result or []


def reserve(
    database: Database, *plans: dict[str, Any], name: str = "people", hours: int = 1, periods: object = None
) -> list[str]:
    """Reserve plans in one transaction, and return their ids."""
    held = timedelta(hours=hours)
    return [one.id for one in charge(database, *plans, name=name, reserve_for=held, periods=periods)]


def commit(database: Database, release: str, name: str = "people") -> ReleaseRecord:
    return carry_out(database, reservations.commit(database, ANN, name, release)).release


def void(
    database: Database, release: str, name: str = "people", reason: str = "why", attestation: str | None = None
) -> ReleaseRecord:
    return carry_out(database, reservations.void(database, ANN, name, release, reason, attestation)).release


def approve(database: Database, release: str, name: str = "people", request: Request = BOB) -> ReleaseRecord:
    return carry_out(database, reservations.approve(database, request, name, release), request).release


def draw(
    database: Database,
    release: str,
    plan: dict[str, Any],
    repetition: int = 0,
    noisy: int = 5,
    partition: str = "",
    name: str = "people",
) -> None:
    """Draw a plan's first mechanism."""
    value = read_plan(plan)
    turn = Turn(partition, repetition)
    place = places.place_of(value, next(mechanisms_of(value)), turn)
    draws.draw(database, ANN, name, release, draws.seal(place, np.array([noisy])))


def mechanisms_in(connection: Connection, release: str) -> stored_draws.Mechanisms:
    """The mechanisms of a release's plan."""
    return stored_draws.mechanisms_by_name(release_rows.sealed_plan(connection, release))


def release_of(database: Database, release: str, name: str = "people") -> ReleaseRecord:
    """A release as a reader is shown it."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        return releases.read_release(connection, account.id, release).seen(clock.now())


def left(database: Database, name: str = "people") -> Fraction:
    """Return what a reader is told is left of an account's cap."""
    with database.read() as connection:
        account = present_account(connection, accounts.read_account(connection, name), clock.now()).account
    return remaining(account.budget, account.weights, account.totals)


def entries_of(database: Database, name: str = "people") -> list[JournalEntry]:
    """The whole journal of an account, which must be sound: its chain, and all that follows from it, bit for bit."""
    with database.read() as connection:
        account = accounts.read_account(connection, name)
        found = journal.entries(connection, account.id, 0, 10**6, until=account.head.seq)
        then = replay(connection, account, account.head.seq)
        assert then.account == account
        assert (then.committed, then.reserved) == spending.counts(connection, account)
        assert verify(connection, name) == Verdict(len(found))
    return found


class _Failed(Exception):
    """The end of a transaction before its commit."""


def rows_of_failed(database: Database, operation: Operation[Any], *tables: str, request: Request = ANN) -> Rows:
    """The rows that an operation leaves in some tables, of a transaction that is not committed."""
    rows: Rows = {}

    def work(connection: Connection, at: str) -> None:
        operation.work(connection, at)
        for table in tables:
            rows[table] = [stored(row) for row in connection.execute(text(f"SELECT * FROM {table}"))]
        raise _Failed

    with pytest.raises(_Failed):
        idempotent_write(database, request, Operation(work, lambda *_: False), lambda _: Answer(200))
    return rows


def rows_of_failed_draw(
    database: Database, release: str, plan: dict[str, Any], mechanism: str, partition: str = ""
) -> Rows:
    """The rows of draws, of the journal and of counters, as a draw leaves them that is not committed."""
    value = read_plan(plan)
    (drawn,) = (one for one in mechanisms_of(value) if one.name == mechanism)
    sealed = draws.seal(places.place_of(value, drawn, Turn(partition)), np.array([1]))
    found = reservations.release_for_draw(database, "people", release)

    def work(connection: Connection, at: str) -> Any:
        account = reservations.lock_for_draw(connection, prepared(database, plan)[0].line, found, ANN.actor, at)
        return draws.store(connection, account, release, sealed, draws.Later((), [], ()), ANN, at)

    return rows_of_failed(database, Operation(work, lambda *_: False), "draws", "journal", "partitions_drawn")
