"""Messages that journal entries give: what happened, to whom, and what is left of the budget. They hold no counts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection

from service.api.schemas.exact_numbers import number_down, number_up
from service.api.schemas.guarantees import remaining_body
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_budget
from service.ledger.journal.entries import Approved, ParsedEntry, Refused
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.releases.recorded_releases import later_entries
from service.ledger.releases.releases import ReleaseRecord, entry_of, read_some
from service.privacy.accounting.privacy_filter import remaining

KINDS = ("proposed", "approved", "voided", "expired", "refused")
"""The kinds of entries of accounts that give messages."""


@dataclass(frozen=True, slots=True)
class News:
    """An event of an account, or of the installation; the page about it is at ``path``."""

    event: str
    account: str | None
    time: str
    path: str
    data: Mapping[str, Any] = field(default_factory=dict)


def news_of(connection: Connection, account: AccountRecord, entries: Sequence[ParsedEntry]) -> Iterator[News]:
    """Yield what entries of an account's journal tell, in their order.

    Entries about releases of accounts under it are left out: those accounts' own journals tell the same.

    Args:
        entries: of ``KINDS``, linked with the head of the account.

    Raises:
        Altered: a release is not as the service wrote it.
    """
    ids = sorted({entry.release for entry in entries if entry.release is not None})
    own = {release.id: release for release in read_some(connection, account.id, ids)}
    page = f"/accounts/{account.name}"
    for entry in entries:
        told = {"account": account.name, "seq": entry.seq, "principal": entry.actor}
        if isinstance(entry.content, Refused):
            refusal = told | {"release": {"id": None, "name": entry.content.name}, "refusal": _limit(entry.content)}
            yield News(
                "release.refused", account.name, entry.time, f"/accounts/{account.name}", _with(account, refusal)
            )
            continue
        release = own.get(entry.release or "")
        event = None if release is None else _event(connection, account, release, entry)
        if release is not None and event is not None:
            said = told | {"release": {"id": release.id, "name": release.name}}
            if isinstance(entry.content, Approved):
                said["state"] = entry.content.to
            yield News(event, account.name, entry.time, f"{page}/releases/{release.id}", _with(account, said))


def share_left(account: AccountRecord) -> Fraction:
    """Return the share of an account's budget that is left, from 0 to 1; of periods, that of the fullest window."""
    return remaining(account.budget, account.weights, account.totals) / account.budget.cap


def budget_below(account: AccountRecord, below: str, at: str) -> News:
    """Return the news that less than a share of an account's budget is left."""
    return News("budget.below", account.name, at, f"/accounts/{account.name}", _with(account, {"below": below}))


def messages_for(webhook: WebhookRecord, news: Iterable[News], public_url: str | None) -> Iterator[Message]:
    """Yield the messages that a webhook asks for: none about what happened before it was made."""
    for one in news:
        if webhook.wants(one.event, one.account) and one.time >= webhook.created_at:
            link = {} if public_url is None else {"url": public_url + one.path}
            yield Message(webhook.id, one.event, one.account, one.time, {**one.data, **link})


def _event(connection: Connection, account: AccountRecord, release: ReleaseRecord, entry: ParsedEntry) -> str | None:
    match entry.kind:
        case "proposed":
            return "release.proposed"
        case "approved":
            return "release.approved"
        case "expired":
            return "release.expired"
        case "voided" if _was_proposed(connection, account, release, entry.seq):
            return "release.rejected"
    return None


def _was_proposed(connection: Connection, account: AccountRecord, release: ReleaseRecord, before: int) -> bool:
    """Return whether a release still waited for approval before an entry."""
    if entry_of(connection, account.id, release)["kind"] != "proposed":
        return False
    approvals = (one for one in later_entries(connection, account, release, ["approved"]) if one.seq < before)
    return all(one.content.next_state() == "proposed" for one in approvals)


def _limit(refused: Refused) -> dict[str, Any]:
    """Return the cap that a refused release did not fit; all null where it is of an account above."""
    requested, left = (None if text is None else Fraction(text) for text in (refused.requested, refused.remaining))
    return {
        "account": refused.account,
        "definition": refused.definition,
        "cap": refused.cap,
        "requested": None if requested is None else number_up(requested),
        "remaining": None if left is None else number_down(left),
        "tag": refused.tag,
        "window": refused.window,
    }


def _with(account: AccountRecord, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said with the account's budget and what is left of it, as the message is made."""
    budget = {"budget": write_budget(account.budget), "remaining": remaining_body(account)}
    return {"account": account.name, **said, **budget}
