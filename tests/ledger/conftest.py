"""Databases with what only tests have in them."""

import pytest

from service.ledger.storage.database import Database
from tests.ledger.marks import write


@pytest.fixture
def marks(database: Database) -> Database:
    """A database with a table of the test's own."""
    write(database, "CREATE TABLE marks (id INTEGER PRIMARY KEY, note TEXT CHECK (note <> 'forbidden'))")
    return database
