"""The pools of a database's connections: for writers, for readers, and for single statements."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool

from service.errors import StartupRefused
from service.ledger.storage.connections.engines import make_sqlite_file, postgresql_engine, sqlite_engine
from service.urls import read_url

READERS = 16  # read transactions at one time, in a pool of their own
_ASKERS = 8  # concurrent single statements, in a pool of their own: they never wait for other transactions
# Seconds that a single statement waits for a lock, or for SQLite, which blocks readers only while it recovers.
AT_ONCE = 1.0


class Connections(NamedTuple):
    """The connections of a pool, by use."""

    in_use: int
    idle: int


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of one database.

    Attributes:
        kind: "sqlite" or "postgresql".
        writer: of write transactions.
        reader: of read-only transactions.
        asker: of single statements, and of reads that wait for no request.
        writers: the number of write transactions that run at once.
    """

    kind: str
    writer: Engine
    reader: Engine
    asker: Engine
    writers: int

    def close(self) -> None:
        """Close the idle connections; connections in use close when they are returned to their pools."""
        for engine in (self.writer, self.reader, self.asker):
            engine.dispose()

    def connections(self) -> dict[str, Connections]:
        """Return how many connections of each pool are in use and idle."""
        pools = {"writers": self.writer.pool, "readers": self.reader.pool, "askers": self.asker.pool}
        return {
            name: Connections(cast("QueuePool", pool).checkedout(), cast("QueuePool", pool).checkedin())
            for name, pool in pools.items()
        }


def open_pools(url: str, lock_timeout: float, writer_threads: int) -> Pools:
    """Open the pools of the database that a URL names, and create an SQLite file that does not exist.

    Args:
        lock_timeout, writer_threads: as for ``open_database``.

    Raises:
        StartupRefused: the URL does not name a database that can hold the ledger.
        Unavailable: the SQLite file cannot be opened. PostgreSQL is first contacted when it is used.
    """
    try:
        parsed = read_url(url)
    except ValueError as error:
        raise StartupRefused(str(error)) from None
    kind = parsed.get_backend_name()
    if kind == "sqlite" and parsed.database not in {None, "", ":memory:"} and not parsed.query:
        make_sqlite_file(Path(str(parsed.database)), lock_timeout)
        writer = sqlite_engine(parsed, 1, lock_timeout, read_only=False)
        reader = sqlite_engine(parsed, READERS, lock_timeout, read_only=True)
        asker = sqlite_engine(parsed, _ASKERS, AT_ONCE, read_only=True)
        return Pools(kind, writer, reader, asker, 1)
    if kind == "postgresql":
        writer = postgresql_engine(parsed, writer_threads, read_only=False)
        reader = postgresql_engine(parsed, READERS, read_only=True)
        asker = postgresql_engine(parsed, _ASKERS, read_only=True)
        return Pools(kind, writer, reader, asker, writer_threads)
    raise StartupRefused("expected the URL of an SQLite file, without options, or of a PostgreSQL database")
