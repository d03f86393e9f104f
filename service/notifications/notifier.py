"""The threads of a server's notifications: one follows the journals, one has messages sent, one tells of a stop."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import structlog

from service.errors import ServiceError
from service.ledger.notifications import deliveries
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.erasing import Eraser
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from service.ledger.storage.writing_pace import rest_after
from service.notifications.follower import Follower
from service.notifications.senders import SENDERS, Senders
from service.settings import Settings

_PAUSE = 1.0  # seconds between looks
_SHARE = 20  # looks at journals take at most this part of the time: there may be many accounts
_SHARE_OF_SENDING = 4  # looks for messages that are due take at most this part
_LONGEST_REST = 10.0  # seconds; what a look does is bounded
_TOLD_AT_ONCE = 16  # webhooks that are told of a stop
_END = 20.0  # seconds that the server's end waits for the tries that run
_log = structlog.get_logger("service.notifications")


class Notifier:
    """Notifications of one server: followed journals, and tries of deliveries."""

    def __init__(self, database: Database, secret: Secret, settings: Settings) -> None:
        self._database = database
        self._follower = Follower(database, secret, settings.public_url)
        self._senders = Senders(database, secret, settings)
        self._eraser = Eraser(database)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Follow the journals and send messages until the block ends."""
        with until_stopped(self._keep, "notifications", within=_END):
            yield

    def _keep(self, stopping: threading.Event) -> None:
        with ThreadPoolExecutor(2, "notifications") as others:
            others.submit(self._have_sent, stopping)
            others.submit(self._tell_of_stop, stopping)
            self._repeat(self._follow, _SHARE, stopping, stopping)
            self._senders.freed.set()  # so that its thread ends, too

    def _have_sent(self, stopping: threading.Event) -> None:
        """Have due messages sent, however long looks at the journals take."""
        with ThreadPoolExecutor(SENDERS, "senders") as threads:
            freed = self._senders.freed

            def look() -> float:
                freed.clear()
                if self._database.refused() is None:
                    self._senders.dispatch(threads, stopping)
                return 0.0

            self._repeat(look, _SHARE_OF_SENDING, freed, stopping)

    def _repeat(
        self, look: Callable[[], float], share: int, waking: threading.Event, stopping: threading.Event
    ) -> None:
        """Look again and again until the server stops.

        Args:
            look: returns the seconds of the least rest after it.
            share: looks take at most this part of the time, but they rest no longer than ``_LONGEST_REST``.
            waking: ends a pause between looks.
        """
        failing, rest = False, 0.0
        while not stopping.wait(rest):
            waking.wait(max(0.0, _PAUSE - rest))
            if stopping.is_set():
                return
            began, least = time.monotonic(), 0.0
            try:
                least = look()
                failing = False
            except Exception as error:  # noqa: BLE001 - no content of the database may end the thread
                if not failing:
                    detail = (error.for_operator or str(error)) if isinstance(error, ServiceError) else None
                    _log.error("notifications", error=type(error).__name__, detail=detail)
                failing = True
            rest = min(_LONGEST_REST, max(least, share * (time.monotonic() - began)))

    def _follow(self) -> float:
        if self._database.refused() is not None:
            return 0.0
        wrote = self._follower.follow()
        return rest_after(wrote) + rest_after(self._eraser.erase(self._follower.webhooks))

    def unfollowed_age(self) -> float:
        """Return the age in seconds of the oldest entry of which messages are still to be made, as far as is known."""
        return self._follower.unfollowed_age()

    def _tell_of_stop(self, stopping: threading.Event) -> None:
        """Tell once, unlogged, that nothing is written any more: the database takes no delivery either.

        Other messages that are sent do not hold it up.
        """
        while self._database.stopped is None:
            if stopping.wait(_PAUSE):
                return
        reason, at = self._database.stopped, clock.now()
        with ThreadPoolExecutor(_TOLD_AT_ONCE, "stop") as threads:
            for webhook in self._follower.webhooks:
                if webhook.wants("ledger.stopped", None):
                    message = Message(webhook.id, "ledger.stopped", None, at, {"reason": reason})
                    message_id = str(uuid.uuid4())
                    threads.submit(self._send_once, webhook, message_id, deliveries.payload_of(message_id, message), at)

    def _send_once(self, webhook: WebhookRecord, message_id: str, payload: str, at: str) -> None:
        answer = self._senders.send(webhook, message_id, payload, at)
        if answer.reason is not None:
            _log.error("a notification was not delivered", webhook=webhook.id, reason=answer.reason)
