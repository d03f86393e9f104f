"""Deletion of messages with their log: of webhooks that were removed or narrowed, and of old ones.

A webhook may have many messages, and on SQLite others wait while they are deleted. So one write deletes a limited
number. Until then they are neither shown nor sent, because the webhook's row tells whom they may concern.
"""

import time
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, delete, exists, or_, select

from service.ledger.notifications.deliveries import TEST
from service.ledger.notifications.webhooks import REMOVED, WebhookRecord, has_webhook, removed_webhooks
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Delivery, DeliveryTry, Webhook
from service.ledger.storage.writing_pace import processor_seconds

KEPT = timedelta(days=30)
"""The time for which a message is kept with its log."""
_AT_ONCE = 500  # messages that one write deletes
_FORGETTING = 3600.0  # seconds between looks for old messages, once there are none


class Eraser:
    """The part of a server that deletes messages."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cleared = dict[str, WebhookRecord]()  # limited ones, as they were without messages beyond their accounts
        self._forgot = -_FORGETTING  # when no old messages were left

    def erase(self, webhooks: Sequence[WebhookRecord]) -> float:
        """Delete some messages that concern nobody any more; return the seconds of the processor that writing took.

        Args:
            webhooks: those that there are; one of them is looked through.

        Raises:
            Unavailable: the database does not answer.
        """
        ids, now = list[str](), time.monotonic()
        with self._database.read() as connection:
            removed = removed_webhooks(connection, _AT_ONCE)
            empty = [one for one in removed if _find_none(connection, ids, Delivery.webhook_id == one)]
            narrowed = next((one for one in webhooks if self._may_be_narrowed(one)), None)
            if narrowed is not None and _find_none(connection, ids, *_beyond(narrowed)):
                self._cleared[narrowed.id] = narrowed
            if now - self._forgot >= _FORGETTING and _find_none(connection, ids, *_old()):
                self._forgot = now
        if not ids and not empty:
            return 0.0

        def work(connection: Connection) -> None:
            if narrowed is None or has_webhook(connection, narrowed, lock=True):  # else a later look knows more
                connection.execute(delete(DeliveryTry).where(DeliveryTry.delivery_id.in_(ids)))
                connection.execute(delete(Delivery).where(Delivery.id.in_(ids)))
                without = ~exists().where(Delivery.webhook_id == Webhook.id)
                connection.execute(delete(Webhook).where(Webhook.id.in_(empty), REMOVED, without))

        began = processor_seconds()
        self._database.write(work, is_committed=lambda *_: False)
        return processor_seconds() - began

    def _may_be_narrowed(self, webhook: WebhookRecord) -> bool:
        return webhook.accounts is not None and self._cleared.get(webhook.id) != webhook


def _beyond(webhook: WebhookRecord) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a message is a limited webhook's, and about what it does not reach."""
    elsewhere = or_(Delivery.account.is_(None), Delivery.account.not_in(webhook.accounts or ()))
    return Delivery.webhook_id == webhook.id, Delivery.type != TEST, elsewhere


def _old() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a message was made long ago and is not to be tried any more."""
    return Delivery.created_at < clock.later(clock.now(), -KEPT), Delivery.state != "pending"


def _find_none(connection: Connection, ids: list[str], *which: ColumnElement[bool]) -> bool:
    """Add the ids of such messages, as far as one write may delete them; return whether there is none."""
    room = _AT_ONCE - len(ids)
    found = connection.execute(select(Delivery.id).where(*which).limit(room)).scalars().all() if room else ()
    ids += found
    return room > 0 and not found
