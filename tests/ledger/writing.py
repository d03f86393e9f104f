"""Writes of tests to a ledger's tables, past the functions of the service."""

from sqlalchemy import Connection, text

from service.ledger.storage.database import Database


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
    names = ("no_delete", "no_update", "no_replace", "fixed", "by_entry", "forward")
    drops = [f"DROP TRIGGER IF EXISTS {table}_{name}" for name in names]
    if database.kind == "postgresql":
        drops = ["SET LOCAL session_replication_role = replica"]
    run(database, *drops, *statements, **values)
