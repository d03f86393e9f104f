"""Messages that journal entries give: what happened, to whom, and what is left of the budget. They hold no counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, select

from service.api.schemas.exact_numbers import number_down, number_up
from service.api.schemas.guarantees import remaining_body
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import write_budget
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.entries import Approved, Refused, read_text
from service.ledger.journal.entries.account_changed import ChangeProposed, Decided, ProposalStep
from service.ledger.notifications.deliveries import Message
from service.ledger.notifications.webhooks import WebhookRecord
from service.ledger.storage.tables import OF_APPROVALS, Entry
from service.notifications.new_entries import EVENTS, NewEntry, OwnRelease
from service.privacy.accounting.privacy_filter import remaining


@dataclass(frozen=True, slots=True)
class News:
    """An event of an account, or of the installation; the page about it is at ``path``."""

    event: str
    account: str | None
    time: str
    path: str
    data: Mapping[str, Any] = field(default_factory=dict)


def news_of(
    connection: Connection, account: AccountRecord, entry: NewEntry, releases: Mapping[str, OwnRelease]
) -> News | None:
    """Return what an entry of an account's journal tells; None if nothing.

    Args:
        entry: linked with the head of the account, and about none of an account under it.
        releases: those of the account itself, by their ids.
    """
    page = f"/accounts/{account.name}"
    told: dict[str, Any] = {"account": account.name, "seq": entry.head.seq, "principal": entry.actor}
    if isinstance(entry.content, Refused):
        said: dict[str, Any] = {"release": {"id": None, "name": entry.content.name}, "refusal": _limit(entry.content)}
    elif entry.release is None:
        said = _change(entry)
        if said["proposal"] is None:  # one steward decided alone, and nothing had waited
            return None
    else:
        release = releases[str(entry.release)]
        if entry.kind == "voided" and not _was_proposed(connection, account.id, release, entry):
            return None
        page = f"{page}/releases/{release.id}"
        said = {"release": {"id": release.id, "name": release.name}}
        if isinstance(entry.content, Approved):
            said["state"] = entry.content.to
    return News(EVENTS[entry.kind], account.name, entry.time, page, _with(account, told | said))


def share_left(account: AccountRecord) -> Fraction:
    """Return the share of an account's budget that is left, from 0 to 1; of periods, that of the fullest window."""
    return remaining(account.budget, account.weights, account.totals) / account.budget.cap


def budget_below(account: AccountRecord, below: str, at: str) -> News:
    """Return the news that less than a share of an account's budget is left."""
    return News("budget.below", account.name, at, f"/accounts/{account.name}", _with(account, {"below": below}))


def message_for(webhook: WebhookRecord, news: News, public_url: str | None, more: Mapping[str, bool]) -> Message:
    """Return the message of a webhook about news.

    Args:
        more: what it says of limits.
    """
    link = {} if public_url is None else {"url": public_url + news.path}
    return Message(webhook.id, news.event, news.account, news.time, {**news.data, **link, **more})


def _was_proposed(connection: Connection, account_id: int, release: OwnRelease, end: NewEntry) -> bool:
    """Return whether a release still waited for approval before the entry that ended it."""
    if release.kind != "proposed":
        return False
    about = (OF_APPROVALS, Entry.release_id == release.id, Entry.account_id == account_id, Entry.seq < end.head.seq)
    approvals = map(read_text, connection.execute(select(Entry.body).where(*about)).scalars())
    return all(isinstance(one.content, Approved) and one.content.to == "proposed" for one in approvals)


def _change(entry: NewEntry) -> dict[str, Any]:
    """Return the change of an account that an entry proposes, approves or rejects, as far as the entry states it."""
    match entry.content:
        case ChangeProposed() as proposed:
            return {"proposal": entry.head.seq, "change": proposed.change()}
        case Decided() as decided:
            return {"proposal": decided.proposal, "change": decided.proposed().change(), "state": "in_force"}
        case ProposalStep() as step:
            waits = {"state": "proposed"} if entry.kind == "change_approved" else {}
            return {"proposal": step.proposal, **waits}
    raise BrokenChain(f"an entry of the kind {entry.kind} is about no change")


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
