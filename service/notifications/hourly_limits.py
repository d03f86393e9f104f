"""The limits on the messages that a webhook gets in an hour: about one event of one account, and about all accounts."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Connection

from service.ledger.notifications import deliveries
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage import clock

MOST_OF_EVENT = 20
"""The number of messages about one event of one account: a pipeline may cause thousands of refusals and proposals."""
MOST_OF_WEBHOOK = 1000
"""The number of messages about all accounts: a steward or a pipeline may have hundreds of them."""
_HOUR = timedelta(hours=1)


class HourlyLimits:
    """The numbers of messages that webhooks got within the last hour, with those that a look adds."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._since = connection, clock.later(clock.now(), -_HOUR)
        self._numbers = dict[str, Counter[tuple[str, str | None]]]()  # by webhook, then by event and account
        self._totals = dict[str, int]()  # by webhook

    def has_room(self, webhook: WebhookRecord, event: str, account: str | None) -> bool:
        """Return whether a webhook may get one more message; those about the installation have only their own limit."""
        numbers = self._of(webhook)
        return numbers[event, account] < MOST_OF_EVENT and (
            account is None or self._totals[webhook.id] < MOST_OF_WEBHOOK
        )

    def count(self, webhook: WebhookRecord, event: str, account: str | None) -> Mapping[str, bool]:
        """Count a message; return what it says of the limits, which it may be the last one to keep."""
        numbers = self._of(webhook)
        numbers[event, account] += 1
        self._totals[webhook.id] += 1
        if account is not None and self._totals[webhook.id] >= MOST_OF_WEBHOOK:
            return {"last_of_hour": True, "of_all_accounts": True}
        return {"last_of_hour": True} if numbers[event, account] == MOST_OF_EVENT else {}

    def _of(self, webhook: WebhookRecord) -> Counter[tuple[str, str | None]]:
        if webhook.id not in self._numbers:
            numbers = deliveries.numbers_since(self._connection, webhook.id, self._since)
            self._numbers[webhook.id], self._totals[webhook.id] = numbers, numbers.total()
        return self._numbers[webhook.id]
