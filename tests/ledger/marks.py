"""A table of a test's own in a database of the ledger: what was written to it and what was not."""

from sqlalchemy import Connection, text

from service.ledger.storage.database import Database

PATIENCE = 30.0  # seconds after which a test that hangs fails


def write(database: Database, statement: str) -> None:
    database.write(lambda connection: connection.execute(text(statement)), is_committed=never)


def never(_: Connection, __: object) -> bool:
    raise AssertionError("no commit was in doubt")


def count(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM marks")).scalar_one())
