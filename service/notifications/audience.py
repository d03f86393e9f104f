"""The webhooks of one look at the journals, found by the accounts that they reach."""

from collections import defaultdict
from collections.abc import Sequence

from service.ledger.notifications.webhooks import WebhookRecord


class Audience:
    """The active webhooks, by account: each may name a thousand accounts, and a look asks for hundreds."""

    def __init__(self, webhooks: Sequence[WebhookRecord]) -> None:
        active = [one for one in webhooks if one.active]
        self._everywhere = [one for one in active if one.accounts is None]
        self._by_account = defaultdict[str, list[WebhookRecord]](list)
        for webhook in active:
            for account in webhook.accounts or ():
                self._by_account[account].append(webhook)

    def of(self, event: str, account: str | None) -> list[WebhookRecord]:
        """Return the webhooks that ask for messages of an event, about an account or the installation."""
        return [one for one in self._near(account) if event in one.events]

    def events(self, account: str) -> set[str]:
        """Return the events of an account that any webhook asks for."""
        return {event for one in self._near(account) for event in one.events}

    def _near(self, account: str | None) -> list[WebhookRecord]:
        own = [] if account is None else self._by_account.get(account, [])
        return self._everywhere + own
