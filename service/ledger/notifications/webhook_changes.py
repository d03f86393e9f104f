"""Changes of webhooks: each is an entry of the installation's journal, and limits the messages that remain."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from service.errors import Conflict
from service.ledger.access.key_events import SeenKeys, require_valid
from service.ledger.installation import installation_journal
from service.ledger.installation.installation_journal import lock_installation
from service.ledger.journal.journal import Actor
from service.ledger.notifications.webhooks import (
    REMOVED,
    WebhookRecord,
    is_within,
    lock_webhook,
    read_webhook,
    removed_webhook,
    sealed_row,
)
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, BudgetBelow, FollowedJournal, Webhook

MOST = 100  # webhooks: each takes rows for each event
MOST_BEFORE_LIMITED = 80  # webhooks; while there are so many, only keys that reach all accounts make more
MOST_OF_ONE = 20  # webhooks that one principal made
_FIXED = ("id", "created_at", "created_by")


def make(
    connection: Connection,
    secret: Secret,
    stated: Mapping[str, Any],
    *,
    limited: bool,
    at: str,
    by: Actor,
    seen: SeenKeys | None,
) -> WebhookRecord:
    """Add a webhook, from now on: earlier entries of the journals give no messages.

    Args:
        stated: its changeable fields.
        limited: whether the key of ``by`` is limited to accounts; such keys leave some places to others.
        seen: the keys that were read before the lock.

    Raises:
        Conflict: there are too many, or too many of this principal.
        Unauthenticated, Forbidden: the installation's journal does not know the key of ``by`` as a valid steward's.
    """
    _require_steward(connection, secret, by, at, seen)
    makers = connection.execute(select(Webhook.created_by).where(~REMOVED)).scalars().all()
    number, own = len(makers), makers.count(by.name)
    if number >= MOST:
        raise Conflict(f"there are {number} webhooks already, and at most {MOST} are allowed: delete one first")
    if own >= MOST_OF_ONE:
        raise Conflict(f"you have made {own} webhooks, and at most {MOST_OF_ONE} are allowed: delete one first")
    if limited and number >= MOST_BEFORE_LIMITED:
        raise Conflict(f"there are {number} webhooks already: a key that is limited to accounts makes no more of them")
    record = WebhookRecord(
        id=str(uuid.uuid4()), generation=1, rotated_at=None, created_at=at, created_by=by.name, **stated
    )
    connection.execute(insert(Webhook).values(sealed_row(secret, record)))
    if not number:
        _begin_following(connection)
    _enter(connection, secret, "webhook_made", record, by, at)
    return record


def change(
    connection: Connection,
    secret: Secret,
    webhook_id: str,
    stated: Mapping[str, Any],
    *,
    at: str,
    by: Actor,
    seen: SeenKeys | None,
) -> WebhookRecord:
    """Change fields of a webhook; messages about accounts that it does not reach any more are hidden from now on.

    Whoever may manage the webhook then reads all messages that remain, and gets those that still wait. A thread deletes
    the others.

    Raises:
        NotFound, Altered: as ``read_webhook``.
        Unauthenticated, Forbidden: as ``make``.
    """
    old = _locked(connection, secret, webhook_id, by, at, seen)
    new = replace(old, **stated)
    if new.below != old.below:
        connection.execute(delete(BudgetBelow).where(BudgetBelow.webhook_id == webhook_id))
    if new.accounts is not None and not is_within(old, new.accounts):
        reached = select(Account.id).where(Account.name.in_(new.accounts))
        beyond = BudgetBelow.account_id.not_in(reached)
        connection.execute(delete(BudgetBelow).where(BudgetBelow.webhook_id == webhook_id, beyond))
    _store(connection, secret, new)
    _enter(connection, secret, "webhook_changed", new, by, at)
    return new


def remove(
    connection: Connection, secret: Secret, webhook_id: str, *, at: str, by: Actor, seen: SeenKeys | None
) -> None:
    """Delete a webhook, of which only an empty row remains until a thread has deleted its messages.

    Raises:
        NotFound, Altered: as ``read_webhook``.
        Unauthenticated, Forbidden: as ``make``.
    """
    old = _locked(connection, secret, webhook_id, by, at, seen)
    connection.execute(delete(BudgetBelow).where(BudgetBelow.webhook_id == webhook_id))
    _store(connection, secret, removed_webhook(webhook_id, old.created_at, old.created_by))
    installation_journal.append(connection, secret, "webhook_deleted", {"id": webhook_id}, actor=by, at=at)


def _store(connection: Connection, secret: Secret, webhook: WebhookRecord) -> None:
    values = {name: value for name, value in sealed_row(secret, webhook).items() if name not in _FIXED}
    connection.execute(update(Webhook).where(Webhook.id == webhook.id).values(values))


def _begin_following(connection: Connection) -> None:
    """Let the journals be followed from their present heads, as nothing was followed without a webhook."""
    connection.execute(delete(FollowedJournal))
    heads = select(Account.id, Account.head_seq, Account.head_hash)
    connection.execute(insert(FollowedJournal).from_select(("account_id", "seq", "hash"), heads))
    own = installation_journal.head(connection)
    connection.execute(insert(FollowedJournal).values(account_id=NO_ACCOUNT, seq=own.seq, hash=own.hash))


def _enter(
    connection: Connection, secret: Secret, kind: installation_journal.Kind, webhook: WebhookRecord, by: Actor, at: str
) -> None:
    content: dict[str, object] = {
        "id": webhook.id,
        "name": webhook.name,
        "target": "mail" if webhook.url is None else "url",
        "events": list(webhook.events),
        "accounts": None if webhook.accounts is None else list(webhook.accounts),
        "active": webhook.active,
        "generation": webhook.generation,
        "seal": sealed_row(secret, webhook)["seal"],
    }
    installation_journal.append(connection, secret, kind, content, actor=by, at=at)


def _locked(
    connection: Connection, secret: Secret, webhook_id: str, by: Actor, at: str, seen: SeenKeys | None
) -> WebhookRecord:
    """Return the webhook to change as the journal states it last, while its row and the journal are locked.

    A request has locked the row before, so the row comes first here too.
    """
    lock_webhook(connection, webhook_id)
    _require_steward(connection, secret, by, at, seen)
    return read_webhook(connection, secret, webhook_id, lock=True)


def _require_steward(connection: Connection, secret: Secret, by: Actor, at: str, seen: SeenKeys | None) -> None:
    """Refuse a key that the journal does not have as a valid steward's, and lock the journal until the entry."""
    lock_installation(connection)
    require_valid(connection, secret, by, at, seen)
