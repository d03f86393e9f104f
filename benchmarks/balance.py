"""The balance of an account with a million releases of a thousand distinct mechanisms, over HTTP."""

import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

import httpx
import psycopg
from sqlalchemy import Connection, insert, text

from benchmarks.servers import KEY, open_account, opened, plain, postgresql_database, service_server, sqlite_database
from service.ledger.accounts import accounts
from service.ledger.accounts.spending_rows import ChargedSubplans
from service.ledger.accounts.subplans import subplans_of
from service.ledger.journal.journal import Head
from service.ledger.storage.tables import Release
from service.privacy.plans.notation import read_plan
from tests.postgres_server import postgres_server

_RELEASES, _DISTINCT = 1_000_000, 1_000
_BATCH = 50_000
_ROUNDS = 5
_TARGET = 1.0  # seconds


def run() -> None:
    """Print how long an account with a million releases takes to say what it has lost, tight figure included."""
    print(f"Balance of {_RELEASES:,} releases of {_DISTINCT:,} distinct mechanisms (target: under {_TARGET:.0f} s)")
    print(f"  {'':<46}{'first':>9}{'median':>9}   tight epsilon at 1e-10")
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True))
        for kind, url in (
            ("SQLite", stack.enter_context(sqlite_database())),
            ("PostgreSQL", stack.enter_context(postgresql_database(server))),
        ):
            for mixture in (_smooth, _on_lattices):
                _fill(url, mixture.__name__.strip("_"), [mixture(number) for number in range(_DISTINCT)])
            address = stack.enter_context(service_server(url))
            for mixture, what in ((_smooth, "with continuous noise"), (_on_lattices, "discrete noise only")):
                _ask(f"{kind}, {what}", f"{address}/v1/accounts/{mixture.__name__.strip('_')}/balance")


def _smooth(number: int) -> dict[str, Any]:
    """A thousand of these cost a few nats in all."""
    kind = ("laplace", "gaussian", "geometric", "discrete_gaussian")[number % 4]
    size = {"sigma_squared": str(10**7 + 10**4 * number)} if "gaussian" in kind else {"scale": str(5000 + number)}
    return {"type": kind, **size}


def _on_lattices(number: int) -> dict[str, Any]:
    kind = ("geometric", "discrete_gaussian")[number % 2]
    size = {"sigma_squared": str(10**7 + 10**4 * number)} if "gaussian" in kind else {"scale": str(5000 + number)}
    return {"type": kind, **size}


def _fill(url: str, account: str, documents: list[dict[str, Any]]) -> None:
    """Rows as a million charges leave them, without the journal's million entries, which a balance does not read."""
    database = opened(url)
    open_account(database, account)
    plans = [json.dumps(document) for document in documents]
    subplans = [next(iter(subplans_of(read_plan(document), ()))) for document in documents]

    def count(connection: Connection) -> int:
        account_id: int = connection.execute(
            text("SELECT id FROM accounts WHERE name = :name"), {"name": account}
        ).scalar_one()
        every = _RELEASES // _DISTINCT
        empty = accounts.read_account(connection, account)
        head = Head(_RELEASES + 1, empty.head.hash)
        spent = ChargedSubplans(Counter(dict.fromkeys(subplans, every)), Counter())
        accounts.save(connection, [replace(empty, releases=_RELEASES, head=head)], spent)
        return account_id

    account_id = database.write(count, is_committed=lambda *_: False)
    for first in range(0, _RELEASES, _BATCH):
        rows = [
            {
                "id": f"{account}-{number}",
                "account_id": account_id,
                "seq": number + 2,
                "name": "small",
                "plan": plans[number % _DISTINCT],
                "tags": "[]",
                "delta": "1e-10",
                "state": "committed",
                "price": "{}",
                "accountant": "1",
                "created_at": "2020-04-01T00:00:00.000000Z",
            }
            for number in range(first, first + _BATCH)
        ]

        def add(connection: Connection, rows: list[dict[str, Any]] = rows) -> None:
            connection.execute(insert(Release), rows)

        database.write(add, is_committed=lambda *_: False)
    database.close()
    if url.startswith("postgresql"):  # what its autovacuum does while a ledger grows
        with psycopg.connect(plain(url), autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE) releases")


def _ask(what: str, url: str) -> None:
    taken: list[float] = []
    with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=600, trust_env=False) as client:
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            answer = client.get(url).raise_for_status().json()
            taken.append(time.perf_counter() - started)
    if answer["releases"] != _RELEASES:
        raise RuntimeError(f"expected {_RELEASES} releases, got {answer['releases']}")
    tight = next((found for found in answer["spent"]["approximate"] if found["via"] == "tight"), None)
    shown = "none" if tight is None else f"{tight['epsilon']:.9f}, {tight.get('method')}"
    print(f"  {what:<46}{taken[0]:8.2f}s{median(taken):8.2f}s   {shown}", flush=True)
