"""The peer of a charge: one FastAPI endpoint that runs the same three statements and does nothing else.

No key, no price, no admission, no hash, no retry. The database is the service's own: same tables, same
durability, same kind of transaction. The statements go through the driver alone, or through SQLAlchemy as in
the service.
"""

import argparse
import itertools
import json
import queue
import re
import sqlite3
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

_STATEMENTS = (
    "INSERT INTO releases (id, account_id, seq, name, plan, tags, delta, state, price, accountant, created_at) VALUES"
    " (:id, :account_id, :seq, :name, :plan, :tags, :delta, :state, :price, :accountant, :created_at)",
    "INSERT INTO journal (account_id, seq, kind, release_id, body, hash) VALUES"
    " (:account_id, :seq, :kind, :release_id, :body, :hash)",
    # A trigger refuses a head that goes back, as that of whoever got his number sooner and his turn later would.
    "UPDATE accounts SET head_seq = head_seq + 1, head_hash = :head_hash, totals = :totals WHERE id = :id",
)

Row = dict[str, str | int]
Write = Callable[[tuple[Row, Row, Row]], None]

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
_CONNECTIONS = 16  # as many as the service has for writing to PostgreSQL

_NOW = "2020-04-01T00:00:00.000000Z"
_HASH = "00" * 32
_PRICE = json.dumps({"epsilon": None, "rho": "1/200", "delta": "0", "linear": "1/200", "quanta": []})
_TOTALS = json.dumps({"epsilon": ["0", 1], "rho": ["1/200", 0], "delta": "0", "linear": "1/200", "quanta": []})


def sqlite_driver(path: str) -> Write:
    """One connection for all threads: SQLite writes one transaction at a time whoever waits, and so nobody waits."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    turn = threading.Lock()

    def write(rows: tuple[Row, Row, Row]) -> None:
        with turn:
            connection.execute("BEGIN IMMEDIATE")
            for statement, row in zip(_STATEMENTS, rows, strict=True):
                connection.execute(statement, row)
            connection.execute("COMMIT")

    return write


def postgresql_driver(url: str) -> Write:
    """Connections in a pool."""
    pool: queue.SimpleQueue[psycopg.Connection] = queue.SimpleQueue()
    for _ in range(_CONNECTIONS):
        pool.put(psycopg.connect(url))
    statements = [re.sub(r":(\w+)", r"%(\1)s", statement).encode() for statement in _STATEMENTS]

    def write(rows: tuple[Row, Row, Row]) -> None:
        connection = pool.get()
        try:
            with connection.transaction():
                for statement, row in zip(statements, rows, strict=True):
                    connection.execute(statement, row)
        finally:
            pool.put(connection)

    return write


def sqlite_sqlalchemy(url: str) -> Write:
    """Write the rows through an SQLAlchemy engine, whose pool of one connection is the queue."""
    engine = create_engine(
        url, pool_size=1, max_overflow=0, connect_args={"isolation_level": None, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def prepare(raw: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = raw.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")

    statements = [text(statement) for statement in _STATEMENTS]

    def write(rows: tuple[Row, Row, Row]) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            for statement, row in zip(statements, rows, strict=True):
                connection.execute(statement, row)
            connection.commit()

    return write


def postgresql_sqlalchemy(url: str) -> Write:
    """Write the rows at PostgreSQL through an SQLAlchemy engine."""
    engine = create_engine(url, pool_size=_CONNECTIONS, max_overflow=0)
    statements = [text(statement) for statement in _STATEMENTS]

    def write(rows: tuple[Row, Row, Row]) -> None:
        with engine.begin() as connection:
            for statement, row in zip(statements, rows, strict=True):
                connection.execute(statement, row)

    return write


def _writer(url: str, library: str) -> Write:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite_driver(str(parsed.database)) if library == "driver" else sqlite_sqlalchemy(url)
    if library == "driver":
        return postgresql_driver(parsed.set(drivername="postgresql").render_as_string(hide_password=False))
    return postgresql_sqlalchemy(url)


def create_app(write: Write) -> FastAPI:
    """The endpoint over a database with some accounts, which have no releases yet."""
    numbers: dict[int, Iterator[int]] = defaultdict(lambda: itertools.count(2))
    app = FastAPI()

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/charges/{account}", status_code=201)
    def charge(account: int, release: dict[str, Any]) -> dict[str, Any]:
        release_id, seq = str(uuid.uuid4()), next(numbers[account])
        row: Row = {
            "id": release_id,
            "account_id": account,
            "seq": seq,
            "name": release["name"],
            "plan": json.dumps(release["plan"]),
            "tags": "[]",
            "delta": "1e-10",
            "state": "committed",
            "price": _PRICE,
            "accountant": "1",
            "created_at": _NOW,
        }
        body = json.dumps({"account": "bench", "seq": seq, "release": release_id, "content": release, "time": _NOW})
        entry: Row = {
            "account_id": account,
            "seq": seq,
            "kind": "committed",
            "release_id": release_id,
            "body": body,
            "hash": _HASH,
        }
        write((row, entry, {"id": account, "head_hash": _HASH, "totals": _TOTALS}))
        return {"id": release_id, "seq": seq}

    return app


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("library", choices=["driver", "sqlalchemy"])
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    app = create_app(_writer(given.url, given.library))
    uvicorn.run(app, port=given.port, log_config=None, access_log=False, server_header=False)  # as the service has it


if __name__ == "__main__":
    _main()
