"""Verification of large accounts: with plans that repeat, with plans that never do, and of an account above others."""

import hashlib
import json
import resource
import time
from contextlib import ExitStack
from fractions import Fraction
from statistics import median
from typing import Any

from sqlalchemy import Connection, select

from benchmarks.servers import CALLER, carry_out, opened, postgresql_database, sqlite_database
from service.ledger.accounts import account_opening, lines
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.releases import charges, preparation
from service.ledger.releases.preparation import NewRelease, Prepared
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account, Entry
from service.ledger.verification.verify import verify
from service.privacy.accounting.privacy_filter import Budget, Definition
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring
from tests.postgres_server import postgres_server

_RELEASES = 100_000
_BATCH = 5_000
_ROUNDS = 3
_TARGET = 50_000


def run() -> None:
    """Print how many entries a second are verified."""
    print(f"Verifying accounts of {_RELEASES:,} releases (target: {_TARGET:,} entries/s)")
    print(f"  {'':<58}{'entries':>8}   parsed and hashed alone")
    with ExitStack() as stack:
        _measure("SQLite", stack.enter_context(sqlite_database()))
        server = stack.enter_context(postgres_server())
        _measure("PostgreSQL", stack.enter_context(postgresql_database(server)))
    print(f"  {'most memory of this process':<58}{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MiB")


def _measure(kind: str, url: str) -> None:
    database = opened(url)
    _open(database, "parent", None)
    _open(database, "repeating", "parent")
    _open(database, "alone", None)
    _fill(database, "repeating", distinct=1_000)
    _fill(database, "alone", distinct=_RELEASES)
    for name, what in (
        ("repeating", "1,000 distinct plans"),
        ("parent", "the same, as the account above sees them"),
        ("alone", "no two plans equal"),
    ):
        rates = [(_verified(database, name), _parsed(database, name)) for _ in range(_ROUNDS)]
        ours, peer = (median(found) for found in zip(*rates, strict=True))
        shown = f"{ours:8,.0f}/s {ours / peer:6.2f} of {peer:8,.0f}/s"
        print(f"  {kind + ', ' + what:<58}{shown}", flush=True)
    database.close()


def _verified(database: Database, name: str) -> float:
    started = time.perf_counter()
    with database.read() as connection:
        found = verify(connection, name)
    if not found.valid or found.entries < _RELEASES:
        raise RuntimeError(f"expected a valid account of {_RELEASES} releases, got {found}")
    return found.entries / (time.perf_counter() - started)


def _parsed(database: Database, name: str) -> float:
    """The peer: every entry read from the database, parsed and hashed, and nothing else."""
    started, count = time.perf_counter(), 0
    query = select(Entry.body).join(Account, Account.id == Entry.account_id).where(Account.name == name)
    with database.read() as connection, connection.execute(query, execution_options={"stream_results": True}) as rows:
        while page := rows.fetchmany(2_000):
            for (body,) in page:
                json.loads(body)
                hashlib.sha256(body.encode()).hexdigest()
            count += len(page)
    return count / (time.perf_counter() - started)


def _open(database: Database, name: str, parent: str | None) -> None:
    budget = Budget(definition=Definition.ZCDP, cap=Fraction(10**9))
    new = NewAccount(name, "person", Neighbouring.ADD_REMOVE, "", budget, parent)
    carry_out(database, account_opening.open_account(database, CALLER, new))


def _release(number: int) -> NewRelease:
    document: dict[str, Any] = {"type": "discrete_gaussian", "sigma_squared": f"{100 + number}/7", "tags": ["county"]}
    return NewRelease(
        name=f"table {number}",
        plan=read_plan(document),
        document=document,
        tags=(),
        delta=Fraction(1, 10**10),
        pointer="/plan",
    )


def _fill(database: Database, name: str, distinct: int) -> None:
    for first in range(0, _RELEASES, _BATCH):
        batch = preparation.prepare(
            database, name, [_release(number % distinct) for number in range(first, first + _BATCH)]
        )

        def work(connection: Connection, batch: list[Prepared] = batch) -> None:
            line = lines.lock_line(connection, batch[0].line, clock.now())
            charges.charge(connection, line, batch, CALLER.actor, clock.now())

        database.write(work, is_committed=lambda *_: False)
