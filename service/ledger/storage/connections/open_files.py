"""The files of an SQLite ledger, which must stay in their places while a process has them open."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from service.ledger.storage.connections.failures import refusal, sqlite_failure
from service.ledger.storage.connections.location import place_of_file


class OpenFiles:
    """The ledger's file and its write-ahead log, as this process opened them; none for a database server."""

    def __init__(self, *paths: Path) -> None:
        self._opened = {path: _identity(path) for path in paths}

    def replaced(self) -> str | None:
        """Return the name of a file that was removed or replaced since; None where all are as they were.

        SQLite goes on writing to a file that has lost its name, and what it writes is lost when the process ends.
        """
        return next((path.name for path, opened in self._opened.items() if _identity(path) != opened), None)


@contextmanager
def open_files(url: URL) -> Iterator[OpenFiles]:
    """Keep the files of the database open, so that SQLite itself does not remove the write-ahead log meanwhile.

    Raises:
        Unavailable: the file cannot be opened.
    """
    if url.get_backend_name() != "sqlite":
        yield OpenFiles()
        return
    path = Path(str(url.database))
    file = path.resolve()  # SQLite puts the log beside the file that a link names
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log
            yield OpenFiles(path, Path(f"{file}-wal"))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise refusal(sqlite_failure(error), place_of_file(path)) from None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
