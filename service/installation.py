"""Starting: open the database, migrate it where that is ours to do, bind it to the secret."""

from service.ledger.database import Database, open_database
from service.ledger.installation import Secret, check_secret, load_secret
from service.ledger.migrate import prepare
from service.settings import Settings


def open_installation(settings: Settings) -> tuple[Database, Secret]:
    """The database, ready and bound to the installation's secret.

    Raises:
        StartupRefused: it is not migrated, or belongs to another secret.
        Unavailable: it does not answer.
    """
    database = open_database(
        settings.resolved_database_url,
        lock_timeout=settings.lock_timeout_seconds,
        writer_threads=settings.writer_threads,
    )
    prepare(database, embedded=settings.resolved_database_url.startswith("sqlite"))
    secret = load_secret(settings.resolved_secret_file)
    check_secret(database, secret)
    return database, secret
