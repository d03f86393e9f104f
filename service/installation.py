"""Opening of an installation: open the database, migrate an embedded one, bind it to the secret."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import URL, make_url

from service import logs
from service.errors import StartupRefused
from service.ledger.access.keys import unsound
from service.ledger.installation.binding import check_secret, is_bound
from service.ledger.installation.high_water import HighWaterFile
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.installation.installation_journal import follow
from service.ledger.installation.mark_check import check_mark
from service.ledger.installation.missing_entries import last_entries, missing_entries
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST
from service.ledger.storage.connections.failures import file_not_accessible
from service.ledger.storage.database import Database, open_database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.migrate import prepare
from service.ledger.storage.schema import hold_schema, require_parsed_schema, require_schema
from service.ledger.storage.secret import Secret, load_secret
from service.ledger.verification.adoption import adopt
from service.settings import Settings, read_settings

_log = structlog.get_logger("service.installation")


def settings_of_command() -> Settings:
    """Read the settings of a command, and configure logging by them.

    Raises:
        StartupRefused: a setting is invalid.
    """
    settings = read_settings()
    logs.configure(settings.log_level)
    return settings


def open_installation(
    settings: Settings,
    *,
    begin: bool = False,
    serving: bool = False,
    require_mark: bool = True,
) -> tuple[Database, Secret]:
    """Open the database, ready and bound to the installation's secret.

    Each transaction of a start or a command holds the tables and checks the schema; those of a running server do not.

    Args:
        settings: the configuration.
        begin: create a ledger where there is none. Read-only commands never create a ledger: if an operator names a
            wrong place, an empty ledger would look sound.
        serving: for a server, which maintains the mark: refuse a damaged SQLite file, all of which is read if its
            server did not end in good order; seal rows that an older version wrote without seals. It needs
            ``require_mark``, which detects a ledger that was put back to before its seals.
        require_mark: refuse a ledger that lacks entries of its high-water mark.

    Raises:
        StartupRefused: there is no ledger, or it is damaged, lacks a table or a trigger, is not migrated, is older than
            its high-water mark, or belongs to another secret.
        Unavailable: the database does not answer.
    """
    if begin and require_mark and settings.resolved_high_water_file.exists():
        require_ledger(make_url(settings.resolved_database_url), "; its high-water mark exists, so it was begun")
    database = open_place(settings, begin=begin)
    with naming(database):
        before = prepare(database, embedded=database.kind == "sqlite", begin=begin)
        if serving and before is not None:
            _tell(database, before)
        require_schema(database)
        database.begun = hold_schema
        secret = load_secret(settings.resolved_secret_file, make=not is_bound(database))
        secret = check_secret(database, secret)
        mark = check_mark(database, high_water_file(settings, secret), check_file=serving) if require_mark else None
        if require_mark:
            _require_same_version(database, secret)
        if serving:
            marked = BEFORE_FIRST if mark is None else mark.heads.get(INSTALLATION, BEFORE_FIRST)
            bootstrap = settings.bootstrap_key.get_secret_value() if settings.bootstrap_key else None
            adopt(database, secret, bootstrap, marked=marked)
            database.begun = require_parsed_schema  # from now on the mark's keeper looks at the schema, too
    return database, secret


def _tell(database: Database, before: str) -> None:
    """Log that the start of a server began a ledger, perhaps in a place that nobody meant, or migrated one."""
    if before:
        _log.info("the ledger was migrated", database=database.place.name, before=before, now=database.version)
    else:
        _log.info("a new ledger was begun", database=database.place.name)


def _require_same_version(database: Database, secret: Secret) -> None:
    """Read the installation's journal up to the marked entry, and compare the version of the ledger that it names.

    Raises:
        StartupRefused: the journal is not sound, or names another version than the reading before the mark's.
    """
    try:
        follow(database, secret)
    except BrokenChain as broken:
        raise unsound(broken) from None
    if database.stopped is not None:
        raise StartupRefused(database.stopped)


@contextmanager
def naming(database: Database) -> Iterator[None]:
    """Name the database, without its password, in refusals for the operator that do not name it themselves."""
    try:
        yield
    except StartupRefused as refused:
        refused.for_operator = refused.for_operator or f"{database.place.name}: {refused}"
        raise


@contextmanager
def writing(settings: Settings, *, begin: bool = False, require_mark: bool = True) -> Iterator[tuple[Database, Secret]]:
    """Open the database for a command that writes; the high-water mark includes its writes before the block ends.

    Where there is no mark yet, the first server creates it; until then rows of an older version may lack their seals.

    Args:
        settings: the configuration.
        begin: as in ``open_installation``.
        require_mark: as in ``open_installation``.

    Raises:
        StartupRefused: as ``open_installation``, or the written entries are gone, or the mark cannot be written.
        Unavailable: the database does not answer.
    """
    database, secret = open_installation(settings, begin=begin, require_mark=require_mark)
    file = high_water_file(settings, secret)
    keeper = MarkKeeper(database, file, serves=False)
    try:
        yield database, secret
    finally:
        if database.has_committed() and file.path.exists() and (require_mark or not _lacks_entries(database, file)):
            keeper.advance()
        database.close()
    if database.stopped is not None:
        raise StartupRefused(database.stopped)


def _lacks_entries(database: Database, file: HighWaterFile) -> bool:
    """Return True where the ledger lacks entries of its mark; the mark then stays until an operator acknowledges it."""
    mark = file.read()
    with database.read() as connection:
        return mark is not None and bool(missing_entries(connection, mark.heads, last_entries(connection)))


def open_to_verify(settings: Settings) -> tuple[Database, Secret]:
    """Open the database for reading as it is, neither migrated nor bound to the secret.

    Raises:
        StartupRefused: there is no ledger, or it is of another version, lacks a table, or belongs to another secret.
        Unavailable: the database does not answer.
    """
    database = open_place(settings, begin=False)
    with naming(database):
        prepare(database, embedded=False, begin=False)
        require_schema(database, to_read=True)
        database.begun = partial(hold_schema, to_read=True)
        secret = load_secret(settings.resolved_secret_file, make=False)
        secret = check_secret(database, secret, bind_new=False)
    return database, secret


def high_water_file(settings: Settings, secret: Secret) -> HighWaterFile:
    """Return the file of the installation's high-water mark, by its path for this process."""
    return HighWaterFile(settings.resolved_high_water_file, secret)


def open_place(settings: Settings, *, begin: bool) -> Database:
    """Open the database as it is.

    Raises:
        StartupRefused: the path of an embedded database cannot be used, or there is no ledger and ``begin`` is false.
    """
    if not begin:
        require_ledger(make_url(settings.resolved_database_url))
    if settings.database_url is None:
        try:
            # For its owner alone: it contains draws that an agency has not yet published.
            settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            detail = f"the data directory {settings.data_dir} cannot be created: {error.strerror}"
            raise StartupRefused(detail) from None
    return open_database(
        settings.resolved_database_url,
        lock_timeout=settings.lock_timeout_seconds,
        writer_threads=settings.writer_threads,
    )


def require_ledger(url: URL, reason: str = "") -> None:
    """Check that an embedded database exists, since opening it would create it.

    Args:
        url: of a database.
        reason: why there should be one, for the refusal.

    Raises:
        StartupRefused: it does not exist.
        Unavailable: this process may not check.
    """
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    try:
        there = path.exists()
    except OSError as error:
        raise file_not_accessible(path, error) from None
    if not there:
        raise StartupRefused(
            f"there is no ledger at {url.database}{reason}: set SERVICE_DATA_DIR or SERVICE_DATABASE_URL to its"
            " location"
        )
