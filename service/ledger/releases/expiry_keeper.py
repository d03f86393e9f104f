"""The thread of a server that expires overdue holds."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy import select

from service.errors import ServiceError
from service.ledger.releases.settlement import expire
from service.ledger.storage import clock
from service.ledger.storage.background import until_stopped
from service.ledger.storage.database import Database
from service.ledger.storage.tables import Account
from service.ledger.storage.writing_pace import rest_after

_PAUSE = 0.2  # seconds between checks for expired holds that a charge left
_LOOKS = 50  # checks after which the holds of all accounts are read, whichever process left some
_LONGEST_REST = 3.0  # seconds that a call waits for an account; a later call expires the holds after a longer rest
_log = structlog.get_logger("service.expiry")


class ExpiryKeeper:
    """The thread that expires overdue holds: at once where a charge left some, otherwise within about ten seconds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._resting: dict[int, float] = {}  # the time at which an account's next holds expire, after slow ones

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Expire overdue holds periodically until the block ends."""
        with until_stopped(self._keep_expiring, "expiry"):
            yield

    def expire_all(self, stopping: threading.Event) -> None:
        """Expire all overdue holds, or as many as possible until the server stops.

        After some of an account took long to expire, the account rests, and those of others are next. Where the rest
        is long too, because the holds touch many windows, its others wait until a later call.

        Raises:
            Unavailable: the database does not answer.
        """
        done: dict[int, float] = {}  # the time at which an account without holds to expire is looked at again
        self._resting = {one: until for one, until in self._resting.items() if until > time.monotonic()}

        def until(account_id: int) -> float:
            return max(self._resting.get(account_id, 0.0), done.get(account_id, 0.0))

        while due := self._due():  # each time anew: one account may always have some
            account_id = min(due, key=until)
            rest = until(account_id) - time.monotonic()
            if rest > _LONGEST_REST or (rest > 0 and stopping.wait(rest)):
                return
            began = time.monotonic()
            try:
                if not (expired := expire(self._database, account_id)):
                    done[account_id] = time.monotonic() + _PAUSE * _LOOKS
                    continue
            except ServiceError as error:  # of one account, for example where its row was altered
                _log.warning("expiry", error=type(error).__name__, detail=error.for_operator or str(error))
                done[account_id] = time.monotonic() + _PAUSE * _LOOKS
                continue
            ended = time.monotonic()
            # The accounts above count the same holds.
            self._resting |= dict.fromkeys(expired.charged, ended + rest_after(expired.locked))
            if stopping.wait(ended - began):  # as long as it took, so that half is for requests
                return

    def _due(self) -> Sequence[int]:
        query = select(Account.id).where(Account.next_expiry <= clock.now()).order_by(Account.id)
        with self._database.read() as connection:
            return connection.execute(query).scalars().all()

    def _keep_expiring(self, stopping: threading.Event) -> None:
        looks = 0
        while not stopping.wait(_PAUSE):
            looks += 1
            if not self._database.holds_due.is_set() and looks % _LOOKS:
                continue
            self._database.holds_due.clear()
            try:
                self.expire_all(stopping)
            except Exception as error:  # noqa: BLE001 - no content of the database may end the thread
                _log.warning("expiry", error=type(error).__name__)
