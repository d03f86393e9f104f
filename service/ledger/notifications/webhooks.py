"""Webhooks: the targets of notifications, in sealed rows that the installation's journal vouches for.

The journal's entry of each change holds the seal that the row then has. So a row that somebody put back as it was
before a change has a valid seal, and is still told apart: it is neither used nor shown nor changed. The entry has
neither the URL, which may contain a token, nor addresses of mail: entries stay for ever.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, Row, select

from service.errors import Altered, NotFound
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import INSTALLATION
from service.ledger.storage.newest_heads import KnownHead
from service.ledger.storage.paging import Page
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, Webhook
from service.ledger.storage.transaction import DATABASE, require_present

Event = Literal[
    "release.proposed",
    "release.approved",
    "release.rejected",
    "release.expired",
    "release.refused",
    "change.proposed",
    "change.approved",
    "change.rejected",
    "budget.below",
    "ledger.stopped",
    "ledger.acknowledged",
]
EVENTS: tuple[Event, ...] = get_args(Event)
OF_LEDGER = ("ledger.stopped", "ledger.acknowledged")
"""Events that are about no account, for webhooks that are not limited to accounts."""
OVERLAP = timedelta(hours=24)
"""The time for which messages are signed with the secret before a rotation too."""
_PURPOSE = "webhook"
_COLUMNS = (
    Webhook.id, Webhook.name, Webhook.url, Webhook.mail, Webhook.events, Webhook.accounts, Webhook.below,
    Webhook.active, Webhook.generation, Webhook.rotated_at, Webhook.created_at, Webhook.created_by,
)  # fmt: skip
_ORDER = (Webhook.created_at, Webhook.id)
_NO_EVENTS = "[]"  # of a webhook that was deleted
REMOVED = Webhook.events == _NO_EVENTS
"""The condition that a webhook was deleted: messages that still have to be deleted need its row."""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """A webhook; either ``url`` or ``mail`` is None."""

    id: str
    name: str
    url: str | None
    mail: tuple[str, ...] | None
    events: tuple[str, ...]
    accounts: tuple[str, ...] | None  # None: all, and the installation
    below: str | None  # the share of a budget below which a message is sent, as an exact number
    active: bool
    generation: int  # of its signing secret
    rotated_at: str | None
    created_at: str
    created_by: str

    def wants(self, event: str, account: str | None) -> bool:
        """Return whether it asks for messages of an event, about an account or the installation."""
        return self.active and event in self.events and self.reaches(account)

    def reaches(self, account: str | None) -> bool:
        """Return whether messages about an account, or about the installation, may go to it."""
        return self.accounts is None or account in self.accounts


class SeenWebhooks(NamedTuple):
    """The webhooks that the installation's journal had up to an entry.

    Attributes:
        seals: the seals of their rows, by id.
        generations: the generations of their signing secrets, by id.
        wrong: entries that do not follow from earlier ones and are left out, in words.
    """

    head: Head = BEFORE_FIRST
    seals: Mapping[str, str] = {}
    generations: Mapping[str, int] = {}
    wrong: tuple[str, ...] = ()


def see_webhooks(connection: Connection, secret: Secret, seen: SeenWebhooks) -> SeenWebhooks:
    """Return the webhooks that the installation's journal has now, given those that it had before.

    Raises:
        BrokenChain: the journal is not sound.
    """
    head, seals, generations, wrong = seen.head, dict(seen.seals), dict(seen.generations), list(seen.wrong)
    for reached, members in installation_journal.read_after(connection, secret, seen.head):
        head, kind, content = reached, members["kind"], members["content"]
        if kind == "webhook_deleted":
            seals.pop(content["id"], None)
            generations.pop(content["id"], None)
        elif kind in ("webhook_made", "webhook_changed"):
            webhook_id = content["id"]
            before = generations.get(webhook_id, 1)
            generation = content.get("generation", before)  # the first entries of webhooks do not state it
            if kind == "webhook_changed" and webhook_id not in seals:
                wrong.append(f"entry {head.seq} changes the webhook {webhook_id}, which did not exist by then")
            elif generation < before:
                wrong.append(f"entry {head.seq} gives the webhook {webhook_id} an earlier secret again")
            else:
                seals[webhook_id], generations[webhook_id] = content["seal"], generation
    return SeenWebhooks(head, seals, generations, tuple(wrong))


def seen_now(connection: Connection, secret: Secret, *, keep: bool = True) -> SeenWebhooks:
    """Return the webhooks that the installation's journal has.

    The process keeps what it read, so only later entries are read.

    Args:
        keep: whether it is kept. A transaction that writes sees entries that may never be committed.

    Raises:
        Unavailable: the journal is not sound, or its last entries, which this process has seen, are missing.
    """
    database: Database = connection.info[DATABASE]
    kept: SeenWebhooks = database.seen_webhooks or SeenWebhooks()
    known = installation_journal.has_entry(connection, kept.head)  # this transaction may be older
    try:
        seen = see_webhooks(connection, secret, kept if known else SeenWebhooks())
    except BrokenChain as broken:
        raise installation_journal.unsound_for_now(str(broken)) from None
    require_present(connection, KnownHead(INSTALLATION, seen.head.seq, seen.head.hash))
    if keep and seen.head.seq > kept.head.seq:  # of two threads either may be last: both are right
        database.seen_webhooks = seen
    return seen


def journalled(connection: Connection, secret: Secret) -> list[WebhookRecord]:
    """Return the webhooks whose rows are as the journal has them; the others are not used.

    Raises:
        Unavailable: the journal is not sound.
    """
    rows = connection.execute(select(*_COLUMNS, Webhook.seal).order_by(*_ORDER)).all()
    seals = seen_now(connection, secret).seals
    return [_record(row) for row in rows if _seal_of(secret, row) == row.seal == seals.get(row.id)]


def faults(connection: Connection, secret: Secret) -> Iterator[str]:
    """Yield the webhooks whose rows do not follow from the installation's journal, in words.

    Raises:
        BrokenChain: the journal is not sound.
    """
    seen = see_webhooks(connection, secret, SeenWebhooks())
    yield from (f"webhooks: {one}" for one in seen.wrong)
    missing = dict(seen.seals)
    for row in connection.execute(select(*_COLUMNS, Webhook.seal).order_by(*_ORDER)):
        entered = missing.pop(row.id, row.seal if row.events == _NO_EVENTS else None)
        if not _seal_of(secret, row) == row.seal == entered:
            yield f"webhooks: the row of {row.id} does not follow from the installation's journal"
    yield from (f"webhooks: the webhook {webhook_id} is missing" for webhook_id in missing)


def any_webhook(connection: Connection) -> bool:
    """Return whether there is a webhook."""
    return connection.execute(select(Webhook.id).where(~REMOVED).limit(1)).first() is not None


def removed_webhooks(connection: Connection, limit: int) -> Sequence[str]:
    """Return the ids of some webhooks that were deleted and whose messages may remain."""
    return connection.execute(select(Webhook.id).where(REMOVED).limit(limit)).scalars().all()


def removed_webhook(webhook_id: str, created_at: str, created_by: str) -> WebhookRecord:
    """Return what remains of a webhook that was deleted: it has no target, and reaches no account."""
    return WebhookRecord(webhook_id, "", None, (), (), (), None, False, 1, None, created_at, created_by)


def read_webhook(connection: Connection, secret: Secret, webhook_id: str, *, lock: bool = False) -> WebhookRecord:
    """Return a webhook.

    Args:
        lock: whether the row is locked until the transaction ends, in which the journal then gets no entry about the
            webhook from others, as they lock the row first.

    Raises:
        NotFound: there is none with this id in the installation's journal, or no row of it.
        Altered: its row is not the one that the journal states last.
        Unavailable: the journal is not sound.
    """
    query = select(*_COLUMNS, Webhook.seal).where(Webhook.id == webhook_id, ~REMOVED)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    seals = seen_now(connection, secret, keep=not lock).seals
    if row is None or webhook_id not in seals:
        raise NotFound("webhook", webhook_id)
    return _stated_record(secret, row, seals[webhook_id])


def lock_webhook(connection: Connection, webhook_id: str) -> None:
    """Lock the row of a webhook until the transaction ends, if there is one."""
    connection.execute(select(Webhook.id).where(Webhook.id == webhook_id).with_for_update())


def list_webhooks(
    connection: Connection, secret: Secret, after: str, limit: int, only: frozenset[str] | None
) -> Page[WebhookRecord]:
    """Return a page of webhooks, oldest first; ``after`` is the id of the last one before the page.

    Rows of webhooks that the installation's journal does not have, such as deleted ones, are left out.

    Args:
        only: the accounts of a limited steward, who sees the webhooks that are limited to these; None: all.

    Raises:
        Altered: a row is not the one that the journal states last.
        Unavailable: the journal is not sound.
    """
    query = select(*_COLUMNS, Webhook.seal).where(~REMOVED).order_by(*_ORDER)
    rows = connection.execute(query).all()  # few: at most ``MOST``
    seals = seen_now(connection, secret).seals
    stated = (_stated_record(secret, row, seals[row.id]) for row in rows if row.id in seals)
    found = [one for one in stated if is_within(one, only)]
    ids = [one.id for one in found]
    first = ids.index(after) + 1 if after in ids else 0
    page = Page(found[first : first + limit])
    page.more = first + limit < len(found)
    return page


def is_within(webhook: WebhookRecord, only: Collection[str] | None) -> bool:
    """Return whether a webhook sends nothing about others than these accounts; None: all, and the installation."""
    return only is None or (webhook.accounts is not None and set(webhook.accounts) <= set(only))


def missing_accounts(connection: Connection, webhook: WebhookRecord) -> list[str]:
    """Return those of a webhook's accounts that do not exist, or not yet."""
    named = webhook.accounts or ()
    known = set(connection.execute(select(Account.name).where(Account.name.in_(named))).scalars()) if named else ()
    return [name for name in named if name not in known]


def has_webhook(connection: Connection, webhook: WebhookRecord, *, lock: bool = False) -> bool:
    """Return whether a webhook is stored as it is here.

    Args:
        lock: whether it also stays so until the transaction ends.
    """
    query = select(*_COLUMNS).where(Webhook.id == webhook.id)
    row = connection.execute(query.with_for_update(read=True) if lock else query).one_or_none()
    return row is not None and _record(row) == webhook


def secret_of(secret: Secret, webhook_id: str, generation: int) -> str:
    """Return a webhook's signing secret, which is derived and stored nowhere, as Standard Webhooks writes it."""
    return "whsec_" + base64.b64encode(_key(secret, webhook_id, generation)).decode()


def signatures(secret: Secret, webhook: WebhookRecord, message_id: str, timestamp: int, payload: str, at: str) -> str:
    """Return the header ``webhook-signature`` of a message, by Standard Webhooks.

    For a while after a rotation it has the signatures by both secrets.
    """
    generations = [webhook.generation]
    if webhook.rotated_at is not None and at < clock.later(webhook.rotated_at, OVERLAP):
        generations.append(webhook.generation - 1)
    signed = f"{message_id}.{timestamp}.{payload}".encode()
    codes = (hmac.digest(_key(secret, webhook.id, generation), signed, hashlib.sha256) for generation in generations)
    return " ".join(f"v1,{base64.b64encode(code).decode()}" for code in codes)


def _key(secret: Secret, webhook_id: str, generation: int) -> bytes:
    return secret.hmac("webhook-secret", webhook_id.encode(), str(generation).encode())


def sealed_row(secret: Secret, webhook: WebhookRecord) -> dict[str, Any]:
    """Return the row of a webhook, with its seal."""
    row: dict[str, Any] = {field.name: getattr(webhook, field.name) for field in fields(webhook)}
    for name in ("mail", "events", "accounts"):
        row[name] = None if row[name] is None else json.dumps(row[name])
    row["active"] = int(webhook.active)
    return row | {"seal": _seal(secret, row)}


def _seal(secret: Secret, row: Mapping[Any, Any]) -> str:
    return secret.seal(_PURPOSE, *(row[column.key] for column in _COLUMNS))


def _seal_of(secret: Secret, row: Row[*tuple[Any, ...]]) -> str:
    return _seal(secret, row._mapping)


def _stated_record(secret: Secret, row: Row[*tuple[Any, ...]], stated: str) -> WebhookRecord:
    if not _seal_of(secret, row) == row.seal == stated:
        raise Altered("a webhook's row", f"the row of webhook {row.id!r}")
    return _record(row)


def _record(row: Row[*tuple[Any, ...]]) -> WebhookRecord:
    mail, accounts = (None if text is None else tuple(json.loads(text)) for text in (row.mail, row.accounts))
    return WebhookRecord(
        row.id,
        row.name,
        row.url,
        mail,
        tuple(json.loads(row.events)),
        accounts,
        row.below,
        bool(row.active),
        row.generation,
        row.rotated_at,
        row.created_at,
        row.created_by,
    )
