"""The statements that a ledger runs, with the work that SQLite has with each, under the write lock and outside."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event

from service.ledger.storage.group_commit import TALLY


@dataclass
class Statement:
    """A statement that was run.

    Attributes:
        locked: whether it ran in a write transaction.
        steps: of SQLite's virtual machine, in hundreds; 0 on PostgreSQL.
    """

    text: str
    locked: bool
    steps: int = 0


@contextmanager
def statements() -> Iterator[list[Statement]]:
    """Collect the statements of a block, of all databases."""
    found: list[Statement] = []

    def before(connection: Connection, _: object, text: str, *__: object) -> None:
        found.append(Statement(text, TALLY in connection.info))
        raw: Any = connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):
            statement = found[-1]

            def count() -> int:
                statement.steps += 1
                return 0

            raw.set_progress_handler(count, 100)

    event.listen(Engine, "before_cursor_execute", before)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", before)


def steps_locked(found: list[Statement]) -> int:
    """Return the steps of all statements under the write lock, in hundreds."""
    return sum(one.steps for one in found if one.locked)
