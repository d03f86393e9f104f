"""Keys of a ledger, made, rotated and revoked without HTTP."""

from datetime import timedelta

from service.ledger.access.key_records import KeyRecord, Role
from service.ledger.access.keys import create_key, revoke_key, rotate_key
from service.ledger.journal.journal import Actor
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from tests.ledger.charging import SECRET
from tests.ledger.writing import never


def make_key(
    database: Database,
    name: str = "eve",
    role: Role = "pipeline",
    accounts: list[str] | None = None,
    *,
    expires_at: str | None = None,
    at: str | None = None,
    by: Actor | None = None,
) -> tuple[KeyRecord, str]:
    """Make a key, of the operator unless ``by`` names another; return it with its token."""
    moment = at or clock.now()
    return database.write(
        lambda connection: create_key(
            connection, SECRET, name=name, role=role, accounts=accounts, expires_at=expires_at, at=moment, by=by
        ),
        is_committed=never,
    )


def revoke(database: Database, key_id: str, at: str | None = None) -> KeyRecord:
    """Revoke a key, as the operator."""
    moment = at or clock.now()
    return database.write(
        lambda connection: revoke_key(connection, SECRET, key_id, at=moment, by=None), is_committed=never
    )


def rotate(
    database: Database, key_id: str, at: str | None = None, *, overlap: timedelta = timedelta(), by: Actor | None = None
) -> tuple[KeyRecord, str]:
    """Rotate a key, as the operator unless ``by`` names another; return the new one with its token."""
    moment = at or clock.now()
    return database.write(
        lambda connection: rotate_key(connection, SECRET, key_id, overlap=overlap, at=moment, by=by), is_committed=never
    )
