"""Following of the journals: messages are made of new entries, in the transaction that moves the places reached.

Charges write nothing for this. Of several servers that follow at once, one writes; the others find that the places
moved, and write nothing.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction

import structlog
from sqlalchemy import Connection, delete, insert, or_, select, tuple_, update

from service.errors import ServiceError
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import ParsedEntry, read_text
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.journal.linked_heads import texts_after
from service.ledger.notifications import deliveries, webhooks
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import SeenWebhooks, WebhookRecord
from service.ledger.releases.settlement import in_list
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, BudgetBelow, FollowedJournal
from service.notifications.messages import KINDS, News, budget_below, messages_for, news_of, share_left

MOST_REFUSALS = 20
"""The number of messages about refusals in one account that a webhook gets in an hour: a pipeline may cause thousands
of refusals."""
_HOUR = timedelta(hours=1)
_AT_ONCE = 200  # accounts whose new entries one transaction reads
_AGAIN = 60.0  # seconds after which journals that could not be read are looked at again
# The names of the members that follow the kind cannot be part of another member.
_KIND = re.compile(r'"kind":"([a-z_]+)","release":(?:"[^"]*"|null),"seq":[0-9]+,"time":"[^"]*"\}\Z')
_END = 300  # characters in which the end of an entry's text lies; the plan before it may be long
_log = structlog.get_logger("service.notifications")


@dataclass
class _Found:
    """The findings of a look at the journals, to be written in one transaction.

    Attributes:
        places: for each journal the place that was reached before, if any, and the new one.
        below, above: webhooks and accounts whose budget came below the webhook's share, or is no longer below it.
    """

    places: dict[int, tuple[Head | None, Head]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    below: list[tuple[str, int]] = field(default_factory=list)
    above: list[tuple[str, int]] = field(default_factory=list)


class Follower:
    """The part of a server that makes messages of new entries.

    Attributes:
        webhooks: those that the last look found; a look that fails leaves them.
    """

    def __init__(self, database: Database, secret: Secret, public_url: str | None) -> None:
        self._database, self._secret, self._public_url = database, secret, public_url
        self._seen = SeenWebhooks()
        self._unreadable, self._since = dict[int, int](), 0.0  # heads of journals that could not be read, by account
        self.webhooks: Sequence[WebhookRecord] = ()

    def follow(self) -> bool:
        """Make messages of entries that are new in the journals; return whether others may follow at once.

        Without a webhook nothing is followed.

        Raises:
            Unavailable: the database does not answer.
            BrokenChain: the installation's journal is not sound.
        """
        if time.monotonic() - self._since > _AGAIN:
            self._unreadable, self._since = {}, time.monotonic()
        with self._database.read() as connection:
            if not webhooks.any_webhook(connection):
                self.webhooks = ()
                return False
            self._seen = webhooks.see_webhooks(connection, self._secret, self._seen)
            self.webhooks = webhooks.journalled(connection, self._secret, self._seen)
            found = _Found()
            self._read_installation(connection, found)
            moved = self._moved(connection)
            for account_id, name, last in moved:
                self._read_account(connection, found, account_id, name, last)
        if found.places:
            self._write(found)
        return len(moved) == _AT_ONCE

    def _moved(self, connection: Connection) -> list[tuple[int, str, Head | None]]:
        """Return the accounts with new entries, each with the place that was reached in its journal."""
        columns = (Account.id, Account.name, FollowedJournal.seq, FollowedJournal.hash)
        query = (
            select(*columns)
            .outerjoin(FollowedJournal, FollowedJournal.account_id == Account.id)
            .where(or_(FollowedJournal.seq.is_(None), Account.head_seq > FollowedJournal.seq))
            .where(Account.id.not_in(self._unreadable))
            .order_by(Account.id)
            .limit(_AT_ONCE)
        )
        rows = connection.execute(query).all()
        return [(row.id, row.name, None if row.seq is None else Head(row.seq, row.hash)) for row in rows]

    def _read_account(
        self, connection: Connection, found: _Found, account_id: int, name: str, last: Head | None
    ) -> None:
        try:
            account = accounts.read_account(connection, name)
            entries = _entries(connection, account, last or BEFORE_FIRST)
            news = [*news_of(connection, account, entries)]
            left = share_left(in_list(connection, account, clock.now()))
        except (ServiceError, BrokenChain, ValueError) as error:
            detail = (error.for_operator if isinstance(error, ServiceError) else None) or type(error).__name__
            _log.error("a journal gives no messages", account=name, detail=detail)
            self._unreadable[account_id] = 0
            return
        found.places[account_id] = (last, account.head)
        self._tell(connection, found, news)
        self._compare_share(connection, found, account, left)

    def _read_installation(self, connection: Connection, found: _Found) -> None:
        query = select(FollowedJournal.seq, FollowedJournal.hash).where(FollowedJournal.account_id == NO_ACCOUNT)
        row = connection.execute(query).one_or_none()
        last = BEFORE_FIRST if row is None else Head(row.seq, row.hash)
        reached, news = last, list[News]()
        for head, members in installation_journal.read_after(connection, self._secret, last):
            reached = head
            if members["kind"] == "mark_acknowledged":
                news.append(News("ledger.acknowledged", None, members["time"], "/", {"seq": members["seq"]}))
        if reached != last:
            found.places[NO_ACCOUNT] = (None if row is None else last, reached)
            self._tell(connection, found, news)

    def _tell(self, connection: Connection, found: _Found, news: Sequence[News]) -> None:
        since = clock.later(clock.now(), -_HOUR)
        for webhook in self.webhooks:
            refusals = 0
            for message in messages_for(webhook, news, self._public_url):
                if message.type == "release.refused":
                    if not refusals:
                        refusals = deliveries.number_since(connection, webhook.id, message.type, message.account, since)
                    refusals += 1
                    if refusals > MOST_REFUSALS:
                        continue
                found.messages.append(message)

    def _compare_share(self, connection: Connection, found: _Found, account: AccountRecord, left: Fraction) -> None:
        for webhook in self.webhooks:
            if webhook.below is None or not webhook.wants("budget.below", account.name):
                continue
            place = (webhook.id, account.id)
            known = select(BudgetBelow).where(tuple_(BudgetBelow.webhook_id, BudgetBelow.account_id) == tuple_(*place))
            was, now_below = connection.execute(known).first() is not None, left < Fraction(webhook.below)
            if now_below and not was:
                found.below.append(place)
                news = budget_below(account, webhook.below, clock.now())
                found.messages += messages_for(webhook, [news], self._public_url)
            elif was and not now_below:
                found.above.append(place)

    def _write(self, found: _Found) -> None:
        at = clock.now()

        def work(connection: Connection) -> list[str] | None:
            # One server at a time: the row of the installation's journal is there since the first webhook was made.
            own = select(FollowedJournal.seq).where(FollowedJournal.account_id == NO_ACCOUNT).with_for_update()
            connection.execute(own)
            if not all(_is_at(connection, account_id, last) for account_id, (last, _) in found.places.items()):
                return None
            for account_id, (last, new) in found.places.items():
                values = {"seq": new.seq, "hash": new.hash}
                if last is None:
                    connection.execute(insert(FollowedJournal).values(account_id=account_id, **values))
                else:
                    own_row = FollowedJournal.account_id == account_id
                    connection.execute(update(FollowedJournal).where(own_row).values(values))
            there = {webhook.id for webhook in self.webhooks if webhooks.has_webhook(connection, webhook, lock=True)}
            for webhook_id, account_id in found.below:
                if webhook_id in there:
                    connection.execute(insert(BudgetBelow).values(webhook_id=webhook_id, account_id=account_id))
            for place in found.above:
                same = tuple_(BudgetBelow.webhook_id, BudgetBelow.account_id) == tuple_(*place)
                connection.execute(delete(BudgetBelow).where(same))
            messages = [message for message in found.messages if message.webhook_id in there]
            return deliveries.queue(connection, self._secret, messages, at)

        def is_committed(connection: Connection, ids: list[str] | None) -> bool:
            reached = found.places.items()
            moved = all(_is_at(connection, account_id, new) for account_id, (_, new) in reached)
            return ids is not None and moved and deliveries.is_queued(connection, ids)

        self._database.write(work, is_committed=is_committed)


def _is_at(connection: Connection, account_id: int, place: Head | None) -> bool:
    query = select(FollowedJournal.seq, FollowedJournal.hash).where(FollowedJournal.account_id == account_id)
    row = connection.execute(query).one_or_none()
    return (None if row is None else Head(row.seq, row.hash)) == place


def _entries(connection: Connection, account: AccountRecord, last: Head) -> list[ParsedEntry]:
    """Return the new entries of an account that may give messages; the texts link the place with the sealed head.

    Raises:
        BrokenChain: they do not link them.
    """
    entries, reached = list[ParsedEntry](), last
    for head, body in texts_after(connection, account.id, last, account.head.seq):
        reached = head
        kind = _KIND.search(body, max(0, len(body) - _END))
        if kind is None:
            raise BrokenChain("an entry's text does not end as the service writes it")
        if kind[1] in KINDS:
            entries.append(read_text(body))
    if reached != account.head:
        raise BrokenChain("the entries do not link the last one that was read with the account's head")
    return entries
