"""Following of the journals: messages are made of new entries, in the transaction that moves the places reached.

Charges write nothing for this. A look is bounded, whatever there is to follow, and others write between two looks.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import structlog
from sqlalchemy import Connection, or_, select, tuple_

from service.errors import ServiceError
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.installation import installation_journal
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.journal import BEFORE_FIRST, Head
from service.ledger.notifications import webhooks
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.releases.settlement import in_list
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.group_commit import NO_ACCOUNT
from service.ledger.storage.secret import Secret
from service.ledger.storage.tables import Account, BudgetBelow, FollowedJournal
from service.notifications.audience import Audience
from service.notifications.causes import Causes, Moved
from service.notifications.hourly_limits import HourlyLimits
from service.notifications.look import Look
from service.notifications.messages import News, budget_below, message_for, news_of, share_left
from service.notifications.new_entries import EVENTS, Walk

_CONSIDERED = 1000  # accounts with new entries among which one look chooses
_AT_ONCE = 200  # accounts whose new entries one look reads
_MOST = 1 << 24  # characters of new entries that one look reads, and a bit more
_AGAIN = 60.0  # seconds after which journals that could not be read are looked at again
_log = structlog.get_logger("service.notifications")


class Follower:
    """The part of a server that makes messages of new entries.

    Attributes:
        webhooks: those that the last look found; a look that fails leaves them.
    """

    def __init__(self, database: Database, secret: Secret, public_url: str | None) -> None:
        self._database, self._secret, self._public_url = database, secret, public_url
        self._causes = Causes()
        self._after = 0  # the account after which the next look begins, so that busy ones do not hide others
        self._walks = dict[int, Walk]()  # those that did not come to their end, by account
        self._unreadable, self._since = set[int](), 0.0  # accounts whose journals could not be read
        self._looked = time.monotonic()  # the end of the last look that did not fail
        self.webhooks: Sequence[WebhookRecord] = ()

    def unfollowed_age(self) -> float:
        """Return the age in seconds of the oldest entry that is known to be new, or the time since the last look."""
        return max(self._causes.oldest_age(), time.monotonic() - self._looked)

    def follow(self) -> float:
        """Make messages of new entries: of so many accounts, texts and messages as one look takes.

        Without a webhook nothing is followed.

        Returns:
            The seconds of the processor for which it wrote.

        Raises:
            Unavailable: the database does not answer, or the installation's journal is not sound.
        """
        wrote = self._follow()
        self._looked = time.monotonic()
        return wrote

    def _follow(self) -> float:
        if time.monotonic() - self._since > _AGAIN:
            self._unreadable, self._since = set(), time.monotonic()
        with self._database.read() as connection:
            if not webhooks.any_webhook(connection):
                self.webhooks = ()
                self._causes.end()
                return 0.0
            self.webhooks = webhooks.journalled(connection, self._secret)
            found, room = Look(Audience(self.webhooks), HourlyLimits(connection)), _MOST
            self._read_installation(connection, found)
            moved = self._moved(connection)
            for one in self._causes.order(connection, moved)[:_AT_ONCE]:
                if room <= 0 or found.is_full():
                    break
                self._causes.take(one)
                self._after = one.account_id
                room -= self._read_account(connection, found, one, room)
            if len(moved) == _CONSIDERED:
                self._after = moved[-1].account_id
            else:  # other servers followed the others
                self._walks = {
                    one.account_id: self._walks[one.account_id] for one in moved if one.account_id in self._walks
                }
        wrote = found.write(self._database, self._secret, self.webhooks)
        self._causes.end([of for of in found.places if of not in self._walks])
        return wrote

    def _moved(self, connection: Connection) -> list[Moved]:
        """Return accounts with new entries, those after the last account first."""
        columns = (Account.id, Account.name, FollowedJournal.seq, FollowedJournal.hash)
        query = (
            select(*columns)
            .outerjoin(FollowedJournal, FollowedJournal.account_id == Account.id)
            .where(or_(FollowedJournal.seq.is_(None), Account.head_seq > FollowedJournal.seq))
            .where(Account.id.not_in(self._unreadable))
            .order_by(Account.id <= self._after, Account.id)
            .limit(_CONSIDERED)
        )
        rows = connection.execute(query).all()
        return [Moved(row.id, row.name, None if row.seq is None else Head(row.seq, row.hash)) for row in rows]

    def _read_account(self, connection: Connection, found: Look, one: Moved, room: int) -> int:
        """Read new entries of an account, and tell of them; return the number of characters that were read."""
        wants = found.audience.events(one.name)
        walk, size, before = self._walks.pop(one.account_id, None), 0, len(found.messages)
        try:
            account = accounts.read_account(connection, one.name)
            place = one.last or BEFORE_FIRST
            if walk is None or walk.start != place:
                walk = Walk(place, account.head, place)
            kinds = {kind for kind, event in EVENTS.items() if event in wants}
            try:
                if kinds and walk.reached != walk.end:
                    size = walk.go_on(connection, account.id, kinds, room)
                    if walk.reached != walk.end:
                        self._walks[account.id] = walk
                        return size
            except BrokenChain as broken:
                _log.error("messages of a journal begin anew at its head", account=one.name, detail=str(broken))
                walk = Walk(place, account.head, account.head)
            reached = self._tell(connection, found, account, walk)
            if reached is None and "budget.below" in wants:
                left = share_left(in_list(connection, account, clock.now()))
                found.messages += self._compare_share(connection, found, account, left)
        except (ServiceError, BrokenChain, ValueError) as error:
            detail = (error.for_operator if isinstance(error, ServiceError) else None) or type(error).__name__
            _log.error("a journal gives no messages", account=one.name, detail=detail)
            self._unreadable.add(one.account_id)
            del found.messages[before:]  # they are told later
            return size
        if reached is not None:
            self._walks[account.id] = reached
        found.places[account.id] = (one.last, walk.end if reached is None else reached.start)
        return size

    def _read_installation(self, connection: Connection, found: Look) -> None:
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
            reached, news = webhooks.seen_now(connection, self._secret).head, []
        if reached != last:
            found.places[NO_ACCOUNT] = (None if row is None else last, reached)
            for one in news:
                found.messages += self._messages(found, one, found.audience.of(one.event, None))

    def _tell(self, connection: Connection, found: Look, account: AccountRecord, walk: Walk) -> Walk | None:
        """Add the messages about entries of an account; return the walk with the entries that are left, if any.

        What nobody gets is not looked at.
        """
        asking = {event: found.audience.of(event, account.name) for event in EVENTS.values()}
        for number, entry in enumerate(walk.entries):
            if found.is_full():
                return replace(walk, start=walk.entries[number - 1].head, entries=walk.entries[number:])
            event = EVENTS[entry.kind]
            asking[event] = [one for one in asking[event] if found.limits.has_room(one, event, account.name)]
            takers = [one for one in asking[event] if entry.time >= one.created_at]
            news = news_of(connection, account, entry, walk.releases) if takers else None
            if news is not None:
                found.messages += self._messages(found, news, takers)
        return None

    def _messages(self, found: Look, news: News, takers: Sequence[WebhookRecord]) -> Iterator[Message]:
        """Yield the messages of webhooks about news; none is told of what was before it, or beyond its limits."""
        for webhook in takers:
            if news.time >= webhook.created_at and found.limits.has_room(webhook, news.event, news.account):
                more = found.limits.count(webhook, news.event, news.account)
                yield message_for(webhook, news, self._public_url, more)

    def _compare_share(
        self, connection: Connection, found: Look, account: AccountRecord, left: Fraction
    ) -> Iterator[Message]:
        event, at = "budget.below", clock.now()
        for webhook in found.audience.of(event, account.name):
            place = (webhook.id, account.id)
            known = select(BudgetBelow).where(tuple_(BudgetBelow.webhook_id, BudgetBelow.account_id) == tuple_(*place))
            was, now_below = connection.execute(known).first() is not None, left < Fraction(str(webhook.below))
            if now_below and not was:
                found.below.append(place)
                news = budget_below(account, str(webhook.below), at)
                yield from self._messages(found, news, [webhook])
            elif was and not now_below:
                found.above.append(place)


def _require_place(connection: Connection, place: Head) -> None:
    """Refuse a place that the installation's journal does not have.

    Raises:
        BrokenChain: it has no such entry.
    """
    if not installation_journal.has_entry(connection, place):
        raise BrokenChain("the journal does not contain the place that was reached")
