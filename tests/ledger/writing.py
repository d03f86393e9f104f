"""Writes of tests to a ledger's tables, past the functions of the service."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, create_engine, make_url, text

from service.ledger.storage.database import Database

UNSTATED = {"rowid", "oid", "_rowid_"}  # columns of SQLite's tables in which there is nothing


def never(_: Connection, __: object) -> bool:
    raise AssertionError("no commit was in doubt")


def run(database: Database, *statements: str, **values: object) -> None:
    """Run statements in one transaction, as the service's own role can."""

    def work(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement), values)

    database.write(work, is_committed=never)


def unprotected(database: Database, table: str, *statements: str, **values: object) -> None:
    """Run statements without a table's triggers, as an attacker does who writes the database."""
    names = ("no_delete", "no_update", "no_replace", "fixed", "by_entry", "forward", "noisy", "sealed")
    drops = [f"DROP TRIGGER IF EXISTS {table}_{name}" for name in names]
    if database.kind == "postgresql":
        drops = ["SET LOCAL session_replication_role = replica"]
    run(database, *drops, *statements, **values)


HIDING = ("rowid", "oid", "_rowid_")
"""The columns of tables on SQLite that only hide the rowid, and cannot be written."""


def stored(row: Row[Any]) -> dict[str, Any]:
    """Return what a row holds, as it can be written again."""
    return {name: value for name, value in row._mapping.items() if name not in HIDING}


@contextlib.contextmanager
def as_owner(database_url: str) -> Iterator[Connection]:
    """The tables' owner, whom no trigger holds up; what he takes away from them comes back with ``commit``."""
    url = make_url(database_url)
    drivers = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
    engine = create_engine(url.set(drivername=drivers[url.get_backend_name()]))
    with engine.connect() as connection:
        made: list[Any] = []
        if engine.dialect.name == "sqlite":
            made = list(connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")))
            for name, _ in made:
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            connection.execute(text("SET session_replication_role = replica"))
        yield connection
        for _, sql in made:
            connection.exec_driver_sql(sql)
        connection.commit()
    engine.dispose()


def hold_of(database: Database, release: str) -> dict[str, Any]:
    """Return the row of the one hold of a release."""
    with database.read() as connection:
        query = text("SELECT * FROM holds WHERE release_id = :release")
        return dict(connection.execute(query, {"release": release}).one()._mapping)


def put_back(database: Database, hold: Mapping[str, Any]) -> None:
    """Insert a row of holds, as the service's own role can."""
    names, values = ", ".join(hold), ", ".join(f":{name}" for name in hold)
    run(database, f"INSERT INTO holds ({names}) VALUES ({values})", **hold)
