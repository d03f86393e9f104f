"""Following of the journals: messages are made of new entries, in the transaction that moves the places reached.

Charges write nothing for this. Of several servers that follow at once, one writes; the others find that the places
moved, and write nothing.
"""

import time
from collections.abc import Iterator, Sequence
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
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.notifications import deliveries, webhooks
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import SeenWebhooks, WebhookRecord
from service.ledger.releases.settlement import in_list
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, BudgetBelow, FollowedJournal
from service.notifications.audience import Audience
from service.notifications.messages import News, budget_below, message_for, news_of, share_left
from service.notifications.new_entries import EVENTS, Walk

MOST_OF_HOUR = 20
"""The number of messages about one event of one account that a webhook gets in an hour: a pipeline may cause thousands
of refusals and proposals."""
_HOUR = timedelta(hours=1)
_AT_ONCE = 200  # accounts whose new entries one look reads
_MOST = 1 << 24  # characters of new entries that one look reads, and a bit more
_AGAIN = 60.0  # seconds after which journals that could not be read are looked at again
_log = structlog.get_logger("service.notifications")


@dataclass
class _Found:
    """The findings of a look at the journals, to be written in one transaction.

    Attributes:
        places: for each journal the place that was reached before, if any, and the new one.
        below, above: webhooks and accounts whose budget came below the webhook's share, or is no longer below it.
        numbers: of messages that a webhook got about an event and account within the last hour.
    """

    audience: Audience
    places: dict[int, tuple[Head | None, Head]] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    below: list[tuple[str, int]] = field(default_factory=list)
    above: list[tuple[str, int]] = field(default_factory=list)
    numbers: dict[tuple[str, str, str | None], int] = field(default_factory=dict)


class Follower:
    """The part of a server that makes messages of new entries.

    Attributes:
        webhooks: those that the last look found; a look that fails leaves them.
    """

    def __init__(self, database: Database, secret: Secret, public_url: str | None) -> None:
        self._database, self._secret, self._public_url = database, secret, public_url
        self._seen = SeenWebhooks()
        self._after = 0  # the account after which the next look goes on, so that busy ones do not hide others
        self._walks = dict[int, Walk]()  # those that did not come to their end, by account
        self._unreadable, self._since = set[int](), 0.0  # accounts whose journals could not be read
        self.webhooks: Sequence[WebhookRecord] = ()

    def follow(self) -> None:
        """Make messages of entries that are new in the journals, of some accounts and so many texts as one look reads.

        Without a webhook nothing is followed.

        Raises:
            Unavailable: the database does not answer.
            BrokenChain: the installation's journal is not sound.
        """
        if time.monotonic() - self._since > _AGAIN:
            self._unreadable, self._since = set(), time.monotonic()
        with self._database.read() as connection:
            if not webhooks.any_webhook(connection):
                self.webhooks = ()
                return
            self._seen = webhooks.see_webhooks(connection, self._secret, self._seen)
            self.webhooks = webhooks.journalled(connection, self._secret, self._seen)
            found, room = _Found(Audience(self.webhooks)), _MOST
            self._read_installation(connection, found)
            moved = self._moved(connection)
            self._after = moved[-1][0] if len(moved) == _AT_ONCE else 0
            for account_id, name, last in moved:
                room -= self._read_account(connection, found, account_id, name, last, room)
                if room <= 0:
                    self._after = account_id
                    break
        if found.places:
            self._write(found)

    def _moved(self, connection: Connection) -> list[tuple[int, str, Head | None]]:
        """Return accounts with new entries, each with the place that was reached in its journal."""
        columns = (Account.id, Account.name, FollowedJournal.seq, FollowedJournal.hash)
        query = (
            select(*columns)
            .outerjoin(FollowedJournal, FollowedJournal.account_id == Account.id)
            .where(or_(FollowedJournal.seq.is_(None), Account.head_seq > FollowedJournal.seq))
            .where(Account.id > self._after, Account.id.not_in(self._unreadable))
            .order_by(Account.id)
            .limit(_AT_ONCE)
        )
        rows = connection.execute(query).all()
        return [(row.id, row.name, None if row.seq is None else Head(row.seq, row.hash)) for row in rows]

    def _read_account(
        self, connection: Connection, found: _Found, account_id: int, name: str, last: Head | None, room: int
    ) -> int:
        """Read new entries of an account; return the number of characters that were read."""
        wants = found.audience.events(name)
        walk = self._walks.pop(account_id, None)
        try:
            account = accounts.read_account(connection, name)
            place = last or BEFORE_FIRST
            if walk is None or walk.start != place:
                walk = Walk(place, account.head, place)
            kinds, size = {kind for kind, event in EVENTS.items() if event in wants}, 0
            try:
                if kinds:
                    size = walk.go_on(connection, account_id, kinds, room)
                    if walk.reached != walk.end:
                        self._walks[account_id] = walk
                        return size
            except BrokenChain as broken:
                _log.error("messages of a journal begin anew at its head", account=name, detail=str(broken))
                walk = Walk(place, account.head, account.head)
            messages = [*self._told(connection, found, account, walk)]
            if "budget.below" in wants:
                left = share_left(in_list(connection, account, clock.now()))
                messages += self._compare_share(connection, found, account, left)
        except (ServiceError, BrokenChain, ValueError) as error:
            detail = (error.for_operator if isinstance(error, ServiceError) else None) or type(error).__name__
            _log.error("a journal gives no messages", account=name, detail=detail)
            self._unreadable.add(account_id)
            return 0
        found.messages += messages
        found.places[account_id] = (last, walk.end)
        return size

    def _read_installation(self, connection: Connection, found: _Found) -> None:
        query = select(FollowedJournal.seq, FollowedJournal.hash).where(FollowedJournal.account_id == NO_ACCOUNT)
        row = connection.execute(query).one_or_none()
        last = BEFORE_FIRST if row is None else Head(row.seq, row.hash)
        reached, news = last, list[News]()
        try:
            _require_place(connection, last)
            for head, members in installation_journal.read_after(connection, self._secret, last):
                reached = head
                if members["kind"] == "mark_acknowledged":
                    news.append(News("ledger.acknowledged", None, members["time"], "/", {"seq": members["seq"]}))
        except BrokenChain as broken:  # the webhooks that were read show that the journal is sound up to this head
            _log.error("messages of the installation's journal begin anew at its head", detail=str(broken))
            reached, news = self._seen.head, []
        if reached != last:
            found.places[NO_ACCOUNT] = (None if row is None else last, reached)
            for one in news:
                asking = found.audience.of(one.event, None)
                takers = self._takers(connection, found, asking, one.event, None, one.time)
                found.messages += self._messages(found, one, takers)

    def _told(self, connection: Connection, found: _Found, account: AccountRecord, walk: Walk) -> Iterator[Message]:
        """Yield the messages about entries of an account; what nobody gets is not looked at."""
        asking = {kind: found.audience.of(event, account.name) for kind, event in EVENTS.items()}
        for entry in walk.entries:
            event = EVENTS[entry.kind]
            takers = self._takers(connection, found, asking[entry.kind], event, account.name, entry.time)
            news = news_of(connection, account, entry, walk.releases) if takers else None
            yield from () if news is None else self._messages(found, news, takers)

    def _takers(
        self,
        connection: Connection,
        found: _Found,
        asking: Sequence[WebhookRecord],
        event: str,
        account: str | None,
        at: str,
    ) -> list[WebhookRecord]:
        """Return those of some webhooks that get a message about an event; none is told of what was before it."""
        since, takers = clock.later(clock.now(), -_HOUR), []
        for webhook in asking:
            key = (webhook.id, event, account)
            if at >= webhook.created_at:
                if key not in found.numbers:
                    found.numbers[key] = deliveries.number_since(connection, *key, since)
                if found.numbers[key] < MOST_OF_HOUR:
                    takers.append(webhook)
        return takers

    def _messages(self, found: _Found, news: News, takers: Sequence[WebhookRecord]) -> Iterator[Message]:
        for webhook in takers:
            key = (webhook.id, news.event, news.account)
            found.numbers[key] += 1
            last = found.numbers[key] == MOST_OF_HOUR
            yield message_for(webhook, news, self._public_url, last=last)

    def _compare_share(
        self, connection: Connection, found: _Found, account: AccountRecord, left: Fraction
    ) -> Iterator[Message]:
        event, at = "budget.below", clock.now()
        for webhook in found.audience.of(event, account.name):
            place = (webhook.id, account.id)
            known = select(BudgetBelow).where(tuple_(BudgetBelow.webhook_id, BudgetBelow.account_id) == tuple_(*place))
            was, now_below = connection.execute(known).first() is not None, left < Fraction(str(webhook.below))
            if now_below and not was:
                found.below.append(place)
                news = budget_below(account, str(webhook.below), at)
                takers = self._takers(connection, found, [webhook], event, account.name, at)
                yield from self._messages(found, news, takers)
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


def _require_place(connection: Connection, place: Head) -> None:
    """Refuse a place that the installation's journal does not have.

    Raises:
        BrokenChain: it has no such entry.
    """
    if not installation_journal.has_entry(connection, place):
        raise BrokenChain("the journal does not contain the place that was reached")
