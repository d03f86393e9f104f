"""Deliveries: the messages for webhooks, when each is to be tried next, and the log of the tries."""

import json
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, cast, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    update,
)  # fmt: skip

from service.errors import Altered, Conflict, NotFound
from service.ledger.notifications.webhooks import WebhookRecord, has_webhook
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.paging import BeforeReading, Page, page_of, rows_of
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Delivery, DeliveryTry
from service.ledger.storage.transaction import batch, count_metric

State = Literal["pending", "delivered", "failed"]

Outcome = Literal["delivered", "put_off", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""The outcomes of a try; one that failed is put off until the next one, or was the last."""
TEST = "test"
"""The type of messages that stewards ask for; they are about no account."""
MOST_TESTS = 10  # that wait, of one webhook
PAUSES = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 5 * 60, 30 * 60, 2 * 3600, 6 * 3600, 15 * 3600))
"""The pauses between the tries of a message: eight tries within a day."""
LONGEST_ANSWER = 200  # characters of an answer that the log keeps
_CLAIM = timedelta(minutes=2)  # for which a server may try it; if the server dies, another one does afterwards
LOOKED_AT = 100
"""The messages of a webhook, the last ones, that say how its deliveries go."""
_AT_ONCE = 500
_PURPOSE = "webhook-delivery"
_FIXED = (
    Delivery.id, Delivery.webhook_id, Delivery.type, Delivery.account, Delivery.payload, Delivery.created_at,
)  # fmt: skip
_COLUMNS = (*_FIXED, Delivery.seal, Delivery.state, Delivery.tries, Delivery.due_at)
_PENDING = Delivery.state == literal_column("'pending'")  # worded as in the partial index
_ORDER = (Delivery.created_at, Delivery.id)


class Message(NamedTuple):
    """A message for a webhook, as it is about to be stored."""

    webhook_id: str
    type: str
    account: str | None
    time: str  # of the event
    data: dict[str, Any]


class Try(NamedTuple):
    """A try of a delivery; it failed where there is a reason."""

    at: str
    milliseconds: int
    status: int | None
    reason: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A message with the state of its delivery."""

    id: str
    webhook_id: str
    type: str
    account: str | None
    payload: str
    created_at: str
    state: State
    tries: int
    due_at: str | None


def payload_of(message_id: str, message: Message) -> str:
    """Return the JSON text that is sent."""
    body = {"type": message.type, "id": message_id, "timestamp": message.time, "data": message.data}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def sealed(secret: Secret, messages: Sequence[Message], at: str) -> list[dict[str, object]]:
    """Return the rows of messages that are to be tried at once and in their order."""
    rows = list[dict[str, object]]()
    for number, message in enumerate(messages):
        made_at = clock.later(at, timedelta(microseconds=number))  # apart, so that the order is known
        message_id = str(uuid.uuid4())
        row: dict[str, object] = {
            "id": message_id,
            "webhook_id": message.webhook_id,
            "type": message.type,
            "account": message.account,
            "payload": payload_of(message_id, message),
            "created_at": made_at,
        }
        row["seal"] = secret.row_seal(_PURPOSE, *row.values())
        rows.append(row | {"state": "pending", "tries": 0, "due_at": made_at})
    return rows


def queue(connection: Connection, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Add messages; return their ids."""
    if rows:
        connection.execute(insert(Delivery), batch(rows))
    return [row["id"] for row in rows]


def number_of_tests(connection: Connection, webhook_id: str) -> int:
    """Return the number of a webhook's test messages that are still to be delivered."""
    waits = (_PENDING, Delivery.due_at > "", _owner() == webhook_id, Delivery.type == TEST)
    return connection.execute(select(func.count()).select_from(Delivery).where(*waits)).scalar_one()


def numbers_since(connection: Connection, webhook_id: str, since: str) -> Counter[tuple[str, str | None]]:
    """Return the numbers of messages that a webhook was sent since a moment, by event and account."""
    query = select(Delivery.type, Delivery.account, func.count().label("number")).where(
        Delivery.webhook_id == webhook_id, Delivery.created_at >= since, Delivery.type != TEST
    )
    rows = connection.execute(query.group_by(Delivery.type, Delivery.account))
    return Counter({(row.type, row.account): row.number for row in rows})


def waiting(connection: Connection, at: str) -> set[str]:
    """Return the ids of the webhooks with messages that are due."""
    query = select(_owner()).where(_PENDING, Delivery.due_at <= at).distinct()
    return set(connection.execute(query).scalars())


def due(connection: Connection, secret: Secret, at: str, webhook: WebhookRecord, limit: int) -> list[DeliveryRecord]:
    """Return messages of a webhook that are due, the earliest first, without rows that the service did not write."""
    mine = (_owner() == webhook.id, _about(webhook.accounts))
    query = select(*_COLUMNS).where(_PENDING, Delivery.due_at <= at, *mine)
    query = query.order_by(Delivery.due_at, Delivery.id).limit(limit)
    return [_record(row) for row in connection.execute(query) if _is_sealed(secret, row)]


def claim(database: Database, webhook: WebhookRecord, delivery: DeliveryRecord) -> bool:
    """Take a due message for a try of this server.

    Returns:
        False if another server took it first, the webhook is no longer as it was read, or it does not reach the
        message's account.
    """
    until = clock.later(clock.now(), _CLAIM)
    seen = (Delivery.id == delivery.id, Delivery.state == "pending", Delivery.due_at == delivery.due_at)
    statement = update(Delivery).where(*seen).values(due_at=until)

    def work(connection: Connection) -> bool:
        reached = delivery.type == TEST or webhook.reaches(delivery.account)
        return reached and has_webhook(connection, webhook, lock=True) and bool(connection.execute(statement).rowcount)

    def is_committed(connection: Connection, _: bool) -> bool:
        return connection.execute(select(Delivery.due_at).where(Delivery.id == delivery.id)).scalar() == until

    return database.write(work, is_committed=is_committed)


def record(database: Database, delivery: DeliveryRecord, tried: Try) -> None:
    """Log a try of a message, and say when the next one is due; after the last one it has failed."""
    number = delivery.tries + 1
    state, outcome = ("delivered", "delivered") if tried.reason is None else ("pending", "put_off")
    if tried.reason is not None and number > len(PAUSES):
        state = outcome = "failed"
    due_at = clock.later(tried.at, PAUSES[number - 1]) if state == "pending" else None
    row = {"delivery_id": delivery.id, "number": number, **tried._asdict()}

    def work(connection: Connection) -> None:
        changed = update(Delivery).where(Delivery.id == delivery.id, Delivery.tries == delivery.tries)
        if connection.execute(changed.values(state=state, tries=number, due_at=due_at)).rowcount:  # else deleted
            connection.execute(insert(DeliveryTry).values(row))
            count_metric(connection, "notifications", outcome)

    database.write(work, is_committed=lambda connection, _: _has_try(connection, delivery.id, number))


def read_delivery(
    connection: Connection, secret: Secret, webhook_id: str, delivery_id: str, only: Collection[str] | None
) -> DeliveryRecord:
    """Return a message of a webhook.

    Args:
        only: the accounts of the webhook, where it is limited to some; it may have been narrowed to them.

    Raises:
        NotFound: the webhook has none with this id, or it is about another account.
        Altered: its row is not as the service wrote it.
    """
    query = select(*_COLUMNS).where(Delivery.webhook_id == webhook_id, Delivery.id == delivery_id, _about(only))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound("delivery", delivery_id)
    return _sealed_record(secret, row)


def list_deliveries(
    connection: Connection,
    secret: Secret,
    webhook_id: str,
    after: str,
    limit: int,
    before_reading: BeforeReading,
    only: Collection[str] | None,
) -> Page[DeliveryRecord]:
    """Return a page of a webhook's messages, newest first; ``after`` is the id of the last one before the page.

    Args:
        only: as in ``read_delivery``; those who manage the webhook see the messages about these, and tests.

    Raises:
        Altered: a row is not as the service wrote it.
    """
    query = select(*_COLUMNS).where(Delivery.webhook_id == webhook_id, _about(only))
    query = query.order_by(*(column.desc() for column in _ORDER))
    if after:
        last = select(Delivery.created_at).where(Delivery.id == after).scalar_subquery()
        query = query.where(tuple_(*_ORDER) < tuple_(last, after))
    rows = rows_of(connection, query, func.length(Delivery.payload), limit, before_reading=before_reading)
    return page_of(rows, lambda row: _sealed_record(secret, row))


def tries_of(connection: Connection, delivery_ids: Sequence[str]) -> dict[str, list[Try]]:
    """Return the log of some messages, by their ids."""
    found: dict[str, list[Try]] = {delivery_id: [] for delivery_id in delivery_ids}
    columns = (
        DeliveryTry.delivery_id, DeliveryTry.at, DeliveryTry.milliseconds, DeliveryTry.status, DeliveryTry.reason,
        DeliveryTry.answer,
    )  # fmt: skip
    query = select(*columns).where(DeliveryTry.delivery_id.in_(delivery_ids))
    for row in connection.execute(query.order_by(DeliveryTry.delivery_id, DeliveryTry.number)):
        found[row.delivery_id].append(Try(row.at, row.milliseconds, row.status, row.reason, row.answer))
    return found


class Standing(NamedTuple):
    """The outcome of a webhook's last messages.

    Attributes:
        delivered_at: the last try that delivered one.
        failing_since: the first try since then that failed.
    """

    delivered_at: str | None
    failing_since: str | None


def standing_of(connection: Connection, webhook_id: str, only: Collection[str] | None) -> Standing:
    """Return what became of the last messages of a webhook; ``only`` is as in ``read_delivery``."""
    mine = select(Delivery.id).where(Delivery.webhook_id == webhook_id, _about(only))
    last = mine.order_by(*(column.desc() for column in _ORDER)).limit(LOOKED_AT).subquery()
    tries = select(DeliveryTry.at, DeliveryTry.reason).where(DeliveryTry.delivery_id.in_(select(last.c.id)))
    delivered_at: str | None = None
    failing_since: str | None = None
    for row in connection.execute(tries.order_by(DeliveryTry.at)):
        if row.reason is None:
            delivered_at, failing_since = row.at, None
        else:
            failing_since = failing_since or row.at
    return Standing(delivered_at, failing_since)


def retry(
    connection: Connection,
    secret: Secret,
    webhook_id: str,
    delivery_id: str,
    at: str,
    only: Collection[str] | None,
) -> DeliveryRecord:
    """Let a failed message be tried once more.

    Args:
        only: as in ``read_delivery``.

    Raises:
        NotFound, Altered: as ``read_delivery``.
        Conflict: it has not failed.
    """
    found = read_delivery(connection, secret, webhook_id, delivery_id, only)
    again = update(Delivery).where(Delivery.id == delivery_id, Delivery.state == "failed")
    if not connection.execute(again.values(state="pending", due_at=at)).rowcount:
        raise Conflict(f"expected a message that failed; it is {found.state}")
    return read_delivery(connection, secret, webhook_id, delivery_id, only)


def oldest_age(database: Database) -> float:
    """Return the seconds for which the oldest message has been waiting that is still to be delivered; 0 without any."""
    row = database.ask(_OLDEST, {})
    if row is None or not (isinstance(row.oldest, str) and clock.is_stamp(row.oldest)):
        return 0.0
    return max(0.0, clock.between(row.oldest, clock.now()).total_seconds())


_OLDEST = select(func.min(Delivery.created_at).label("oldest")).where(_PENDING, Delivery.due_at > "")


def faults(connection: Connection, secret: Secret) -> list[str]:
    """Return the messages that are not as the service wrote them, in words."""
    rows = connection.execute(select(*_COLUMNS).order_by(*_ORDER), execution_options={"yield_per": _AT_ONCE})
    return [
        f"deliveries: the message {row.id} is not as the service wrote it"
        for row in rows
        if not _is_sealed(secret, row)
    ]


def is_queued(connection: Connection, ids: Sequence[str]) -> bool:
    """Return whether messages that an attempt added are there; True where it added none."""
    return not ids or bool(connection.execute(select(exists().where(Delivery.id == ids[0]))).scalar())


def _owner() -> ColumnElement[str]:
    """Return the webhook's id as an expression, so that SQLite looks through what is pending, not all of a webhook."""
    return Delivery.webhook_id + ""


def _about(only: Collection[str] | None) -> ColumnElement[bool]:
    """Return the condition that a message is about one of these accounts, or a test; None: it holds for all."""
    return true() if only is None else or_(Delivery.type == TEST, Delivery.account.in_(only))


def _has_try(connection: Connection, delivery_id: str, number: int) -> bool:
    same = (DeliveryTry.delivery_id == delivery_id, DeliveryTry.number == number)
    return connection.execute(select(DeliveryTry.number).where(*same)).first() is not None


def _is_sealed(secret: Secret, row: Row[*tuple[Any, ...]]) -> bool:
    return secret.is_text(row.seal, secret.row_seal(_PURPOSE, *(row._mapping[column.key] for column in _FIXED)))


def _sealed_record(secret: Secret, row: Row[*tuple[Any, ...]]) -> DeliveryRecord:
    if not _is_sealed(secret, row):
        raise Altered("a message's row", f"the row of message {row.id!r}")
    return _record(row)


def _record(row: Row[*tuple[Any, ...]]) -> DeliveryRecord:
    return DeliveryRecord(
        row.id,
        row.webhook_id,
        row.type,
        row.account,
        row.payload,
        row.created_at,
        cast("State", row.state),  # the table's check admits no other
        row.tries,
        row.due_at,
    )
