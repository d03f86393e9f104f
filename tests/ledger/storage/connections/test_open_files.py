"""A server notices that another file took the place of its ledger's, or of the write-ahead log's."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from service.errors import Unavailable
from service.ledger.installation import high_water_keeper
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.storage.connections.open_files import open_files
from service.ledger.storage.database import Database
from tests.ledger.charging import charge, open_account
from tests.waiting import until

_PLAN = {"type": "geometric", "epsilon": "1/10", "name": "m"}


pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # a server keeps its own files


@pytest.fixture
def ledger(database: Database) -> Database:
    open_account(database)
    return database


def _path(database: Database) -> Path:
    return Path(str(database.pools.writer.url.database))


def _log(path: Path) -> Path:
    return Path(f"{path}-wal")


def _copied(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


@pytest.mark.parametrize(
    ("replace", "name"),
    [
        (_copied, ""),
        (Path.unlink, ""),
        (lambda path: path.rename(path.with_name("away")), ""),
        (lambda path: _log(path).unlink(), "-wal"),
        (lambda path: _copied(_log(path)), "-wal"),
    ],
    ids=["file replaced", "file removed", "file renamed", "log removed", "log replaced"],
)
def test_nothing_is_written_once_a_file_is_replaced(
    ledger: Database,
    file: HighWaterFile,
    monkeypatch: pytest.MonkeyPatch,
    replace: Callable[[Path], object],
    name: str,
) -> None:
    monkeypatch.setattr(high_water_keeper, "_PAUSE", 0.01)
    with MarkKeeper(ledger, file).keeping():
        charge(ledger, _PLAN)
        replace(_path(ledger))
        until(lambda: ledger.stopped is not None)
        with pytest.raises(Unavailable, match="removed or replaced while it was in use"):
            charge(ledger, _PLAN)
    with open_files(make_url("postgresql://host/ledger")) as files:
        assert files.replaced() is None


def test_what_sqlite_does_with_its_files_is_no_replacement(ledger: Database, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(_path(ledger))
    with open_files(make_url(f"sqlite:///{link}")) as files:
        ledger.close()
        charge(ledger, _PLAN)
        with closing(sqlite3.connect(link)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.close()
        assert files.replaced() is None
    assert not _log(_path(ledger)).exists(), "the last connection removes it"


def test_a_file_that_is_not_there_is_not_made(ledger: Database) -> None:
    ledger.close()
    _path(ledger).unlink()
    with pytest.raises(Unavailable), open_files(make_url(ledger.url)):
        pass
    assert not _path(ledger).exists()
