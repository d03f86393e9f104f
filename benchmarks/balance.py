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

from benchmarks.servers import (
    KEY,
    open_account,
    open_accounts,
    opened,
    plain,
    postgresql_database,
    processor_seconds_with_helpers,
    service_server,
    sqlite_database,
)
from service.ledger.accounts import accounts
from service.ledger.journal.journal import Head
from service.ledger.spending.spending_rows import ChargedSubplans
from service.ledger.spending.subplans import subplans_of
from service.ledger.storage.tables import Release
from service.privacy.plans.notation import read_plan
from tests.postgres_server import postgres_server

_RELEASES, _DISTINCT = 1_000_000, 1_000
_BATCH = 50_000
_ROUNDS = 5
_TARGET = 1.0  # seconds
_PLANS, _UNLIKE = 4, 30_000  # registered plans, and the mechanisms of each, of which no two are equal


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
        _with_unlike_plans(stack.enter_context(sqlite_database()))


def _with_unlike_plans(url: str) -> None:
    """Print what an account with a few large plans takes again after a small charge, as a share of the first time."""
    open_accounts(url, ["unlike"])
    what = f"{_PLANS} plans of {_UNLIKE:,} unlike mechanisms, by processor time"
    print(f"  {what:<60}{'first':>8}{'after a charge':>16}{'ratio':>8}")
    path, small = "/v1/accounts/unlike", {"type": "gaussian", "sigma_squared": "123456789"}
    headers = {"Authorization": f"Bearer {KEY}"}
    with service_server(url) as address, httpx.Client(headers=headers, timeout=600, trust_env=False) as client:

        def register(plan: dict[str, Any]) -> None:
            client.post(f"{address}{path}/releases", json={"name": "r", "plan": plan}).raise_for_status()

        for first in range(5000, 5000 + _PLANS * _UNLIKE, _UNLIKE):
            parts = [{"type": "geometric", "scale": str(first + number)} for number in range(_UNLIKE)]
            register({"type": "sequence", "parts": parts})
        taken: dict[str, list[float]] = {"releases": [], "balance": [], "verify": []}
        for _ in range(2):
            for request, times in taken.items():
                started = processor_seconds_with_helpers(address)
                client.get(f"{address}{path}/{request}").raise_for_status()
                times.append(processor_seconds_with_helpers(address) - started)
            register(small)
    for request, (at_first, again) in taken.items():
        print(f"    {request:<58}{at_first:7.2f}s{again:15.2f}s{again / at_first:8.2f}", flush=True)


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
