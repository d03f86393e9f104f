"""Webhooks of a ledger, made and read without HTTP."""

from typing import Any

from sqlalchemy import text

from service.ledger.journal.journal import Actor
from service.ledger.notifications import webhook_changes, webhooks
from service.ledger.notifications.erasing import Eraser
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from tests.ledger.charging import SECRET
from tests.ledger.writing import never

BY = Actor("issuer's steward")
_USUAL = {
    "name": "a webhook",
    "url": "https://hooks.agency.example/",
    "mail": None,
    "events": ("release.proposed", "release.refused"),
    "accounts": None,
    "below": None,
    "active": True,
}


def make_webhook(
    database: Database, by: str = "issuer's steward", *, limited: bool = False, **fields: Any
) -> WebhookRecord:
    """Make a webhook, as a steward whom an issuer authenticated."""
    stated, at = _USUAL | fields, clock.now()
    return database.write(
        lambda connection: webhook_changes.make(
            connection, SECRET, stated, limited=limited, at=at, by=Actor(by), seen=None
        ),
        is_committed=never,
    )


def change_webhook(database: Database, webhook_id: str, **fields: Any) -> WebhookRecord:
    """Change fields of a webhook."""
    at = clock.now()
    return database.write(
        lambda connection: webhook_changes.change(connection, SECRET, webhook_id, fields, at=at, by=BY, seen=None),
        is_committed=never,
    )


def remove_webhook(database: Database, webhook_id: str) -> None:
    """Delete a webhook."""
    at = clock.now()
    database.write(
        lambda connection: webhook_changes.remove(connection, SECRET, webhook_id, at=at, by=BY, seen=None),
        is_committed=never,
    )


def erase(database: Database) -> None:
    """Delete the messages that concern nobody any more, as a server does after a while."""
    eraser = Eraser(database)
    for _ in range(10):
        with database.read() as connection:
            found = webhooks.journalled(connection, SECRET)
        eraser.erase(found)


def payloads_of(database: Database) -> list[str]:
    """Return the messages in the order in which they were made."""
    with database.read() as connection:
        return list(connection.execute(text("SELECT payload FROM deliveries ORDER BY created_at, id")).scalars())
