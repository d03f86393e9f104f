"""A look at the journals: what it finds, and the one transaction that writes it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from service.ledger.journal.journal import Head
from service.ledger.notifications import deliveries, webhooks
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import BudgetBelow, FollowedJournal
from service.ledger.storage.transaction import batch
from service.ledger.storage.writing_pace import processor_seconds
from service.notifications.audience import Audience
from service.notifications.hourly_limits import HourlyLimits

_MOST = 500  # rows that a look adds, and those of one entry more: on SQLite others wait while they are written


@dataclass
class Look:
    """The findings of a look at the journals.

    Attributes:
        places: for each journal the place that was reached before, if any, and the new one.
        below, above: webhooks and accounts whose budget came below the webhook's share, or is no longer below it.
    """

    audience: Audience
    limits: HourlyLimits
    places: dict[int, tuple[Head | None, Head]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    below: list[tuple[str, int]] = field(default_factory=list)
    above: list[tuple[str, int]] = field(default_factory=list)

    def is_full(self) -> bool:
        """Return whether there is as much as one transaction writes."""
        return len(self.messages) + len(self.below) + len(self.above) >= _MOST

    def write(self, database: Database, secret: Secret, used: Sequence[WebhookRecord]) -> float:
        """Write the messages and the places; return the seconds of the processor that this took.

        Of several servers that looked at once, one writes; the others find that the places moved.

        Args:
            used: the webhooks that the look found; those that changed meanwhile get nothing.

        Raises:
            Unavailable: the database does not answer.
        """
        if not self.places:
            return 0.0
        rows = deliveries.sealed(secret, self.messages, clock.now())  # before the lock
        concerned = {message.webhook_id for message in self.messages} | {webhook_id for webhook_id, _ in self.below}

        def work(connection: Connection) -> list[str] | None:
            # One server at a time: the row of the installation's journal is there since the first webhook was made.
            own = select(FollowedJournal.seq).where(FollowedJournal.account_id == NO_ACCOUNT).with_for_update()
            connection.execute(own)
            if _places_of(connection, self.places) != {of: last for of, (last, _) in self.places.items() if last}:
                return None
            _move(connection, self.places)
            there = {one.id for one in used if one.id in concerned and webhooks.has_webhook(connection, one, lock=True)}
            self._compare(connection, there)
            return deliveries.queue(connection, [row for row in rows if row["webhook_id"] in there])

        def is_committed(connection: Connection, ids: list[str] | None) -> bool:
            moved = _places_of(connection, self.places) == {of: new for of, (_, new) in self.places.items()}
            return ids is not None and moved and deliveries.is_queued(connection, ids)

        began = processor_seconds()
        database.write(work, is_committed=is_committed)
        return processor_seconds() - began

    def _compare(self, connection: Connection, there: Collection[str]) -> None:
        """Write which budgets are below a webhook's share, for those that are there."""
        below = [{"webhook_id": one, "account_id": account_id} for one, account_id in self.below if one in there]
        if below:
            connection.execute(insert(BudgetBelow), batch(below))
        if self.above:
            same = (BudgetBelow.webhook_id == bindparam("one"), BudgetBelow.account_id == bindparam("account"))
            above = [{"one": webhook_id, "account": account_id} for webhook_id, account_id in self.above]
            connection.execute(delete(BudgetBelow).where(*same), batch(above))


def _places_of(connection: Connection, accounts: Collection[int]) -> dict[int, Head]:
    columns = (FollowedJournal.account_id, FollowedJournal.seq, FollowedJournal.hash)
    rows = connection.execute(select(*columns).where(FollowedJournal.account_id.in_(accounts)))
    return {row.account_id: Head(row.seq, row.hash) for row in rows}


def _move(connection: Connection, places: Mapping[int, tuple[Head | None, Head]]) -> None:
    first = [{"account_id": of, "seq": new.seq, "hash": new.hash} for of, (last, new) in places.items() if last is None]
    if first:
        connection.execute(insert(FollowedJournal), batch(first))
    later = [{"of": of, "to": new.seq, "by": new.hash} for of, (last, new) in places.items() if last is not None]
    if later:
        moved = update(FollowedJournal).where(FollowedJournal.account_id == bindparam("of"))
        connection.execute(moved.values(seq=bindparam("to"), hash=bindparam("by")), batch(later))
