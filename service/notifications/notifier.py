"""The thread of a server that follows the journals, and the threads that send what it made."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import structlog

from service.errors import ServiceError
from service.ledger.notifications import deliveries, webhooks
from service.ledger.notifications.deliveries import DeliveryRecord, Message, Try
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.notifications.follower import Follower
from service.notifications.http_delivery import Answer, post
from service.notifications.mail import Mailer
from service.settings import Settings

_PAUSE = 1.0  # seconds between looks
_SHARE = 20  # a look takes at most this part of the time: there may be many accounts
_SENDERS = 4  # webhooks that are sent to at once, so that one that does not answer delays few others
_IN_A_ROW = 20  # messages that one webhook gets before others may have their turn
_FORGETTING = 3600.0  # seconds between deletions of old messages
_END = 20.0  # seconds that the server's end waits for the tries that run
_log = structlog.get_logger("service.notifications")


class Notifier:
    """Notifications of one server: followed journals, and tries of deliveries."""

    def __init__(self, database: Database, secret: Secret, settings: Settings) -> None:
        self._database, self._secret = database, secret
        self._follower = Follower(database, secret, settings.public_url)
        self._allowed = settings.resolved_webhook_networks
        self._mailer = None if settings.smtp_host is None else Mailer(settings)
        self._busy, self._changing = set[str](), threading.Lock()
        self._told = False  # that the server stopped writing
        self._forgot = time.monotonic()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Follow the journals and send messages until the block ends."""
        with until_stopped(self._keep, "notifications", within=_END):
            yield

    def _keep(self, stopping: threading.Event) -> None:
        failing, pause = False, _PAUSE
        with ThreadPoolExecutor(_SENDERS, "notifications") as senders:
            while not stopping.wait(pause):
                began = time.monotonic()
                try:
                    self._look(senders, stopping)
                    failing = False
                except Exception as error:  # noqa: BLE001 - no content of the database may end the thread
                    if not failing:
                        detail = (error.for_operator or str(error)) if isinstance(error, ServiceError) else None
                        _log.error("notifications", error=type(error).__name__, detail=detail)
                    failing = True
                pause = max(_PAUSE, _SHARE * (time.monotonic() - began))

    def _look(self, senders: ThreadPoolExecutor, stopping: threading.Event) -> None:
        if self._database.stopped is not None:
            self._tell_of_stop(self._database.stopped, senders)
        if self._database.refused() is not None:
            return
        while self._follower.follow() and not stopping.is_set():
            pass
        with self._changing:
            busy = set(self._busy)
        with self._database.read() as connection:
            due = deliveries.due(connection, self._secret, clock.now(), busy, 1000)
        own = {webhook.id: webhook for webhook in self._follower.webhooks}
        for webhook_id in dict.fromkeys(delivery.webhook_id for delivery in due):
            if webhook_id in own:
                row = [delivery for delivery in due if delivery.webhook_id == webhook_id][:_IN_A_ROW]
                with self._changing:
                    self._busy.add(webhook_id)
                senders.submit(self._send_in_a_row, own[webhook_id], row, stopping)
        if time.monotonic() - self._forgot > _FORGETTING:
            self._forgot = time.monotonic()
            deliveries.forget(self._database, clock.now())

    def _send_in_a_row(self, webhook: WebhookRecord, row: list[DeliveryRecord], stopping: threading.Event) -> None:
        """Try messages of a webhook until one fails: the others would most likely fail too, after a long wait."""
        try:
            for delivery in row:
                if stopping.is_set() or not deliveries.claim(self._database, webhook, delivery):
                    return
                at, began = clock.now(), time.monotonic()
                answer = self._send(webhook, delivery.id, delivery.payload, at)
                tried = Try(at, round(1000 * (time.monotonic() - began)), answer.status, answer.reason, answer.text)
                deliveries.record(self._database, delivery, tried)
                if answer.reason is not None:
                    _log.warning("a notification was not delivered", webhook=webhook.id, reason=answer.reason)
                    return
        except Exception as error:  # noqa: BLE001 - a later look tries again
            _log.error("a notification was not sent", webhook=webhook.id, error=type(error).__name__)
        finally:
            with self._changing:
                self._busy.discard(webhook.id)

    def _send(self, webhook: WebhookRecord, message_id: str, payload: str, at: str) -> Answer:
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

    def _tell_of_stop(self, reason: str, senders: ThreadPoolExecutor) -> None:
        """Send, once and unlogged, that nothing is written any more: the database takes no delivery either."""
        if self._told:
            return
        self._told = True
        at = clock.now()
        for webhook in self._follower.webhooks:
            if webhook.wants("ledger.stopped", None):
                message = Message(webhook.id, "ledger.stopped", None, at, {"reason": reason})
                message_id = str(uuid.uuid4())
                senders.submit(self._send_once, webhook, message_id, deliveries.payload_of(message_id, message), at)

    def _send_once(self, webhook: WebhookRecord, message_id: str, payload: str, at: str) -> None:
        answer = self._send(webhook, message_id, payload, at)
        if answer.reason is not None:
            _log.error("a notification was not delivered", webhook=webhook.id, reason=answer.reason)
