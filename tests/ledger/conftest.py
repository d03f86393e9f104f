"""Databases with what only tests have in them, a second server, and a high-water mark."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.secret import Secret
from tests.ledger.charging import open_account
from tests.ledger.marks import write


@pytest.fixture
def marks(database: Database) -> Database:
    """A database with a table of the test's own."""
    write(database, "CREATE TABLE marks (id INTEGER PRIMARY KEY, note TEXT CHECK (note <> 'forbidden'))")
    return database


@pytest.fixture
def replica(database: Database) -> Iterator[Database]:
    """Another server of the same ledger."""
    with closing(open_database(database.url)) as other:
        other.secret = database.secret
        yield other


@pytest.fixture
def file(tmp_path: Path, secret: Secret) -> HighWaterFile:
    """A high-water mark that is not written yet."""
    return HighWaterFile(tmp_path / "service.high-water", secret)


@pytest.fixture
def keeper(database: Database, file: HighWaterFile) -> MarkKeeper:
    """A keeper of the mark that has marked the opening of the only account."""
    open_account(database)
    keeper = MarkKeeper(database, file)
    keeper.advance(everything=True)
    return keeper
