"""The senders of a server: a few threads that try messages, shared among the principals who made the webhooks.

A receiver that answers slowly holds a sender for the whole of a try. So nobody's webhooks may have all senders.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from service.ledger.notifications import deliveries, webhooks
from service.ledger.notifications.deliveries import DeliveryRecord, Try
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.notifications.http_delivery import Answer, post
from service.notifications.mail import Mailer
from service.settings import Settings

SENDERS = 4
_ROW = 5.0  # seconds after which a webhook's row of messages ends, so that others have their turn
_IN_A_ROW = 100  # messages that are read for a row
_log = structlog.get_logger("service.notifications")


class Turns:
    """The webhooks that are sent to, each by one sender, and the order in which others have their turn."""

    def __init__(self) -> None:
        self._busy, self._changing = dict[str, str](), threading.Lock()  # principals by the ids of webhooks
        self._last, self._number = dict[str, int](), 0  # the last turn of each principal and webhook

    def take(self, waiting: Sequence[WebhookRecord]) -> WebhookRecord | None:
        """Give a free sender to a webhook; None if there is none for those that wait.

        The principal with the fewest senders is first, then the one whose last turn was longest ago. The last free
        sender is for a principal who has none.
        """
        with self._changing:
            senders = Counter(self._busy.values())
            idle = [one for one in waiting if one.id not in self._busy]
            if not idle:
                return None
            first = min(idle, key=lambda one: (senders[one.created_by], *map(self._turn, (one.created_by, one.id))))
            free = SENDERS - len(self._busy)
            if free < 1 or (free == 1 and senders[first.created_by]):
                return None
            self._number += 1
            self._last[first.created_by] = self._last[first.id] = self._number
            self._busy[first.id] = first.created_by
            return first

    def end(self, webhook: WebhookRecord) -> None:
        """End the turn of a webhook."""
        with self._changing:
            del self._busy[webhook.id]

    def _turn(self, name: str) -> int:
        return self._last.get(name, 0)


class Senders:
    """The senders of one server.

    Attributes:
        freed: is set when a sender gets free that others may wait for.
    """

    def __init__(self, database: Database, secret: Secret, settings: Settings) -> None:
        self._database, self._secret = database, secret
        self._allowed = settings.resolved_webhook_networks
        self._mailer = None if settings.smtp_host is None else Mailer(settings)
        self._turns = Turns()
        self.freed = threading.Event()

    def dispatch(self, threads: ThreadPoolExecutor, stopping: threading.Event) -> None:
        """Give free senders to webhooks with messages that are due.

        Raises:
            Unavailable: the database does not answer, or the installation's journal is not sound.
        """
        at = clock.now()
        with self._database.read() as connection:
            due = deliveries.waiting(connection, at)
            if not due:
                return
            waiting = [one for one in webhooks.journalled(connection, self._secret) if one.id in due]
            while (webhook := self._turns.take(waiting)) is not None:
                waiting.remove(webhook)
                try:
                    row = deliveries.due(connection, self._secret, at, webhook, _IN_A_ROW)
                    threads.submit(self._send_row, webhook, row, stopping)
                except BaseException:
                    self._turns.end(webhook)
                    raise

    def _send_row(self, webhook: WebhookRecord, row: Sequence[DeliveryRecord], stopping: threading.Event) -> None:
        """Try messages of a webhook until one fails: the others would most likely fail too, after a long wait."""
        began, tried = time.monotonic(), False
        try:
            for delivery in row:
                if stopping.is_set() or time.monotonic() - began > _ROW:
                    return
                if not deliveries.claim(self._database, webhook, delivery):
                    return
                tried = True
                if not self._try(webhook, delivery):
                    return
        except Exception as error:  # noqa: BLE001 - a later look tries again
            _log.error("a notification was not sent", webhook=webhook.id, error=type(error).__name__)
        finally:
            self._turns.end(webhook)
            if tried:
                self.freed.set()

    def _try(self, webhook: WebhookRecord, delivery: DeliveryRecord) -> bool:
        at, began = clock.now(), time.monotonic()
        answer = self.send(webhook, delivery.id, delivery.payload, at)
        milliseconds = round(1000 * (time.monotonic() - began))
        tried = Try(at, milliseconds, answer.status, answer.reason, answer.text)
        deliveries.record(self._database, delivery, tried)
        if answer.reason is not None:
            _log.warning("a notification was not delivered", webhook=webhook.id, reason=answer.reason)
        return answer.reason is None

    def send(self, webhook: WebhookRecord, message_id: str, payload: str, at: str) -> Answer:
        """Send a message once, signed at this moment."""
        if webhook.mail is not None:
            if self._mailer is None:
                return Answer(None, "SERVICE_SMTP_HOST is not set", None)
            return self._mailer.send(webhook.mail, json.loads(payload))
        timestamp = int(time.time())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": webhooks.signatures(self._secret, webhook, message_id, timestamp, payload, at),
        }
        return post(str(webhook.url), payload.encode(), headers, self._allowed)
