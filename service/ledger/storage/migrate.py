"""Migration of the tables to this code's version, once, however many processes start together."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, String, column, inspect, select, table, text
from sqlalchemy.exc import SQLAlchemyError

from service.errors import StartupRefused
from service.ledger.storage.connections.failures import FailureKind, failure_of
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.schema import require_one_place

_SCRIPTS = Path(__file__).resolve().parents[3] / "migrations"
MIGRATION_LOCK = 0x6C6564676572  # "ledger": PostgreSQL's advisory lock of all migrations
_PATIENCE = 600.0  # seconds: another process may be migrating a large database
_TOLD = select(column("version_num", String)).select_from(table("alembic_version"))
_UNTOLD = (
    "the database has the tables of a ledger, but its table alembic_version does not state one version: it was changed"
    " outside the service, or it is damaged. Restore the newest sound copy"
)


def migrate(database_or_url: Database | str) -> None:
    """Upgrade the tables to the newest version, in one transaction that excludes all other migrations.

    Raises:
        StartupRefused: a newer version of the service wrote the database, or its tables are not those of the version
            that it states.
        Unavailable: the database does not answer, or another process migrates for too long.
    """
    if isinstance(database_or_url, str):
        database = open_database(database_or_url, lock_timeout=_PATIENCE)
        try:
            migrate(database)
        finally:
            database.close()
        return

    def upgrade(connection: Connection) -> None:
        _exclude_others(connection)
        _wait_for_writers(connection)
        before = _require_known(connection)
        try:
            command.upgrade(_config(connection), "head")
        except SQLAlchemyError as error:
            failure = failure_of(error)
            if failure.kind is not FailureKind.FAULT:
                raise
            raise StartupRefused(
                f"the database cannot be migrated: it refused a statement ({failure.code}). Perhaps its tables are not"
                f" those of the version that it states ({before or 'none'}). Nothing was changed; restore the newest"
                " sound copy"
            ) from error

    database_or_url.version = None
    database_or_url.write(upgrade, is_committed=lambda connection, _: _is_at_head(connection))


def downgrade(database: Database, revision: str) -> None:
    """Take the tables back to an earlier version; "base" removes them with all their contents.

    Raises:
        Conflict: the tables of a version on the way cannot hold the present rows; nothing is changed.
    """

    def step_back(connection: Connection) -> None:
        _exclude_others(connection)
        _wait_for_writers(connection)
        command.downgrade(_config(connection), revision)

    def is_committed(connection: Connection, _: None) -> bool:
        return (_revision(connection) or "base") == revision

    database.version = None
    database.write(step_back, is_committed=is_committed)


def is_migrated(database: Database) -> bool:
    """Return whether the tables are those of this code, without waiting for requests that read.

    Raises:
        Unavailable: the database does not answer.
    """
    try:
        told = database.ask(_TOLD, {})
    except RuntimeError:  # there is no such table, or it states several versions
        return False
    return told is not None and told[0] == _head()


def prepare(database: Database, embedded: bool, *, begin: bool = True) -> str | None:
    """Prepare the tables at start: migrate an embedded database, or an empty one in which a ledger may begin.

    No other process can be using an embedded database. Afterwards the database is written only while its tables have
    this version.

    Returns:
        The version from which the tables were migrated, empty if a ledger was begun; None if nothing was to do.

    Raises:
        StartupRefused: a shared database has another version, whose change is an operator's decision; or it is empty.
        Unavailable: the database does not answer.
    """
    with database.read() as connection:
        revision = _require_known(connection)
        empty = not inspect(connection).get_table_names()
    ready = revision == _head()
    if empty and not begin:
        raise StartupRefused("the database is empty: there is no ledger in it; python -m service migrate begins one")
    if not (ready or embedded or empty):
        if revision is None:
            raise StartupRefused(
                "the database has tables, but no ledger: check the database in SERVICE_DATABASE_URL. To make a ledger"
                " beside these tables, run python -m service migrate"
            )
        start = ", or start the server" if database.kind == "sqlite" else ""
        raise StartupRefused(
            f"the database is not migrated: its tables are of version {revision}, and this version of the service needs"
            f" {_head()}. Make a backup, then run python -m service migrate{start}"
        )
    if not ready:
        migrate(database)
    database.version = _head()
    return None if ready else revision or ""


def _exclude_others(connection: Connection) -> None:
    """Exclude other migrations on PostgreSQL; SQLite's write transaction already excludes all other writers."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})


def _wait_for_writers(connection: Connection) -> None:
    """Block servers of another version while the migration runs: each reads the version in its transaction."""
    if connection.dialect.name == "postgresql" and inspect(connection).has_table("alembic_version"):
        connection.execute(text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@cache
def _head() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


@cache
def _known() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _require_known(connection: Connection) -> str | None:
    """Return the version of the tables, one that this code knows; None if there are no tables.

    Raises:
        StartupRefused: the version is unknown, or there are tables without a version, or the role finds tables of these
            names elsewhere.
    """
    require_one_place(connection)
    revision = _revision(connection)
    if revision is None and inspect(connection).has_table("journal"):
        raise StartupRefused(_UNTOLD)
    if revision is not None and revision not in _known():
        raise StartupRefused(
            f"a newer version of the service wrote the database: its tables are of version {revision}, and this version"
            f" of the service knows versions up to {_head()}. Run the newer version"
        )
    return revision


def _revision(connection: Connection) -> str | None:
    """Return the version that the database states for its tables; None if it states none.

    Raises:
        StartupRefused: it states several.
    """
    try:
        return MigrationContext.configure(connection).get_current_revision()
    except CommandError:
        raise StartupRefused(_UNTOLD) from None


def _is_at_head(connection: Connection) -> bool:
    return _revision(connection) == _head()
